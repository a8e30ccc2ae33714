//! What machine this is, as far as set-up cares.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::process;

/// Whether this process may install packages.
pub(crate) fn is_root() -> bool {
    // The owner of /proc/self is the process's effective user.
    fs::metadata("/proc/self").is_ok_and(|entry| entry.uid() == 0)
}

/// Whether an NVIDIA GPU is to be expected here: its driver is loaded, or its tool is installed.
pub(crate) fn has_gpu() -> bool {
    Path::new("/dev/nvidiactl").exists() || process::on_path("nvidia-smi").is_some()
}
