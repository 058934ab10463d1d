//! Whether to wait a moment for more company before a costly step that many can share.
//!
//! Worth it where things come in waves; lost time where they come alone.
//! So it is tried, and after it brought nobody it is tried again only now and then.

/// Most chances that are passed over before the next try.
const PAUSE_MAX: u32 = 31;

/// Learns whether waiting for company is worth it.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    /// How many chances to pass over; doubles while tries bring nobody.
    pause: u32,
    left: u32,
}

impl Patience {
    /// Whether to wait this time.
    pub(crate) fn is_worth_it(&mut self) -> bool {
        if self.left == 0 {
            return true;
        }
        self.left -= 1;
        false
    }

    /// How many came while it was waited for them.
    pub(crate) fn learn(&mut self, came: usize) {
        self.pause = if came == 0 { (self.pause * 2 + 1).min(PAUSE_MAX) } else { 0 };
        self.left = self.pause;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_lost_by_and_by_and_found_at_once() {
        let mut patience = Patience::default();
        let tries = (0..1_000).filter(|_| patience.is_worth_it().then(|| patience.learn(0)).is_some()).count();
        assert!((30..=40).contains(&tries), "{tries}");
        while !patience.is_worth_it() {}
        patience.learn(3);
        assert!(patience.is_worth_it() && patience.is_worth_it());
    }
}
