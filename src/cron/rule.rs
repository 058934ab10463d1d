//! A cron rule: what it pushes, when, and what it does about runs that were missed or still go. Pure data.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;

use super::plan::MISSED_TICKS_MAX;
use super::{Schedule, UTC};
use crate::clock::Micros;
use crate::error::{Error, Result};
use crate::job::push::{Due, Push, check_name};
use crate::job::{JobId, Priority};

/// Longest args of a rule, in bytes of JSON text: many rules may fire in one step.
pub const CRON_ARGS_BYTES_MAX: usize = 64 * 1024;
/// Longest jitter of a rule.
pub const JITTER_MAX: Duration = Duration::from_secs(24 * 3600);
/// The format of the text in which stores keep a rule.
const FORMAT: u32 = 1;
/// How unique keys of jobs of rules begin.
const UNIQUE_KEY_PREFIX: &str = "cron:";

/// What becomes of ticks at which nobody was there to fire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Missed {
    /// They are left out.
    Skip,
    /// The newest of them is fired: one run makes up for all.
    #[default]
    Once,
    /// So many of the newest are fired, each as a job; at most [`MISSED_MAX`].
    All(u32),
}

/// What a tick does while the job of an earlier one has not ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Overlap {
    /// It pushes its job all the same.
    #[default]
    Allow,
    /// It is left out.
    Skip,
    /// It waits for the end of that job. One tick waits at most: those that come meanwhile are left out.
    Queue,
    /// It puts an end to that job: one that waits is removed, a running one cancelled; then it pushes its own.
    Replace,
}

impl Overlap {
    /// All of them.
    pub const ALL: [Overlap; 4] = [Overlap::Allow, Overlap::Skip, Overlap::Queue, Overlap::Replace];

    /// In one word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Overlap::Allow => "allow",
            Overlap::Skip => "skip",
            Overlap::Queue => "queue",
            Overlap::Replace => "replace",
        }
    }
}

impl fmt::Display for Overlap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Overlap {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let known = Overlap::ALL.into_iter().find(|overlap| overlap.as_str() == text);
        known.ok_or_else(|| Error::invalid("overlap", format!("{text:?} is none of allow, skip, queue, replace")))
    }
}

impl fmt::Display for Missed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Missed::Skip => f.pad("skip"),
            Missed::Once => f.pad("once"),
            Missed::All(most) => f.pad(&format!("all:{most}")),
        }
    }
}

impl FromStr for Missed {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let all = |most: &str| most.parse().ok().filter(|most| (1..=MISSED_TICKS_MAX).contains(most)).map(Missed::All);
        match text {
            "skip" => Some(Missed::Skip),
            "once" => Some(Missed::Once),
            "all" => Some(Missed::All(MISSED_TICKS_MAX)),
            other => other.strip_prefix("all:").and_then(all),
        }
        .ok_or_else(|| {
            Error::invalid(
                "missed",
                format!("{text:?} is none of skip, once, all:N with N from 1 to {MISSED_TICKS_MAX}"),
            )
        })
    }
}

/// A rule that pushes a job at each time of a pattern.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CronRule {
    /// Its name, of which a store has one.
    pub name: String,
    /// When: five fields, or six with seconds in front.
    pub pattern: String,
    /// The time zone in which the pattern is meant.
    pub tz: String,
    /// The queue of its jobs. Nodes that work this queue fire the rule.
    pub queue: String,
    /// The kind of its jobs.
    pub kind: String,
    /// What their handler gets, as JSON text.
    #[serde(serialize_with = "crate::job::args_as_json")]
    pub args: String,
    /// Their priority.
    pub priority: Priority,
    /// How many attempts of one may fail.
    pub max_attempts: u32,
    /// How long one attempt may run.
    #[serde(serialize_with = "crate::job::as_millis")]
    pub timeout: Duration,
    /// How long one stays once it is done; `None`: as the store was opened by who fires.
    #[serde(serialize_with = "as_millis_option")]
    pub keep: Option<Duration>,
    /// Words to find them by.
    pub tags: Vec<String>,
    /// What becomes of ticks at which nobody was there.
    #[serde(serialize_with = "as_text")]
    pub missed: Missed,
    /// What a tick does while the job of an earlier one has not ended.
    #[serde(serialize_with = "as_text")]
    pub overlap: Overlap,
    /// Each job is due so much later than its tick at most: spreads rules that share a time. The same tick has the same delay.
    #[serde(serialize_with = "crate::job::as_millis")]
    pub jitter: Duration,
}

impl CronRule {
    /// A rule that pushes this job at each time of the pattern, in UTC unless [`CronRule::tz`] says otherwise.
    ///
    /// The job may have everything but an id, a due moment, a unique key and a trace: those are the rule's own.
    pub fn new(name: impl Into<String>, pattern: impl Into<String>, job: impl Into<Push>) -> Result<Self> {
        let job: Push = job.into();
        let own = |what: &str| {
            Err(Error::invalid("job", format!("of a rule has no {what} of its own: each tick gives it one")))
        };
        if !job.has_fresh_id {
            return own("id");
        }
        if job.due != Due::Now {
            return own("due moment");
        }
        if job.unique.is_some() {
            return own("unique key (see overlap)");
        }
        if job.traceparent.is_some() {
            return own("trace");
        }
        job.check()?;
        Ok(CronRule {
            name: name.into(),
            pattern: pattern.into(),
            tz: UTC.to_owned(),
            queue: job.queue,
            kind: job.kind,
            args: job.args.unwrap_or_default().trim().to_owned(),
            priority: job.priority,
            max_attempts: job.max_attempts,
            timeout: job.timeout,
            keep: job.keep,
            tags: job.tags,
            missed: Missed::default(),
            overlap: Overlap::default(),
            jitter: Duration::ZERO,
        })
    }

    /// The time zone in which the pattern is meant.
    #[must_use]
    pub fn tz(mut self, tz: impl Into<String>) -> Self {
        self.tz = tz.into();
        self
    }

    /// What becomes of ticks at which nobody was there to fire (default: once).
    #[must_use]
    pub fn missed(mut self, missed: Missed) -> Self {
        self.missed = missed;
        self
    }

    /// What a tick does while the job of an earlier one has not ended (default: allow).
    #[must_use]
    pub fn overlap(mut self, overlap: Overlap) -> Self {
        self.overlap = overlap;
        self
    }

    /// Each job is due so much later than its tick at most.
    #[must_use]
    pub fn jitter(mut self, jitter: Duration) -> Self {
        self.jitter = jitter;
        self
    }

    /// The moments of its pattern.
    pub fn schedule(&self) -> Result<Schedule> {
        Schedule::parse(&self.pattern, &self.tz)
    }

    /// Everything that can be wrong with a rule before a store sees it.
    pub(crate) fn check(&self) -> Result<Schedule> {
        check_name("cron", &self.name)?;
        if self.args.len() > CRON_ARGS_BYTES_MAX {
            let reason = format!("{} bytes; args of a rule have at most {CRON_ARGS_BYTES_MAX}", self.args.len());
            return Err(Error::invalid("args", reason));
        }
        if self.jitter > JITTER_MAX {
            return Err(Error::invalid("jitter", "must be at most 24 h"));
        }
        if let Missed::All(most) = self.missed
            && !(1..=MISSED_TICKS_MAX).contains(&most)
        {
            return Err(Error::invalid("missed", format!("all: from 1 to {MISSED_TICKS_MAX} runs can be made up for")));
        }
        self.to_push().check()?;
        self.schedule()
    }

    /// A job of this rule, without what its tick gives it.
    pub(crate) fn to_push(&self) -> Push {
        let mut push = Push::new(&self.kind, &self.args)
            .queue(&self.queue)
            .priority(self.priority)
            .max_attempts(self.max_attempts)
            .timeout(self.timeout)
            .tags(self.tags.iter().cloned());
        push.keep = self.keep;
        push.unique = (self.overlap != Overlap::Allow).then(|| cron_unique_key(&self.name));
        push
    }

    /// As stores keep it.
    pub(crate) fn to_json(&self) -> String {
        let args = RawValue::from_string(self.args.clone()).or_else(|_| RawValue::from_string("null".to_owned()));
        let kept = args.map(|args| StoredCronRule {
            format: FORMAT,
            name: self.name.clone(),
            pattern: self.pattern.clone(),
            tz: self.tz.clone(),
            queue: self.queue.clone(),
            kind: self.kind.clone(),
            args,
            priority: self.priority,
            max_attempts: self.max_attempts,
            timeout_ms: millis(self.timeout),
            keep_ms: self.keep.map(millis),
            tags: self.tags.clone(),
            missed: self.missed.to_string(),
            overlap: self.overlap.to_string(),
            jitter_ms: millis(self.jitter),
        });
        kept.and_then(|kept| serde_json::to_string(&kept)).unwrap_or_default()
    }

    /// From what a store has kept; `None` if a newer version has written it, or it is damaged.
    pub(crate) fn from_json(text: &str) -> Option<Self> {
        let kept: StoredCronRule = serde_json::from_str(text).ok()?;
        (kept.format == FORMAT).then_some(())?;
        Some(CronRule {
            name: kept.name,
            pattern: kept.pattern,
            tz: kept.tz,
            queue: kept.queue,
            kind: kept.kind,
            args: kept.args.get().to_owned(),
            priority: kept.priority,
            max_attempts: kept.max_attempts,
            timeout: Duration::from_millis(kept.timeout_ms),
            keep: kept.keep_ms.map(Duration::from_millis),
            tags: kept.tags,
            missed: kept.missed.parse().ok()?,
            overlap: kept.overlap.parse().ok()?,
            jitter: Duration::from_millis(kept.jitter_ms),
        })
    }
}

/// A rule as it is kept: JSON, so that a person can read it.
#[derive(Serialize, Deserialize)]
struct StoredCronRule {
    format: u32,
    name: String,
    pattern: String,
    tz: String,
    queue: String,
    kind: String,
    args: Box<RawValue>,
    priority: Priority,
    max_attempts: u32,
    timeout_ms: u64,
    keep_ms: Option<u64>,
    tags: Vec<String>,
    missed: String,
    overlap: String,
    jitter_ms: u64,
}

/// The unique key of the jobs of a rule that lets no two run at once.
pub(crate) fn cron_unique_key(name: &str) -> String {
    format!("{UNIQUE_KEY_PREFIX}{name}")
}

/// The rule to whose jobs this unique key belongs.
pub(crate) fn rule_name_from_key(key: &str) -> Option<&str> {
    key.strip_prefix(UNIQUE_KEY_PREFIX)
}

/// The id of the job of a tick: whoever fires it, it is the same job.
pub(crate) fn tick_job_id(name: &str, tick: Micros) -> JobId {
    JobId::from_name(&format!("{UNIQUE_KEY_PREFIX}{name}:{tick}"))
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn as_millis_option<S: Serializer>(time: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    time.map(millis).serialize(serializer)
}

fn as_text<S: Serializer>(value: &impl fmt::Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn job_of_rule_with_id_due_or_unique_key_is_rejected() {
        let refused = |push: Push| CronRule::new("r", "* * * * *", push).expect_err("is refused").to_string();
        assert!(refused(Push::new("mail", "{}").id(JobId::from_name("x"))).contains("id"));
        assert!(refused(Push::new("mail", "{}").after(Duration::from_secs(1))).contains("due"));
        assert!(refused(Push::new("mail", "{}").unique("x")).contains("unique"));
        assert!(refused(Push::new("mail", "{")).contains("args"));
    }

    #[test]
    fn invalid_rule_error_names_its_field() {
        let field = |change: fn(&mut CronRule)| {
            let mut rule = CronRule::new("r", "* * * * *", Push::new("mail", "{}")).expect("a rule");
            change(&mut rule);
            match rule.check() {
                Ok(_) => "",
                Err(Error::Invalid { field, .. }) => field,
                Err(other) => panic!("{other}"),
            }
        };
        assert_eq!(field(|_| ()), "");
        assert_eq!(field(|rule| rule.name = "a b".into()), "cron");
        assert_eq!(field(|rule| rule.pattern = "* * *".into()), "pattern");
        assert_eq!(field(|rule| rule.tz = "Nowhere".into()), "tz");
        assert_eq!(field(|rule| rule.args = "9".repeat(CRON_ARGS_BYTES_MAX + 1)), "args");
        assert_eq!(field(|rule| rule.jitter = JITTER_MAX * 2), "jitter");
        assert_eq!(field(|rule| rule.missed = Missed::All(0)), "missed");
        assert_eq!(field(|rule| rule.queue = "{".into()), "queue");
    }

    proptest! {
        #[test]
        fn a_rule_survives_its_text(args in "[0-9]{1,30}|\"\\PC{0,9}\"|\\[ 1,  2\\]", tags in proptest::collection::vec("[a-z]{1,4}", 0..3),
                                    keep in proptest::option::of(0u64..9_999_999), all in 1..=MISSED_TICKS_MAX) {
            prop_assume!(serde_json::from_str::<serde::de::IgnoredAny>(&args).is_ok());
            let mut push = Push::new("mail", args).tags(tags);
            push.keep = keep.map(Duration::from_millis);
            let rule = CronRule::new("r", "* * * * *", push).expect("a rule").missed(Missed::All(all)).overlap(Overlap::Queue);
            prop_assert_eq!(CronRule::from_json(&rule.to_json()), Some(rule));
        }

        #[test]
        fn any_text_reads_or_is_left_alone(text in ".*") {
            let _ = (CronRule::from_json(&text), text.parse::<Missed>(), text.parse::<Overlap>());
        }
    }

    #[test]
    fn newer_format_is_not_parsed() {
        let text = CronRule::new("r", "* * * * *", Push::new("mail", "{}")).expect("a rule").to_json();
        assert!(CronRule::from_json(&text).is_some());
        assert_eq!(CronRule::from_json(&text.replace("\"format\":1", "\"format\":2")), None);
    }
}
