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
    /// The daemon failed; its log has the whole chain.
    Internal(String),
}
