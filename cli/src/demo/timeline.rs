//! What has happened in the demo so far: kept for the summary, and told as it happens.

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

/// What is known of one pushed job.
#[derive(Default)]
struct JobHistory {
    runs: Vec<JobRun>,
    is_done: bool,
}

/// A worker was killed.
struct WorkerKill {
    worker: usize,
    at_us: i64,
}

/// Starts that are told together, once a second.
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
    /// From the kill to each next start of a job that the killed worker held.
    pub(super) takeover_us: Vec<i64>,
    pub(super) early_starts: u64,
    pub(super) repeated_starts: u64,
}

impl Timeline {
    pub(super) fn new(begun_us: i64, workers: usize) -> Timeline {
        Timeline {
            started_us: begun_us,
            jobs: HashMap::new(),
            current_second: SecondStarts { lateness_us: Vec::new(), by_worker: vec![0; workers] },
            kill: None,
            lateness_us: Vec::new(),
            takeover_us: Vec::new(),
            early_starts: 0,
            repeated_starts: 0,
        }
    }

    /// One line: when, who, what.
    pub(super) fn format_line(&self, at_us: i64, who: &str, word: &str, rest: &str) -> String {
        let seconds = at_us.saturating_sub(self.started_us).max(0) as f64 / 1e6;
        format!("{}  {who:<1}  {word}  {rest}", paint(DIM, format!("{seconds:>6.2} s")))
    }

    /// Takes in an event; answers the line to show for it, if it deserves one of its own.
    pub(super) fn record_event(&mut self, worker: usize, told: &EventRecord) -> Option<String> {
        let at = told.at_us;
        match &told.event {
            EventData::Started { id, kind, attempt, due_us, .. } => {
                self.record_start(worker, at, (*id, kind, *attempt), *due_us)
            }
            EventData::Done { id, kind, duration_us: took_us } => {
                self.mark_done(*id);
                let took = format_millis(i64::try_from(*took_us).unwrap_or(i64::MAX));
                (kind != super::plan::PING_KIND)
                    .then(|| self.format_job_line(worker, at, GREEN, "done", *id, kind, &format!("took {took}")))
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
                let who = self
                    .kill
                    .as_ref()
                    .map_or("a dead worker".to_owned(), |kill| worker_letter(kill.worker).to_string());
                Some(self.format_line(
                    at,
                    &worker_letter(worker).to_string(),
                    &format_word(YELLOW, "took back"),
                    &format!("{jobs} jobs of {who}"),
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
        let late = at - due;
        self.early_starts += u64::from(late < 0);
        let track = self.jobs.entry(id).or_default();
        // The same attempt again: its first run ended with its worker.
        let orphaned = track.runs.iter().any(|run| run.attempt == attempt);
        track.runs.push(JobRun { worker, attempt });
        if let Some(kill) = self.kill.as_ref().filter(|_| orphaned) {
            let after = at - kill.at_us;
            self.repeated_starts += 1;
            self.takeover_us.push(after);
            let rest = format!("{} after the kill, from the start again", format_millis(after));
            return Some(self.format_job_line(worker, at, BOLD, "took over", id, kind, &rest));
        }
        self.lateness_us.push(late);
        self.current_second.lateness_us.push(late);
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
                &format!("late {}, will take 3 s", format_millis(late)),
            )),
            FLAKY_KIND if attempt > 1 => Some(self.format_job_line(
                worker,
                at,
                CYAN,
                "started",
                id,
                kind,
                &format!("late {}, attempt {attempt}", format_millis(late)),
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
        what: &str,
        id: JobId,
        kind: &str,
        rest: &str,
    ) -> String {
        let job = format!("{kind:<6} {}", short_id(id));
        self.format_line(at, &worker_letter(worker).to_string(), &format_word(style, what), &format!("{job}  {rest}"))
    }

    /// What started in the last second, in one line; nothing if nothing did.
    pub(super) fn finish_second(&mut self, at_us: i64) -> Option<String> {
        let mut late = std::mem::take(&mut self.current_second.lateness_us);
        let workers = self.current_second.by_worker.len();
        let counts = std::mem::replace(&mut self.current_second.by_worker, vec![0; workers]);
        late.sort_unstable();
        let max = *late.last()?;
        let each: Vec<String> =
            counts.iter().enumerate().map(|(at, n)| format!("{} {n:>2}", worker_letter(at))).collect();
        let rest = format!(
            "{:>3} jobs  late p50 {:>8}  max {:>8}   {}",
            late.len(),
            format_millis(percentile(&late, 0.5)),
            format_millis(max),
            paint(DIM, each.join("  "))
        );
        Some(self.format_line(at_us, "", &format_word(DIM, "started"), &rest))
    }

    /// The worker that runs a report now, and how many jobs it holds.
    pub(super) fn find_report_worker(&self, reports: &[JobId]) -> Option<usize> {
        let running =
            reports.iter().filter_map(|id| self.jobs.get(id)).find(|track| !track.is_done && !track.runs.is_empty())?;
        running.runs.last().map(|run| run.worker)
    }

    pub(super) fn count_held_by(&self, worker: usize) -> usize {
        self.jobs.values().filter(|t| !t.is_done && t.runs.last().is_some_and(|run| run.worker == worker)).count()
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
        self.jobs.get(&id).is_some_and(|track| track.is_done)
    }
}

/// A word in its column.
pub(super) fn format_word(style: clap::builder::styling::Style, text: &str) -> String {
    paint(style, format!("{text:<9}"))
}

/// Microseconds as milliseconds.
pub(super) fn format_millis(us: i64) -> String {
    if us.abs() < 100_000 { format!("{:.1} ms", us as f64 / 1e3) } else { format!("{} ms", us / 1_000) }
}

/// The value below which this share of sorted values lies; 0 if there are none.
pub(super) fn percentile(sorted: &[i64], share: f64) -> i64 {
    let at = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(at.saturating_sub(1)).copied().unwrap_or_default()
}
