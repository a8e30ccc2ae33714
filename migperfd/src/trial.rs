//! One trial: processes started, a cohort driven, the device watched, everything ended, a record left.
//!
//! The decisions are [`migperf_core::cohort`]'s; this is its hands. A trial always runs to its end: whatever fails, workers
//! and the MPS control daemon are gone when it returns.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use migperf_core::affinity::{self, Assignment};
use migperf_core::chain::chain;
use migperf_core::cohort::{Abort, Action, Cohort, CohortError, CohortResult, Event, Phase};
use migperf_core::device::{Gpu, GpuProcess, Reading};
use migperf_core::ids::DeviceUuid;
use migperf_core::record::{MemberRecord, Outcome, RECORD_FORMAT, TrialRecord};
use migperf_core::sample::Interval;
use migperf_core::telemetry::TelemetrySeries;
use migperf_core::trial::PlannedTrial;
use migperf_core::units::MonotonicNanos;
use migperf_core::worker_wire::{Allocation, FromWorker, Launch, MemberConfig, PROTOCOL, ToWorker};
use migperf_gpu::sampler::Sampler;
use tokio::sync::{mpsc, watch};

use crate::clock;
use crate::layout::AppliedLayout;
use crate::libtorch::Libtorch;
use crate::mps::MpsGroup;
use crate::settings::Settings;
use crate::workers::Worker;

/// Telemetry rows come at this rate.
const TELEMETRY_PERIOD: Duration = Duration::from_millis(100);
/// Workers whose connection was closed may take this long to leave the device.
const LEAVE_LIMIT: Duration = Duration::from_secs(8);
/// More batches than this are not kept of one member (20 bytes each on the wire, 24 in the worker).
const MOST_SAMPLES: u32 = 20_000_000;

/// What a trial needs to know besides its plan.
#[derive(Debug, Clone, Copy)]
pub struct Surroundings<'a> {
    /// Where programs are.
    pub settings: &'a Settings,
    /// What workers load.
    pub libtorch: &'a Libtorch,
    /// The GPU with its layout as it is now; none: the CPU.
    pub device: Option<&'a AppliedLayout>,
    /// Processors to share among workers.
    pub processors: &'a [u32],
    /// Members of the plan's largest cohort.
    pub largest: usize,
    /// The job's identity.
    pub job: &'a str,
    /// Seed of parameters and inputs.
    pub seed: u64,
}

/// Runs one trial. `stop` becomes a reason when the job is cancelled; `breaks` ends with a reason when what the trial runs
/// on can't be relied on any more; `phase` hears where the trial stands.
pub async fn run(
    around: Surroundings<'_>,
    trial: &PlannedTrial,
    stop: watch::Receiver<Option<String>>,
    breaks: impl Future<Output = String>,
    phase: impl FnMut(Phase),
) -> TrialRecord {
    let began = clock::pair();
    let mut record = TrialRecord {
        format: RECORD_FORMAT,
        trial: trial.clone(),
        outcome: Outcome::Complete,
        began,
        ended: began,
        gpu: around.gpu().cloned(),
        start: None,
        window: None,
        extended: false,
        members: Vec::new(),
        telemetry: Reading::absent("the trial failed before telemetry was read"),
        instance_telemetry: Vec::new(),
        foreign: Vec::new(),
        simulated: around.device.is_some_and(AppliedLayout::is_simulated),
    };
    let troubles = Troubles { stop, breaks: std::pin::pin!(breaks) };
    if let Err(outcome) = attempt(around, trial, troubles, phase, &mut record).await {
        record.outcome = outcome;
    }
    record.ended = clock::pair();
    record
}

/// Everything that may fail before or after the cohort itself; the cohort's own outcome goes into the record.
async fn attempt(
    around: Surroundings<'_>,
    trial: &PlannedTrial,
    mut troubles: Troubles<'_, impl Future<Output = String>>,
    phase: impl FnMut(Phase),
    record: &mut TrialRecord,
) -> Result<(), Outcome> {
    let allocations = match around.device {
        None => vec![Allocation::Cpu; trial.spec.members.len()],
        Some(device) => device.allocations(&trial.spec).map_err(|reason| Outcome::Failed { reason })?,
    };
    let (sampler, unsampled) = match around.gpu() {
        None => (None, "on the CPU there is no device to ask".to_owned()),
        Some(gpu) => match start_sampler(around.settings.nvml.clone(), gpu, &allocations).await {
            Ok(sampler) => (Some(sampler), String::new()),
            Err(reason) => (None, reason),
        },
    };
    let mps = tokio::select! {
        started = MpsGroup::start(around.settings, &allocations) => {
            started.map_err(|error| Outcome::Failed { reason: chain(&error) })
        }
        (abort, reason) = troubles.next() => Err(outcome_of(CohortError::Aborted { cause: abort, reason })),
    }?;
    let assignment = affinity::assign(around.processors, trial.spec.members.len(), around.largest);
    let configs = member_configs(around, trial, &allocations, &assignment);
    let mut crew = Crew { workers: Vec::new(), mps, sampler, ready: vec![None; configs.len()], spawned: Vec::new() };
    let driven = crew.drive(around, &configs, &assignment, troubles, phase).await;
    (record.telemetry, record.instance_telemetry) = match crew.sampler.take() {
        Some(sampler) => stop_sampler(sampler).await,
        None => (Reading::Absent(unsampled), Vec::new()),
    };
    let servers = crew.end().await;
    match driven {
        Ok(result) => fill(record, result, configs, assignment, &crew, &servers),
        Err(error) => record.outcome = outcome_of(error),
    }
    Ok(())
}

fn member_configs(
    around: Surroundings<'_>,
    trial: &PlannedTrial,
    allocations: &[Allocation],
    assignment: &Assignment,
) -> Vec<MemberConfig> {
    let members = u32::try_from(allocations.len()).unwrap_or(u32::MAX);
    let one = |(member, workload): (u32, &migperf_core::workload::Workload)| MemberConfig {
        protocol: PROTOCOL,
        member,
        members,
        cohort: format!("{}-{}", around.job, trial.index),
        workload: workload.clone(),
        allocation: allocations[member as usize].clone(),
        timing: trial.spec.timing,
        seed: around.seed,
        threads: u32::try_from(assignment.processors[member as usize].len()).unwrap_or(1),
        sample_capacity: MOST_SAMPLES,
    };
    (0..members).zip(&trial.spec.members).map(one).collect()
}

/// The processes of one trial.
struct Crew {
    workers: Vec<Worker>,
    mps: Option<MpsGroup>,
    sampler: Option<Sampler>,
    /// When each worker was started.
    spawned: Vec<MonotonicNanos>,
    /// How long each took to be Ready, in nanoseconds.
    ready: Vec<Option<u64>>,
}

impl Crew {
    async fn drive(
        &mut self,
        around: Surroundings<'_>,
        configs: &[MemberConfig],
        assignment: &Assignment,
        mut troubles: Troubles<'_, impl Future<Output = String>>,
        mut phase: impl FnMut(Phase),
    ) -> Result<CohortResult, CohortError> {
        let (sender, mut events) = mpsc::channel(64);
        let mut cohort = Cohort::new(configs.to_vec(), self.mps.is_some(), clock::now());
        for (member, config) in configs.iter().enumerate() {
            let launch = self.launch(around, config, &assignment.processors[member]);
            self.spawned.push(clock::now());
            let worker = Worker::start(member, &around.settings.launcher, launch, sender.clone()).await;
            self.workers.push(worker.map_err(|error| CohortError::Member { member, message: chain(&error) })?);
        }
        let mut shown = None;
        let mut proved = None;
        let mut watched: Option<Interval> = None;
        loop {
            let now = clock::now();
            let standing = cohort.phase(now);
            if shown.replace(standing) != Some(standing) {
                phase(standing);
            }
            if let (Some(sampler), Some(window)) = (&self.sampler, cohort.window())
                && watched != Some(window)
            {
                sampler.watch_closely(window.from);
                sampler.watch_closely(window.to);
                watched = Some(window);
            }
            let event = match proved.take() {
                Some(proof) => Event::MpsProved(proof),
                None => tokio::select! {
                    event = events.recv() => event.unwrap_or(Event::Tick),
                    () = tokio::time::sleep(cohort.wake_at(now).since(now)) => Event::Tick,
                    (abort, reason) = troubles.next() => Event::Abort(abort, reason),
                    reason = mps_ended(self.mps.as_mut()) => Event::Abort(Abort::Failed, reason),
                },
            };
            let now = clock::now();
            if let Event::Message(member, FromWorker::Ready(_)) = &event {
                self.ready[*member] = Some(now.0.saturating_sub(self.spawned[*member].0));
            }
            for action in cohort.on(now, event) {
                match action {
                    Action::Send(member, message) => {
                        // A worker that is gone is told by its own event.
                        if let Err(error) = self.workers[member].send(&message).await {
                            tracing::debug!(member, %error, "a message was not delivered");
                        }
                    }
                    Action::ProveMps(members) => {
                        let members: Vec<(u32, &Allocation)> =
                            members.into_iter().zip(configs.iter().map(|config| &config.allocation)).collect();
                        proved = Some(match &mut self.mps {
                            Some(group) => group.prove(&members).await,
                            None => Err("there is no control daemon".to_owned()),
                        });
                    }
                    Action::WindowClosed => {}
                    Action::Finished => {
                        phase(Phase::Finished);
                        return cohort.into_result().expect("a finished cohort has a result");
                    }
                }
            }
        }
    }

    /// What a launcher is told: the program, and every variable that steers CUDA or libtorch.
    fn launch(&self, around: Surroundings<'_>, config: &MemberConfig, processors: &[u32]) -> ToWorker {
        let path = |path: &Path| path.display().to_string();
        let mut libraries = vec![path(&around.libtorch.folder)];
        libraries.splice(0..0, around.settings.cuda_directory.as_deref().map(path));
        let device = match &config.allocation {
            Allocation::Cpu => String::new(),
            Allocation::Cuda { uuid, .. } => uuid.to_string(),
        };
        let mut environment = vec![
            ("LD_LIBRARY_PATH".to_owned(), libraries.join(":")),
            ("CUDA_VISIBLE_DEVICES".to_owned(), device),
            ("CUDA_DEVICE_ORDER".to_owned(), "PCI_BUS_ID".to_owned()),
            ("OMP_NUM_THREADS".to_owned(), config.threads.to_string()),
        ];
        // A directory that holds no control daemon: the worker can't become a client of somebody else's.
        let without = || vec![("CUDA_MPS_PIPE_DIRECTORY".to_owned(), "/nonexistent/migperf-without-mps".to_owned())];
        let mps = self.mps.as_ref().and_then(|group| group.environment(&config.allocation));
        environment.extend(mps.unwrap_or_else(without));
        if let Allocation::Cuda { active_thread_percentage: Some(percentage), .. } = config.allocation {
            environment.push(("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE".to_owned(), percentage.to_string()));
        }
        ToWorker::Launch(Launch {
            protocol: PROTOCOL,
            program: path(&around.settings.worker),
            environment,
            processors: processors.to_vec(),
            parent: Some(std::process::id()),
        })
    }

    /// Ends every process: first by closing connections, then by force. Returns the MPS servers there were.
    async fn end(&mut self) -> Vec<u32> {
        // All at once, so that several that hang cost the time of one.
        let limit = tokio::time::Instant::now() + LEAVE_LIMIT;
        for worker in &mut self.workers {
            worker.hang_up().await;
        }
        for worker in &mut self.workers {
            if !worker.ends_by(limit).await {
                if let Some(group) = &mut self.mps {
                    group.terminate_client(worker.pid()).await;
                }
                worker.kill().await;
            }
        }
        match self.mps.take() {
            Some(group) => group.stop().await,
            None => Vec::new(),
        }
    }
}

/// What ends a trial from outside.
struct Troubles<'a, F> {
    /// A reason, once the job is cancelled.
    stop: watch::Receiver<Option<String>>,
    /// Ends with a reason when what the trial runs on breaks.
    breaks: std::pin::Pin<&'a mut F>,
}

impl<F: Future<Output = String>> Troubles<'_, F> {
    async fn next(&mut self) -> (Abort, String) {
        tokio::select! {
            reason = stopped(&mut self.stop) => (Abort::Cancelled, reason),
            reason = self.breaks.as_mut() => (Abort::Failed, reason),
        }
    }
}

impl Surroundings<'_> {
    fn gpu(&self) -> Option<&Gpu> {
        self.device.map(AppliedLayout::gpu)
    }
}

/// Waits for the end of the MPS control daemon, without which its clients can't go on.
async fn mps_ended(group: Option<&mut MpsGroup>) -> String {
    match group {
        Some(group) => group.died().await,
        None => std::future::pending().await,
    }
}

/// Waits until there is a reason to stop; for ever if nobody can give one any more.
async fn stopped(stop: &mut watch::Receiver<Option<String>>) -> String {
    let reason = stop.wait_for(Option::is_some).await.ok().and_then(|reason| reason.clone());
    match reason {
        Some(reason) => reason,
        None => std::future::pending().await,
    }
}

fn fill(
    record: &mut TrialRecord,
    result: CohortResult,
    configs: Vec<MemberConfig>,
    assignment: Assignment,
    crew: &Crew,
    servers: &[u32],
) {
    record.start = Some(result.start);
    record.window = Some(result.window);
    record.extended = result.extended;
    let ours: BTreeSet<u32> = crew
        .workers
        .iter()
        .map(Worker::pid)
        .chain(result.members.iter().map(|m| m.pid))
        .chain(servers.iter().copied())
        .collect();
    record.foreign = foreign(record.telemetry.value(), result.window, &ours);
    if !record.foreign.is_empty() {
        let pids: Vec<String> = record.foreign.iter().map(|process| process.pid.to_string()).collect();
        let reason = format!("other processes used the GPU meanwhile: pid {}", pids.join(", "));
        record.outcome = Outcome::Contaminated { reason };
    }
    record.members = result
        .members
        .into_iter()
        .zip(configs)
        .enumerate()
        .map(|(member, (found, config))| MemberRecord {
            pid: found.pid,
            digest: config.digest(),
            allocation: config.allocation,
            processors: assignment.processors[member].clone(),
            processors_disjoint: assignment.disjoint,
            ready_after_ns: crew.ready[member].unwrap_or_default(),
            built: found.built,
            ready: found.ready,
            done: found.done,
            samples: found.samples,
        })
        .collect();
}

/// Processes that are not ours, seen on the device within the window. Where none of ours was ever seen, NVML's process
/// ids are of another namespace, and nothing can be told.
fn foreign(telemetry: Option<&TelemetrySeries>, window: Interval, ours: &BTreeSet<u32>) -> Vec<GpuProcess> {
    let Some(series) = telemetry else { return Vec::new() };
    let looks = series.processes.iter().enumerate().filter(|(index, seen)| {
        let until = series.processes.get(index + 1).map_or(window.to, |next| next.at);
        seen.at < window.to && until >= window.from
    });
    let seen: BTreeSet<&GpuProcess> = looks.filter_map(|(_, seen)| seen.processes.value()).flatten().collect();
    if !seen.iter().any(|process| ours.contains(&process.pid)) {
        return Vec::new();
    }
    seen.into_iter().filter(|process| !ours.contains(&process.pid)).cloned().collect()
}

fn outcome_of(error: CohortError) -> Outcome {
    match error {
        CohortError::DoesNotFit { member, detail } => {
            Outcome::DoesNotFit { member: u32::try_from(member).unwrap_or(u32::MAX), detail }
        }
        CohortError::Aborted { cause: Abort::Cancelled, reason } => Outcome::Cancelled { reason },
        CohortError::Aborted { cause: Abort::Contaminated, reason } => Outcome::Contaminated { reason },
        CohortError::Aborted { cause: Abort::Failed, reason } => Outcome::Failed { reason },
        other => Outcome::Failed { reason: other.to_string() },
    }
}

async fn start_sampler(
    nvml: Option<std::path::PathBuf>,
    gpu: &Gpu,
    allocations: &[Allocation],
) -> Result<Sampler, String> {
    // Instances follow their GPU, which has the device's power and energy.
    let mut devices = vec![DeviceUuid::Gpu(gpu.uuid.clone())];
    for allocation in allocations {
        if let Allocation::Cuda { uuid, .. } = allocation
            && !devices.contains(uuid)
        {
            devices.push(uuid.clone());
        }
    }
    let start = move || Sampler::start(nvml.as_deref(), devices, TELEMETRY_PERIOD);
    match tokio::task::spawn_blocking(start).await {
        Ok(started) => started.map_err(|error| chain(&error)),
        Err(error) => Err(error.to_string()),
    }
}

/// The GPU's series, and those of its instances.
async fn stop_sampler(sampler: Sampler) -> (Reading<TelemetrySeries>, Vec<TelemetrySeries>) {
    match tokio::task::spawn_blocking(move || sampler.stop()).await {
        Ok(series) => {
            let mut series = series.into_iter();
            let gpu = series.next().map_or_else(|| Reading::absent("no device was sampled"), Reading::Value);
            (gpu, series.collect())
        }
        Err(error) => (Reading::Absent(error.to_string()), Vec::new()),
    }
}
