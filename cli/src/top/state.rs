//! The state of `duly top` and the effect of its keys. Does not access a store or draw.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use duly::{JobId, State};
use duly_http::views::{JobView, NodeView, QueueView};

use crate::time;

/// The states of jobs that a queue's screen shows, in the order of the key Tab.
const STATES: [State; 6] = [State::Running, State::Ready, State::Scheduled, State::Dead, State::Done, State::Cancelled];

/// The data of a store at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct StoreSnapshot {
    pub(crate) queues: Vec<QueueView>,
    /// All ended attempts by queue, if they are known.
    pub(crate) ended_attempts: BTreeMap<String, u64>,
    pub(crate) nodes: Vec<NodeView>,
    /// The jobs of the query.
    pub(crate) jobs: Vec<JobView>,
    /// The job of the query.
    pub(crate) job: Option<JobView>,
}

impl StoreSnapshot {
    /// Returns how many attempts of a queue ended between this snapshot and a later one.
    ///
    /// Uses the store's history, or the growth of kept jobs if that is larger.
    /// The history is empty if the store format has none or if it is switched off.
    fn attempts_ended_until(&self, later: &StoreSnapshot, current: &QueueView) -> u64 {
        let attempts = |snapshot: &StoreSnapshot| snapshot.ended_attempts.get(&current.queue).copied();
        let by_history =
            attempts(later).zip(attempts(self)).map_or(0, |(current, previous)| current.saturating_sub(previous));
        let previous = self.queues.iter().find(|queue| queue.queue == current.queue);
        let by_jobs =
            previous.map_or(0, |previous| (current.done + current.dead).saturating_sub(previous.done + previous.dead));
        by_history.max(by_jobs)
    }
}

/// Returns how long the oldest ready job of a queue has waited.
pub(crate) fn lateness(queue: &QueueView) -> Option<Duration> {
    queue.oldest_ms.map(|due| time::now().duration_since(time::from_millis(due)).unwrap_or_default())
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

/// The data that a screen needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TopQuery {
    /// The jobs of one queue or of all, and the nodes.
    Jobs { queue: Option<String>, state: State },
    /// One job.
    Job(JobId),
}

/// A screen above the overview. Esc goes back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Screen {
    /// The jobs of a queue in the state with this index in `STATES`.
    Queue { name: String, state: usize },
    /// A job, scrolled by this many lines.
    Job { id: JobId, scroll: u16 },
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
    /// The screens above the overview: at most a queue and a job.
    pub(crate) screens: Vec<Screen>,
    pub(crate) pane: Pane,
    selected_queue: usize,
    selected_job: usize,
    pub(crate) filter: String,
    pub(crate) is_typing: bool,
    pub(crate) is_help_shown: bool,
    /// Show dead jobs instead of running ones in the overview.
    pub(crate) is_dead_shown: bool,
    /// The last action or error.
    pub(crate) message: String,
    /// The last load failed, and `message` contains its error.
    pub(crate) is_load_failing: bool,
}

impl TopState {
    /// Returns the data that the current screen needs.
    pub(crate) fn query(&self) -> TopQuery {
        match self.screens.last() {
            Some(Screen::Job { id, .. }) => TopQuery::Job(*id),
            Some(Screen::Queue { name, .. }) => TopQuery::Jobs { queue: Some(name.clone()), state: self.shown_state() },
            None => TopQuery::Jobs { queue: None, state: self.shown_state() },
        }
    }

    /// Returns the state of the listed jobs.
    pub(crate) fn shown_state(&self) -> State {
        match self.screens.last() {
            Some(Screen::Queue { state, .. }) => STATES[state % STATES.len()],
            _ if self.is_dead_shown => State::Dead,
            _ => State::Running,
        }
    }

    /// Replaces the snapshot and computes the rates.
    pub(crate) fn apply_snapshot(&mut self, snapshot: StoreSnapshot, now: SystemTime) {
        let elapsed =
            self.snapshot_at.and_then(|at| now.duration_since(at).ok()).map_or(0.0, |time| time.as_secs_f64());
        if elapsed > 0.0 {
            let rate = |queue: &QueueView| {
                let ended = self.snapshot.attempts_ended_until(&snapshot, queue);
                (queue.queue.clone(), ended as f64 / elapsed)
            };
            self.rates = snapshot.queues.iter().map(rate).collect();
        }
        self.snapshot = snapshot;
        self.snapshot_at = Some(now);
    }

    /// Returns the queues that match the filter.
    pub(crate) fn filtered_queues(&self) -> Vec<&QueueView> {
        self.snapshot.queues.iter().filter(|queue| queue.queue.contains(&self.filter)).collect()
    }

    /// Returns the jobs that match the filter.
    pub(crate) fn filtered_jobs(&self) -> Vec<&JobView> {
        let matches = |job: &&JobView| job.queue.contains(&self.filter) || job.kind.contains(&self.filter);
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
            // The help hides the lists, so no key may act on them.
            _ if self.is_help_shown => self.is_help_shown = false,
            KeyPress::Char('q') => return Some(TopAction::Quit),
            KeyPress::Char('?') => self.is_help_shown = true,
            KeyPress::Char('/') => self.is_typing = true,
            KeyPress::Esc if !self.filter.is_empty() => self.filter.clear(),
            KeyPress::Esc | KeyPress::Backspace => return self.go_back(),
            KeyPress::Enter => return self.open_selected(),
            KeyPress::Tab => return self.show_next(),
            KeyPress::Up | KeyPress::Char('k') => self.move_selection(-1),
            KeyPress::Down | KeyPress::Char('j') => self.move_selection(1),
            KeyPress::Char('d') if self.screens.is_empty() => {
                self.is_dead_shown = !self.is_dead_shown;
                self.snapshot.jobs.clear();
                return Some(TopAction::Refresh);
            }
            KeyPress::Char('p') => return self.current_queue().map(TopAction::Pause),
            KeyPress::Char('r') => return self.current_queue().map(TopAction::Resume),
            KeyPress::Char('c') => return self.job_in_state(|state| !state.is_final()).map(TopAction::Cancel),
            KeyPress::Char('t') => return self.job_in_state(|state| state == State::Dead).map(TopAction::Retry),
            KeyPress::Char(_) => {}
        }
        None
    }

    /// Opens the selected queue or job.
    fn open_selected(&mut self) -> Option<TopAction> {
        let screen = match (self.screens.last(), self.pane) {
            (Some(Screen::Job { .. }), _) => return None,
            (None, Pane::Queues) => Screen::Queue { name: self.current_queue()?, state: 0 },
            (Some(Screen::Queue { .. }), _) | (None, Pane::Jobs) => {
                let id = self.filtered_jobs().get(self.selected_job())?.id.parse().ok()?;
                Screen::Job { id, scroll: 0 }
            }
        };
        if matches!(screen, Screen::Queue { .. }) {
            (self.selected_job, self.filter) = (0, String::new());
            self.snapshot.jobs.clear();
        }
        self.snapshot.job = None;
        self.message.clear();
        self.screens.push(screen);
        Some(TopAction::Refresh)
    }

    fn go_back(&mut self) -> Option<TopAction> {
        self.screens.pop()?;
        self.message.clear();
        Some(TopAction::Refresh)
    }

    /// Selects the other pane of the overview, or the next state of a queue's jobs.
    fn show_next(&mut self) -> Option<TopAction> {
        match self.screens.last_mut() {
            None => {
                self.pane = if self.pane == Pane::Queues { Pane::Jobs } else { Pane::Queues };
                None
            }
            Some(Screen::Queue { state, .. }) => {
                *state = (*state + 1) % STATES.len();
                self.snapshot.jobs.clear();
                Some(TopAction::Refresh)
            }
            Some(Screen::Job { .. }) => None,
        }
    }

    /// Returns the queue of the screen, or the selected one.
    fn current_queue(&self) -> Option<String> {
        match self.screens.first() {
            Some(Screen::Queue { name, .. }) => Some(name.clone()),
            Some(Screen::Job { .. }) => self.snapshot.job.as_ref().map(|job| job.queue.clone()),
            None => self.filtered_queues().get(self.selected_queue()).map(|queue| queue.queue.clone()),
        }
    }

    /// Returns the job of the screen, or the selected one, if it is in such a state.
    fn job_in_state(&self, is_wanted: impl Fn(State) -> bool) -> Option<JobId> {
        let jobs = self.filtered_jobs();
        let job = match self.screens.last() {
            Some(Screen::Job { .. }) => self.snapshot.job.as_ref()?,
            _ => jobs.get(self.selected_job())?,
        };
        let state = job.state.parse::<State>().ok()?;
        if is_wanted(state) { job.id.parse().ok() } else { None }
    }

    fn move_selection(&mut self, by: isize) {
        if let Some(Screen::Job { scroll, .. }) = self.screens.last_mut() {
            *scroll = scroll.saturating_add_signed(by.signum() as i16);
            return;
        }
        let is_queue_list = self.screens.is_empty() && self.pane == Pane::Queues;
        let (index, len) = match is_queue_list {
            true => (self.selected_queue(), self.filtered_queues().len()),
            false => (self.selected_job(), self.filtered_jobs().len()),
        };
        let new_index = index.saturating_add_signed(by).min(len.saturating_sub(1));
        match is_queue_list {
            true => self.selected_queue = new_index,
            false => self.selected_job = new_index,
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
