//! The documents by which a daemon answers about GPUs' layouts: what there is, what a change would do, what it did.

use serde::{Deserialize, Serialize};

use crate::device::MigMode;
use crate::job::Refusal;

/// How the machine's GPUs are divided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Layouts {
    /// Whether the devices are simulated.
    pub simulated: bool,
    /// Why nothing can be changed here, and what to do about that; none where it can.
    pub obstacle: Option<Refusal>,
    /// Every GPU that answered, in NVML's order.
    pub gpus: Vec<GpuLayout>,
}

/// How one GPU is divided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct GpuLayout {
    /// NVML's index.
    pub index: u32,
    /// Its UUID.
    pub uuid: String,
    /// Its product name; none where it did not tell.
    pub name: Option<String>,
    /// Its MIG mode, with a change that waits for a reset.
    pub mode: MigMode,
    /// What there is, as `layout apply` takes it.
    pub layout: String,
    /// GPU instances by ascending place, half-made ones too.
    pub instances: Vec<Instance>,
    /// What the device offers; empty where it has no MIG.
    pub offers: Vec<Offer>,
    /// What the helper holds changed, or can't put back; none: it is as it was found, or nobody asked the helper.
    pub standing: Option<Standing>,
    /// What could not be read, for people.
    pub problem: Option<String>,
}

/// A GPU instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Instance {
    /// The device's number for it.
    pub id: u32,
    /// Its profile as the device names it.
    pub profile: String,
    /// First memory slot.
    pub start: u32,
    /// Memory slots.
    pub size: u32,
    /// Its compute instances; empty: it is half-made, and nothing can run on it.
    pub compute: Vec<Compute>,
}

/// A compute instance: what a process runs on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Compute {
    /// Its number within the GPU instance.
    pub id: u32,
    /// Its profile as the device names it.
    pub profile: String,
    /// `MIG-…`.
    pub uuid: String,
}

/// A profile that a device offers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Offer {
    /// Its name.
    pub profile: String,
    /// How many an empty GPU holds.
    pub most: u32,
    /// How many more fit beside what there is.
    pub left: u32,
    /// First memory slots where one may begin on an empty GPU.
    pub starts: Vec<u32>,
}

/// What the helper says of a GPU that is not as it was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Standing {
    /// `held`, `kept`, `restoring`, `quarantined` or `rollback-failed`.
    pub state: String,
    /// The layout that was found.
    pub found: String,
    /// The layout that is wanted.
    pub wanted: String,
    /// What is not as it was found.
    pub left: Vec<String>,
    /// What an administrator would type to put it right.
    pub commands: Vec<String>,
}

/// What a change would do. Nothing was done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct LayoutPlan {
    /// Whether the device is simulated.
    pub simulated: bool,
    /// The GPU.
    pub gpu: String,
    /// What there is.
    pub found: String,
    /// What is wanted, as it was written.
    pub wanted: String,
    /// What there would be.
    pub after: Option<String>,
    /// What would be done, in order, for people; empty: nothing.
    pub steps: Vec<String>,
    /// MIG devices that would be gone.
    pub removed_uuids: Vec<String>,
    /// Why it would be refused; empty: it would be done.
    pub refusals: Vec<Refusal>,
}

/// What a change did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct LayoutChange {
    /// The GPU.
    pub gpu: String,
    /// What is there now.
    pub instances: Vec<Instance>,
    /// Whether the MIG mode was switched.
    pub mode_changed: bool,
    /// MIG devices that are gone.
    pub removed_uuids: Vec<String>,
    /// MIG devices that are new.
    pub created_uuids: Vec<String>,
    /// Destroys and creates that were carried out.
    pub steps: u32,
    /// Whether the GPU is as it was found before the first change.
    pub as_found: bool,
    /// What could not be put back as it was.
    pub left: Vec<String>,
}
