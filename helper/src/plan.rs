//! From a layout as it was asked for to instances at their places, with as few changes as possible.

use std::collections::BTreeSet;

use migperf_core::device::MigMode;
use migperf_core::mig::layout::{Instance, Layout, Part};
use migperf_core::mig::offer::{Placed, Placement};
use migperf_core::mig::planner::{ChangeError, Existing, ExistingCompute, Found, Rest, Step, reach, replace};
use migperf_gpu::layout::{ComputeInstance, Division, GpuInstance, ProfileOffer, offers};

use crate::bring::{Target, TargetGpu, TargetPart};

/// What to bring about, and what goes for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// What will be on the GPU. What is not ours stays beside the wanted instances where it is not in the way.
    pub target: Target,
    /// Numbers of the GPU instances that go, or of which a part goes.
    pub destroy: BTreeSet<u32>,
}

/// Plans a layout. `is_ours` says which instances may be destroyed without more ado; the others only with
/// `replace_existing`, and only those that are in the way.
///
/// # Errors
/// Says for people what can't be, and what can.
pub fn plan(
    now: &Division,
    profiles: &[ProfileOffer],
    layout: &Layout,
    is_ours: &dyn Fn(&GpuInstance) -> bool,
    replace_existing: bool,
) -> Result<Plan, String> {
    if now.mode == MigMode::Unsupported {
        return match layout {
            Layout::Off => Ok(Plan { target: Target { on: false, instances: Vec::new() }, destroy: BTreeSet::new() }),
            Layout::On(_) => Err("this GPU, or its driver, has no MIG".to_owned()),
        };
    }
    let found = Found {
        enabled: now.mode == MigMode::Enabled,
        instances: now.instances.iter().map(|gpu| existing(gpu, !is_ours(gpu))).collect(),
    };
    let offers = offers(profiles);
    let change = if replace_existing { replace } else { reach }(&offers, &found, layout, Rest::Goes);
    let change = change.map_err(|error| match error {
        ChangeError::InTheWay { .. } | ChangeError::NotEmpty { .. } | ChangeError::NotOff { .. } => {
            format!("{error}; `replace-existing` would destroy what is in the way")
        }
        other => other.to_string(),
    })?;
    let mut instances = Vec::new();
    for instance in change.after.instances() {
        instances.push(target(instance, now, profiles)?);
    }
    let gone = |step: &Step| match step {
        Step::DestroyGpuInstance { id, .. } | Step::DestroyCompute { gpu_instance: id, .. } => Some(*id),
        _ => None,
    };
    let destroy = change.steps.iter().filter_map(gone).collect();
    Ok(Plan { target: Target { on: *layout != Layout::Off, instances }, destroy })
}

fn existing(gpu: &GpuInstance, must_stay: bool) -> Existing {
    let compute = |compute: &ComputeInstance| ExistingCompute {
        id: compute.id,
        slices: compute.profile.compute_slices(),
        placement: compute.placement,
        must_stay: false,
    };
    Existing {
        id: gpu.id,
        placed: Placed { placement: gpu.placement, profile: gpu.profile.clone() },
        must_stay,
        compute: gpu.compute.iter().map(compute).collect(),
    }
}

/// A planned instance as the steps need it. One that exists keeps the numbers that it has.
fn target(instance: &Instance, now: &Division, profiles: &[ProfileOffer]) -> Result<TargetGpu, String> {
    let profile = &instance.profile;
    let offer = profiles.iter().find(|offer| offer.offer.profile == *profile);
    let at = |gpu: &&GpuInstance| {
        gpu.profile == *profile && instance.place.is_some_and(|place| place.start == gpu.placement.start)
    };
    let there = now.instances.iter().find(at);
    let profile_id = there.map(|gpu| gpu.profile_id).or(offer.map(|offer| offer.id));
    let placement = instance.place.and_then(|place| Some(Placement { start: place.start, size: place.size? }));
    let (Some(profile_id), Some(placement)) = (profile_id, placement) else {
        return Err(format!("{instance} has no place or number on this GPU"));
    };
    let part = |part: &Part| TargetPart {
        profile: profile.part(part.slices).unwrap_or_else(|| profile.clone()),
        profile_id: None,
        placement: part.place.map(|place| Placement { start: place.start, size: place.size.unwrap_or(part.slices) }),
    };
    let compute = instance.compute.iter().map(part).collect();
    Ok(TargetGpu { profile_id, profile: profile.clone(), placement, compute })
}
