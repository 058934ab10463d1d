//! The locks that clients hold through this server: whose they are, and how many each client may have.
//!
//! A hold lives in the store for up to a day, so without a limit a client could fill the store with locks. Only this
//! server counts: holds from before its start count from their next extension on.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use axum::http::StatusCode;
use duly::Clock;
use duly::admin::Role;
use duly::lock::LockOwner;

use crate::audit::AuditNote;
use crate::client_map::ClientMap;
use crate::identity::Identity;
use crate::problem::{Problem, Result};
use crate::sync::LockExt;

/// The most locks that one client holds or waits for at a time.
const HOLDS_PER_CLIENT_MAX: usize = 1_000;
/// The most of all clients.
const HOLDS_MAX: usize = 100_000;

/// The most extensions of other clients' holds that are remembered as recorded.
const RECORDED_EXTENSIONS_MAX: usize = 10_000;

/// The holds that clients have acquired on this server.
pub(crate) struct Holds {
    known: Mutex<KnownHolds>,
    /// Holds of other or unknown clients that an operator has extended: the audit records only the first extension.
    recorded_extensions: Mutex<ClientMap<LockOwner, ()>>,
}

impl Default for Holds {
    fn default() -> Self {
        let recorded_extensions = Mutex::new(ClientMap::new(RECORDED_EXTENSIONS_MAX));
        Holds { known: Mutex::default(), recorded_extensions }
    }
}

struct KnownHold {
    client: String,
    lock: String,
    /// When it has expired at the latest.
    until: Duration,
}

#[derive(Default)]
struct KnownHolds {
    by_owner: HashMap<LockOwner, KnownHold>,
    /// All of them, in the order in which they expire.
    expiries: BTreeSet<(Duration, LockOwner)>,
    /// The holds of each client, and its acquisitions in progress.
    counts: HashMap<String, usize>,
    total: usize,
}

impl Holds {
    fn known(&self) -> MutexGuard<'_, KnownHolds> {
        self.known.lock_unpoisoned()
    }

    /// Counts one more hold of this client; a 429 if it has too many, a 503 if all clients together do.
    pub(super) fn begin<'a>(&'a self, client: &'a str) -> Result<HoldReservation<'a>> {
        let mut known = self.known();
        known.remove_expired(now());
        if known.counts.get(client).copied().unwrap_or(0) >= HOLDS_PER_CLIENT_MAX {
            let detail = format!(
                "{client} holds or waits for {HOLDS_PER_CLIENT_MAX} locks; release some, let them expire, or use another \
                 token"
            );
            return Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, "too_many", detail).retry_after(1));
        }
        if known.total >= HOLDS_MAX {
            let detail = format!("the clients of this server hold {HOLDS_MAX} locks; try again when some have expired");
            return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "busy", detail).retry_after(1));
        }
        known.increment(client);
        Ok(HoldReservation { holds: self, client, counts: true })
    }

    /// Records that a hold lasts for `ttl` from now. If this server does not know it, it becomes one of the client; not
    /// of an operator, who may extend those of others. If the hold is released at the same time, it may count until
    /// `ttl` is over.
    pub(super) fn extend(&self, lock: &str, owner: LockOwner, ttl: Duration, identity: &Identity) {
        let mut known = self.known();
        let client = known.remove(owner).map(|hold| hold.client);
        let own = (identity.role < Role::Operator).then(|| identity.name.clone());
        if let Some(client) = client.or(own) {
            known.increment(&client);
            known.insert(owner, KnownHold { client, lock: lock.to_owned(), until: now() + ttl });
        }
    }

    /// Removes a hold of this lock that has ended.
    pub(super) fn remove(&self, lock: &str, owner: LockOwner) {
        let mut known = self.known();
        // The owner of another lock may still hold that one.
        if known.by_owner.get(&owner).is_some_and(|hold| hold.lock == lock) {
            known.remove(owner);
        }
    }

    /// Removes all holds of a lock that was broken.
    pub(crate) fn remove_all(&self, lock: &str) {
        let mut known = self.known();
        let of_lock = known.by_owner.iter().filter(|(_, hold)| hold.lock == lock);
        let owners: Vec<LockOwner> = of_lock.map(|(owner, _)| *owner).collect();
        owners.into_iter().for_each(|owner| drop(known.remove(owner)));
    }

    /// Notes for the audit log that an operator releases the hold of another client, or one that is not known.
    pub(super) fn note_foreign(&self, owner: LockOwner, identity: &Identity, note: &AuditNote) {
        if self.is_foreign(owner, identity) {
            note.record();
        }
    }

    /// Returns whether an operator extends the hold of another client, or one that is not known, and the audit log has
    /// no entry for that yet.
    pub(super) fn is_unrecorded_extension(&self, owner: LockOwner, identity: &Identity) -> bool {
        self.is_foreign(owner, identity)
            && self.recorded_extensions.lock_unpoisoned().get(&identity.name, &owner).is_none()
    }

    /// Remembers that the audit log has an entry for this operator's extension of the hold.
    pub(super) fn set_extension_recorded(&self, owner: LockOwner, identity: &Identity) {
        self.recorded_extensions.lock_unpoisoned().insert(&identity.name, owner, ());
    }

    fn is_foreign(&self, owner: LockOwner, identity: &Identity) -> bool {
        identity.role >= Role::Operator
            && self.known().by_owner.get(&owner).is_none_or(|hold| hold.client != identity.name)
    }
}

fn now() -> Duration {
    Clock::system().monotonic()
}

impl KnownHolds {
    fn increment(&mut self, client: &str) {
        self.total += 1;
        *self.counts.entry(client.to_owned()).or_default() += 1;
    }

    fn decrement(&mut self, client: &str) {
        self.total -= 1;
        match self.counts.get_mut(client) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(self.counts.remove(client)),
        }
    }

    /// Adds a hold that is counted already.
    fn insert(&mut self, owner: LockOwner, hold: KnownHold) {
        self.expiries.insert((hold.until, owner));
        self.by_owner.insert(owner, hold);
    }

    fn remove(&mut self, owner: LockOwner) -> Option<KnownHold> {
        let hold = self.by_owner.remove(&owner)?;
        self.expiries.remove(&(hold.until, owner));
        self.decrement(&hold.client);
        Some(hold)
    }

    fn remove_expired(&mut self, now: Duration) {
        while let Some((until, owner)) = self.expiries.first().copied()
            && until <= now
        {
            self.remove(owner);
        }
    }
}

/// An acquisition in progress, which counts until it is dropped.
pub(super) struct HoldReservation<'a> {
    holds: &'a Holds,
    client: &'a str,
    counts: bool,
}

impl HoldReservation<'_> {
    /// Records that the client has acquired the lock.
    pub(super) fn confirm(mut self, lock: &str, owner: LockOwner, ttl: Duration) {
        let (client, lock) = (self.client.to_owned(), lock.to_owned());
        self.holds.known().insert(owner, KnownHold { client, lock, until: now() + ttl });
        self.counts = false;
    }
}

impl Drop for HoldReservation<'_> {
    fn drop(&mut self) {
        if self.counts {
            self.holds.known().decrement(self.client);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(3600);

    fn owner(number: usize) -> LockOwner {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&number.to_be_bytes());
        LockOwner::from_bytes(bytes)
    }

    fn acquire(holds: &Holds, client: &str, number: usize, ttl: Duration) -> Result<()> {
        holds.begin(client).map(|reservation| reservation.confirm("deploy", owner(number), ttl))
    }

    #[test]
    fn locks_of_one_client_are_bounded_and_ended_ones_do_not_count() {
        let holds = Holds::default();
        (1..HOLDS_PER_CLIENT_MAX).for_each(|number| acquire(&holds, "ada", number, TTL).expect("fits"));
        let waiting = holds.begin("ada").expect("fits");
        assert_eq!(acquire(&holds, "ada", 0, TTL).expect_err("too many").code, "too_many");
        acquire(&holds, "bob", HOLDS_PER_CLIENT_MAX, TTL).expect("another client has its own limit");
        drop(waiting);
        acquire(&holds, "ada", 0, TTL).expect("the lock was not acquired");

        holds.remove("other", owner(1));
        assert!(holds.begin("ada").is_err(), "the hold is one of another lock");
        holds.remove("deploy", owner(1));
        acquire(&holds, "ada", 1, Duration::ZERO).expect("one was released");
        acquire(&holds, "ada", 1, TTL).expect("it has expired");
        let ada = Identity::new("ada", Role::Pusher);
        holds.extend("deploy", owner(1), Duration::ZERO, &ada);
        drop(holds.begin("ada").expect("an extension may be shorter"));
        holds.remove_all("deploy");
        let known = holds.known();
        assert!(known.counts.is_empty() && known.expiries.is_empty() && known.total == 0, "nothing is left over");
    }

    #[test]
    fn extension_counts_a_hold_from_before_the_start_of_the_server() {
        let holds = Holds::default();
        for role in [Role::Operator, Role::Pusher] {
            holds.extend("deploy", owner(7), TTL, &Identity::new(role.to_string(), role));
        }
        assert_eq!(holds.known().counts, HashMap::from([(Role::Pusher.to_string(), 1)]));
    }
}
