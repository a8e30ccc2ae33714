//! The simulated CUDA and MPS through cudarc, which finds them as it finds NVIDIA's. What sees a device is a process of
//! its own: this test program, started again to run only [`probe`].
#![expect(unsafe_code, reason = "calls a C interface")]
#![expect(clippy::print_stdout, reason = "the probe tells what it sees by its output")]

use std::fs::Permissions;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use cudarc::driver::{CudaContext, result, sys};
use sim_machine::machine::Machine;
use sim_machine::shared::{MACHINE, STATE, Shared};
use sim_machine::state::Role;

/// What a probe prints before what it saw.
const SAW: &str = "saw ";

/// Not a test: what a process under test does. It prints what it sees of its devices and keeps a context on the first
/// until its input ends.
#[test]
#[ignore = "run by the other tests, in a process of its own"]
fn probe() {
    let tell = |text: String| println!("\n{SAW}{text}");
    if let Err(error) = result::init() {
        return tell(format!("{:?}", error.0));
    }
    let count = result::device::get_count().unwrap();
    let context = match CudaContext::new(0) {
        Ok(context) => context,
        Err(error) => return tell(format!("{:?}", error.0)),
    };
    let mut uuid = sys::CUuuid { bytes: [0; 16] };
    // SAFETY: `uuid` outlives the call.
    unsafe { sys::cuDeviceGetUuid_v2(&raw mut uuid, context.cu_device()) }.result().unwrap();
    let uuid: String = uuid.bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let attribute = |attribute| context.attribute(attribute).unwrap();
    let multiprocessors = attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    let mps = attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MPS_ENABLED);
    let (name, memory) = (context.name().unwrap(), context.total_mem().unwrap() >> 20);
    tell(format!("{count} {uuid} {multiprocessors} {mps} {memory} {name}"));
    let _ = std::io::stdin().read(&mut [0]);
}

struct Simulation {
    folder: tempfile::TempDir,
    shared: Shared,
}

impl Simulation {
    fn new(description: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        sim_machine::install::install(folder.path()).unwrap();
        std::fs::write(folder.path().join("machine.json"), description).unwrap();
        let shared = Shared::new(Machine::parse(description).unwrap(), Some(folder.path().join("state")));
        Self { folder, shared }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command
            .env("LD_LIBRARY_PATH", self.folder.path())
            .env("CUDA_MPS_PIPE_DIRECTORY", self.path("pipe"))
            .env(MACHINE, self.path("machine.json"))
            .env(STATE, self.path("state"));
        command
    }

    /// Starts a probe with more of an environment.
    fn probe(&self, environment: &[(&str, &str)]) -> Probe {
        let mut command = self.command(&std::env::current_exe().unwrap());
        command.envs(environment.iter().copied());
        Probe::start(command)
    }

    /// The words that a probe prints.
    fn sees(&self, environment: &[(&str, &str)]) -> String {
        self.probe(environment).saw.clone()
    }

    /// Runs a command for the MPS daemon; its answer and whether there was one.
    fn control(&self, command: &str) -> Option<String> {
        let mut child = self
            .command(&self.path("nvidia-cuda-mps-control"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        writeln!(child.stdin.take().unwrap(), "{command}").unwrap();
        let output = child.wait_with_output().unwrap();
        output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
    }

    fn daemon(&self) -> Daemon {
        let child = self.command(&self.path("nvidia-cuda-mps-control")).arg("-f").spawn().unwrap();
        eventually(|| self.control("get_server_list").is_some());
        Daemon(child)
    }

    fn roles(&self) -> Vec<(u32, Role)> {
        let roles = |state: &sim_machine::state::State| {
            let contexts = state.gpus[0].contexts.iter();
            contexts.map(|context| (context.process.pid, context.role)).collect()
        };
        self.shared.read(|_, state| roles(state)).unwrap()
    }
}

struct Probe {
    saw: String,
    child: Child,
    /// Kept open, so that the probe can write until its end.
    _output: BufReader<ChildStdout>,
}

impl Probe {
    fn start(mut program: Command) -> Self {
        let mut child = program
            .args(["--exact", "probe", "--ignored", "--nocapture"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut lines = output.by_ref().lines().map_while(Result::ok);
        let saw = lines.find_map(|line| line.strip_prefix(SAW).map(str::to_owned));
        Self { saw: saw.expect("a probe says what it saw"), child, _output: output }
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        self.child.wait().unwrap();
    }
}

struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn eventually(condition: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < until, "this never came true");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The digits of a UUID, as the probe prints them.
fn digits(uuid: &str) -> String {
    uuid[4..].replace('-', "")
}

const TWO_H200: &str = r#"{ "gpus": [ { "model": "H200-141" }, { "model": "H200-141" } ] }"#;

#[test]
fn a_process_sees_the_gpus_it_is_given() {
    let simulation = Simulation::new(TWO_H200);
    let uuids: Vec<String> =
        simulation.shared.machine().gpus.iter().enumerate().map(|(index, gpu)| gpu.uuid(index)).collect();
    let expect = |count: u32, uuid: &str| format!("{count} {} 132 0 143771 NVIDIA H200", digits(uuid));
    for (visible, expected) in [
        (None, expect(2, &uuids[0])),
        (Some(uuids[1].clone()), expect(1, &uuids[1])),
        (Some(format!("{},{}", uuids[1], uuids[0])), expect(2, &uuids[1])),
        (Some("1".to_owned()), expect(1, &uuids[1])),
        (Some(format!("{},none,{}", uuids[1], uuids[0])), expect(1, &uuids[1])),
        (Some(String::new()), "CUDA_ERROR_NO_DEVICE".to_owned()),
        (Some("GPU-5ebe9c2f-a33f-4a4c-bb17-7d1f4c1c4d3e".to_owned()), "CUDA_ERROR_NO_DEVICE".to_owned()),
    ] {
        let environment: Vec<_> = visible.iter().map(|visible| ("CUDA_VISIBLE_DEVICES", visible.as_str())).collect();
        assert_eq!(simulation.sees(&environment), expected, "{visible:?}");
    }
}

#[test]
fn a_mig_device_is_seen_as_itself() {
    let simulation = Simulation::new(
        r#"{ "gpus": [ { "model": "H200-141", "mig": "enabled", "instances": [
            { "profile": "3g.71gb", "start": 4, "compute": [1, 2] }, { "profile": "1g.18gb", "start": 0 } ] } ] }"#,
    );
    let uuids: Vec<String> = simulation
        .shared
        .read(|_, state| state.gpus[0].mig_devices().map(|(_, ci)| ci.uuid.clone()).collect())
        .unwrap();
    let gpu = simulation.shared.machine().gpus[0].uuid(0);
    for (visible, expected) in [
        (&uuids[1], format!("1 {} 40 0 71424 NVIDIA H200 MIG 2c.3g.71gb", digits(&uuids[1]))),
        (&uuids[2], format!("1 {} 16 0 16384 NVIDIA H200 MIG 1g.18gb", digits(&uuids[2]))),
        (&gpu, "CUDA_ERROR_NO_DEVICE".to_owned()),
    ] {
        assert_eq!(simulation.sees(&[("CUDA_VISIBLE_DEVICES", visible)]), expected);
    }
}

#[test]
fn a_context_lasts_as_long_as_its_process() {
    let simulation = Simulation::new(TWO_H200);
    let mut probe = simulation.probe(&[]);
    assert_eq!(simulation.roles(), [(probe.child.id(), Role::Compute)]);
    probe.child.kill().unwrap();
    eventually(|| simulation.roles().is_empty());
}

#[test]
fn the_compute_mode_keeps_others_out() {
    let simulation = Simulation::new(r#"{ "gpus": [ { "model": "H200-141", "compute-mode": "exclusive-process" } ] }"#);
    let first = simulation.probe(&[]);
    assert!(first.saw.ends_with("NVIDIA H200"), "{}", first.saw);
    assert_eq!(simulation.sees(&[]), "CUDA_ERROR_DEVICE_UNAVAILABLE");
    drop(first);
    assert!(simulation.sees(&[]).ends_with("NVIDIA H200"));
    let simulation = Simulation::new(r#"{ "gpus": [ { "model": "H200-141", "compute-mode": "prohibited" } ] }"#);
    assert_eq!(simulation.sees(&[]), "CUDA_ERROR_DEVICE_UNAVAILABLE");
}

#[test]
fn lies_are_told() {
    let simulation = Simulation::new(
        r#"{ "gpus": [ { "model": "H200-141", "lies": {
            "uuid": "GPU-5ebe9c2f-a33f-4a4c-bb17-7d1f4c1c4d3e", "multiprocessors": 131, "mps": 1 } } ] }"#,
    );
    assert_eq!(simulation.sees(&[]), "1 5ebe9c2fa33f4a4cbb177d1f4c1c4d3e 131 1 143771 NVIDIA H200");
}

#[test]
fn mps_clients_show_all_signs() {
    let simulation = Simulation::new(TWO_H200);
    let daemon = simulation.daemon();
    assert_eq!(simulation.control("get_server_list").unwrap(), "");
    let multiprocessors = |probe: &Probe| probe.saw.split(' ').nth(2).map(str::to_owned).unwrap();
    let enabled = |probe: &Probe| probe.saw.split(' ').nth(3).map(str::to_owned).unwrap();

    let whole = simulation.probe(&[]);
    let part = simulation.probe(&[("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "14")]);
    assert_eq!((multiprocessors(&whole), enabled(&whole)), ("132".to_owned(), "1".to_owned()));
    assert_eq!((multiprocessors(&part), enabled(&part)), ("18".to_owned(), "1".to_owned()));

    let server: u32 = simulation.control("get_server_list").unwrap().trim().parse().unwrap();
    assert_eq!(simulation.control(&format!("get_server_status {server}")).unwrap(), "ACTIVE\n");
    let clients = simulation.control(&format!("get_client_list {server}")).unwrap();
    let pids = [whole.child.id(), part.child.id()];
    assert_eq!(clients, format!("{}\n{}\n", pids[0], pids[1]));
    assert!(simulation.control("ps").unwrap().contains(&pids[1].to_string()));
    assert!(simulation.control("frobnicate").unwrap().contains("not recognized"));
    eventually(|| {
        let mut roles = simulation.roles();
        roles.sort_by_key(|(pid, _)| *pid);
        let mut expected = vec![(server, Role::MpsServer), (pids[0], Role::MpsClient), (pids[1], Role::MpsClient)];
        expected.sort_by_key(|(pid, _)| *pid);
        roles == expected
    });

    drop((whole, part));
    eventually(|| simulation.control(&format!("get_client_list {server}")).as_deref() == Some(""));
    assert_eq!(simulation.control("set_default_active_thread_percentage 50").unwrap(), "50.0\n");
    assert_eq!(multiprocessors(&simulation.probe(&[("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "80")])), "66");
    simulation.control("quit");
    let mut daemon = daemon;
    assert!(daemon.0.wait().unwrap().success());
    assert_eq!(simulation.control("ps"), None, "nobody answers any more");
    eventually(|| simulation.roles().is_empty());
}

#[test]
fn without_a_living_daemon_there_is_no_mps_and_no_error() {
    let simulation = Simulation::new(TWO_H200);
    let mps = |saw: String| saw.split(' ').nth(3).map(str::to_owned);
    assert_eq!(mps(simulation.sees(&[("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "14")])).as_deref(), Some("0"));
    let daemon = simulation.daemon();
    let client = simulation.probe(&[]);
    let server: u32 = simulation.control("get_server_list").unwrap().trim().parse().unwrap();
    drop(daemon);
    // The server ends with the daemon; the socket stays and leads nowhere.
    eventually(|| !simulation.roles().contains(&(server, Role::MpsServer)));
    assert!(simulation.path("pipe/control").exists());
    assert_eq!(mps(simulation.sees(&[])).as_deref(), Some("0"));
    drop(client);
}

#[test]
fn a_client_of_another_user_is_refused() {
    if !nix::unistd::Uid::effective().is_root() {
        eprintln!("skipped: only root can start a process of another user");
        return;
    }
    let simulation = Simulation::new(TWO_H200);
    // Everything that the other user runs lies where he can reach it.
    let folder = simulation.folder.path();
    std::fs::set_permissions(folder, Permissions::from_mode(0o755)).unwrap();
    let library = simulation.path("libcuda.so.1");
    let built = std::fs::canonicalize(&library).unwrap();
    std::fs::remove_file(&library).unwrap();
    std::fs::copy(built, &library).unwrap();
    let program = simulation.path("probe");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();

    let _daemon = simulation.daemon();
    let first = simulation.probe(&[]);
    assert!(first.saw.contains(" 132 1 "), "{}", first.saw);
    let mut command = simulation.command(&program);
    command.uid(65_534);
    assert_eq!(Probe::start(command).saw, "CUDA_ERROR_MPS_CONNECTION_FAILED");
}
