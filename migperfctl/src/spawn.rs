//! A daemon of the user's own: the state directory, the socket of one that runs already, and starting one.
//!
//! The socket pair on the daemon's standard input is the authorisation: whoever holds the other end started it.

use std::env;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::Uid;
use tokio::time::{Instant, sleep, timeout};
use zbus::Connection;
use zbus::connection::Builder;

use crate::connect::{ANSWER_LIMIT, ConnectError, Place, last_words};
use crate::service;

/// The daemon's exit code when another one holds the state directory (EX_TEMPFAIL of sysexits.h).
const STATE_IS_HELD: i32 = 75;
/// A daemon that has just taken the state directory listens on its socket within this time.
const RIVAL_LIMIT: Duration = Duration::from_secs(10);
/// How long a daemon whose socket closed may take to end, so that its exit status can be told.
const END_LIMIT: Duration = Duration::from_secs(2);
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// A log longer than this is put aside before the next daemon starts.
const LONGEST_LOG: u64 = 4 << 20;
/// Lines of the log that are shown when a daemon fails.
const LAST_LINES: usize = 12;
const LAST_BYTES: u64 = 16 << 10;

/// What of this process's surroundings decides where things are. Read in one place, so that tests can set it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Surroundings {
    /// `MIGPERF_STATE_DIRECTORY`.
    pub(crate) state_directory: Option<OsString>,
    /// `XDG_STATE_HOME`.
    pub(crate) state_home: Option<OsString>,
    /// `HOME`.
    pub(crate) home: Option<OsString>,
    /// `MIGPERF_BIN_DIR`.
    pub(crate) bin_directory: Option<OsString>,
    /// `PATH`.
    pub(crate) path: Option<OsString>,
    /// This program's own directory.
    pub(crate) own_directory: Option<PathBuf>,
    /// Where the bus looks for services.
    pub(crate) service_directories: Vec<PathBuf>,
    /// The address of the system bus, where it is not the usual one.
    pub(crate) system_bus: Option<String>,
}

impl Surroundings {
    /// Those of this process.
    pub(crate) fn of_process() -> Self {
        let set = |name| env::var_os(name).filter(|value| !value.is_empty());
        let own = env::current_exe().and_then(fs::canonicalize).ok();
        Self {
            state_directory: set("MIGPERF_STATE_DIRECTORY"),
            state_home: set("XDG_STATE_HOME"),
            home: set("HOME"),
            bin_directory: set("MIGPERF_BIN_DIR"),
            path: set("PATH"),
            own_directory: own.and_then(|program| program.parent().map(Path::to_owned)),
            service_directories: service::directories(),
            system_bus: None,
        }
    }

    /// The state directory of local runs. A relative `XDG_STATE_HOME` does not count, as its specification says.
    pub(crate) fn state_directory(&self) -> Result<PathBuf, ConnectError> {
        if let Some(directory) = &self.state_directory {
            let directory = PathBuf::from(directory);
            return std::path::absolute(&directory)
                .map_err(|source| ConnectError::StateDirectory { directory, source });
        }
        let absolute = |value: &Option<OsString>| value.as_ref().map(PathBuf::from).filter(|path| path.is_absolute());
        let home = || absolute(&self.home).map(|home| home.join(".local/state"));
        let base = absolute(&self.state_home).or_else(home).ok_or(ConnectError::NoStateDirectory)?;
        Ok(base.join("migperf"))
    }

    /// The daemon's program: where `MIGPERF_BIN_DIR` says, else beside this one, else on the `PATH`.
    pub(crate) fn daemon(&self) -> Result<PathBuf, ConnectError> {
        let said = self.bin_directory.as_ref().map(|directory| vec![PathBuf::from(directory)]);
        let directories = said.unwrap_or_else(|| {
            let path = self.path.iter().flat_map(env::split_paths).filter(|directory| directory.is_absolute());
            self.own_directory.iter().cloned().chain(path).collect()
        });
        let looked: Vec<PathBuf> = directories.into_iter().map(|directory| directory.join("migperfd")).collect();
        let runs = |path: &&PathBuf| {
            fs::metadata(path).is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
        };
        looked.iter().find(runs).cloned().ok_or(ConnectError::NoProgram { looked })
    }
}

/// A daemon that this program started. It outlives this program only while it has a job that does.
#[derive(Debug)]
pub(crate) struct OwnDaemon {
    program: PathBuf,
    child: Mutex<Child>,
    log: PathBuf,
    log_start: u64,
}

impl OwnDaemon {
    fn start(program: PathBuf, state: &Path, log: PathBuf) -> Result<(Self, UnixStream), ConnectError> {
        let unusable = |source| ConnectError::StateDirectory { directory: state.to_owned(), source };
        let (errors, log_start) = open_log(&log).map_err(unusable)?;
        let pair = UnixStream::pair();
        let (ours, theirs) = match pair {
            Ok(pair) => pair,
            Err(source) => return Err(ConnectError::Start { program, source }),
        };
        // A process group of its own: Ctrl-C in the terminal is this program's to answer.
        let child = Command::new(&program)
            .arg("--peer")
            .arg("--state-directory")
            .arg(state)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::from(errors))
            .process_group(0)
            .spawn();
        match child {
            Ok(child) => Ok((Self { program, child: Mutex::new(child), log, log_start }, ours)),
            Err(source) => Err(ConnectError::Start { program, source }),
        }
    }

    fn ended(&self) -> Option<ExitStatus> {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        child.try_wait().ok().flatten()
    }

    async fn end(&self, limit: Duration) -> Option<ExitStatus> {
        let give_up = Instant::now() + limit;
        loop {
            match self.ended() {
                None if Instant::now() < give_up => sleep(LOOK_AGAIN).await,
                ended => return ended,
            }
        }
    }

    /// The end of its log.
    fn words(&self) -> String {
        last_words(&self.log, &tail(&self.log, self.log_start).unwrap_or_default())
    }

    /// How it ended, and its last words.
    pub(crate) fn obituary(&self) -> String {
        let status = self.ended().map(|status| format!(" ({status})")).unwrap_or_default();
        format!("{status}{}", self.words())
    }
}

/// Opens a daemon's log for appending; from where on it is this daemon's.
fn open_log(log: &Path) -> io::Result<(File, u64)> {
    if fs::metadata(log).is_ok_and(|data| data.len() > LONGEST_LOG) {
        fs::rename(log, log.with_extension("log.old"))?;
    }
    let file = OpenOptions::new().append(true).create(true).mode(0o600).open(log)?;
    let start = file.metadata()?.len();
    Ok((file, start))
}

/// The last lines of a log, from a place on.
fn tail(log: &Path, start: u64) -> io::Result<String> {
    let mut file = File::open(log)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(start.max(length.saturating_sub(LAST_BYTES))))?;
    let mut bytes = Vec::new();
    file.take(LAST_BYTES).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    Ok(lines[lines.len().saturating_sub(LAST_LINES)..].join("\n"))
}

/// Speaks to the daemon at the other end of a socket; none: it does not answer.
async fn peer(stream: UnixStream) -> Option<zbus::Result<Connection>> {
    let build = Builder::unix_stream(stream).p2p().method_timeout(ANSWER_LIMIT).build();
    timeout(ANSWER_LIMIT, build).await.ok()
}

/// The daemon of this user that already serves the state directory, if one does.
async fn join(socket: &Path) -> Result<Option<Connection>, ConnectError> {
    let failed = |source| ConnectError::Socket { socket: socket.to_owned(), source };
    let stream = match UnixStream::connect(socket) {
        Ok(stream) => stream,
        // A socket that nobody listens on is what a killed daemon leaves behind.
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            return Ok(None);
        }
        Err(error) => return Err(failed(error)),
    };
    let uid = getsockopt(&stream, PeerCredentials).map_err(|errno| failed(errno.into()))?.uid();
    if uid != Uid::effective().as_raw() {
        return Err(ConnectError::ForeignDaemon { socket: socket.to_owned(), uid });
    }
    match peer(stream).await {
        Some(Ok(connection)) => Ok(Some(connection)),
        // A daemon that ends just now may close the socket in the middle of the greeting: it is none to join.
        Some(Err(_)) => Ok(None),
        None => Err(ConnectError::Silent { socket: socket.to_owned() }),
    }
}

/// A daemon of the user's own: the one that runs, or a new one.
pub(crate) async fn local(around: &Surroundings, state: &Path) -> Result<(Connection, Place), ConnectError> {
    let unusable = |source| ConnectError::StateDirectory { directory: state.to_owned(), source };
    DirBuilder::new().recursive(true).mode(0o700).create(state).map_err(unusable)?;
    let socket = state.join("migperfd.sock");
    if let Some(connection) = join(&socket).await? {
        return Ok((connection, Place::Joined));
    }
    let (own, stream) = OwnDaemon::start(around.daemon()?, state, state.join("migperfd.log"))?;
    let source = match peer(stream).await {
        Some(Ok(connection)) => return Ok((connection, Place::Started(own))),
        Some(Err(error)) => Some(error),
        None => None,
    };
    match own.end(END_LIMIT).await {
        Some(status) if status.code() == Some(STATE_IS_HELD) => {
            let give_up = Instant::now() + RIVAL_LIMIT;
            while Instant::now() < give_up {
                if let Some(connection) = join(&socket).await? {
                    return Ok((connection, Place::Joined));
                }
                sleep(LOOK_AGAIN).await;
            }
            Err(ConnectError::Held { directory: state.to_owned() })
        }
        Some(status) => {
            let words = own.words();
            Err(ConnectError::Ended { program: own.program, status, words })
        }
        None => {
            let words = own.words();
            Err(ConnectError::Mute { program: own.program, words, source })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    fn around(root: &Path) -> Surroundings {
        Surroundings { bin_directory: Some(root.join("bin").into()), ..Surroundings::default() }
    }

    /// A `migperfd` that is a shell script. Another process writes it: a file that is open here for writing can't be
    /// executed, and a test beside this one may fork at that moment.
    fn program(root: &Path, script: &str) {
        let directory = root.join("bin");
        fs::create_dir_all(&directory).unwrap();
        let write = r#"printf '#!/bin/sh\n%s\n' "$1" > "$0" && chmod 755 "$0""#;
        let mut shell = Command::new("sh");
        let written = shell.args(["-c", write]).arg(directory.join("migperfd")).arg(script).status().unwrap();
        assert!(written.success());
    }

    #[tokio::test]
    async fn a_daemon_that_ends_at_once_is_quoted() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("state")).unwrap();
        fs::write(root.path().join("state/migperfd.log"), "an earlier daemon's words\n").unwrap();
        program(root.path(), "echo \"no libtorch for $*\" >&2; exit 3");
        let error = local(&around(root.path()), &root.path().join("state")).await.unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, ConnectError::Ended { .. }), "{text}");
        assert!(text.contains("exit status: 3") && text.contains("no libtorch for --peer --state-directory"), "{text}");
        assert!(!text.contains("earlier"), "{text}");
    }

    #[tokio::test]
    async fn a_stale_socket_is_no_daemon() {
        let root = tempfile::tempdir().unwrap();
        drop(UnixListener::bind(root.path().join("migperfd.sock")).unwrap());
        program(root.path(), "exit 9");
        let error = local(&around(root.path()), root.path()).await.unwrap_err();
        assert!(matches!(error, ConnectError::Ended { .. }), "{error}");
        let mode = fs::metadata(root.path().join("migperfd.log")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "the log is the user's alone");
    }

    #[tokio::test]
    async fn what_can_not_be_started_is_named() {
        let root = tempfile::tempdir().unwrap();
        let error = local(&around(root.path()), &root.path().join("state")).await.unwrap_err();
        assert!(matches!(&error, ConnectError::NoProgram { looked } if looked.len() == 1), "{error}");
        assert!(error.to_string().contains("MIGPERF_BIN_DIR"), "{error}");
        let mode = fs::metadata(root.path().join("state")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700, "the state directory is the user's alone");
    }

    #[test]
    fn the_state_directory_follows_the_environment() {
        let set = |value: &str| Some(OsString::from(value));
        let mut around = Surroundings::default();
        assert!(matches!(around.state_directory(), Err(ConnectError::NoStateDirectory)));
        around.home = set("/home/ada");
        assert_eq!(around.state_directory().unwrap(), Path::new("/home/ada/.local/state/migperf"));
        around.state_home = set("relative");
        assert_eq!(around.state_directory().unwrap(), Path::new("/home/ada/.local/state/migperf"));
        around.state_home = set("/state");
        assert_eq!(around.state_directory().unwrap(), Path::new("/state/migperf"));
        around.state_directory = set("/elsewhere");
        assert_eq!(around.state_directory().unwrap(), Path::new("/elsewhere"));
    }

    #[test]
    fn the_daemon_is_found_beside_this_program_or_on_the_path() {
        let root = tempfile::tempdir().unwrap();
        program(root.path(), "exit 0");
        let bin = root.path().join("bin");
        let beside = Surroundings { own_directory: Some(bin.clone()), ..Surroundings::default() };
        assert_eq!(beside.daemon().unwrap(), bin.join("migperfd"));
        let path = env::join_paths([Path::new("/nonexistent"), &bin]).unwrap();
        let on_path = Surroundings { path: Some(path.clone()), ..Surroundings::default() };
        assert_eq!(on_path.daemon().unwrap(), bin.join("migperfd"));
        fs::set_permissions(bin.join("migperfd"), fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(on_path.daemon(), Err(ConnectError::NoProgram { looked }) if looked.len() == 2));
    }

    #[test]
    fn a_long_log_is_put_aside() {
        let root = tempfile::tempdir().unwrap();
        let log = root.path().join("migperfd.log");
        File::create(&log).unwrap().set_len(LONGEST_LOG + 1).unwrap();
        let (_, start) = open_log(&log).unwrap();
        assert_eq!(start, 0);
        assert!(root.path().join("migperfd.log.old").exists());
    }
}
