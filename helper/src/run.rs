//! The helper's three lives: at the other end of a socket pair, on the system bus, and once to restore.

use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use migperf_core::chain::chain;
use migperf_dbus::helper as contract;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use tokio::signal::unix::{SignalKind, signal};
use zbus::Guid;
use zbus::connection::Builder;

use crate::config::{Config, ConfigError};
use crate::engine::{Engine, EngineError, ledger_directory};
use crate::hand::ProcessHands;
use crate::ledger::{Disk, Ledger, LedgerError};
use crate::mps;
use crate::service::{Caller, Held, HelperObject, own};

/// How often something that could not be put back is tried again, and idleness looked at.
const TEND: Duration = Duration::from_secs(5);

/// Why the helper could not begin, or ends with something left.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Not root.
    #[error("the helper changes GPUs and runs as root only; without it, existing instances can be measured")]
    NotRoot,
    /// The configuration is no good.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The ledger can't be used.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// It can't be told what an earlier helper left.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Standard input is no socket of root's.
    #[error("standard input is not a socket of root's; migperfd starts this program")]
    NoPeer(#[source] io::Error),
    /// The connection can't be set up.
    #[error("can't serve the connection")]
    Bus(#[from] zbus::Error),
    /// The system gives no signals, or does not say where this program is.
    #[error("can't set up")]
    System(#[from] io::Error),
    /// Something is not as it was found.
    #[error("{0} GPUs are not as they were found; `migperf-helper --report` says what to do")]
    Left(usize),
}

/// What is the same in all lives.
fn held(config: Option<PathBuf>) -> Result<Arc<Held>, RunError> {
    if !nix::unistd::geteuid().is_root() {
        return Err(RunError::NotRoot);
    }
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o022));
    let config = Config::read(config.as_deref())?;
    let ledger = Ledger::open(ledger_directory(&config), Arc::new(Disk))?;
    let hands =
        ProcessHands { program: std::env::current_exe()?, library: config.nvml.clone(), limit: config.call_limit() };
    mps::sweep(&config);
    Ok(Arc::new(Held::new(Engine::new(config, Arc::new(hands), ledger))))
}

/// Puts back what an earlier helper left. Says how many GPUs that failed for.
fn reconcile(held: &Held) -> Result<usize, EngineError> {
    let results = held.engine().reconcile(&own("what an earlier helper left"))?;
    let failed = results.iter().filter_map(|(gpu, result)| result.as_ref().err().map(|error| (gpu, error)));
    let mut count = 0;
    for (gpu, error) in failed {
        count += 1;
        tracing::error!(%gpu, "{}", chain(error));
    }
    Ok(count)
}

/// `--restore`: what the boot unit and an administrator run.
///
/// # Errors
/// If something is left.
pub fn restore(config: Option<PathBuf>) -> Result<(), RunError> {
    let held = held(config)?;
    match reconcile(&held)? {
        0 => Ok(()),
        left => Err(RunError::Left(left)),
    }
}

/// `--report`: what is not as it was found, for people, on standard error.
///
/// # Errors
/// If something is.
pub fn report(config: Option<PathBuf>) -> Result<(), RunError> {
    let held = held(config)?;
    let statuses = held.engine().report()?;
    for status in &statuses {
        let (gpu, state) = (&status.gpu, status.state);
        tracing::info!(%gpu, state, found = status.found, wanted = status.wanted, left = ?status.left, commands = ?status.commands, "not as it was found");
    }
    if statuses.is_empty() { Ok(()) } else { Err(RunError::Left(statuses.len())) }
}

/// `--peer`: serves the process at the other end of standard input until it is gone and everything is put back.
///
/// # Errors
/// If it can't begin, or something is left at the end.
pub async fn peer(config: Option<PathBuf>) -> Result<(), RunError> {
    let held = held(config)?;
    let stream = io::stdin().as_fd().try_clone_to_owned().map(UnixStream::from);
    let stream = stream.and_then(|stream| stream.local_addr().map(|_| stream)).map_err(RunError::NoPeer)?;
    let peer = getsockopt(&stream, PeerCredentials).map_err(|errno| RunError::NoPeer(errno.into()))?;
    if peer.uid() != 0 {
        return Err(RunError::NoPeer(io::Error::other(format!("it is of user {}", peer.uid()))));
    }
    let first = Arc::clone(&held);
    tokio::task::spawn_blocking(move || reconcile(&first)).await.map_err(io::Error::other)??;
    let connection = Builder::unix_stream(stream)
        .server(Guid::generate())
        .p2p()
        .serve_at(contract::PATH, HelperObject::new(Arc::clone(&held), Caller::Peer(peer.pid())))
        .build()
        .await?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        () = connection.closed() => {}
        _ = terminate.recv() => return end(held, "the helper was told to end").await,
        // Of a terminal, meant for the client: what it holds ends with it, and not before.
        () = async { loop { interrupt.recv().await; } } => {}
        () = tend(&held) => {}
    }
    // The caller is gone; what is held for it ends with its descriptors, which may be another process's by now.
    let over = async {
        while held.idle().is_none() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::select! {
        () = over => Ok(()),
        () = tend(&held) => Ok(()),
        _ = terminate.recv() => end(Arc::clone(&held), "the helper was told to end").await,
    }
}

/// `--system`: serves the system bus, and ends when there has been nothing to do for a while.
///
/// # Errors
/// If it can't begin, or something is left at the end.
pub async fn system(config: Option<PathBuf>) -> Result<(), RunError> {
    let held = held(config)?;
    let idle_exit = Duration::from_secs(held.engine().config().idle_exit_seconds);
    let first = Arc::clone(&held);
    tokio::task::spawn_blocking(move || reconcile(&first)).await.map_err(io::Error::other)??;
    let connection = Builder::system()
        .serve_at(contract::PATH, HelperObject::new(Arc::clone(&held), Caller::Bus))
        .name(contract::SERVICE)
        .build()
        .await?;
    let mut terminate = signal(SignalKind::terminate())?;
    let idle = async {
        while held.idle().is_none_or(|quiet| quiet < idle_exit) {
            tokio::time::sleep(Duration::from_secs(1).min(idle_exit)).await;
        }
    };
    tokio::select! {
        () = idle => {
            tracing::info!("nothing to do");
            // Requests that come now start another helper.
            connection.release_name(contract::SERVICE).await?;
            while held.idle().is_none() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Ok(())
        }
        () = connection.closed() => {
            // The bus is gone, the callers may not be: what they hold ends with their descriptors.
            tracing::warn!("the bus is gone");
            while held.idle().is_none() {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            Ok(())
        }
        () = tend(&held) => Ok(()),
        _ = terminate.recv() => end(Arc::clone(&held), "the helper was told to end").await,
    }
}

/// Tries again and again what could not be put back; never ends.
async fn tend(held: &Arc<Held>) {
    loop {
        tokio::time::sleep(TEND).await;
        let again = Arc::clone(held);
        // A failure is in the log, and the next try is soon.
        let _ = tokio::task::spawn_blocking(move || again.engine().tend(&own("tried again"))).await;
    }
}

/// Puts everything back once and ends.
async fn end(held: Arc<Held>, why: &'static str) -> Result<(), RunError> {
    let left = tokio::task::spawn_blocking(move || {
        held.stop_all_mps();
        held.restore_all(why);
        held.engine().is_holding()
    });
    if left.await.map_err(io::Error::other)? { Err(RunError::Left(1)) } else { Ok(()) }
}
