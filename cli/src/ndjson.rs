//! `duly push --bulk`: many jobs from stdin, one JSON value per line.

use std::io::{BufRead, IsTerminal, Read};
use std::time::Duration;

use duly::{ARGS_BYTES_MAX, Conflict, Duly, JobId, Priority, Pushed};
use indicatif::ProgressBar;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use crate::exit::{self, Fail};
use crate::output::Format;
use crate::{Setup, store, time};

/// Jobs that are pushed in one step, unless their args are large.
const BATCH: usize = 1_000;
const BATCH_BYTES: usize = 8 * 1024 * 1024;
/// The longest line: args may be as large as they may, and the rest is small.
const LINE_BYTES_MAX: usize = 2 * ARGS_BYTES_MAX;
/// How often a batch is sent again whose answer was lost: its ids are the same, so nothing is pushed twice.
const TRIES_MAX: usize = 5;

/// One line, if no kind is given for all of them.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line<'l> {
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

impl Line<'_> {
    /// The job, with what the command line says for all of them where the line says nothing.
    fn job(self, base: duly::Push) -> Result<duly::Push, String> {
        let mut job = base.kind(self.kind).args(self.args.map_or("null", RawValue::get));
        if let Some(queue) = self.queue {
            job = job.queue(queue);
        }
        if let Some(priority) = self.priority {
            job = job.priority(priority.parse::<Priority>().map_err(|e| e.to_string())?);
        }
        let duration = |text: &str| duly::store::duration(text).map_err(|e| e.to_string());
        if let Some(after) = self.after {
            job = job.after(duration(&after)?);
        }
        if let Some(at) = self.at {
            job = job.at(time::parse_moment(&at)?);
        }
        if let Some(key) = self.unique {
            job = job.unique(key);
        }
        if self.replace {
            job = job.on_conflict(Conflict::Replace);
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
struct Sum {
    pushed: u64,
    existing: u64,
}

/// Pushes what comes on stdin; `base` says what the command line says of every job, `of_one_kind` that a line is its args alone.
pub(crate) async fn run(base: impl Fn() -> duly::Push, of_one_kind: bool, setup: &Setup) -> anyhow::Result<()> {
    let duly = store::open_or_make(setup).await?;
    let bar = match std::io::stderr().is_terminal() && !setup.out.is_quiet() {
        true => ProgressBar::new_spinner().with_message("jobs pushed"),
        false => ProgressBar::hidden(),
    };
    bar.enable_steady_tick(Duration::from_millis(200));
    let mut bulk = Bulk { duly, base, of_one_kind, sum: Sum::default(), setup };
    let (mut line_no, mut input) = (0, std::io::stdin().lock());
    let (mut batch, mut bytes) = (Vec::new(), 0);
    loop {
        line_no += 1;
        let Some(text) = next_line(&mut input).map_err(|why| bulk.refused(line_no, &why))? else {
            break;
        };
        if text.trim().is_empty() {
            continue;
        }
        bytes += text.len();
        batch.push(Taken { line_no, text, id: JobId::fresh() });
        if batch.len() == BATCH || bytes >= BATCH_BYTES {
            bulk.send(&std::mem::take(&mut batch)).await?;
            bytes = 0;
            bar.set_position(bulk.sum.pushed + bulk.sum.existing);
        }
    }
    bulk.send(&batch).await?;
    let sum = bulk.sum;
    bar.finish_and_clear();
    match setup.out.format {
        Format::Json => setup.out.json(&json!({"pushed": sum.pushed, "existing": sum.existing})),
        _ => {
            setup.out.say(&format!("{} jobs pushed, {} were there already", sum.pushed, sum.existing));
            Ok(())
        }
    }
}

fn next_line(input: &mut impl BufRead) -> Result<Option<String>, String> {
    let mut line = Vec::new();
    let read = input.by_ref().take(LINE_BYTES_MAX as u64 + 1).read_until(b'\n', &mut line);
    match read.map_err(|why| format!("stdin cannot be read: {why}"))? {
        0 => Ok(None),
        n if n > LINE_BYTES_MAX => Err(format!("longer than {LINE_BYTES_MAX} bytes")),
        _ => String::from_utf8(line).map(Some).map_err(|_| "is not UTF-8 text".to_owned()),
    }
}

/// A line that was read, with the id of its job unless it names one: sent again, it is the same job.
struct Taken {
    line_no: u64,
    text: String,
    id: JobId,
}

/// Where the lines go.
struct Bulk<'s, B> {
    duly: Duly,
    base: B,
    of_one_kind: bool,
    sum: Sum,
    setup: &'s Setup,
}

impl<B: Fn() -> duly::Push> Bulk<'_, B> {
    fn job(&self, read: &Taken) -> Result<duly::Push, String> {
        let base = (self.base)().id(read.id);
        if self.of_one_kind {
            return Ok(base.args(read.text.trim()));
        }
        serde_json::from_str::<Line<'_>>(&read.text).map_err(|why| why.to_string())?.job(base)
    }

    async fn send(&mut self, batch: &[Taken]) -> anyhow::Result<()> {
        let mut tries = 0;
        let pushed = loop {
            let mut jobs = Vec::with_capacity(batch.len());
            for read in batch {
                jobs.push(self.job(read).map_err(|why| self.refused(read.line_no, &why))?);
            }
            match self.duly.push_all(jobs).await {
                Err(duly::Error::Unknown { .. }) if tries < TRIES_MAX => tries += 1,
                answer => break answer.map_err(|error| self.failed(error, batch))?,
            }
        };
        for one in &pushed {
            // After a lost answer what we have pushed ourselves is there already.
            let existing = tries == 0 && matches!(one, Pushed::Existing(_));
            *if existing { &mut self.sum.existing } else { &mut self.sum.pushed } += 1;
            if self.setup.out.format == Format::Ndjson {
                let word = if existing { "existing" } else { "new" };
                self.setup.out.json(&json!({"id": one.id(), "pushed": word}))?;
            }
        }
        Ok(())
    }

    fn before(&self) -> u64 {
        self.sum.pushed + self.sum.existing
    }

    fn refused(&self, line: u64, why: &str) -> anyhow::Error {
        let before = self.before();
        Fail::new(exit::USAGE, format!("line {line}: {why}; the {before} jobs before its batch were pushed"))
    }

    fn failed(&self, error: duly::Error, batch: &[Taken]) -> anyhow::Error {
        let (first, last) = batch.first().zip(batch.last()).map_or((0, 0), |(a, b)| (a.line_no, b.line_no));
        let (before, error) = (self.before(), anyhow::Error::from(error));
        let words =
            format!("lines {first} to {last}: {}; the {before} jobs before them were pushed", exit::line(&error));
        Fail::new(exit::code(&error), words)
    }
}
