//! What the device did over the common interval: always of the whole device (or of its MIG device's parent), never of
//! one process.

use serde::{Deserialize, Serialize};

use super::finding::{Bounded, Finding, Plain, Sampled};
use super::verdict::{Flag, Remark};
use crate::device::Reading;
use crate::record::TrialRecord;
use crate::sample::Interval;
use crate::telemetry::{Column, TelemetrySeries};

/// A share of samples with something that slows work makes a trial flagged from here on.
const LEAST_THROTTLED: f64 = 0.01;
/// Less of the interval covered by samples is flagged.
const LEAST_COVERAGE: f64 = 0.9;
/// A larger share of the energy as its uncertainty is flagged.
const COARSE_ENERGY: f64 = 0.05;

/// The device over the common interval.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceReport {
    /// Its UUID; null where there was no device.
    pub device: Option<String>,
    /// Frame buffer in use by everyone on the device, without what the driver reserves, in bytes.
    pub frame_buffer_bytes: Finding<Sampled>,
    /// Frame buffer of the device, in bytes.
    pub frame_buffer_total_bytes: Finding<Plain>,
    /// Power in watts.
    pub power_w: Finding<Sampled>,
    /// Energy in joules, from the device's counter.
    pub energy_j: Finding<Bounded>,
    /// Energy in joules for each item; only for cohorts whose members do the same work.
    pub energy_per_sample_j: Finding<Bounded>,
    /// Graphics engine activity in [0, 1].
    pub gract: Finding<Sampled>,
    /// The share of time in which any kernel ran, in percent.
    pub utilization_percent: Finding<Sampled>,
    /// The multiprocessors' clock in MHz.
    pub clock_sm_mhz: Finding<Sampled>,
    /// The memory's clock in MHz.
    pub clock_memory_mhz: Finding<Sampled>,
    /// The chip's temperature in degrees Celsius.
    pub temperature_c: Finding<Sampled>,
    /// Why clocks were not at their highest.
    pub throttle: Finding<Throttle>,
}

/// What held clocks down.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Throttle {
    /// The share of samples in which power, heat or hardware slowed work, in [0, 1].
    pub value: f64,
    /// Every reason that was seen, those that slow nothing included.
    pub reasons: Vec<String>,
}

impl DeviceReport {
    /// Nothing, for one reason.
    #[must_use]
    pub fn absent(reason: &str) -> Self {
        Self {
            device: None,
            frame_buffer_bytes: Finding::absent(reason),
            frame_buffer_total_bytes: Finding::absent(reason),
            power_w: Finding::absent(reason),
            energy_j: Finding::absent(reason),
            energy_per_sample_j: Finding::absent(reason),
            gract: Finding::absent(reason),
            utilization_percent: Finding::absent(reason),
            clock_sm_mhz: Finding::absent(reason),
            clock_memory_mhz: Finding::absent(reason),
            temperature_c: Finding::absent(reason),
            throttle: Finding::absent(reason),
        }
    }

    /// Over the common interval. `items_per_s` is the cohort's throughput, or why unlike work has none.
    pub(super) fn over(
        record: &TrialRecord,
        common: Interval,
        items_per_s: Result<f64, &str>,
        flags: &mut Vec<Remark<Flag>>,
    ) -> Self {
        let series = match &record.telemetry {
            Reading::Absent(reason) => return Self::absent(reason),
            Reading::Value(series) => series,
        };
        let Interval { from, to } = common;
        let power = match series.power_instant_over(from, to) {
            Reading::Value(power) => Finding::sampled(Reading::Value(power), 1e-3, "NVML instant power"),
            Reading::Absent(_) => Finding::sampled(series.power_average_over(from, to), 1e-3, "NVML averaged power"),
        };
        let energy = Finding::joules(series.energy_over(from, to));
        let energy_per_sample_j = match items_per_s {
            Err(reason) => Finding::absent(reason),
            Ok(rate) => energy.per(rate * common.length() as f64 / 1e9),
        };
        let gract = gract(series, common, flags);
        let report = Self {
            device: Some(series.device.to_string()),
            frame_buffer_bytes: Finding::sampled(series.memory_used_over(from, to), 1.0, "NVML memory in use"),
            frame_buffer_total_bytes: match &series.memory_total {
                Reading::Value(total) => Finding::plain(total.0 as f64),
                Reading::Absent(reason) => Finding::absent(reason.as_str()),
            },
            power_w: power,
            energy_j: energy,
            energy_per_sample_j,
            gract,
            utilization_percent: Finding::sampled(series.utilization_gpu_over(from, to), 1.0, "NVML utilisation"),
            clock_sm_mhz: Finding::sampled(series.clock_sm_over(from, to), 1.0, "NVML SM clock"),
            clock_memory_mhz: Finding::sampled(series.clock_memory_over(from, to), 1.0, "NVML memory clock"),
            temperature_c: Finding::sampled(series.temperature_over(from, to), 1.0, "NVML temperature"),
            throttle: throttle(series, common),
        };
        report.raise(flags);
        report
    }

    fn raise(&self, flags: &mut Vec<Remark<Flag>>) {
        if let Finding::Value(Throttle { value, reasons }) = &self.throttle
            && *value >= LEAST_THROTTLED
        {
            let text =
                format!("clocks were held down in {:.0} % of the samples: {}", value * 100.0, reasons.join(", "));
            flags.push(Remark::of_all(Flag::Throttled, text));
        }
        let sampled = [&self.power_w, &self.frame_buffer_bytes, &self.clock_sm_mhz];
        let coverage = sampled.into_iter().filter_map(|finding| Some(finding.value()?.coverage)).reduce(f64::min);
        if let Some(coverage) = coverage.filter(|coverage| *coverage < LEAST_COVERAGE) {
            let text = format!("samples of the device stand for {:.0} % of the common interval", coverage * 100.0);
            flags.push(Remark::of_all(Flag::TelemetryGaps, text));
        }
        if let Finding::Value(Bounded { value, uncertainty }) = self.energy_j
            && uncertainty > COARSE_ENERGY * value
        {
            let text = format!("the energy of {value:.1} J is uncertain by up to {uncertainty:.1} J");
            flags.push(Remark::of_all(Flag::CoarseEnergy, text));
        }
    }
}

fn gract(series: &TelemetrySeries, common: Interval, flags: &mut Vec<Remark<Flag>>) -> Finding<Sampled> {
    let found = Finding::sampled(series.gract_over(common.from, common.to), 1.0, "GPM graphics engine activity");
    match found.number() {
        Some(value) if !(0.0..=1.0).contains(&value) => {
            let text = format!("the activity counter's mean is {value:.3}");
            flags.push(Remark::of_all(Flag::GractRange, text.clone()));
            Finding::absent(text)
        }
        _ => found,
    }
}

fn throttle(series: &TelemetrySeries, common: Interval) -> Finding<Throttle> {
    let values = match &series.throttle {
        Column::Absent(reason) => return Finding::absent(reason.as_str()),
        Column::Values(values) => values,
    };
    let rows = series.monotonic.iter().zip(values).filter(|(at, _)| **at >= common.from && **at <= common.to);
    let (mut all, mut slowed, mut reasons) = (0_u32, 0_u32, Vec::new());
    for reason in rows.filter_map(|(_, reason)| *reason) {
        all += 1;
        slowed += u32::from(reason.slows_work());
        for name in reason.names() {
            if !reasons.contains(&name) {
                reasons.push(name);
            }
        }
    }
    if all == 0 {
        return Finding::absent("no sample lies in the interval");
    }
    Finding::Value(Throttle { value: f64::from(slowed) / f64::from(all), reasons })
}
