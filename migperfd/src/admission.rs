//! From a suite's text to a plan for a device of this machine, and the reasons why it can't be measured now.
//!
//! Looking at the machine takes seconds at worst and may block: callers use a thread for it.

use std::path::Path;

use migperf_core::chain::chain;
use migperf_core::device::{Gpu, Inventory, MigMode};
use migperf_core::job::Refusal;
use migperf_core::layouts::Standing;
use migperf_core::plan::{Plan, PlanError};
use migperf_core::preflight::{self, LayoutMeans, Means};
use migperf_core::suite::{Suite, SuiteErrors, Target};
use migperf_core::trial::{Sharing, TrialSpec};
use migperf_gpu::library::Nvml;

use crate::barrier;
use crate::libtorch::{self, Libtorch};
use crate::lock;
use crate::reach::{self, LayoutChanges};
use crate::settings::Settings;

/// Which device a caller asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// A GPU that nobody uses if there is one, else the CPU.
    Auto,
    /// The host's processors.
    Cpu,
    /// A GPU, by NVML's index or by UUID.
    Gpu(String),
}

impl Wanted {
    /// Reads the `device` option.
    #[must_use]
    pub fn from_option(text: &str) -> Self {
        match text {
            "auto" => Self::Auto,
            "cpu" => Self::Cpu,
            gpu => Self::Gpu(gpu.to_owned()),
        }
    }
}

/// What is asked to be measured, or planned.
#[derive(Debug, Clone)]
pub struct Asked {
    /// The suite's text.
    pub suite: String,
    /// Which device.
    pub device: Wanted,
    /// Seed, instead of the suite's.
    pub seed: Option<u64>,
    /// Whether MIG instances that are there may be destroyed and created anew at the end.
    pub replace_existing: bool,
}

/// Why no layout can be changed, and what to do about that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Obstacle {
    /// Why.
    pub why: String,
    /// What to do.
    pub remedy: String,
}

/// Why there is no plan at all.
#[derive(Debug, thiserror::Error)]
pub enum AdmissionError {
    /// The suite can't be read.
    #[error(transparent)]
    Suite(#[from] SuiteErrors),
    /// The suite gives no plan for the device.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// No such device.
    #[error("there is no GPU `{wanted}`; {}", there_is(.inventory))]
    NoSuchDevice {
        /// What was asked.
        wanted: String,
        /// What there is.
        inventory: Box<Inventory>,
    },
}

fn there_is(inventory: &Inventory) -> String {
    if let Some(reason) = inventory.nvml.reason() {
        return format!("NVML is not available: {reason}");
    }
    let list: Vec<String> = inventory.gpus.iter().map(|gpu| format!("{} ({})", gpu.index, gpu.uuid)).collect();
    if list.is_empty() { "this machine has none".to_owned() } else { format!("there are {}", list.join(", ")) }
}

/// A plan for a device, and what is in its way.
#[derive(Debug, Clone)]
pub struct Admission {
    /// The plan.
    pub plan: Plan,
    /// The machine's GPUs, as they were just now.
    pub inventory: Inventory,
    /// The GPU to be measured; none: the CPU.
    pub gpu: Option<Gpu>,
    /// The libtorch for the workers.
    pub libtorch: Option<Libtorch>,
    /// Why it can't be measured now.
    pub refusals: Vec<Refusal>,
    /// What would be done to the GPU's layout.
    pub changes: LayoutChanges,
}

impl Admission {
    /// The device, for people.
    #[must_use]
    pub fn device(&self) -> String {
        match &self.gpu {
            None => "CPU".to_owned(),
            Some(gpu) => {
                let name = gpu.name.value().map_or("GPU", String::as_str);
                let simulated = if self.inventory.is_simulated() { "SIMULATED " } else { "" };
                format!("{simulated}{name} {} ({})", gpu.index, gpu.uuid)
            }
        }
    }
}

/// Looks at the machine's GPUs. A machine without NVML has none, and says why.
#[must_use]
pub fn look(nvml: Option<&Path>) -> Inventory {
    barrier::look(nvml, |library| match Nvml::open(library) {
        Ok(nvml) => nvml.inventory(),
        Err(error) => Inventory::unavailable(chain(&error)),
    })
}

/// What the helper says of GPUs that are not as they were found, by UUID; or why no layout can be changed.
pub type HelperMeans = Result<Vec<(String, Standing)>, Obstacle>;

/// Plans a suite for a device.
///
/// # Errors
/// If the suite can't be read or planned, or there is no such device. What could be put right is in the refusals instead.
pub fn admit(settings: &Settings, asked: &Asked, helper: &HelperMeans) -> Result<Admission, AdmissionError> {
    let suite = Suite::parse(&asked.suite)?;
    let inventory = look(settings.nvml.as_deref());
    let gpu = choose(&inventory, &asked.device)?.cloned();
    let target = if gpu.is_some() { Target::Gpu } else { Target::Cpu };
    let layout = match helper {
        Err(Obstacle { why, remedy }) => LayoutMeans::None { why, remedy },
        Ok(_) if asked.replace_existing => LayoutMeans::ReplaceInstances,
        Ok(_) => LayoutMeans::KeepInstances,
    };
    let mut plan = Plan::expand_where(&suite, target, |cell| out_of_reach(cell, &suite, gpu.as_ref(), layout))?;
    plan.seed = asked.seed.unwrap_or(plan.seed);
    let mut refusals = Vec::new();
    let libtorch = match libtorch::find(settings.libtorch.as_deref()) {
        Ok(libtorch) => Some(libtorch),
        Err(error) => {
            refusals.push(Refusal { problem: error.to_string(), remedy: libtorch::REMEDY.to_owned() });
            None
        }
    };
    let mut changes = LayoutChanges::default();
    if let Some(gpu) = &gpu {
        // A GPU that is being measured has its measurer's processes; the job will wait until that ends, and look again.
        let ours: Vec<u32> = match lock::holder_of(gpu.uuid.as_str()) {
            None => Vec::new(),
            Some(_) => gpu.processes.value().into_iter().flatten().map(|process| process.pid).collect(),
        };
        let means = Means { mps_program: settings.mps_control.is_some(), layout, ours: &ours };
        refusals.extend(preflight::check(&plan, gpu, means));
        if !inventory.is_simulated() && libtorch.as_ref().is_some_and(|libtorch| !libtorch.has_cuda()) {
            refusals.push(Refusal {
                problem: "the libtorch that was found is for the CPU only".to_owned(),
                remedy: libtorch::REMEDY.to_owned(),
            });
        }
        match reach::changes(&plan, gpu, layout, settings.nvml.as_deref()) {
            Ok(found) => changes = found,
            Err(found) => refusals.extend(found),
        }
        if !changes.lines.is_empty() {
            let standings = helper.iter().flatten();
            refusals
                .extend(standings.filter(|(uuid, _)| gpu.uuid.as_str() == uuid).filter_map(|(_, it)| held(gpu, it)));
        }
        refusals.dedup();
    }
    Ok(Admission { plan, inventory, gpu, libtorch, refusals, changes })
}

/// Why a job may not change the layout of a GPU that is not as it was found. What another job holds is waited for.
fn held(gpu: &Gpu, standing: &Standing) -> Option<Refusal> {
    let Standing { state, found, wanted, left, commands } = standing;
    match state.as_str() {
        "kept" => Some(Refusal {
            problem: format!("GPU {} is kept at `{wanted}` by an administrator; it was found as `{found}`", gpu.index),
            remedy: format!("`migperfctl layout restore {}` first, or measure the instances that are there", gpu.index),
        }),
        "quarantined" | "rollback-failed" => Some(Refusal {
            problem: format!("GPU {} is {state}: {}", gpu.index, left.join("; ")),
            remedy: commands.join("; "),
        }),
        _ => None,
    }
}

/// Why a baseline on the whole GPU is left out: the GPU is divided, and that may not be changed. What the suite itself asks
/// for is never left out quietly.
fn out_of_reach(cell: &TrialSpec, suite: &Suite, gpu: Option<&Gpu>, layout: LayoutMeans<'_>) -> Option<String> {
    let gpu = gpu.filter(|gpu| gpu.mig.value() == Some(&MigMode::Enabled))?;
    let is_asked = || suite.trials.iter().any(|trial| trial.cells.contains(cell));
    if cell.sharing != Sharing::Exclusive || is_asked() {
        return None;
    }
    match layout {
        LayoutMeans::None { .. } => {
            Some("the GPU has MIG enabled, so that no process can use the whole of it".to_owned())
        }
        LayoutMeans::KeepInstances if gpu.instances.value().is_none_or(|there| !there.is_empty()) => Some(
            "the GPU has MIG instances that are not migperf's, so that no process can use the whole of it \
             (--replace-existing lets them be replaced)"
                .to_owned(),
        ),
        LayoutMeans::KeepInstances | LayoutMeans::ReplaceInstances => None,
    }
}

/// The GPU that a caller means; none: the CPU.
///
/// # Errors
/// If there is no such GPU.
pub fn choose<'a>(inventory: &'a Inventory, wanted: &Wanted) -> Result<Option<&'a Gpu>, AdmissionError> {
    match wanted {
        Wanted::Cpu => Ok(None),
        Wanted::Auto => {
            let free = |gpu: &&Gpu| gpu.processes.value().is_none_or(Vec::is_empty);
            Ok(inventory.gpus.iter().find(free).or(inventory.gpus.first()))
        }
        Wanted::Gpu(name) => {
            let named = |gpu: &&Gpu| gpu.uuid.as_str() == name || gpu.index.to_string() == *name;
            match inventory.gpus.iter().find(named) {
                Some(gpu) => Ok(Some(gpu)),
                None => {
                    Err(AdmissionError::NoSuchDevice { wanted: name.clone(), inventory: Box::new(inventory.clone()) })
                }
            }
        }
    }
}
