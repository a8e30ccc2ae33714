//! Locks that keep measurements apart: one holder per device on the whole host, one daemon per state directory.
//!
//! A device's lock is a name in the abstract socket space: visible to every user, gone with its holder however that ends,
//! and needing no directory that an installation would have to make. It spans a network namespace; a container with one of
//! its own is told apart by the processes that NVML lists.

use std::fs::{File, OpenOptions};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
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
    _listener: UnixListener,
}

impl DeviceLock {
    /// Takes the lock of a device: a GPU's UUID, or `cpu` for the host's processors.
    ///
    /// # Errors
    /// If somebody holds it; who, if the kernel tells.
    pub fn take(device: &str) -> Result<Self, LockError> {
        let system = |source| LockError::System { what: device.to_owned(), source };
        let address = SocketAddr::from_abstract_name(format!("migperf/device/{device}")).map_err(system)?;
        match UnixListener::bind_addr(&address) {
            Ok(listener) => Ok(Self { _listener: listener }),
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
                Err(LockError::Held { what: device.to_owned(), holder: holder(&address) })
            }
            Err(error) => Err(system(error)),
        }
    }
}

fn holder(address: &SocketAddr) -> Option<Holder> {
    let stream = UnixStream::connect_addr(address).ok()?;
    let peer = getsockopt(&stream, PeerCredentials).ok()?;
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
