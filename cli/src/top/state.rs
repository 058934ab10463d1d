//! What `duly top` knows and what its keys do. Pure: nothing here asks a store or draws.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use duly::{JobId, NodeRecord, QueueCounts, Record, State};

/// What was seen of a store at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Look {
    pub(crate) counts: Vec<QueueCounts>,
    /// Attempts that have ever ended, by queue, as far as the store counts them.
    pub(crate) ended: BTreeMap<String, u64>,
    /// How long the first ready job of a queue has waited.
    pub(crate) late: BTreeMap<String, Duration>,
    pub(crate) nodes: Vec<NodeRecord>,
    /// Running jobs, or dead ones.
    pub(crate) jobs: Vec<Record>,
}

impl Look {
    /// Attempts of a queue that have ended from this look to a later one.
    ///
    /// By what the store counts; or by how many more ended jobs it keeps, if that says more: then nobody counts, since
    /// the format has no place for a history, or workers were told to leave it out.
    fn ended_until(&self, later: &Look, now: &QueueCounts) -> u64 {
        let counted = |look: &Look| look.ended.get(&now.queue).copied();
        let by_counts = counted(later).zip(counted(self)).map_or(0, |(now, was)| now.saturating_sub(was));
        let was = self.counts.iter().find(|was| was.queue == now.queue);
        let by_jobs = was.map_or(0, |was| (now.done + now.dead).saturating_sub(was.done + was.dead));
        by_counts.max(by_jobs)
    }
}

/// A key, whatever terminal it comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
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
pub(crate) enum Act {
    Quit,
    /// Look again at once.
    Look,
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
pub(crate) struct Top {
    pub(crate) look: Look,
    /// Attempts that ended per second, by queue, from one look to the next.
    pub(crate) rates: BTreeMap<String, f64>,
    seen_at: Option<SystemTime>,
    pub(crate) pane: Pane,
    queue_at: usize,
    job_at: usize,
    pub(crate) filter: String,
    pub(crate) typing: bool,
    pub(crate) help: bool,
    /// Dead jobs instead of running ones.
    pub(crate) dead: bool,
    /// What was done last, or went wrong.
    pub(crate) said: String,
    /// The store could not be looked at, which `said` tells.
    pub(crate) blind: bool,
}

impl Top {
    /// Takes in a new look.
    pub(crate) fn see(&mut self, look: Look, now: SystemTime) {
        let past = self.seen_at.and_then(|at| now.duration_since(at).ok()).map_or(0.0, |past| past.as_secs_f64());
        if past > 0.0 {
            let rate = |now: &QueueCounts| {
                let more = self.look.ended_until(&look, now);
                (now.queue.clone(), more as f64 / past)
            };
            self.rates = look.counts.iter().map(rate).collect();
        }
        self.look = look;
        self.seen_at = Some(now);
    }

    /// Queues that fit the filter.
    pub(crate) fn queues(&self) -> Vec<&QueueCounts> {
        self.look.counts.iter().filter(|counts| counts.queue.contains(&self.filter)).collect()
    }

    /// Jobs that fit the filter.
    pub(crate) fn jobs(&self) -> Vec<&Record> {
        let fits = |record: &&Record| record.job.queue.contains(&self.filter) || record.job.kind.contains(&self.filter);
        self.look.jobs.iter().filter(fits).collect()
    }

    pub(crate) fn queue_at(&self) -> usize {
        self.queue_at.min(self.queues().len().saturating_sub(1))
    }

    pub(crate) fn job_at(&self) -> usize {
        self.job_at.min(self.jobs().len().saturating_sub(1))
    }

    /// Does what a key says, and answers what the store is to be asked for.
    pub(crate) fn key(&mut self, key: Key) -> Option<Act> {
        if self.typing {
            self.type_in(key);
            return None;
        }
        match key {
            Key::Char('q') | Key::Esc if self.help => self.help = false,
            Key::Char('q') => return Some(Act::Quit),
            Key::Char('?') => self.help = !self.help,
            Key::Char('/') => self.typing = true,
            Key::Esc => self.filter.clear(),
            Key::Tab => self.pane = if self.pane == Pane::Queues { Pane::Jobs } else { Pane::Queues },
            Key::Up | Key::Char('k') => self.go(-1),
            Key::Down | Key::Char('j') => self.go(1),
            Key::Char('d') => {
                self.dead = !self.dead;
                self.look.jobs.clear();
                return Some(Act::Look);
            }
            Key::Char('p') => return self.queues().get(self.queue_at()).map(|queue| Act::Pause(queue.queue.clone())),
            Key::Char('r') => return self.queues().get(self.queue_at()).map(|queue| Act::Resume(queue.queue.clone())),
            Key::Char('c') => return self.job(State::Running).map(Act::Cancel),
            Key::Char('t') => return self.job(State::Dead).map(Act::Retry),
            Key::Char(_) | Key::Enter | Key::Backspace => {}
        }
        None
    }

    /// The job that is marked, if it is in this state.
    fn job(&self, state: State) -> Option<JobId> {
        self.jobs().get(self.job_at()).filter(|record| record.state == state).map(|record| record.job.id)
    }

    fn go(&mut self, by: isize) {
        let (at, len) = match self.pane {
            Pane::Queues => (self.queue_at(), self.queues().len()),
            Pane::Jobs => (self.job_at(), self.jobs().len()),
        };
        let to = at.saturating_add_signed(by).min(len.saturating_sub(1));
        match self.pane {
            Pane::Queues => self.queue_at = to,
            Pane::Jobs => self.job_at = to,
        }
    }

    fn type_in(&mut self, key: Key) {
        match key {
            Key::Char(letter) => self.filter.push(letter),
            Key::Backspace => drop(self.filter.pop()),
            Key::Enter => self.typing = false,
            Key::Esc => {
                self.typing = false;
                self.filter.clear();
            }
            Key::Up | Key::Down | Key::Tab => {}
        }
    }
}
