//! MPS through the helper on a real GPU, proved by all three signs, and gone again whatever is killed. Nothing of the GPU's
//! settings is changed.
//!
//! Run on a GPU machine by `tests/gpu/run.sh helper`, as root: `MIGPERF_HELPER` and `MIGPERF_LAUNCHER` name the programs,
//! `MIGPERF_MPS_CLIENT` the script `tests/gpu/mps_client.py`.

use std::io::{BufRead as _, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use migperf_core::device::ProcessKind;
use migperf_core::ids::DeviceUuid;
use migperf_dbus::Keyed;
use migperf_dbus::helper::{HelperProxy, mps};
use migperf_gpu::library::Nvml;
use serde_json::Value;
use zbus::connection::Builder;

/// `nobody` of every distribution: the clients' user, and so the daemon's.
const NOBODY: u32 = 65_534;

fn named(variable: &str) -> PathBuf {
    let path = std::env::var_os(variable).map(PathBuf::from);
    path.unwrap_or_else(|| panic!("{variable} is not set: tests/gpu/run.sh sets it"))
}

/// Where programs and scripts are that another user may run: the folder is root's, and open.
struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        for (variable, name) in [
            ("MIGPERF_HELPER", "migperf-helper"),
            ("MIGPERF_LAUNCHER", "migperf-worker"),
            ("MIGPERF_MPS_CLIENT", "mps_client.py"),
        ] {
            let copy = folder.path().join(name);
            std::fs::copy(named(variable), &copy).unwrap();
            std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        let control = String::from_utf8(Command::new("which").arg("nvidia-cuda-mps-control").output().unwrap().stdout);
        let file = |name: &str| folder.path().join(name).display().to_string();
        let config = format!(
            "mps-control = \"{}\"\nlauncher = \"{}\"\nstate-directory = \"{}\"\nruntime-directory = \"{}\"\n",
            control.unwrap().trim(),
            file("migperf-worker"),
            file("state"),
            file("run"),
        );
        std::fs::write(folder.path().join("helper.toml"), config).unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

/// A helper at the other end of a socket pair.
struct Helper {
    child: Child,
    proxy: HelperProxy<'static>,
}

impl Helper {
    async fn start(place: &Place) -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let child = Command::new(place.path("migperf-helper"))
            .args(["--peer", "--config"])
            .arg(place.path("helper.toml"))
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .spawn()
            .unwrap();
        ours.set_nonblocking(true).unwrap();
        let connection = Builder::unix_stream(ours).p2p().build().await.unwrap();
        Self { child, proxy: HelperProxy::new(&connection).await.unwrap() }
    }

    /// Starts a control daemon. Returns its pipe directory and process, and what keeps it alive.
    async fn mps(&self, device: &str, percent: u32, limit_gib: Option<u64>) -> (PathBuf, u32, std::io::PipeWriter) {
        let (alive, keep) = std::io::pipe().unwrap();
        let mut options = Keyed::from([(mps::ACTIVE_THREAD_PERCENTAGE.to_owned(), percent.into())]);
        if let Some(limit) = limit_gib {
            options.insert(mps::PINNED_MEMORY_LIMIT_BYTES.to_owned(), (limit << 30).into());
        }
        let started = self.proxy.start_mps(device, NOBODY, OwnedFd::from(alive).into(), &options).await.unwrap();
        let pipe: String = started[mps::PIPE_DIRECTORY].try_clone().unwrap().try_into().unwrap();
        let pid: u32 = started[mps::PID].try_clone().unwrap().try_into().unwrap();
        (PathBuf::from(pipe), pid, keep)
    }
}

/// A CUDA process of [`NOBODY`].
struct Client {
    child: Child,
    seen: Value,
}

impl Client {
    fn start(place: &Place, device: &str, pipe: &Path, mebibytes: &[&str]) -> Self {
        let mut child = Command::new("python3")
            .arg(place.path("mps_client.py"))
            .args(mebibytes)
            .env("CUDA_VISIBLE_DEVICES", device)
            .env("CUDA_MPS_PIPE_DIRECTORY", pipe)
            .current_dir("/")
            .uid(NOBODY)
            .gid(NOBODY)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let seen = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: `{line}`"));
        Self { child, seen }
    }

    fn ends(mut self) {
        drop(self.child.stdin.take());
        let deadline = Instant::now() + Duration::from_secs(20);
        while self.child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "a client does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Programs of MPS that run.
fn programs() -> Vec<String> {
    let output = Command::new("pgrep").args(["-a", "nvidia-cuda-mps"]).output().unwrap();
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

fn gone(what: &str) {
    let began = Instant::now();
    while !programs().is_empty() {
        assert!(began.elapsed() < Duration::from_secs(20), "{what}: {:?}", programs());
        std::thread::sleep(Duration::from_millis(50));
    }
    eprintln!("{what}: no MPS program runs after {} ms", began.elapsed().as_millis());
}

fn control(pipe: &Path, command: &str) -> String {
    use std::io::Write as _;
    let mut session = Command::new("nvidia-cuda-mps-control")
        .env("CUDA_MPS_PIPE_DIRECTORY", pipe)
        .uid(NOBODY)
        .gid(NOBODY)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    session.stdin.take().unwrap().write_all(format!("{command}\n").as_bytes()).unwrap();
    String::from_utf8(session.wait_with_output().unwrap().stdout).unwrap()
}

/// The three signs: the attribute, the control daemon's list and NVML's, and the multiprocessors.
fn prove(client: &Client, device: &DeviceUuid, pipe: &Path, multiprocessors: u64) {
    assert_eq!(client.seen["mps"], 1, "{}", client.seen);
    assert_eq!(client.seen["multiprocessors"], multiprocessors, "{}", client.seen);
    let pid = client.seen["pid"].as_u64().unwrap();
    let server = control(pipe, "get_server_list");
    let clients = control(pipe, &format!("get_client_list {}", server.trim()));
    assert!(clients.split_whitespace().any(|word| word == pid.to_string()), "{pid} is not among {clients}");
    let processes = Nvml::open(None).unwrap().processes(device).unwrap();
    let listed =
        processes.iter().any(|process| u64::from(process.pid) == pid && process.kind == ProcessKind::MpsClient);
    assert!(listed, "{processes:?}");
}

#[test]
#[ignore = "needs a GPU, root and nvidia-cuda-mps-control: tests/gpu/run.sh helper"]
fn mps_is_proved_and_gone_whatever_is_killed() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        assert!(programs().is_empty(), "somebody runs MPS here: {:?}", programs());
        let gpu = Nvml::open(None).unwrap().inventory().gpus.remove(0);
        let whole = u64::from(*gpu.multiprocessors.value().unwrap());
        let device = DeviceUuid::Gpu(gpu.uuid.clone());
        let uuid = gpu.uuid.as_str().to_owned();
        let place = Place::new();
        let mut helper = Helper::start(&place).await;

        // 14 percent, with a memory limit.
        let (pipe, pid, keep) = helper.mps(&uuid, 14, Some(4)).await;
        let owner = std::fs::metadata(format!("/proc/{pid}")).map(|found| std::os::unix::fs::MetadataExt::uid(&found));
        assert_eq!(owner.unwrap(), NOBODY, "the control daemon has no privilege");
        let capped = Client::start(&place, &uuid, &pipe, &["1024", "8192"]);
        let reduced = capped.seen["multiprocessors"].as_u64().unwrap();
        assert!(reduced <= whole * 14 / 100 + 1 && reduced > 0, "{reduced} of {whole}");
        prove(&capped, &device, &pipe, reduced);
        let codes: Vec<i64> =
            capped.seen["allocations"].as_array().unwrap().iter().map(|it| it[1].as_i64().unwrap()).collect();
        assert!(codes[0] == 0 && codes[1] == 2, "1 GiB of 4 fits, 8 do not: {codes:?}");
        eprintln!(
            "14 %: {reduced} of {whole} multiprocessors; 4 GiB limit: 1 GiB code {}, 8 GiB code {}",
            codes[0], codes[1]
        );
        capped.ends();
        helper.proxy.stop_mps(&uuid, &Keyed::new()).await.unwrap();
        drop(keep);
        gone("StopMps");

        // 100 percent; the caller goes away.
        let (pipe, _, keep) = helper.mps(&uuid, 100, None).await;
        let full = Client::start(&place, &uuid, &pipe, &["8192"]);
        prove(&full, &device, &pipe, whole);
        assert_eq!(full.seen["allocations"][0][1], 0);
        eprintln!("100 %: {whole} of {whole} multiprocessors; no limit: 8 GiB code 0");
        full.ends();
        drop(keep);
        gone("the caller's end");

        // The control daemon is killed: its server goes too, and the helper starts another.
        let (pipe, pid, keep) = helper.mps(&uuid, 50, None).await;
        let client = Client::start(&place, &uuid, &pipe, &[]);
        assert_eq!(client.seen["mps"], 1);
        Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap();
        client.ends();
        gone("kill -9 of the control daemon");
        let _ = helper.proxy.stop_mps(&uuid, &Keyed::new()).await;
        drop(keep);

        // The server is killed.
        let (pipe, _, keep) = helper.mps(&uuid, 50, None).await;
        let client = Client::start(&place, &uuid, &pipe, &[]);
        let server = control(&pipe, "get_server_list");
        Command::new("kill").args(["-9", server.trim()]).status().unwrap();
        let mut client = client;
        client.child.kill().unwrap();
        client.child.wait().unwrap();
        helper.proxy.stop_mps(&uuid, &Keyed::new()).await.unwrap();
        drop(keep);
        gone("kill -9 of the server, then StopMps");

        // The helper itself is killed.
        let (pipe, _, _keep) = helper.mps(&uuid, 50, None).await;
        let client = Client::start(&place, &uuid, &pipe, &[]);
        assert_eq!(client.seen["mps"], 1);
        helper.child.kill().unwrap();
        helper.child.wait().unwrap();
        client.ends();
        gone("kill -9 of the helper");
        let without = Client::start(&place, &uuid, &pipe, &[]);
        eprintln!("with the directory of the killed one a client sees MPS = {}", without.seen["mps"]);
        without.ends();
    });
}
