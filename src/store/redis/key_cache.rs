//! The keys of the queues that this process has to do with.

use std::collections::HashMap;
use std::sync::Arc;

use crate::store::redis::keys::QueueKeys;

/// Most queues that are known only because somebody has looked at them: anybody can look at one that is not there.
const QUERIED_QUEUES_MAX: usize = 1_000;

/// Keys are spelled once, and go with what is known of their queue.
#[derive(Default)]
pub(super) struct KeyCache {
    /// Queues that are pushed to or worked here. There are as many as somebody has made.
    active: HashMap<String, Arc<QueueKeys>>,
    /// All others, while there is room.
    queried: HashMap<String, Arc<QueueKeys>>,
}

impl KeyCache {
    /// The keys of a queue, which is `ours` or is only looked at.
    pub(super) fn get_or_insert(
        &mut self,
        queue: &str,
        ours: bool,
        make: impl FnOnce() -> QueueKeys,
    ) -> Arc<QueueKeys> {
        if let Some(keys) = self.active.get(queue) {
            return keys.clone();
        }
        if ours {
            let keys = self.queried.remove(queue).unwrap_or_else(|| Arc::new(make()));
            self.active.insert(queue.to_owned(), keys.clone());
            return keys;
        }
        if let Some(keys) = self.queried.get(queue) {
            return keys.clone();
        }
        // Spelling them again costs little; to look for the one that was used least would cost more.
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
        let mut ring = KeyCache::default();
        let mut of = |queue: &str, ours| ring.get_or_insert(queue, ours, || QueueKeys::new("duly", queue, true));
        let looked = of("mail", false);
        let mail = of("mail", true);
        assert!(Arc::ptr_eq(&looked, &mail), "what is known of it stays");
        (0..3 * QUERIED_QUEUES_MAX).for_each(|n| drop(of(&format!("q{n}"), false)));
        assert!(Arc::ptr_eq(&of("mail", false), &mail));
        let (last, same) = (of("last", false), of("last", false));
        assert!(Arc::ptr_eq(&last, &same));
        assert!(ring.queried.len() <= QUERIED_QUEUES_MAX && ring.active.len() == 1);
    }
}
