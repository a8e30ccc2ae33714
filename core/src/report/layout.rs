//! How a GPU was divided: for each trial, and what the job did to it as a whole.

use serde::{Deserialize, Serialize};

use crate::device::{Gpu, MigMode};
use crate::record::{LayoutEnd, LayoutRecord};

/// What a job did to its GPU's layout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayoutReport {
    /// How often it was changed, the way back included.
    pub changes: u32,
    /// Whether the MIG mode was switched.
    pub mode_changed: bool,
    /// Whether it is as it was found (MIG mode, profiles and places); null while the job goes on, or where the daemon died.
    pub as_found: Option<bool>,
    /// What is not as it was found, with the commands that put it right where the helper told them; null if nothing.
    pub problem: Option<String>,
    /// MIG devices that replaced those which were there before the job.
    pub new_uuids: Vec<String>,
}

/// How the GPU was divided during a trial, as it was read back just before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrialLayout {
    /// Whether MIG was on; null where the device did not tell.
    pub mig: Option<bool>,
    /// Every MIG device, those beside the trial's own too.
    pub instances: Vec<TrialInstance>,
}

/// A MIG device during a trial.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrialInstance {
    /// Its identity, which it had until it was destroyed.
    pub uuid: String,
    /// Its profile as the device names it; null where it did not tell.
    pub profile: Option<String>,
    /// First memory slot of its GPU instance; null where it did not tell.
    pub start: Option<u32>,
    /// Memory slots of its GPU instance; null where it did not tell.
    pub size: Option<u32>,
}

impl LayoutReport {
    pub(super) fn of(record: &LayoutRecord) -> Self {
        Self {
            changes: record.changes,
            mode_changed: record.mode_changed,
            as_found: match record.end {
                LayoutEnd::Open => None,
                LayoutEnd::AsFound => Some(true),
                LayoutEnd::Left { .. } | LayoutEnd::Failed { .. } => Some(false),
            },
            problem: record.end.problem(),
            new_uuids: record.new_uuids.clone(),
        }
    }
}

impl TrialLayout {
    pub(super) fn of(gpu: &Gpu) -> Self {
        let instances = gpu.instances.value().into_iter().flatten().map(|instance| TrialInstance {
            uuid: instance.uuid.to_string(),
            profile: instance.profile.value().cloned(),
            start: instance.placement.value().map(|place| place.start),
            size: instance.placement.value().map(|place| place.size),
        });
        Self {
            mig: match gpu.mig.value() {
                None => None,
                Some(MigMode::Unsupported | MigMode::Disabled) => Some(false),
                Some(MigMode::Enabled) => Some(true),
                Some(MigMode::Pending { current, .. }) => Some(*current),
            },
            instances: instances.collect(),
        }
    }
}
