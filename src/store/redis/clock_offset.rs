//! How far the store's clock is ahead of ours, as its answers tell.
//!
//! Every answer names a moment that is past by the time it is read: by a little, or by seconds if replicas had to confirm it.
//! So each tells too little, and the greatest of the last ones is the nearest to the truth.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::clock::Micros;

/// How long the greatest of what was told is looked for, before what was told earlier is forgotten.
const SAMPLE_WINDOW: Micros = 5_000_000;
/// No answer is so late: the clock was set back, which is followed at once.
const REPLY_DELAY_MAX: Micros = 15_000_000;

/// How far the store's clock is ahead of ours.
#[derive(Default)]
pub(super) struct ClockOffset {
    offset: AtomicI64,
    samples: Mutex<Option<OffsetSamples>>,
}

/// The greatest that was told since a moment of our clock, and in the time before in which anything was told.
struct OffsetSamples {
    window_start: Micros,
    current_max: Micros,
    previous_max: Micros,
}

impl ClockOffset {
    /// A little less than the truth; never more, except for a while after the clock was set back.
    pub(super) fn offset(&self) -> Micros {
        self.offset.load(Ordering::Relaxed)
    }

    /// An answer that says `store` was read when our clock said `ours`.
    pub(super) fn add_sample(&self, store: Micros, ours: Micros) {
        let ahead = store - ours;
        let mut told = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        let next = match told.take() {
            Some(told) if ahead < told.current_max.max(told.previous_max) - REPLY_DELAY_MAX => {
                OffsetSamples { window_start: ours, current_max: ahead, previous_max: ahead }
            }
            // However long ago that was: one answer after a silence may be a late one.
            Some(told) if ours - told.window_start >= SAMPLE_WINDOW => {
                OffsetSamples { window_start: ours, current_max: ahead, previous_max: told.current_max }
            }
            Some(told) => OffsetSamples { current_max: told.current_max.max(ahead), ..told },
            None => OffsetSamples { window_start: ours, current_max: ahead, previous_max: ahead },
        };
        self.offset.store(next.current_max.max(next.previous_max), Ordering::Relaxed);
        *told = Some(next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Micros = 1_000;
    const SECOND: Micros = 1_000_000;
    /// How far the store's clock is ahead in truth.
    const TRUE_OFFSET: Micros = 700 * SECOND;

    /// An answer that is read at this moment of our clock, and is so late.
    fn error_after_sample(ahead: &ClockOffset, truth: Micros, at: Micros, late: Micros) -> Micros {
        ahead.add_sample(at + truth - late, at);
        ahead.offset() - truth
    }

    #[test]
    fn late_reply_does_not_lower_the_offset() {
        let ahead = ClockOffset::default();
        assert_eq!(error_after_sample(&ahead, TRUE_OFFSET, 0, MS), -MS);
        assert_eq!(
            error_after_sample(&ahead, TRUE_OFFSET, SECOND, 800 * MS),
            -MS,
            "a push that replicas have confirmed"
        );
        assert_eq!(error_after_sample(&ahead, TRUE_OFFSET, 2 * SECOND, MS / 2), -MS / 2, "the nearest counts");
        // After a long silence, too: nobody knows yet that this one is late.
        assert_eq!(error_after_sample(&ahead, TRUE_OFFSET, 3_600 * SECOND, 2_500 * MS), -MS / 2);
        assert_eq!(error_after_sample(&ahead, TRUE_OFFSET, 3_601 * SECOND, 2_500 * MS), -MS / 2);
    }

    #[test]
    fn offset_follows_a_changed_clock() {
        let ahead = ClockOffset::default();
        error_after_sample(&ahead, TRUE_OFFSET, 0, MS);
        assert_eq!(error_after_sample(&ahead, TRUE_OFFSET + 3 * SECOND, SECOND, MS), -MS, "forward at once");
        let back = TRUE_OFFSET + SECOND;
        let within =
            (0..=100).find(|n| error_after_sample(&ahead, back, 2 * SECOND + n * 100 * MS, MS) == -MS).expect("soon");
        assert!(within > 10, "a little could be a late answer");
        assert_eq!(error_after_sample(&ahead, TRUE_OFFSET - 60 * SECOND, 60 * SECOND, MS), -MS, "by much at once");
    }
}
