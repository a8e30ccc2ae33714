//! Documents that travel as file descriptors: sealed memory files of bounded size.

use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

/// The longest suite a daemon reads, in bytes.
pub const LONGEST_SUITE: u64 = 1 << 20;
/// The longest report a client reads, in bytes.
pub const LONGEST_REPORT: u64 = 1 << 30;

/// Why a document could not be made or read.
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    /// The memory file could not be made.
    #[error("can't make a memory file")]
    Create(#[source] Errno),
    /// The descriptor is no memory file, or can still be written.
    #[error(
        "the descriptor is not a sealed memory file; make it with memfd_create and seal it against writing and resizing"
    )]
    NotSealed,
    /// Too long.
    #[error("the document has {length} bytes, over the limit of {limit}")]
    TooLong {
        /// What it has.
        length: u64,
        /// What is allowed.
        limit: u64,
    },
    /// Reading or writing failed.
    #[error("can't read or write the memory file")]
    Io(#[source] std::io::Error),
}

fn seals() -> SealFlag {
    SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SHRINK
}

/// A sealed memory file that holds `bytes`, at its start.
///
/// # Errors
/// If the kernel gives none.
pub fn seal(bytes: &[u8]) -> Result<OwnedFd, DocumentError> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let mut file = File::from(memfd_create(c"migperf-document", flags).map_err(DocumentError::Create)?);
    file.write_all(bytes).and_then(|()| file.rewind()).map_err(DocumentError::Io)?;
    let all = seals() | SealFlag::F_SEAL_SEAL;
    fcntl(file.as_fd(), FcntlArg::F_ADD_SEALS(all)).map_err(DocumentError::Create)?;
    Ok(file.into())
}

/// Reads a whole sealed memory file of at most `limit` bytes, wherever its offset stands.
///
/// # Errors
/// If it is not sealed (its content could change while it is read), too long, or unreadable.
pub fn read(document: OwnedFd, limit: u64) -> Result<Vec<u8>, DocumentError> {
    let found = fcntl(document.as_fd(), FcntlArg::F_GET_SEALS).map_err(|_| DocumentError::NotSealed)?;
    if !SealFlag::from_bits_truncate(found).contains(seals()) {
        return Err(DocumentError::NotSealed);
    }
    let mut file = File::from(document);
    let length = file.metadata().map_err(DocumentError::Io)?.len();
    if length > limit {
        return Err(DocumentError::TooLong { length, limit });
    }
    let mut bytes = Vec::new();
    file.rewind().and_then(|()| file.read_to_end(&mut bytes)).map_err(DocumentError::Io)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_comes_back_as_it_went() {
        assert_eq!(read(seal(b"version = 1").unwrap(), 100).unwrap(), b"version = 1");
    }

    #[test]
    fn what_is_long_or_can_change_is_refused() {
        let long = read(seal(b"version = 1").unwrap(), 10);
        assert!(matches!(long, Err(DocumentError::TooLong { length: 11, limit: 10 })));
        let open = memfd_create(c"open", MFdFlags::MFD_ALLOW_SEALING).unwrap();
        assert!(matches!(read(open, 10), Err(DocumentError::NotSealed)));
        let (pipe, _other) = std::io::pipe().unwrap();
        assert!(matches!(read(pipe.into(), 10), Err(DocumentError::NotSealed)));
    }
}
