//! A trial's course in time and the shape of its latencies, thinned for plots: what a report keeps of the raw samples.
//!
//! Thinning is by equal steps of time, of which each keeps its extremes, so that no stall and no peak is lost; what lies
//! between them is. Nothing of this enters any other number of the report.

use serde::{Deserialize, Serialize};

use super::finding::Finding;
use super::latency::milliseconds;
use super::overlap::Overlap;
use crate::device::Reading;
use crate::record::{MemberRecord, TrialRecord};
use crate::sample::{Interval, Sample};
use crate::telemetry::{Column, GractStride, TelemetrySeries};
use crate::units::MonotonicNanos;

/// Steps of a trial with few members.
const MOST_STEPS: u64 = 96;
/// Steps of a trial with many.
const LEAST_STEPS: u64 = 24;
/// Steps of all members together.
const STEPS_OF_ALL: u64 = 480;

/// The shares at which latencies are kept: a grid, finer towards the tail, with both extremes.
pub const SHARES: [f64; 28] = [
    0.0, 0.01, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.93,
    0.95, 0.97, 0.98, 0.99, 0.995, 0.999, 1.0,
];

/// A trial's course, from the common start of its members to the end of its window.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Series {
    /// Where the first step begins, in seconds from the window's start: negative, the settle phase comes first.
    pub from_s: f64,
    /// The length of a step in seconds.
    pub step_s: f64,
    /// How many steps.
    pub steps: u32,
    /// The window's end, in seconds from its start.
    pub window_s: f64,
    /// The start of the common interval, in seconds from the window's start.
    pub common_from_s: f64,
    /// The end of the common interval, in seconds from the window's start.
    pub common_to_s: f64,
    /// In the order of the plan.
    pub members: Vec<MemberSeries>,
    /// In the order of the trial's groups.
    pub latencies: Vec<LatencyShape>,
    /// The whole device, whoever used it.
    pub device: DeviceSeries,
}

/// One member's batches, step by step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemberSeries {
    /// Its number.
    pub member: u32,
    /// How many batches ended in the step.
    pub ended: Vec<u32>,
    /// The shortest batch that ran in the step, even in part, in milliseconds; null where none did.
    pub shortest_ms: Vec<Option<f64>>,
    /// The longest one.
    pub longest_ms: Vec<Option<f64>>,
}

/// The counted batches of members with the same work, pooled.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LatencyShape {
    /// The members' numbers.
    pub members: Vec<u32>,
    /// Shares of the batches, in [0, 1], rising: [`SHARES`].
    pub shares: Vec<f64>,
    /// The batch at each share by nearest rank, in milliseconds to the microsecond; the first is the shortest, the last
    /// the longest.
    pub ms: Vec<f64>,
}

/// The device's own quantities.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceSeries {
    /// Power in watts.
    pub power_w: Finding<Track>,
    /// Graphics engine activity in [0, 1].
    pub gract: Finding<Track>,
    /// The multiprocessors' clock in MHz.
    pub clock_sm_mhz: Finding<Track>,
    /// Frame buffer in use, in bytes.
    pub frame_buffer_bytes: Finding<Track>,
    /// The chip's temperature in degrees Celsius.
    pub temperature_c: Finding<Track>,
}

/// One quantity step by step: the least and the most of each; null where the step has no sample.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Track {
    /// The smallest sample of the step.
    pub low: Vec<Option<f64>>,
    /// The largest.
    pub high: Vec<Option<f64>>,
}

/// Equal steps over a span of CLOCK_MONOTONIC.
#[derive(Debug, Clone, Copy)]
struct Steps {
    from: u64,
    length: u64,
    count: u64,
}

impl Steps {
    fn over(span: Interval, members: usize) -> Self {
        let wanted = (STEPS_OF_ALL / (members as u64).max(1)).clamp(LEAST_STEPS, MOST_STEPS);
        let length = span.length().div_ceil(wanted).max(1);
        Self { from: span.from.0, length, count: span.length().div_ceil(length).max(1) }
    }

    /// The step of an instant; none outside.
    fn at(self, instant: MonotonicNanos) -> Option<usize> {
        let step = instant.0.checked_sub(self.from)? / self.length;
        (step < self.count).then_some(usize::try_from(step).ok()?)
    }

    fn is_before(self, instant: MonotonicNanos) -> bool {
        instant.0 < self.from
    }

    fn len(self) -> usize {
        usize::try_from(self.count).unwrap_or(0)
    }
}

impl Track {
    fn empty(steps: Steps) -> Self {
        Self { low: vec![None; steps.len()], high: vec![None; steps.len()] }
    }

    fn add(&mut self, step: usize, value: f64) {
        self.low[step] = Some(self.low[step].map_or(value, |low| low.min(value)));
        self.high[step] = Some(self.high[step].map_or(value, |high| high.max(value)));
    }
}

impl Series {
    /// Of a trial that has a common interval.
    pub(super) fn of(record: &TrialRecord, overlap: &Overlap<'_>, common: Interval) -> Self {
        let window = overlap.window;
        let begin = record.start.map_or(window.from, |start| start.min(window.from));
        let steps = Steps::over(Interval { from: begin, to: window.to }, record.members.len());
        let seconds = |at: MonotonicNanos| thousandths((at.0 as f64 - window.from.0 as f64) / 1e9);
        let groups = record.trial.spec.groups();
        Self {
            from_s: (begin.0 as f64 - window.from.0 as f64) / 1e9,
            step_s: steps.length as f64 / 1e9,
            steps: u32::try_from(steps.count).unwrap_or(u32::MAX),
            window_s: thousandths(window.length() as f64 / 1e9),
            common_from_s: seconds(common.from),
            common_to_s: seconds(common.to),
            members: record
                .members
                .iter()
                .enumerate()
                .map(|(index, member)| MemberSeries::of(index, member, steps))
                .collect(),
            latencies: groups
                .into_iter()
                .map(|(_, members)| LatencyShape::of(&members, members.iter().map(|at| overlap.members[*at].batches)))
                .collect(),
            device: DeviceSeries::of(&record.telemetry, steps),
        }
    }
}

/// To the third decimal: microseconds of milliseconds, milliseconds of seconds.
fn thousandths(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

impl MemberSeries {
    fn of(index: usize, member: &MemberRecord, steps: Steps) -> Self {
        let mut ended = vec![0; steps.len()];
        let mut track = Track::empty(steps);
        for sample in member.samples.as_slice() {
            let last = steps.at(sample.end);
            if let Some(step) = last {
                ended[step] += 1;
            }
            let first = match steps.at(sample.start) {
                Some(first) => first,
                None if steps.is_before(sample.start) && !steps.is_before(sample.end) => 0,
                None => continue,
            };
            for step in first..=last.unwrap_or(steps.len() - 1) {
                track.add(step, thousandths(milliseconds(sample.latency())));
            }
        }
        Self { member: u32::try_from(index).unwrap_or(u32::MAX), ended, shortest_ms: track.low, longest_ms: track.high }
    }
}

impl LatencyShape {
    fn of<'a>(members: &[usize], batches: impl Iterator<Item = &'a [Sample]>) -> Self {
        let mut lengths: Vec<u64> = batches.flatten().map(|batch| batch.latency()).collect();
        lengths.sort_unstable();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most the number of batches")]
        let rank = |share: f64| ((share * lengths.len() as f64).ceil() as usize).clamp(1, lengths.len()) - 1;
        let (shares, ms) = if lengths.is_empty() {
            (Vec::new(), Vec::new())
        } else {
            let at = |share: &f64| thousandths(milliseconds(lengths[rank(*share)]));
            (SHARES.to_vec(), SHARES.iter().map(at).collect())
        };
        Self { members: members.iter().filter_map(|member| u32::try_from(*member).ok()).collect(), shares, ms }
    }
}

impl DeviceSeries {
    fn of(telemetry: &Reading<TelemetrySeries>, steps: Steps) -> Self {
        let series = match telemetry {
            Reading::Value(series) => series,
            Reading::Absent(reason) => {
                return Self {
                    power_w: Finding::absent(reason.as_str()),
                    gract: Finding::absent(reason.as_str()),
                    clock_sm_mhz: Finding::absent(reason.as_str()),
                    frame_buffer_bytes: Finding::absent(reason.as_str()),
                    temperature_c: Finding::absent(reason.as_str()),
                };
            }
        };
        let stamps = &series.monotonic;
        let power = match &series.power_instant {
            instant @ Column::Values(_) => instant,
            Column::Absent(_) => &series.power_average,
        };
        Self {
            power_w: column(stamps, power, |power| f64::from(power.0) / 1e3, steps),
            gract: gract(&series.gract, steps),
            clock_sm_mhz: column(stamps, &series.clock_sm, |clock| f64::from(clock.0), steps),
            frame_buffer_bytes: column(stamps, &series.memory_used, |memory| memory.0 as f64, steps),
            temperature_c: column(stamps, &series.temperature, |heat| f64::from(heat.0), steps),
        }
    }
}

fn column<T>(
    stamps: &[MonotonicNanos],
    column: &Column<T>,
    number: impl Fn(&T) -> f64,
    steps: Steps,
) -> Finding<Track> {
    let values = match column {
        Column::Absent(reason) => return Finding::absent(reason.as_str()),
        Column::Values(values) => values,
    };
    let mut track = Track::empty(steps);
    for (at, value) in stamps.iter().zip(values) {
        if let (Some(step), Some(value)) = (steps.at(*at), value) {
            track.add(step, number(value));
        }
    }
    Finding::Value(track)
}

/// A stride's activity belongs to every step whose middle it covers.
fn gract(strides: &Reading<Vec<GractStride>>, steps: Steps) -> Finding<Track> {
    let strides = match strides {
        Reading::Absent(reason) => return Finding::absent(reason.as_str()),
        Reading::Value(strides) => strides,
    };
    let mut track = Track::empty(steps);
    let middle = |step: usize| steps.from + step as u64 * steps.length + steps.length / 2;
    for stride in strides {
        let Some(value) = stride.value.filter(|value| (0.0..=1.0).contains(value)) else { continue };
        let first = stride.from.0.saturating_sub(steps.from) / steps.length;
        for step in usize::try_from(first).unwrap_or(usize::MAX)..steps.len() {
            if middle(step) > stride.to.0 {
                break;
            }
            if middle(step) >= stride.from.0 {
                track.add(step, thousandths(value));
            }
        }
    }
    Finding::Value(track)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn steps() -> Steps {
        Steps::over(Interval { from: MonotonicNanos(1_000 * MS), to: MonotonicNanos(11_000 * MS) }, 48)
    }

    #[test]
    fn steps_cover_their_span() {
        let steps = steps();
        assert_eq!(steps.len(), 24);
        assert_eq!(steps.at(MonotonicNanos(1_000 * MS)), Some(0));
        assert_eq!(steps.at(MonotonicNanos(10_999 * MS)), Some(23));
        assert_eq!(steps.at(MonotonicNanos(999 * MS)), None);
        assert_eq!(steps.at(MonotonicNanos(11_100 * MS)), None);
        assert_eq!(Steps::over(Interval { from: MonotonicNanos(0), to: MonotonicNanos(9_600) }, 1).len(), 96);
    }

    #[test]
    fn extremes_survive_thinning() {
        let batch = |start: u64, end: u64| Sample {
            start: MonotonicNanos(start * MS),
            end: MonotonicNanos(end * MS),
            items: 1,
        };
        let batches: Vec<Sample> = (0..10_000).map(|n| batch(2 * n, 2 * n + if n == 7_777 { 2 } else { 1 })).collect();
        let shape = LatencyShape::of(&[0], [batches.as_slice()].into_iter());
        assert_eq!((shape.ms[0], shape.ms[27], shape.ms[26]), (1.0, 2.0, 1.0));
        let mut track = Track::empty(steps());
        for value in [3.0, 9.0, 1.0, 4.0] {
            track.add(5, value);
        }
        assert_eq!((track.low[5], track.high[5], track.low[6]), (Some(1.0), Some(9.0), None));
    }
}
