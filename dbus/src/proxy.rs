//! Proxies: the interface as clients call it. Each method's and property's meaning is told here once.

use zbus::proxy;
use zbus::{OwnedFd, OwnedObjectPath};

use crate::Keyed;
use crate::error::Error;

/// The daemon: accepts, lists, reports and cancels jobs.
#[proxy(interface = "org.migperf1.Manager", default_service = "org.migperf1", default_path = "/org/migperf1")]
pub trait Manager {
    /// Queues a suite (a sealed memory file) and replies at once with its job's object.
    /// Options: [`crate::names::submit`].
    fn submit_job(&self, suite: OwnedFd, options: &Keyed) -> Result<OwnedObjectPath, Error>;

    /// What `SubmitJob` would do, as JSON: the trials in order, and the reasons why it would be refused.
    fn plan_job(&self, suite: OwnedFd, options: &Keyed) -> Result<OwnedFd, Error>;

    /// Stored jobs, newest first, after a cursor; an empty next cursor means that there are no more.
    /// Keys: [`crate::names::job`]; filter: [`crate::names::filter`].
    fn list_jobs(&self, filter: &Keyed, cursor: &str, limit: u32) -> Result<(Vec<Keyed>, String), Error>;

    /// A stored job's report as it stands, as `json`, or what it is made of as `archive`.
    fn open_report(&self, job: u32, format: &str, options: &Keyed) -> Result<OwnedFd, Error>;

    /// Cancels a job that has not ended; what it measured stays.
    fn cancel_job(&self, job: u32, options: &Keyed) -> Result<(), Error>;

    /// What measuring needs and whether it is there, as JSON: driver, NVML, libtorch, MPS program, permissions, versions.
    fn open_check(&self, options: &Keyed) -> Result<OwnedFd, Error>;

    /// How the machine's GPUs are divided, as JSON: modes, instances, what the devices offer, what is held changed.
    fn open_layouts(&self, options: &Keyed) -> Result<OwnedFd, Error>;

    /// What `ApplyLayout` would do to a GPU (its UUID or index), as JSON. Nothing is changed.
    /// Options: [`crate::names::layout`].
    fn plan_layout(&self, gpu: &str, layout: &str, options: &Keyed) -> Result<OwnedFd, Error>;

    /// Brings a GPU to a layout (`off`, `empty`, or instances such as `3g+2x1g` or `3g@4+1g`) until `RestoreLayout`, and
    /// replies with what was done, as JSON. Options: [`crate::names::layout`].
    fn apply_layout(&self, gpu: &str, layout: &str, options: &Keyed) -> Result<OwnedFd, Error>;

    /// Brings a GPU back to what was found before the first change, and replies with what was done, as JSON.
    fn restore_layout(&self, gpu: &str, options: &Keyed) -> Result<OwnedFd, Error>;

    /// The daemon's version.
    #[zbus(property(emits_changed_signal = "const"))]
    fn version(&self) -> zbus::Result<String>;

    /// Where the daemon keeps its jobs.
    #[zbus(property(emits_changed_signal = "const"))]
    fn state_directory(&self) -> zbus::Result<String>;
}

/// A job of this daemon's life.
#[proxy(interface = "org.migperf1.Job", default_service = "org.migperf1", assume_defaults = false)]
pub trait Job {
    /// Its number in this daemon's store.
    #[zbus(property(emits_changed_signal = "const"))]
    fn id(&self) -> zbus::Result<u32>;

    /// Its identity, unique between hosts.
    #[zbus(property(emits_changed_signal = "const"))]
    fn uid(&self) -> zbus::Result<String>;

    /// The suite's name.
    #[zbus(property(emits_changed_signal = "const"))]
    fn name(&self) -> zbus::Result<String>;

    /// User id of who submitted it.
    #[zbus(property(emits_changed_signal = "const"))]
    fn owner(&self) -> zbus::Result<u32>;

    /// `queued`, `waiting-for-gpu`, `running`, `restoring`, `done`, `failed`, `cancelled` or `interrupted`.
    #[zbus(property)]
    fn state(&self) -> zbus::Result<String>;

    /// How far it is; keys of [`crate::names::job`].
    #[zbus(property)]
    fn progress(&self) -> zbus::Result<Keyed>;
}

/// A GPU of this host.
#[proxy(interface = "org.migperf1.Gpu", default_service = "org.migperf1", assume_defaults = false)]
pub trait Gpu {
    /// NVML's index.
    #[zbus(property(emits_changed_signal = "const"))]
    fn index(&self) -> zbus::Result<u32>;

    /// Its UUID.
    #[zbus(property(emits_changed_signal = "const"))]
    fn uuid(&self) -> zbus::Result<String>;

    /// Its product name.
    #[zbus(property(emits_changed_signal = "const"))]
    fn name(&self) -> zbus::Result<String>;

    /// Its memory; 0 never appears: the property fails where the device did not say.
    #[zbus(property(emits_changed_signal = "const"))]
    fn memory_bytes(&self) -> zbus::Result<u64>;
}
