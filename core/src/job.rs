//! A job: a submitted suite on its way through the queue; and the documents by which a daemon answers about jobs.

use serde::{Deserialize, Serialize};

use crate::plan::{LayoutStretch, Plan};

/// Where a job stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobState {
    /// Behind other jobs.
    Queued,
    /// Next, but its device is held by someone else.
    WaitingForGpu,
    /// Its trials run.
    Running,
    /// Its trials are over; its GPU is brought back to the layout that was found.
    Restoring,
    /// All its trials ended; each has its own outcome.
    Done,
    /// It could not go on.
    Failed,
    /// Its owner, an administrator or the end of its connection ended it.
    Cancelled,
    /// The daemon ended while it ran.
    Interrupted,
}

impl JobState {
    /// Every state.
    pub const ALL: [Self; 8] = [
        Self::Queued,
        Self::WaitingForGpu,
        Self::Running,
        Self::Restoring,
        Self::Done,
        Self::Failed,
        Self::Cancelled,
        Self::Interrupted,
    ];

    /// The name on the bus and in the store.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::WaitingForGpu => "waiting-for-gpu",
            Self::Running => "running",
            Self::Restoring => "restoring",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Interrupted => "interrupted",
        }
    }

    /// The state of a name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }

    /// Whether nothing more will happen to the job.
    #[must_use]
    pub fn is_final(self) -> bool {
        matches!(self, Self::Done | Self::Failed | Self::Cancelled | Self::Interrupted)
    }

    /// Whether a job in this state may go to `next`.
    #[must_use]
    pub fn may_become(self, next: Self) -> bool {
        match self {
            Self::Queued => !matches!(next, Self::Queued | Self::Done),
            Self::WaitingForGpu => !matches!(next, Self::WaitingForGpu | Self::Done),
            Self::Running => next.is_final() || matches!(next, Self::WaitingForGpu | Self::Restoring),
            Self::Restoring => next.is_final(),
            _ => false,
        }
    }
}

/// What a daemon would do with a suite: the answer to a dry run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct PlanAnswer {
    /// Trials in order.
    pub plan: Plan,
    /// The device that would be measured, for people.
    pub device: String,
    /// Why the job would be refused now; empty: it would run.
    pub refusals: Vec<Refusal>,
    /// How the GPU is divided, stretch by stretch: it changes once less often than there are stretches.
    #[serde(default)]
    pub layouts: Vec<LayoutStretch>,
    /// What would be done to the GPU's layout, and undone at the end, for people; empty: nothing.
    #[serde(default)]
    pub layout_changes: Vec<String>,
    /// MIG devices that are there now and would come back with other UUIDs.
    #[serde(default)]
    pub replaced_uuids: Vec<String>,
}

/// A reason why a job can't run here and now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Refusal {
    /// What is in the way.
    pub problem: String,
    /// What to do about it.
    pub remedy: String,
}

/// What measuring needs, and whether it is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Check {
    /// In the order in which a person would put things right.
    pub items: Vec<CheckItem>,
}

/// One thing that measuring needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct CheckItem {
    /// What: `NVIDIA driver`, `libtorch`, ...
    pub subject: String,
    /// Whether it is there.
    pub state: CheckState,
    /// What was found, with versions and places.
    pub found: String,
    /// What to do, where something is missing.
    pub remedy: Option<String>,
}

/// Whether a thing is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CheckState {
    /// As it should be.
    Ok,
    /// Measuring works without it, or with less.
    Limited,
    /// Nothing can be measured without it.
    Missing,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_known_by_their_names() {
        for state in JobState::ALL {
            assert_eq!(JobState::from_name(state.name()), Some(state));
            assert_eq!(serde_json::to_string(&state).unwrap(), format!("\"{}\"", state.name()));
        }
    }

    #[test]
    fn what_has_ended_stays_ended() {
        for state in JobState::ALL {
            for next in JobState::ALL {
                assert!(!(state.is_final() && state.may_become(next)), "{state:?} to {next:?}");
                assert!(!(state == next && state.may_become(next)), "{state:?} to itself");
            }
        }
        assert!(!JobState::Queued.may_become(JobState::Done));
        assert!(JobState::Running.may_become(JobState::Interrupted));
        assert!(!JobState::Restoring.may_become(JobState::Running));
    }
}
