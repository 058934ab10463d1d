//! The events of the demo: formatted as they occur, and collected for the summary.

use std::collections::HashMap;

use duly::JobId;

use super::plan::{FLAKY_KIND, REPORT_KIND};
use super::worker_processes::worker_letter;
use crate::escape::escape_text;
use crate::events::{EventData, EventRecord, short_id};
use crate::output::{BOLD, CYAN, DIM, GREEN, RED, YELLOW, paint};

/// One run of a job.
struct JobRun {
    worker: usize,
    attempt: u32,
}

/// The runs of one pushed job.
#[derive(Default)]
struct JobHistory {
    runs: Vec<JobRun>,
    is_done: bool,
}

/// The kill of a worker.
struct WorkerKill {
    worker: usize,
    at_us: i64,
}

/// Starts of the current second, printed in one line.
#[derive(Default)]
struct SecondStarts {
    lateness_us: Vec<i64>,
    by_worker: Vec<u32>,
}

pub(super) struct Timeline {
    started_us: i64,
    jobs: HashMap<JobId, JobHistory>,
    current_second: SecondStarts,
    kill: Option<WorkerKill>,
    /// Lateness of every start that did not follow a crash.
    pub(super) lateness_us: Vec<i64>,
    /// The times from the kill to the next start of each job that the killed worker held.
    pub(super) takeover_us: Vec<i64>,
    pub(super) early_starts: u64,
    pub(super) repeated_starts: u64,
}

impl Timeline {
    pub(super) fn new(started_us: i64, workers: usize) -> Timeline {
        Timeline {
            started_us,
            jobs: HashMap::new(),
            current_second: SecondStarts { lateness_us: Vec::new(), by_worker: vec![0; workers] },
            kill: None,
            lateness_us: Vec::new(),
            takeover_us: Vec::new(),
            early_starts: 0,
            repeated_starts: 0,
        }
    }

    /// Formats one line: time, worker, event.
    pub(super) fn format_line(&self, at_us: i64, worker: &str, word: &str, rest: &str) -> String {
        let seconds = at_us.saturating_sub(self.started_us).max(0) as f64 / 1e6;
        format!("{}  {worker:<1}  {word}  {rest}", paint(DIM, format!("{seconds:>6.2} s")))
    }

    /// Records an event and returns its line, if it has one.
    pub(super) fn record_event(&mut self, worker: usize, record: &EventRecord) -> Option<String> {
        let at = record.at_us;
        match &record.event {
            EventData::Started { id, kind, attempt, due_us, .. } => {
                self.record_start(worker, at, (*id, kind, *attempt), *due_us)
            }
            EventData::Done { id, kind, duration_us } => {
                self.mark_done(*id);
                let duration = format_millis(i64::try_from(*duration_us).unwrap_or(i64::MAX));
                (kind != super::plan::PING_KIND)
                    .then(|| self.format_job_line(worker, at, GREEN, "done", *id, kind, &format!("took {duration}")))
            }
            EventData::Retried { id, kind, after_us, error, .. } => {
                let rest = format!("again in {} ms: {}", after_us / 1_000, escape_text(error));
                Some(self.format_job_line(worker, at, YELLOW, "failed", *id, kind, &rest))
            }
            EventData::Buried { id, kind, error, .. } => {
                Some(self.format_job_line(worker, at, RED, "buried", *id, kind, &escape_text(error)))
            }
            EventData::Lost { id } => {
                Some(self.format_job_line(worker, at, RED, "refused", *id, "", "another worker has the job"))
            }
            EventData::TakenBack { jobs, .. } => {
                let victim = self
                    .kill
                    .as_ref()
                    .map_or("a dead worker".to_owned(), |kill| worker_letter(kill.worker).to_string());
                Some(self.format_line(
                    at,
                    &worker_letter(worker).to_string(),
                    &format_word(YELLOW, "took back"),
                    &format!("{jobs} jobs of {victim}"),
                ))
            }
            EventData::StoreFailed { error, .. } => Some(self.format_line(
                at,
                &worker_letter(worker).to_string(),
                &format_word(RED, "store"),
                &escape_text(error),
            )),
            _ => None,
        }
    }

    fn record_start(
        &mut self,
        worker: usize,
        at: i64,
        (id, kind, attempt): (JobId, &str, u32),
        due: i64,
    ) -> Option<String> {
        let lateness = at - due;
        self.early_starts += u64::from(lateness < 0);
        let history = self.jobs.entry(id).or_default();
        // The first run of this attempt died with its worker.
        let orphaned = history.runs.iter().any(|run| run.attempt == attempt);
        history.runs.push(JobRun { worker, attempt });
        if let Some(kill) = self.kill.as_ref().filter(|_| orphaned) {
            let takeover = at - kill.at_us;
            self.repeated_starts += 1;
            self.takeover_us.push(takeover);
            let rest = format!("{} after the kill, from the start again", format_millis(takeover));
            return Some(self.format_job_line(worker, at, BOLD, "took over", id, kind, &rest));
        }
        self.lateness_us.push(lateness);
        self.current_second.lateness_us.push(lateness);
        if let Some(count) = self.current_second.by_worker.get_mut(worker) {
            *count += 1;
        }
        match kind {
            REPORT_KIND => Some(self.format_job_line(
                worker,
                at,
                CYAN,
                "started",
                id,
                kind,
                &format!("late {}, will take 3 s", format_millis(lateness)),
            )),
            FLAKY_KIND if attempt > 1 => Some(self.format_job_line(
                worker,
                at,
                CYAN,
                "started",
                id,
                kind,
                &format!("late {}, attempt {attempt}", format_millis(lateness)),
            )),
            _ => None,
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the columns of one line")]
    fn format_job_line(
        &self,
        worker: usize,
        at: i64,
        style: clap::builder::styling::Style,
        event: &str,
        id: JobId,
        kind: &str,
        rest: &str,
    ) -> String {
        let job = format!("{kind:<6} {}", short_id(id));
        self.format_line(at, &worker_letter(worker).to_string(), &format_word(style, event), &format!("{job}  {rest}"))
    }

    /// Returns a line about the starts of the last second, if there were any.
    pub(super) fn finish_second(&mut self, at_us: i64) -> Option<String> {
        let mut lateness = std::mem::take(&mut self.current_second.lateness_us);
        let workers = self.current_second.by_worker.len();
        let counts = std::mem::replace(&mut self.current_second.by_worker, vec![0; workers]);
        lateness.sort_unstable();
        let max = *lateness.last()?;
        let by_worker: Vec<String> =
            counts.iter().enumerate().map(|(worker, n)| format!("{} {n:>2}", worker_letter(worker))).collect();
        let rest = format!(
            "{:>3} jobs  late p50 {:>8}  max {:>8}   {}",
            lateness.len(),
            format_millis(percentile(&lateness, 0.5)),
            format_millis(max),
            paint(DIM, by_worker.join("  "))
        );
        Some(self.format_line(at_us, "", &format_word(DIM, "started"), &rest))
    }

    /// Returns a worker that runs a report now.
    pub(super) fn find_report_worker(&self, reports: &[JobId]) -> Option<usize> {
        let running =
            reports.iter().filter_map(|id| self.jobs.get(id)).find(|job| !job.is_done && !job.runs.is_empty())?;
        running.runs.last().map(|run| run.worker)
    }

    pub(super) fn count_held_by(&self, worker: usize) -> usize {
        self.jobs.values().filter(|job| !job.is_done && job.runs.last().is_some_and(|run| run.worker == worker)).count()
    }

    pub(super) fn record_kill(&mut self, worker: usize, at_us: i64) {
        self.kill = Some(WorkerKill { worker, at_us });
    }

    pub(super) fn has_kill(&self) -> bool {
        self.kill.is_some()
    }

    pub(super) fn mark_done(&mut self, id: JobId) {
        self.jobs.entry(id).or_default().is_done = true;
    }

    pub(super) fn is_done(&self, id: JobId) -> bool {
        self.jobs.get(&id).is_some_and(|job| job.is_done)
    }
}

/// Pads a word to the width of its column.
pub(super) fn format_word(style: clap::builder::styling::Style, text: &str) -> String {
    paint(style, format!("{text:<9}"))
}

/// Formats microseconds as milliseconds.
pub(super) fn format_millis(us: i64) -> String {
    if us.abs() < 100_000 { format!("{:.1} ms", us as f64 / 1e3) } else { format!("{} ms", us / 1_000) }
}

/// Returns the percentile of sorted values; 0 if there are none.
pub(super) fn percentile(sorted: &[i64], share: f64) -> i64 {
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}
