//! Records of jobs that never ran, made by rule: the same bytes each time.

use std::time::Duration;

use migperf_core::device::{
    Architecture, ComputeMode, CudaVersion, Gpu, GpuProcess, Inventory, MigMode, NvmlLibrary, ProcessKind, Reading,
    Virtualization,
};
use migperf_core::ids::{GpuUuid, JobUid};
use migperf_core::plan::Plan;
use migperf_core::record::{
    ClockPair, Host, JobRecord, JobResults, MemberRecord, Outcome, Owner, RECORD_FORMAT, TrialRecord,
};
use migperf_core::sample::{Interval, Sample, Samples};
use migperf_core::suite::{Suite, Target};
use migperf_core::telemetry::{Column, EnergyEdge, GractStride, SamplingCost, TelemetrySeries, ThrottleReasons};
use migperf_core::trial::{PlannedTrial, Purpose, Sharing, Timing, TrialSpec};
use migperf_core::units::{
    Bytes, Celsius, Megahertz, Millijoules, Milliwatts, MonotonicNanos, Percent, RealtimeNanos, Span,
};
use migperf_core::worker_wire::{Allocation, Built, ConfigDigest, Done, Proof, Ready};
use migperf_core::workload::{Model, Precision, Task, Workload};

pub(crate) const GPU: &str = "GPU-5ebe9c2f-a33f-4a4c-bb17-7d1f4c1c4d3e";
pub(crate) const OTHER_GPU: &str = "GPU-11111111-a33f-4a4c-bb17-7d1f4c1c4d3e";
pub(crate) const MS: u64 = 1_000_000;
/// Power of the device, constant, in milliwatts.
pub(crate) const POWER: u32 = 400_000;

pub(crate) fn resnet18(task: Task) -> Workload {
    Workload::new(Model::Resnet18, task, 32, Precision::Fp32)
}

pub(crate) fn timing(window_ms: u64, minimum_batches: u32) -> Timing {
    let ms = |ms| Span(Duration::from_millis(ms));
    Timing {
        warmup_batches: 20,
        warmup: ms(3_000),
        settle: ms(3_000),
        window: ms(window_ms),
        longest_window: ms(3 * window_ms),
        minimum_batches,
        ready_limit: ms(120_000),
    }
}

pub(crate) fn batch(start: u64, end: u64) -> Sample {
    Sample { start: MonotonicNanos(start), end: MonotonicNanos(end), items: 32 }
}

/// Batches of one length one after another over a span, all in milliseconds.
pub(crate) fn steady(from: u64, to: u64, length: u64) -> Vec<Sample> {
    (0..(to - from) / length).map(|i| batch((from + i * length) * MS, (from + (i + 1) * length) * MS)).collect()
}

fn reading<T>(value: T) -> Reading<T> {
    Reading::Value(value)
}

pub(crate) fn gpu() -> Gpu {
    Gpu {
        index: 0,
        uuid: GPU.parse().unwrap(),
        name: reading("NVIDIA Example".into()),
        architecture: reading(Architecture::Hopper),
        compute_capability: reading(CudaVersion { major: 9, minor: 0 }),
        pci_bus_id: reading("00000000:18:00.0".into()),
        memory_total: reading(Bytes(150_754_820_096)),
        memory_used: reading(Bytes(0)),
        multiprocessors: reading(132),
        compute_mode: reading(ComputeMode::Default),
        persistence: reading(true),
        mig: reading(MigMode::Disabled),
        virtualization: reading(Virtualization::None),
        instances: reading(Vec::new()),
        processes: reading(Vec::new()),
        power_limit: reading(Milliwatts(700_000)),
        clock_sm_max: reading(Megahertz(1_980)),
        clock_memory_max: reading(Megahertz(3_201)),
        gpm: reading(true),
    }
}

/// A device that draws [`POWER`] and holds `memory`, looked at ten times a second.
pub(crate) fn telemetry(from_ms: u64, to_ms: u64, memory: u64) -> TelemetrySeries {
    let stamps: Vec<u64> = (from_ms..=to_ms).step_by(100).collect();
    let rows = stamps.len();
    TelemetrySeries {
        device: GPU.parse().unwrap(),
        period_ns: 100 * MS,
        monotonic: stamps.iter().map(|ms| MonotonicNanos(ms * MS)).collect(),
        realtime: stamps.iter().map(|ms| RealtimeNanos(ms * MS)).collect(),
        power_instant: Column::Values(vec![Some(Milliwatts(POWER)); rows]),
        power_average: Column::Values(vec![Some(Milliwatts(POWER)); rows]),
        memory_used: Column::Values(vec![Some(Bytes(memory)); rows]),
        memory_total: reading(Bytes(150_754_820_096)),
        utilization_gpu: Column::Values(vec![Some(Percent(97)); rows]),
        utilization_memory: Column::Values(vec![Some(Percent(40)); rows]),
        clock_sm: Column::Values(vec![Some(Megahertz(1_980)); rows]),
        clock_memory: Column::Values(vec![Some(Megahertz(3_201)); rows]),
        temperature: Column::Values(vec![Some(Celsius(55)); rows]),
        throttle: Column::Values(vec![Some(ThrottleReasons(0)); rows]),
        energy: reading(
            stamps
                .iter()
                .map(|ms| EnergyEdge { at: MonotonicNanos(ms * MS), value: Millijoules(u64::from(POWER) / 1_000 * ms) })
                .collect(),
        ),
        gract: reading(
            stamps
                .iter()
                .step_by(5)
                .map(|ms| GractStride {
                    from: MonotonicNanos(ms * MS),
                    to: MonotonicNanos((ms + 500) * MS),
                    value: Some(0.875),
                })
                .collect(),
        ),
        processes: Vec::new(),
        gaps: Vec::new(),
        cost: SamplingCost::default(),
    }
}

pub(crate) fn foreign() -> GpuProcess {
    GpuProcess {
        pid: 4711,
        kind: ProcessKind::Compute,
        program: Some("/usr/bin/python3".into()),
        memory: None,
        gpu_instance: None,
        compute_instance: None,
    }
}

fn member(index: usize, sharing: &Sharing, samples: Vec<Sample>) -> MemberRecord {
    let number = u32::try_from(index).unwrap();
    let cpu = *sharing == Sharing::Cpu;
    let uuid = GPU.parse::<GpuUuid>().unwrap();
    let device = migperf_core::ids::DeviceUuid::Gpu(uuid);
    let digest = ConfigDigest(format!("{index:064x}"));
    let processors = vec![4 * number, 4 * number + 1];
    MemberRecord {
        pid: 1_000 + number,
        allocation: if cpu {
            Allocation::Cpu
        } else {
            Allocation::Cuda {
                uuid: device.clone(),
                multiprocessors: Some(132),
                memory: Bytes(150_754_820_096),
                mps: matches!(sharing, Sharing::Mps { .. }),
                active_thread_percentage: None,
                simulated: false,
            }
        },
        processors: processors.clone(),
        processors_disjoint: true,
        digest: digest.clone(),
        ready_after_ns: 5_250 * MS,
        built: Built {
            proof: Proof {
                devices: u32::from(!cpu),
                uuid: (!cpu).then_some(device),
                name: (!cpu).then(|| "NVIDIA Example".into()),
                multiprocessors: (!cpu).then_some(132),
                memory: None,
                mps: None,
                driver_version: None,
                processors,
            },
            parameters: 11_689_512,
            engine: "libtorch 2.11.0".into(),
            elapsed_ns: 2_000 * MS,
        },
        ready: Ready { digest, batches: 20, first_ns: 150 * MS, typical_ns: 10 * MS },
        done: Done {
            samples: samples.len() as u64,
            lost: 0,
            started: samples.first().map_or(MonotonicNanos(0), |first| first.start),
            allocated_peak: (!cpu).then_some(Bytes(2 << 30)),
            reserved_peak: (!cpu).then_some(Bytes(3 << 30)),
            resident_peak: Some(Bytes(1 << 30)),
            finite: Some(true),
        },
        samples: Samples::new(samples).unwrap(),
    }
}

/// A complete trial over a window in milliseconds, from what each member ran.
pub(crate) fn record(trial: PlannedTrial, window_ms: (u64, u64), batches: Vec<Vec<Sample>>) -> TrialRecord {
    let (from, to) = window_ms;
    let cpu = trial.spec.sharing == Sharing::Cpu;
    let clocks = |ms: u64| ClockPair {
        realtime: RealtimeNanos(1_767_225_600_000 * MS + ms * MS),
        monotonic: MonotonicNanos(ms * MS),
    };
    let members: Vec<_> =
        batches.into_iter().enumerate().map(|(index, samples)| member(index, &trial.spec.sharing, samples)).collect();
    TrialRecord {
        format: RECORD_FORMAT,
        outcome: Outcome::Complete,
        began: clocks(from.saturating_sub(10_000)),
        ended: clocks(to + 1_500),
        gpu: (!cpu).then(gpu),
        start: Some(MonotonicNanos(from.saturating_sub(3_000) * MS)),
        window: Some(Interval { from: MonotonicNanos(from * MS), to: MonotonicNanos(to * MS) }),
        extended: false,
        telemetry: if cpu {
            Reading::absent("no GPU takes part")
        } else {
            reading(telemetry(from.saturating_sub(500), to + 500, (members.len() as u64) << 31))
        },
        members,
        instance_telemetry: Vec::new(),
        foreign: Vec::new(),
        simulated: false,
        trial,
    }
}

/// The first trial of a plan of one.
pub(crate) fn planned(spec: TrialSpec) -> PlannedTrial {
    PlannedTrial { index: 0, cell: 0, repeat: 0, purpose: Purpose::Requested, spec }
}

/// Milliseconds that a batch takes on average, in tenths: more for training, more with company.
fn tenths(spec: &TrialSpec, workload: &Workload) -> u64 {
    let alone = if workload.task == Task::Train { 240 } else { 80 };
    let company = spec.members.len() as u64;
    match spec.sharing {
        Sharing::Mps { .. } => alone * (3 + 7 * company) / 10,
        _ => alone * company,
    }
}

/// Numbers without a pattern that matters (SplitMix64).
fn noise(seed: u64) -> u64 {
    let z = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// What a trial would leave behind if each member ran at its pace, a little unsteady.
pub(crate) fn run(trial: &PlannedTrial) -> TrialRecord {
    let spec = &trial.spec;
    let window = u64::try_from(spec.timing.window.0.as_millis()).unwrap();
    let from = 100_000 * (u64::from(trial.index) + 1);
    let batches = spec.members.iter().enumerate().map(|(index, workload)| {
        let seed = u64::from(trial.index) << 40 | (index as u64) << 32;
        // Each cohort is a little faster or slower as a whole, by up to 0.5 %.
        let pace = tenths(spec, workload) * (9_950 + noise(u64::from(trial.index)) % 101);
        let mut at = (from - 3_000) * MS + noise(seed) % (200_000);
        let mut batches = Vec::new();
        while at < (from + window + 200) * MS {
            let length = pace * 10 * (9_700 + noise(seed + 1 + batches.len() as u64) % 601) / 10_000;
            batches.push(batch(at, at + length));
            at += length + 20_000;
        }
        batches
    });
    let batches = batches.collect();
    record(trial.clone(), (from, from + window), batches)
}

pub(crate) fn results(plan: Plan, trials: Vec<TrialRecord>) -> JobResults {
    let cpu = plan.target == Target::Cpu;
    JobResults {
        layout: None,
        job: JobRecord {
            format: RECORD_FORMAT,
            uid: JobUid("0123456789abcdef0123456789abcdef".into()),
            suite: String::new(),
            suite_digest: "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855".into(),
            plan,
            host: Host {
                name: "example".into(),
                id: Reading::absent("the host has no machine id"),
                kernel: "6.12.0".into(),
                processor: reading("Example CPU".into()),
                processors: 16,
                memory: reading(Bytes(128 << 30)),
            },
            inventory: Inventory {
                nvml: if cpu {
                    Reading::absent("libnvidia-ml.so.1 is not installed")
                } else {
                    reading(NvmlLibrary {
                        library: "libnvidia-ml.so.1".into(),
                        driver_version: reading("580.159.04".into()),
                        nvml_version: reading("13.580.159.04".into()),
                        cuda_driver_version: reading(CudaVersion { major: 13, minor: 0 }),
                        simulated: false,
                    })
                },
                gpus: if cpu { Vec::new() } else { vec![gpu()] },
                silent: Vec::new(),
            },
            version: "0.1.0".into(),
            libtorch: reading("2.11.0".into()),
            submitted: RealtimeNanos(1_767_225_600_000 * MS),
            owner: Owner { uid: 1_000, name: Some("someone".into()) },
        },
        trials,
    }
}

/// A job over a suite in which all went well.
pub(crate) fn job(suite: &str, target: Target) -> JobResults {
    let plan = Plan::expand(&Suite::parse(suite).unwrap(), target).unwrap();
    let trials = plan.trials.iter().map(run).collect();
    results(plan, trials)
}

pub(crate) const REPEATED: &str = r#"
version = 1
name = "synthetic"
description = "Numbers made by rule."
[defaults]
precision = "fp32"
window = "12s"
repeats = 3
[objective]
metric = "p99"
at-most = "30ms"
of = "infer"
[[trial]]
sharing = ["exclusive"]
workload = { model = "resnet18", task = ["train", "infer"], batch-size = 32 }
[[trial]]
sharing = ["time-slice", "mps"]
workers = [1, 4]
workload = { model = "resnet18", task = "infer", batch-size = 32 }
[[trial]]
sharing = ["time-slice"]
members = [
  { count = 1, workload = { model = "resnet18", task = "infer", batch-size = 32 } },
  { count = 2, workload = { model = "resnet18", task = "train", batch-size = 32 } },
]
"#;

pub(crate) const TROUBLED: &str = r#"
version = 1
name = "troubled"
[defaults]
precision = "fp32"
window = "10s"
repeats = 1
[[trial]]
sharing = ["exclusive"]
workload = { model = "resnet18", task = ["train", "infer"], batch-size = 32 }
[[trial]]
sharing = ["mps"]
members = [
  { count = 1, workload = { model = "resnet18", task = "infer", batch-size = 32 } },
  { count = 1, workload = { model = "resnet18", task = "train", batch-size = 32 } },
]
[[trial]]
sharing = ["time-slice"]
workers = [2, 3]
workload = { model = "resnet18", task = "train", batch-size = 32 }
"#;

/// A simulated job in which much went wrong: throttled, contaminated, thin, failed, too big, and cut short.
pub(crate) fn troubled() -> JobResults {
    let mut results = job(TROUBLED, Target::Gpu);
    results.trials.truncate(8);
    for (trial, record) in results.trials.iter_mut().enumerate() {
        record.simulated = true;
        let failed = match trial {
            0 => {
                if let Reading::Value(series) = &mut record.telemetry {
                    let rows = series.monotonic.len();
                    series.throttle = Column::Values(vec![Some(ThrottleReasons(0x24)); rows]);
                }
                None
            }
            2 => Some(Outcome::Failed { reason: "member 0 ended early: \x1b[2Jkilled by signal 9".into() }),
            3 => {
                Some(Outcome::DoesNotFit { member: 0, detail: "tried to allocate 20.00 GiB, 3.12 GiB are free".into() })
            }
            4 => {
                record.members[1].done.lost = 3;
                None
            }
            5 => {
                record.foreign.push(foreign());
                None
            }
            6 => Some(Outcome::Cancelled { reason: "cancelled by someone".into() }),
            _ => None,
        };
        if let Some(outcome) = failed {
            record.outcome = outcome;
            record.members.clear();
            record.window = None;
            record.start = None;
        }
    }
    results
}
