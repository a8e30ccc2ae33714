//! A worker's life: prove, build, warm up, wait for the common start, run batches until told to stop, hand over.
//!
//! Nothing is written, sent or allocated between the start and the stop by the thread that measures; a second thread,
//! asleep but for two moments a second, reports progress.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use migperf_core::chain::chain;
use migperf_core::sample::Sample;
use migperf_core::units::{Bytes, MonotonicNanos};
use migperf_core::worker_wire::{
    Allocation, Built, Done, FailureKind, FromWorker, MemberConfig, PROTOCOL, Ready, ToWorker,
};
use nix::sys::resource::{UsageWho, getrusage};
use nix::time::{ClockId, clock_gettime};
use tch::Device;

use crate::bridge::{self, LoadCudaError, TorchError};
use crate::connection::{Connection, ConnectionError, Sender};
use crate::proof::{self, ProofError};
use crate::step::{Step, StepError};

/// The libtorch that this worker's bindings are made for, and therefore the one it runs on.
const ENGINE: &str = "libtorch 2.11.0";
/// Time between two reports of progress.
const PROGRESS: Duration = Duration::from_millis(500);
/// The wait for the start instant sleeps until this long before it and spins the rest.
const SPIN: Duration = Duration::from_millis(2);
/// Sample memory is made for this many times the batches that the warm-up's pace makes likely.
const HEADROOM: u64 = 4;

/// Why a worker ends without a result.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The daemon is gone, or broke the protocol: there is nobody to tell.
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    /// The device can't be asked.
    #[error("the device can't be asked")]
    Proof(#[from] ProofError),
    /// libtorch's CUDA half can't be loaded.
    #[error("libtorch can't use the device")]
    Cuda(#[from] LoadCudaError),
    /// The workload failed.
    #[error("the workload failed")]
    Step(#[from] StepError),
    /// libtorch failed outside of a batch.
    #[error("libtorch failed")]
    Torch(#[from] TorchError),
    /// The daemon speaks another version.
    #[error("the daemon speaks version {0} of the protocol, this worker {PROTOCOL}")]
    Version(u32),
}

impl RunError {
    /// How the daemon should take it; `None` where it can't be told.
    fn kind(&self) -> Option<FailureKind> {
        match self {
            Self::Connection(_) => None,
            Self::Step(StepError::OutOfMemory { .. }) => Some(FailureKind::DoesNotFit),
            Self::Torch(TorchError::OutOfMemory { .. }) => Some(FailureKind::DoesNotFit),
            Self::Step(StepError::Workload(_)) | Self::Version(_) => Some(FailureKind::Unsupported),
            Self::Proof(_) => Some(FailureKind::Allocation),
            Self::Cuda(_) | Self::Step(_) | Self::Torch(_) => Some(FailureKind::Engine),
        }
    }
}

/// Serves one connection from hello to the end. What failed has been told to the daemon where it still listens.
///
/// # Errors
/// What made the worker end early.
pub fn serve(connection: Connection) -> Result<(), RunError> {
    let outcome = work(&connection);
    if let Err(error) = &outcome
        && let Some(kind) = error.kind()
    {
        let _ = connection.send(&FromWorker::Failed { kind, message: chain(error) });
    }
    connection.finish();
    outcome
}

fn work(connection: &Connection) -> Result<(), RunError> {
    let born = now();
    let version = env!("CARGO_PKG_VERSION").to_owned();
    connection.send(&FromWorker::Hello { protocol: PROTOCOL, pid: std::process::id(), version })?;
    let ToWorker::Prepare(config) = connection.receive()? else { return Err(ConnectionError::OutOfTurn.into()) };
    if config.protocol != PROTOCOL {
        return Err(RunError::Version(config.protocol));
    }
    let (found, device) = open_device(&config)?;
    let mut step = Step::new(&config.workload, device, seed_of(&config))?;
    connection.send(&FromWorker::Built(Built {
        proof: found.proof.clone(),
        parameters: step.parameters(),
        engine: ENGINE.to_owned(),
        elapsed_ns: now().0 - born.0,
    }))?;

    let ToWorker::Warm = connection.receive()? else { return Err(ConnectionError::OutOfTurn.into()) };
    let (batches, first_ns, typical_ns) = warm_up(&mut step, &config)?;
    let mut samples = sample_memory(&config, typical_ns);
    bridge::reset_peak_memory(step.device())?;
    connection.send(&FromWorker::Ready(Ready { digest: config.digest(), batches, first_ns, typical_ns }))?;

    let ToWorker::Start { at, count_from } = connection.receive()? else {
        return Err(ConnectionError::OutOfTurn.into());
    };
    let progress = Progress::start(connection.sender()?);
    let stop = connection.stop_flag();
    wait_until(at);
    let started = now();
    let lost = measure(&mut step, &mut samples, &stop, &progress.counters, config.workload.batch_size, count_from)?;
    progress.end();

    connection.send_samples(&samples)?;
    let memory = step.memory()?;
    connection.send(&FromWorker::Done(Done {
        samples: samples.len() as u64,
        lost,
        started,
        allocated_peak: memory.map(|memory| memory.allocated_peak),
        reserved_peak: memory.map(|memory| memory.reserved_peak),
        resident_peak: resident_peak(),
        finite: step.last_is_finite()?,
    }))?;
    Ok(())
}

/// The measuring loop: two readings of the clock, one batch, one entry. Returns how many entries found no place.
fn measure(
    step: &mut Step,
    samples: &mut Vec<Sample>,
    stop: &AtomicBool,
    counters: &Counters,
    items: u32,
    count_from: MonotonicNanos,
) -> Result<u64, StepError> {
    let (mut completed, mut counted, mut lost) = (0, 0, 0);
    while !stop.load(Ordering::Relaxed) {
        let start = now();
        step.run()?;
        let end = now();
        if samples.len() < samples.capacity() {
            samples.push(Sample { start, end, items });
        } else {
            lost += 1;
        }
        completed += 1;
        counted += u64::from(start >= count_from);
        counters.completed.store(completed, Ordering::Relaxed);
        counters.counted.store(counted, Ordering::Relaxed);
    }
    Ok(lost)
}

/// Asks for the device, and opens it for libtorch.
fn open_device(config: &MemberConfig) -> Result<(proof::Found, Device), RunError> {
    tch::set_num_threads(i32::try_from(config.threads.max(1)).unwrap_or(1));
    let simulated = match config.allocation {
        Allocation::Cpu => return Ok((proof::find(&config.allocation)?, Device::Cpu)),
        Allocation::Cuda { simulated, .. } => simulated,
    };
    if simulated {
        return Ok((proof::find(&config.allocation)?, Device::Cpu));
    }
    bridge::load_cuda()?;
    let device = Device::Cuda(0);
    // The way of waiting is a flag of the context: it is fixed before anything makes one.
    bridge::choose_wait(device, config.workload.wait)?;
    Ok((proof::find(&config.allocation)?, device))
}

/// Members of one cohort differ in their parameters and inputs, and repeat them from run to run.
fn seed_of(config: &MemberConfig) -> i64 {
    config.seed.wrapping_add(u64::from(config.member)).cast_signed()
}

/// Runs batches until both limits are reached. Returns their number, the first one's time and the median time of the
/// later half, in nanoseconds.
fn warm_up(step: &mut Step, config: &MemberConfig) -> Result<(u32, u64, u64), StepError> {
    let began = now();
    let mut times: Vec<u64> = Vec::new();
    loop {
        let start = now();
        step.run()?;
        let end = now();
        times.push(end.0 - start.0);
        if times.len() >= config.timing.warmup_batches as usize && end.since(began) >= config.timing.warmup.0 {
            break;
        }
    }
    let batches = u32::try_from(times.len()).unwrap_or(u32::MAX);
    let first = times[0];
    let mut later = times.split_off(times.len() / 2);
    later.sort_unstable();
    Ok((batches, first, later[later.len() / 2].max(1)))
}

/// Memory for every batch that the longest window may bring, written once so that no page of it is made while measuring.
fn sample_memory(config: &MemberConfig, typical_ns: u64) -> Vec<Sample> {
    let timing = &config.timing;
    let longest = timing.settle.0 + timing.longest_window.0 + PROGRESS * 20;
    let likely = u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX) / typical_ns;
    let wanted = likely.saturating_mul(HEADROOM).saturating_add(1024).min(u64::from(config.sample_capacity));
    let filler = Sample { start: MonotonicNanos(1), end: MonotonicNanos(1), items: 1 };
    let mut samples = vec![filler; usize::try_from(wanted).unwrap_or(usize::MAX)];
    samples.clear();
    samples
}

/// What the measuring thread tells the reporting one.
#[derive(Debug, Default)]
struct Counters {
    completed: AtomicU64,
    counted: AtomicU64,
}

/// The thread that reports progress.
struct Progress {
    counters: Arc<Counters>,
    ended: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Progress {
    fn start(sender: Sender) -> Self {
        let counters = Arc::new(Counters::default());
        let ended = Arc::new(AtomicBool::new(false));
        let (read, over) = (Arc::clone(&counters), Arc::clone(&ended));
        let thread = std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                std::thread::park_timeout(PROGRESS);
                let (completed, counted) =
                    (read.completed.load(Ordering::Relaxed), read.counted.load(Ordering::Relaxed));
                if over.load(Ordering::Relaxed) || sender.send(&FromWorker::Progress { completed, counted }).is_err() {
                    return;
                }
            }
        });
        Self { counters, ended, thread }
    }

    /// Ends the thread, so that samples follow its last message.
    fn end(self) {
        self.ended.store(true, Ordering::Relaxed);
        self.thread.thread().unpark();
        // It can only have ended.
        let _ = self.thread.join();
    }
}

/// Sleeps until shortly before an instant and spins until it.
fn wait_until(at: MonotonicNanos) {
    let ahead = at.since(now());
    if ahead > SPIN {
        std::thread::sleep(ahead - SPIN);
    }
    while now() < at {
        std::hint::spin_loop();
    }
}

fn now() -> MonotonicNanos {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("the clock exists on every Linux");
    MonotonicNanos(time.tv_sec().cast_unsigned() * 1_000_000_000 + time.tv_nsec().cast_unsigned())
}

/// Peak resident memory of this process, which the kernel counts in KiB.
fn resident_peak() -> Option<Bytes> {
    let kibibytes = getrusage(UsageWho::RUSAGE_SELF).ok()?.max_rss();
    u64::try_from(kibibytes).ok().map(|kibibytes| Bytes(kibibytes * 1024))
}

#[cfg(test)]
mod tests {
    use super::*;
    use migperf_core::workload::{Model, Precision, Task, Workload};

    /// The loop's own cost: batches of a workload that does nothing, best of several short runs.
    #[test]
    fn the_harness_costs_less_than_a_microsecond_a_batch() {
        let workload = Workload::new(Model::Empty, Task::Infer, 1, Precision::Fp32);
        let mut step = Step::new(&workload, Device::Cpu, 1).unwrap();
        let mut samples = Vec::with_capacity(10_000_000);
        let costs = (0..5).map(|_| {
            let (stop, counters) = (Arc::new(AtomicBool::new(false)), Counters::default());
            let stopper = Arc::clone(&stop);
            let timer = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(100));
                stopper.store(true, Ordering::Relaxed);
            });
            samples.clear();
            let began = now();
            let lost = measure(&mut step, &mut samples, &stop, &counters, 1, began).unwrap();
            let elapsed = now().since(began);
            timer.join().unwrap();
            let batches = counters.completed.load(Ordering::Relaxed);
            assert_eq!(batches, samples.len() as u64 + lost);
            assert_eq!(counters.counted.load(Ordering::Relaxed), batches);
            u64::try_from(elapsed.as_nanos()).unwrap() / batches
        });
        let best = costs.min().unwrap();
        assert!(best < 1000, "{best} ns a batch");
    }

    #[test]
    fn sample_memory_follows_the_pace_and_its_cap() {
        let workload = Workload::new(Model::Empty, Task::Infer, 1, Precision::Fp32);
        let span = |seconds| migperf_core::units::Span(Duration::from_secs(seconds));
        let timing = migperf_core::trial::Timing {
            warmup_batches: 1,
            warmup: span(0),
            settle: span(3),
            window: span(5),
            longest_window: span(7),
            minimum_batches: 30,
            ready_limit: span(60),
        };
        let config = MemberConfig {
            protocol: PROTOCOL,
            member: 0,
            members: 1,
            cohort: String::new(),
            workload,
            allocation: Allocation::Cpu,
            timing,
            seed: 1,
            threads: 1,
            sample_capacity: 50_000,
        };
        // Twenty seconds of batches of 100 ms, four times, and a few more.
        assert_eq!(sample_memory(&config, 100_000_000).capacity(), 4 * 200 + 1024);
        assert_eq!(sample_memory(&config, 1_000).capacity(), 50_000);
    }
}
