//! A trial: one cohort under one sharing mode, measured once. What was asked, before anything happened.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::units::Span;
use crate::workload::Workload;

/// How the members of a cohort share what they run on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(tag = "mode", rename_all = "kebab-case", rename_all_fields = "kebab-case", deny_unknown_fields)]
pub enum Sharing {
    /// One worker has the whole GPU.
    Exclusive,
    /// Workers take turns on the whole GPU: CUDA's default for several processes.
    TimeSlice,
    /// Workers are clients of one MPS server on the whole GPU.
    Mps {
        /// A cap on the multiprocessors of each worker, in percent; none: no cap.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        active_thread_percentage: Option<u32>,
    },
    /// Workers have MIG instances: one each, or several as clients of an MPS server on each instance.
    Mig {
        /// A layout such as `3g+2g+1g`, `7x1g` or `3g(1c+2c)`; members take its compute instances in their order.
        layout: String,
        /// MPS on every instance; none: each worker has an instance of its own.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mps: Option<InstanceMps>,
    },
    /// Workers share the host's processors; no GPU takes part.
    Cpu,
}

/// MPS on top of MIG instances.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct InstanceMps {
    /// Workers on each instance: member N runs on instance N / `clients`.
    pub clients: u32,
    /// A cap on the multiprocessors of each worker, in percent of its instance's; none: no cap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_thread_percentage: Option<u32>,
}

impl Sharing {
    /// MIG instances, one worker on each.
    #[must_use]
    pub fn mig(layout: impl Into<String>) -> Self {
        Self::Mig { layout: layout.into(), mps: None }
    }

    /// Which of a layout's compute instances a member runs on, from 0. In other modes members share one device.
    #[must_use]
    pub fn instance_of(&self, member: usize) -> usize {
        match self {
            Self::Mig { mps, .. } => member / mps.map_or(1, |mps| mps.clients.max(1) as usize),
            _ => 0,
        }
    }
}

impl fmt::Display for Sharing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exclusive => f.write_str("exclusive"),
            Self::TimeSlice => f.write_str("time-slice"),
            Self::Mps { active_thread_percentage: None } => f.write_str("mps"),
            Self::Mps { active_thread_percentage: Some(percent) } => write!(f, "mps@{percent}%"),
            Self::Mig { layout, mps: None } => write!(f, "mig {layout}"),
            Self::Mig { layout, mps: Some(InstanceMps { clients, active_thread_percentage }) } => {
                write!(f, "mig {layout} with {clients} mps")?;
                match active_thread_percentage {
                    Some(percent) => write!(f, "@{percent}% each"),
                    None => f.write_str(" each"),
                }
            }
            Self::Cpu => f.write_str("cpu"),
        }
    }
}

/// When a cohort warms up, settles, is measured, and gives up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Timing {
    /// Warm-up runs at least this many batches...
    pub warmup_batches: u32,
    /// ... and at least this long.
    pub warmup: Span,
    /// All members run this long after the common start before anything counts.
    pub settle: Span,
    /// Then batches count for this long.
    pub window: Span,
    /// The window is extended up to this length while a member has fewer than `minimum_batches`.
    pub longest_window: Span,
    /// Batches a member needs inside the window.
    pub minimum_batches: u32,
    /// Members that are not Ready this long after they were started fail the cohort.
    pub ready_limit: Span,
}

/// One cohort under one sharing mode: what is measured.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct TrialSpec {
    /// How the members share the device.
    pub sharing: Sharing,
    /// What each member runs.
    pub members: Vec<Workload>,
    /// When it is measured.
    pub timing: Timing,
}

impl TrialSpec {
    /// Members grouped by workload in order of first appearance, with their numbers.
    #[must_use]
    pub fn groups(&self) -> Vec<(&Workload, Vec<usize>)> {
        let mut groups: Vec<(&Workload, Vec<usize>)> = Vec::new();
        for (index, workload) in self.members.iter().enumerate() {
            match groups.iter_mut().find(|(known, _)| *known == workload) {
                Some((_, members)) => members.push(index),
                None => groups.push((workload, vec![index])),
            }
        }
        groups
    }
}

impl fmt::Display for TrialSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.sharing)?;
        for (index, (workload, members)) in self.groups().into_iter().enumerate() {
            f.write_str(if index == 0 { ": " } else { " + " })?;
            write!(f, "{}x {workload}", members.len())?;
        }
        Ok(())
    }
}

/// Why a trial is in a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Purpose {
    /// The suite asks for it.
    Requested,
    /// A comparison needs it: a member's workload alone, in the same mode or exclusively.
    Baseline,
    /// An exclusive trial measured again at the end, so that drift of the device can be seen.
    Drift,
}

/// A trial at its place in a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct PlannedTrial {
    /// Its place, from 0.
    pub index: u32,
    /// Which cell (distinct [`TrialSpec`]) of the plan it measures, from 0.
    pub cell: u32,
    /// Which repeat of the cell this is, from 0.
    pub repeat: u32,
    /// Why it is there.
    pub purpose: Purpose,
    /// What it measures.
    pub spec: TrialSpec,
}
