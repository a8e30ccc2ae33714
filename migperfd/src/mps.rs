//! An MPS control daemon of our own for one device of a cohort: private directories, stopped again whatever happens.
//!
//! It runs in the foreground under the launcher, so that the kernel ends it with this daemon; when a control daemon ends, its
//! server does too. CUDA runs silently without MPS when it can't reach one: the cohort's proof asks here for its clients.

mod group;

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use migperf_core::ids::DeviceUuid;
use nix::unistd::{Gid, Uid, getgroups};
use tokio::io::AsyncWriteExt as _;

pub use self::group::MpsGroup;
use crate::workers::{BoundProcess, ProcessEnd, WorkerError};

/// Directories are named so, then for this daemon's process.
const PREFIX: &str = "migperf-mps-";
/// How long one command of a control session may take.
const COMMAND_LIMIT: Duration = Duration::from_secs(10);
/// How long the control daemon may take to answer for the first time.
const START_LIMIT: Duration = Duration::from_secs(20);
/// How long it may take to stop after `quit`.
const STOP_LIMIT: Duration = Duration::from_secs(15);

/// Why MPS can't be had.
#[derive(Debug, thiserror::Error)]
pub enum MpsError {
    /// No program.
    #[error("nvidia-cuda-mps-control is not installed; it comes with the NVIDIA driver's compute programs")]
    NoProgram,
    /// No directory.
    #[error("can't make a directory for the MPS control daemon")]
    Directory(#[source] std::io::Error),
    /// Its clients can't walk to its sockets.
    #[error("MPS clients can't reach their control daemon: user {uid} may not enter {}; let it, or name another folder with TMPDIR", .folder.display())]
    Unreachable {
        /// The folder in the way.
        folder: PathBuf,
        /// The clients' user.
        uid: u32,
    },
    /// The control daemon can't be started.
    #[error("can't start the MPS control daemon")]
    Start(#[source] WorkerError),
    /// It ended or did not answer.
    #[error("the MPS control daemon does not answer: {0}")]
    Silent(String),
    /// A control session failed.
    #[error("the MPS control command `{command}` failed: {detail}")]
    Command {
        /// What was asked.
        command: String,
        /// What happened.
        detail: String,
    },
}

/// A running control daemon. Dropped, it is killed, and its directories are removed.
#[derive(Debug)]
pub struct MpsDaemon {
    program: PathBuf,
    directory: PathBuf,
    process: BoundProcess,
    /// Its servers, as far as they were seen.
    pub servers: Vec<u32>,
}

impl MpsDaemon {
    /// Starts one for one device and waits until it answers.
    ///
    /// # Errors
    /// If there is no program, or it does not answer in time.
    pub async fn start(program: Option<&Path>, launcher: &Path, device: &DeviceUuid) -> Result<Self, MpsError> {
        let program = program.ok_or(MpsError::NoProgram)?.to_path_buf();
        // Sockets live there, whose paths must be short; clients of the same user must be able to walk it.
        let parent = std::env::temp_dir();
        sweep(&parent);
        let directory = nix::unistd::mkdtemp(&parent.join(format!("{PREFIX}{}-XXXXXX", std::process::id())))
            .map_err(|errno| MpsError::Directory(errno.into()))?;
        let process = begin(&program, launcher, device, &directory).inspect_err(|_| remove(&directory))?;
        let mut daemon = Self { program, directory, process, servers: Vec::new() };
        let deadline = tokio::time::Instant::now() + START_LIMIT;
        loop {
            let answer = daemon.command("get_server_list").await;
            if answer.is_ok() {
                return Ok(daemon);
            }
            if let Some(how) = daemon.process.ended(Duration::from_millis(200)).await {
                return Err(MpsError::Silent(format!("it ended: {how}{}", daemon.log())));
            }
            if tokio::time::Instant::now() >= deadline {
                let detail = answer.err().map(|error| error.to_string()).unwrap_or_default();
                daemon.process.kill().await;
                return Err(MpsError::Silent(format!("{detail}{}", daemon.log())));
            }
        }
    }

    /// Its end, to be waited for.
    fn watch(&self) -> ProcessEnd {
        self.process.end()
    }

    /// What a client's environment must name.
    #[must_use]
    pub fn environment(&self) -> Vec<(String, String)> {
        environment(&self.directory).map(|(name, path)| (name.to_owned(), path.display().to_string())).into()
    }

    /// Checks that every process is a client of one of this daemon's servers.
    ///
    /// # Errors
    /// Says which are not, or why the question failed.
    pub async fn prove(&mut self, members: &[u32]) -> Result<(), String> {
        let clients = self.clients().await.map_err(|error| error.to_string())?;
        let missing: Vec<String> = members
            .iter()
            .filter(|pid| !clients.iter().any(|(_, client)| client == *pid))
            .map(u32::to_string)
            .collect();
        if missing.is_empty() {
            Ok(())
        } else {
            let known: Vec<String> = clients.iter().map(|(_, client)| client.to_string()).collect();
            Err(format!("pid {} not among the control daemon's clients ({})", missing.join(", "), known.join(", ")))
        }
    }

    /// Every server with each of its clients.
    async fn clients(&mut self) -> Result<Vec<(u32, u32)>, MpsError> {
        let mut clients = Vec::new();
        for server in numbers(&self.command("get_server_list").await?) {
            if !self.servers.contains(&server) {
                self.servers.push(server);
            }
            let listed = self.command(&format!("get_client_list {server}")).await?;
            clients.extend(numbers(&listed).into_iter().map(|client| (server, client)));
        }
        Ok(clients)
    }

    /// Takes a client from its server before it is killed: killing a client that the server still knows can hang the others.
    pub async fn terminate_client(&mut self, pid: u32) {
        let Ok(clients) = self.clients().await else { return };
        for (server, client) in clients.into_iter().filter(|(_, client)| *client == pid) {
            if let Err(error) = self.command(&format!("terminate_client {server} {client}")).await {
                tracing::warn!(pid, %error, "an MPS client could not be terminated");
            }
        }
    }

    /// Stops it; its directories go with it.
    pub async fn stop(mut self) {
        if let Err(error) = self.command("quit -t 5").await {
            tracing::warn!(%error, "the MPS control daemon did not take `quit`");
        }
        if self.process.ended(STOP_LIMIT).await.is_none() {
            self.process.kill().await;
        }
    }

    /// One control session: a command in, its answer out.
    async fn command(&self, command: &str) -> Result<String, MpsError> {
        let failed = |detail: String| MpsError::Command { command: command.to_owned(), detail };
        let mut child = tokio::process::Command::new(&self.program)
            .envs(environment(&self.directory))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| failed(error.to_string()))?;
        let mut input = child.stdin.take().expect("standard input is a pipe");
        let session = async {
            input.write_all(format!("{command}\n").as_bytes()).await?;
            drop(input);
            child.wait_with_output().await
        };
        let output = tokio::time::timeout(COMMAND_LIMIT, session)
            .await
            .map_err(|_| failed(format!("no answer within {COMMAND_LIMIT:?}")))?
            .map_err(|error| failed(error.to_string()))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            Ok(text)
        } else {
            let errors = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(failed(format!("{} {errors} {}", output.status, text.trim())))
        }
    }

    /// The last lines of the control daemon's log, for a message.
    fn log(&self) -> String {
        let text = std::fs::read_to_string(self.directory.join("log/control.log")).unwrap_or_default();
        let last: Vec<&str> = text.lines().rev().take(3).collect();
        if last.is_empty() {
            String::new()
        } else {
            format!("; its log ends: {}", last.into_iter().rev().collect::<Vec<_>>().join(" | "))
        }
    }
}

impl Drop for MpsDaemon {
    fn drop(&mut self) {
        self.process.kill_now();
        remove(&self.directory);
    }
}

fn begin(program: &Path, launcher: &Path, device: &DeviceUuid, directory: &Path) -> Result<BoundProcess, MpsError> {
    for part in ["pipe", "log"] {
        std::fs::create_dir(directory.join(part)).map_err(MpsError::Directory)?;
    }
    // Workers run under this daemon's user.
    is_reachable(&directory.join("pipe"), Uid::effective(), &getgroups().unwrap_or_default())?;
    let mut command = Command::new(launcher);
    command
        .args(["--bound", &std::process::id().to_string()])
        .arg(program)
        .arg("-f")
        .envs(environment(directory))
        .env("CUDA_VISIBLE_DEVICES", device.as_str())
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    BoundProcess::start(command).map_err(MpsError::Start)
}

/// Whether the workers' user can walk to a directory: CUDA runs silently without MPS where it can't.
fn is_reachable(directory: &Path, uid: Uid, groups: &[Gid]) -> Result<(), MpsError> {
    // From the top, so that the first folder in the way is named.
    let folders: Vec<&Path> = directory.ancestors().collect();
    for folder in folders.into_iter().rev() {
        let found = folder.metadata().map_err(MpsError::Directory)?;
        let class = if found.uid() == uid.as_raw() {
            0o100
        } else if groups.iter().any(|group| group.as_raw() == found.gid()) {
            0o010
        } else {
            0o001
        };
        if !uid.is_root() && found.mode() & class == 0 {
            return Err(MpsError::Unreachable { folder: folder.to_owned(), uid: uid.as_raw() });
        }
    }
    Ok(())
}

fn environment(directory: &Path) -> [(&'static str, PathBuf); 2] {
    [("CUDA_MPS_PIPE_DIRECTORY", directory.join("pipe")), ("CUDA_MPS_LOG_DIRECTORY", directory.join("log"))]
}

/// Removes the directories of daemons that were killed: of this user, and named for a process that is gone.
fn sweep(parent: &Path) {
    let Ok(entries) = std::fs::read_dir(parent) else { return };
    for entry in entries.filter_map(Result::ok) {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split('-').next()?.parse::<u32>().ok());
        let own = entry.metadata().is_ok_and(|found| found.is_dir() && found.uid() == nix::unistd::geteuid().as_raw());
        if own && owner.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
            remove(&entry.path());
        }
    }
}

fn numbers(text: &str) -> Vec<u32> {
    text.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

fn remove(directory: &Path) {
    if let Err(error) = std::fs::remove_dir_all(directory) {
        tracing::warn!(directory = %directory.display(), %error, "an MPS directory could not be removed");
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_folder_that_clients_may_not_enter_is_named() {
        let parent = tempfile::tempdir().unwrap();
        let (closed, pipe) = (parent.path().join("closed"), parent.path().join("closed/pipe"));
        std::fs::create_dir_all(&pipe).unwrap();
        let stranger = Uid::from_raw(4_000_000);
        let check = |mode: u32, uid: Uid, groups: &[Gid]| {
            std::fs::set_permissions(parent.path(), Permissions::from_mode(0o755)).unwrap();
            std::fs::set_permissions(&closed, Permissions::from_mode(mode)).unwrap();
            is_reachable(&pipe, uid, groups)
        };
        check(0o711, stranger, &[]).unwrap();
        check(0o700, Uid::effective(), &[]).unwrap();
        check(0o710, stranger, &[Gid::effective()]).unwrap();
        for (mode, groups) in [(0o700, vec![]), (0o710, vec![]), (0o701, vec![Gid::effective()])] {
            let error = check(mode, stranger, &groups).unwrap_err().to_string();
            assert!(error.contains(&format!("user 4000000 may not enter {};", closed.display())), "{error}");
        }
    }

    /// Killing a client that its server still knows can hang the others: the control daemon is asked first.
    #[tokio::test]
    async fn a_client_is_taken_from_its_server_by_command() {
        let folder = tempfile::tempdir().unwrap();
        let script = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
            std::fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
            path
        };
        let launcher = script("launcher", "shift 2; exec \"$@\"");
        let asked = folder.path().join("asked");
        let control = script(
            "control",
            &format!(
                "[ \"$1\" = -f ] && exec sleep 60\nread -r command; echo \"$command\" >> {}\n\
                 case \"$command\" in get_server_list) echo 71;; 'get_client_list 71') echo 801 802;; esac",
                asked.display()
            ),
        );
        let device: DeviceUuid = DeviceUuid::Gpu("GPU-5ebe9c2f-a33f-4a4c-bb17-7d1f4c1c4d3e".parse().unwrap());
        let mut daemon = MpsDaemon::start(Some(&control), &launcher, &device).await.unwrap();
        daemon.prove(&[801, 802]).await.unwrap();
        assert!(daemon.prove(&[801, 803]).await.unwrap_err().contains("pid 803 not among"));
        daemon.terminate_client(802).await;
        let asked = std::fs::read_to_string(asked).unwrap();
        assert_eq!(asked.lines().last(), Some("terminate_client 71 802"), "{asked}");
        let directory = daemon.directory.clone();
        drop(daemon);
        assert!(!directory.exists(), "its directories go with it");
    }

    #[test]
    fn only_the_directories_of_dead_daemons_are_swept() {
        let parent = tempfile::tempdir().unwrap();
        let mut child = Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let dead = parent.path().join(format!("{PREFIX}{}-abcdef", child.id()));
        let kept = [format!("{PREFIX}{}-abcdef", std::process::id()), format!("{PREFIX}abcdef"), "other".to_owned()];
        for folder in kept.iter().map(|name| parent.path().join(name)).chain([dead.clone()]) {
            std::fs::create_dir(folder).unwrap();
        }
        sweep(parent.path());
        assert!(!dead.exists());
        assert!(kept.iter().all(|name| parent.path().join(name).exists()));
    }
}
