//! What is asked of the engine, and what it answers: orders, outcomes, refusals, reports, and the audit line.

use migperf_core::ids::GpuUuid;
use migperf_gpu::layout::Division;

use crate::bring;
use crate::hand::HandError;
use crate::holders::Holder;
use crate::ledger::{Entry, Hold, LedgerError, State};

/// What somebody asks for with a layout.
#[derive(Debug, Clone)]
pub struct Order {
    /// How long it lasts.
    pub hold: Hold,
    /// Instances from before may be destroyed.
    pub replace_existing: bool,
    /// For whom, as the caller claims.
    pub on_behalf_of: Option<u32>,
    /// What for, as the caller claims.
    pub purpose: Option<String>,
    /// Who asks, as the bus or the kernel says.
    pub caller: String,
}

/// What a change did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// What was there before.
    pub before: Division,
    /// What is there now.
    pub now: Division,
    /// Steps that were carried out.
    pub steps: u32,
    /// The GPU is as it was found.
    pub as_found: bool,
    /// What could not be put back, because somebody else changed it.
    pub left: Vec<String>,
}

/// Why a request was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// There is no such GPU.
    #[error("there is no device {0}")]
    NoSuchDevice(String),
    /// The layout can't be there.
    #[error("{0}")]
    Infeasible(String),
    /// Somebody is in the way.
    #[error("the GPU is held by {}; wait until they have ended, or stop them", .0.iter().map(Holder::to_string).collect::<Vec<_>>().join("; "))]
    Busy(Vec<Holder>),
    /// Nothing may be changed now.
    #[error("{0}")]
    Refused(String),
    /// It failed and was undone.
    #[error("{0}; the GPU is as it was before")]
    RolledBack(String),
    /// It failed, and undoing it too.
    #[error("{cause}; what is left: {}; type as root: {}", .left.join(", "), .commands.join("; "))]
    RollbackFailed {
        /// Why.
        cause: String,
        /// What is not as it was.
        left: Vec<String>,
        /// What an administrator would type.
        commands: Vec<String>,
    },
    /// A call to the driver does not return.
    #[error(
        "a call to the driver of {0} does not return (process {1}); nothing is changed there until it does, or until the driver or the machine is restarted: see `cat /proc/{1}/stack` and `dmesg`"
    )]
    Quarantined(GpuUuid, u32),
    /// The ledger can't be used.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// NVML can't be asked.
    #[error("NVML can't be used")]
    Nvml(#[source] HandError),
    /// The machine can't be told from another life of it.
    #[error("can't read which boot this is")]
    Identity(#[source] std::io::Error),
}

/// A GPU that an earlier helper left, and whether it is back.
pub type Reconciled = (GpuUuid, Result<(), EngineError>);

/// A GPU that is not as it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// The GPU.
    pub gpu: GpuUuid,
    /// `held`, `kept`, `restoring`, `quarantined` or `rollback-failed`.
    pub state: &'static str,
    /// What was found.
    pub found: String,
    /// What is wanted.
    pub wanted: String,
    /// What is not as it was.
    pub left: Vec<String>,
    /// What an administrator would type.
    pub commands: Vec<String>,
}

impl Status {
    pub(crate) fn of(entry: &Entry) -> Self {
        let state = match (entry.state, entry.hold) {
            (State::Changing | State::Settled, Hold::WhileAlive) => "held",
            (State::Changing | State::Settled, Hold::UntilRestored) => "kept",
            (State::Restoring, _) => "restoring",
            (State::RollbackFailed, _) => "rollback-failed",
            (State::Quarantined, _) => "quarantined",
        };
        let commands = match entry.state {
            State::RollbackFailed | State::Quarantined => bring::commands(entry, None),
            State::Changing | State::Settled | State::Restoring => Vec::new(),
        };
        Self {
            gpu: entry.found.gpu.clone(),
            state,
            found: entry.found.to_string(),
            wanted: entry.wanted.clone(),
            left: entry.left.clone(),
            commands,
        }
    }
}

/// One line for each change, for whoever asks later who did what.
pub(crate) fn audit(verb: &str, gpu: &GpuUuid, layout: &str, order: &Order, result: &str) {
    tracing::info!(
        target: "migperf_helper::audit",
        verb,
        %gpu,
        layout,
        caller = order.caller,
        on_behalf_of = order.on_behalf_of,
        purpose = order.purpose,
        replace_existing = order.replace_existing,
        result,
        "audit"
    );
}
