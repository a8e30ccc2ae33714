//! How a report names things: workloads, sharing modes and points in time, flat and in the report's own notation.

use serde::{Deserialize, Serialize};

use crate::trial::Sharing;
use crate::units::RealtimeNanos;
use crate::workload::Workload;

/// A workload by its name and by its parts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkloadView {
    /// As people call it: `resnet18 train b32 fp32`.
    pub name: String,
    /// The architecture.
    pub model: String,
    /// `train` or `infer`.
    pub task: String,
    /// Items in a batch.
    pub batch_size: u32,
    /// Tokens in a sequence; null for models without sequences.
    pub sequence_length: Option<u32>,
    /// The arithmetic.
    pub precision: String,
    /// Where inputs are.
    pub input: String,
    /// Layout of convolutions' tensors.
    pub memory_format: String,
    /// How the worker waits for the device.
    pub wait: String,
    /// How convolution algorithms are chosen.
    pub cudnn: String,
}

impl From<&Workload> for WorkloadView {
    fn from(workload: &Workload) -> Self {
        Self {
            name: workload.to_string(),
            model: workload.model.name().to_owned(),
            task: workload.task.name().to_owned(),
            batch_size: workload.batch_size,
            sequence_length: workload.sequence_length,
            precision: workload.precision.name().to_owned(),
            input: workload.input.name().to_owned(),
            memory_format: workload.memory_format.name().to_owned(),
            wait: workload.wait.name().to_owned(),
            cudnn: workload.cudnn.name().to_owned(),
        }
    }
}

/// A sharing mode by its name and by its parts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharingView {
    /// As people call it: `mps@14%`.
    pub name: String,
    /// `exclusive`, `time-slice`, `mps`, `mig` or `cpu`.
    pub mode: String,
    /// The cap on each worker's multiprocessors under MPS; null without one.
    pub active_thread_percentage: Option<u32>,
    /// The MIG layout; null in other modes.
    pub layout: Option<String>,
}

impl From<&Sharing> for SharingView {
    fn from(sharing: &Sharing) -> Self {
        let (mode, active_thread_percentage, layout) = match sharing {
            Sharing::Exclusive => ("exclusive", None, None),
            Sharing::TimeSlice => ("time-slice", None, None),
            Sharing::Mps { active_thread_percentage } => ("mps", *active_thread_percentage, None),
            Sharing::Mig { layout, mps } => {
                ("mig", mps.and_then(|mps| mps.active_thread_percentage), Some(layout.clone()))
            }
            Sharing::Cpu => ("cpu", None, None),
        };
        Self { name: sharing.to_string(), mode: mode.to_owned(), active_thread_percentage, layout }
    }
}

/// A point in time as RFC 3339 writes it, in UTC with milliseconds: `2026-11-30T22:06:50.123Z`.
#[must_use]
pub fn rfc3339(at: RealtimeNanos) -> String {
    let (seconds, milliseconds) = (at.0 / 1_000_000_000, at.0 / 1_000_000 % 1_000);
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milliseconds:03}Z")
}

/// The Gregorian date of a day since 1970-01-01. Years are counted from March, so that the leap day is their last.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, later) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (era * 400 + year + later, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_in_time_are_written_as_the_calendar_has_them() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (951_868_799, "2000-02-29T23:59:59.000Z"),
            (1_709_251_199, "2024-02-29T23:59:59.000Z"),
            (1_735_689_599, "2024-12-31T23:59:59.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(rfc3339(RealtimeNanos(seconds * 1_000_000_000)), text);
        }
        assert_eq!(rfc3339(RealtimeNanos(1_234_567_890_123_456_789)), "2009-02-13T23:31:30.123Z");
    }
}
