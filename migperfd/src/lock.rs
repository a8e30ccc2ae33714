//! Locks that keep measurements apart: one holder per device on the whole host, one daemon per state directory.
//!
//! A device's lock is a name in the abstract socket space: visible to every user, gone with its holder however that ends,
//! and needing no directory that an installation would have to make. It spans a network namespace; a container with one of
//! its own is told apart by the processes that NVML lists.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd as _;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{AddressFamily, Shutdown, SockFlag, SockType, UnixAddr, connect, getsockopt, shutdown, socket};
use nix::unistd::{Uid, User};

/// Who holds a lock, as far as the kernel tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The process that took it.
    pub pid: i32,
    /// Its user: the name, or the number where there is none.
    pub user: String,
}

/// Why a lock was not taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Somebody has it.
    #[error("{what} is being measured by {}; wait until that ends", .holder.as_ref().map_or("another process".to_owned(), |h| format!("pid {} of user {}", h.pid, h.user)))]
    Held {
        /// The device.
        what: String,
        /// Who has it.
        holder: Option<Holder>,
    },
    /// The kernel gave none.
    #[error("can't take the lock of {what}")]
    System {
        /// The device or directory.
        what: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

/// Holds a device until dropped.
#[derive(Debug)]
pub struct DeviceLock {
    listener: Arc<UnixListener>,
    answering: Option<JoinHandle<()>>,
}

impl DeviceLock {
    /// Takes the lock of a device: a GPU's UUID, or `cpu` for the host's processors.
    ///
    /// # Errors
    /// If somebody holds it; who, if the kernel tells.
    pub fn take(device: &str) -> Result<Self, LockError> {
        Self::named(&name(device), device)
    }

    /// Takes a name of the abstract socket space, for `what`.
    pub(crate) fn named(name: &str, what: &str) -> Result<Self, LockError> {
        let system = |source| LockError::System { what: what.to_owned(), source };
        let address = SocketAddr::from_abstract_name(name).map_err(system)?;
        match UnixListener::bind_addr(&address) {
            Ok(listener) => {
                let listener = Arc::new(listener);
                let answering = answer(Arc::clone(&listener)).map_err(system)?;
                Ok(Self { listener, answering: Some(answering) })
            }
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
                Err(LockError::Held { what: what.to_owned(), holder: holder(&address) })
            }
            Err(error) => Err(system(error)),
        }
    }
}

impl Drop for DeviceLock {
    fn drop(&mut self) {
        // Wakes the thread that answers: the name is free once neither has the socket.
        let _ = shutdown(self.listener.as_raw_fd(), Shutdown::Both);
        let _ = self.answering.take().map(JoinHandle::join);
    }
}

/// Takes the connections of those who ask who holds the lock: each would stay in the socket's queue otherwise, which is
/// full after some hours of waiting.
fn answer(listener: Arc<UnixListener>) -> std::io::Result<JoinHandle<()>> {
    let answer = move || while listener.accept().is_ok() {};
    std::thread::Builder::new().name("device-lock".to_owned()).spawn(answer)
}

/// Who holds the lock of a device; none if nobody does or the kernel does not tell.
#[must_use]
pub fn holder_of(device: &str) -> Option<Holder> {
    holder_of_name(&name(device))
}

/// Who holds a name of the abstract socket space.
pub(crate) fn holder_of_name(name: &str) -> Option<Holder> {
    holder(&SocketAddr::from_abstract_name(name).ok()?)
}

fn name(device: &str) -> String {
    format!("migperf/device/{device}")
}

/// Asks the kernel. A holder that does not answer (it may be stopped) is not waited for.
fn holder(address: &SocketAddr) -> Option<Holder> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None).ok()?;
    let address = UnixAddr::new_abstract(address.as_abstract_name()?).ok()?;
    connect(socket.as_raw_fd(), &address).ok()?;
    let peer = getsockopt(&socket, PeerCredentials).ok()?;
    let uid = Uid::from_raw(peer.uid());
    let user = User::from_uid(uid).ok().flatten().map_or_else(|| uid.to_string(), |user| user.name);
    Some(Holder { pid: peer.pid(), user })
}

/// Holds a state directory until dropped: one daemon at a time writes its store.
#[derive(Debug)]
pub struct StateLock {
    _file: Flock<File>,
}

impl StateLock {
    /// Takes the lock of a state directory; `None` if another daemon has it.
    ///
    /// # Errors
    /// If the lock file can't be made.
    pub fn take(directory: &Path) -> Result<Option<Self>, LockError> {
        let system = |source| LockError::System { what: directory.display().to_string(), source };
        let mut options = OpenOptions::new();
        let file = options.create(true).truncate(false).write(true).open(directory.join("lock")).map_err(system)?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(file) => Ok(Some(Self { _file: file })),
            Err((_, Errno::EWOULDBLOCK)) => Ok(None),
            Err((_, errno)) => Err(system(errno.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_has_one_holder_who_is_named() {
        let device = format!("test-{}", std::process::id());
        let held = DeviceLock::take(&device).unwrap();
        let LockError::Held { holder: Some(holder), .. } = DeviceLock::take(&device).unwrap_err() else {
            panic!("the lock is held")
        };
        assert_eq!(holder.pid, i32::try_from(std::process::id()).unwrap());
        drop(held);
        DeviceLock::take(&device).unwrap();
    }

    /// A queue of connections that nobody takes is full after 4096 of them, or fewer where the host says so.
    #[test]
    fn whoever_waits_may_ask_for_ever() {
        let device = format!("asked-{}", std::process::id());
        let _held = DeviceLock::take(&device).unwrap();
        for _ in 0..10_000 {
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
            while holder_of(&device).is_none() {
                assert!(std::time::Instant::now() < deadline, "the holder does not answer");
                std::thread::yield_now();
            }
        }
        assert_eq!(holder_of("nobody's"), None);
    }

    #[test]
    fn a_state_directory_has_one_daemon() {
        let directory = tempfile::tempdir().unwrap();
        let held = StateLock::take(directory.path()).unwrap();
        assert!(held.is_some());
        assert!(StateLock::take(directory.path()).unwrap().is_none());
        drop(held);
        assert!(StateLock::take(directory.path()).unwrap().is_some());
    }
}
