//! How far the store's clock is ahead of ours, as its answers tell.
//!
//! Every answer names a moment that is past by the time it is read: by a little, or by seconds if replicas had to confirm it.
//! So each tells too little, and the greatest of the last ones is the nearest to the truth.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::clock::Micros;

/// How long the greatest of what was told is looked for, before what was told earlier is forgotten.
const WINDOW: Micros = 5_000_000;
/// No answer is so late: the clock was set back, which is followed at once.
const LATE_MAX: Micros = 15_000_000;

/// How far the store's clock is ahead of ours.
#[derive(Default)]
pub(super) struct Ahead {
    known: AtomicI64,
    told: Mutex<Option<Told>>,
}

/// The greatest that was told since a moment of our clock, and in the time before in which anything was told.
struct Told {
    since: Micros,
    now: Micros,
    before: Micros,
}

impl Ahead {
    /// A little less than the truth; never more, except for a while after the clock was set back.
    pub(super) fn known(&self) -> Micros {
        self.known.load(Ordering::Relaxed)
    }

    /// An answer that says `store` was read when our clock said `ours`.
    pub(super) fn tell(&self, store: Micros, ours: Micros) {
        let ahead = store - ours;
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let next = match told.take() {
            Some(told) if ahead < told.now.max(told.before) - LATE_MAX => {
                Told { since: ours, now: ahead, before: ahead }
            }
            // However long ago that was: one answer after a silence may be a late one.
            Some(told) if ours - told.since >= WINDOW => Told { since: ours, now: ahead, before: told.now },
            Some(told) => Told { now: told.now.max(ahead), ..told },
            None => Told { since: ours, now: ahead, before: ahead },
        };
        self.known.store(next.now.max(next.before), Ordering::Relaxed);
        *told = Some(next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Micros = 1_000;
    const SECOND: Micros = 1_000_000;
    /// How far the store's clock is ahead in truth.
    const TRUTH: Micros = 700 * SECOND;

    /// An answer that is read at this moment of our clock, and is so late.
    fn answer(ahead: &Ahead, truth: Micros, at: Micros, late: Micros) -> Micros {
        ahead.tell(at + truth - late, at);
        ahead.known() - truth
    }

    #[test]
    fn a_late_answer_does_not_set_the_time_back() {
        let ahead = Ahead::default();
        assert_eq!(answer(&ahead, TRUTH, 0, MS), -MS);
        assert_eq!(answer(&ahead, TRUTH, SECOND, 800 * MS), -MS, "a push that replicas have confirmed");
        assert_eq!(answer(&ahead, TRUTH, 2 * SECOND, MS / 2), -MS / 2, "the nearest counts");
        // After a long silence, too: nobody knows yet that this one is late.
        assert_eq!(answer(&ahead, TRUTH, 3_600 * SECOND, 2_500 * MS), -MS / 2);
        assert_eq!(answer(&ahead, TRUTH, 3_601 * SECOND, 2_500 * MS), -MS / 2);
    }

    #[test]
    fn a_clock_that_is_set_is_followed() {
        let ahead = Ahead::default();
        answer(&ahead, TRUTH, 0, MS);
        assert_eq!(answer(&ahead, TRUTH + 3 * SECOND, SECOND, MS), -MS, "forward at once");
        let back = TRUTH + SECOND;
        let within = (0..=100).find(|n| answer(&ahead, back, 2 * SECOND + n * 100 * MS, MS) == -MS).expect("soon");
        assert!(within > 10, "a little could be a late answer");
        assert_eq!(answer(&ahead, TRUTH - 60 * SECOND, 60 * SECOND, MS), -MS, "by much at once");
    }
}
