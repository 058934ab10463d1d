//! Encodes the runs of jobs as the texts that Redis stores. Servers, scripts and people can read these texts.
//!
//! A run has its time, attempt, node, outcome, start, duration and the length of its error in a fixed number of digits or
//! letters, then the error, then the output. The ack of a done job is shorter, because every job that is kept has one:
//! node, start, duration and output, separated by spaces. Its attempt and time are those of the job.

use std::time::{Duration, SystemTime};

use crate::clock::{from_micros, micros};
use crate::job::{JobRecord, JobRun, RunOutcome};
use crate::node::NodeId;
use crate::store::redis::record::{DELAY_MAX, clamp_moment};

/// Encodes a run for the history; the script prepends the time.
pub(super) fn encode_run(run: &JobRun) -> String {
    let (error, output) = (run.error.as_deref().unwrap_or(""), run.output.as_deref().unwrap_or(""));
    let (started, duration) = (run.started.map_or(0, clamp_moment), run.duration.map_or(0, clamp_duration));
    let (attempt, node, outcome) = (run.attempt, run.node, run.outcome.code());
    format!("{attempt:010}{node}{outcome}{started:016}{duration:016}{:05}{error}{output}", error.len())
}

/// Encodes a run with its time.
pub(super) fn encode_dated_run(run: &JobRun) -> String {
    format!("{:016}{}", clamp_moment(run.ended), encode_run(run))
}

pub(super) fn decode_run(text: &[u8]) -> Option<JobRun> {
    let field = |from: usize, to: usize| std::str::from_utf8(text.get(from..to)?).ok();
    let (started, duration) = (field(63, 79)?.parse().ok()?, field(79, 95)?.parse().ok()?);
    let error_end = 100 + field(95, 100)?.parse::<usize>().ok()?;
    let lossy = |bytes: &[u8]| Some(String::from_utf8_lossy(bytes).into_owned());
    let outcome = RunOutcome::from_code(field(62, 63)?.chars().next()?);
    let has_error = matches!(outcome, RunOutcome::Retry | RunOutcome::Bury | RunOutcome::Crash);
    Some(JobRun {
        attempt: field(16, 26)?.parse().ok()?,
        outcome,
        node: field(26, 62)?.parse().ok()?,
        started: (started > 0).then(|| from_micros(started)),
        ended: from_micros(field(0, 16)?.parse().ok()?),
        duration: (started > 0).then(|| Duration::from_micros(duration)),
        error: lossy(text.get(100..error_end)?).filter(|_| has_error),
        output: lossy(text.get(error_end..)?).filter(|output| !output.is_empty()),
    })
}

/// Encodes the run that makes a job done.
pub(super) fn encode_ack(node: NodeId, started: SystemTime, duration: Duration, output: Option<&str>) -> String {
    let (started, duration) = (clamp_moment(started), clamp_duration(duration));
    match output {
        Some(output) => format!("{node} {started} {duration} {output}"),
        None => format!("{node} {started} {duration}"),
    }
}

/// Returns the run that made this job done.
pub(super) fn decode_ack(text: &[u8], record: &JobRecord) -> Option<JobRun> {
    let text = String::from_utf8_lossy(text);
    let mut fields = text.splitn(4, ' ');
    let (node, started, duration) = (fields.next()?, fields.next()?, fields.next()?);
    Some(JobRun {
        attempt: record.attempts.saturating_add(1),
        outcome: RunOutcome::Ack,
        node: node.parse().ok()?,
        started: Some(from_micros(started.parse().ok()?)),
        ended: record.ended?,
        duration: Some(Duration::from_micros(duration.parse().ok()?)),
        error: None,
        output: fields.next().filter(|output| !output.is_empty()).map(str::to_owned),
    })
}

fn clamp_duration(duration: Duration) -> i64 {
    micros(duration).min(DELAY_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{State, tests::held_job};
    use proptest::prelude::*;

    fn run(outcome: RunOutcome, started: Option<i64>, error: Option<String>, output: Option<String>) -> JobRun {
        let (node, ended) = (NodeId::fresh(), from_micros(1_893_456_000_000_000));
        let (started, duration) = (started.map(from_micros), started.map(|_| Duration::from_micros(52_341)));
        JobRun { attempt: 7, outcome, node, started, ended, duration, error, output }
    }

    proptest! {
        #[test]
        fn runs_round_trip(started in proptest::option::of(1i64..4_000_000_000_000_000), error in "\\PC{0,99}",
                           output in proptest::option::of("\\PC{1,99}")) {
            let failed = run(RunOutcome::Retry, started, Some(error), output.clone());
            prop_assert_eq!(decode_run(encode_dated_run(&failed).as_bytes()), Some(failed));
            let released = run(RunOutcome::Release, started, None, output.clone());
            prop_assert_eq!(decode_run(encode_dated_run(&released).as_bytes()), Some(released));

            let done = run(RunOutcome::Ack, Some(started.unwrap_or(5)), None, output);
            let record = JobRecord::new(held_job("mail").job, State::Done, done.ended, 6, 0);
            let record = JobRecord { ended: Some(done.ended), ..record };
            let (at, duration) = (done.started.expect("is set"), done.duration.expect("is set"));
            let text = encode_ack(done.node, at, duration, done.output.as_deref());
            prop_assert_eq!(decode_ack(text.as_bytes(), &record), Some(done));
        }

        #[test]
        fn decoding_any_bytes_does_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let record = JobRecord::new(held_job("mail").job, State::Done, SystemTime::UNIX_EPOCH, 0, 0);
            let _ = (decode_run(&bytes), decode_ack(&bytes, &record));
        }
    }
}
