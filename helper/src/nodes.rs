//! Device files of new instances, made where the driver doesn't make them *(not tried on hardware)*.
//!
//! The driver describes each capability in a small file (`DeviceFileMinor`, `DeviceFileMode`); using an instance needs the
//! files of its GPU instance and of its compute instance.

use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use migperf_gpu::layout::Division;
use nix::sys::stat::{Mode, SFlag, major, makedev, minor, mknod};

/// Why an instance's device file can't be had.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The driver's description makes no sense.
    #[error("{0} does not describe a device file")]
    Malformed(PathBuf),
    /// The kernel knows no such devices.
    #[error("the kernel lists no number for nvidia-caps in {0}")]
    NoMajor(PathBuf),
    /// It can't be made, read or removed.
    #[error("the device file {0} can't be made")]
    Make(PathBuf, #[source] io::Error),
    /// There is something else of its name.
    #[error("{0} is not the device file that the driver describes")]
    Other(PathBuf),
}

/// Where things are.
#[derive(Debug, Clone)]
pub struct Places {
    /// The driver's descriptions.
    pub capabilities: PathBuf,
    /// The folder of device files.
    pub devices: PathBuf,
    /// The kernel's list of numbers.
    pub numbers: PathBuf,
}

/// A device file that should be there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its path.
    pub path: PathBuf,
    minor: u32,
    mode: u32,
}

impl Places {
    /// The device files that the instances on a GPU need and that are not there. Instances that the driver does not
    /// describe (drivers before 450 with another scheme) need none.
    ///
    /// # Errors
    /// If a description makes no sense.
    pub fn missing(&self, division: &Division) -> Result<Vec<Node>, NodeError> {
        let gpu = self.capabilities.join(format!("gpu{}/mig", division.minor));
        let mut missing = Vec::new();
        for instance in &division.instances {
            let within = gpu.join(format!("gi{}", instance.id));
            let compute = instance.compute.iter().map(|compute| within.join(format!("ci{}/access", compute.id)));
            for description in std::iter::once(within.join("access")).chain(compute) {
                let Ok(text) = std::fs::read_to_string(&description) else { continue };
                let node = self.described(&text).ok_or(NodeError::Malformed(description))?;
                if std::fs::symlink_metadata(&node.path).is_err() {
                    missing.push(node);
                }
            }
        }
        Ok(missing)
    }

    fn described(&self, text: &str) -> Option<Node> {
        let value = |key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
            line?.trim().parse::<u32>().ok()
        };
        let minor = value("DeviceFileMinor")?;
        let path = self.devices.join(format!("nvidia-caps/nvidia-cap{minor}"));
        Some(Node { path, minor, mode: value("DeviceFileMode")? & 0o777 })
    }

    /// Makes a device file and reads it back.
    ///
    /// # Errors
    /// If it can't be made or is another then.
    pub fn make(&self, node: &Node) -> Result<(), NodeError> {
        let failed = |error: io::Error| NodeError::Make(node.path.clone(), error);
        let folder = self.devices.join("nvidia-caps");
        std::fs::DirBuilder::new().recursive(true).mode(0o755).create(&folder).map_err(failed)?;
        let device = makedev(u64::from(self.major()?), u64::from(node.minor));
        let mode = Mode::from_bits_truncate(node.mode);
        match mknod(&node.path, SFlag::S_IFCHR, mode, device) {
            // The driver's own tool may have been faster.
            Ok(()) | Err(nix::errno::Errno::EEXIST) => {}
            Err(errno) => return Err(failed(errno.into())),
        }
        let set = std::os::unix::fs::PermissionsExt::from_mode(node.mode);
        std::fs::set_permissions(&node.path, set).map_err(failed)?;
        let found = std::fs::symlink_metadata(&node.path).map_err(failed)?;
        let right = found.file_type().is_char_device() && found.rdev() == device && found.mode() & 0o777 == node.mode;
        if right { Ok(()) } else { Err(NodeError::Other(node.path.clone())) }
    }

    /// The number of the driver for capabilities: that of a device file that is there, or the kernel's.
    fn major(&self) -> Result<u32, NodeError> {
        let there = std::fs::read_dir(self.devices.join("nvidia-caps")).into_iter().flatten().filter_map(Result::ok);
        let known = there.filter_map(|entry| entry.metadata().ok()).find(|found| found.file_type().is_char_device());
        if let Some(found) = known {
            return u32::try_from(major(found.rdev())).map_err(|_| NodeError::NoMajor(self.numbers.clone()));
        }
        let text = std::fs::read_to_string(&self.numbers).unwrap_or_default();
        let line = text.lines().find_map(|line| line.trim().strip_suffix(" nvidia-caps"));
        line.and_then(|number| number.trim().parse().ok()).ok_or_else(|| NodeError::NoMajor(self.numbers.clone()))
    }

    /// Removes a device file that the helper made, if it is still one of the driver's capabilities.
    ///
    /// # Errors
    /// If it can't be removed.
    pub fn remove(&self, path: &Path) -> io::Result<()> {
        match std::fs::symlink_metadata(path) {
            Ok(found) if found.file_type().is_char_device() && minor(found.rdev()) > 2 => std::fs::remove_file(path),
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }
}
