//! What the end-to-end tests share: a daemon of their own in a directory of its own, and a client's side of its interface.
//!
//! The programs are the built ones, in the folder that `MIGPERF_BIN_DIR` names; `cargo xtask test` builds them and says
//! where they and libtorch are. A test that misses them fails.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use migperf_dbus::document;
use migperf_dbus::names::submit;
use migperf_dbus::proxy::{JobProxy, ManagerProxy};
use migperf_dbus::{Keyed, names};
use zbus::Connection;
use zbus::connection::Builder;

/// The folder of the built programs.
///
/// # Panics
/// If `MIGPERF_BIN_DIR` doesn't name it.
#[must_use]
pub fn programs() -> PathBuf {
    let folder = std::env::var_os("MIGPERF_BIN_DIR").map(PathBuf::from);
    let folder = folder
        .expect("MIGPERF_BIN_DIR is not set: run `cargo xtask test`, or build the programs and name their folder");
    assert!(folder.join("migperfd").is_file(), "{} holds no migperfd", folder.display());
    folder
}

/// A daemon, its state directory and a connection to it. It is killed when dropped.
#[derive(Debug)]
pub struct Daemon {
    /// Where it keeps its jobs.
    pub state: PathBuf,
    /// The first client's connection.
    pub connection: Connection,
    child: Child,
}

impl Daemon {
    /// Starts a daemon as a client would, with one end of a socket pair as its standard input.
    ///
    /// # Panics
    /// If it can't be started.
    pub async fn start(state: &Path, environment: &[(&str, &Path)]) -> Self {
        let (ours, theirs) = UnixStream::pair().expect("a socket pair");
        let child = Command::new(programs().join("migperfd"))
            .args(["--peer", "--state-directory"])
            .arg(state)
            .env("MIGPERF_BIN_DIR", programs())
            .envs(environment.iter().copied())
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()
            .expect("migperfd starts");
        let connection = Builder::unix_stream(ours).p2p().build().await.expect("the daemon speaks D-Bus");
        Self { state: state.to_path_buf(), connection, child }
    }

    /// The daemon's manager.
    ///
    /// # Panics
    /// If the connection is unusable.
    pub async fn manager(&self) -> ManagerProxy<'static> {
        ManagerProxy::new(&self.connection).await.expect("a proxy")
    }

    /// Submits a suite for a device, attached to this connection or not.
    ///
    /// # Errors
    /// As the daemon answers.
    pub async fn submit(&self, suite: &str, device: &str, attached: bool) -> Result<u32, migperf_dbus::error::Error> {
        let document = document::seal(suite.as_bytes()).expect("a memory file");
        let options = Keyed::from([
            (submit::DEVICE.to_owned(), zbus::Str::from(device.to_owned()).into()),
            (submit::ATTACHED.to_owned(), attached.into()),
        ]);
        let path = self.manager().await.submit_job(document.into(), &options).await?;
        Ok(names::job_of_path(path.as_str()).expect("a job's path"))
    }

    /// A job's object.
    ///
    /// # Panics
    /// If the connection is unusable.
    pub async fn job(&self, job: u32) -> JobProxy<'static> {
        let builder = JobProxy::builder(&self.connection).destination(names::SERVICE).path(names::job_path(job));
        builder.cache_properties(zbus::proxy::CacheProperties::No).build().await.expect("a proxy")
    }

    /// Waits until a job is in one of the states, and says which.
    ///
    /// # Panics
    /// If that takes longer than `limit`.
    pub async fn wait_for(&self, job: u32, states: &[&str], limit: Duration) -> String {
        let (object, deadline) = (self.job(job).await, Instant::now() + limit);
        loop {
            let state = object.state().await.expect("the job is an object");
            if states.contains(&state.as_str()) {
                return state;
            }
            assert!(Instant::now() < deadline, "job {job} is still {state}: {:?}", object.progress().await);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// A job's report.
    ///
    /// # Panics
    /// If there is none.
    pub async fn report(&self, job: u32) -> serde_json::Value {
        let document = self.manager().await.open_report(job, "json", &Keyed::new()).await.expect("a report");
        let bytes = document::read(document.into(), document::LONGEST_REPORT).expect("a sealed document");
        serde_json::from_slice(&bytes).expect("a report is JSON")
    }

    /// The daemon's process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills the daemon as nobody can prevent.
    ///
    /// # Panics
    /// If it can't be waited for.
    pub fn kill(&mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it can be waited for");
    }

    /// Closes the connection and waits until the daemon ends of itself.
    ///
    /// # Panics
    /// If it doesn't within `limit`.
    pub async fn leave(mut self, limit: Duration) {
        self.connection.clone().close().await.expect("it can be closed");
        let deadline = Instant::now() + limit;
        while self.child.try_wait().expect("it can be waited for").is_none() {
            assert!(Instant::now() < deadline, "the daemon goes on without a client");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Processes whose program has this name and that descend from, or were started by, nobody else: found by environment.
///
/// # Panics
/// If /proc can't be read.
#[must_use]
pub fn processes_named(program: &str) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").expect("/proc");
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let runs = |pid: &u32| std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe.ends_with(program));
    pids.filter(runs).collect()
}
