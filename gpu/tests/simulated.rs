//! The crate against simulated machines. Each test runs in a process of its own, because a simulated NVML knows one
//! machine for as long as it is loaded.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use migperf_core::device::{
    Architecture, ComputeMode, CudaVersion, Inventory, MigMode, Placement, ProcessKind, Reading, Virtualization,
};
use migperf_core::ids::DeviceUuid;
use migperf_core::telemetry::TelemetrySeries;
use migperf_core::units::{Bytes, Milliwatts, MonotonicNanos};
use migperf_gpu::library::{Nvml, NvmlError};
use migperf_gpu::sampler::{Sampler, SamplerError};
use sim_machine::machine::Machine;
use sim_machine::process::Process;
use sim_machine::shared::{MACHINE, STATE, Shared, now_ns};
use sim_machine::state::{Context, Role, State};

const PERIOD: Duration = Duration::from_millis(100);
const MIB: u64 = 1024 * 1024;
/// The file by which a test's own process says that it ran.
const RAN: &str = "ran";

/// A simulated machine and the library to see it through.
struct Simulation {
    library: PathBuf,
    shared: Shared,
}

impl Simulation {
    fn nvml(&self) -> Nvml {
        Nvml::open(Some(&self.library)).unwrap()
    }

    fn inventory(&self) -> Inventory {
        self.nvml().inventory()
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        self.shared.update(|_, state| change(state)).unwrap();
    }

    fn start(&self, devices: &[DeviceUuid]) -> Sampler {
        Sampler::start(Some(&self.library), devices.to_vec(), PERIOD).unwrap()
    }

    /// The first GPU.
    fn gpu(&self) -> DeviceUuid {
        DeviceUuid::Gpu(self.inventory().gpus[0].uuid.clone())
    }
}

/// Runs `test` (of the test function's name) in a process that sees the machine.
fn on_machine(name: &str, description: &str, test: impl FnOnce(&Simulation)) {
    let folder = tempfile::tempdir().unwrap();
    let (Some(machine), Some(state)) = (std::env::var_os(MACHINE), std::env::var_os(STATE)) else {
        sim_machine::install::build().unwrap();
        let machine = folder.path().join("machine.json");
        std::fs::write(&machine, description).unwrap();
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env(MACHINE, machine)
            .env(STATE, folder.path().join("state"))
            .status()
            .unwrap();
        assert!(status.success(), "{name} failed on its machine");
        // A name that is no test's would run nothing and succeed.
        assert!(folder.path().join(RAN).exists(), "`{name}` is not the test's own name");
        return;
    };
    let library = sim_machine::install::build().unwrap().join("libnvidia_ml_sim.so");
    let state = PathBuf::from(state);
    let ran = state.with_file_name(RAN);
    let shared = Shared::new(Machine::read(Path::new(&machine)).unwrap(), Some(state));
    test(&Simulation { library, shared });
    std::fs::write(ran, "").unwrap();
}

fn worker(instance: Option<(u32, u32)>) -> Context {
    Context { process: Process::current(), role: Role::Compute, instance, memory_mb: 500 }
}

fn monotonic() -> MonotonicNanos {
    MonotonicNanos(now_ns())
}

fn sleep(milliseconds: u64) {
    std::thread::sleep(Duration::from_millis(milliseconds));
}

#[test]
fn a_plain_h200_tells_everything() {
    let description = r#"{ "gpus": [ { "model": "H200-141", "virtualization": 1 } ] }"#;
    on_machine("a_plain_h200_tells_everything", description, |simulation| {
        let inventory = simulation.inventory();
        assert!(inventory.is_simulated());
        let nvml = inventory.nvml.value().unwrap();
        assert_eq!(nvml.driver_version, Reading::Value("580.159.04-SIMULATED".to_owned()));
        assert_eq!(nvml.cuda_driver_version, Reading::Value(CudaVersion { major: 13, minor: 0 }));
        let [gpu] = &inventory.gpus[..] else { panic!("{inventory:?}") };
        assert_eq!(gpu.name, Reading::Value("NVIDIA H200".to_owned()));
        assert_eq!(gpu.architecture, Reading::Value(Architecture::Hopper));
        assert_eq!(gpu.compute_capability, Reading::Value(CudaVersion { major: 9, minor: 0 }));
        assert_eq!(gpu.memory_total, Reading::Value(Bytes(143_771 * MIB)));
        assert_eq!(gpu.multiprocessors, Reading::Value(132));
        assert_eq!(gpu.compute_mode, Reading::Value(ComputeMode::Default));
        assert_eq!(gpu.persistence, Reading::Value(true));
        assert_eq!(gpu.mig, Reading::Value(MigMode::Disabled));
        assert_eq!(gpu.virtualization, Reading::Value(Virtualization::Passthrough));
        assert_eq!(gpu.instances, Reading::Value(Vec::new()));
        assert_eq!(gpu.processes, Reading::Value(Vec::new()));
        assert_eq!(gpu.power_limit, Reading::Value(Milliwatts(700_000)));
        assert_eq!(gpu.pci_bus_id, Reading::Value("00000000:18:00.0".to_owned()));
        assert_eq!(gpu.gpm, Reading::Value(true));
        assert_eq!(inventory.silent, []);
    });
}

#[test]
fn machines_of_every_kind_are_described() {
    let description = r#"{ "gpus": [
        { "model": "A100-40", "mig": "pending", "compute-mode": "exclusive-process" },
        { "model": "A30-24", "mig": "unsupported", "compute-mode": "prohibited", "virtualization": 2 },
        { "model": "H100-80-SXM" } ] }"#;
    on_machine("machines_of_every_kind_are_described", description, |simulation| {
        simulation.change(|state| state.gpus[2].lost = true);
        let inventory = simulation.inventory();
        let [a100, a30] = &inventory.gpus[..] else { panic!("{inventory:?}") };
        assert_eq!(a100.mig, Reading::Value(MigMode::Pending { current: false, pending: true }));
        assert_eq!(a100.compute_mode, Reading::Value(ComputeMode::ExclusiveProcess));
        assert_eq!((&a100.multiprocessors, &a100.gpm), (&Reading::Value(108), &Reading::Value(false)));
        assert_eq!(a30.mig, Reading::Value(MigMode::Unsupported));
        assert_eq!(a30.compute_mode, Reading::Value(ComputeMode::Prohibited));
        assert_eq!(a30.virtualization, Reading::Value(Virtualization::Vgpu));
        assert_eq!(inventory.silent.len(), 1);
        assert_eq!((inventory.silent[0].index, inventory.silent[0].reason.contains("lost")), (2, true));
    });
}

#[test]
fn mig_devices_are_listed_with_their_place() {
    let description = r#"{ "gpus": [ { "model": "H200-141", "mig": "enabled", "instances": [
        { "profile": "3g.71gb", "start": 4, "compute": [1, 2] },
        { "profile": "2g.35gb", "start": 2, "compute": [] },
        { "profile": "1g.18gb", "start": 0 } ] } ] }"#;
    on_machine("mig_devices_are_listed_with_their_place", description, |simulation| {
        simulation.change(|state| state.gpus[0].contexts.push(worker(Some((2, 1)))));
        let inventory = simulation.inventory();
        let gpu = &inventory.gpus[0];
        assert_eq!(gpu.mig, Reading::Value(MigMode::Enabled));
        let instances = gpu.instances.value().unwrap();
        let seen: Vec<_> = instances
            .iter()
            .map(|instance| {
                let ids = (instance.gpu_instance.value().copied(), instance.compute_instance.value().copied());
                let slices =
                    (instance.gpu_instance_slices.value().copied(), instance.compute_instance_slices.value().copied());
                (
                    instance.profile.value().unwrap().as_str(),
                    ids,
                    slices,
                    instance.multiprocessors.value().copied(),
                    instance.placement.value().copied(),
                )
            })
            .collect();
        let at = |start, size| Some(Placement { start, size });
        assert_eq!(
            seen,
            [
                ("1c.3g.71gb", (Some(2), Some(0)), (Some(3), Some(1)), Some(20), at(4, 4)),
                ("2c.3g.71gb", (Some(2), Some(1)), (Some(3), Some(2)), Some(40), at(4, 4)),
                ("1g.18gb", (Some(7), Some(0)), (Some(1), Some(1)), Some(16), at(0, 1)),
            ]
        );
        assert_eq!(instances[0].memory_total, Reading::Value(Bytes(71_424 * MIB)));
        let device = DeviceUuid::Mig(instances[1].uuid.clone());
        assert_eq!(inventory.gpu_of(&device).map(|gpu| gpu.index), Some(0));

        // A process is on its MIG device and on the GPU, and on no other device.
        let nvml = simulation.nvml();
        let on = |uuid: &DeviceUuid| nvml.processes(uuid).unwrap();
        let process = on(&device).remove(0);
        assert_eq!(
            (process.pid, process.gpu_instance, process.compute_instance),
            (std::process::id(), Some(2), Some(1))
        );
        assert_eq!(on(&DeviceUuid::Gpu(gpu.uuid.clone())), [process]);
        assert_eq!(on(&DeviceUuid::Mig(instances[0].uuid.clone())), []);
    });
}

#[test]
fn processes_are_told_apart() {
    let description = r#"{ "gpus": [ { "model": "H200-141", "processes": [
        { "pid": 4000001, "program": "/usr/lib/xorg/Xorg", "graphics": true, "memory-mb": 100 },
        { "pid": 4000002, "program": "/opt/train/python3", "memory-mb": 4000 },
        { "pid": 4000003, "program": "nvidia-cuda-mps-server", "memory-mb": 69 } ] } ] }"#;
    on_machine("processes_are_told_apart", description, |simulation| {
        let client = Context { role: Role::MpsClient, ..worker(None) };
        simulation.change(|state| state.gpus[0].contexts.push(client));
        let gpu = simulation.inventory().gpus.remove(0);
        let mut seen: Vec<_> =
            gpu.processes.value().unwrap().iter().map(|process| (process.pid, process.kind)).collect();
        seen.retain(|(pid, _)| *pid != std::process::id());
        let kinds = [ProcessKind::Graphics, ProcessKind::Compute, ProcessKind::Compute];
        assert_eq!(seen, (4_000_001..).zip(kinds).collect::<Vec<_>>());
        let own = gpu.processes.value().unwrap().iter().find(|process| process.pid == std::process::id()).unwrap();
        assert_eq!((own.kind, own.memory), (ProcessKind::MpsClient, Some(Bytes(500 * MIB))));
        assert_eq!(gpu.mps_servers().map(|server| server.pid).collect::<Vec<_>>(), [4_000_003]);
        assert_eq!(gpu.memory_used, Reading::Value(Bytes(4_669 * MIB)));
    });
}

#[test]
fn an_unknown_device_is_an_error() {
    on_machine("an_unknown_device_is_an_error", r#"{ "gpus": [] }"#, |simulation| {
        let device: DeviceUuid = "GPU-5ebe9c2f-a33f-4a4c-bb17-7d1f4c1c4d3e".parse().unwrap();
        assert!(matches!(simulation.nvml().processes(&device), Err(NvmlError::NoSuchDevice { .. })));
        let sampler = Sampler::start(Some(&simulation.library), vec![device], PERIOD);
        assert!(matches!(sampler, Err(SamplerError::Nvml(NvmlError::NoSuchDevice { .. }))));
        assert_eq!(simulation.inventory().gpus, []);
    });
}

/// Energy and its uncertainty in millijoules.
fn energy(series: &TelemetrySeries, from: MonotonicNanos, to: MonotonicNanos) -> (f64, f64) {
    let estimate = series.energy_over(from, to).into_option().unwrap();
    (estimate.energy_mj, estimate.uncertainty_mj)
}

#[test]
fn a_series_follows_the_load() {
    let description = r#"{ "gpus": [ { "model": "H200-141", "idle-watts": 80, "busy-watts": 500 } ] }"#;
    on_machine("a_series_follows_the_load", description, |simulation| {
        let sampler = simulation.start(&[simulation.gpu()]);
        sleep(1_200);
        let busy_from = monotonic();
        simulation.change(|state| state.gpus[0].contexts.push(worker(None)));
        sleep(1_700);
        let busy_to = monotonic();
        sampler.watch_closely(busy_from);
        let series = sampler.stop().remove(0);

        // 80 W idle, 458 W with one worker.
        let margin = Duration::from_millis(150);
        let (from, to) = (busy_from.plus(margin), MonotonicNanos(busy_to.0 - 100_000_000));
        let power = series.power_instant_over(from, to).into_option().unwrap();
        assert!((power.mean - 458_000.0).abs() < 1.0 && power.coverage > 0.9, "{power:?}");
        let idle = series.power_instant_over(MonotonicNanos(busy_from.0 - 800_000_000), busy_from);
        assert!(idle.into_option().unwrap().mean < 120_000.0);
        let (energy_mj, uncertainty) = energy(&series, from, busy_to);
        let truth = 458.0 * (busy_to.0 - from.0) as f64 / 1e6;
        assert!((energy_mj - truth).abs() <= uncertainty, "{energy_mj} is not {truth} ± {uncertainty}");
        assert!(uncertainty < truth / 3.0, "{uncertainty} of {truth}");
        let gract = series.gract_over(from, busy_to).into_option().unwrap();
        assert!((0.6..=0.91).contains(&gract.mean), "{gract:?}");
        assert_eq!(series.utilization_gpu_over(from, to).into_option().unwrap().peak.round(), 90.0);
        assert_eq!(series.memory_used_over(from, to).into_option().unwrap().peak, (500 * MIB) as f64);
        assert_eq!(series.memory_total, Reading::Value(Bytes(143_771 * MIB)));
        assert_eq!(series.gaps, []);
        // Nobody, then this process.
        let changes: Vec<_> = series.processes.iter().map(|seen| seen.processes.value().unwrap().len()).collect();
        assert_eq!(changes, [0, 1]);
        assert!(series.cost.cpu_ns > 0 && series.cost.cpu_ns < series.cost.span_ns);
        // The stamps of both clocks advance together.
        let first = series.realtime[0].0 - series.monotonic[0].0;
        let last = series.realtime.last().unwrap().0 - series.monotonic.last().unwrap().0;
        assert!(first.abs_diff(last) < 50_000_000);
    });
}

#[test]
fn a_mig_device_has_memory_and_activity_of_its_own_and_nothing_else() {
    let description = r#"{ "gpus": [ { "model": "H200-141", "mig": "enabled", "instances": [
        { "profile": "3g.71gb", "start": 4 }, { "profile": "1g.18gb", "start": 0 } ] } ] }"#;
    let name = "a_mig_device_has_memory_and_activity_of_its_own_and_nothing_else";
    on_machine(name, description, |simulation| {
        simulation.change(|state| state.gpus[0].contexts.push(worker(Some((2, 0)))));
        let gpu = simulation.inventory().gpus.remove(0);
        let mut devices = vec![DeviceUuid::Gpu(gpu.uuid.clone())];
        devices.extend(gpu.instances.value().unwrap().iter().map(|instance| DeviceUuid::Mig(instance.uuid.clone())));
        let sampler = simulation.start(&devices);
        sleep(400);
        let from = monotonic();
        sleep(1_100);
        let to = monotonic();
        let series = sampler.stop();
        let [parent, busy, idle] = &series[..] else { panic!("{} series", series.len()) };

        assert!(parent.utilization_gpu.reason().unwrap().contains("not supported"));
        assert!(parent.gract.reason().unwrap().contains("MIG mode"));
        assert!(parent.energy_over(from, to).value().is_some());
        for device in [busy, idle] {
            for reason in [device.power_instant.reason(), device.energy.reason(), device.temperature.reason()] {
                assert!(reason.unwrap().contains("see its GPU"), "{reason:?}");
            }
        }
        let gract = |series: &TelemetrySeries| series.gract_over(from, to).into_option().unwrap().mean;
        assert!((gract(busy) - 0.9).abs() < 0.01 && gract(idle).abs() < 0.01, "{} {}", gract(busy), gract(idle));
        let memory = |series: &TelemetrySeries| series.memory_used_over(from, to).into_option().unwrap().peak;
        assert_eq!((memory(busy), memory(idle)), ((500 * MIB) as f64, 0.0));
        assert_eq!(busy.memory_total, Reading::Value(Bytes(71_424 * MIB)));
        assert_eq!((busy.processes.len(), idle.processes.len()), (1, 1));
    });
}

#[test]
fn ampere_has_no_activity_counters() {
    let description = r#"{ "gpus": [ { "model": "A100-80" } ] }"#;
    on_machine("ampere_has_no_activity_counters", description, |simulation| {
        let sampler = simulation.start(&[simulation.gpu()]);
        sleep(700);
        let series = sampler.stop().remove(0);
        assert_eq!(series.gract.reason(), Some("not supported by this device"));
        assert!(series.monotonic.len() >= 5);
    });
}

#[test]
fn a_gpu_that_is_lost_leaves_a_gap_and_comes_back() {
    let description = r#"{ "gpus": [ { "model": "H200-141" } ] }"#;
    on_machine("a_gpu_that_is_lost_leaves_a_gap_and_comes_back", description, |simulation| {
        let sampler = simulation.start(&[simulation.gpu()]);
        sleep(500);
        simulation.change(|state| state.gpus[0].lost = true);
        let lost = monotonic();
        sleep(800);
        simulation.change(|state| state.gpus[0].lost = false);
        let back = monotonic();
        sleep(500);
        let series = sampler.stop().remove(0);
        let [gap] = &series.gaps[..] else { panic!("{:?}", series.gaps) };
        assert!(gap.reason.contains("lost"), "{gap:?}");
        // A row counts from its beginning, which may lie before the change that its reading saw: by as long as a busy host
        // lets the reading take.
        assert!(gap.from <= lost && gap.to.0 + 3 * series.period_ns >= back.0, "{gap:?}");
        let power = series.power_instant_over(lost, back).into_option();
        assert!(power.is_none_or(|power| power.coverage < 0.5), "{power:?}");
    });
}

#[test]
fn a_driver_that_hangs_does_not_hang_the_caller() {
    let description = r#"{ "gpus": [ { "model": "H200-141" } ] }"#;
    on_machine("a_driver_that_hangs_does_not_hang_the_caller", description, |simulation| {
        let sampler = simulation.start(&[simulation.gpu()]);
        sleep(500);
        simulation.change(|state| state.stalled = true);
        sleep(300);
        let asked = Instant::now();
        let series = sampler.stop().remove(0);
        assert!(asked.elapsed() < Duration::from_secs(3));
        assert!(series.monotonic.len() >= 3);
        assert_eq!(series.gaps.last().unwrap().reason, "NVML did not return from a call");
        simulation.change(|state| state.stalled = false);
    });
}
