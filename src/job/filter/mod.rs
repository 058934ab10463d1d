//! The filter language for jobs, used in code, on the command line, over HTTP and in the dashboard:
//! `state:dead kind:email args.to:ada error:timeout since:1h`. Pure logic, without clock or store.

mod format;
mod matches;
mod order;
mod parse;

pub(crate) use crate::job::filter::matches::Matcher;
pub use crate::job::filter::order::JobOrder;

use std::str::FromStr;
use std::time::{Duration, SystemTime};

use crate::clock::{from_micros, to_micros};
use crate::error::Error;
use crate::job::{IdPart, Priority, State};

/// Maximum length of a filter, in bytes.
pub const FILTER_BYTES_MAX: usize = 4 * 1024;
/// Maximum conditions in one filter.
pub const FILTER_TERMS_MAX: usize = 64;

/// Selects the jobs that meet all conditions. Without conditions it selects all jobs.
///
/// Parse it from text with [`str::parse`]. Its [`Display`](std::fmt::Display) output parses to the same filter.
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
    /// The id, or its beginning or end.
    pub id: Option<IdPart>,
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
    /// The order across all queues. Without one, jobs come queue by queue and state by state.
    pub order: Option<JobOrder>,
    /// Turns the order around.
    pub reverse: bool,
    /// Maximum jobs per page; 0 means 50.
    pub limit: usize,
    /// The cursor of the previous page.
    pub cursor: Option<String>,
    /// Includes runs, progress, log and result, which costs a lookup per job that has any.
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
    /// The id has this beginning or end.
    Id(IdPart),
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

    /// Parses the filter of a change to many jobs. Rejects a bare word that may be a mistyped or shortened id: as a filter,
    /// it would select other jobs, those with the word in their args.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Invalid`] if the text is not a filter, or has such a word.
    ///
    /// # Examples
    ///
    /// ```
    /// use duly::Filter;
    ///
    /// assert!(Filter::parse_for_change("state:dead 6f0c7c11").is_err());
    /// assert!(Filter::parse_for_change("state:dead id:6f0c7c11").is_ok());
    /// assert!(Filter::parse_for_change("state:dead \"6f0c7c11\"").is_ok(), "a quoted word is a text");
    /// ```
    pub fn parse_for_change(text: &str) -> Result<Self, Error> {
        parse::parse(text, true)
    }

    /// Selects only the job with this id, or the jobs whose ids have this beginning or end.
    ///
    /// # Examples
    ///
    /// ```
    /// assert_eq!(duly::Filter::all().id("7c11".parse::<duly::job::IdPart>()?), "id:7c11".parse()?);
    /// # Ok::<_, duly::Error>(())
    /// ```
    #[must_use]
    pub fn id(self, id: impl Into<IdPart>) -> Self {
        Filter { id: Some(id.into()), ..self }
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

    /// Includes runs, progress, log and result of each job.
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
        let Filter { order, reverse, limit, cursor, with_details, .. } = self.clone();
        *self == Filter { order, reverse, limit, cursor, with_details, ..Filter::default() }
    }
}

impl FromStr for Filter {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        parse::parse(text, false)
    }
}

#[cfg(test)]
mod tests;
