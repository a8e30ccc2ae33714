//! Local mode: one daemon for each state directory, without bus, systemd or root.
//!
//! The client that starts it hands it one end of a socket pair as standard input. Further clients of the same user come
//! through a socket in the state directory. It ends when nobody is connected and no job is unfinished.

use std::os::fd::AsFd as _;
use std::os::unix::net::{UnixListener as StdListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::sys::stat::{Mode, umask};
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;

use crate::bus;
use crate::clock;
use crate::helper::Helper;
use crate::host;
use crate::lock::{LockError, StateLock};
use crate::queue::Queue;
use crate::settings::{Arguments, Settings, SettingsError};
use crate::store::{Store, StoreError};

/// A daemon that nobody uses waits this long for the next client.
const LINGER: Duration = Duration::from_secs(2);

/// Why the daemon could not begin, or had to end.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// The settings can't be used.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The state directory can't be made.
    #[error("can't make the state directory {0}")]
    Directory(PathBuf, #[source] std::io::Error),
    /// The state directory's lock can't be had.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// Another daemon has the state directory.
    #[error("another migperfd uses the state directory {0}")]
    Taken(PathBuf),
    /// The store can't be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The socket for further clients can't be made.
    #[error("can't listen at {0}")]
    Listen(PathBuf, #[source] std::io::Error),
    /// Standard input is no socket.
    #[error("standard input is not a socket; migperfctl starts this program")]
    NoClient(#[source] std::io::Error),
    /// The system gives no signals.
    #[error("can't listen for signals")]
    Signals(#[source] std::io::Error),
}

impl PeerError {
    /// 75 (EX_TEMPFAIL) when another daemon has the state directory, so that a client asks that one; else 1.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        if matches!(self, Self::Taken(_)) { 75 } else { 1 }
    }
}

/// Runs until there is nothing left to do.
///
/// # Errors
/// If it can't begin.
pub async fn run(arguments: Arguments) -> Result<(), PeerError> {
    // What is made here is its owner's alone.
    umask(Mode::from_bits_truncate(0o077));
    let settings = Arc::new(Settings::from_arguments(arguments)?);
    std::fs::create_dir_all(&settings.state).map_err(|error| PeerError::Directory(settings.state.clone(), error))?;
    let Some(_lock) = StateLock::take(&settings.state)? else { return Err(PeerError::Taken(settings.state.clone())) };
    let mut store = Store::open(&settings.state)?;
    let interrupted = store.interrupt_unfinished("the daemon ended while the job was unfinished", clock::wall())?;
    if interrupted > 0 {
        tracing::warn!(interrupted, "jobs of a daemon that died");
    }
    let helper = Arc::new(Helper::find(&settings));
    // In the background: a GPU that an earlier daemon left changed may take long, and clients need not wait for it.
    let begun = Arc::clone(&helper);
    tokio::spawn(async move { begun.begin().await });
    let queue = Queue::start(Arc::clone(&settings), Arc::new(Mutex::new(store)), helper);
    let (listener, socket) = listen(&settings)?;
    let first = std::io::stdin().as_fd().try_clone_to_owned().map(UnixStream::from);
    let first = first.and_then(|stream| stream.local_addr().map(|_| stream)).map_err(PeerError::NoClient)?;
    let mut clients = JoinSet::new();
    welcome(&mut clients, first, &queue);
    let mut terminate = signal(SignalKind::terminate()).map_err(PeerError::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(PeerError::Signals)?;
    let mut busy = queue.busy();
    loop {
        let idle = clients.is_empty() && !*busy.borrow_and_update();
        tokio::select! {
            accepted = listener.accept() => match accepted.and_then(|(stream, _)| stream.into_std()) {
                Ok(stream) => welcome(&mut clients, stream, &queue),
                Err(error) => tracing::warn!(%error, "a client could not be accepted"),
            },
            Some(_) = clients.join_next() => {}
            changed = busy.changed() => if changed.is_err() { break },
            () = tokio::time::sleep(LINGER), if idle => break,
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
        }
    }
    // Gone first, so that no client comes to a daemon that is leaving.
    let _ = std::fs::remove_file(socket);
    queue.end("the daemon was told to end").await;
    Ok(())
}

/// The socket for further clients. The state directory's lock is held, so that a socket that is there is a dead daemon's.
fn listen(settings: &Settings) -> Result<(UnixListener, PathBuf), PeerError> {
    let path = settings.state.join("migperfd.sock");
    let failed = |error| PeerError::Listen(path.clone(), error);
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let listener = StdListener::bind(&path).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok((UnixListener::from_std(listener).map_err(failed)?, path))
}

/// Serves a client if it is of this daemon's user, or root.
fn welcome(clients: &mut JoinSet<()>, stream: UnixStream, queue: &Queue) {
    let Ok(peer) = getsockopt(&stream, PeerCredentials) else { return };
    let own = nix::unistd::geteuid().as_raw();
    if peer.uid() != own && peer.uid() != 0 {
        tracing::warn!(uid = peer.uid(), "a client of another user was turned away");
        return;
    }
    let (queue, owner) = (queue.clone(), host::owner(peer.uid()));
    clients.spawn(async move {
        if let Err(error) = bus::serve_peer(stream, owner, queue).await {
            // It may leave at any moment, also while its objects are being prepared.
            tracing::info!(%error, "a client's connection failed");
        }
    });
}
