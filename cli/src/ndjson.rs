//! `duly push --bulk`: many jobs from stdin, one JSON value per line.
//!
//! The ids of all lines are made from one id and their numbers, so that the same input under the same id is pushed once,
//! however often it is repeated.

use std::io::{BufRead, IsTerminal, Read};
use std::time::Duration;

use duly::{ARGS_BYTES_MAX, Duly, JobId, Priority, PushResult, UniqueConflict};
use indicatif::ProgressBar;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use crate::exit::{self, CliError};
use crate::output::{Format, pluralize};
use crate::{Setup, store, time};

/// Jobs that are pushed in one step, unless their args are large.
const BATCH_JOBS_MAX: usize = 1_000;
const BATCH_BYTES_MAX: usize = 8 * 1024 * 1024;
/// The longest line: args may be as large as they may, and the rest is small.
const LINE_BYTES_MAX: usize = 2 * ARGS_BYTES_MAX;
/// How often a batch is sent again whose answer was lost: its ids are the same, so nothing is pushed twice.
const BATCH_TRIES_MAX: usize = 5;

/// One line, if no kind is given for all of them.
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
    /// The job, with what the command line says for all of them where the line says nothing.
    fn into_push(self, base: duly::Push) -> Result<duly::Push, String> {
        let mut job = base.kind(self.kind).args(self.args.map_or("null", RawValue::get));
        if let Some(queue) = self.queue {
            job = job.queue(queue);
        }
        if let Some(priority) = self.priority {
            job = job.priority(priority.parse::<Priority>().map_err(|e| e.to_string())?);
        }
        let duration = |text: &str| duly::store::parse_duration(text).map_err(|e| e.to_string());
        if let Some(after) = self.after {
            job = job.after(duration(&after)?);
        }
        if let Some(at) = self.at {
            job = job.at(time::parse_time(&at)?);
        }
        if let Some(key) = self.unique {
            job = job.unique(key);
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
            job = job.timeout(duration(&timeout)?);
        }
        if let Some(keep) = self.keep {
            job = job.keep(duration(&keep)?);
        }
        if let Some(traceparent) = self.traceparent {
            job = job.traceparent(traceparent);
        }
        Ok(job.tags(self.tags))
    }
}

/// What has become of the lines so far.
#[derive(Default)]
struct PushCounts {
    pushed: u64,
    existing: u64,
}

/// Pushes what comes on stdin; `base` says what the command line says of every job, `of_one_kind` that a line is its args alone,
/// `id` what the ids of the lines are made from.
pub(crate) async fn run(
    base: impl Fn() -> duly::Push,
    of_one_kind: bool,
    id: JobId,
    setup: &Setup,
) -> anyhow::Result<()> {
    let duly = store::open_or_create(setup).await?;
    let bar = match std::io::stderr().is_terminal() && !setup.out.is_quiet() {
        true => ProgressBar::new_spinner().with_message("jobs pushed"),
        false => ProgressBar::hidden(),
    };
    bar.enable_steady_tick(Duration::from_millis(200));
    let mut bulk = BulkPush {
        duly,
        base_push: base,
        lines_are_args: of_one_kind,
        base_id: id,
        counts: PushCounts::default(),
        last_pushed_line: 0,
        setup,
    };
    let (mut line_no, mut input) = (0, std::io::stdin().lock());
    let (mut batch, mut bytes) = (Vec::new(), 0);
    loop {
        line_no += 1;
        let Some(text) = read_line(&mut input).map_err(|why| bulk.line_error(line_no, &why))? else {
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
    let sum = bulk.counts;
    bar.finish_and_clear();
    match setup.out.format {
        Format::Json => setup.out.print_json(&json!({"pushed": sum.pushed, "existing": sum.existing})),
        _ => {
            setup.out.print_message(&format!(
                "{} pushed, {} there already",
                pluralize(sum.pushed, "job", "jobs"),
                pluralize(sum.existing, "was", "were")
            ));
            Ok(())
        }
    }
}

fn read_line(input: &mut impl BufRead) -> Result<Option<String>, String> {
    let mut line = Vec::new();
    let read = input.by_ref().take(LINE_BYTES_MAX as u64 + 1).read_until(b'\n', &mut line);
    match read.map_err(|why| format!("stdin cannot be read: {why}"))? {
        0 => Ok(None),
        n if n > LINE_BYTES_MAX => Err(format!("longer than {LINE_BYTES_MAX} bytes")),
        _ => String::from_utf8(line).map(Some).map_err(|_| "is not UTF-8 text".to_owned()),
    }
}

struct NumberedLine {
    line_no: u64,
    text: String,
}

/// The id of a line that names none: that of the whole, so much further on. They keep the order of the lines.
fn line_job_id(whole: JobId, line_no: u64) -> JobId {
    /// The last bits of a UUID, which are free to choose.
    const FREE: u64 = (1 << 62) - 1;
    let mut bytes = *whole.as_bytes();
    let (_, last) = bytes.split_at_mut(8);
    let old = last.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    let new = (old & !FREE) | (old.wrapping_add(line_no) & FREE);
    last.copy_from_slice(&new.to_be_bytes());
    JobId::from_bytes(bytes)
}

/// Where the lines go.
struct BulkPush<'s, B> {
    duly: Duly,
    base_push: B,
    lines_are_args: bool,
    /// What the ids of the lines are made from.
    base_id: JobId,
    counts: PushCounts,
    /// The last line that was pushed.
    last_pushed_line: u64,
    setup: &'s Setup,
}

impl<B: Fn() -> duly::Push> BulkPush<'_, B> {
    fn build_push(&self, read: &NumberedLine) -> Result<duly::Push, String> {
        let base = (self.base_push)().id(line_job_id(self.base_id, read.line_no));
        let job = match self.lines_are_args {
            true => base.args(read.text.trim()),
            false => serde_json::from_str::<JobLine<'_>>(&read.text).map_err(|why| why.to_string())?.into_push(base)?,
        };
        job.check().map_err(|why| why.to_string())?;
        Ok(job)
    }

    async fn push_batch(&mut self, batch: &[NumberedLine]) -> anyhow::Result<()> {
        let mut tries = 0;
        let pushed = loop {
            let mut jobs = Vec::with_capacity(batch.len());
            for read in batch {
                jobs.push(self.build_push(read).map_err(|why| self.line_error(read.line_no, &why))?);
            }
            match self.duly.push_all(jobs).await {
                Err(duly::Error::Unknown { .. }) if tries < BATCH_TRIES_MAX => tries += 1,
                answer => break answer.map_err(|error| self.batch_error(error, batch))?,
            }
        };
        for one in &pushed {
            // After a lost answer what we have pushed ourselves is there already.
            let existing = tries == 0 && matches!(one, PushResult::Existing(_));
            *if existing { &mut self.counts.existing } else { &mut self.counts.pushed } += 1;
            if self.setup.out.format == Format::Ndjson {
                let word = if existing { "existing" } else { "new" };
                self.setup.out.print_json(&json!({"id": one.id(), "pushed": word}))?;
            }
        }
        self.last_pushed_line = batch.last().map_or(self.last_pushed_line, |last| last.line_no);
        Ok(())
    }

    /// A line that cannot be pushed: nothing of its batch was sent.
    fn line_error(&self, line: u64, why: &str) -> anyhow::Error {
        // Each line is a text of one line to whoever parses it.
        let why = why.replace(" at line 1 column ", " at column ");
        let done = match self.last_pushed_line {
            0 => "nothing was pushed".to_owned(),
            last => format!("lines 1 to {last} were pushed, and none after them: mend it, and {}", self.resume_hint()),
        };
        CliError::new(exit::USAGE, format!("line {line}: {why}; {done}"))
    }

    /// How to go on after a failure.
    fn resume_hint(&self) -> String {
        format!("repeat the whole with --id {}: what is there is not pushed again", self.base_id)
    }

    fn batch_error(&self, error: duly::Error, batch: &[NumberedLine]) -> anyhow::Error {
        let (first, last) = batch.first().zip(batch.last()).map_or((0, 0), |(a, b)| (a.line_no, b.line_no));
        let error = anyhow::Error::from(error);
        let told = exit::format_error(&error).replace("; repeat it with the same id", "");
        let done = match self.last_pushed_line {
            0 => String::new(),
            done => format!("those up to {done} were pushed; "),
        };
        CliError::new(exit::exit_code(&error), format!("lines {first} to {last}: {told}; {done}{}", self.resume_hint()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_job_ids_are_distinct_and_stable() {
        let whole: JobId = "0192f7a1-0000-7000-bfff-ffffffffffff".parse().expect("an id");
        let ids: Vec<String> = (0..3).map(|line| line_job_id(whole, line).to_string()).collect();
        let last = ["bfff-ffffffffffff", "8000-000000000000", "8000-000000000001"];
        assert_eq!(ids, last.map(|last| format!("0192f7a1-0000-7000-{last}")), "the variant stays");
        assert!(line_job_id(JobId::fresh(), 1) != line_job_id(JobId::fresh(), 1));
    }
}
