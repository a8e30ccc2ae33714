//! D-Bus errors of the interface: replies, never return codes.

use zbus::DBusError;

/// What a method of `org.migperf1` may reply instead of a result. The text is for people: what failed and what to do.
#[derive(Debug, DBusError)]
#[zbus(prefix = "org.migperf1.Error")]
pub enum Error {
    /// An error of the bus itself.
    #[zbus(error)]
    ZBus(zbus::Error),
    /// The suite can't be read or planned; the text lists every error with line and column.
    InvalidSuite(String),
    /// An argument or an option's key or value is not what the interface documents.
    InvalidArgument(String),
    /// No such device.
    NoSuchDevice(String),
    /// The device can't be measured as asked now, or the daemon may not: why, and the remedy.
    Refused(String),
    /// No such job.
    NoSuchJob(String),
    /// The job has nothing to report yet.
    NothingToReport(String),
    /// The caller may not.
    NotAuthorized(String),
    /// No instances can lie so: what conflicts, and the nearest layouts that can.
    LayoutInfeasible(String),
    /// Somebody else's process or client holds the GPU: pid, user and program of each.
    GpuBusy(String),
    /// A change failed and was undone: the cause. The GPU is as it was before the call.
    RolledBack(String),
    /// A change failed, and undoing it too: the cause, what is left, and the commands that an administrator would type.
    RollbackFailed(String),
    /// A call to the GPU's driver does not return; nothing is changed there until the machine or its driver is restarted.
    Quarantined(String),
    /// The daemon failed; its log has the whole chain.
    Internal(String),
}
