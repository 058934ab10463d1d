//! The filter language for jobs, used in code, on the command line, over HTTP and in the dashboard:
//! `state:dead kind:email args.to:ada error:timeout since:1h`. Pure logic, without clock or store.

mod matches;
mod parse;

#[cfg(any(feature = "sqlite", feature = "redis"))]
pub(crate) use crate::job::filter::matches::Matcher;

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use crate::clock::{from_micros, to_micros};
use crate::error::Error;
use crate::job::{Priority, State};

/// Maximum length of a filter, in bytes.
pub const FILTER_BYTES_MAX: usize = 4 * 1024;
/// Maximum conditions in one filter.
pub const FILTER_TERMS_MAX: usize = 64;

/// Selects the jobs that meet all conditions. Without conditions it selects all jobs.
///
/// Parse it from text with [`str::parse`]. Its [`Display`](fmt::Display) output parses to the same filter.
///
/// # Examples
///
/// ```
/// use duly::{Filter, State};
///
/// let built = Filter::all().queue("mail").state(State::Dead);
/// assert_eq!(built, "queue:mail state:dead".parse()?);
/// # Ok::<_, duly::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Filter {
    /// The queue.
    pub queue: Option<String>,
    /// The state.
    pub state: Option<State>,
    /// The kind.
    pub kind: Option<String>,
    /// Tags, which the job must all have.
    pub tags: Vec<String>,
    /// The priority.
    pub priority: Option<Priority>,
    /// Paths into the args (`to`, `user.name`, `items.0`) with a value. A text must contain the value; a number, a
    /// boolean or `null` must equal it. Case is ignored.
    pub args: Vec<(String, String)>,
    /// A text that the last error must contain, ignoring case.
    pub error: Option<String>,
    /// Texts that the args or the last error must each contain, ignoring case.
    pub text: Vec<String>,
    /// The id of a group of dead jobs; see [`DeadGroup::id`](crate::admin::DeadGroup::id).
    pub group: Option<String>,
    /// The earliest time. It is compared with the due time of a scheduled job, with the end of a done, dead or cancelled
    /// job, and with the push time of any other job.
    pub since: Option<FilterTime>,
    /// The end of the time range, exclusive.
    pub until: Option<FilterTime>,
    /// Conditions that the job must not meet.
    pub not: Vec<FilterTerm>,
    /// Maximum jobs per page; 0 means 50.
    pub limit: usize,
    /// The cursor of the previous page.
    pub cursor: Option<String>,
    /// Includes failures, progress, log and result, which costs a lookup per job that has any.
    pub with_details: bool,
}

impl Filter {
    /// Returns whether the filter reads args. A client that may not see args could find them out with such a filter.
    ///
    /// # Examples
    ///
    /// ```
    /// let filter: duly::Filter = "args.to:ada".parse()?;
    /// assert!(filter.uses_args());
    /// # Ok::<_, duly::Error>(())
    /// ```
    #[must_use]
    pub fn uses_args(&self) -> bool {
        let of_args = |term: &FilterTerm| matches!(term, FilterTerm::Args(..) | FilterTerm::Text(_));
        !self.args.is_empty() || !self.text.is_empty() || self.not.iter().any(of_args)
    }
}

/// A condition that a job must not meet.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FilterTerm {
    /// The job is in this state.
    State(State),
    /// The job is in this queue.
    Queue(String),
    /// The job is of this kind.
    Kind(String),
    /// The job has this tag.
    Tag(String),
    /// The job has this priority.
    Priority(Priority),
    /// The args have this value at this path.
    Args(String, String),
    /// The last error contains this text.
    Error(String),
    /// The args or the last error contain this text.
    Text(String),
}

/// A time, relative to now or absolute. Relative times are resolved when the filter is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FilterTime {
    /// This long ago.
    Ago(Duration),
    /// This long from now.
    In(Duration),
    /// At this time.
    At(SystemTime),
}

impl FilterTime {
    /// Returns the absolute time, relative to `now`.
    #[must_use]
    pub fn resolve(self, now: SystemTime) -> SystemTime {
        match self {
            FilterTime::Ago(ago) => from_micros(to_micros(now).saturating_sub(crate::clock::micros(ago))),
            FilterTime::In(ahead) => from_micros(to_micros(now).saturating_add(crate::clock::micros(ahead))),
            FilterTime::At(time) => time,
        }
    }
}

impl Filter {
    /// Returns a filter that selects all jobs.
    ///
    /// # Examples
    ///
    /// ```
    /// assert_eq!(duly::Filter::all(), "".parse()?);
    /// # Ok::<_, duly::Error>(())
    /// ```
    #[must_use]
    pub fn all() -> Self {
        Filter::default()
    }

    /// Selects only jobs in this queue.
    ///
    /// # Examples
    ///
    /// ```
    /// assert_eq!(duly::Filter::all().queue("mail"), "queue:mail".parse()?);
    /// # Ok::<_, duly::Error>(())
    /// ```
    #[must_use]
    pub fn queue(self, queue: impl Into<String>) -> Self {
        Filter { queue: Some(queue.into()), ..self }
    }

    /// Selects only jobs in this state; with `None`, jobs in any state.
    ///
    /// # Examples
    ///
    /// ```
    /// assert_eq!(duly::Filter::all().state(duly::State::Dead), "state:dead".parse()?);
    /// # Ok::<_, duly::Error>(())
    /// ```
    #[must_use]
    pub fn state(self, state: impl Into<Option<State>>) -> Self {
        Filter { state: state.into(), ..self }
    }

    /// Selects only jobs of this kind.
    ///
    /// # Examples
    ///
    /// ```
    /// assert_eq!(duly::Filter::all().kind("welcome"), "kind:welcome".parse()?);
    /// # Ok::<_, duly::Error>(())
    /// ```
    #[must_use]
    pub fn kind(self, kind: impl Into<String>) -> Self {
        Filter { kind: Some(kind.into()), ..self }
    }

    /// Selects only jobs that have this tag, in addition to the tags required so far.
    ///
    /// # Examples
    ///
    /// ```
    /// assert_eq!(duly::Filter::all().tag("nightly").tag("eu"), "tag:nightly tag:eu".parse()?);
    /// # Ok::<_, duly::Error>(())
    /// ```
    #[must_use]
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.tags.push(tag.into());
        self
    }

    /// Selects only the jobs of this group of dead jobs.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Duly, Filter};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let largest = duly.jobs().dead_groups(None).await?.into_iter().next();
    /// if let Some(group) = largest {
    ///     let newest = duly.jobs().list(Filter::all().group(group.id).limit(5)).await?;
    ///     println!("{}: {} jobs, for example {:?}", group.error, group.count, newest.jobs.first());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn group(self, group: impl Into<String>) -> Self {
        Filter { group: Some(group.into()), ..self }
    }

    /// Selects only jobs from this time on.
    ///
    /// # Examples
    ///
    /// ```
    /// use duly::{Filter, job::FilterTime};
    ///
    /// let hour = FilterTime::Ago(std::time::Duration::from_secs(3600));
    /// assert_eq!(Filter::all().since(hour), "since:1h".parse()?);
    /// # Ok::<_, duly::Error>(())
    /// ```
    #[must_use]
    pub fn since(self, time: FilterTime) -> Self {
        Filter { since: Some(time), ..self }
    }

    /// Selects only jobs before this time.
    ///
    /// # Examples
    ///
    /// ```
    /// use duly::{Filter, job::FilterTime};
    ///
    /// let in_ten_minutes = FilterTime::In(std::time::Duration::from_secs(600));
    /// assert_eq!(Filter::all().until(in_ten_minutes), "until:+10m".parse()?);
    /// # Ok::<_, duly::Error>(())
    /// ```
    #[must_use]
    pub fn until(self, time: FilterTime) -> Self {
        Filter { until: Some(time), ..self }
    }

    /// Sets the maximum number of jobs per page.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Duly, Filter, Push};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// for user in 0..3 {
    ///     duly.push(Push::new("mail", user.to_string())).await?;
    /// }
    /// let page = duly.jobs().list(Filter::all().limit(2)).await?;
    /// assert_eq!((page.jobs.len(), page.next_cursor.is_some()), (2, true));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn limit(self, limit: usize) -> Self {
        Filter { limit, ..self }
    }

    /// Continues after the page that returned this cursor; with `None`, starts at the first page.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Duly, Filter};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let mut filter = Filter::all().kind("mail").limit(100);
    /// loop {
    ///     let page = duly.jobs().list(filter.clone()).await?;
    ///     println!("{} jobs", page.jobs.len());
    ///     match page.next_cursor {
    ///         Some(cursor) => filter = filter.cursor(cursor),
    ///         None => break,
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn cursor(self, cursor: impl Into<Option<String>>) -> Self {
        Filter { cursor: cursor.into(), ..self }
    }

    /// Includes failures, progress, log and result of each job.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Duly, Filter, Push, State};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// # duly.push(Push::new("mail", "{}")).await?;
    /// let dead = duly.jobs().list(Filter::all().state(State::Dead).with_details()).await?;
    /// for record in dead.jobs {
    ///     println!("{}: {:?}", record.job.id, record.failures.last());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn with_details(self) -> Self {
        Filter { with_details: true, ..self }
    }

    /// Returns the same filter with absolute times, relative to `now`.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::SystemTime;
    /// use duly::{Filter, job::FilterTime};
    ///
    /// let now = SystemTime::now();
    /// let last_hour = "since:1h".parse::<Filter>()?.resolve_times(now); // the same jobs on every page
    /// assert!(matches!(last_hour.since, Some(FilterTime::At(time)) if time < now));
    /// # Ok::<_, duly::Error>(())
    /// ```
    #[must_use]
    pub fn resolve_times(mut self, now: SystemTime) -> Self {
        let resolve = |time: FilterTime| FilterTime::At(time.resolve(now));
        self.since = self.since.map(resolve);
        self.until = self.until.map(resolve);
        self
    }

    /// Returns whether the filter selects all jobs, regardless of its page options.
    ///
    /// # Examples
    ///
    /// ```
    /// use duly::Filter;
    ///
    /// assert!(Filter::all().limit(10).is_all());
    /// assert!(!Filter::all().queue("mail").is_all());
    /// ```
    #[must_use]
    pub fn is_all(&self) -> bool {
        let Filter { limit, cursor, with_details, .. } = self;
        *self == Filter { limit: *limit, cursor: cursor.clone(), with_details: *with_details, ..Filter::default() }
    }
}

impl FromStr for Filter {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        parse::parse(text)
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words: Vec<String> = Vec::new();
        let mut word = |name: &str, value: &str| words.push(format!("{name}:{}", quote_if_needed(value)));
        if let Some(state) = self.state {
            word("state", state.as_str());
        }
        for (name, value) in [("queue", &self.queue), ("kind", &self.kind)] {
            if let Some(value) = value {
                word(name, value);
            }
        }
        self.tags.iter().for_each(|tag| word("tag", tag));
        if let Some(priority) = self.priority {
            word("priority", priority.as_str());
        }
        for (path, value) in &self.args {
            word(&format!("args.{path}"), value);
        }
        for (name, value) in [("error", &self.error), ("group", &self.group)] {
            if let Some(value) = value {
                word(name, value);
            }
        }
        for (name, time) in [("since", self.since), ("until", self.until)] {
            if let Some(time) = time {
                word(name, &time.to_string());
            }
        }
        words.extend(self.text.iter().map(|text| quote_bare_word(text)));
        words.extend(self.not.iter().map(|term| format!("-{term}")));
        f.write_str(&words.join(" "))
    }
}

impl fmt::Display for FilterTerm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FilterTerm::State(state) => write!(f, "state:{state}"),
            FilterTerm::Queue(queue) => write!(f, "queue:{}", quote_if_needed(queue)),
            FilterTerm::Kind(kind) => write!(f, "kind:{}", quote_if_needed(kind)),
            FilterTerm::Tag(tag) => write!(f, "tag:{}", quote_if_needed(tag)),
            FilterTerm::Priority(priority) => write!(f, "priority:{priority}"),
            FilterTerm::Args(path, value) => write!(f, "args.{path}:{}", quote_if_needed(value)),
            FilterTerm::Error(error) => write!(f, "error:{}", quote_if_needed(error)),
            FilterTerm::Text(text) => f.write_str(&quote_bare_word(text)),
        }
    }
}

impl fmt::Display for FilterTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FilterTime::Ago(ago) => f.write_str(&format_span(*ago)),
            FilterTime::In(ahead) => write!(f, "+{}", format_span(*ahead)),
            FilterTime::At(time) => {
                let time = jiff::Timestamp::from_microsecond(to_micros(*time)).unwrap_or(jiff::Timestamp::MAX);
                write!(f, "{time}")
            }
        }
    }
}

/// Formats a duration as [`parse`] accepts it: whole milliseconds, in the largest units that fit.
fn format_span(time: Duration) -> String {
    let (secs, millis) = (time.as_secs(), time.subsec_millis());
    let units = [
        (secs / 86_400, "d"),
        (secs % 86_400 / 3_600, "h"),
        (secs % 3_600 / 60, "m"),
        (secs % 60, "s"),
        (u64::from(millis), "ms"),
    ];
    let text: String =
        units.into_iter().filter(|(count, _)| *count > 0).map(|(count, unit)| format!("{count}{unit}")).collect();
    if text.is_empty() { "0".to_owned() } else { text }
}

/// Quotes a value if it needs quotes.
fn quote_if_needed(value: &str) -> String {
    let plain = !value.is_empty() && !value.contains(|c: char| c.is_whitespace() || c == '"' || c == '\\');
    if plain { value.to_owned() } else { quote(value) }
}

/// Quotes a free word if it could be taken for something else.
fn quote_bare_word(word: &str) -> String {
    let special = word.starts_with('-') || word.contains([':', '<', '>']);
    if special { quote(word) } else { quote_if_needed(word) }
}

fn quote(value: &str) -> String {
    format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests;
