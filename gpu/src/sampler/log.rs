//! What the sampler's thread saw, in the order in which it saw it.
//!
//! The log is shared so that it survives a thread that hangs in the driver. It is locked only to append or to take, and
//! never while NVML is asked.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use migperf_core::device::{GpuProcess, Reading};
use migperf_core::telemetry::{GractStride, ThrottleReasons};
use migperf_core::units::{Bytes, Celsius, Megahertz, Millijoules, Milliwatts, MonotonicNanos, Percent, RealtimeNanos};

/// Room for one device: half an hour of rows at 10 Hz, the counter's steps, strides and some changes of processes.
const ENTRIES_PER_DEVICE: usize = 40_000;

/// What can be missing in a row, to say why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Quantity {
    PowerInstant,
    PowerAverage,
    Memory,
    Utilization,
    ClockSm,
    ClockMemory,
    Temperature,
    Throttle,
    Energy,
    Gract,
}

/// One reading of everything that is read once a period.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Row {
    pub(super) power_instant: Option<Milliwatts>,
    pub(super) power_average: Option<Milliwatts>,
    pub(super) memory_used: Option<Bytes>,
    pub(super) memory_total: Option<Bytes>,
    pub(super) utilization_gpu: Option<Percent>,
    pub(super) utilization_memory: Option<Percent>,
    pub(super) clock_sm: Option<Megahertz>,
    pub(super) clock_memory: Option<Megahertz>,
    pub(super) temperature: Option<Celsius>,
    pub(super) throttle: Option<ThrottleReasons>,
}

/// One thing seen of one device.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Event {
    /// Readings of one period.
    Row { at: MonotonicNanos, realtime: RealtimeNanos, row: Row },
    /// The first look at the energy counter: no step, but a sign that it can be read.
    EnergyReadable,
    /// The energy counter was first seen with a new value.
    EnergyStep { at: MonotonicNanos, value: Millijoules },
    /// The activity counters can be read.
    GractReadable,
    /// Activity between two readings of the counters.
    Gract(GractStride),
    /// The processes changed.
    Processes { at: MonotonicNanos, processes: Reading<Vec<GpuProcess>> },
    /// A quantity could not be read, for the first time with this reason.
    Missing { quantity: Quantity, reason: String },
    /// A period in which nothing could be read.
    Silent { at: MonotonicNanos, reason: String },
}

/// The log, and what the thread used to write it.
#[derive(Debug, Default)]
pub(super) struct Contents {
    /// Events with the index of their device.
    pub(super) events: Vec<(usize, Event)>,
    /// The log was full, and this was the first event without room.
    pub(super) full_since: Option<MonotonicNanos>,
    /// The thread's processor time.
    pub(super) cpu: Duration,
}

/// The shared log.
#[derive(Debug)]
pub(super) struct Log {
    contents: Mutex<Contents>,
    limit: usize,
}

impl Log {
    pub(super) fn new(devices: usize) -> Self {
        let limit = ENTRIES_PER_DEVICE * devices;
        Self { contents: Mutex::new(Contents { events: Vec::with_capacity(limit), ..Contents::default() }), limit }
    }

    /// Appends; drops the event and remembers when, once the log is full.
    pub(super) fn push(&self, device: usize, now: MonotonicNanos, event: Event) {
        let mut contents = self.lock();
        if contents.events.len() < self.limit {
            contents.events.push((device, event));
        } else if contents.full_since.is_none() {
            contents.full_since = Some(now);
        }
    }

    pub(super) fn set_cpu(&self, cpu: Duration) {
        self.lock().cpu = cpu;
    }

    pub(super) fn take(&self) -> Contents {
        std::mem::take(&mut *self.lock())
    }

    /// A panic of the other side cannot leave the contents half-written.
    fn lock(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_log_remembers_when_it_filled() {
        let log = Log { contents: Mutex::default(), limit: 2 };
        for at in 1..5 {
            log.push(0, MonotonicNanos(at), Event::GractReadable);
        }
        let contents = log.take();
        assert_eq!((contents.events.len(), contents.full_since), (2, Some(MonotonicNanos(3))));
    }
}
