//! Medians and percentiles of samples.

/// Samples of one figure.
#[derive(Clone, Debug, Default)]
pub(crate) struct Samples(Vec<f64>);

impl Samples {
    pub(crate) fn record(&mut self, sample: f64) {
        self.0.push(sample);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn median(&self) -> f64 {
        self.percentile(50.0)
    }

    /// Returns the smallest sample that at least this percentage does not exceed; NaN if there is none.
    pub(crate) fn percentile(&self, percent: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let rank = (percent / 100.0 * sorted.len() as f64).ceil() as usize;
        sorted.get(rank.max(1) - 1).copied().unwrap_or(f64::NAN)
    }

    pub(crate) fn min(&self) -> f64 {
        self.0.iter().copied().fold(f64::INFINITY, f64::min)
    }

    pub(crate) fn max(&self) -> f64 {
        self.0.iter().copied().fold(f64::NEG_INFINITY, f64::max)
    }
}

/// Two sides, measured in alternation. Ratios are computed per round, so that noise affects both sides.
#[derive(Debug, Default)]
pub(crate) struct Comparison {
    pub(crate) ours: Samples,
    pub(crate) theirs: Samples,
    ratios: Samples,
}

impl Comparison {
    pub(crate) fn record(&mut self, ours: f64, theirs: f64) {
        self.ours.record(ours);
        self.theirs.record(theirs);
        self.ratios.record(ours / theirs);
    }

    /// Returns the median of the ratios per round.
    pub(crate) fn ratio(&self) -> f64 {
        self.ratios.median()
    }

    /// Returns the smallest and the largest ratio of a round.
    pub(crate) fn spread(&self) -> (f64, f64) {
        (self.ratios.min(), self.ratios.max())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentile_returns_a_sample() {
        let mut samples = Samples::default();
        assert!(samples.median().is_nan());
        (1..=100).rev().for_each(|n| samples.record(f64::from(n)));
        assert_eq!((samples.median(), samples.percentile(99.0), samples.percentile(100.0)), (50.0, 99.0, 100.0));
        assert_eq!((samples.min(), samples.max()), (1.0, 100.0));
    }

    #[test]
    fn ratio_is_median_of_round_ratios() {
        let mut pair = Comparison::default();
        for (ours, theirs) in [(1.0, 2.0), (100.0, 200.0), (3.0, 4.0)] {
            pair.record(ours, theirs);
        }
        assert_eq!(pair.ratio(), 0.5);
        assert_eq!(pair.spread(), (0.5, 0.75));
    }
}
