//! What a device reported while work ran on it: one column per quantity, and the energy counter by its steps.
//!
//! The sampler in the `gpu` crate fills a [`TelemetrySeries`]; the pure functions here answer questions about an
//! interval of it. A value that was not there is null with a reason, never zero.

mod energy;
mod summary;

pub use energy::{EnergyEdge, EnergyEstimate, energy_between};
pub use summary::Summary;

use serde::{Deserialize, Serialize};

use crate::device::{GpuProcess, Reading};
use crate::ids::DeviceUuid;
use crate::units::{Bytes, Celsius, Megahertz, Milliwatts, MonotonicNanos, Percent, RealtimeNanos};

/// One column of a series: a value for each stamp, or the reason why the device gave none at all.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Column<T> {
    /// One entry for each stamp; null where that one reading failed.
    Values(Vec<Option<T>>),
    /// No reading succeeded; why.
    Absent(String),
}

impl<T> Column<T> {
    /// The entry at a row.
    pub fn get(&self, row: usize) -> Option<&T> {
        match self {
            Self::Values(values) => values.get(row)?.as_ref(),
            Self::Absent(_) => None,
        }
    }

    /// Why the whole column is missing, if it is.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Values(_) => None,
            Self::Absent(reason) => Some(reason),
        }
    }
}

/// Everything that was sampled of one device, in columns as long as [`TelemetrySeries::monotonic`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct TelemetrySeries {
    /// The device. Of a MIG device only memory, processes and GRACT exist; the rest is its GPU's.
    pub device: DeviceUuid,
    /// The intended time between samples, in nanoseconds.
    pub period_ns: u64,
    /// When each row was taken, on the clock that workers stamp with.
    pub monotonic: Vec<MonotonicNanos>,
    /// When each row was taken, on NVML's clock.
    pub realtime: Vec<RealtimeNanos>,
    /// Power as the driver last measured it (NVML field 186); refreshed about every 100 ms.
    pub power_instant: Column<Milliwatts>,
    /// Power averaged by the driver over about a second (NVML field 185).
    pub power_average: Column<Milliwatts>,
    /// Frame buffer in use by anyone, without what the driver reserves.
    pub memory_used: Column<Bytes>,
    /// Frame buffer of the device.
    pub memory_total: Reading<Bytes>,
    /// Share of time in which any kernel ran, over the driver's own period (1 s to 1/6 s).
    pub utilization_gpu: Column<Percent>,
    /// Share of time in which device memory was read or written, over the same period.
    pub utilization_memory: Column<Percent>,
    /// The multiprocessors' clock.
    pub clock_sm: Column<Megahertz>,
    /// The memory's clock.
    pub clock_memory: Column<Megahertz>,
    /// The chip's temperature.
    pub temperature: Column<Celsius>,
    /// Why clocks were not at their highest.
    pub throttle: Column<ThrottleReasons>,
    /// The energy counter's steps.
    pub energy: Reading<Vec<EnergyEdge>>,
    /// Graphics engine activity in strides; Hopper and later.
    pub gract: Reading<Vec<GractStride>>,
    /// The processes on the device, one entry for each change that was seen; looked at once a second.
    pub processes: Vec<ProcessesSeen>,
    /// Times without rows: the device or NVML did not answer, or the sampler was held up.
    pub gaps: Vec<Gap>,
    /// What sampling this and the other devices of the same sampler cost.
    pub cost: SamplingCost,
}

/// A time in which a device was not sampled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Gap {
    /// The last row before it, or the sampler's start.
    pub from: MonotonicNanos,
    /// The first row after it, or the sampler's end.
    pub to: MonotonicNanos,
    /// What NVML answered, or that the sampler was late.
    pub reason: String,
}

/// The processes on a device from one look on, until the next entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ProcessesSeen {
    /// When they were first seen so.
    pub at: MonotonicNanos,
    /// The processes in the order of their ids, or why they are not known.
    pub processes: Reading<Vec<GpuProcess>>,
}

/// Graphics engine activity (GRACT, GPM metric 1) between two counter samples.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct GractStride {
    /// The earlier sample.
    pub from: MonotonicNanos,
    /// The later sample.
    pub to: MonotonicNanos,
    /// The share of the time in which the engine was active, in [0, 1] unless the counter is wrong; null where the
    /// driver answered with no number.
    pub value: Option<f64>,
}

/// The sampler's own use of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct SamplingCost {
    /// Processor time of the sampler's thread (CLOCK_THREAD_CPUTIME_ID), in nanoseconds.
    pub cpu_ns: u64,
    /// The time in which it was spent, in nanoseconds.
    pub span_ns: u64,
}

/// NVML's set of reasons why clocks are not at their highest, one bit each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ThrottleReasons(pub u64);

/// The bits of [`ThrottleReasons`] by the names that nvml.h gives them.
const THROTTLE_NAMES: [(u64, &str); 9] = [
    (0x001, "gpu-idle"),
    (0x002, "applications-clocks-setting"),
    (0x004, "sw-power-cap"),
    (0x008, "hw-slowdown"),
    (0x010, "sync-boost"),
    (0x020, "sw-thermal-slowdown"),
    (0x040, "hw-thermal-slowdown"),
    (0x080, "hw-power-brake-slowdown"),
    (0x100, "display-clock-setting"),
];

impl ThrottleReasons {
    /// The reasons in the order of their bits; bits that this version does not know appear as `bit-N`.
    #[must_use]
    pub fn names(self) -> Vec<String> {
        (0..u64::BITS)
            .filter(|bit| self.0 >> bit & 1 == 1)
            .map(|bit| {
                let known = THROTTLE_NAMES.iter().find(|(mask, _)| *mask == 1 << bit);
                known.map_or_else(|| format!("bit-{bit}"), |(_, name)| (*name).to_owned())
            })
            .collect()
    }

    /// Whether something other than idleness and chosen clocks holds the clocks down: power, heat or hardware.
    #[must_use]
    pub fn slows_work(self) -> bool {
        self.0 & (0x004 | 0x008 | 0x020 | 0x040 | 0x080) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_says_why_it_is_missing() {
        let column: Column<Milliwatts> = Column::Absent("not supported".to_owned());
        assert_eq!(serde_json::to_string(&column).unwrap(), r#"{"absent":"not supported"}"#);
        let column = Column::Values(vec![Some(Milliwatts(7)), None]);
        assert_eq!(serde_json::to_string(&column).unwrap(), r#"{"values":[7,null]}"#);
        assert_eq!((column.get(0), column.get(1), column.get(2)), (Some(&Milliwatts(7)), None, None));
    }

    #[test]
    fn throttle_reasons_are_named() {
        assert_eq!(ThrottleReasons(0x21).names(), ["gpu-idle", "sw-thermal-slowdown"]);
        assert_eq!(ThrottleReasons(1 << 40).names(), ["bit-40"]);
        assert!(ThrottleReasons(0x4).slows_work());
        assert!(!ThrottleReasons(0x3).slows_work());
    }
}
