//! What `duly top` knows and what its keys do. Pure: nothing here asks a store or draws.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use duly::{JobId, JobRecord, NodeRecord, QueueCounts, State};

/// What was seen of a store at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct StoreSnapshot {
    pub(crate) counts: Vec<QueueCounts>,
    /// Attempts that have ever ended, by queue, as far as the store counts them.
    pub(crate) ended_attempts: BTreeMap<String, u64>,
    /// How long the first ready job of a queue has waited.
    pub(crate) lateness: BTreeMap<String, Duration>,
    pub(crate) nodes: Vec<NodeRecord>,
    /// Running jobs, or dead ones.
    pub(crate) jobs: Vec<JobRecord>,
}

impl StoreSnapshot {
    /// Attempts of a queue that have ended from this look to a later one.
    ///
    /// By what the store counts; or by how many more ended jobs it keeps, if that says more: then nobody counts, since
    /// the format has no place for a history, or workers were told to leave it out.
    fn attempts_ended_until(&self, later: &StoreSnapshot, now: &QueueCounts) -> u64 {
        let counted = |look: &StoreSnapshot| look.ended_attempts.get(&now.queue).copied();
        let by_counts = counted(later).zip(counted(self)).map_or(0, |(now, was)| now.saturating_sub(was));
        let was = self.counts.iter().find(|was| was.queue == now.queue);
        let by_jobs = was.map_or(0, |was| (now.done + now.dead).saturating_sub(was.done + was.dead));
        by_counts.max(by_jobs)
    }
}

/// A key, whatever terminal it comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyPress {
    Char(char),
    Up,
    Down,
    Tab,
    Enter,
    Esc,
    Backspace,
}

/// What a key asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TopAction {
    Quit,
    /// Look again at once.
    Refresh,
    Pause(String),
    Resume(String),
    Cancel(JobId),
    Retry(JobId),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Pane {
    #[default]
    Queues,
    Jobs,
}

/// All that is shown.
#[derive(Clone, Debug, Default)]
pub(crate) struct TopState {
    pub(crate) snapshot: StoreSnapshot,
    /// Attempts that ended per second, by queue, from one look to the next.
    pub(crate) rates: BTreeMap<String, f64>,
    snapshot_at: Option<SystemTime>,
    pub(crate) pane: Pane,
    selected_queue: usize,
    selected_job: usize,
    pub(crate) filter: String,
    pub(crate) is_typing: bool,
    pub(crate) is_help_shown: bool,
    /// Dead jobs instead of running ones.
    pub(crate) is_dead_shown: bool,
    /// What was done last, or went wrong.
    pub(crate) message: String,
    /// The store could not be looked at, which `said` tells.
    pub(crate) is_load_failing: bool,
}

impl TopState {
    /// Takes in a new look.
    pub(crate) fn apply_snapshot(&mut self, look: StoreSnapshot, now: SystemTime) {
        let past = self.snapshot_at.and_then(|at| now.duration_since(at).ok()).map_or(0.0, |past| past.as_secs_f64());
        if past > 0.0 {
            let rate = |now: &QueueCounts| {
                let more = self.snapshot.attempts_ended_until(&look, now);
                (now.queue.clone(), more as f64 / past)
            };
            self.rates = look.counts.iter().map(rate).collect();
        }
        self.snapshot = look;
        self.snapshot_at = Some(now);
    }

    /// Queues that fit the filter.
    pub(crate) fn filtered_queues(&self) -> Vec<&QueueCounts> {
        self.snapshot.counts.iter().filter(|counts| counts.queue.contains(&self.filter)).collect()
    }

    /// Jobs that fit the filter.
    pub(crate) fn filtered_jobs(&self) -> Vec<&JobRecord> {
        let fits =
            |record: &&JobRecord| record.job.queue.contains(&self.filter) || record.job.kind.contains(&self.filter);
        self.snapshot.jobs.iter().filter(fits).collect()
    }

    pub(crate) fn selected_queue(&self) -> usize {
        self.selected_queue.min(self.filtered_queues().len().saturating_sub(1))
    }

    pub(crate) fn selected_job(&self) -> usize {
        self.selected_job.min(self.filtered_jobs().len().saturating_sub(1))
    }

    /// Does what a key says, and answers what the store is to be asked for.
    pub(crate) fn handle_key(&mut self, key: KeyPress) -> Option<TopAction> {
        if self.is_typing {
            self.edit_filter(key);
            return None;
        }
        match key {
            KeyPress::Char('q') | KeyPress::Esc if self.is_help_shown => self.is_help_shown = false,
            KeyPress::Char('q') => return Some(TopAction::Quit),
            KeyPress::Char('?') => self.is_help_shown = !self.is_help_shown,
            KeyPress::Char('/') => self.is_typing = true,
            KeyPress::Esc => self.filter.clear(),
            KeyPress::Tab => self.pane = if self.pane == Pane::Queues { Pane::Jobs } else { Pane::Queues },
            KeyPress::Up | KeyPress::Char('k') => self.move_selection(-1),
            KeyPress::Down | KeyPress::Char('j') => self.move_selection(1),
            KeyPress::Char('d') => {
                self.is_dead_shown = !self.is_dead_shown;
                self.snapshot.jobs.clear();
                return Some(TopAction::Refresh);
            }
            KeyPress::Char('p') => {
                return self
                    .filtered_queues()
                    .get(self.selected_queue())
                    .map(|queue| TopAction::Pause(queue.queue.clone()));
            }
            KeyPress::Char('r') => {
                return self
                    .filtered_queues()
                    .get(self.selected_queue())
                    .map(|queue| TopAction::Resume(queue.queue.clone()));
            }
            KeyPress::Char('c') => return self.selected_job_in_state(State::Running).map(TopAction::Cancel),
            KeyPress::Char('t') => return self.selected_job_in_state(State::Dead).map(TopAction::Retry),
            KeyPress::Char(_) | KeyPress::Enter | KeyPress::Backspace => {}
        }
        None
    }

    /// The job that is marked, if it is in this state.
    fn selected_job_in_state(&self, state: State) -> Option<JobId> {
        self.filtered_jobs().get(self.selected_job()).filter(|record| record.state == state).map(|record| record.job.id)
    }

    fn move_selection(&mut self, by: isize) {
        let (at, len) = match self.pane {
            Pane::Queues => (self.selected_queue(), self.filtered_queues().len()),
            Pane::Jobs => (self.selected_job(), self.filtered_jobs().len()),
        };
        let to = at.saturating_add_signed(by).min(len.saturating_sub(1));
        match self.pane {
            Pane::Queues => self.selected_queue = to,
            Pane::Jobs => self.selected_job = to,
        }
    }

    fn edit_filter(&mut self, key: KeyPress) {
        match key {
            KeyPress::Char(letter) => self.filter.push(letter),
            KeyPress::Backspace => drop(self.filter.pop()),
            KeyPress::Enter => self.is_typing = false,
            KeyPress::Esc => {
                self.is_typing = false;
                self.filter.clear();
            }
            KeyPress::Up | KeyPress::Down | KeyPress::Tab => {}
        }
    }
}
