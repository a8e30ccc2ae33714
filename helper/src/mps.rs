//! MPS control daemons: under a user without privilege, in private directories, ended with whoever asked for them.
//!
//! The control program runs in the foreground under the launcher, so that the kernel ends it with the helper, and its
//! server with it. What killed ones left is swept at start: CUDA runs silently without MPS where a daemon can't be reached.

use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use migperf_core::ids::DeviceUuid;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::{Gid, Pid, Uid, User, setfsgid, setfsuid};

use crate::config::{Config, ConfigError, trusted};

/// How long one command of a control session may take.
const COMMAND_LIMIT: Duration = Duration::from_secs(10);
/// How long the control daemon may take to answer for the first time.
const START_LIMIT: Duration = Duration::from_secs(20);
/// How long it may take to stop after `quit`, and again after a signal.
const STOP_LIMIT: Duration = Duration::from_secs(15);
const MIB: u64 = 1 << 20;

/// Why there is no MPS.
#[derive(Debug, thiserror::Error)]
pub enum MpsError {
    /// A program is missing, or not root's.
    #[error("MPS can't be started here")]
    Program(#[from] ConfigError),
    /// No such user.
    #[error("there is no user {0}")]
    NoUser(u32),
    /// A directory can't be made.
    #[error("can't make the directory {0}")]
    Directory(PathBuf, #[source] io::Error),
    /// Its clients could not reach it.
    #[error("user {uid} can't enter {path}: a folder on the way is closed to others")]
    Closed {
        /// Who.
        uid: u32,
        /// Where.
        path: PathBuf,
    },
    /// It can't be executed.
    #[error("can't execute {0}")]
    Start(PathBuf, #[source] io::Error),
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

/// What a control daemon allows each of its clients.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// Percent of the multiprocessors.
    pub active_thread_percentage: Option<u32>,
    /// Device memory, bytes: whole MiB.
    pub pinned_memory: Option<u64>,
}

/// A running control daemon.
#[derive(Debug)]
pub struct Mps {
    program: PathBuf,
    directory: PathBuf,
    user: (u32, u32),
    pid: u32,
    ended: Receiver<String>,
}

/// Removes what daemons of helpers that died left.
pub fn sweep(config: &Config) {
    let entries = std::fs::read_dir(&config.runtime_directory).into_iter().flatten().filter_map(Result::ok);
    for entry in entries {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix("mps-")?.split('-').next()?.parse::<u32>().ok());
        if owner.is_some_and(|pid| pid != std::process::id() && crate::holders::stat(pid).is_none()) {
            remove(&entry.path());
        }
    }
}

impl Mps {
    /// Starts a control daemon for one device under a user, and waits until it answers.
    ///
    /// # Errors
    /// If it can't be started, does not answer in time, or its clients could not reach it.
    pub fn start(config: &Config, device: &DeviceUuid, uid: u32, limits: Limits) -> Result<Self, MpsError> {
        trusted(&config.mps_control)?;
        trusted(&config.launcher)?;
        let user = User::from_uid(Uid::from_raw(uid)).ok().flatten();
        // Containers run users that no list names: their group is of the same number.
        let gid = user.map_or(uid, |user| user.gid.as_raw());
        let directory = directories(config, uid, gid)?;
        let started = Self::begin(config, device, (uid, gid), &directory, limits);
        if started.is_err() {
            remove(&directory);
        }
        started
    }

    fn begin(
        config: &Config,
        device: &DeviceUuid,
        user: (u32, u32),
        directory: &Path,
        limits: Limits,
    ) -> Result<Self, MpsError> {
        let program = &config.mps_control;
        let mut command = Command::new(&config.launcher);
        command.args(["--bound", &std::process::id().to_string()]).arg(program).arg("-f");
        // Drivers from release 615 on have a second protocol, which clients of today don't speak.
        if has_protocols(&help(program, user)) {
            command.args(["-p", "2"]);
        }
        command
            .envs(environment(directory))
            .env("CUDA_VISIBLE_DEVICES", device.as_str())
            .uid(user.0)
            .gid(user.1)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let (sender, ended) = channel();
        let child = keep(command, sender).map_err(|error| MpsError::Start(config.launcher.clone(), error))?;
        let mut mps = Self { program: program.clone(), directory: directory.to_owned(), user, pid: child, ended };
        match mps.answer(limits) {
            Ok(()) => Ok(mps),
            Err(error) => {
                mps.kill();
                Err(error)
            }
        }
    }

    /// Waits for the first answer and sets the limits.
    fn answer(&mut self, limits: Limits) -> Result<(), MpsError> {
        let deadline = Instant::now() + START_LIMIT;
        while let Err(error) = self.command("get_server_list") {
            if let Ok(how) = self.ended.recv_timeout(Duration::from_millis(100)) {
                return Err(MpsError::Silent(format!("it ended: {how}{}", self.log())));
            }
            if Instant::now() >= deadline {
                return Err(MpsError::Silent(format!("{error}{}", self.log())));
            }
        }
        if let Some(percent) = limits.active_thread_percentage {
            self.command(&format!("set_default_active_thread_percentage {percent}"))?;
        }
        if let Some(bytes) = limits.pinned_memory {
            // Device 0 is the one that the daemon sees.
            self.command(&format!("set_default_device_pinned_mem_limit 0 {}M", bytes / MIB))?;
        }
        Ok(())
    }

    /// The control daemon's process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// `CUDA_MPS_PIPE_DIRECTORY` of its clients.
    #[must_use]
    pub fn pipe_directory(&self) -> PathBuf {
        self.directory.join("pipe")
    }

    /// Where it writes its logs.
    #[must_use]
    pub fn log_directory(&self) -> PathBuf {
        self.directory.join("log")
    }

    /// Whether it still runs.
    #[must_use]
    pub fn is_running(&self) -> bool {
        crate::holders::stat(self.pid).is_some_and(|(parent, _)| parent == std::process::id())
    }

    /// Stops it, by force where asking does not help, and removes its directories.
    pub fn stop(mut self) {
        if let Err(error) = self.command("quit -t 5") {
            tracing::warn!(%error, "the MPS control daemon did not take `quit`");
        } else if self.ended.recv_timeout(STOP_LIMIT).is_ok() {
            remove(&self.directory);
            return;
        }
        self.kill();
        remove(&self.directory);
    }

    fn kill(&mut self) {
        for signal in [Signal::SIGTERM, Signal::SIGKILL] {
            if let Ok(group) = i32::try_from(self.pid) {
                // Its keeper has not waited for it yet, or it is gone: the number is not another's.
                let _ = killpg(Pid::from_raw(group), signal);
            }
            match self.ended.recv_timeout(STOP_LIMIT) {
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {}
                Ok(_) | Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => return,
            }
        }
        tracing::error!(pid = self.pid, "a killed MPS control daemon does not end: it is stuck in the driver");
    }

    /// One control session, as the daemon's user: a command in, its answer out.
    fn command(&self, command: &str) -> Result<String, MpsError> {
        let failed = |detail: String| MpsError::Command { command: command.to_owned(), detail };
        let mut session = Command::new(&self.program);
        session.envs(environment(&self.directory)).uid(self.user.0).gid(self.user.1);
        let (status, output) = talk(session, &format!("{command}\n")).map_err(|error| failed(error.to_string()))?;
        if status { Ok(output) } else { Err(failed(output.trim().to_owned())) }
    }

    /// The last lines of the control daemon's log, for a message.
    fn log(&self) -> String {
        let text = std::fs::read_to_string(self.log_directory().join("control.log")).unwrap_or_default();
        let last: Vec<&str> = text.lines().rev().take(3).collect();
        if last.is_empty() {
            return String::new();
        }
        format!("; its log ends: {}", last.into_iter().rev().collect::<Vec<_>>().join(" | "))
    }
}

/// Starts a process that binds itself to the thread that forked it, and keeps that thread until it has ended.
fn keep(mut command: Command, ended: Sender<String>) -> io::Result<u32> {
    let (started, start) = channel();
    std::thread::Builder::new().name("mps-keeper".to_owned()).spawn(move || match command.spawn() {
        Err(error) => drop(started.send(Err(error))),
        Ok(mut child) => {
            let _ = started.send(Ok(child.id()));
            let how = child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
            let _ = ended.send(how);
        }
    })?;
    start.recv().map_err(io::Error::other)?
}

/// Runs a program with a text as its input, for a limited time. Says whether it succeeded, and all that it said.
fn talk(mut command: Command, input: &str) -> io::Result<(bool, String)> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn()?;
    let mut pipe = child.stdin.take().expect("standard input is a pipe");
    // A program that does not read a line has ended: its status says why.
    let _ = pipe.write_all(input.as_bytes());
    drop(pipe);
    let outputs = [reader(child.stdout.take()), reader(child.stderr.take())];
    let deadline = Instant::now() + COMMAND_LIMIT;
    let status = loop {
        match child.try_wait()? {
            Some(status) => break status,
            None if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
            None => {
                end(&mut child);
                return Err(io::Error::other(format!("no answer within {COMMAND_LIMIT:?}")));
            }
        }
    };
    let said = outputs.into_iter().map(|output| output.recv_timeout(Duration::from_secs(1)).unwrap_or_default());
    Ok((status.success(), said.collect()))
}

fn reader(pipe: Option<impl io::Read + Send + 'static>) -> Receiver<String> {
    let (sender, text) = channel();
    std::thread::spawn(move || {
        let mut said = String::new();
        if let Some(mut pipe) = pipe {
            // What is not text is no answer.
            let _ = pipe.read_to_string(&mut said);
        }
        let _ = sender.send(said);
    });
    text
}

fn end(child: &mut Child) {
    if let Ok(group) = i32::try_from(child.id()) {
        let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
    }
    let _ = child.wait();
}

/// Whether the options that the control program lists have one for the protocol. Its commands have a `-p` too.
fn has_protocols(help: &str) -> bool {
    help.lines().any(|line| line.trim_start().starts_with("-p"))
}

/// What the control program says about its options.
fn help(program: &Path, user: (u32, u32)) -> String {
    let mut command = Command::new(program);
    command.arg("-h").uid(user.0).gid(user.1);
    talk(command, "").map(|(_, said)| said).unwrap_or_default()
}

fn environment(directory: &Path) -> [(&'static str, PathBuf); 2] {
    [("CUDA_MPS_PIPE_DIRECTORY", directory.join("pipe")), ("CUDA_MPS_LOG_DIRECTORY", directory.join("log"))]
}

/// Private directories of the user, and a look whether the user can enter them.
fn directories(config: &Config, uid: u32, gid: u32) -> Result<PathBuf, MpsError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |error: io::Error| MpsError::Directory(path, error)
    };
    let parent = &config.runtime_directory;
    // Others walk through it; nobody lists it.
    std::fs::DirBuilder::new().recursive(true).mode(0o711).create(parent).map_err(failed(parent))?;
    let directory = nix::unistd::mkdtemp(&parent.join(format!("mps-{}-XXXXXX", std::process::id())))
        .map_err(|errno| failed(parent)(errno.into()))?;
    let made = ["pipe", "log"].iter().try_for_each(|part| {
        let path = directory.join(part);
        std::fs::DirBuilder::new().mode(0o700).create(&path)?;
        chown(&path, Some(uid), Some(gid))
    });
    let made = made.and_then(|()| chown(&directory, Some(uid), Some(gid))).map_err(failed(&directory));
    let entered = made.and_then(|()| {
        if can_enter(&directory.join("pipe"), uid, gid) {
            Ok(())
        } else {
            Err(MpsError::Closed { uid, path: directory.join("pipe") })
        }
    });
    if let Err(error) = entered {
        remove(&directory);
        return Err(error);
    }
    Ok(directory)
}

/// Whether a user can reach a directory and write into it: tried by a thread that is the user to the file system. A root
/// that is not the user loses its power over files there with it.
fn can_enter(path: &Path, uid: u32, gid: u32) -> bool {
    let path = path.to_owned();
    let tried = std::thread::spawn(move || {
        setfsgid(Gid::from_raw(gid));
        setfsuid(Uid::from_raw(uid));
        let probe = path.join("probe");
        std::fs::write(&probe, "").and_then(|()| std::fs::remove_file(&probe)).is_ok()
    });
    tried.join().unwrap_or(false)
}

fn remove(directory: &Path) {
    if let Err(error) = std::fs::remove_dir_all(directory) {
        tracing::warn!(directory = %directory.display(), %error, "an MPS directory could not be removed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The help of release 580, in part, and of one with the option.
    #[test]
    fn a_command_s_option_is_not_the_program_s() {
        let release_580 =
            "OPTIONS:\n  -f,--forground           Setup the daemon in the foreground\n\nCOMMAND:\n  ps [-p PID]\n";
        assert!(!has_protocols(release_580));
        assert!(has_protocols("OPTIONS:\n  -p,--protocol <version>\n"));
    }
}
