//! Energy over an interval from a counter that moves in steps.
//!
//! NVML's counter (millijoules since driver load) stands still for about 100 ms and then jumps. Its value is therefore
//! only right at a jump, and the energy at any other instant is taken by linear interpolation between the two jumps
//! around it. That interpolation can be wrong by at most the height of the jump at each end, which is what
//! [`EnergyEstimate::uncertainty_mj`] adds up.

use serde::{Deserialize, Serialize};

use crate::device::Reading;
use crate::units::{Millijoules, MonotonicNanos};

/// A step of the energy counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct EnergyEdge {
    /// When the counter was first seen with this value. It took it after the poll before, at most one poll earlier.
    pub at: MonotonicNanos,
    /// The counter after the step.
    pub value: Millijoules,
}

/// Energy of a whole device over an interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct EnergyEstimate {
    /// Millijoules.
    pub energy_mj: f64,
    /// Millijoules: the largest error that the counter's steps at both ends can cause. Not a standard deviation, and
    /// without the sensor's own error of some percent.
    pub uncertainty_mj: f64,
}

/// The energy between two instants, from the steps of the counter in the order in which they were seen.
///
/// Absent where the steps do not reach around the interval, or where the counter went backwards, as it does when the
/// driver is loaded again.
#[must_use]
pub fn energy_between(edges: &[EnergyEdge], from: MonotonicNanos, to: MonotonicNanos) -> Reading<EnergyEstimate> {
    if to <= from {
        return Reading::absent("the interval is empty");
    }
    let Some((start, step_at_start)) = counter_at(edges, from) else {
        return Reading::absent("the energy counter was not watched from before the interval's start");
    };
    let Some((end, step_at_end)) = counter_at(edges, to) else {
        return Reading::absent("the energy counter was not watched until after the interval's end");
    };
    let spanned = edges.windows(2).filter(|pair| pair[1].at > from && pair[0].at < to);
    if spanned.into_iter().any(|pair| pair[1].value < pair[0].value) {
        return Reading::absent("the energy counter went backwards");
    }
    Reading::Value(EnergyEstimate { energy_mj: end - start, uncertainty_mj: step_at_start + step_at_end })
}

/// The counter at an instant, interpolated, and the height of the step that the instant lies in.
fn counter_at(edges: &[EnergyEdge], at: MonotonicNanos) -> Option<(f64, f64)> {
    let after = edges.partition_point(|edge| edge.at <= at);
    // An instant exactly on the last edge is within the step that led to it.
    let after = if after == edges.len() && edges.last()?.at == at { after - 1 } else { after };
    let (before, after) = (edges.get(after.checked_sub(1)?)?, edges.get(after)?);
    let step = millijoules(after.value) - millijoules(before.value);
    #[expect(clippy::cast_precision_loss, reason = "spans of seconds are exact in a double")]
    let share = at.since(before.at).as_nanos() as f64 / after.at.since(before.at).as_nanos() as f64;
    Some((millijoules(before.value) + step * share, step.abs()))
}

/// The counter as a double: exact up to 2^53 mJ, which is 285 years at a kilowatt.
#[expect(clippy::cast_precision_loss, reason = "exact in the range of the counter")]
fn millijoules(value: Millijoules) -> f64 {
    value.0 as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Edges every 100 ms of a device that draws `watts`, the first at `first` ms.
    fn edges(watts: u64, first: u64, count: u64) -> Vec<EnergyEdge> {
        (0..count)
            .map(|i| EnergyEdge {
                at: MonotonicNanos((first + 100 * i) * MS),
                value: Millijoules(1_000_000 + watts * 100 * i),
            })
            .collect()
    }

    fn check(edges: &[EnergyEdge], from: u64, to: u64) -> Reading<EnergyEstimate> {
        energy_between(edges, MonotonicNanos(from * MS), MonotonicNanos(to * MS))
    }

    fn value(reading: Reading<EnergyEstimate>) -> EnergyEstimate {
        reading.into_option().unwrap()
    }

    #[test]
    fn constant_power_is_found_from_any_two_instants() {
        let edges = edges(300, 40, 60);
        for (from, to) in [(40, 5_040), (95, 3_017), (140, 141), (777, 5_939), (5_000, 5_940)] {
            let estimate = value(check(&edges, from, to));
            #[expect(clippy::cast_precision_loss, reason = "small")]
            let truth = 300.0 * (to - from) as f64;
            assert!((estimate.energy_mj - truth).abs() < 1e-6, "{from}..{to}: {estimate:?}");
            assert!((estimate.uncertainty_mj - 60_000.0).abs() < 1e-6);
        }
    }

    #[test]
    fn a_change_of_power_inside_a_step_stays_within_the_uncertainty() {
        // 100 W until 250 ms, then 700 W; the counter steps at whole hundreds.
        let truth = |ms: u64| if ms < 250 { 100 * ms } else { 25_000 + 700 * (ms - 250) };
        let edges: Vec<_> = (0..20)
            .map(|i| EnergyEdge { at: MonotonicNanos(i * 100 * MS), value: Millijoules(truth(i * 100)) })
            .collect();
        for (from, to) in [(210, 1_500), (249, 1_005), (250, 400), (120, 295)] {
            let estimate = value(check(&edges, from, to));
            #[expect(clippy::cast_precision_loss, reason = "small")]
            let error = (estimate.energy_mj - (truth(to) - truth(from)) as f64).abs();
            assert!(error <= estimate.uncertainty_mj, "{from}..{to}: off by {error}, said {estimate:?}");
        }
    }

    #[test]
    fn an_interval_outside_what_was_watched_has_no_energy() {
        let edges = edges(300, 100, 10);
        assert!(check(&edges, 99, 500).reason().unwrap().contains("before the interval's start"));
        assert!(check(&edges, 500, 1_001).reason().unwrap().contains("after the interval's end"));
        assert!(check(&edges, 500, 500).reason().unwrap().contains("empty"));
        assert!(check(&[], 1, 2).reason().is_some());
        assert!(check(&edges[..1], 100, 101).reason().is_some());
    }

    #[test]
    fn a_counter_that_starts_again_gives_no_energy() {
        let mut edges = edges(300, 0, 20);
        for edge in &mut edges[10..] {
            edge.value.0 -= 1_001_000;
        }
        assert!(check(&edges, 450, 1_550).reason().unwrap().contains("backwards"));
        assert!(check(&edges, 1_050, 1_550).value().is_some());
    }

    #[test]
    fn a_gap_in_watching_widens_the_uncertainty() {
        let mut edges = edges(300, 0, 60);
        edges.drain(10..30);
        let estimate = value(check(&edges, 1_500, 4_000));
        assert!((estimate.energy_mj - 750_000.0).abs() < 1e-6);
        assert!((estimate.uncertainty_mj - (630_000.0 + 30_000.0)).abs() < 1e-6, "{estimate:?}");
    }
}
