//! The workers of one process, which die together: a crash suspect is alone only if none of them runs another attempt.
//!
//! A worker with a crash suspect reserves the process. From then on the other workers start nothing, and the suspect
//! starts once all their attempts have ended. Reservations are granted in the order of the requests.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};

use tokio::sync::Notify;

use crate::sync::LockExt;

static CURRENT: LazyLock<WorkerProcess> = LazyLock::new(WorkerProcess::default);

/// No worker has reserved the process: the first worker has number 1.
const NO_HOLDER: u64 = 0;

/// The workers of one process.
#[derive(Clone, Debug, Default)]
pub(super) struct WorkerProcess(Arc<SharedProcess>);

#[derive(Debug, Default)]
struct SharedProcess {
    /// The worker that has reserved the process. It changes only under the lock.
    holder: AtomicU64,
    state: Mutex<ProcessState>,
}

#[derive(Debug, Default)]
struct ProcessState {
    last_number: u64,
    members: BTreeMap<u64, MemberState>,
    /// Workers that wait for their reservation, each once.
    waiting: VecDeque<u64>,
    /// The holder ends its reservation if another worker has a job.
    yields: bool,
    /// Another worker has a job that it cannot start.
    is_wanted: bool,
}

#[derive(Debug)]
struct MemberState {
    /// It runs attempts, or has outcomes that are not recorded.
    runs: bool,
    changed: Arc<Notify>,
}

impl WorkerProcess {
    /// Returns the process that runs this code. Unit tests run side by side in one process, so there each worker has one of
    /// its own.
    pub(super) fn current() -> Self {
        if cfg!(test) { WorkerProcess::default() } else { CURRENT.clone() }
    }

    /// Adds a worker.
    pub(super) fn join(&self) -> ProcessMember {
        let (mut state, changed) = (self.0.lock(), Arc::new(Notify::new()));
        state.last_number += 1;
        let number = state.last_number;
        state.members.insert(number, MemberState { runs: false, changed: changed.clone() });
        drop(state);
        ProcessMember { process: self.0.clone(), number, runs: false, is_reserving: false, changed }
    }
}

impl SharedProcess {
    fn lock(&self) -> MutexGuard<'_, ProcessState> {
        self.state.lock_unpoisoned()
    }

    fn holder(&self) -> u64 {
        self.holder.load(Ordering::SeqCst)
    }

    fn set_holder(&self, state: &mut ProcessState, holder: u64, yields: bool) {
        self.holder.store(holder, Ordering::SeqCst);
        (state.yields, state.is_wanted) = (yields, false);
        state.members.values().for_each(|member| member.changed.notify_one());
    }
}

impl ProcessState {
    fn others_run(&self, number: u64) -> bool {
        self.members.iter().any(|(other, member)| *other != number && member.runs)
    }

    /// Records that another worker than the holder has a job.
    fn record_wanted(&mut self, holder: u64) {
        self.is_wanted = true;
        self.members.get(&holder).into_iter().for_each(|member| member.changed.notify_one());
    }
}

/// One worker of a process. It leaves the process when it is dropped.
#[derive(Debug)]
pub(super) struct ProcessMember {
    process: Arc<SharedProcess>,
    number: u64,
    /// The same value as in the process, so that most attempts start without its lock.
    runs: bool,
    /// It has reserved the process, or waits for that.
    is_reserving: bool,
    changed: Arc<Notify>,
}

impl ProcessMember {
    /// Returns the notification that a reservation has begun, has ended or is wanted, or that the attempts of another
    /// worker have ended.
    pub(super) fn changes(&self) -> Arc<Notify> {
        self.changed.clone()
    }

    /// Returns whether an attempt may start: not while another worker has reserved the process.
    pub(super) fn begin_attempt(&mut self) -> bool {
        if self.runs && !self.is_reserved_by_other() {
            return true;
        }
        let mut state = self.process.lock();
        let holder = self.process.holder();
        if holder != NO_HOLDER && holder != self.number {
            state.record_wanted(holder);
            return false;
        }
        state.members.get_mut(&self.number).into_iter().for_each(|member| member.runs = true);
        self.runs = true;
        true
    }

    /// Records that no attempt runs, and that all outcomes are recorded.
    pub(super) fn end_attempts(&mut self) {
        if std::mem::take(&mut self.runs) {
            let mut state = self.process.lock();
            state.members.get_mut(&self.number).into_iter().for_each(|member| member.runs = false);
            let holder = state.members.get(&self.process.holder());
            holder.into_iter().for_each(|member| member.changed.notify_one());
        }
    }

    fn is_reserved_by_other(&self) -> bool {
        let holder = self.process.holder();
        holder != NO_HOLDER && holder != self.number
    }

    /// Returns how many jobs the other workers leave room to claim. A claim next to a holder that yields only shows
    /// that there are other jobs.
    pub(super) fn claim_limit(&self) -> usize {
        if !self.is_reserved_by_other() {
            return usize::MAX;
        }
        let state = self.process.lock();
        usize::from(state.yields && !state.is_wanted)
    }

    /// Reserves the process, after those that asked before. A holder that asks again is the last of them.
    pub(super) fn reserve(&mut self) {
        self.is_reserving = true;
        let mut state = self.process.lock();
        match self.process.holder() {
            NO_HOLDER => self.process.set_holder(&mut state, self.number, false),
            holder if holder == self.number => match state.waiting.pop_front() {
                None => (state.yields, state.is_wanted) = (false, false),
                Some(next) => {
                    state.waiting.push_back(self.number);
                    self.process.set_holder(&mut state, next, false);
                }
            },
            holder => {
                if !state.waiting.contains(&self.number) {
                    state.waiting.push_back(self.number);
                }
                state.record_wanted(holder);
            }
        }
    }

    /// Reserves the process until another worker has a job. Returns `false` if another worker runs attempts, or has
    /// reserved it.
    pub(super) fn try_reserve_idle(&mut self) -> bool {
        let mut state = self.process.lock();
        let is_free = self.process.holder() == NO_HOLDER && !state.others_run(self.number);
        if is_free {
            self.is_reserving = true;
            self.process.set_holder(&mut state, self.number, true);
        }
        is_free
    }

    /// Returns whether this worker has reserved the process, and no other worker runs an attempt.
    pub(super) fn is_alone(&self) -> bool {
        self.process.holder() == self.number && !self.process.lock().others_run(self.number)
    }

    /// Returns whether another worker has reserved the process, or runs attempts.
    pub(super) fn waits_for_others(&self) -> bool {
        self.is_reserved_by_other() || self.process.lock().others_run(self.number)
    }

    /// Returns whether another worker has a job, since this one has reserved the process.
    pub(super) fn is_wanted(&self) -> bool {
        self.process.lock().is_wanted
    }

    /// Ends the reservation, or the wait for it.
    pub(super) fn release(&mut self) {
        if std::mem::take(&mut self.is_reserving) {
            let mut state = self.process.lock();
            state.waiting.retain(|number| *number != self.number);
            if self.process.holder() == self.number {
                let next = state.waiting.pop_front().unwrap_or(NO_HOLDER);
                self.process.set_holder(&mut state, next, false);
            }
        }
    }
}

impl Drop for ProcessMember {
    fn drop(&mut self) {
        self.end_attempts();
        self.release();
        self.process.lock().members.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members<const COUNT: usize>() -> [ProcessMember; COUNT] {
        let process = WorkerProcess::default();
        [(); COUNT].map(|()| process.join())
    }

    #[test]
    fn reservation_waits_for_the_attempts_of_others_and_keeps_new_ones_out() {
        let [mut one, mut two] = members();
        assert!(one.begin_attempt() && two.begin_attempt());
        one.end_attempts();
        one.reserve();
        assert!(!one.is_alone(), "the other runs");
        assert!(!two.begin_attempt(), "although it runs already");
        assert_eq!((one.claim_limit(), two.claim_limit()), (usize::MAX, 0));
        two.end_attempts();
        assert!(one.is_alone() && one.begin_attempt() && !two.begin_attempt());
        one.release();
        assert!(two.begin_attempt() && !one.is_alone());
        assert_eq!(two.claim_limit(), usize::MAX);
    }

    #[test]
    fn reservations_are_granted_in_order() {
        let [mut one, mut two, mut three] = members();
        one.reserve();
        two.reserve();
        three.reserve();
        two.reserve();
        assert!(one.is_alone() && !two.is_alone());
        drop(one);
        assert!(two.is_alone() && !three.is_alone());
        two.reserve();
        assert!(three.is_alone() && !two.is_alone(), "the holder asks again");
        three.reserve();
        assert!(two.is_alone());
        two.release();
        assert!(three.is_alone() && !three.waits_for_others());
        three.release();
        assert!(two.begin_attempt());
    }

    #[test]
    fn reservation_that_yields_shows_when_another_worker_has_a_job() {
        let [mut one, mut two] = members();
        assert!(two.begin_attempt());
        assert!(!one.try_reserve_idle(), "the other runs");
        two.end_attempts();
        assert!(one.try_reserve_idle() && one.is_alone() && !one.is_wanted());
        assert!(!two.try_reserve_idle());
        assert_eq!(two.claim_limit(), 1, "to see whether there is a job");
        assert!(!two.begin_attempt());
        assert!(one.is_wanted());
        assert_eq!(two.claim_limit(), 0, "until the reservation ends");
        one.release();
        assert!(two.begin_attempt());
    }
}
