//! Latency and throughput of a sequence of batches in a closed loop.

use serde::{Deserialize, Serialize};

use super::finding::{Estimated, Finding, Plain};
use crate::sample::Sample;
use crate::stats::{Bounds, Definition, Distribution, Estimate, Kind, LEVEL, Quantile, Unavailable};

/// Quantiles by one definition, in milliseconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quantiles {
    /// The median.
    pub p50: Finding<Estimated>,
    /// 90th percentile.
    pub p90: Finding<Estimated>,
    /// 95th percentile.
    pub p95: Finding<Estimated>,
    /// 99th percentile.
    pub p99: Finding<Estimated>,
    /// 99.9th percentile.
    #[serde(rename = "p99.9")]
    pub p99_9: Finding<Estimated>,
}

impl Quantiles {
    /// One finding for each quantile.
    pub fn of(mut quantile: impl FnMut(Quantile) -> Finding<Estimated>) -> Self {
        Self {
            p50: quantile(Quantile::P50),
            p90: quantile(Quantile::P90),
            p95: quantile(Quantile::P95),
            p99: quantile(Quantile::P99),
            p99_9: quantile(Quantile::P99_9),
        }
    }

    /// The finding of a quantile that a report has.
    #[must_use]
    pub fn get(&self, quantile: Quantile) -> Option<&Finding<Estimated>> {
        [
            (Quantile::P50, &self.p50),
            (Quantile::P90, &self.p90),
            (Quantile::P95, &self.p95),
            (Quantile::P99, &self.p99),
            (Quantile::P99_9, &self.p99_9),
        ]
        .into_iter()
        .find_map(|(known, finding)| (known == quantile).then_some(finding))
    }
}

/// How long batches took, in milliseconds on CLOCK_MONOTONIC: from before the first operation to after the device
/// synchronisation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Latency {
    /// The arithmetic mean.
    pub mean: Finding<Estimated>,
    /// The shortest.
    pub min: Finding<Plain>,
    /// The longest.
    pub max: Finding<Plain>,
    /// Quantiles that are batches which occurred: the ⌈pn⌉-th shortest.
    pub nearest_rank: Quantiles,
    /// Quantiles interpolated between two batches, at (n - 1)p.
    pub linear: Quantiles,
}

impl Latency {
    /// No latency at all, for one reason.
    #[must_use]
    pub fn absent(reason: &str) -> Self {
        Self {
            mean: Finding::absent(reason),
            min: Finding::absent(reason),
            max: Finding::absent(reason),
            nearest_rank: Quantiles::of(|_| Finding::absent(reason)),
            linear: Quantiles::of(|_| Finding::absent(reason)),
        }
    }

    /// Of one member's batches, in order.
    pub(super) fn of_batches(batches: &[Sample]) -> Self {
        Self::of(Distribution::of_sequence(batches.iter().map(|batch| milliseconds(batch.latency())).collect()))
    }

    /// Of several members' batches together.
    pub(super) fn pooled<'a>(batches: impl Iterator<Item = &'a Sample>) -> Self {
        Self::of(Distribution::pooled(batches.map(|batch| milliseconds(batch.latency())).collect()))
    }

    fn of(distribution: Result<Distribution, Unavailable>) -> Self {
        match distribution {
            Err(reason) => Self::absent(&reason.to_string()),
            Ok(distribution) => {
                let quantiles =
                    |definition| Quantiles::of(|quantile| distribution.quantile(quantile, definition).into());
                Self {
                    mean: Ok(distribution.mean()).into(),
                    min: Finding::plain(distribution.range().low),
                    max: Finding::plain(distribution.range().high),
                    nearest_rank: quantiles(Definition::NearestRank),
                    linear: quantiles(Definition::Linear),
                }
            }
        }
    }
}

/// Nanoseconds as milliseconds.
pub(super) fn milliseconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e6
}

/// What one member got done.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Progress {
    /// Items of the counted batches.
    pub(super) items: u64,
    /// Items per second from the first counted batch's start to the last one's end.
    pub(super) rate: Finding<Estimated>,
    /// The share of that time which lies between batches.
    pub(super) gap_share: Finding<Plain>,
}

impl Progress {
    /// Of counted batches, in order. The rate's interval is that of the mean time from one batch's start to the next.
    pub(super) fn of(batches: &[Sample]) -> Self {
        let items: u64 = batches.iter().map(|batch| u64::from(batch.items)).sum();
        let ends = batches.first().zip(batches.last());
        let span = ends.map_or(0, |(first, last)| last.end.0 - first.start.0);
        if span == 0 {
            let reason = "the batches took no measurable time";
            return Self { items, rate: Finding::absent(reason), gap_share: Finding::absent(reason) };
        }
        let busy: u64 = batches.iter().map(|batch| batch.latency()).sum();
        let value = items as f64 / (span as f64 / 1e9);
        let next = batches.iter().skip(1).map(|batch| batch.start).chain(batches.last().map(|last| last.end));
        let cycles = batches.iter().zip(next).map(|(batch, next)| (next.0 - batch.start.0) as f64).collect();
        let rate = Distribution::of_sequence(cycles).map(|cycles| {
            let cycle = cycles.mean();
            let invert = |Bounds { low, high }: Bounds| {
                // A cycle's interval that reaches zero leaves the rate without an upper end.
                if low > 0.0 {
                    Ok(Bounds { low: value * cycle.value / high, high: value * cycle.value / low })
                } else {
                    Err(Unavailable::NotFinite)
                }
            };
            Estimate { value, interval: cycle.interval.and_then(invert), ..cycle }
        });
        Self { items, rate: rate.into(), gap_share: Finding::plain(1.0 - busy as f64 / span as f64) }
    }
}

/// The sum of members' rates, and nothing about its uncertainty: members of one cohort slow each other, so that their
/// rates are not independent.
pub(super) fn sum(rates: &[&Finding<Estimated>]) -> Finding<Estimated> {
    if let [only] = rates {
        return (*only).clone();
    }
    let mut total = Estimated {
        value: 0.0,
        interval: None,
        no_interval: Some("members of one cohort are not independent: an interval needs repeats".to_owned()),
        level: LEVEL,
        n: 0,
        effective_n: 0.0,
        kind: Kind::WithinWindow,
    };
    for rate in rates {
        match rate {
            Finding::Absent(_) => return (*rate).clone(),
            Finding::Value(rate) => {
                total.value += rate.value;
                total.n += rate.n;
                total.effective_n += rate.effective_n;
            }
        }
    }
    Finding::Value(total)
}

/// By how much throughput contradicts latency in a closed loop of one batch at a time, as a share: batches must follow
/// each other at the pace of their mean latency, less the time between them (Little's law for one customer).
#[must_use]
pub fn closed_loop_disagreement(items_per_s: f64, batch_size: u32, mean_latency_ms: f64, gap_share: f64) -> f64 {
    let expected = f64::from(batch_size) / (mean_latency_ms / 1e3) * (1.0 - gap_share);
    items_per_s / expected - 1.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::MonotonicNanos;

    const MS: u64 = 1_000_000;

    fn batch(start_ms: u64, end_ms: u64) -> Sample {
        Sample { start: MonotonicNanos(start_ms * MS), end: MonotonicNanos(end_ms * MS), items: 32 }
    }

    #[test]
    fn the_rate_is_items_over_first_start_to_last_end() {
        // 10 ms batches with 2 ms between them: 30 batches take 30 × 10 + 29 × 2 ms.
        let batches: Vec<_> = (0..30).map(|i| batch(100 + 12 * i, 110 + 12 * i)).collect();
        let progress = Progress::of(&batches);
        assert_eq!(progress.items, 960);
        assert!((progress.rate.number().unwrap() - 960.0 / 0.358).abs() < 1e-6);
        assert!((progress.gap_share.number().unwrap() - 58.0 / 358.0).abs() < 1e-12);
        let rate = progress.rate.value().unwrap();
        let interval = rate.interval.unwrap();
        assert!(interval.low < rate.value && rate.value < interval.high);
    }

    #[test]
    fn no_time_is_no_rate() {
        assert!(Progress::of(&[]).rate.reason().is_some());
        assert!(Progress::of(&[batch(5, 5)]).rate.reason().is_some());
    }

    #[test]
    fn throughput_must_follow_from_latency() {
        assert!(closed_loop_disagreement(960.0 / 0.3, 32, 10.0, 0.0).abs() < 1e-9);
        assert!(closed_loop_disagreement(960.0 / 0.358, 32, 10.0, 58.0 / 358.0).abs() < 1e-9);
        // A published table: BERT on an A100, batch size 2, 6.83 ms and "439.19" per second, which is three halves of
        // what two sequences in 6.83 ms can be.
        assert!((closed_loop_disagreement(439.19, 2, 6.83, 0.0) - 0.5).abs() < 0.001);
    }

    #[test]
    fn a_sum_lacks_an_interval_and_is_missing_if_a_part_is() {
        let batches: Vec<_> = (0..30).map(|i| batch(10 * i, 10 * i + 10)).collect();
        let rate = Progress::of(&batches).rate;
        let total = sum(&[&rate, &rate]);
        assert!((total.number().unwrap() - 6_400.0).abs() < 1e-6);
        assert!(total.value().unwrap().interval.is_none());
        assert!(sum(&[&rate, &Finding::absent("no")]).reason().is_some());
        assert!(sum(&[&rate]).value().unwrap().interval.is_some());
    }
}
