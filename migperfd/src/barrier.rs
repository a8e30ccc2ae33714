//! The MIG mode's switch as a barrier: it needs every NVML client of the host closed, ours on all GPUs too.
//!
//! Whoever measures a GPU marks that on the host; whoever switches a mode marks that too. Each marks first and looks for
//! the other's mark after, so that at least one of two sees the other: a trial retreats, a switch waits. Short looks at
//! the devices wait as well; within one process a lock keeps them apart. Marks belong to an NVML library: a simulated
//! machine beside the real one has a driver of its own.

use std::path::Path;
use std::time::{Duration, Instant};

use migperf_core::ids::GpuUuid;
use tokio::sync::{RwLock, RwLockWriteGuard};

use crate::lock::{DeviceLock, LockError, holder_of_name};

/// The mark of a trial, before its library's and its GPU's.
const TRIAL: &str = "migperf/trial";
/// The mark of a switch, before its library's.
const SWITCH: &str = "migperf/mode-switch";
/// A look at the devices waits so long for somebody else's switch.
const LOOK_LIMIT: Duration = Duration::from_secs(60);
/// A helper that starts waits so long for looks to end.
const START_LIMIT: Duration = Duration::from_secs(5);
/// How often it looks for the end of the switch.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// NVML is one in a process: shared by those who look, alone for who switches a mode.
static NVML: RwLock<()> = RwLock::const_new(());

/// Says on the whole host that a GPU is being measured, with NVML open, until dropped.
#[derive(Debug)]
pub struct TrialMark {
    _name: DeviceLock,
}

impl TrialMark {
    /// Marks a trial; none where a mode is being switched just now.
    ///
    /// # Errors
    /// If the kernel gives no mark.
    pub fn set(nvml: Option<&Path>, gpu: &GpuUuid) -> Result<Option<Self>, LockError> {
        let name = format!("{TRIAL}/{}/{gpu}", library(nvml));
        let mark = Self { _name: DeviceLock::named(&name, gpu.as_str())? };
        Ok(is_switched_by_others(nvml).is_none().then_some(mark))
    }
}

/// Says on the whole host that a MIG mode is being switched, until dropped.
#[derive(Debug)]
pub struct Switch {
    _name: DeviceLock,
    library: String,
}

impl Switch {
    /// Marks a switch.
    ///
    /// # Errors
    /// If somebody else switches one.
    pub fn mark(nvml: Option<&Path>) -> Result<Self, LockError> {
        let library = library(nvml);
        let name = format!("{SWITCH}/{library}");
        match DeviceLock::named(&name, "the MIG mode") {
            Ok(name) => Ok(Self { _name: name, library }),
            Err(error) => Err(error),
        }
    }

    /// GPUs that are being measured: the switch must wait for them.
    #[must_use]
    pub fn in_its_way(&self) -> Vec<String> {
        trials(&std::fs::read_to_string("/proc/net/unix").unwrap_or_default(), &self.library)
    }

    /// Keeps this process's NVML closed until dropped.
    pub async fn close_nvml(&self) -> RwLockWriteGuard<'static, ()> {
        NVML.write().await
    }
}

/// Keeps this process's NVML closed until dropped, for a helper that starts and may have a mode to put back; none where
/// somebody who waits for that helper keeps it closed already.
pub async fn close_for_start() -> Option<RwLockWriteGuard<'static, ()>> {
    tokio::time::timeout(START_LIMIT, NVML.write()).await.ok()
}

/// A library in a name: empty for the driver's own.
fn library(nvml: Option<&Path>) -> String {
    let digest = |path: &Path| {
        let digest = <sha2::Sha256 as sha2::Digest>::digest(path.as_os_str().as_encoded_bytes());
        digest[..8].iter().map(|byte| format!("{byte:02x}")).collect()
    };
    nvml.map(digest).unwrap_or_default()
}

/// Marks of trials in the kernel's list of sockets.
fn trials(sockets: &str, library: &str) -> Vec<String> {
    let prefix = format!("@{TRIAL}/{library}/");
    let name = |line: &str| Some(line.split_whitespace().last()?.strip_prefix(&prefix)?.to_owned());
    let mut found: Vec<String> = sockets.lines().filter_map(name).collect();
    found.sort();
    found.dedup();
    found
}

/// Who else switches a mode.
fn is_switched_by_others(nvml: Option<&Path>) -> Option<i32> {
    let own = i32::try_from(std::process::id()).ok();
    holder_of_name(&format!("{SWITCH}/{}", library(nvml))).map(|holder| holder.pid).filter(|pid| Some(*pid) != own)
}

/// Looks at the devices when nobody switches a mode. Blocks: callers have a thread for it.
pub fn look<T>(nvml: Option<&Path>, look: impl FnOnce(Option<&Path>) -> T) -> T {
    let deadline = Instant::now() + LOOK_LIMIT;
    while is_switched_by_others(nvml).is_some() && Instant::now() < deadline {
        std::thread::sleep(LOOK_AGAIN);
    }
    let _shared = NVML.blocking_read();
    look(nvml)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(number: u32) -> GpuUuid {
        format!("GPU-{:08x}-0000-4000-9000-{number:012x}", std::process::id()).parse().unwrap()
    }

    #[test]
    fn a_switch_sees_the_trials_of_its_driver() {
        let folder = tempfile::tempdir().unwrap();
        let (ours, others) = (folder.path().join("ours"), folder.path().join("others"));
        let mark = TrialMark::set(Some(&ours), &gpu(1)).unwrap().unwrap();
        let switch = Switch::mark(Some(&ours)).unwrap();
        assert_eq!(switch.in_its_way(), [gpu(1).to_string()]);
        assert!(Switch::mark(Some(&ours)).is_err(), "one at a time");
        assert!(Switch::mark(Some(&others)).unwrap().in_its_way().is_empty());
        assert!(TrialMark::set(Some(&ours), &gpu(1)).is_err(), "a GPU is measured once at a time");
        drop(mark);
        assert!(switch.in_its_way().is_empty());
    }

    #[test]
    fn marks_are_read_from_the_kernels_list() {
        let sockets = "Num       RefCount Protocol Flags    Type St Inode Path\n\
             0000000000000000: 00000002 00000000 00010000 0001 01 49155 @migperf/trial//GPU-1\n\
             0000000000000000: 00000003 00000000 00000000 0001 03 49156 @migperf/trial//GPU-1\n\
             0000000000000000: 00000002 00000000 00010000 0001 01 49157 @migperf/trial/00ff/GPU-2\n\
             0000000000000000: 00000002 00000000 00010000 0001 01 49158 /run/migperf/trial//GPU-3\n\
             0000000000000000: 00000003 00000000 00000000 0001 03 49159\n";
        assert_eq!(trials(sockets, ""), ["GPU-1"]);
        assert_eq!(trials(sockets, "00ff"), ["GPU-2"]);
    }
}
