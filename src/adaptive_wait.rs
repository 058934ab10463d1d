//! Whether to wait a moment for more company before a costly step that many can share.
//!
//! Worth it where things come in waves; lost time where they come alone.
//! So it is tried, and after it brought nobody it is tried again only now and then.

/// Most chances that are passed over before the next try.
const SKIPS_MAX: u32 = 31;

/// Learns whether waiting for company is worth it.
#[derive(Debug, Default)]
pub(crate) struct AdaptiveWait {
    /// How many chances to pass over; doubles while tries bring nobody.
    skips: u32,
    skips_left: u32,
}

impl AdaptiveWait {
    /// Whether to wait this time.
    pub(crate) fn should_wait(&mut self) -> bool {
        if self.skips_left == 0 {
            return true;
        }
        self.skips_left -= 1;
        false
    }

    /// How many came while it was waited for them.
    pub(crate) fn record_arrivals(&mut self, came: usize) {
        self.skips = if came == 0 { (self.skips * 2 + 1).min(SKIPS_MAX) } else { 0 };
        self.skips_left = self.skips;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_backs_off_after_misses_and_resumes_after_arrivals() {
        let mut patience = AdaptiveWait::default();
        let tries =
            (0..1_000).filter(|_| patience.should_wait().then(|| patience.record_arrivals(0)).is_some()).count();
        assert!((30..=40).contains(&tries), "{tries}");
        while !patience.should_wait() {}
        patience.record_arrivals(3);
        assert!(patience.should_wait() && patience.should_wait());
    }
}
