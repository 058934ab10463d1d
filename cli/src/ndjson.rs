//! `duly push --bulk`: many jobs from stdin, one JSON value per line.
//!
//! The id of each job derives from one base id and the line number, so repeating the same input with the same id
//! pushes each job once.

use std::io::{BufRead, IsTerminal, Read};
use std::time::Duration;

use duly::bounds::ARGS_BYTES_MAX;
use duly::job::{UniqueConflict, UniqueScope};
use duly::{JobId, Priority};
use indicatif::ProgressBar;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use crate::backend::Backend;
use crate::exit::{self, CliError};
use crate::output::{Format, pluralize};
use crate::{Setup, time};

/// Jobs per batch; fewer if their args are large.
const BATCH_JOBS_MAX: usize = 1_000;
const BATCH_BYTES_MAX: usize = 8 * 1024 * 1024;
/// The longest line: the largest args, and the other fields.
const LINE_BYTES_MAX: usize = 2 * ARGS_BYTES_MAX;
/// How often to resend a batch with an unknown outcome: the ids are the same, so no job is pushed twice.
const BATCH_TRIES_MAX: usize = 5;

/// One line, if the command line names no kind.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JobLine<'l> {
    kind: String,
    #[serde(borrow, default)]
    args: Option<&'l RawValue>,
    queue: Option<String>,
    priority: Option<String>,
    #[serde(rename = "in")]
    after: Option<String>,
    at: Option<String>,
    unique: Option<String>,
    unique_scope: Option<UniqueScope>,
    #[serde(default)]
    replace: bool,
    id: Option<String>,
    max_attempts: Option<u32>,
    timeout: Option<String>,
    keep: Option<String>,
    #[serde(default)]
    tags: Vec<String>,
    traceparent: Option<String>,
}

impl JobLine<'_> {
    /// Returns the job; fields that the line omits come from `base`.
    fn into_push(self, base: duly::Push) -> Result<duly::Push, String> {
        let mut job = base.kind(self.kind).args(self.args.map_or("null", RawValue::get));
        if let Some(queue) = self.queue {
            job = job.queue(queue);
        }
        if let Some(priority) = self.priority {
            job = job.priority(priority.parse::<Priority>().map_err(|e| e.to_string())?);
        }
        let parse_duration = |text: &str| duly::admin::parse_duration(text).map_err(|e| e.to_string());
        if let Some(after) = self.after {
            job = job.after(parse_duration(&after)?);
        }
        if let Some(at) = self.at {
            job = job.at(time::parse_time(&at)?);
        }
        if let Some(key) = self.unique {
            job = job.unique(key);
        }
        if let Some(scope) = self.unique_scope {
            job = job.unique_scope(scope);
        }
        if self.replace {
            job = job.on_conflict(UniqueConflict::Replace);
        }
        if let Some(id) = self.id {
            job = job.id(id.parse::<JobId>().map_err(|e| e.to_string())?);
        }
        if let Some(attempts) = self.max_attempts {
            job = job.max_attempts(attempts);
        }
        if let Some(timeout) = self.timeout {
            job = job.timeout(parse_duration(&timeout)?);
        }
        if let Some(keep) = self.keep {
            job = job.keep(parse_duration(&keep)?);
        }
        if let Some(traceparent) = self.traceparent {
            job = job.traceparent(traceparent);
        }
        Ok(job.tags(self.tags))
    }
}

/// The results so far.
#[derive(Default)]
struct PushCounts {
    pushed: u64,
    existing: u64,
}

/// Pushes the jobs from stdin.
///
/// `base` returns a job with the options of the command line. If `lines_are_args`, each line holds only args.
/// The ids of the jobs derive from `id`.
pub(crate) async fn run(
    base: impl Fn() -> duly::Push,
    lines_are_args: bool,
    id: JobId,
    setup: &Setup,
) -> anyhow::Result<()> {
    let backend = Backend::open_or_create(setup).await?;
    let bar = match std::io::stderr().is_terminal() && !setup.out.is_quiet() {
        true => ProgressBar::new_spinner().with_message("jobs pushed"),
        false => ProgressBar::hidden(),
    };
    bar.enable_steady_tick(Duration::from_millis(200));
    let mut bulk = BulkPush {
        backend,
        base_push: base,
        lines_are_args,
        base_id: id,
        counts: PushCounts::default(),
        last_pushed_line: 0,
        setup,
    };
    let (mut line_no, mut input) = (0, std::io::stdin().lock());
    let (mut batch, mut bytes) = (Vec::new(), 0);
    loop {
        line_no += 1;
        let Some(text) = read_line(&mut input).map_err(|error| bulk.line_error(line_no, &error))? else {
            break;
        };
        if text.trim().is_empty() {
            continue;
        }
        bytes += text.len();
        batch.push(NumberedLine { line_no, text });
        if batch.len() == BATCH_JOBS_MAX || bytes >= BATCH_BYTES_MAX {
            bulk.push_batch(&std::mem::take(&mut batch)).await?;
            bytes = 0;
            bar.set_position(bulk.counts.pushed + bulk.counts.existing);
        }
    }
    bulk.push_batch(&batch).await?;
    let counts = bulk.counts;
    bar.finish_and_clear();
    match setup.out.format {
        Format::Json => setup.out.print_json(&json!({"pushed": counts.pushed, "existing": counts.existing})),
        _ => {
            setup.out.print_message(&format!(
                "{} pushed, {} existed already",
                pluralize(counts.pushed, "job", "jobs"),
                pluralize(counts.existing, "job", "jobs")
            ));
            Ok(())
        }
    }
}

fn read_line(input: &mut impl BufRead) -> Result<Option<String>, String> {
    let mut line = Vec::new();
    let read = input.by_ref().take(LINE_BYTES_MAX as u64 + 1).read_until(b'\n', &mut line);
    match read.map_err(|error| format!("stdin cannot be read: {error}"))? {
        0 => Ok(None),
        n if n > LINE_BYTES_MAX => Err(format!("longer than {LINE_BYTES_MAX} bytes")),
        _ => String::from_utf8(line).map(Some).map_err(|_| "is not UTF-8 text".to_owned()),
    }
}

struct NumberedLine {
    line_no: u64,
    text: String,
}

/// Returns the id of a line without its own id: the base id plus the line number. Ids keep the order of the lines.
fn line_job_id(base: JobId, line_no: u64) -> JobId {
    /// The last bits of a UUID, which are free to choose.
    const FREE_BITS: u64 = (1 << 62) - 1;
    let mut bytes = *base.as_bytes();
    let (_, last) = bytes.split_at_mut(8);
    let old = last.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    let new = (old & !FREE_BITS) | (old.wrapping_add(line_no) & FREE_BITS);
    last.copy_from_slice(&new.to_be_bytes());
    JobId::from_bytes(bytes)
}

/// Returns whether the jobs may have been pushed: the store does not know, or the server did not respond.
fn is_unknown(error: &anyhow::Error) -> bool {
    match error.downcast_ref::<duly::Error>() {
        Some(error) => matches!(error, duly::Error::Unknown { .. }),
        None => exit::exit_code(error) == exit::STORE_FAILED,
    }
}

/// A bulk push in progress.
struct BulkPush<'s, B> {
    backend: Backend,
    base_push: B,
    lines_are_args: bool,
    /// The ids of the jobs derive from this id.
    base_id: JobId,
    counts: PushCounts,
    /// The last line that was pushed.
    last_pushed_line: u64,
    setup: &'s Setup,
}

impl<B: Fn() -> duly::Push> BulkPush<'_, B> {
    fn build_push(&self, line: &NumberedLine) -> Result<duly::Push, String> {
        let base = (self.base_push)().id(line_job_id(self.base_id, line.line_no));
        let job = match self.lines_are_args {
            true => base.args(line.text.trim()),
            false => {
                serde_json::from_str::<JobLine<'_>>(&line.text).map_err(|error| error.to_string())?.into_push(base)?
            }
        };
        job.check().map_err(|error| error.to_string())?;
        Ok(job)
    }

    async fn push_batch(&mut self, batch: &[NumberedLine]) -> anyhow::Result<()> {
        let mut tries = 0;
        let pushed = loop {
            let mut jobs = Vec::with_capacity(batch.len());
            for line in batch {
                jobs.push(self.build_push(line).map_err(|error| self.line_error(line.line_no, &error))?);
            }
            match self.backend.push_all(jobs).await {
                Err(error) if is_unknown(&error) && tries < BATCH_TRIES_MAX => tries += 1,
                result => break result.map_err(|error| self.batch_error(error, batch))?,
            }
        };
        for result in &pushed {
            // After a lost reply, the existing jobs are our own.
            let existing = tries == 0 && result.pushed == "existing";
            *if existing { &mut self.counts.existing } else { &mut self.counts.pushed } += 1;
            if self.setup.out.format == Format::Ndjson {
                self.setup.out.print_json(result)?;
            }
        }
        self.last_pushed_line = batch.last().map_or(self.last_pushed_line, |last| last.line_no);
        Ok(())
    }

    /// Builds the error for an invalid line: its batch was not sent.
    fn line_error(&self, line_no: u64, error: &str) -> anyhow::Error {
        // The parser sees each line as line 1.
        let error = error.replace(" at line 1 column ", " at column ");
        let done = match self.last_pushed_line {
            0 => "nothing was pushed".to_owned(),
            last => format!(
                "lines 1 to {last} were pushed, and no line after them; correct this line, then {}",
                self.resume_hint()
            ),
        };
        CliError::new(exit::USAGE, format!("line {line_no}: {error}; {done}"))
    }

    /// Returns how to continue after a failure.
    fn resume_hint(&self) -> String {
        format!("repeat the same input with --id {}: existing jobs are not pushed again", self.base_id)
    }

    fn batch_error(&self, error: anyhow::Error, batch: &[NumberedLine]) -> anyhow::Error {
        let (first, last) = batch.first().zip(batch.last()).map_or((0, 0), |(a, b)| (a.line_no, b.line_no));
        let message = exit::format_error(&error).replace("; safe to repeat with the same id", "");
        let done = match self.last_pushed_line {
            0 => String::new(),
            done => format!("lines 1 to {done} were pushed; "),
        };
        let hint = self.resume_hint();
        CliError::new(exit::exit_code(&error), format!("lines {first} to {last}: {message}; {done}{hint}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_job_ids_are_distinct_and_stable() {
        let base: JobId = "0192f7a1-0000-7000-bfff-ffffffffffff".parse().expect("an id");
        let ids: Vec<String> = (0..3).map(|line| line_job_id(base, line).to_string()).collect();
        let last = ["bfff-ffffffffffff", "8000-000000000000", "8000-000000000001"];
        assert_eq!(ids, last.map(|last| format!("0192f7a1-0000-7000-{last}")), "the variant stays");
        assert!(line_job_id(JobId::fresh(), 1) != line_job_id(JobId::fresh(), 1));
    }
}
