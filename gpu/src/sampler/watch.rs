//! Asking the devices, on time and at little cost.
//!
//! Rows are read once a period; each of their calls takes microseconds. The energy counter moves every 100 ms, and a
//! poll of it can cost milliseconds of processor time (4 ms on an H200 with driver 580: a call to the GPU's firmware).
//! So it is polled often enough to see its steps where an interval begins or ends, and seldom between. Processes are
//! looked at once a second. A quantity that a device does not support is asked for once.

use std::time::Duration;

use migperf_core::device::{GpuProcess, Reading};
use migperf_core::ids::DeviceUuid;
use migperf_core::telemetry::{GractStride, ThrottleReasons};
use migperf_core::units::{Bytes, Celsius, Megahertz, Millijoules, Milliwatts, MonotonicNanos, Percent};
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::error::NvmlError as Answer;
use nvml_wrapper::gpm::gpm_metrics_get;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::{Device, GpmSample};

use super::log::{Event, Log, Quantity, Row};
use super::{Control, clock};
use crate::library::{Nvml, NvmlError, reason};
use crate::{ffi, processes};

/// The shortest time between polls of the energy counter, a fifth of its step.
const ENERGY_POLL: Duration = Duration::from_millis(20);
/// The longest time between polls near an instant that matters: every step must still be seen.
const ENERGY_POLL_CLOSE: Duration = Duration::from_millis(50);
/// The longest time between other polls, however dear they are.
const ENERGY_POLL_SELDOM: Duration = Duration::from_secs(5);
/// The share of one core that polling one device may cost near an instant that matters.
const ENERGY_BUDGET_CLOSE: f64 = 0.1;
/// The share of one core that polling one device may cost otherwise.
const ENERGY_BUDGET: f64 = 0.001;
/// How long polls are frequent at the start when the counter does not step, as a broken one would not.
const EAGER: Duration = Duration::from_secs(1);
/// How long before an instant that matters polls become frequent: more than one step.
const CLOSE_BEFORE: Duration = Duration::from_millis(150);
/// How long after it they stay so: an interval begins or ends within a batch of the instant that was planned.
const CLOSE_AFTER: Duration = Duration::from_millis(400);
/// The time between two looks at the processes.
const PROCESSES_PERIOD: Duration = Duration::from_secs(1);
/// The length of a stride between two readings of the activity counters: well over the 100 ms below which they err.
const GRACT_STRIDE: Duration = Duration::from_millis(500);
/// The shortest last stride.
const GRACT_STRIDE_LEAST: Duration = Duration::from_millis(250);
/// The longest sleep, so that new orders are seen in time.
const LONGEST_SLEEP: Duration = Duration::from_millis(100);
/// How long a sampler that was told to stop waits for the counters' next step.
const CLOSING: Duration = Duration::from_millis(300);

/// NVML's field for averaged power, milliwatts.
const FIELD_POWER_AVERAGE: FieldId = FieldId(185);
/// NVML's field for instant power, milliwatts.
const FIELD_POWER_INSTANT: FieldId = FieldId(186);

/// Why a quantity of the whole GPU is absent from a MIG device's series.
const NOT_OF_AN_INSTANCE: &str = "a MIG device has none of its own; see its GPU";
/// Why the GPU's own activity is absent when it is partitioned.
const NOT_OF_A_PARENT: &str = "not defined for a GPU in MIG mode; see its MIG devices";

/// One device and what the thread remembers of it.
pub(super) struct Watch<'n> {
    index: usize,
    device: Device<'n>,
    log: &'n Log,
    /// Quantities not to ask for again.
    unsupported: Vec<Quantity>,
    /// Quantities whose absence was explained.
    explained: Vec<(Quantity, String)>,
    energy: Option<Energy>,
    activity: Option<Activity<'n>>,
    processes: Option<Reading<Vec<GpuProcess>>>,
}

/// The energy counter as last seen.
struct Energy {
    value: u64,
    last_poll: MonotonicNanos,
    eager_until: MonotonicNanos,
    seldom: Duration,
    close: Duration,
    last_step: Option<MonotonicNanos>,
}

/// The activity counters as last read.
struct Activity<'n> {
    source: ActivitySource<'n>,
    sample: GpmSample<'n>,
    at: MonotonicNanos,
}

enum ActivitySource<'n> {
    Gpu(Device<'n>),
    Instance { parent: Device<'n>, gpu_instance: u32 },
}

impl<'n> ActivitySource<'n> {
    fn sample(&self) -> Result<GpmSample<'n>, Answer> {
        match self {
            Self::Gpu(device) => device.gpm_sample(),
            Self::Instance { parent, gpu_instance } => parent.gpm_mig_sample(*gpu_instance),
        }
    }

    fn nvml(&self) -> &'n nvml_wrapper::Nvml {
        match self {
            Self::Gpu(device) | Self::Instance { parent: device, .. } => device.nvml(),
        }
    }
}

impl<'n> Watch<'n> {
    /// Finds a device and sees what it can tell.
    pub(super) fn new(nvml: &'n Nvml, index: usize, uuid: &DeviceUuid, log: &'n Log) -> Result<Self, NvmlError> {
        let mut watch = Self {
            index,
            device: nvml.device(uuid)?,
            log,
            unsupported: Vec::new(),
            explained: Vec::new(),
            energy: None,
            activity: None,
            processes: None,
        };
        if matches!(uuid, DeviceUuid::Mig(_)) {
            for quantity in [
                Quantity::PowerInstant,
                Quantity::PowerAverage,
                Quantity::Utilization,
                Quantity::ClockSm,
                Quantity::ClockMemory,
                Quantity::Temperature,
                Quantity::Throttle,
                Quantity::Energy,
            ] {
                watch.give_up(quantity, NOT_OF_AN_INSTANCE.to_owned());
            }
        } else {
            watch.start_energy();
        }
        watch.start_activity(uuid);
        Ok(watch)
    }

    fn push(&self, event: Event) {
        self.log.push(self.index, clock::monotonic(), event);
    }

    fn give_up(&mut self, quantity: Quantity, reason: String) {
        self.unsupported.push(quantity);
        self.push(Event::Missing { quantity, reason });
    }

    /// An answer as a value; the first of each reason for its absence is logged, and what is not supported is not asked
    /// for again.
    fn ask<T>(&mut self, quantity: Quantity, answer: impl FnOnce(&Device<'n>) -> Result<T, Answer>) -> Option<T> {
        if self.unsupported.contains(&quantity) {
            return None;
        }
        match answer(&self.device) {
            Ok(value) => Some(value),
            Err(answer @ (Answer::NotSupported | Answer::FailedToLoadSymbol(_) | Answer::FunctionNotFound)) => {
                self.give_up(quantity, reason(&answer));
                None
            }
            Err(answer) => {
                let explanation = (quantity, reason(&answer));
                if !self.explained.contains(&explanation) {
                    self.push(Event::Missing { quantity, reason: explanation.1.clone() });
                    self.explained.push(explanation);
                }
                None
            }
        }
    }

    /// Everything that is read once a period.
    fn row(&mut self) {
        let (at, realtime) = (clock::monotonic(), clock::realtime());
        let explained = self.explained.len();
        let memory = self.ask(Quantity::Memory, Device::memory_info);
        let utilization = self.ask(Quantity::Utilization, Device::utilization_rates);
        let row = Row {
            power_instant: self
                .ask(Quantity::PowerInstant, |device| field(device, FIELD_POWER_INSTANT))
                .map(Milliwatts),
            power_average: self
                .ask(Quantity::PowerAverage, |device| field(device, FIELD_POWER_AVERAGE))
                .map(Milliwatts),
            memory_used: memory.as_ref().map(|memory| Bytes(memory.used)),
            memory_total: memory.as_ref().map(|memory| Bytes(memory.total)),
            utilization_gpu: utilization.as_ref().map(|utilization| Percent(utilization.gpu)),
            utilization_memory: utilization.as_ref().map(|utilization| Percent(utilization.memory)),
            clock_sm: self.ask(Quantity::ClockSm, |device| device.clock_info(Clock::SM)).map(Megahertz),
            clock_memory: self.ask(Quantity::ClockMemory, |device| device.clock_info(Clock::Memory)).map(Megahertz),
            temperature: self
                .ask(Quantity::Temperature, |device| device.temperature(TemperatureSensor::Gpu))
                .map(Celsius),
            throttle: self
                .ask(Quantity::Throttle, Device::current_throttle_reasons)
                .map(|reasons| ThrottleReasons(reasons.bits())),
        };
        if row == Row::default() {
            let reason = self.explained.get(explained.min(self.explained.len().saturating_sub(1)));
            let reason = reason.map_or("nothing of this device can be read", |(_, reason)| reason).to_owned();
            self.push(Event::Silent { at, reason });
        } else {
            self.push(Event::Row { at, realtime, row });
        }
    }

    /// Reads the energy counter for the first time and learns what a poll costs.
    fn start_energy(&mut self) {
        let Some(value) = self.ask(Quantity::Energy, Device::total_energy_consumption) else { return };
        // The first call of a session can be many times dearer than those after it.
        let before = clock::thread_cpu();
        let _ = self.device.total_energy_consumption();
        let cost = clock::thread_cpu().saturating_sub(before);
        let now = clock::monotonic();
        self.energy = Some(Energy {
            value,
            last_poll: now,
            eager_until: now.plus(EAGER),
            seldom: cost.div_f64(ENERGY_BUDGET).clamp(ENERGY_POLL, ENERGY_POLL_SELDOM),
            close: cost.div_f64(ENERGY_BUDGET_CLOSE).clamp(ENERGY_POLL, ENERGY_POLL_CLOSE),
            last_step: None,
        });
        self.push(Event::EnergyReadable);
    }

    /// When the energy counter is to be polled next. Until its first step polls are frequent: an interval may start soon.
    fn next_energy_poll(&self, closely: bool) -> Option<MonotonicNanos> {
        let energy = self.energy.as_ref()?;
        let eager = energy.last_step.is_none() && energy.last_poll < energy.eager_until;
        let interval = if closely || eager { energy.close } else { energy.seldom };
        Some(energy.last_poll.plus(interval))
    }

    /// Looks for a step of the energy counter.
    fn poll_energy(&mut self) {
        let value = self.ask(Quantity::Energy, Device::total_energy_consumption);
        let at = clock::monotonic();
        let Some(energy) = &mut self.energy else { return };
        energy.last_poll = at;
        if let Some(value) = value.filter(|value| *value != energy.value) {
            energy.value = value;
            energy.last_step = Some(at);
            self.push(Event::EnergyStep { at, value: Millijoules(value) });
        }
    }

    /// Whether the energy counter has stepped since an instant, or cannot be read.
    fn energy_stepped_since(&self, instant: MonotonicNanos) -> bool {
        self.energy.as_ref().is_none_or(|energy| energy.last_step.is_some_and(|step| step > instant))
    }

    /// Reads the activity counters for the first time.
    fn start_activity(&mut self, uuid: &DeviceUuid) {
        let started = match self.activity_source(uuid) {
            Ok(Ok(source)) => source.sample().map(|sample| (source, sample)),
            Ok(Err(absent)) => return self.give_up(Quantity::Gract, absent.to_owned()),
            Err(answer) => Err(answer),
        };
        match started {
            Ok((source, sample)) => {
                self.activity = Some(Activity { source, sample, at: clock::monotonic() });
                self.push(Event::GractReadable);
            }
            Err(answer) => self.give_up(Quantity::Gract, reason(&answer)),
        }
    }

    /// Where a device's activity is counted, or why it is not.
    fn activity_source(&self, uuid: &DeviceUuid) -> Result<Result<ActivitySource<'n>, &'static str>, Answer> {
        let nvml = self.device.nvml();
        match uuid {
            DeviceUuid::Gpu(_) => {
                let device = nvml.device_by_uuid(uuid.as_str())?;
                if !device.gpm_support()? {
                    return Err(Answer::NotSupported);
                }
                let partitioned = device.mig_mode().is_ok_and(|mode| mode.current != 0);
                Ok(if partitioned { Err(NOT_OF_A_PARENT) } else { Ok(ActivitySource::Gpu(device)) })
            }
            DeviceUuid::Mig(_) => {
                let parent = self.device.mig_parent_device()?;
                if !parent.gpm_support()? {
                    return Err(Answer::NotSupported);
                }
                let gpu_instance = ffi::gpu_instance_id(&self.device)?;
                Ok(Ok(ActivitySource::Instance { parent, gpu_instance }))
            }
        }
    }

    /// Ends a stride of at least `length` and begins the next.
    fn poll_activity(&mut self, now: MonotonicNanos, length: Duration) {
        let Some(activity) = &mut self.activity else { return };
        if now.since(activity.at) < length {
            return;
        }
        let event = match activity.source.sample() {
            Ok(sample) => {
                let at = clock::monotonic();
                let value = gract(activity.source.nvml(), &activity.sample, &sample);
                let stride = GractStride { from: activity.at, to: at, value };
                activity.sample = sample;
                activity.at = at;
                Event::Gract(stride)
            }
            Err(answer) => {
                let explanation = (Quantity::Gract, reason(&answer));
                if self.explained.contains(&explanation) {
                    return;
                }
                self.explained.push(explanation.clone());
                Event::Missing { quantity: explanation.0, reason: explanation.1 }
            }
        };
        self.push(event);
    }

    /// Looks at the processes and logs them if they changed. What memory they hold is not a change.
    fn look_at_processes(&mut self) {
        let seen = match processes::read(&self.device) {
            Ok(processes) => Reading::Value(processes),
            Err(answer) => Reading::Absent(reason(&answer)),
        };
        if self.processes.as_ref().is_none_or(|before| !same_processes(before, &seen)) {
            self.push(Event::Processes { at: clock::monotonic(), processes: seen.clone() });
            self.processes = Some(seen);
        }
    }
}

fn same_processes(a: &Reading<Vec<GpuProcess>>, b: &Reading<Vec<GpuProcess>>) -> bool {
    let identity = |process: &GpuProcess| (process.pid, process.kind, process.gpu_instance, process.compute_instance);
    match (a, b) {
        (Reading::Value(a), Reading::Value(b)) => a.iter().map(identity).eq(b.iter().map(identity)),
        (Reading::Absent(a), Reading::Absent(b)) => a == b,
        _ => false,
    }
}

/// One field of a device that holds an unsigned number.
fn field(device: &Device<'_>, id: FieldId) -> Result<u32, Answer> {
    let mut answers = device.field_values_for(&[id])?;
    match answers.pop().ok_or(Answer::NotFound)??.value? {
        SampleValue::U32(value) => Ok(value),
        SampleValue::U64(_) | SampleValue::I64(_) | SampleValue::F64(_) => Err(Answer::NotSupported),
    }
}

/// The share of the time in which the graphics engine was active between two samples. NVML gives percent, and no number
/// for samples that are too close.
fn gract(nvml: &nvml_wrapper::Nvml, earlier: &GpmSample<'_>, later: &GpmSample<'_>) -> Option<f64> {
    let metrics = gpm_metrics_get(nvml, earlier, later, &[GpmMetricId::GraphicsUtil]).ok()?;
    let percent = metrics.into_iter().next()?.ok()?.value;
    percent.is_finite().then_some(percent / 100.0)
}

/// Watches until told to stop, and then until the energy counters have stepped once more.
pub(super) fn run(watches: &mut [Watch<'_>], period: Duration, log: &Log, control: &Control) {
    let cpu_before = clock::thread_cpu();
    let start = clock::monotonic();
    let (mut next_row, mut next_processes) = (start, start);
    let mut stopped_at = None;
    loop {
        let now = clock::monotonic();
        let closely = stopped_at.is_some() || control.matters(now, CLOSE_BEFORE, CLOSE_AFTER);
        let row_due = now >= next_row;
        let processes_due = now >= next_processes;
        for watch in &mut *watches {
            if watch.next_energy_poll(closely).is_some_and(|due| now >= due) {
                watch.poll_energy();
            }
            if row_due {
                watch.row();
            }
            if processes_due {
                watch.look_at_processes();
            }
            watch.poll_activity(now, GRACT_STRIDE);
        }
        if row_due {
            next_row = following(next_row, period, now);
            log.set_cpu(clock::thread_cpu().saturating_sub(cpu_before));
        }
        if processes_due {
            next_processes = following(next_processes, PROCESSES_PERIOD, now);
        }
        match stopped_at {
            None if control.is_stopping() => stopped_at = Some(clock::monotonic()),
            Some(at) if now.since(at) >= CLOSING || watches.iter().all(|watch| watch.energy_stepped_since(at)) => break,
            _ => {}
        }
        let closely = closely || stopped_at.is_some();
        let polls = watches.iter().filter_map(|watch| watch.next_energy_poll(closely));
        let longest = clock::monotonic().plus(LONGEST_SLEEP);
        clock::sleep_until(polls.fold(next_row.min(longest), MonotonicNanos::min));
    }
    let now = clock::monotonic();
    for watch in watches {
        watch.row();
        watch.poll_activity(now, GRACT_STRIDE_LEAST);
    }
    log.set_cpu(clock::thread_cpu().saturating_sub(cpu_before));
}

/// The first deadline after `now` on the grid that `deadline` lies on: missed ones are skipped, not caught up with.
fn following(deadline: MonotonicNanos, period: Duration, now: MonotonicNanos) -> MonotonicNanos {
    let period = migperf_core::units::nanos(period).max(1);
    let missed = now.0.saturating_sub(deadline.0) / period;
    MonotonicNanos(deadline.0 + (missed + 1) * period)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_stay_on_their_grid() {
        let period = Duration::from_nanos(100);
        for (deadline, now, expected) in [(1_000, 1_000, 1_100), (1_000, 1_099, 1_100), (1_000, 1_350, 1_400)] {
            let next = following(MonotonicNanos(deadline), period, MonotonicNanos(now));
            assert_eq!(next, MonotonicNanos(expected));
        }
    }
}
