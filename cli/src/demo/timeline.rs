//! What has happened in the demo so far: kept for the summary, and told as it happens.

use std::collections::HashMap;

use duly::JobId;

use super::plan::{FLAKY, REPORT};
use super::worker_processes::name;
use crate::escape::safe;
use crate::events::{Told, What, short_id};
use crate::output::{BOLD, CYAN, DIM, GREEN, RED, YELLOW, paint};

/// One run of a job.
struct Run {
    worker: usize,
    attempt: u32,
}

/// What is known of one pushed job.
#[derive(Default)]
struct Track {
    runs: Vec<Run>,
    done: bool,
}

/// A worker was killed.
struct Kill {
    worker: usize,
    at_us: i64,
}

/// Starts that are told together, once a second.
#[derive(Default)]
struct Second {
    late_us: Vec<i64>,
    by_worker: Vec<u32>,
}

pub(super) struct Story {
    begun_us: i64,
    tracks: HashMap<JobId, Track>,
    second: Second,
    kill: Option<Kill>,
    /// Lateness of every start that did not follow a crash.
    pub(super) late_us: Vec<i64>,
    /// From the kill to each next start of a job that the killed worker held.
    pub(super) takeover_us: Vec<i64>,
    pub(super) early: u64,
    pub(super) twice: u64,
}

impl Story {
    pub(super) fn new(begun_us: i64, workers: usize) -> Story {
        Story {
            begun_us,
            tracks: HashMap::new(),
            second: Second { late_us: Vec::new(), by_worker: vec![0; workers] },
            kill: None,
            late_us: Vec::new(),
            takeover_us: Vec::new(),
            early: 0,
            twice: 0,
        }
    }

    /// One line: when, who, what.
    pub(super) fn line(&self, at_us: i64, who: &str, word: &str, rest: &str) -> String {
        let seconds = at_us.saturating_sub(self.begun_us).max(0) as f64 / 1e6;
        format!("{}  {who:<1}  {word}  {rest}", paint(DIM, format!("{seconds:>6.2} s")))
    }

    /// Takes in an event; answers the line to show for it, if it deserves one of its own.
    pub(super) fn take(&mut self, worker: usize, told: &Told) -> Option<String> {
        let at = told.at_us;
        match &told.what {
            What::Started { id, kind, attempt, due_us, .. } => self.started(worker, at, (*id, kind, *attempt), *due_us),
            What::Done { id, kind, took_us } => {
                self.done(*id);
                let took = ms(i64::try_from(*took_us).unwrap_or(i64::MAX));
                (kind != super::plan::PING)
                    .then(|| self.of(worker, at, GREEN, "done", *id, kind, &format!("took {took}")))
            }
            What::Retry { id, kind, after_us, error, .. } => {
                let rest = format!("again in {} ms: {}", after_us / 1_000, safe(error));
                Some(self.of(worker, at, YELLOW, "failed", *id, kind, &rest))
            }
            What::Buried { id, kind, error, .. } => Some(self.of(worker, at, RED, "buried", *id, kind, &safe(error))),
            What::Lost { id } => Some(self.of(worker, at, RED, "refused", *id, "", "another worker has the job")),
            What::TakenBack { jobs, .. } => {
                let who = self.kill.as_ref().map_or("a dead worker".to_owned(), |kill| name(kill.worker).to_string());
                Some(self.line(
                    at,
                    &name(worker).to_string(),
                    &word(YELLOW, "took back"),
                    &format!("{jobs} jobs of {who}"),
                ))
            }
            What::StoreFailed { error, .. } => {
                Some(self.line(at, &name(worker).to_string(), &word(RED, "store"), &safe(error)))
            }
            _ => None,
        }
    }

    fn started(&mut self, worker: usize, at: i64, (id, kind, attempt): (JobId, &str, u32), due: i64) -> Option<String> {
        let late = at - due;
        self.early += u64::from(late < 0);
        let track = self.tracks.entry(id).or_default();
        // The same attempt again: its first run ended with its worker.
        let orphaned = track.runs.iter().any(|run| run.attempt == attempt);
        track.runs.push(Run { worker, attempt });
        if let Some(kill) = self.kill.as_ref().filter(|_| orphaned) {
            let after = at - kill.at_us;
            self.twice += 1;
            self.takeover_us.push(after);
            let rest = format!("{} after the kill, from the start again", ms(after));
            return Some(self.of(worker, at, BOLD, "took over", id, kind, &rest));
        }
        self.late_us.push(late);
        self.second.late_us.push(late);
        if let Some(count) = self.second.by_worker.get_mut(worker) {
            *count += 1;
        }
        match kind {
            REPORT => {
                Some(self.of(worker, at, CYAN, "started", id, kind, &format!("late {}, will take 3 s", ms(late))))
            }
            FLAKY if attempt > 1 => {
                Some(self.of(worker, at, CYAN, "started", id, kind, &format!("late {}, attempt {attempt}", ms(late))))
            }
            _ => None,
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the columns of one line")]
    fn of(
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
        self.line(at, &name(worker).to_string(), &word(style, what), &format!("{job}  {rest}"))
    }

    /// What started in the last second, in one line; nothing if nothing did.
    pub(super) fn end_second(&mut self, at_us: i64) -> Option<String> {
        let mut late = std::mem::take(&mut self.second.late_us);
        let workers = self.second.by_worker.len();
        let counts = std::mem::replace(&mut self.second.by_worker, vec![0; workers]);
        late.sort_unstable();
        let max = *late.last()?;
        let each: Vec<String> = counts.iter().enumerate().map(|(at, n)| format!("{} {n:>2}", name(at))).collect();
        let rest = format!(
            "{:>3} jobs  late p50 {:>8}  max {:>8}   {}",
            late.len(),
            ms(share(&late, 0.5)),
            ms(max),
            paint(DIM, each.join("  "))
        );
        Some(self.line(at_us, "", &word(DIM, "started"), &rest))
    }

    /// The worker that runs a report now, and how many jobs it holds.
    pub(super) fn holder(&self, reports: &[JobId]) -> Option<usize> {
        let running =
            reports.iter().filter_map(|id| self.tracks.get(id)).find(|track| !track.done && !track.runs.is_empty())?;
        running.runs.last().map(|run| run.worker)
    }

    pub(super) fn held_by(&self, worker: usize) -> usize {
        self.tracks.values().filter(|t| !t.done && t.runs.last().is_some_and(|run| run.worker == worker)).count()
    }

    pub(super) fn killed(&mut self, worker: usize, at_us: i64) {
        self.kill = Some(Kill { worker, at_us });
    }

    pub(super) fn was_killed(&self) -> bool {
        self.kill.is_some()
    }

    pub(super) fn done(&mut self, id: JobId) {
        self.tracks.entry(id).or_default().done = true;
    }

    pub(super) fn is_done(&self, id: JobId) -> bool {
        self.tracks.get(&id).is_some_and(|track| track.done)
    }
}

/// A word in its column.
pub(super) fn word(style: clap::builder::styling::Style, text: &str) -> String {
    paint(style, format!("{text:<9}"))
}

/// Microseconds as milliseconds.
pub(super) fn ms(us: i64) -> String {
    if us.abs() < 100_000 { format!("{:.1} ms", us as f64 / 1e3) } else { format!("{} ms", us / 1_000) }
}

/// The value below which this share of sorted values lies; 0 if there are none.
pub(super) fn share(sorted: &[i64], share: f64) -> i64 {
    let at = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(at.saturating_sub(1)).copied().unwrap_or_default()
}
