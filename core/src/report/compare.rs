//! Comparisons that every job has built in: the same work twice (A/A), and the device at the end against the beginning.

use serde::{Deserialize, Serialize};

use super::baseline::{Measured, mean_latency, rate};
use super::cell::mean_over_repeats;
use super::finding::{Estimated, Finding, Plain};
use super::trial::{MemberReport, TrialReport};
use crate::trial::{Purpose, Sharing};

/// From this relative change on, drift is called notable.
const NOTABLE: f64 = 0.02;

/// Time-slicing with one worker against exclusive: the same thing measured as two cells. What differs is noise, or a
/// fault of the measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AaReport {
    /// What was run.
    pub workload: String,
    /// The cell of time-slicing with one worker.
    pub cell: u32,
    /// The exclusive cell.
    pub baseline: u32,
    /// Throughput over the exclusive one's, repeat by repeat: 1 is no difference.
    pub throughput_ratio: Finding<Estimated>,
    /// Throughput less the exclusive one's, in items per second.
    pub throughput_difference_samples_per_s: Finding<Estimated>,
    /// Mean latency over the exclusive one's.
    pub mean_latency_ratio: Finding<Estimated>,
    /// Whether the ratio's interval contains 1; null where it has none, which takes two repeats.
    pub same: Option<bool>,
}

/// A cell measured again at the end of the job against its first time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DriftReport {
    /// The cell's name.
    pub name: String,
    /// The cell.
    pub cell: u32,
    /// Its first trial with numbers.
    pub first: Option<u32>,
    /// The trial at the end.
    pub last: u32,
    /// The last throughput over the first: 1 is no drift.
    pub throughput_ratio: Finding<Plain>,
    /// The last mean latency over the first.
    pub mean_latency_ratio: Finding<Plain>,
    /// Whether either differs by more than 2 %; null where they can't be compared.
    pub notable: Option<bool>,
}

/// Every A/A comparison that the plan holds.
pub(super) fn a_a(measured: Measured<'_>) -> Vec<AaReport> {
    let compare = |(cell, spec): (usize, &crate::trial::TrialSpec)| {
        let [workload] = spec.members.as_slice() else { return None };
        if spec.sharing != Sharing::TimeSlice {
            return None;
        }
        let cell = u32::try_from(cell).ok()?;
        let baseline = measured.alone(workload, spec, |sharing| *sharing == Sharing::Exclusive)?;
        let pairs = |number: fn(&MemberReport) -> Option<f64>, join: fn(f64, f64) -> f64| {
            let pair = |trial: &TrialReport| {
                let own = number(trial.members.first()?)?;
                let base = measured.of_baseline(baseline, trial.repeat, number).filter(|base| *base > 0.0)?;
                Some(join(own, base))
            };
            let joined: Vec<Option<f64>> = measured.usable(cell).map(pair).collect();
            mean_over_repeats(&joined, "one of the two has no numbers")
        };
        let throughput_ratio = pairs(rate, |own, base| own / base);
        let interval = throughput_ratio.value().and_then(|ratio| ratio.interval);
        Some(AaReport {
            workload: workload.to_string(),
            cell,
            baseline,
            throughput_ratio,
            throughput_difference_samples_per_s: pairs(rate, |own, base| own - base),
            mean_latency_ratio: pairs(mean_latency, |own, base| own / base),
            same: interval.map(|bounds| bounds.low <= 1.0 && 1.0 <= bounds.high),
        })
    };
    measured.plan.cells.iter().enumerate().filter_map(compare).collect()
}

/// Every cell that was measured again at the end.
pub(super) fn drift(measured: Measured<'_>) -> Vec<DriftReport> {
    let compare = |last: &TrialReport| {
        let first = measured.usable(last.cell).next();
        let ratio = |number: fn(&MemberReport) -> Option<f64>| {
            let of = |trial: &TrialReport| number(trial.members.first()?);
            let ends = first.and_then(of).zip(of(last));
            ends.map_or_else(
                || Finding::absent("one of the two has no numbers"),
                |(first, last)| Finding::plain(last / first),
            )
        };
        let (throughput_ratio, mean_latency_ratio) = (ratio(rate), ratio(mean_latency));
        let off = |ratio: &Finding<Plain>| ratio.number().map(|ratio| (ratio - 1.0).abs() > NOTABLE);
        DriftReport {
            name: last.name.clone(),
            cell: last.cell,
            first: first.map(|first| first.trial),
            last: last.trial,
            notable: off(&throughput_ratio).zip(off(&mean_latency_ratio)).map(|(a, b)| a || b),
            throughput_ratio,
            mean_latency_ratio,
        }
    };
    measured.trials.iter().filter(|trial| trial.purpose == Purpose::Drift).map(compare).collect()
}
