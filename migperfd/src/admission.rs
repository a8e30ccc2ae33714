//! From a suite's text to a plan for a device of this machine, and the reasons why it can't be measured now.
//!
//! Looking at the machine takes seconds at worst and may block: callers use a thread for it.

use std::path::Path;

use migperf_core::chain::chain;
use migperf_core::device::{Gpu, Inventory, MigInstance, MigMode, Reading};
use migperf_core::ids::DeviceUuid;
use migperf_core::job::Refusal;
use migperf_core::mig::profile::{Profile, ProfileList};
use migperf_core::mig::resolve::{ExistingInstance, resolve};
use migperf_core::plan::{Plan, PlanError};
use migperf_core::preflight;
use migperf_core::suite::{Suite, SuiteErrors, Target};
use migperf_core::trial::{Sharing, TrialSpec};
use migperf_core::units::Bytes;
use migperf_core::worker_wire::Allocation;
use migperf_gpu::library::Nvml;

use crate::libtorch::{self, Libtorch};
use crate::lock;
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
    match Nvml::open(nvml) {
        Ok(nvml) => nvml.inventory(),
        Err(error) => Inventory::unavailable(chain(&error)),
    }
}

/// Plans a suite for a device.
///
/// # Errors
/// If the suite can't be read or planned, or there is no such device. What could be put right is in the refusals instead.
pub fn admit(settings: &Settings, text: &str, wanted: &Wanted, seed: Option<u64>) -> Result<Admission, AdmissionError> {
    let suite = Suite::parse(text)?;
    let inventory = look(settings.nvml.as_deref());
    let gpu = choose(&inventory, wanted)?.cloned();
    let target = if gpu.is_some() { Target::Gpu } else { Target::Cpu };
    let mut plan = Plan::expand_where(&suite, target, |cell| out_of_reach(cell, &suite, gpu.as_ref()))?;
    plan.seed = seed.unwrap_or(plan.seed);
    let mut refusals = Vec::new();
    let libtorch = match libtorch::find(settings.libtorch.as_deref()) {
        Ok(libtorch) => Some(libtorch),
        Err(error) => {
            refusals.push(Refusal { problem: error.to_string(), remedy: libtorch::REMEDY.to_owned() });
            None
        }
    };
    if let Some(gpu) = &gpu {
        // A GPU that is being measured has its measurer's processes; the job will wait until that ends, and look again.
        let ours: Vec<u32> = match lock::holder_of(gpu.uuid.as_str()) {
            None => Vec::new(),
            Some(_) => gpu.processes.value().into_iter().flatten().map(|process| process.pid).collect(),
        };
        refusals.extend(preflight::check(&plan, gpu, settings.mps_control.is_some(), &ours));
        if !inventory.is_simulated() && libtorch.as_ref().is_some_and(|libtorch| !libtorch.has_cuda()) {
            refusals.push(Refusal {
                problem: "the libtorch that was found is for the CPU only".to_owned(),
                remedy: libtorch::REMEDY.to_owned(),
            });
        }
        refusals.extend(plan.cells.iter().filter_map(|cell| missing_instances(cell, gpu)));
        refusals.dedup();
    }
    Ok(Admission { plan, inventory, gpu, libtorch, refusals })
}

/// Why a baseline on the whole GPU is left out: the GPU is divided, and nothing here may change that. What the suite itself
/// asks for is never left out quietly.
fn out_of_reach(cell: &TrialSpec, suite: &Suite, gpu: Option<&Gpu>) -> Option<String> {
    let is_divided = gpu.is_some_and(|gpu| gpu.mig.value() == Some(&MigMode::Enabled));
    let is_asked = || suite.trials.iter().any(|trial| trial.cells.contains(cell));
    if is_divided && cell.sharing == Sharing::Exclusive && !is_asked() {
        Some("the GPU has MIG enabled, so that no process can use the whole of it".to_owned())
    } else {
        None
    }
}

fn choose<'a>(inventory: &'a Inventory, wanted: &Wanted) -> Result<Option<&'a Gpu>, AdmissionError> {
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

fn missing_instances(cell: &TrialSpec, gpu: &Gpu) -> Option<Refusal> {
    let Sharing::Mig { layout } = &cell.sharing else { return None };
    let problem = instances(layout, gpu).err()?;
    Some(Refusal {
        problem: format!("GPU {} has not the instances of `{layout}`: {problem}", gpu.index),
        remedy: "create them first (`nvidia-smi mig -cgi ... -C`); migperf measures instances that exist".to_owned(),
    })
}

/// The instances of a layout, in its order.
fn instances<'a>(layout: &str, gpu: &'a Gpu) -> Result<Vec<&'a MigInstance>, String> {
    let wanted: ProfileList = layout.parse().map_err(|error| format!("{error}"))?;
    let existing: &[MigInstance] = match &gpu.instances {
        Reading::Value(instances) => instances,
        Reading::Absent(reason) => return Err(reason.clone()),
    };
    let known: Vec<(&MigInstance, Profile)> =
        existing.iter().filter_map(|instance| Some((instance, instance.profile.value()?.parse().ok()?))).collect();
    let available: Vec<ExistingInstance> = known
        .iter()
        .map(|(instance, profile)| ExistingInstance { uuid: instance.uuid.clone(), profile: profile.clone() })
        .collect();
    let chosen = resolve(wanted.as_slice(), &available).map_err(|error| error.to_string())?;
    Ok(chosen.into_iter().map(|index| known[index].0).collect())
}

/// What each member of a cohort is given on a device.
///
/// # Errors
/// If an instance is missing, or the device did not tell its memory.
pub fn allocations(spec: &TrialSpec, gpu: Option<&Gpu>, simulated: bool) -> Result<Vec<Allocation>, String> {
    let Some(gpu) = gpu else { return Ok(vec![Allocation::Cpu; spec.members.len()]) };
    let cuda = |uuid: DeviceUuid, multiprocessors: Option<u32>, memory: Bytes| {
        let (mps, active_thread_percentage) = match spec.sharing {
            Sharing::Mps { active_thread_percentage } => (true, active_thread_percentage),
            _ => (false, None),
        };
        Allocation::Cuda { uuid, multiprocessors, memory, mps, active_thread_percentage, simulated }
    };
    if let Sharing::Mig { layout } = &spec.sharing {
        let chosen = instances(layout, gpu)?;
        return chosen
            .into_iter()
            .take(spec.members.len())
            .map(|instance| {
                let memory = *instance.memory_total.value().ok_or("an instance did not tell its memory")?;
                let uuid = DeviceUuid::Mig(instance.uuid.clone());
                Ok(cuda(uuid, instance.multiprocessors.value().copied(), memory))
            })
            .collect();
    }
    let memory = *gpu.memory_total.value().ok_or("the GPU did not tell its memory")?;
    let whole = cuda(DeviceUuid::Gpu(gpu.uuid.clone()), gpu.multiprocessors.value().copied(), memory);
    Ok(vec![whole; spec.members.len()])
}
