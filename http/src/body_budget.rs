//! A common bound on the bytes of request bodies in memory, with a share for each client.
//!
//! The first bytes of each body are free: the number of connections bounds them, and small requests, such as heartbeats,
//! must not fail because of large ones. Beyond that, a client may have at most as many bytes as are left, so that large
//! requests of a few clients leave room for those of others.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::http::StatusCode;

use super::json::BULK_BYTES_MAX;
use super::problem::{Problem, Result};

use crate::sync::LockExt;

/// The most bytes of all bodies at a time.
const BYTES_MAX: usize = 4 * BULK_BYTES_MAX;
/// The first bytes of each body, which do not count.
const FREE_BYTES: usize = 64 * 1024;

/// The bytes of bodies in memory.
#[derive(Default)]
pub(crate) struct BodyBudget(Mutex<UsedBytes>);

#[derive(Default)]
struct UsedBytes {
    total: usize,
    by_client: HashMap<String, usize>,
}

impl BodyBudget {
    /// Returns the share of a request. Its bytes count until it is dropped.
    pub(crate) fn share(self: &Arc<Self>, client: &str) -> Arc<BodyShare> {
        Arc::new(BodyShare { budget: self.clone(), client: client.to_owned(), bytes: AtomicUsize::new(0) })
    }
}

/// The bytes of one request's body.
pub(crate) struct BodyShare {
    budget: Arc<BodyBudget>,
    client: String,
    /// The bytes that have arrived.
    bytes: AtomicUsize,
}

/// Returns how many of the bytes of a body count.
fn counted(bytes: usize) -> usize {
    bytes.saturating_sub(FREE_BYTES)
}

impl BodyShare {
    /// Adds bytes that have arrived; a 503 if there are too many in memory, a 429 if most are of this client.
    pub(crate) fn add(&self, bytes: usize) -> Result<()> {
        let mut used = self.budget.0.lock_unpoisoned();
        // The lock above serialises all changes.
        let before = self.bytes.load(Ordering::Relaxed);
        let added = counted(before + bytes) - counted(before);
        let own = used.by_client.get(&self.client).copied().unwrap_or(0);
        if added > 0 && own + added > BYTES_MAX.saturating_sub(used.total + added) {
            return Err(match own > used.total / 2 {
                true => {
                    let detail = format!(
                        "{own} bytes of this client's requests are in progress; wait until some of them have ended"
                    );
                    Problem::new(StatusCode::TOO_MANY_REQUESTS, "too_many", detail).retry_after(1)
                }
                false => {
                    let detail = "the server is busy with other large requests; nothing was changed, try again";
                    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "busy", detail).retry_after(1)
                }
            });
        }
        self.bytes.store(before + bytes, Ordering::Relaxed);
        if added > 0 {
            used.total += added;
            *used.by_client.entry(self.client.clone()).or_default() += added;
        }
        Ok(())
    }
}

impl Drop for BodyShare {
    fn drop(&mut self) {
        let bytes = counted(self.bytes.load(Ordering::Relaxed));
        if bytes == 0 {
            return;
        }
        let mut used = self.budget.0.lock_unpoisoned();
        used.total -= bytes;
        match used.by_client.get_mut(&self.client) {
            Some(own) if *own > bytes => *own -= bytes,
            _ => drop(used.by_client.remove(&self.client)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_bounded_by_client_and_in_all() {
        let budget = Arc::new(BodyBudget::default());
        let (first, second) = (budget.share("ada"), budget.share("ada"));
        first.add(BULK_BYTES_MAX).expect("fits");
        second.add(BULK_BYTES_MAX).expect("fits");
        assert_eq!(second.add(4 * FREE_BYTES).expect_err("half of all").code, "too_many");
        let (other, large) = (budget.share("bob"), BULK_BYTES_MAX / 2);
        other.add(large).expect("another client has its own share");
        assert_eq!(other.add(large + 4 * FREE_BYTES).expect_err("more than is left").code, "busy");
        budget.share("eve").add(large / 2).expect("and a third one");
        drop(first);
        other.add(large / 2).expect("there is room again");
        drop((second, other));
        let used = budget.0.lock().expect("no panic");
        assert!(used.total == 0 && used.by_client.is_empty());
    }

    #[test]
    fn small_bodies_are_accepted_beside_large_ones() {
        let budget = Arc::new(BodyBudget::default());
        let mut large = Vec::new();
        for client in ["ada", "bob", "eve", "joe", "sue", "tim"] {
            let share = budget.share(client);
            while share.add(FREE_BYTES).is_ok() {}
            large.push(share);
        }
        for client in ["ada", "new"] {
            let small = budget.share(client);
            small.add(FREE_BYTES / 2).and_then(|()| small.add(FREE_BYTES / 2)).expect("a settle or a heartbeat");
        }
        budget.share("new").add(2 * FREE_BYTES).expect("more of a client that has nothing in progress");
    }
}
