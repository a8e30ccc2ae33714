//! A thread that watches devices while work runs on them, and the series it leaves.
//!
//! The thread has an NVML of its own and appends what it reads to a log that was allocated before. [`Sampler::stop`]
//! takes the log and turns it into series; it does so too when the thread hangs inside a driver call, and the time
//! since the last answer is then a gap.

mod assemble;
mod clock;
mod log;
mod watch;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use migperf_core::ids::DeviceUuid;
use migperf_core::telemetry::TelemetrySeries;
use migperf_core::units::MonotonicNanos;

use crate::library::{Nvml, NvmlError};
use log::Log;

/// How long NVML may take to open: initialising a GPU without persistence takes seconds.
const OPENING_LIMIT: Duration = Duration::from_secs(60);

/// How long the thread may take to end after it was told to: the closing step of the energy counter, and one slow call.
const CLOSING_LIMIT: Duration = Duration::from_secs(2);

/// Why no telemetry could be started.
#[derive(Debug, thiserror::Error)]
pub enum SamplerError {
    /// NVML could not be opened, or a device does not exist.
    #[error("telemetry cannot be read")]
    Nvml(#[source] NvmlError),
    /// NVML did not open within the limit.
    #[error("NVML did not open within {} s: the driver hangs; see `dmesg`", OPENING_LIMIT.as_secs())]
    Hung,
    /// The thread could not be started.
    #[error("the telemetry thread could not be started")]
    Thread(#[source] std::io::Error),
}

/// A running sampler. Dropping it without [`Sampler::stop`] ends the thread and discards what it saw.
#[derive(Debug)]
pub struct Sampler {
    devices: Vec<DeviceUuid>,
    period: Duration,
    started: MonotonicNanos,
    log: Arc<Log>,
    control: Arc<Control>,
    ended: Receiver<()>,
}

/// What the sampler tells its thread.
#[derive(Debug, Default)]
struct Control {
    stopping: AtomicBool,
    instants: Mutex<Vec<MonotonicNanos>>,
}

impl Control {
    fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    fn add(&self, instant: MonotonicNanos) {
        self.instants.lock().unwrap_or_else(PoisonError::into_inner).push(instant);
    }

    /// Whether `now` is near an instant that matters. Instants that have passed are forgotten.
    fn matters(&self, now: MonotonicNanos, before: Duration, after: Duration) -> bool {
        let mut instants = self.instants.lock().unwrap_or_else(PoisonError::into_inner);
        instants.retain(|instant| now.since(*instant) <= after);
        instants.iter().any(|instant| instant.since(now) <= before)
    }
}

impl Sampler {
    /// Starts to sample `devices` (GPUs and MIG devices) once a `period`, and their energy counters more often.
    ///
    /// Returns when NVML is open and every device was found. The energy of an interval can be known from the
    /// counter's first step after that, at most 150 ms later.
    ///
    /// # Errors
    /// If NVML cannot be opened, hangs, or does not know one of the devices.
    pub fn start(library: Option<&Path>, devices: Vec<DeviceUuid>, period: Duration) -> Result<Self, SamplerError> {
        let log = Arc::new(Log::new(devices.len()));
        let control = Arc::new(Control::default());
        let (opened_sender, opened) = sync_channel(1);
        let (ended_sender, ended) = sync_channel(1);
        let thread = Thread {
            library: library.map(Path::to_owned),
            devices: devices.clone(),
            period,
            log: Arc::clone(&log),
            control: Arc::clone(&control),
        };
        std::thread::Builder::new()
            .name("nvml-sampler".to_owned())
            .spawn(move || {
                thread.run(|result| {
                    // Nobody listens any more when opening took longer than the limit.
                    let _ = opened_sender.send(result);
                });
                let _ = ended_sender.send(());
            })
            .map_err(SamplerError::Thread)?;
        match opened.recv_timeout(OPENING_LIMIT) {
            Ok(Ok(())) => Ok(Self { devices, period, started: clock::monotonic(), log, control, ended }),
            Ok(Err(error)) => Err(SamplerError::Nvml(error)),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                control.stop();
                Err(SamplerError::Hung)
            }
        }
    }

    /// Has the energy counters watched closely around an instant at which an interval of interest begins or ends: from
    /// 150 ms before it until 400 ms after it.
    ///
    /// Reading the counter costs milliseconds on some drivers, so that elsewhere its steps may be seen only once in five
    /// seconds, and the energy of an interval that begins or ends there is uncertain by so much. Tell both ends ahead.
    pub fn watch_closely(&self, around: MonotonicNanos) {
        self.control.add(around);
    }

    /// Stops after the next step of the energy counter, at most about 300 ms later, and returns one series a device in
    /// the order given to [`Sampler::start`].
    ///
    /// A thread that hangs in the driver is left behind after two seconds; what it saw before is returned.
    #[must_use]
    pub fn stop(self) -> Vec<TelemetrySeries> {
        self.control.stop();
        let hung = self.ended.recv_timeout(CLOSING_LIMIT) == Err(RecvTimeoutError::Timeout);
        if hung {
            tracing::warn!("NVML does not return from a call; its thread is left behind and the series end early");
        }
        assemble::series(&self.devices, self.period, self.started, clock::monotonic(), hung, self.log.take())
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.control.stop();
    }
}

/// What the sampler's thread owns.
struct Thread {
    library: Option<PathBuf>,
    devices: Vec<DeviceUuid>,
    period: Duration,
    log: Arc<Log>,
    control: Arc<Control>,
}

impl Thread {
    /// Opens NVML, reports whether that worked, and watches until told to stop.
    fn run(self, opened: impl FnOnce(Result<(), NvmlError>)) {
        let nvml = match Nvml::open(self.library.as_deref()) {
            Ok(nvml) => nvml,
            Err(error) => return opened(Err(error)),
        };
        let mut watches = Vec::with_capacity(self.devices.len());
        for (index, uuid) in self.devices.iter().enumerate() {
            match watch::Watch::new(&nvml, index, uuid, &self.log) {
                Ok(watch) => watches.push(watch),
                Err(error) => return opened(Err(error)),
            }
        }
        opened(Ok(()));
        watch::run(&mut watches, self.period, &self.log, &self.control);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_time_around_an_instant_matters() {
        let control = Control::default();
        control.add(MonotonicNanos(1_000));
        control.add(MonotonicNanos(5_000));
        let (before, after) = (Duration::from_nanos(100), Duration::from_nanos(300));
        for (now, expected) in [(899, false), (900, true), (1_300, true), (1_301, false), (4_950, true), (5_301, false)]
        {
            assert_eq!(control.matters(MonotonicNanos(now), before, after), expected, "{now}");
        }
        assert!(control.instants.lock().unwrap().is_empty());
    }
}
