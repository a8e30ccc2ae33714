//! One sequence of numbers in the order in which they came: its mean and quantiles, with intervals that respect that
//! neighbours resemble each other.
//!
//! Sources: quantile definitions 1 and 7 of Hyndman and Fan (1996); nonoverlapping batch means with 10 to 30 batches
//! (Schmeiser 1982); intervals of quantiles between order statistics (David and Nagaraja, *Order Statistics*, 7.1), with
//! the binomial law taken of the effective instead of the counted number of samples.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::special::{binomial_at_most, student_t};
use super::{Bounds, Estimate, Kind, LEVEL, Unavailable};

/// The two-sided point of the normal distribution at [`LEVEL`].
const NORMAL: f64 = 1.959_963_984_540_054;
/// Below this many numbers, batches of them say nothing.
const LEAST_FOR_INTERVAL: usize = 20;

/// A quantile in thousandths, so that ranks are exact: `Quantile::P99_9` is 999.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Quantile(u16);

impl Quantile {
    /// The median.
    pub const P50: Self = Self(500);
    /// 90 %.
    pub const P90: Self = Self(900);
    /// 95 %.
    pub const P95: Self = Self(950);
    /// 99 %.
    pub const P99: Self = Self(990);
    /// 99.9 %.
    pub const P99_9: Self = Self(999);

    /// A quantile of 1 to 999 thousandths.
    #[must_use]
    pub fn per_mille(thousandths: u16) -> Option<Self> {
        (1..1_000).contains(&thousandths).then_some(Self(thousandths))
    }

    /// As a share.
    #[must_use]
    pub fn share(self) -> f64 {
        f64::from(self.0) / 1_000.0
    }

    /// The least number of samples of which at least one lies beyond the quantile on its rarer side: 2 for the median,
    /// 100 for p99, 1000 for p99.9. With fewer, the nearest rank would only be the extreme under another name.
    #[must_use]
    pub fn needed(self) -> usize {
        let rarer = usize::from(self.0.min(1_000 - self.0));
        1_000_usize.div_ceil(rarer)
    }

    /// The least number of independent samples whose extremes enclose the quantile with the probability [`LEVEL`]: 368
    /// for p99.
    fn needed_for_interval(self) -> usize {
        let (mut low, mut high) = (1, 2);
        while order_ranks(high, self).is_none() {
            (low, high) = (high, high * 2);
        }
        while high - low > 1 {
            let middle = usize::midpoint(low, high);
            if order_ranks(middle, self).is_none() {
                low = middle;
            } else {
                high = middle;
            }
        }
        high
    }

    /// The rank of the nearest-rank definition among `n` samples, from 1: the smallest number with at least this share
    /// of the samples at or below it.
    fn nearest_rank(self, n: usize) -> usize {
        (n * usize::from(self.0)).div_ceil(1_000)
    }
}

impl fmt::Display for Quantile {
    /// `p50`, `p99.9`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 % 10 {
            0 => write!(f, "p{}", self.0 / 10),
            tenth => write!(f, "p{}.{tenth}", self.0 / 10),
        }
    }
}

/// Which of the ways to define a sample's quantile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Definition {
    /// A sample that occurred: the ⌈pn⌉-th smallest (Hyndman and Fan 1).
    NearestRank,
    /// Between two samples, at (n - 1)p (Hyndman and Fan 7, the default of numpy and R).
    Linear,
}

/// Numbers, and the same numbers sorted.
#[derive(Debug, Clone, PartialEq)]
pub struct Distribution {
    /// In time's order; none where there is no single one.
    sequence: Option<Vec<f64>>,
    sorted: Vec<f64>,
}

impl Distribution {
    /// Of one sequence, in the order in which its numbers came.
    ///
    /// # Errors
    /// Without a number, or if one is not finite.
    pub fn of_sequence(sequence: Vec<f64>) -> Result<Self, Unavailable> {
        Ok(Self { sorted: sorted(sequence.clone())?, sequence: Some(sequence) })
    }

    /// Of several sequences put together: values, but no intervals.
    ///
    /// # Errors
    /// Without a number, or if one is not finite.
    pub fn pooled(numbers: Vec<f64>) -> Result<Self, Unavailable> {
        Ok(Self { sorted: sorted(numbers)?, sequence: None })
    }

    /// How many numbers there are; at least one.
    #[must_use]
    pub fn count(&self) -> usize {
        self.sorted.len()
    }

    /// The smallest and the largest.
    #[must_use]
    pub fn range(&self) -> Bounds {
        Bounds { low: self.sorted[0], high: self.sorted[self.count() - 1] }
    }

    /// The arithmetic mean, its interval by batch means.
    ///
    /// The standard error is that of the batches' means, but never below that of as many independent numbers: a
    /// sequence that happens to alternate gains nothing.
    #[must_use]
    pub fn mean(&self) -> Estimate {
        let n = self.count();
        let value = self.sorted.iter().sum::<f64>() / n as f64;
        let estimate = |interval, effective_n| Estimate { value, interval, n, effective_n, kind: Kind::WithinWindow };
        let Some(sequence) = &self.sequence else { return estimate(Err(Unavailable::Pooled), n as f64) };
        if n < LEAST_FOR_INTERVAL {
            return estimate(Err(too_few(n)), n as f64);
        }
        let spread = Spread::of(sequence, |x| x, value);
        let half = student_t(LEVEL, spread.degrees) * spread.mean_variance.sqrt();
        estimate(Ok(Bounds { low: value - half, high: value + half }), spread.effective_n)
    }

    /// A quantile, its interval between order statistics.
    ///
    /// # Errors
    /// With fewer samples than [`Quantile::needed`].
    pub fn quantile(&self, quantile: Quantile, definition: Definition) -> Result<Estimate, Unavailable> {
        let n = self.count();
        if n < quantile.needed() {
            return Err(Unavailable::QuantileUnavailable { quantile, needed: quantile.needed(), had: n });
        }
        let value = match definition {
            Definition::NearestRank => self.sorted[quantile.nearest_rank(n) - 1],
            Definition::Linear => {
                // (n - 1)p in whole thousandths, so that no rounding moves a rank.
                let thousandths = (n - 1) * usize::from(quantile.0);
                let (below, part) = (thousandths / 1_000, (thousandths % 1_000) as f64 / 1_000.0);
                let above = (below + 1).min(n - 1);
                self.sorted[below] + part * (self.sorted[above] - self.sorted[below])
            }
        };
        let (interval, effective_n) = self.quantile_interval(quantile, value);
        Ok(Estimate { value, interval, n, effective_n, kind: Kind::WithinWindow })
    }

    /// Order statistics around a quantile.
    ///
    /// How much the samples are worth is judged by the sequence of "at or below the quantile": its variance by batch
    /// means against that of independent draws. The worth is lowered once more by the square of normal over Student's t,
    /// because it is itself only estimated from so many batches.
    fn quantile_interval(&self, quantile: Quantile, value: f64) -> (Result<Bounds, Unavailable>, f64) {
        let n = self.count();
        let Some(sequence) = &self.sequence else { return (Err(Unavailable::Pooled), n as f64) };
        if n < LEAST_FOR_INTERVAL {
            return (Err(too_few(n)), n as f64);
        }
        let below = self.sorted.partition_point(|x| *x <= value) as f64 / n as f64;
        let spread = Spread::of(sequence, |x| f64::from(u8::from(x <= value)), below);
        let trusted = spread.effective_n * (NORMAL / student_t(LEVEL, spread.degrees)).powi(2);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and n")]
        let worth = trusted.floor() as usize;
        let interval = match order_ranks(worth, quantile) {
            None => {
                let needed = quantile.needed_for_interval();
                Err(Unavailable::QuantileInterval { quantile, needed, had: worth })
            }
            Some((low, high)) => {
                let low = (low * n / worth).clamp(1, n);
                let high = (high * n).div_ceil(worth).clamp(1, n);
                Ok(Bounds { low: self.sorted[low - 1], high: self.sorted[high - 1] })
            }
        };
        (interval, spread.effective_n)
    }
}

fn too_few(n: usize) -> Unavailable {
    Unavailable::TooFew { what: "an interval within a window", of: "samples", needed: LEAST_FOR_INTERVAL, had: n }
}

fn sorted(mut numbers: Vec<f64>) -> Result<Vec<f64>, Unavailable> {
    if numbers.is_empty() {
        return Err(Unavailable::TooFew { what: "a statistic", of: "samples", needed: 1, had: 0 });
    }
    if numbers.iter().any(|number| !number.is_finite()) {
        return Err(Unavailable::NotFinite);
    }
    numbers.sort_unstable_by(f64::total_cmp);
    Ok(numbers)
}

/// How much a sequence's mean varies.
struct Spread {
    /// Variance of the mean.
    mean_variance: f64,
    /// Independent numbers that would have such a mean.
    effective_n: f64,
    /// Degrees of freedom of the variance.
    degrees: f64,
}

impl Spread {
    /// By nonoverlapping batch means of a sequence seen through `view`, whose mean is `mean`.
    fn of(sequence: &[f64], view: impl Fn(f64) -> f64, mean: f64) -> Self {
        let n = sequence.len();
        let batches = batches(n);
        let variance = sequence.iter().map(|x| (view(*x) - mean).powi(2)).sum::<f64>() / (n - 1) as f64;
        let between = (0..batches)
            .map(|batch| {
                let part = &sequence[batch * n / batches..(batch + 1) * n / batches];
                part.iter().map(|x| view(*x)).sum::<f64>() / part.len() as f64
            })
            .map(|batch_mean| (batch_mean - mean).powi(2))
            .sum::<f64>()
            / (batches - 1) as f64;
        let independent = variance / n as f64;
        let mean_variance = (between / batches as f64).max(independent);
        let effective_n = if mean_variance > 0.0 { variance / mean_variance } else { n as f64 };
        Self { mean_variance, effective_n, degrees: (batches - 1) as f64 }
    }
}

/// More batches make the variance surer, longer ones make their means less alike.
fn batches(n: usize) -> usize {
    match n {
        ..200 => 10,
        200..2_000 => 20,
        _ => 30,
    }
}

/// Ranks, from 1, of the two order statistics of `n` independent samples between which the quantile lies with at least
/// the probability [`LEVEL`], as narrow as each tail's half of the rest allows; none where the extremes are too near.
fn order_ranks(n: usize, quantile: Quantile) -> Option<(usize, usize)> {
    let (tail, p) = ((1.0 - LEVEL) / 2.0, quantile.share());
    if n == 0 {
        return None;
    }
    // The lower rank r may be too high with P(B <= r - 1), the upper too low with 1 - P(B <= r - 1).
    let low = last(n, |rank| binomial_at_most(rank - 1, n, p) <= tail)?;
    let high = last(n, |rank| binomial_at_most(rank - 1, n, p) < 1.0 - tail).unwrap_or(0) + 1;
    (high <= n).then_some((low, high))
}

/// The last of 1 to `n` for which `holds`, given that it holds up to one point and not after it.
fn last(n: usize, holds: impl Fn(usize) -> bool) -> Option<usize> {
    let (mut yes, mut no) = (0, n + 1);
    while no - yes > 1 {
        let middle = usize::midpoint(yes, no);
        if holds(middle) {
            yes = middle;
        } else {
            no = middle;
        }
    }
    (yes > 0).then_some(yes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn one_to(n: u32) -> Distribution {
        Distribution::of_sequence((1..=n).map(f64::from).collect()).unwrap()
    }

    fn check(n: u32, quantile: Quantile, nearest: f64, linear: f64) {
        let distribution = one_to(n);
        for (definition, value) in [(Definition::NearestRank, nearest), (Definition::Linear, linear)] {
            let found = distribution.quantile(quantile, definition).unwrap().value;
            assert!((found - value).abs() < 1e-9, "{quantile} of 1..={n}, {definition:?}: {found} is not {value}");
        }
    }

    /// Linear values as numpy.quantile gives them.
    #[test]
    fn quantiles_of_the_first_numbers() {
        check(100, Quantile::P50, 50.0, 50.5);
        check(100, Quantile::P90, 90.0, 90.1);
        check(100, Quantile::P99, 99.0, 99.01);
        check(101, Quantile::P99, 100.0, 100.0);
        check(5, Quantile::P50, 3.0, 3.0);
        check(20, Quantile::P95, 19.0, 19.05);
        check(1_000, Quantile::P99_9, 999.0, 999.001);
        check(2_000, Quantile::P99_9, 1_998.0, 1_998.001);
    }

    #[test]
    fn a_quantile_is_refused_just_below_what_it_needs() {
        for (quantile, needed) in [
            (Quantile::P50, 2),
            (Quantile::P90, 10),
            (Quantile::P95, 20),
            (Quantile::P99, 100),
            (Quantile::P99_9, 1_000),
            (Quantile::per_mille(1).unwrap(), 1_000),
        ] {
            for definition in [Definition::NearestRank, Definition::Linear] {
                assert!(one_to(needed).quantile(quantile, definition).is_ok(), "{quantile}");
                let had = needed as usize - 1;
                assert_eq!(
                    one_to(needed - 1).quantile(quantile, definition),
                    Err(Unavailable::QuantileUnavailable { quantile, needed: needed as usize, had })
                );
            }
        }
    }

    /// Ranks for the median as printed in tables of the sign test, and least numbers ln 0.025 / ln p.
    #[test]
    fn order_statistics_enclose_as_tabulated() {
        assert_eq!(order_ranks(100, Quantile::P50), Some((40, 61)));
        assert_eq!(order_ranks(20, Quantile::P50), Some((6, 15)));
        assert_eq!(order_ranks(6, Quantile::P50), Some((1, 6)));
        assert_eq!(order_ranks(5, Quantile::P50), None);
        assert_eq!(Quantile::P90.needed_for_interval(), 36);
        assert_eq!(Quantile::P99.needed_for_interval(), 368);
        assert_eq!(Quantile::P99_9.needed_for_interval(), 3_688);
    }

    #[test]
    fn an_interval_is_refused_where_extremes_are_too_near() {
        let noise = Noise::new(7).take(150);
        let estimate =
            Distribution::of_sequence(noise).unwrap().quantile(Quantile::P99, Definition::NearestRank).unwrap();
        let error = estimate.interval.unwrap_err();
        assert!(matches!(error, Unavailable::QuantileInterval { needed: 368, had, .. } if had <= 150), "{error}");
        let few = Distribution::of_sequence(vec![1.0; 19]).unwrap().mean();
        assert!(matches!(few.interval, Err(Unavailable::TooFew { needed: 20, had: 19, .. })));
    }

    #[test]
    fn numbers_that_are_none_are_refused() {
        assert_eq!(Distribution::of_sequence(vec![1.0, f64::NAN]), Err(Unavailable::NotFinite));
        assert_eq!(Distribution::pooled(vec![f64::INFINITY]), Err(Unavailable::NotFinite));
        assert!(Distribution::of_sequence(Vec::new()).is_err());
    }

    #[test]
    fn a_constant_is_certain() {
        let constant = Distribution::of_sequence(vec![4.0; 500]).unwrap();
        let mean = constant.mean();
        assert_eq!((mean.value, mean.interval), (4.0, Ok(Bounds { low: 4.0, high: 4.0 })));
        let p90 = constant.quantile(Quantile::P90, Definition::NearestRank).unwrap();
        assert_eq!((p90.value, p90.interval), (4.0, Ok(Bounds { low: 4.0, high: 4.0 })));
    }

    #[test]
    fn pooled_numbers_have_values_without_intervals() {
        let pooled = Distribution::pooled((1..=100).map(f64::from).collect()).unwrap();
        assert_eq!(pooled.mean().interval, Err(Unavailable::Pooled));
        let p99 = pooled.quantile(Quantile::P99, Definition::NearestRank).unwrap();
        assert_eq!((p99.value, p99.interval), (99.0, Err(Unavailable::Pooled)));
    }

    /// Normal noise from a fixed seed (SplitMix64 and the Box-Muller transform), for simulations that never change.
    struct Noise(u64);

    impl Noise {
        fn new(seed: u64) -> Self {
            Self(seed)
        }

        fn uniform(&mut self) -> f64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = self.0;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
        }

        fn normal(&mut self) -> f64 {
            (-2.0 * (1.0 - self.uniform()).ln()).sqrt() * (2.0 * std::f64::consts::PI * self.uniform()).cos()
        }

        fn take(mut self, n: usize) -> Vec<f64> {
            (0..n).map(|_| self.normal()).collect()
        }

        /// A first-order autoregressive sequence with standard normal marginals, from its stationary law on.
        fn autoregressive(&mut self, phi: f64, n: usize) -> Vec<f64> {
            let mut x = self.normal();
            (0..n)
                .map(|_| {
                    x = phi * x + (1.0 - phi * phi).sqrt() * self.normal();
                    x
                })
                .collect()
        }
    }

    #[test]
    fn autocorrelation_lowers_the_effective_number() {
        // (1 - φ) / (1 + φ) of the samples: a third at φ = 0.5, a nineteenth at 0.9.
        for (phi, share) in [(0.0, 1.0), (0.5, 1.0 / 3.0), (0.9, 1.0 / 19.0)] {
            let mut noise = Noise::new(11);
            let n = 20_000;
            let mean_share = (0..20)
                .map(|_| Distribution::of_sequence(noise.autoregressive(phi, n)).unwrap().mean().effective_n / n as f64)
                .sum::<f64>()
                / 20.0;
            assert!((mean_share / share - 1.0).abs() < 0.2, "{phi}: {mean_share}");
        }
    }

    /// The share of intervals that contain the truth, in simulation: mean, median, p90 and p99 of normal noise.
    #[test]
    fn intervals_contain_the_truth_as_often_as_they_say() {
        let runs = 400;
        let cases = [(0.0, 60), (0.0, 500), (0.0, 3_000), (0.5, 200), (0.5, 1_000), (0.8, 1_000), (0.9, 3_000)];
        for (phi, n) in cases {
            let mut noise = Noise::new(42);
            let truths = [
                (None, 0.0),
                (Some(Quantile::P50), 0.0),
                (Some(Quantile::P90), 1.281_552),
                (Some(Quantile::P99), 2.326_348),
            ];
            let mut hits = [0_u32; 4];
            let mut given = [0_u32; 4];
            for _ in 0..runs {
                let distribution = Distribution::of_sequence(noise.autoregressive(phi, n)).unwrap();
                for (index, (quantile, truth)) in truths.iter().enumerate() {
                    let estimate = match quantile {
                        None => Ok(distribution.mean()),
                        Some(quantile) => distribution.quantile(*quantile, Definition::NearestRank),
                    };
                    if let Ok(Bounds { low, high }) = estimate.and_then(|estimate| estimate.interval) {
                        given[index] += 1;
                        hits[index] += u32::from(low <= *truth && *truth <= high);
                    }
                }
            }
            assert!(given[0] == runs && given[1] == runs, "mean and median always have an interval here");
            for (index, (quantile, _)) in truths.iter().enumerate() {
                let coverage = f64::from(hits[index]) / f64::from(given[index]);
                // Three standard errors of 400 runs are 3 %; rarer intervals are too few to judge.
                let judged = given[index] >= 200;
                assert!(!judged || coverage > 0.92, "{quantile:?} of {n} at {phi}: {coverage} of {}", given[index]);
            }
        }
    }

    proptest! {
        #[test]
        fn quantiles_lie_inside_their_intervals_and_in_order(numbers in prop::collection::vec(0.0..1e9_f64, 100..400)) {
            let distribution = Distribution::of_sequence(numbers).unwrap();
            for definition in [Definition::NearestRank, Definition::Linear] {
                let mut before = distribution.range().low;
                for quantile in [Quantile::P50, Quantile::P90, Quantile::P95, Quantile::P99] {
                    let estimate = distribution.quantile(quantile, definition).unwrap();
                    prop_assert!(estimate.value >= before && estimate.value <= distribution.range().high);
                    prop_assert!(estimate.effective_n <= estimate.n as f64 * (1.0 + 1e-9));
                    before = estimate.value;
                    if let Ok(bounds) = estimate.interval {
                        prop_assert!(bounds.low <= estimate.value && estimate.value <= bounds.high);
                    }
                }
            }
        }

        #[test]
        fn the_nearest_rank_is_a_sample_with_that_share_at_or_below(
            numbers in prop::collection::vec(0.0..100.0_f64, 1_000..1_200),
            thousandths in 1..1_000_u16,
        ) {
            let quantile = Quantile::per_mille(thousandths).unwrap();
            let value = Distribution::pooled(numbers.clone()).unwrap().quantile(quantile, Definition::NearestRank).unwrap().value;
            let at_or_below = numbers.iter().filter(|x| **x <= value).count();
            let below = numbers.iter().filter(|x| **x < value).count();
            prop_assert!(numbers.contains(&value));
            prop_assert!(at_or_below * 1_000 >= usize::from(thousandths) * numbers.len());
            prop_assert!(below * 1_000 < usize::from(thousandths) * numbers.len());
        }
    }
}
