//! Mean and peak of a sampled quantity over an interval.
//!
//! A sample stands for the time that is nearer to it than to its neighbours, and for at most one period to each side. So
//! uneven sampling does not weigh on the mean, and a gap is left out instead of being filled by its neighbours.

use serde::{Deserialize, Serialize};

use super::{Column, EnergyEstimate, GractStride, TelemetrySeries, energy_between};
use crate::device::Reading;
use crate::units::{Bytes, Celsius, Megahertz, Milliwatts, MonotonicNanos, Percent};

/// What a quantity did over an interval, in the unit of its column.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Summary {
    /// The mean over time.
    pub mean: f64,
    /// The largest sample whose time overlaps the interval.
    pub peak: f64,
    /// The share of the interval that samples stand for, in [0, 1]: below 1 where some are missing.
    pub coverage: f64,
    /// How many samples that were.
    pub samples: usize,
}

/// A sampled quantity as a plain number of its unit.
trait Quantity: Copy {
    fn number(self) -> f64;
}

macro_rules! quantities {
    ($($name:ident),*) => {$(
        impl Quantity for $name {
            fn number(self) -> f64 {
                f64::from(self.0)
            }
        }
    )*};
}
quantities!(Celsius, Megahertz, Milliwatts, Percent);

impl Quantity for Bytes {
    #[expect(clippy::cast_precision_loss, reason = "exact up to 8 PiB")]
    fn number(self) -> f64 {
        self.0 as f64
    }
}

impl TelemetrySeries {
    /// Instant power in milliwatts.
    #[must_use]
    pub fn power_instant_over(&self, from: MonotonicNanos, to: MonotonicNanos) -> Reading<Summary> {
        self.over(&self.power_instant, from, to)
    }

    /// The driver's averaged power in milliwatts.
    #[must_use]
    pub fn power_average_over(&self, from: MonotonicNanos, to: MonotonicNanos) -> Reading<Summary> {
        self.over(&self.power_average, from, to)
    }

    /// Frame buffer in use, in bytes.
    #[must_use]
    pub fn memory_used_over(&self, from: MonotonicNanos, to: MonotonicNanos) -> Reading<Summary> {
        self.over(&self.memory_used, from, to)
    }

    /// GPU utilisation in percent.
    #[must_use]
    pub fn utilization_gpu_over(&self, from: MonotonicNanos, to: MonotonicNanos) -> Reading<Summary> {
        self.over(&self.utilization_gpu, from, to)
    }

    /// Memory utilisation in percent.
    #[must_use]
    pub fn utilization_memory_over(&self, from: MonotonicNanos, to: MonotonicNanos) -> Reading<Summary> {
        self.over(&self.utilization_memory, from, to)
    }

    /// The multiprocessors' clock in MHz.
    #[must_use]
    pub fn clock_sm_over(&self, from: MonotonicNanos, to: MonotonicNanos) -> Reading<Summary> {
        self.over(&self.clock_sm, from, to)
    }

    /// The memory's clock in MHz.
    #[must_use]
    pub fn clock_memory_over(&self, from: MonotonicNanos, to: MonotonicNanos) -> Reading<Summary> {
        self.over(&self.clock_memory, from, to)
    }

    /// The temperature in degrees Celsius.
    #[must_use]
    pub fn temperature_over(&self, from: MonotonicNanos, to: MonotonicNanos) -> Reading<Summary> {
        self.over(&self.temperature, from, to)
    }

    /// Graphics engine activity in [0, 1]. A stride counts with the part of it that lies in the interval.
    #[must_use]
    pub fn gract_over(&self, from: MonotonicNanos, to: MonotonicNanos) -> Reading<Summary> {
        match &self.gract {
            Reading::Absent(reason) => Reading::Absent(reason.clone()),
            Reading::Value(strides) => {
                let cells = strides.iter().filter_map(|&GractStride { from, to, value }| Some((from, to, value?)));
                summarise(cells, from, to)
            }
        }
    }

    /// Energy of the device.
    #[must_use]
    pub fn energy_over(&self, from: MonotonicNanos, to: MonotonicNanos) -> Reading<EnergyEstimate> {
        match &self.energy {
            Reading::Absent(reason) => Reading::Absent(reason.clone()),
            Reading::Value(edges) => energy_between(edges, from, to),
        }
    }

    fn over<T: Quantity>(&self, column: &Column<T>, from: MonotonicNanos, to: MonotonicNanos) -> Reading<Summary> {
        match column {
            Column::Absent(reason) => Reading::Absent(reason.clone()),
            Column::Values(values) => {
                let numbers = values.iter().map(|value| value.map(Quantity::number));
                summarise(cells(&self.monotonic, numbers, self.period_ns).into_iter(), from, to)
            }
        }
    }
}

/// The time each sample stands for, and its value; samples that are missing leave their time out.
fn cells(
    stamps: &[MonotonicNanos],
    values: impl Iterator<Item = Option<f64>>,
    reach: u64,
) -> Vec<(MonotonicNanos, MonotonicNanos, f64)> {
    let midpoint = |a: MonotonicNanos, b: MonotonicNanos| MonotonicNanos(a.0 + b.0.saturating_sub(a.0) / 2);
    let cell = |(row, value): (usize, Option<f64>)| {
        let at = *stamps.get(row)?;
        let mut start = MonotonicNanos(at.0.saturating_sub(reach));
        let mut end = MonotonicNanos(at.0.saturating_add(reach));
        if let Some(&before) = row.checked_sub(1).and_then(|row| stamps.get(row)) {
            start = start.max(midpoint(before, at));
        }
        if let Some(&after) = stamps.get(row + 1) {
            end = end.min(midpoint(at, after));
        }
        Some((start, end, value?))
    };
    values.enumerate().filter_map(cell).collect()
}

fn summarise(
    cells: impl Iterator<Item = (MonotonicNanos, MonotonicNanos, f64)>,
    from: MonotonicNanos,
    to: MonotonicNanos,
) -> Reading<Summary> {
    let (mut weighted, mut covered, mut peak, mut samples) = (0.0, 0.0, f64::NEG_INFINITY, 0);
    for (start, end, value) in cells {
        let weight = end.min(to).since(start.max(from)).as_secs_f64();
        if weight > 0.0 {
            weighted += weight * value;
            covered += weight;
            peak = peak.max(value);
            samples += 1;
        }
    }
    if samples == 0 {
        return Reading::absent("no sample lies in the interval");
    }
    Reading::Value(Summary {
        mean: weighted / covered,
        peak,
        coverage: covered / to.since(from).as_secs_f64(),
        samples,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::{SamplingCost, ThrottleReasons};

    const MS: u64 = 1_000_000;

    fn series(rows: &[(u64, Option<u32>)]) -> TelemetrySeries {
        let stamps: Vec<_> = rows.iter().map(|(ms, _)| MonotonicNanos(ms * MS)).collect();
        let absent = || "not asked".to_owned();
        TelemetrySeries {
            device: "GPU-5ebe9c2f-a33f-4a4c-bb17-7d1f4c1c4d3e".parse().unwrap(),
            period_ns: 100 * MS,
            realtime: Vec::new(),
            monotonic: stamps,
            power_instant: Column::Values(rows.iter().map(|(_, value)| value.map(Milliwatts)).collect()),
            power_average: Column::Absent(absent()),
            memory_used: Column::Absent(absent()),
            memory_total: Reading::Absent(absent()),
            utilization_gpu: Column::Absent(absent()),
            utilization_memory: Column::Absent(absent()),
            clock_sm: Column::Absent(absent()),
            clock_memory: Column::Absent(absent()),
            temperature: Column::Absent(absent()),
            throttle: Column::Values(vec![Some(ThrottleReasons(0)); rows.len()]),
            energy: Reading::Absent(absent()),
            gract: Reading::Value(vec![
                GractStride { from: MonotonicNanos(0), to: MonotonicNanos(500 * MS), value: Some(0.2) },
                GractStride { from: MonotonicNanos(500 * MS), to: MonotonicNanos(1_000 * MS), value: None },
                GractStride { from: MonotonicNanos(1_000 * MS), to: MonotonicNanos(1_500 * MS), value: Some(0.8) },
            ]),
            processes: Vec::new(),
            gaps: Vec::new(),
            cost: SamplingCost::default(),
        }
    }

    fn check(rows: &[(u64, Option<u32>)], interval: (u64, u64), mean: f64, peak: f64, coverage: f64) {
        let summary = series(rows)
            .power_instant_over(MonotonicNanos(interval.0 * MS), MonotonicNanos(interval.1 * MS))
            .into_option()
            .unwrap();
        assert!((summary.mean - mean).abs() < 1e-9, "{summary:?}");
        assert!((summary.peak - peak).abs() < 1e-9, "{summary:?}");
        assert!((summary.coverage - coverage).abs() < 1e-9, "{summary:?}");
    }

    #[test]
    fn even_samples_give_their_mean() {
        let rows: Vec<_> = (0..=10).map(|i| (i * 100, Some(100 + u32::try_from(i).unwrap()))).collect();
        check(&rows, (250, 750), 105.0, 107.0, 1.0);
    }

    #[test]
    fn a_long_sample_weighs_by_its_time() {
        check(&[(0, Some(10)), (100, Some(10)), (300, Some(40)), (400, Some(40))], (0, 400), 25.0, 40.0, 1.0);
    }

    #[test]
    fn a_gap_is_left_out_and_shows_in_the_coverage() {
        let rows = [(0, Some(10)), (100, Some(10)), (1_100, Some(40)), (1_200, Some(40))];
        check(&rows, (0, 1_200), 25.0, 40.0, 1.0 / 3.0);
    }

    #[test]
    fn a_missing_reading_is_not_zero() {
        check(&[(0, Some(10)), (100, None), (200, Some(10))], (0, 200), 10.0, 10.0, 0.5);
    }

    #[test]
    fn without_samples_there_is_no_mean() {
        let series = series(&[(0, Some(10))]);
        let (from, to) = (MonotonicNanos(5_000 * MS), MonotonicNanos(6_000 * MS));
        assert_eq!(series.power_instant_over(from, to).reason(), Some("no sample lies in the interval"));
        assert_eq!(series.clock_sm_over(from, to).reason(), Some("not asked"));
        assert_eq!(series.energy_over(from, to).reason(), Some("not asked"));
    }

    #[test]
    fn gract_strides_count_by_their_share_of_the_interval() {
        let series = series(&[]);
        let summary = series.gract_over(MonotonicNanos(250 * MS), MonotonicNanos(1_250 * MS)).into_option().unwrap();
        assert!((summary.mean - 0.5).abs() < 1e-9 && (summary.coverage - 0.5).abs() < 1e-9, "{summary:?}");
        assert_eq!(summary.samples, 2);
    }

    #[test]
    fn a_series_survives_storage() {
        let series = series(&[(0, Some(10)), (100, None)]);
        let text = serde_json::to_string(&series).unwrap();
        assert_eq!(serde_json::from_str::<TelemetrySeries>(&text).unwrap(), series);
    }
}
