//! Caches the keys of the queues that this process uses.

use std::collections::HashMap;
use std::sync::Arc;

use crate::store::redis::keys::QueueKeys;

/// Maximum cached queues that were only queried: a client can query queues that do not exist.
const QUERIED_QUEUES_MAX: usize = 1_000;

/// The keys of each queue, with the state that this process keeps per queue.
#[derive(Default)]
pub(super) struct KeyCache {
    /// Queues that this process pushes to or works on; bounded by the number of queues.
    active: HashMap<String, Arc<QueueKeys>>,
    /// Queues that were only queried.
    queried: HashMap<String, Arc<QueueKeys>>,
}

impl KeyCache {
    /// Returns the keys of a queue; `is_active` marks a queue that this process pushes to or works on.
    pub(super) fn get_or_insert(
        &mut self,
        queue: &str,
        is_active: bool,
        make: impl FnOnce() -> QueueKeys,
    ) -> Arc<QueueKeys> {
        if let Some(keys) = self.active.get(queue) {
            return keys.clone();
        }
        if is_active {
            let keys = self.queried.remove(queue).unwrap_or_else(|| Arc::new(make()));
            self.active.insert(queue.to_owned(), keys.clone());
            return keys;
        }
        if let Some(keys) = self.queried.get(queue) {
            return keys.clone();
        }
        // Building keys again is cheap; tracking the least recently used queue would cost more.
        if self.queried.len() >= QUERIED_QUEUES_MAX {
            self.queried.clear();
        }
        let keys = Arc::new(make());
        self.queried.insert(queue.to_owned(), keys.clone());
        keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queried_queues_are_bounded_and_active_ones_stay() {
        let mut cache = KeyCache::default();
        let mut keys_of =
            |queue: &str, is_active| cache.get_or_insert(queue, is_active, || QueueKeys::new("duly", queue, true));
        let queried = keys_of("mail", false);
        let mail = keys_of("mail", true);
        assert!(Arc::ptr_eq(&queried, &mail), "its cached state stays");
        (0..3 * QUERIED_QUEUES_MAX).for_each(|n| drop(keys_of(&format!("q{n}"), false)));
        assert!(Arc::ptr_eq(&keys_of("mail", false), &mail));
        let (last, same) = (keys_of("last", false), keys_of("last", false));
        assert!(Arc::ptr_eq(&last, &same));
        assert!(cache.queried.len() <= QUERIED_QUEUES_MAX && cache.active.len() == 1);
    }
}
