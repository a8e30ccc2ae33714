//! Exit codes: what a script may rely on, and which failure means which.

use std::process::ExitCode;

use migperf_dbus::error::Error;

use crate::connect::ConnectError;
use crate::suite::SuiteFault;

/// How the program ends. Documented in `--help` and `docs/migperfctl.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// All was well; of `run` and `watch`: every trial has a valid result ("does not fit" is one).
    Valid,
    /// Something failed that should not.
    Failure,
    /// The command line is wrong.
    Usage,
    /// The suite can't be read or planned.
    Suite,
    /// No such device.
    Device,
    /// Refused: the device can't be measured now, or the caller may not.
    Refused,
    /// At least one trial has no valid result, or an imported table contradicts itself.
    Invalid,
    /// No such job, or nothing to report yet.
    Nothing,
    /// A comparison found something that got worse.
    Worse,
    /// Cancelled, or left by an interrupt.
    Cancelled,
}

/// Shown at the end of `--help`.
pub(crate) const HELP: &str = "\
Exit codes:
    0  success; of `run` and `watch`: every trial has a valid result (\"does not fit\" is one)
    1  unexpected failure
    2  wrong usage
    3  the suite can't be read or planned
    4  no such device
    5  refused: the device can't be measured now, or you may not
    6  at least one trial has no valid result; of `import`: a table contradicts itself
    7  no such job, or nothing to report
    8  of `compare`: something got worse
  130  cancelled or interrupted";

impl Exit {
    /// The number that the program ends with.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Valid => 0,
            Self::Failure => 1,
            Self::Usage => 2,
            Self::Suite => 3,
            Self::Device => 4,
            Self::Refused => 5,
            Self::Invalid => 6,
            Self::Nothing => 7,
            Self::Worse => 8,
            Self::Cancelled => 130,
        }
    }

    /// The code of a failed command: that of the first cause which has one of its own.
    pub(crate) fn of(error: &anyhow::Error) -> Self {
        let known = error.chain().find_map(|cause| {
            if let Some(refusal) = cause.downcast_ref::<Refusal>() {
                return Some(refusal.exit);
            }
            if let Some(error) = cause.downcast_ref::<ConnectError>() {
                return Some(error.exit());
            }
            cause.is::<SuiteFault>().then_some(Self::Suite)
        });
        known.unwrap_or(Self::Failure)
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        exit.code().into()
    }
}

/// An answer that is a no: the daemon's error reply, or the client's own refusal.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub(crate) struct Refusal {
    pub(crate) exit: Exit,
    text: String,
    #[source]
    source: Option<zbus::Error>,
}

impl Refusal {
    /// A refusal that no error reply is behind.
    pub(crate) fn new(exit: Exit, text: impl Into<String>) -> Self {
        Self { exit, text: text.into(), source: None }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        match error {
            Error::InvalidSuite(text) => Self::new(Exit::Suite, text),
            Error::InvalidArgument(text) => Self::new(Exit::Usage, text),
            Error::NoSuchDevice(text) => Self::new(Exit::Device, text),
            Error::Refused(text)
            | Error::NotAuthorized(text)
            | Error::LayoutInfeasible(text)
            | Error::GpuBusy(text)
            | Error::Quarantined(text) => Self::new(Exit::Refused, text),
            Error::NoSuchJob(text) | Error::NothingToReport(text) => Self::new(Exit::Nothing, text),
            Error::RolledBack(text) | Error::RollbackFailed(text) | Error::Internal(text) => {
                Self::new(Exit::Failure, text)
            }
            Error::ZBus(error) => error.into(),
        }
    }
}

impl From<zbus::Error> for Refusal {
    fn from(error: zbus::Error) -> Self {
        let denied = matches!(&error, zbus::Error::FDO(fdo) if matches!(**fdo, zbus::fdo::Error::AccessDenied(_)));
        let (exit, text) = if denied {
            (Exit::Refused, "the bus does not let you call the migperf service; are you in the group `migperf-users`?")
        } else {
            (Exit::Failure, "the daemon did not answer as it should")
        };
        Self { exit, text: text.to_owned(), source: Some(error) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context as _;

    fn check(error: Error, code: u8) {
        let text = format!("{error:?}");
        let wrapped: anyhow::Error = Err::<(), _>(Refusal::from(error)).context("can't submit").unwrap_err();
        assert_eq!(Exit::of(&wrapped).code(), code, "{text}");
    }

    #[test]
    fn each_error_of_the_interface_has_its_code() {
        let text = || "why".to_owned();
        check(Error::InvalidSuite(text()), 3);
        check(Error::InvalidArgument(text()), 2);
        check(Error::NoSuchDevice(text()), 4);
        check(Error::Refused(text()), 5);
        check(Error::NotAuthorized(text()), 5);
        check(Error::NoSuchJob(text()), 7);
        check(Error::NothingToReport(text()), 7);
        check(Error::LayoutInfeasible(text()), 5);
        check(Error::GpuBusy(text()), 5);
        check(Error::Quarantined(text()), 5);
        check(Error::RolledBack(text()), 1);
        check(Error::RollbackFailed(text()), 1);
        check(Error::Internal(text()), 1);
        check(Error::ZBus(zbus::Error::InvalidReply), 1);
        let denied = zbus::fdo::Error::AccessDenied("policy".to_owned());
        check(Error::ZBus(zbus::Error::FDO(Box::new(denied))), 5);
    }

    #[test]
    fn what_has_no_code_of_its_own_is_an_unexpected_failure() {
        assert_eq!(Exit::of(&anyhow::anyhow!("odd")), Exit::Failure);
    }

    #[test]
    fn the_help_names_every_code() {
        use Exit::{Cancelled, Device, Failure, Invalid, Nothing, Refused, Suite, Usage, Valid, Worse};
        for exit in [Valid, Failure, Usage, Suite, Device, Refused, Invalid, Nothing, Worse, Cancelled] {
            assert!(HELP.contains(&format!("\n{:>5}  ", exit.code())), "{exit:?}");
        }
    }
}
