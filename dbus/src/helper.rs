//! The helper's interface: the few things that only root can do to a GPU, asked for by the daemon.
//!
//! The caller is the daemon (or root); whom it acts for is told for the audit line only and decides nothing here.

use serde::{Deserialize, Serialize};
use zbus::OwnedFd;
use zbus::proxy;
use zbus::zvariant::Type;

use crate::Keyed;
use crate::error::Error;

/// The bus name of the helper.
pub const SERVICE: &str = "org.migperf1.Helper";
/// Its only object.
pub const PATH: &str = "/org/migperf1/Helper";

/// A compute instance: what a process runs on, with an identity of its own until it is destroyed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Type)]
pub struct ComputeInstance {
    /// Its number within the GPU instance.
    pub id: u32,
    /// Its profile as the device names it: `1g.18gb`, or `1c.3g.71gb` for a part of its GPU instance.
    pub profile: String,
    /// `MIG-…`.
    pub uuid: String,
}

/// A GPU instance, read back from the device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Type)]
pub struct GpuInstance {
    /// The device's number for it: opaque, and used again after it is destroyed.
    pub id: u32,
    /// Its profile as the device names it.
    pub profile: String,
    /// First memory slot.
    pub start: u32,
    /// Memory slots.
    pub size: u32,
    /// Its compute instances, ascending; empty for a half-made one.
    pub compute: Vec<ComputeInstance>,
}

/// What is on a GPU after a change, and what the change did.
pub type Changed = (Vec<GpuInstance>, Keyed);

/// Keys of the options of `ApplyLayout` and `Restore`.
pub mod apply {
    /// `s`: `while-alive` (the default: restored when the liveness descriptor ends) or `until-restored` (kept until
    /// `Restore`, also by a later helper).
    pub const HOLD: &str = "hold";
    /// `b`: instances that were there before may be destroyed where the layout needs it; restoring creates them anew, with
    /// other UUIDs.
    pub const REPLACE_EXISTING: &str = "replace-existing";
    /// `u`: user id of the person this is done for, as the daemon claims.
    pub const ON_BEHALF_OF: &str = "on-behalf-of";
    /// `s`: what it is done for, for the audit line.
    pub const PURPOSE: &str = "purpose";
}

/// Keys of what a change did.
pub mod changed {
    /// `b`: the MIG mode was switched.
    pub const MODE_CHANGED: &str = "mode-changed";
    /// `as`: UUIDs that are gone.
    pub const REMOVED_UUIDS: &str = "removed-uuids";
    /// `as`: UUIDs that are new.
    pub const CREATED_UUIDS: &str = "created-uuids";
    /// `u`: destroys and creates that were carried out.
    pub const STEPS: &str = "steps";
    /// `b`: the GPU is as it was found.
    pub const AS_FOUND: &str = "as-found";
    /// `as`: what could not be put back as it was, for people (another manager's change, for example).
    pub const LEFT: &str = "left";
}

/// Keys of `StartMps` and of its reply.
pub mod mps {
    /// Option, `u`: 1 to 100, the default active thread percentage of its clients.
    pub const ACTIVE_THREAD_PERCENTAGE: &str = "active-thread-percentage";
    /// Option, `t`: the default device memory limit of each client, in bytes (whole MiB).
    pub const PINNED_MEMORY_LIMIT_BYTES: &str = "pinned-memory-limit-bytes";
    /// Reply, `s`: `CUDA_MPS_PIPE_DIRECTORY` of its clients.
    pub const PIPE_DIRECTORY: &str = "pipe-directory";
    /// Reply, `s`: where it writes its logs.
    pub const LOG_DIRECTORY: &str = "log-directory";
    /// Reply, `u`: the control daemon's process.
    pub const PID: &str = "pid";
}

/// Keys of an entry of `Report`.
pub mod report {
    /// `s`: the GPU's UUID.
    pub const GPU: &str = "gpu";
    /// `s`: `held` (changed, and restored when its holder ends), `kept` (changed until `Restore`), `restoring`,
    /// `quarantined` (a call to the driver does not return) or `rollback-failed`.
    pub const STATE: &str = "state";
    /// `s`: the layout that was found, such as `off`, `empty` or `3g.71gb@0:4`.
    pub const FOUND: &str = "found";
    /// `s`: the layout that is wanted.
    pub const WANTED: &str = "wanted";
    /// `as`: what is not as it was found.
    pub const LEFT: &str = "left";
    /// `as`: what an administrator would type to put it right.
    pub const COMMANDS: &str = "commands";
}

/// The root helper.
#[proxy(
    interface = "org.migperf1.Helper",
    default_service = "org.migperf1.Helper",
    default_path = "/org/migperf1/Helper"
)]
pub trait Helper {
    /// Brings a GPU to a layout (`off`, `empty`, or instances such as `3g+2x1g` or `3g@4+1g`) by the fewest changes and
    /// replies with what was read back. The first change of a GPU records what was found there; `Restore` or the end of
    /// the liveness descriptor (the read end of a pipe whose write end the caller keeps) brings it back.
    /// Options: [`apply`]; what was done: [`changed`].
    fn apply_layout(&self, gpu: &str, layout: &str, liveness: OwnedFd, options: &Keyed) -> Result<Changed, Error>;

    /// Brings a GPU back to what was found; where nothing is recorded, nothing is done.
    fn restore(&self, gpu: &str, options: &Keyed) -> Result<Changed, Error>;

    /// Starts an MPS control daemon for a GPU or a MIG device, under a user without privilege; it ends with the liveness
    /// descriptor. Options and reply: [`mps`].
    fn start_mps(&self, device: &str, uid: u32, liveness: OwnedFd, options: &Keyed) -> Result<Keyed, Error>;

    /// Stops the MPS control daemon of a device.
    fn stop_mps(&self, device: &str, options: &Keyed) -> Result<(), Error>;

    /// Every GPU that is not as it was found: keys of [`report`].
    fn report(&self) -> Result<Vec<Keyed>, Error>;

    /// The helper's version.
    #[zbus(property(emits_changed_signal = "const"))]
    fn version(&self) -> zbus::Result<String>;
}
