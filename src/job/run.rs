//! The history of a job: one entry for each of its attempts.

use std::time::{Duration, SystemTime};

use serde::{Serialize, Serializer};

use crate::NodeId;
use crate::clock::micros;
use crate::job::{JobRecord, Outcome, State};
use crate::store::{LOG_LINE_BYTES_MAX, RUN_OUTPUT_BYTES_MAX};

/// How a run of a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum RunOutcome {
    /// The job was done.
    Ack,
    /// The attempt failed, and the job was to run again.
    Retry,
    /// The job died of it.
    Bury,
    /// The attempt ended early and did not count: the job went back to its queue, or ended cancelled.
    Release,
    /// Its node died.
    Crash,
}

impl RunOutcome {
    /// All variants.
    pub const ALL: [RunOutcome; 5] =
        [RunOutcome::Ack, RunOutcome::Retry, RunOutcome::Bury, RunOutcome::Release, RunOutcome::Crash];

    /// Returns the outcome in one word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            RunOutcome::Ack => "ack",
            RunOutcome::Retry => "retry",
            RunOutcome::Bury => "bury",
            RunOutcome::Release => "release",
            RunOutcome::Crash => "crash",
        }
    }

    /// Returns the outcome of a word. A word that no version writes counts as a retry.
    #[cfg(feature = "sqlite")]
    pub(crate) fn parse(word: &str) -> Self {
        RunOutcome::ALL.into_iter().find(|outcome| outcome.as_str() == word).unwrap_or(RunOutcome::Retry)
    }

    /// Returns the letter of the outcome on Redis.
    #[cfg(feature = "redis")]
    pub(crate) fn code(self) -> char {
        match self {
            RunOutcome::Ack => 'a',
            RunOutcome::Retry => 'r',
            RunOutcome::Bury => 'b',
            RunOutcome::Release => 'l',
            RunOutcome::Crash => 'c',
        }
    }

    /// Returns the outcome of a letter. A letter that no version writes counts as a retry.
    #[cfg(feature = "redis")]
    pub(crate) fn from_code(code: char) -> Self {
        RunOutcome::ALL.into_iter().find(|outcome| outcome.code() == code).unwrap_or(RunOutcome::Retry)
    }
}

impl From<&Outcome> for RunOutcome {
    fn from(outcome: &Outcome) -> Self {
        match outcome {
            Outcome::Ack => RunOutcome::Ack,
            Outcome::Retry { .. } => RunOutcome::Retry,
            Outcome::Bury { .. } => RunOutcome::Bury,
            Outcome::Release { .. } => RunOutcome::Release,
        }
    }
}

/// One run of a job: what one of its attempts did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct JobRun {
    /// The number of the attempt, from 1. A run that did not count has the number of the next one.
    pub attempt: u32,
    /// How it ended.
    pub outcome: RunOutcome,
    /// The node that held the job.
    pub node: NodeId,
    /// When it started, by the store's clock. `None` if its node died, or if the store does not record it.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "crate::clock::as_micros_option")]
    pub started: Option<SystemTime>,
    /// When its end was recorded, by the store's clock.
    #[serde(serialize_with = "crate::clock::as_micros")]
    pub ended: SystemTime,
    /// How long it took, measured by its worker.
    #[serde(rename = "duration_us", skip_serializing_if = "Option::is_none", serialize_with = "as_micros_option")]
    pub duration: Option<Duration>,
    /// The error of the handler, truncated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The end of what it logged: at most [`RUN_OUTPUT_BYTES_MAX`] bytes of whole lines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
}

fn as_micros_option<S: Serializer>(time: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    time.map(micros).serialize(serializer)
}

impl JobRun {
    /// Returns a run that is known only by its end.
    pub(crate) fn failed(outcome: RunOutcome, failure: Failure) -> Self {
        let Failure { at, attempt, node, error } = failure;
        JobRun { attempt, outcome, node, started: None, ended: at, duration: None, error: Some(error), output: None }
    }

    /// Returns the run as a failure, if it failed.
    fn to_failure(&self) -> Option<Failure> {
        let error = self.error.clone()?;
        Some(Failure { at: self.ended, attempt: self.attempt, node: self.node, error })
    }

    /// Returns the size of the parts that can be large.
    pub(crate) fn text_bytes(&self) -> usize {
        self.error.as_ref().map_or(0, String::len) + self.output.as_ref().map_or(0, String::len)
    }
}

/// A run that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Failure {
    /// When it was recorded, by the store's clock.
    #[serde(serialize_with = "crate::clock::as_micros")]
    pub at: SystemTime,
    /// The number of the attempt, from 1.
    pub attempt: u32,
    /// The node that held the job.
    pub node: NodeId,
    /// The error of the handler, truncated.
    pub error: String,
}

impl Failure {
    /// Truncates an error to the length that the history keeps, at a character boundary.
    pub(crate) fn truncate_error(error: &str) -> &str {
        crate::store::truncate_text(error, crate::store::ERROR_BYTES_MAX)
    }
}

impl JobRecord {
    /// Returns how many attempts have counted: those that failed, and the one that runs or made the job done.
    ///
    /// # Examples
    ///
    /// ```
    /// # use duly::{Ctx, Duly, Push};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> duly::Result<()> {
    /// # let duly = Duly::open(":memory:").await?;
    /// let id = duly.push(Push::new("greet", "{}")).await?.id();
    /// duly.worker().on_kind("greet", async |_: Ctx| {}).drain().await?;
    /// let record = duly.jobs().get(id).await?.expect("is kept for a day");
    /// assert_eq!((record.attempts_made(), record.attempts), (1, 0));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn attempts_made(&self) -> u32 {
        let counts_last = matches!(self.state, State::Running | State::Done);
        self.attempts.saturating_add(u32::from(counts_last))
    }
}

impl JobRecord {
    /// Sets the runs, and the failures among them.
    pub(crate) fn set_runs(&mut self, runs: Vec<JobRun>) {
        self.failures = runs.iter().filter_map(JobRun::to_failure).collect();
        self.runs = runs;
    }

    /// Adds a run, and removes the oldest beyond the maximum.
    pub(crate) fn push_run(&mut self, run: JobRun) {
        let mut runs = std::mem::take(&mut self.runs);
        runs.push(run);
        let excess = runs.len().saturating_sub(crate::store::RUNS_MAX);
        runs.drain(..excess);
        self.set_runs(runs);
    }

    /// Returns the run that made the job done, if it is known, and all others.
    #[cfg(any(feature = "sqlite", feature = "redis"))]
    pub(crate) fn split_runs(&self) -> (Option<&JobRun>, &[JobRun]) {
        match self.runs.split_last() {
            Some((last, others)) if self.state == State::Done && last.outcome == RunOutcome::Ack => {
                (Some(last), others)
            }
            _ => (None, &self.runs),
        }
    }
}

/// The end of what an attempt logs, in whole lines.
#[derive(Clone, Debug, Default)]
pub(crate) struct OutputTail(String);

impl OutputTail {
    /// Adds a line. The oldest lines make room for it.
    pub(crate) fn push_line(&mut self, line: &str) {
        if !self.0.is_empty() {
            self.0.push('\n');
        }
        self.0.push_str(crate::store::truncate_text(line, LOG_LINE_BYTES_MAX));
        // Removes lines only from time to time: each removal moves the rest.
        if self.0.len() > 2 * RUN_OUTPUT_BYTES_MAX {
            self.trim();
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn trim(&mut self) {
        let excess = self.0.len().saturating_sub(RUN_OUTPUT_BYTES_MAX);
        if excess > 0 {
            let start = self.0.as_bytes()[excess - 1..].iter().position(|byte| *byte == b'\n');
            self.0.drain(..start.map_or(self.0.len(), |start| excess + start));
        }
    }

    /// Returns the text; `None` if nothing was logged.
    pub(crate) fn into_text(mut self) -> Option<String> {
        self.trim();
        (!self.0.is_empty()).then_some(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_keeps_its_newest_whole_lines() {
        let mut output = OutputTail::default();
        assert_eq!(output.clone().into_text(), None);
        output.push_line("one");
        output.push_line("two");
        assert_eq!(output.clone().into_text().as_deref(), Some("one\ntwo"));
        for n in 0..10_000 {
            output.push_line(&format!("line ü {n}"));
            assert!(output.0.len() <= 3 * RUN_OUTPUT_BYTES_MAX);
        }
        let text = output.into_text().expect("has lines");
        assert!(text.len() <= RUN_OUTPUT_BYTES_MAX && text.len() > RUN_OUTPUT_BYTES_MAX - 20, "{}", text.len());
        assert!(text.starts_with("line ü ") && text.ends_with("line ü 9999"), "{text}");

        let mut output = OutputTail::default();
        output.push_line("gone");
        let long = "ü".repeat(LOG_LINE_BYTES_MAX);
        (0..4).for_each(|_| output.push_line(&long));
        let line = &long[..LOG_LINE_BYTES_MAX];
        assert_eq!(output.into_text(), Some([line; 3].join("\n")), "with the line feeds, a fourth is too much");
    }

    #[cfg(all(feature = "sqlite", feature = "redis"))]
    #[test]
    fn words_and_letters_of_outcomes_round_trip() {
        for outcome in RunOutcome::ALL {
            assert_eq!(RunOutcome::from_code(outcome.code()), outcome);
            assert_eq!(RunOutcome::parse(outcome.as_str()), outcome);
        }
        assert_eq!(RunOutcome::from_code('?'), RunOutcome::Retry);
    }
}
