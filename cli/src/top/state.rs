//! The state of `duly top` and the effect of its keys. Does not access a store or draw.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use duly::admin::{NodeRecord, QueueCounts};
use duly::{JobId, JobRecord, State};

/// The data of a store at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct StoreSnapshot {
    pub(crate) counts: Vec<QueueCounts>,
    /// All ended attempts by queue, if the store keeps a history.
    pub(crate) ended_attempts: BTreeMap<String, u64>,
    /// How long the oldest ready job of each queue has waited.
    pub(crate) lateness: BTreeMap<String, Duration>,
    pub(crate) nodes: Vec<NodeRecord>,
    /// Running jobs, or dead ones.
    pub(crate) jobs: Vec<JobRecord>,
}

impl StoreSnapshot {
    /// Returns how many attempts of a queue ended between this snapshot and a later one.
    ///
    /// Uses the store's history, or the growth of kept jobs if that is larger.
    /// The history is empty if the store format has none or if it is switched off.
    fn attempts_ended_until(&self, later: &StoreSnapshot, current: &QueueCounts) -> u64 {
        let attempts = |snapshot: &StoreSnapshot| snapshot.ended_attempts.get(&current.queue).copied();
        let by_history =
            attempts(later).zip(attempts(self)).map_or(0, |(current, previous)| current.saturating_sub(previous));
        let previous = self.counts.iter().find(|counts| counts.queue == current.queue);
        let by_jobs =
            previous.map_or(0, |previous| (current.done + current.dead).saturating_sub(previous.done + previous.dead));
        by_history.max(by_jobs)
    }
}

/// A key press, independent of the terminal library.
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

/// The action that a key requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TopAction {
    Quit,
    /// Load a new snapshot at once.
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

/// The state of the screen.
#[derive(Clone, Debug, Default)]
pub(crate) struct TopState {
    pub(crate) snapshot: StoreSnapshot,
    /// Ended attempts per second by queue, between the last two snapshots.
    pub(crate) rates: BTreeMap<String, f64>,
    snapshot_at: Option<SystemTime>,
    pub(crate) pane: Pane,
    selected_queue: usize,
    selected_job: usize,
    pub(crate) filter: String,
    pub(crate) is_typing: bool,
    pub(crate) is_help_shown: bool,
    /// Show dead jobs instead of running ones.
    pub(crate) is_dead_shown: bool,
    /// The last action or error.
    pub(crate) message: String,
    /// The last load failed, and `message` contains its error.
    pub(crate) is_load_failing: bool,
}

impl TopState {
    /// Replaces the snapshot and computes the rates.
    pub(crate) fn apply_snapshot(&mut self, snapshot: StoreSnapshot, now: SystemTime) {
        let elapsed =
            self.snapshot_at.and_then(|at| now.duration_since(at).ok()).map_or(0.0, |time| time.as_secs_f64());
        if elapsed > 0.0 {
            let rate = |counts: &QueueCounts| {
                let ended = self.snapshot.attempts_ended_until(&snapshot, counts);
                (counts.queue.clone(), ended as f64 / elapsed)
            };
            self.rates = snapshot.counts.iter().map(rate).collect();
        }
        self.snapshot = snapshot;
        self.snapshot_at = Some(now);
    }

    /// Returns the queues that match the filter.
    pub(crate) fn filtered_queues(&self) -> Vec<&QueueCounts> {
        self.snapshot.counts.iter().filter(|counts| counts.queue.contains(&self.filter)).collect()
    }

    /// Returns the jobs that match the filter.
    pub(crate) fn filtered_jobs(&self) -> Vec<&JobRecord> {
        let matches =
            |record: &&JobRecord| record.job.queue.contains(&self.filter) || record.job.kind.contains(&self.filter);
        self.snapshot.jobs.iter().filter(matches).collect()
    }

    pub(crate) fn selected_queue(&self) -> usize {
        self.selected_queue.min(self.filtered_queues().len().saturating_sub(1))
    }

    pub(crate) fn selected_job(&self) -> usize {
        self.selected_job.min(self.filtered_jobs().len().saturating_sub(1))
    }

    /// Handles a key and returns the action for the store, if any.
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

    /// Returns the selected job if it is in this state.
    fn selected_job_in_state(&self, state: State) -> Option<JobId> {
        self.filtered_jobs().get(self.selected_job()).filter(|record| record.state == state).map(|record| record.job.id)
    }

    fn move_selection(&mut self, by: isize) {
        let (index, len) = match self.pane {
            Pane::Queues => (self.selected_queue(), self.filtered_queues().len()),
            Pane::Jobs => (self.selected_job(), self.filtered_jobs().len()),
        };
        let new_index = index.saturating_add_signed(by).min(len.saturating_sub(1));
        match self.pane {
            Pane::Queues => self.selected_queue = new_index,
            Pane::Jobs => self.selected_job = new_index,
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
