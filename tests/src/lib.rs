//! What the end-to-end tests share: a daemon of their own in a directory of its own, and a client's side of its interface.
//!
//! The programs are the built ones, in the folder that `MIGPERF_BIN_DIR` names; `cargo xtask test` builds them and says
//! where they and libtorch are. A test that misses them fails.

pub mod layout;
pub mod paced;
pub mod processes;
pub mod simulation;

use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use migperf_dbus::document;
use migperf_dbus::names::{job as key, submit};
use migperf_dbus::proxy::{JobProxy, ManagerProxy};
use migperf_dbus::{Keyed, names};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
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

/// Variables for a program's environment.
pub type Environment = Vec<(String, PathBuf)>;

/// The variable that marks everything a daemon started.
pub const MARK: &str = "RUN_OF_TEST";

/// Fills `folder` with links to the built programs, the worker being another program.
///
/// # Panics
/// If a link can't be made.
pub fn link_programs(folder: &Path, worker: &Path) {
    for name in ["migperfd", "migperfctl", "migperf-worker", "migperf-helper"] {
        symlink(programs().join(name), folder.join(name)).expect("a link");
    }
    symlink(worker, folder.join("migperf-worker-torch")).expect("a link");
}

/// A daemon, its state directory and a connection to it. It is killed when dropped.
#[derive(Debug)]
pub struct Daemon {
    /// Where it keeps its jobs.
    pub state: PathBuf,
    /// The first client's connection.
    pub connection: Connection,
    /// The value of [`MARK`] in the environment of everything it starts.
    pub mark: String,
    child: Child,
}

impl Daemon {
    /// Starts a daemon as a client would, with one end of a socket pair as its standard input.
    ///
    /// # Panics
    /// If it can't be started.
    pub async fn start(state: &Path, environment: &[(String, PathBuf)]) -> Self {
        static DAEMONS: AtomicU32 = AtomicU32::new(0);
        let mark = format!("{}-{}", std::process::id(), DAEMONS.fetch_add(1, Ordering::Relaxed));
        let (ours, theirs) = UnixStream::pair().expect("a socket pair");
        let child = Command::new(programs().join("migperfd"))
            .args(["--peer", "--state-directory"])
            .arg(state)
            .env("MIGPERF_BIN_DIR", programs())
            .env(MARK, &mark)
            .env("MIGPERF_LOG", std::env::var("MIGPERF_LOG").unwrap_or_else(|_| "warn".to_owned()))
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()
            .expect("migperfd starts");
        let connection = Builder::unix_stream(ours).p2p().build().await.expect("the daemon speaks D-Bus");
        Self { state: state.to_path_buf(), connection, mark, child }
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

    /// Waits until a job's current trial is in a phase.
    ///
    /// # Panics
    /// If that takes longer than `limit`, or the job ends before.
    pub async fn wait_for_phase(&self, job: u32, phase: &str, limit: Duration) {
        let (object, deadline) = (self.job(job).await, Instant::now() + limit);
        loop {
            let progress = object.progress().await.expect("the job is an object");
            if text(&progress, key::PHASE).as_deref() == Some(phase) {
                return;
            }
            let state = object.state().await.expect("the job is an object");
            let going = matches!(state.as_str(), "queued" | "waiting-for-gpu" | "running");
            assert!(going && Instant::now() < deadline, "job {job} is {state}, not {phase}: {progress:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Why a job waits or how it failed.
    ///
    /// # Panics
    /// If the job is no object.
    pub async fn reason(&self, job: u32) -> String {
        let progress = self.job(job).await.progress().await.expect("the job is an object");
        text(&progress, key::REASON).unwrap_or_default()
    }

    /// A stored job as the list shows it.
    ///
    /// # Panics
    /// If it isn't in the list's first page.
    pub async fn listed(&self, job: u32) -> Keyed {
        let (rows, _) = self.manager().await.list_jobs(&Keyed::new(), "", 100).await.expect("a list");
        rows.into_iter().find(|row| number(row, key::ID) == Some(job)).expect("the job is in the list")
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

    /// Asks the daemon to end, and waits until it has.
    ///
    /// # Panics
    /// If it doesn't within `limit`.
    pub async fn terminate(mut self, limit: Duration) -> ExitStatus {
        let pid = Pid::from_raw(i32::try_from(self.pid()).expect("a process id"));
        kill(pid, Signal::SIGTERM).expect("a signal");
        self.ended(limit).await
    }

    async fn ended(&mut self, limit: Duration) -> ExitStatus {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait().expect("it can be waited for") {
                return status;
            }
            assert!(Instant::now() < deadline, "the daemon goes on after {limit:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
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
        let status = self.ended(limit).await;
        assert!(status.success(), "the daemon ended with {status}");
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A text among keyed values.
#[must_use]
pub fn text(keyed: &Keyed, key: &str) -> Option<String> {
    keyed.get(key).and_then(|value| value.downcast_ref::<&str>().ok()).map(str::to_owned)
}

/// A number among keyed values.
#[must_use]
pub fn number(keyed: &Keyed, key: &str) -> Option<u32> {
    keyed.get(key).and_then(|value| value.downcast_ref::<u32>().ok())
}
