//! Which daemon to talk to, and the session with it. A service that is installed is used or fails: a broken service is
//! never papered over with a local run.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::Context as _;
use migperf_dbus::error::Error;
use migperf_dbus::proxy::ManagerProxy;
use zbus::Connection;

use crate::args::Global;
use crate::exit::{Exit, Refusal};
use crate::output;
use crate::service::{self, Installed};
use crate::spawn::{self, OwnDaemon, Surroundings};

/// Longer than any method of the interface takes: a device that is slow to start included.
pub(crate) const ANSWER_LIMIT: Duration = Duration::from_secs(90);

/// Why there is no daemon to talk to.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    /// The service was asked for and is not there.
    #[error(
        "the migperf service is not installed here (nothing provides org.migperf1 on the system bus); without --system a daemon of your own is started"
    )]
    NotInstalled,
    /// The service is there and does not work.
    #[error(
        "the migperf service is installed ({installed}) but can't be reached; see `systemctl status migperfd`, or run with --local"
    )]
    ServiceBroken {
        installed: Installed,
        #[source]
        source: zbus::Error,
    },
    /// The bus keeps the caller away from the service.
    #[error(
        "the bus does not let you call the migperf service; ask to become a member of the group `migperf-users`, or run with --local"
    )]
    ServiceDenied {
        #[source]
        source: zbus::Error,
    },
    /// There is no place for local state.
    #[error(
        "no place for local state: none of MIGPERF_STATE_DIRECTORY, XDG_STATE_HOME and HOME is set; set MIGPERF_STATE_DIRECTORY to a directory of yours"
    )]
    NoStateDirectory,
    /// The place for local state can't be used.
    #[error("can't use the state directory {}; set MIGPERF_STATE_DIRECTORY to a directory of yours", .directory.display())]
    StateDirectory {
        directory: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The socket in the state directory can't be used.
    #[error("can't connect to {}", .socket.display())]
    Socket {
        socket: PathBuf,
        #[source]
        source: io::Error,
    },
    /// Somebody else listens there.
    #[error("{} is served by user {uid}, not by you; remove it, or set MIGPERF_STATE_DIRECTORY to a directory of yours", .socket.display())]
    ForeignDaemon { socket: PathBuf, uid: u32 },
    /// A daemon listens and does not speak.
    #[error("the daemon behind {} does not answer", .socket.display())]
    Silent { socket: PathBuf },
    /// There is no program to start.
    #[error("can't find the program migperfd ({}); install it beside migperfctl, or set MIGPERF_BIN_DIR to its directory", searched(.looked))]
    NoProgram { looked: Vec<PathBuf> },
    /// The program can't be started.
    #[error("can't start {}", .program.display())]
    Start {
        program: PathBuf,
        #[source]
        source: io::Error,
    },
    /// It ended instead of serving.
    #[error("{} ended at once ({status}){words}", .program.display())]
    Ended { program: PathBuf, status: ExitStatus, words: String },
    /// It runs and does not serve.
    #[error("{} was started but does not answer{words}", .program.display())]
    Mute {
        program: PathBuf,
        words: String,
        #[source]
        source: Option<zbus::Error>,
    },
    /// Another daemon has the state directory and can't be reached.
    #[error("another daemon holds the state directory {} and does not listen on its socket; wait for it to end, or look for a process `migperfd` of yours", .directory.display())]
    Held { directory: PathBuf },
    /// The daemon went away while it was needed.
    #[error("the daemon ended before it answered{trace}")]
    Lost { trace: String },
}

fn searched(looked: &[PathBuf]) -> String {
    let looked: Vec<String> = looked.iter().map(|path| path.display().to_string()).collect();
    format!("looked for {}", looked.join(", "))
}

/// What a daemon wrote before it ended, and where the rest is.
pub(crate) fn last_words(log: &Path, words: &str) -> String {
    if words.is_empty() {
        return format!("; it wrote nothing to {}", log.display());
    }
    let words: Vec<String> = words.lines().map(|line| format!("  {line}")).collect();
    format!("; the end of {}:\n{}", log.display(), words.join("\n"))
}

impl ConnectError {
    /// How the program ends because of it.
    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::ServiceDenied { .. } => Exit::Refused,
            _ => Exit::Failure,
        }
    }
}

/// The way to the daemon that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// The service where it is installed, else a local daemon.
    Default,
    /// A local daemon.
    Local,
    /// The service.
    Service,
}

impl Way {
    pub(crate) fn of(global: Global) -> Self {
        match (global.local, global.system) {
            (true, _) => Self::Local,
            (false, true) => Self::Service,
            (false, false) => Self::Default,
        }
    }
}

/// Where a session's daemon is.
#[derive(Debug)]
pub(crate) enum Place {
    /// The service on the system bus.
    Service,
    /// A daemon of this user that ran already.
    Joined,
    /// A daemon that this program started.
    Started(OwnDaemon),
}

impl Place {
    /// For people.
    pub(crate) fn describe(&self) -> &'static str {
        match self {
            Self::Service => "the service on the system bus",
            Self::Joined => "local, a daemon of yours that ran already",
            Self::Started(_) => "local, started by this command",
        }
    }
}

/// A connection to a daemon.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) connection: Connection,
    pub(crate) manager: ManagerProxy<'static>,
    pub(crate) place: Place,
}

/// Connects the way that was asked for.
pub(crate) async fn connect(way: Way, around: &Surroundings) -> anyhow::Result<Session> {
    if way != Way::Local {
        match service::installed(around).await {
            Some(installed) => {
                let connection = service::connect(around, installed).await?;
                return session(connection, Place::Service).await;
            }
            None if way == Way::Service => return Err(ConnectError::NotInstalled.into()),
            None => {}
        }
    }
    let state = around.state_directory()?;
    if way == Way::Default {
        output::note(&format!("no service installed; running locally (state in {})", state.display()));
    }
    let (connection, place) = spawn::local(around, &state).await?;
    session(connection, place).await
}

/// Makes the session; tests give it a connection of their own.
pub(crate) async fn session(connection: Connection, place: Place) -> anyhow::Result<Session> {
    let manager = ManagerProxy::new(&connection).await.context("can't make a proxy of the daemon")?;
    Ok(Session { connection, manager, place })
}

impl Session {
    /// The result of a method: an error reply becomes a refusal, a broken connection says what became of the daemon.
    pub(crate) fn answered<T>(&self, result: Result<T, Error>) -> anyhow::Result<T> {
        result.map_err(|error| match error {
            Error::ZBus(error) => self.unanswered(error),
            reply => Refusal::from(reply).into(),
        })
    }

    /// The same of a property.
    pub(crate) fn known<T>(&self, result: zbus::Result<T>) -> anyhow::Result<T> {
        result.map_err(|error| self.unanswered(error))
    }

    fn unanswered(&self, error: zbus::Error) -> anyhow::Error {
        if self.connection.is_closed() || matches!(error, zbus::Error::InputOutput(_)) {
            return self.lost().into();
        }
        Refusal::from(error).into()
    }

    /// What became of a daemon that has gone.
    pub(crate) fn lost(&self) -> ConnectError {
        let trace = match &self.place {
            Place::Started(own) => own.obituary(),
            Place::Service => "; `journalctl -u migperfd` may tell why".to_owned(),
            Place::Joined => "; migperfd.log in its state directory may tell why".to_owned(),
        };
        ConnectError::Lost { trace }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// Surroundings without a system bus.
    fn around(root: &Path) -> Surroundings {
        Surroundings {
            state_directory: Some(root.join("state").into()),
            bin_directory: Some(root.join("bin").into()),
            service_directories: vec![root.join("services")],
            system_bus: Some(format!("unix:path={}", root.join("bus").display())),
            ..Surroundings::default()
        }
    }

    async fn failure(way: Way, around: &Surroundings) -> ConnectError {
        connect(way, around).await.unwrap_err().downcast().unwrap()
    }

    #[tokio::test]
    async fn an_installed_service_that_is_broken_is_never_passed_over() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("services")).unwrap();
        fs::write(root.path().join("services/org.migperf1.service"), "[D-BUS Service]\n").unwrap();
        for way in [Way::Default, Way::Service] {
            let error = failure(way, &around(root.path())).await;
            assert!(matches!(error, ConnectError::ServiceBroken { .. }), "{error}");
            assert!(error.to_string().contains("systemctl status migperfd"), "{error}");
        }
        assert!(!root.path().join("state").exists(), "nothing local was tried");
        let error = failure(Way::Local, &around(root.path())).await;
        assert!(matches!(error, ConnectError::NoProgram { .. }), "{error}");
    }

    #[tokio::test]
    async fn a_local_daemon_is_used_only_where_no_service_is() {
        let root = tempfile::tempdir().unwrap();
        let error = failure(Way::Service, &around(root.path())).await;
        assert!(matches!(error, ConnectError::NotInstalled), "{error}");
        let error = failure(Way::Default, &around(root.path())).await;
        assert!(matches!(error, ConnectError::NoProgram { .. }), "{error}");
    }
}
