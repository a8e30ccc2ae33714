//! Layouts for administrators: shown, planned, brought about for longer than a job, and restored.

use std::path::Path;
use std::sync::Arc;

use migperf_core::chain::chain;
use migperf_core::device::{Gpu, MigMode, Reading};
use migperf_core::ids::GpuUuid;
use migperf_core::job::Refusal;
use migperf_core::layouts::{Compute, GpuLayout, Instance, LayoutChange, LayoutPlan, Layouts, Standing};
use migperf_core::mig::layout::Layout;
use migperf_dbus::Keyed;
use migperf_dbus::error::Error;
use migperf_dbus::helper::{Changed, apply, changed, report};

use crate::admission::{self, AdmissionError, Wanted};
use crate::helper::{Helper, HelperError};
use crate::lock::{DeviceLock, LockError};
use crate::partition::{self, Mandate, PartitionError, flag, number, text, texts};
use crate::settings::Settings;
use crate::survey::{self, Survey};

/// Shows every GPU.
///
/// # Errors
/// If the daemon is ending.
pub async fn show(settings: &Settings, helper: &Helper) -> Result<Layouts, Error> {
    let nvml = settings.nvml.clone();
    let (obstacle, standings) = match helper.report().await {
        Ok(report) => (None, report),
        Err(HelperError::Absent { absence }) => {
            (Some(Refusal { problem: absence.to_string(), remedy: absence.remedy().to_owned() }), Vec::new())
        }
        Err(error) => {
            let remedy = "see the daemon's log for what the helper wrote".to_owned();
            (Some(Refusal { problem: chain(&error), remedy }), Vec::new())
        }
    };
    let read = move || {
        let inventory = admission::look(nvml.as_deref());
        let simulated = inventory.is_simulated();
        let gpus = inventory.gpus.iter().map(|gpu| shown(gpu, nvml.as_deref())).collect();
        Layouts { simulated, obstacle, gpus }
    };
    let mut layouts = tokio::task::spawn_blocking(read).await.map_err(|error| Error::Internal(error.to_string()))?;
    for gpu in &mut layouts.gpus {
        gpu.standing = standings.iter().find(|entry| text(entry, report::GPU) == gpu.uuid).map(standing);
    }
    Ok(layouts)
}

/// An entry of the helper's report.
#[must_use]
pub fn standing(entry: &Keyed) -> Standing {
    Standing {
        state: text(entry, report::STATE),
        found: text(entry, report::FOUND),
        wanted: text(entry, report::WANTED),
        left: texts(entry, report::LEFT),
        commands: texts(entry, report::COMMANDS),
    }
}

fn shown(gpu: &Gpu, nvml: Option<&Path>) -> GpuLayout {
    let mut shown = GpuLayout {
        index: gpu.index,
        uuid: gpu.uuid.to_string(),
        name: gpu.name.value().cloned(),
        mode: gpu.mig.value().copied().unwrap_or(MigMode::Unsupported),
        layout: "unknown".to_owned(),
        instances: Vec::new(),
        offers: Vec::new(),
        standing: None,
        problem: None,
    };
    match Survey::of(nvml, &gpu.uuid) {
        Ok(survey) => {
            shown.mode = survey.division().mode;
            shown.layout = survey.division().to_string();
            shown.instances = survey.instances();
            shown.offers = survey.offered();
        }
        Err(problem) => {
            // What anybody may see: MIG devices, without half-made instances.
            let devices = gpu.instances.value().into_iter().flatten();
            shown.instances = devices.map(visible).collect();
            shown.problem = Some(problem);
        }
    }
    shown
}

fn visible(device: &migperf_core::device::MigInstance) -> Instance {
    let profile = device.profile.value().cloned().unwrap_or_else(|| "unknown".to_owned());
    let number = |reading: &Reading<u32>| reading.value().copied().unwrap_or_default();
    let place = device.placement.value();
    Instance {
        id: number(&device.gpu_instance),
        profile: profile.clone(),
        start: place.map_or(0, |place| place.start),
        size: place.map_or(0, |place| place.size),
        compute: vec![Compute { id: number(&device.compute_instance), profile, uuid: device.uuid.to_string() }],
    }
}

/// The GPU of a name, and whether it is simulated.
async fn find(settings: &Settings, name: &str) -> Result<(Gpu, bool), Error> {
    let (nvml, wanted) = (settings.nvml.clone(), Wanted::Gpu(name.to_owned()));
    let find = move || {
        let inventory = admission::look(nvml.as_deref());
        let found = admission::choose(&inventory, &wanted).map(Option::<&Gpu>::cloned);
        found.map(|gpu| (gpu, inventory.is_simulated()))
    };
    let found = tokio::task::spawn_blocking(find).await.map_err(|error| Error::Internal(error.to_string()))?;
    match found {
        Ok((Some(gpu), simulated)) => Ok((gpu, simulated)),
        Ok((None, _)) => Err(Error::NoSuchDevice(format!("there is no GPU `{name}`"))),
        Err(error @ AdmissionError::NoSuchDevice { .. }) => Err(Error::NoSuchDevice(error.to_string())),
        Err(error) => Err(Error::Internal(error.to_string())),
    }
}

fn parsed(layout: &str) -> Result<Layout, Error> {
    layout.parse().map_err(|error: migperf_core::mig::layout::LayoutError| Error::InvalidArgument(error.to_string()))
}

/// Says what a change would do.
///
/// # Errors
/// If there is no such GPU, or the layout is none.
pub async fn plan(
    settings: &Settings,
    helper: &Helper,
    gpu: &str,
    layout: &str,
    replace_existing: bool,
) -> Result<LayoutPlan, Error> {
    let wanted = parsed(layout)?;
    let (gpu, simulated) = find(settings, gpu).await?;
    let mut refusals = Vec::new();
    if let Some(absence) = helper.absence() {
        refusals.push(Refusal { problem: absence.to_string(), remedy: absence.remedy().to_owned() });
    }
    if let Err(error) = DeviceLock::take(gpu.uuid.as_str()) {
        refusals.push(Refusal { problem: error.to_string(), remedy: "wait until its job has ended".to_owned() });
    }
    let (nvml, uuid) = (settings.nvml.clone(), gpu.uuid.clone());
    let survey = tokio::task::spawn_blocking(move || Survey::of(nvml.as_deref(), &uuid)).await;
    let survey = survey.map_err(|error| Error::Internal(error.to_string()))?.map_err(Error::Refused)?;
    let mut plan = LayoutPlan {
        simulated,
        gpu: gpu.uuid.to_string(),
        found: survey.division().to_string(),
        wanted: wanted.to_string(),
        after: None,
        steps: Vec::new(),
        removed_uuids: Vec::new(),
        refusals,
    };
    if survey.division().mode == MigMode::Unsupported {
        let remedy = "choose another GPU".to_owned();
        plan.refusals.push(Refusal { problem: "this GPU can't be divided: it has no MIG".to_owned(), remedy });
        return Ok(plan);
    }
    match survey.reach(&wanted, replace_existing) {
        Ok(change) => {
            plan.after = Some(change.after.to_string());
            plan.steps = change.steps.iter().map(ToString::to_string).collect();
            plan.removed_uuids = survey.removed(&change);
        }
        Err(error) => {
            plan.refusals.push(Refusal { problem: error.to_string(), remedy: survey::remedy(&error).to_owned() });
        }
    }
    Ok(plan)
}

/// Brings a GPU to a layout until it is restored.
///
/// # Errors
/// As the helper answers, or if the GPU is being measured.
pub async fn apply(
    settings: &Settings,
    helper: &Arc<Helper>,
    gpu: &str,
    layout: &str,
    mandate: &Mandate,
) -> Result<LayoutChange, Error> {
    let wanted = parsed(layout)?;
    let (gpu, _) = find(settings, gpu).await?;
    let _lock = held(&gpu.uuid)?;
    let mut options = mandate.options();
    options.insert(apply::HOLD.to_owned(), zbus::Str::from("until-restored").into());
    let switches = (gpu.mig.value() == Some(&MigMode::Enabled)) == (wanted == Layout::Off);
    let changed =
        partition::keep(helper, settings.nvml.as_deref(), &gpu.uuid, &wanted.to_string(), &options, switches).await;
    changed.map(|changed| told(&gpu.uuid, changed)).map_err(error)
}

/// Brings a GPU back to what was found.
///
/// # Errors
/// As the helper answers, or if the GPU is being measured.
pub async fn restore(
    settings: &Settings,
    helper: &Arc<Helper>,
    gpu: &str,
    mandate: &Mandate,
) -> Result<LayoutChange, Error> {
    let (gpu, _) = find(settings, gpu).await?;
    let _lock = held(&gpu.uuid)?;
    // Whether the mode is switched is in the helper's ledger: NVML is kept closed in any case.
    let changed = partition::bring_back(helper, settings.nvml.as_deref(), &gpu.uuid, &mandate.way_back()).await;
    changed.map(|changed| told(&gpu.uuid, changed)).map_err(error)
}

fn held(gpu: &GpuUuid) -> Result<DeviceLock, Error> {
    DeviceLock::take(gpu.as_str()).map_err(|error| match error {
        LockError::Held { .. } => Error::GpuBusy(error.to_string()),
        LockError::System { .. } => Error::Internal(chain(&error)),
    })
}

fn error(error: PartitionError) -> Error {
    match error {
        PartitionError::Helper(HelperError::Said(said)) => said,
        PartitionError::Helper(absent @ HelperError::Absent { .. }) => Error::Refused(absent.to_string()),
        PartitionError::Lock(error @ LockError::Held { .. }) => Error::GpuBusy(error.to_string()),
        PartitionError::Stopped(reason) => Error::GpuBusy(reason),
        error => {
            tracing::error!(error = chain(&error), "a layout could not be changed");
            Error::Internal(chain(&error))
        }
    }
}

fn told(gpu: &GpuUuid, (instances, did): Changed) -> LayoutChange {
    let compute = |compute: migperf_dbus::helper::ComputeInstance| Compute {
        id: compute.id,
        profile: compute.profile,
        uuid: compute.uuid,
    };
    let instances = instances.into_iter().map(|instance| Instance {
        id: instance.id,
        profile: instance.profile,
        start: instance.start,
        size: instance.size,
        compute: instance.compute.into_iter().map(compute).collect(),
    });
    LayoutChange {
        gpu: gpu.to_string(),
        instances: instances.collect(),
        mode_changed: flag(&did, changed::MODE_CHANGED),
        removed_uuids: texts(&did, changed::REMOVED_UUIDS),
        created_uuids: texts(&did, changed::CREATED_UUIDS),
        steps: number(&did, changed::STEPS),
        as_found: flag(&did, changed::AS_FOUND),
        left: texts(&did, changed::LEFT),
    }
}
