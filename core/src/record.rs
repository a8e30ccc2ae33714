//! What a trial left behind, raw: stored before any statistics, and all that a report is made of.
//!
//! Samples are kept beside the record in their binary form (see [`crate::sample`]); everything else is JSON.

use serde::{Deserialize, Serialize};

use crate::device::{Gpu, GpuProcess, Inventory, Reading};
use crate::ids::JobUid;
use crate::plan::Plan;
use crate::sample::{Interval, Samples};
use crate::telemetry::TelemetrySeries;
use crate::trial::PlannedTrial;
use crate::units::{Bytes, MonotonicNanos, RealtimeNanos};
use crate::worker_wire::{Allocation, Built, ConfigDigest, Done, Ready};

/// Version of the stored form. Additions keep it; a change of meaning raises it.
pub const RECORD_FORMAT: u32 = 1;

/// The two clocks read together, so that stamps of one can be placed on the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ClockPair {
    /// CLOCK_REALTIME.
    pub realtime: RealtimeNanos,
    /// CLOCK_MONOTONIC at the same moment, to within a microsecond.
    pub monotonic: MonotonicNanos,
}

/// The machine that measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Host {
    /// Its name.
    pub name: String,
    /// `/etc/machine-id`, hashed for this use; tells hosts of one name apart.
    pub id: Reading<String>,
    /// Kernel release.
    pub kernel: String,
    /// The processors' model.
    pub processor: Reading<String>,
    /// Logical processors that the daemon may use.
    pub processors: u32,
    /// Installed memory.
    pub memory: Reading<Bytes>,
}

/// What was the same for every trial of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct JobRecord {
    /// Version of this form.
    pub format: u32,
    /// The job's identity, unique between hosts.
    pub uid: JobUid,
    /// The suite as it was submitted.
    pub suite: String,
    /// SHA-256 of the suite's text, in hexadecimal.
    pub suite_digest: String,
    /// What was planned.
    pub plan: Plan,
    /// Where.
    pub host: Host,
    /// Its GPUs when the job was accepted.
    pub inventory: Inventory,
    /// migperf's version.
    pub version: String,
    /// The libtorch that workers load: its version, and where it is.
    pub libtorch: Reading<String>,
    /// When the job was accepted.
    pub submitted: RealtimeNanos,
    /// Who submitted it: user id, and name where there is one.
    pub owner: Owner,
}

/// A user of the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Owner {
    /// The user id.
    pub uid: u32,
    /// The name, where the host knows one.
    pub name: Option<String>,
}

/// How a trial ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub enum Outcome {
    /// Every member ran through.
    Complete,
    /// A member's workload needs more memory than there is: a result.
    DoesNotFit {
        /// Which member.
        member: u32,
        /// What the allocator said.
        detail: String,
    },
    /// The whole cohort failed.
    Failed {
        /// Why, for people.
        reason: String,
    },
    /// Somebody else's process came to the device.
    Contaminated {
        /// Whose.
        reason: String,
    },
    /// The job was cancelled meanwhile.
    Cancelled {
        /// By whom.
        reason: String,
    },
}

/// One member of a cohort that ran through.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct MemberRecord {
    /// Its process.
    pub pid: u32,
    /// What it was assigned.
    pub allocation: Allocation,
    /// Processors it was confined to; empty: not confined.
    pub processors: Vec<u32>,
    /// Whether these processors were its alone among the cohort's members.
    pub processors_disjoint: bool,
    /// The configuration that it acted on.
    pub digest: ConfigDigest,
    /// Nanoseconds from spawn to Ready, by the daemon's clock.
    pub ready_after_ns: u64,
    /// Its device and build.
    pub built: Built,
    /// Its warm-up.
    pub ready: Ready,
    /// Its end.
    pub done: Done,
    /// Every batch since the common start; stored in binary form beside the record.
    #[serde(skip)]
    pub samples: Samples,
}

/// One trial, measured or failed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct TrialRecord {
    /// Version of this form.
    pub format: u32,
    /// What was planned.
    pub trial: PlannedTrial,
    /// How it ended.
    pub outcome: Outcome,
    /// Both clocks before the first worker was started.
    pub began: ClockPair,
    /// Both clocks after the last worker had ended.
    pub ended: ClockPair,
    /// The GPU as it was just before; absent on the CPU.
    pub gpu: Option<Gpu>,
    /// The common start of the members.
    pub start: Option<MonotonicNanos>,
    /// The window in which batches count.
    pub window: Option<Interval>,
    /// Whether the window was extended for want of batches.
    pub extended: bool,
    /// In the order of the plan; empty unless every member ran through.
    pub members: Vec<MemberRecord>,
    /// What the device said meanwhile.
    pub telemetry: Reading<TelemetrySeries>,
    /// What each MIG instance in use said meanwhile; empty without MIG.
    #[serde(default)]
    pub instance_telemetry: Vec<TelemetrySeries>,
    /// Processes of others seen on the device during the trial.
    pub foreign: Vec<GpuProcess>,
    /// Whether the device was simulated: its numbers say nothing of hardware.
    pub simulated: bool,
}

/// What a job did to its GPU's layout, and how it left it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct LayoutRecord {
    /// How often the helper changed it, the way back included.
    pub changes: u32,
    /// Whether the MIG mode was switched.
    pub mode_changed: bool,
    /// UUIDs of MIG devices that are new since the job began, where instances that were there before were replaced.
    pub new_uuids: Vec<String>,
    /// How it was left.
    pub end: LayoutEnd,
}

/// How a job left its GPU's layout.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "end", rename_all = "kebab-case", rename_all_fields = "kebab-case", deny_unknown_fields)]
pub enum LayoutEnd {
    /// The job has not ended, or its daemon died: the helper restores the layout then, and nobody wrote it here.
    #[default]
    Open,
    /// As it was found: MIG mode, profiles and places.
    AsFound,
    /// Restored, but for this.
    Left {
        /// What differs, for people.
        left: Vec<String>,
    },
    /// Not restored.
    Failed {
        /// Why, with what is left and the commands that put it right.
        reason: String,
    },
}

impl LayoutEnd {
    /// What is wrong with it, for people.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        match self {
            Self::Open | Self::AsFound => None,
            Self::Left { left } => Some(format!("the GPU's layout is not as it was found: {}", left.join("; "))),
            Self::Failed { reason } => Some(format!("the GPU's layout was not restored: {reason}")),
        }
    }
}

/// A job and its trials: what a report is made of.
#[derive(Debug, Clone, PartialEq)]
pub struct JobResults {
    /// What was the same for all.
    pub job: JobRecord,
    /// What became of the GPU's layout; none where the job did not change it.
    pub layout: Option<LayoutRecord>,
    /// In the order in which they ran.
    pub trials: Vec<TrialRecord>,
}
