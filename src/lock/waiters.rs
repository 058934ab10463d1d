//! Waiting for locks: a place in a line of the store, and somebody here who is told when it is its turn.
//!
//! Who wants a lock asks for it once itself, which is fastest if it is free. From then on, or from the first turn that comes
//! for it, the hall's own thread asks: a future that nobody polls must not hold up the line. What is got for it there is not
//! extended before it is picked up, so it ends by itself if that never happens.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::error::{Error, Result};
use crate::lock::backoff;
use crate::lock::renewal::HeldLock;
use crate::peers::{Hall, Inner};
use crate::store::{LockAsk, LockTaken, Owner, WAITS_MAX};

/// A hold that ends at a moment has ended a little later.
const AFTER_END: Duration = Duration::from_millis(1);
/// How long at most until the first in line looks, however long the hold may last.
const LOOK_MAX: Duration = Duration::from_secs(30);
/// How long the answer to an ask may be under way: whoever gives up before it has come must say so once more after it.
const UNDER_WAY_MAX: Duration = Duration::from_secs(10);

/// Somebody here who wants a lock.
struct Waiting {
    ask: LockAsk,
    /// What was got for it, until it is picked up.
    got: Mutex<Option<Result<Arc<HeldLock>>>>,
    got_it: Notify,
    /// It may be its turn.
    nudge: Notify,
    /// The first in line will look by itself when the hold ends.
    armed: AtomicBool,
    /// The store has answered that it stands in line.
    stands: AtomicBool,
    /// The hall's thread asks for it from now on, or nobody needs to any more.
    handed_over: AtomicBool,
    /// It is in the hands of who wanted it.
    picked_up: AtomicBool,
    /// Why the store has not answered, if it did not the last time.
    trouble: Mutex<Option<String>>,
    /// Nobody waits any more.
    over: CancellationToken,
}

impl Waiting {
    fn got(&self) -> MutexGuard<'_, Option<Result<Arc<HeldLock>>>> {
        self.got.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn trouble(&self) -> MutexGuard<'_, Option<String>> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When to look although nobody says so: only the first in line does, when the hold ends.
    fn look_after(&self, taken: &LockTaken) -> Option<Duration> {
        let after = taken.ends.map(|ends| ends + AFTER_END).filter(|_| taken.ahead == 0);
        self.armed.store(after.is_some(), Ordering::SeqCst);
        self.stands.store(true, Ordering::SeqCst);
        after
    }
}

/// All who wait here.
#[derive(Default)]
pub(crate) struct Line {
    waiting: Mutex<HashMap<Owner, Arc<Waiting>>>,
}

impl Line {
    fn waiting(&self) -> MutexGuard<'_, HashMap<Owner, Arc<Waiting>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The locks that are waited for; if they are too many to ask after at once, some of them.
    pub(crate) fn names(&self) -> Vec<String> {
        let waiting = self.waiting();
        let names: BTreeSet<&str> = waiting.values().map(|waiting| waiting.ask.name.as_str()).collect();
        let skip = if names.len() > WAITS_MAX { fastrand::usize(..names.len()) } else { 0 };
        names.iter().cycle().skip(skip).take(names.len().min(WAITS_MAX)).map(|name| (*name).to_owned()).collect()
    }

    /// Who should have a place in which line; if they are too many to ask after at once, some of them.
    pub(crate) fn places(&self) -> Vec<(String, Owner)> {
        let waiting = self.waiting();
        let skip = if waiting.len() > WAITS_MAX { fastrand::usize(..waiting.len()) } else { 0 };
        // In one order, so that each has its turn.
        let all: BTreeMap<Owner, &Arc<Waiting>> = waiting
            .iter()
            .filter(|(_, one)| one.stands.load(Ordering::SeqCst))
            .map(|(owner, one)| (*owner, one))
            .collect();
        let some = all.iter().cycle().skip(skip).take(all.len().min(WAITS_MAX));
        some.map(|(owner, one)| (one.ask.name.clone(), *owner)).collect()
    }

    /// Something may have been missed: all look.
    pub(crate) fn nudge_all(&self) {
        self.waiting().values().for_each(|waiting| waiting.nudge.notify_one());
    }

    /// All who wait for this lock look.
    pub(crate) fn nudge_all_of(&self, name: &str) {
        let waiting = self.waiting();
        waiting.values().filter(|waiting| waiting.ask.name == name).for_each(|waiting| waiting.nudge.notify_one());
    }

    /// It may be this owner's turn, or will be in so long. Answers who waits here, if it is one of ours.
    fn nudge(&self, owner: Owner, ends: Duration) -> Option<Arc<Waiting>> {
        let waiting = self.waiting().get(&owner).cloned()?;
        if ends.is_zero() || !waiting.armed.load(Ordering::SeqCst) {
            waiting.nudge.notify_one();
        }
        Some(waiting)
    }
}

/// The wish for a lock; dropped, whatever it has got so far is given up.
pub(crate) struct Waiter {
    hall: Arc<Hall>,
    waiting: Arc<Waiting>,
    /// The store has answered what was asked here: nothing of it is under way.
    answered: AtomicBool,
}

impl Hall {
    pub(crate) fn wait_for(self: &Arc<Self>, ask: LockAsk) -> Waiter {
        let waiting = Arc::new(Waiting {
            ask,
            got: Mutex::default(),
            got_it: Notify::new(),
            nudge: Notify::new(),
            armed: AtomicBool::new(false),
            stands: AtomicBool::new(false),
            handed_over: AtomicBool::new(false),
            picked_up: AtomicBool::new(false),
            trouble: Mutex::default(),
            over: CancellationToken::new(),
        });
        if waiting.ask.wait {
            // Before it is asked for, so that a turn that comes at once is not missed.
            self.inner.line.waiting().insert(waiting.ask.owner, waiting.clone());
        }
        Waiter { hall: self.clone(), waiting, answered: AtomicBool::new(false) }
    }
}

impl Waiter {
    /// Asks for the first time, and again if the answer was lost or the store did not answer.
    pub(crate) async fn first(&self) -> Result<Option<Arc<HeldLock>>> {
        let (inner, waiting) = (&self.hall.inner, &self.waiting);
        let mut failures = 0;
        loop {
            let asked = inner.clock.since_boot();
            match inner.store.lock(&waiting.ask).await {
                Ok(taken) => {
                    let held =
                        taken.hold.map(|hold| HeldLock::new(waiting.ask.clone(), hold, inner.clock.clone(), asked));
                    // The answer took longer than the hold lasts: somebody else may have it by now.
                    if held.as_ref().is_some_and(|held| held.is_over()) {
                        if !waiting.ask.wait {
                            return Err(too_late(&waiting.ask));
                        }
                        failures += 1;
                        tokio::time::sleep(backoff(failures)).await;
                        continue;
                    }
                    self.answered.store(true, Ordering::SeqCst);
                    *waiting.trouble() = None;
                    return Ok(self.settle(held, &taken));
                }
                // Who does not want to wait for the lock does not wait for the store either.
                Err(error) if !error.is_retryable() || !waiting.ask.wait => return Err(error),
                Err(error) => {
                    tracing::warn!(lock = waiting.ask.name, %error, "not answered; asked again");
                    *waiting.trouble() = Some(error.to_string());
                    failures += 1;
                    tokio::time::sleep(backoff(failures)).await;
                }
            }
        }
    }

    /// Why nobody knows how the lock stands, if the store did not answer when it was last asked.
    pub(crate) fn trouble(&self) -> Option<String> {
        let asked_once = self.answered.load(Ordering::SeqCst) || self.waiting.handed_over.load(Ordering::SeqCst);
        let never = (!asked_once).then(|| "it has not said anything yet".to_owned());
        self.waiting.trouble().clone().or(never)
    }

    /// Resolves when it is held, or will never be.
    pub(crate) async fn turn(&self) -> Result<Arc<HeldLock>> {
        loop {
            let got_it = self.waiting.got_it.notified();
            // One that nobody picked up in time stays: it is given up and asked for anew by who got it.
            let got = self.waiting.got().take_if(|got| !got.as_ref().is_ok_and(|held| held.is_over()));
            match got {
                Some(Ok(held)) => return Ok(self.held(held)),
                Some(Err(error)) => return Err(error),
                None => {}
            }
            got_it.await;
        }
    }

    /// What follows from the first answer. From here on one asks: who wanted it has it, or the hall's thread asks for it.
    fn settle(&self, held: Option<Arc<HeldLock>>, taken: &LockTaken) -> Option<Arc<HeldLock>> {
        let waiting = &self.waiting;
        if waiting.handed_over.swap(true, Ordering::SeqCst) {
            // A turn came before the answer, and the hall's thread asks: it finds the same hold if it looks once more.
            if held.is_some() {
                waiting.nudge.notify_one();
            }
            return None;
        }
        match held {
            Some(held) => return Some(self.held(held)),
            None if waiting.ask.wait => self.hall.inner.take_over(waiting, waiting.look_after(taken)),
            None => self.done(),
        }
        None
    }

    /// It is held. It is guarded before it leaves the line: a turn that comes late must find somebody who wants it,
    /// or it would be given up as nobody's.
    fn held(&self, held: Arc<HeldLock>) -> Arc<HeldLock> {
        self.hall.guard(held.clone());
        self.done();
        held
    }

    /// It is held, or was only asked for once.
    fn done(&self) {
        self.waiting.picked_up.store(true, Ordering::SeqCst);
        self.hall.inner.line.waiting().remove(&self.waiting.ask.owner);
        self.waiting.over.cancel();
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if self.waiting.picked_up.load(Ordering::SeqCst) {
            return;
        }
        self.hall.inner.line.waiting().remove(&self.waiting.ask.owner);
        // If the hall's thread asks for it, it gives it up: an ask of its own must not be overtaken.
        self.waiting.over.cancel();
        if self.answered.load(Ordering::SeqCst) {
            return;
        }
        let (inner, ask) = (self.hall.inner.clone(), self.waiting.ask.clone());
        self.hall.spawn(async move {
            inner.give_up(&ask).await;
            if inner.stop.run_until_cancelled(tokio::time::sleep(UNDER_WAY_MAX)).await.is_some() {
                inner.give_up(&ask).await;
            }
        });
    }
}

impl Inner {
    /// It may be this owner's turn, or will be in so long. Answers whether it waits here.
    pub(crate) fn nudge(self: &Arc<Self>, owner: Owner, ends: Duration) -> bool {
        let Some(waiting) = self.line.nudge(owner, ends) else {
            return false;
        };
        // Who wants it has asked, and may not be polled for long: those behind it do not wait for that.
        if !waiting.handed_over.swap(true, Ordering::SeqCst) {
            self.take_over(&waiting, Some(Duration::ZERO));
        }
        true
    }

    /// From now on the hall's thread asks.
    fn take_over(self: &Arc<Self>, waiting: &Arc<Waiting>, look_after: Option<Duration>) {
        let (inner, waiting) = (self.clone(), waiting.clone());
        self.spawn(async move { inner.wait(&waiting, look_after).await });
    }

    /// Asks for a lock whenever it may be its turn, until nobody waits for it any more.
    async fn wait(&self, waiting: &Waiting, mut look_after: Option<Duration>) {
        let mut failures = 0;
        loop {
            tokio::select! {
                () = waiting.nudge.notified() => {}
                () = sleep(look_after) => {}
                () = waiting.over.cancelled() => return self.not_wanted(waiting).await,
            }
            let asked = self.clock.since_boot();
            match self.store.lock(&waiting.ask).await {
                Ok(LockTaken { hold: Some(hold), .. }) => {
                    let held = HeldLock::new(waiting.ask.clone(), hold, self.clock.clone(), asked);
                    let left = held.left();
                    waiting.stands.store(false, Ordering::SeqCst);
                    *waiting.got() = Some(Ok(held));
                    waiting.got_it.notify_one();
                    tokio::select! {
                        () = waiting.over.cancelled() => return self.not_wanted(waiting).await,
                        () = tokio::time::sleep(left) => {}
                    }
                    // Picked up in the last moment, and a guard's by now.
                    if waiting.got().take().is_none() {
                        return;
                    }
                    // Nobody has picked it up: the next in line gets it, and this one goes to the end.
                    self.give_up(&waiting.ask).await;
                    look_after = Some(Duration::ZERO);
                }
                Ok(taken) => {
                    failures = 0;
                    *waiting.trouble() = None;
                    look_after = waiting.look_after(&taken);
                }
                Err(error) if !error.is_retryable() => {
                    *waiting.got() = Some(Err(error));
                    waiting.got_it.notify_one();
                    waiting.over.cancelled().await;
                    return self.not_wanted(waiting).await;
                }
                Err(error) => {
                    tracing::debug!(lock = waiting.ask.name, %error, "not answered; asked again");
                    *waiting.trouble() = Some(error.to_string());
                    failures += 1;
                    look_after = Some(backoff(failures));
                }
            }
        }
    }

    /// Nobody waits any more: because it was picked up, or because it was given up.
    async fn not_wanted(&self, waiting: &Waiting) {
        if !waiting.picked_up.load(Ordering::SeqCst) {
            self.give_up(&waiting.ask).await;
        }
    }
}

fn too_late(ask: &LockAsk) -> Error {
    let reason = format!("the store took longer to answer than {} lasts ({:?})", ask.name, ask.ttl);
    Error::Timeout { op: "lock", reason }
}

/// Until it is time to look; for ever if nobody knows when: then it is told, and signs of life find a place that is gone.
/// So most of those who wait hold no timer.
async fn sleep(time: Option<Duration>) {
    match time {
        Some(time) => tokio::time::sleep(time.min(LOOK_MAX)).await,
        None => std::future::pending().await,
    }
}
