//! The way to the root helper, the one program that may change a GPU. Here it is only reached: what it is asked is decided
//! elsewhere.
//!
//! A daemon of root's own starts the helper at the other end of a socket pair and starts it again when it has died. The
//! helper is no child that ends with the daemon: it outlives it, to put GPUs back as they were.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use migperf_core::chain::chain;
use migperf_dbus::Keyed;
use migperf_dbus::error::Error as Said;
use migperf_dbus::helper::{Changed, HelperProxy};
use tokio::process::{Child, Command};
use tokio::sync::Mutex;
use zbus::connection::Builder;
use zbus::proxy::CacheProperties;
use zbus::{Connection, DBusError as _};

use crate::barrier;
use crate::settings::Settings;

/// The program, in the folder of all programs.
const PROGRAM: &str = "migperf-helper";
/// Longer than a layout's change takes at worst: a reset, a dozen instances, and time-outs of the helper's own.
const ANSWER_LIMIT: Duration = Duration::from_secs(300);
/// A helper whose connection ended may restore for so long before another is started.
const END_LIMIT: Duration = Duration::from_secs(120);
/// How long a helper may take to be there: it puts back first what an earlier one left.
const START_LIMIT: Duration = Duration::from_secs(180);

/// Why nothing can be changed on a GPU here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Absence {
    /// The daemon is an ordinary user's.
    #[error("changing a GPU's layout needs root, and this daemon runs as an ordinary user")]
    NotRoot,
    /// The program is not there.
    #[error("the helper that changes a GPU's layout is not installed ({} does not exist)", .0.display())]
    NotInstalled(PathBuf),
}

impl Absence {
    /// What to do about it.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::NotRoot => {
                "run it as root, or create the instances first: existing ones are measured without privilege"
            }
            Self::NotInstalled(_) => "install migperf-helper beside migperfd, or create the instances first",
        }
    }
}

/// Why the helper did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum HelperError {
    /// There is none.
    #[error("{absence}; {}", .absence.remedy())]
    Absent {
        /// Why.
        absence: Absence,
    },
    /// It can't be started.
    #[error("can't start {}", .program.display())]
    Start {
        /// Which program.
        program: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// It was started and does not speak.
    #[error("the helper does not answer")]
    Mute(#[source] Option<zbus::Error>),
    /// The pipe by which it learns of this daemon's end can't be shared with it.
    #[error("can't share a pipe with the helper")]
    NoDescriptor(#[source] std::io::Error),
    /// It ended before it answered.
    #[error("the helper died before it answered")]
    Lost(#[source] zbus::Error),
    /// It said no, or that it failed.
    #[error("{}", words(.0))]
    Said(Said),
}

/// The text of an error reply, without its name.
fn words(said: &Said) -> String {
    said.description().map_or_else(|| said.to_string(), str::to_owned)
}

impl From<Said> for HelperError {
    fn from(said: Said) -> Self {
        match said {
            Said::ZBus(error @ zbus::Error::MethodError(..)) => Self::Said(Said::ZBus(error)),
            Said::ZBus(error) => Self::Lost(error),
            said => Self::Said(said),
        }
    }
}

/// How the helper is reached.
#[derive(Debug)]
enum Way {
    /// Not at all.
    Absent(Absence),
    /// By starting it.
    Program { program: PathBuf, config: Option<PathBuf> },
}

#[derive(Debug)]
struct Running {
    connection: Connection,
    child: Child,
}

/// The helper, there or not.
#[derive(Debug)]
pub struct Helper {
    way: Way,
    running: Mutex<Option<Running>>,
}

impl Helper {
    /// Finds out how it can be reached; starts nothing.
    #[must_use]
    pub fn find(settings: &Settings) -> Self {
        let program = settings.programs.join(PROGRAM);
        let way = if !nix::unistd::geteuid().is_root() {
            Way::Absent(Absence::NotRoot)
        } else if !program.is_file() {
            Way::Absent(Absence::NotInstalled(program))
        } else {
            Way::Program { program, config: settings.helper_config.clone() }
        };
        Self { way, running: Mutex::new(None) }
    }

    /// Why there is none, if there is none.
    #[must_use]
    pub fn absence(&self) -> Option<&Absence> {
        match &self.way {
            Way::Absent(absence) => Some(absence),
            Way::Program { .. } => None,
        }
    }

    /// Starts it where it can be, so that it puts back what an earlier one left changed.
    pub async fn begin(&self) {
        if self.absence().is_some() {
            return;
        }
        if let Err(error) = self.connection().await {
            tracing::error!(error = chain(&error), "the helper can't be used: no GPU's layout can be changed");
        }
    }

    /// Makes sure that one runs.
    ///
    /// # Errors
    /// If there is none, or it can't be used.
    pub async fn ready(&self) -> Result<(), HelperError> {
        self.connection().await.map(drop)
    }

    /// A connection to a helper that runs, one that is started now if there is none.
    async fn connection(&self) -> Result<Connection, HelperError> {
        let (program, config) = match &self.way {
            Way::Absent(absence) => return Err(HelperError::Absent { absence: absence.clone() }),
            Way::Program { program, config } => (program, config),
        };
        let mut running = self.running.lock().await;
        if let Some(Running { connection, child }) = running.as_mut() {
            if !connection.is_closed() {
                return Ok(connection.clone());
            }
            // It may be putting a GPU back; the next one would wait for the same ledger.
            match tokio::time::timeout(END_LIMIT, child.wait()).await {
                Ok(status) => tracing::warn!(?status, "the helper ended; it is started again"),
                Err(_) => tracing::error!("the helper's connection ended, and it goes on"),
            }
            *running = None;
        }
        let closed = barrier::close_for_start().await;
        let started = start(program, config.as_deref()).await?;
        drop(closed);
        let connection = started.connection.clone();
        *running = Some(started);
        Ok(connection)
    }

    async fn proxy(&self) -> Result<HelperProxy<'static>, HelperError> {
        let connection = self.connection().await?;
        let proxy = HelperProxy::builder(&connection).cache_properties(CacheProperties::No).build().await;
        proxy.map_err(HelperError::Lost)
    }

    /// Brings a GPU to a layout; what is there then is the answer.
    ///
    /// # Errors
    /// As the helper answers, or if there is none.
    pub async fn apply(
        &self,
        gpu: &str,
        layout: &str,
        liveness: OwnedFd,
        options: &Keyed,
    ) -> Result<Changed, HelperError> {
        Ok(self.proxy().await?.apply_layout(gpu, layout, liveness.into(), options).await?)
    }

    /// Brings a GPU back to what was found.
    ///
    /// # Errors
    /// As the helper answers, or if there is none.
    pub async fn restore(&self, gpu: &str, options: &Keyed) -> Result<Changed, HelperError> {
        Ok(self.proxy().await?.restore(gpu, options).await?)
    }

    /// GPUs that are not as they were found.
    ///
    /// # Errors
    /// As the helper answers, or if there is none.
    pub async fn report(&self) -> Result<Vec<Keyed>, HelperError> {
        Ok(self.proxy().await?.report().await?)
    }

    /// Waits for the end of the helper that runs now; for ever where none does.
    pub async fn ended(&self) {
        let connection = self.running.lock().await.as_ref().map(|running| running.connection.clone());
        match connection {
            Some(connection) => connection.closed().await,
            None => std::future::pending().await,
        }
    }
}

async fn start(program: &std::path::Path, config: Option<&std::path::Path>) -> Result<Running, HelperError> {
    let failed = |source| HelperError::Start { program: program.to_owned(), source };
    let (ours, theirs) = UnixStream::pair().map_err(failed)?;
    let mut command = Command::new(program);
    command.arg("--peer");
    if let Some(config) = config {
        command.arg("--config").arg(config);
    }
    // A process group of its own: what ends this daemon from a terminal must not end it.
    command.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::null()).process_group(0);
    let mut child = command.spawn().map_err(failed)?;
    drop(command);
    let build = Builder::unix_stream(ours).p2p().method_timeout(ANSWER_LIMIT).build();
    let problem = match tokio::time::timeout(START_LIMIT, build).await {
        Ok(Ok(connection)) => {
            tracing::info!(pid = child.id(), "the helper runs");
            return Ok(Running { connection, child });
        }
        Ok(Err(error)) => Some(error),
        Err(_) => None,
    };
    // One that hangs holds no promise yet: it was asked nothing.
    let _ = child.start_kill();
    Err(HelperError::Mute(problem))
}
