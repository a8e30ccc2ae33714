//! From the thread's log to series in columns. Pure.

use std::time::Duration;

use migperf_core::device::Reading;
use migperf_core::ids::DeviceUuid;
use migperf_core::telemetry::{Column, EnergyEdge, Gap, ProcessesSeen, SamplingCost, TelemetrySeries};
use migperf_core::units::{MonotonicNanos, nanos};

use super::log::{Contents, Event, Quantity, Row};

/// Why a quantity is absent when the thread ended before it asked.
const NEVER_ASKED: &str = "the sampler ended before it was read";
/// Rows further apart than this many periods leave a gap.
const LATE_PERIODS: u32 = 2;

/// One series a device.
pub(super) fn series(
    devices: &[DeviceUuid],
    period: Duration,
    started: MonotonicNanos,
    ended: MonotonicNanos,
    hung: bool,
    contents: Contents,
) -> Vec<TelemetrySeries> {
    let cost = SamplingCost { cpu_ns: nanos(contents.cpu), span_ns: nanos(ended.since(started)) };
    let mut builders: Vec<Builder> = devices.iter().map(|_| Builder::default()).collect();
    for (index, event) in contents.events {
        if let Some(builder) = builders.get_mut(index) {
            builder.take(event);
        }
    }
    let end = End { started, ended, hung, full_since: contents.full_since };
    builders.into_iter().zip(devices).map(|(builder, device)| builder.finish(device, period, &end, cost)).collect()
}

/// How the sampler's time ended.
struct End {
    started: MonotonicNanos,
    ended: MonotonicNanos,
    hung: bool,
    full_since: Option<MonotonicNanos>,
}

/// What was seen of one device.
#[derive(Default)]
struct Builder {
    rows: Vec<(MonotonicNanos, migperf_core::units::RealtimeNanos, Row)>,
    energy: Option<Vec<EnergyEdge>>,
    gract: Option<Vec<migperf_core::telemetry::GractStride>>,
    processes: Vec<ProcessesSeen>,
    missing: Vec<(Quantity, String)>,
    silences: Vec<(MonotonicNanos, String)>,
}

impl Builder {
    fn take(&mut self, event: Event) {
        match event {
            Event::Row { at, realtime, row } => self.rows.push((at, realtime, row)),
            Event::EnergyReadable => self.energy = Some(Vec::new()),
            Event::EnergyStep { at, value } => self.energy.get_or_insert_default().push(EnergyEdge { at, value }),
            Event::GractReadable => self.gract = Some(Vec::new()),
            Event::Gract(stride) => self.gract.get_or_insert_default().push(stride),
            Event::Processes { at, processes } => self.processes.push(ProcessesSeen { at, processes }),
            Event::Missing { quantity, reason } => self.missing.push((quantity, reason)),
            Event::Silent { at, reason } => self.silences.push((at, reason)),
        }
    }

    fn reason(&self, quantity: Quantity) -> String {
        let reason = self.missing.iter().rev().find(|(missing, _)| *missing == quantity);
        reason.map_or(NEVER_ASKED, |(_, reason)| reason).to_owned()
    }

    fn column<T>(&self, quantity: Quantity, value: impl Fn(&Row) -> Option<T>) -> Column<T> {
        let values: Vec<Option<T>> = self.rows.iter().map(|(_, _, row)| value(row)).collect();
        if values.iter().any(Option::is_some) { Column::Values(values) } else { Column::Absent(self.reason(quantity)) }
    }

    fn finish(mut self, device: &DeviceUuid, period: Duration, end: &End, cost: SamplingCost) -> TelemetrySeries {
        let energy = self.energy.take().map_or_else(|| Reading::Absent(self.reason(Quantity::Energy)), Reading::Value);
        let gract = self.gract.take().map_or_else(|| Reading::Absent(self.reason(Quantity::Gract)), Reading::Value);
        let memory_total = self.rows.iter().rev().find_map(|(_, _, row)| row.memory_total);
        TelemetrySeries {
            device: device.clone(),
            period_ns: nanos(period),
            monotonic: self.rows.iter().map(|(at, _, _)| *at).collect(),
            realtime: self.rows.iter().map(|(_, realtime, _)| *realtime).collect(),
            power_instant: self.column(Quantity::PowerInstant, |row| row.power_instant),
            power_average: self.column(Quantity::PowerAverage, |row| row.power_average),
            memory_used: self.column(Quantity::Memory, |row| row.memory_used),
            memory_total: memory_total.map_or_else(|| Reading::Absent(self.reason(Quantity::Memory)), Reading::Value),
            utilization_gpu: self.column(Quantity::Utilization, |row| row.utilization_gpu),
            utilization_memory: self.column(Quantity::Utilization, |row| row.utilization_memory),
            clock_sm: self.column(Quantity::ClockSm, |row| row.clock_sm),
            clock_memory: self.column(Quantity::ClockMemory, |row| row.clock_memory),
            temperature: self.column(Quantity::Temperature, |row| row.temperature),
            throttle: self.column(Quantity::Throttle, |row| row.throttle),
            energy,
            gract,
            gaps: self.gaps(period, end),
            processes: self.processes,
            cost,
        }
    }

    /// Where rows are further apart than they should be, and why as far as is known.
    fn gaps(&self, period: Duration, end: &End) -> Vec<Gap> {
        let rows = self.rows.iter().map(|(at, _, _)| *at);
        let instants: Vec<_> = [end.started].into_iter().chain(rows).chain([end.ended]).collect();
        let pairs = instants.windows(2).map(|pair| (pair[0], pair[1]));
        pairs
            .filter(|(from, to)| to.since(*from) > period * LATE_PERIODS)
            .map(|(from, to)| Gap { from, to, reason: self.gap_reason(from, to, end) })
            .collect()
    }

    fn gap_reason(&self, from: MonotonicNanos, to: MonotonicNanos, end: &End) -> String {
        if let Some((_, reason)) = self.silences.iter().find(|(at, _)| (from..=to).contains(at)) {
            return reason.clone();
        }
        if end.full_since.is_some_and(|since| (from..=to).contains(&since)) {
            return "the sampler's memory was full".to_owned();
        }
        if end.hung && to == end.ended {
            return "NVML did not return from a call".to_owned();
        }
        "the sampler was held up".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use migperf_core::units::{Milliwatts, RealtimeNanos};

    const MS: u64 = 1_000_000;
    const PERIOD: Duration = Duration::from_millis(100);

    fn row(ms: u64, power: Option<u32>) -> (usize, Event) {
        let row = Row { power_instant: power.map(Milliwatts), ..Row::default() };
        (0, Event::Row { at: MonotonicNanos(ms * MS), realtime: RealtimeNanos(ms), row })
    }

    fn check(events: Vec<(usize, Event)>, end_ms: u64, hung: bool) -> TelemetrySeries {
        let device = "GPU-5ebe9c2f-a33f-4a4c-bb17-7d1f4c1c4d3e".parse().unwrap();
        let contents = Contents { events, full_since: None, cpu: Duration::from_micros(5) };
        series(&[device], PERIOD, MonotonicNanos(0), MonotonicNanos(end_ms * MS), hung, contents).remove(0)
    }

    #[test]
    fn a_column_with_no_value_gives_its_reason() {
        let missing = Event::Missing { quantity: Quantity::PowerAverage, reason: "not supported".to_owned() };
        let series = check(vec![(0, missing), row(0, Some(7)), row(100, None)], 150, false);
        assert_eq!(series.power_instant, Column::Values(vec![Some(Milliwatts(7)), None]));
        assert_eq!(series.power_average.reason(), Some("not supported"));
        assert_eq!(series.energy.reason(), Some(NEVER_ASKED));
        assert_eq!(series.cost, SamplingCost { cpu_ns: 5_000, span_ns: 150 * MS });
        assert_eq!(series.gaps, []);
    }

    #[test]
    fn a_silence_is_a_gap_with_its_reason() {
        let lost = (0, Event::Silent { at: MonotonicNanos(200 * MS), reason: "lost".to_owned() });
        let series = check(vec![row(0, Some(7)), row(100, Some(7)), lost, row(500, Some(7))], 550, false);
        let gap = Gap { from: MonotonicNanos(100 * MS), to: MonotonicNanos(500 * MS), reason: "lost".to_owned() };
        assert_eq!(series.gaps, [gap]);
    }

    #[test]
    fn a_thread_that_hangs_leaves_a_gap_to_the_end() {
        let series = check(vec![row(0, Some(7)), row(100, Some(7))], 2_000, true);
        assert_eq!(series.gaps.len(), 1);
        assert_eq!(series.gaps[0].reason, "NVML did not return from a call");
        assert_eq!(check(vec![row(0, Some(7))], 900, false).gaps[0].reason, "the sampler was held up");
    }

    #[test]
    fn an_energy_counter_that_never_stepped_is_there_without_steps() {
        let series = check(vec![(0, Event::EnergyReadable), row(0, Some(7))], 50, false);
        assert_eq!(series.energy, Reading::Value(Vec::new()));
    }
}
