//! The keys of the queues that this process has to do with.

use std::collections::HashMap;
use std::sync::Arc;

use crate::store::redis::keys::QueueKeys;

/// Most queues that are known only because somebody has looked at them: anybody can look at one that is not there.
const LOOKED_AT_MAX: usize = 1_000;

/// Keys are spelled once, and go with what is known of their queue.
#[derive(Default)]
pub(super) struct Keyring {
    /// Queues that are pushed to or worked here. There are as many as somebody has made.
    ours: HashMap<String, Arc<QueueKeys>>,
    /// All others, while there is room.
    looked_at: HashMap<String, Arc<QueueKeys>>,
}

impl Keyring {
    /// The keys of a queue, which is `ours` or is only looked at.
    pub(super) fn of(&mut self, queue: &str, ours: bool, make: impl FnOnce() -> QueueKeys) -> Arc<QueueKeys> {
        if let Some(keys) = self.ours.get(queue) {
            return keys.clone();
        }
        if ours {
            let keys = self.looked_at.remove(queue).unwrap_or_else(|| Arc::new(make()));
            self.ours.insert(queue.to_owned(), keys.clone());
            return keys;
        }
        if let Some(keys) = self.looked_at.get(queue) {
            return keys.clone();
        }
        // Spelling them again costs little; to look for the one that was used least would cost more.
        if self.looked_at.len() >= LOOKED_AT_MAX {
            self.looked_at.clear();
        }
        let keys = Arc::new(make());
        self.looked_at.insert(queue.to_owned(), keys.clone());
        keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_at_queues_that_are_not_there_fill_nothing() {
        let mut ring = Keyring::default();
        let mut of = |queue: &str, ours| ring.of(queue, ours, || QueueKeys::new("duly", queue, true));
        let looked = of("mail", false);
        let mail = of("mail", true);
        assert!(Arc::ptr_eq(&looked, &mail), "what is known of it stays");
        (0..3 * LOOKED_AT_MAX).for_each(|n| drop(of(&format!("q{n}"), false)));
        assert!(Arc::ptr_eq(&of("mail", false), &mail));
        let (last, same) = (of("last", false), of("last", false));
        assert!(Arc::ptr_eq(&last, &same));
        assert!(ring.looked_at.len() <= LOOKED_AT_MAX && ring.ours.len() == 1);
    }
}
