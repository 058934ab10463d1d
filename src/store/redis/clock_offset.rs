//! Estimates the offset of the store's clock from ours.
//!
//! Every reply has a time that is past when it is read: by a little, or by seconds if replicas had to confirm the
//! write. Each sample is therefore too low, and the maximum of the recent samples is closest to the true offset.

use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};

use crate::clock::Micros;
use crate::sync::LockExt;

/// Length of the window over which the maximum is taken, before older samples are dropped.
const SAMPLE_WINDOW: Micros = 5_000_000;
/// Maximum delay of a reply. A lower sample means that the clock was set back, and counts at once.
const REPLY_DELAY_MAX: Micros = 15_000_000;

/// The estimated offset of the store's clock from ours.
#[derive(Default)]
pub(super) struct ClockOffset {
    offset: AtomicI64,
    samples: Mutex<Option<OffsetSamples>>,
}

/// The maximum since `window_start` of our clock, and the maximum of the previous window with a sample.
struct OffsetSamples {
    window_start: Micros,
    current_max: Micros,
    previous_max: Micros,
}

impl ClockOffset {
    /// Returns the offset. It is slightly low; too high only for a while after the store's clock was set back.
    pub(super) fn offset(&self) -> Micros {
        self.offset.load(Ordering::Relaxed)
    }

    /// Adds a sample: a reply with the time `store` was read at the time `ours`.
    pub(super) fn add_sample(&self, store: Micros, ours: Micros) {
        let sample = store - ours;
        let mut samples = self.samples.lock_unpoisoned();
        let next = match samples.take() {
            Some(samples) if sample < samples.current_max.max(samples.previous_max) - REPLY_DELAY_MAX => {
                OffsetSamples { window_start: ours, current_max: sample, previous_max: sample }
            }
            // Kept however old it is: a single reply after an idle period may be a late one.
            Some(samples) if ours - samples.window_start >= SAMPLE_WINDOW => {
                OffsetSamples { window_start: ours, current_max: sample, previous_max: samples.current_max }
            }
            Some(samples) => OffsetSamples { current_max: samples.current_max.max(sample), ..samples },
            None => OffsetSamples { window_start: ours, current_max: sample, previous_max: sample },
        };
        self.offset.store(next.current_max.max(next.previous_max), Ordering::Relaxed);
        *samples = Some(next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Micros = 1_000;
    const SECOND: Micros = 1_000_000;
    /// The true offset.
    const TRUE_OFFSET: Micros = 700 * SECOND;

    /// Adds a sample with this delay, and returns the error of the estimate.
    fn error_after_sample(estimate: &ClockOffset, truth: Micros, now: Micros, delay: Micros) -> Micros {
        estimate.add_sample(now + truth - delay, now);
        estimate.offset() - truth
    }

    #[test]
    fn late_reply_does_not_lower_the_offset() {
        let estimate = ClockOffset::default();
        assert_eq!(error_after_sample(&estimate, TRUE_OFFSET, 0, MS), -MS);
        assert_eq!(
            error_after_sample(&estimate, TRUE_OFFSET, SECOND, 800 * MS),
            -MS,
            "a push that replicas have confirmed"
        );
        assert_eq!(error_after_sample(&estimate, TRUE_OFFSET, 2 * SECOND, MS / 2), -MS / 2, "the best sample counts");
        // After a long idle period too: nothing shows yet that this reply is late.
        assert_eq!(error_after_sample(&estimate, TRUE_OFFSET, 3_600 * SECOND, 2_500 * MS), -MS / 2);
        assert_eq!(error_after_sample(&estimate, TRUE_OFFSET, 3_601 * SECOND, 2_500 * MS), -MS / 2);
    }

    #[test]
    fn offset_follows_a_changed_clock() {
        let estimate = ClockOffset::default();
        error_after_sample(&estimate, TRUE_OFFSET, 0, MS);
        assert_eq!(error_after_sample(&estimate, TRUE_OFFSET + 3 * SECOND, SECOND, MS), -MS, "forward at once");
        let lower_offset = TRUE_OFFSET + SECOND;
        let samples_needed = (0..=100)
            .find(|n| error_after_sample(&estimate, lower_offset, 2 * SECOND + n * 100 * MS, MS) == -MS)
            .expect("soon");
        assert!(samples_needed > 10, "a small step could be a late reply");
        assert_eq!(
            error_after_sample(&estimate, TRUE_OFFSET - 60 * SECOND, 60 * SECOND, MS),
            -MS,
            "a large step at once"
        );
    }
}
