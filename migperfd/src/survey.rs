//! How a GPU is divided, and into what it may be divided, read with care: half-made instances are seen too.

use std::path::Path;

use migperf_core::chain::chain;
use migperf_core::device::MigMode;
use migperf_core::ids::GpuUuid;
use migperf_core::layouts::{Compute, Instance, Offer};
use migperf_core::mig::layout::Layout;
use migperf_core::mig::offer::{Offers, Placed};
use migperf_core::mig::planner::{self, Change, ChangeError, Existing, ExistingCompute, Found, Rest, Step};
use migperf_gpu::layout::{self, Division};
use migperf_gpu::library::Nvml;

use crate::barrier;

/// What was read of one GPU.
#[derive(Debug, Clone)]
pub struct Survey {
    division: Division,
    offers: Offers,
}

impl Survey {
    /// Reads a GPU. Blocks: callers have a thread for it.
    ///
    /// # Errors
    /// If it is not there, does not answer, or contradicts itself; most drivers let only root ask.
    pub fn of(nvml: Option<&Path>, gpu: &GpuUuid) -> Result<Self, String> {
        barrier::look(nvml, |library| {
            let nvml = Nvml::open(library).map_err(|error| chain(&error))?;
            let division = nvml.division(gpu).map_err(|error| chain(&error))?;
            let profiles = match division.mode {
                MigMode::Unsupported => Vec::new(),
                _ => nvml.profiles(gpu).map_err(|error| chain(&error))?,
            };
            Ok(Self { division, offers: layout::offers(&profiles) })
        })
    }

    /// How it is divided.
    #[must_use]
    pub fn division(&self) -> &Division {
        &self.division
    }

    /// What it offers.
    #[must_use]
    pub fn offers(&self) -> &Offers {
        &self.offers
    }

    fn found(&self) -> Found {
        let compute = |compute: &layout::ComputeInstance| ExistingCompute {
            id: compute.id,
            slices: compute.profile.compute_slices(),
            placement: compute.placement,
            must_stay: false,
        };
        let existing = |instance: &layout::GpuInstance| Existing {
            id: instance.id,
            placed: Placed { placement: instance.placement, profile: instance.profile.clone() },
            must_stay: true,
            compute: instance.compute.iter().map(compute).collect(),
        };
        Found {
            enabled: self.division.mode == MigMode::Enabled,
            instances: self.division.instances.iter().map(existing).collect(),
        }
    }

    /// How a layout can be reached; what is there stays unless it is in the way and may be replaced, as the helper does it.
    ///
    /// # Errors
    /// What is in its way, with the nearest layouts that can be.
    pub fn reach(&self, wanted: &Layout, replace_existing: bool) -> Result<Change, ChangeError> {
        let plan = if replace_existing { planner::replace } else { planner::reach };
        plan(&self.offers, &self.found(), wanted, Rest::Goes)
    }

    /// MIG devices that a change destroys.
    #[must_use]
    pub fn removed(&self, change: &Change) -> Vec<String> {
        let uuid = |step: &Step| {
            let Step::DestroyCompute { gpu_instance, id, .. } = step else { return None };
            let instance = self.division.instances.iter().find(|instance| instance.id == *gpu_instance)?;
            Some(instance.compute.iter().find(|compute| compute.id == *id)?.uuid.to_string())
        };
        change.steps.iter().filter_map(uuid).collect()
    }

    /// Its instances, for a document.
    #[must_use]
    pub fn instances(&self) -> Vec<Instance> {
        let compute = |compute: &layout::ComputeInstance| Compute {
            id: compute.id,
            profile: compute.profile.to_string(),
            uuid: compute.uuid.to_string(),
        };
        let instance = |instance: &layout::GpuInstance| Instance {
            id: instance.id,
            profile: instance.profile.to_string(),
            start: instance.placement.start,
            size: instance.placement.size,
            compute: instance.compute.iter().map(compute).collect(),
        };
        self.division.instances.iter().map(instance).collect()
    }

    /// What it offers, and how many more of each fit beside what there is, for a document.
    #[must_use]
    pub fn offered(&self) -> Vec<Offer> {
        let there: Vec<Placed> = self.found().instances.into_iter().map(|existing| existing.placed).collect();
        let offer = |offer: &migperf_core::mig::offer::Offer| {
            let (mut there, mut left) = (there.clone(), 0);
            while let Some(next) = self.offers.places(&there, offer).into_iter().next() {
                there.push(next);
                left += 1;
            }
            Offer {
                profile: offer.profile.to_string(),
                most: offer.most,
                left,
                starts: offer.placements.iter().map(|placement| placement.start).collect(),
            }
        };
        self.offers.as_slice().iter().map(offer).collect()
    }
}

/// What to do about a layout that can't be.
#[must_use]
pub fn remedy(error: &ChangeError) -> &'static str {
    match error {
        ChangeError::InTheWay { .. } | ChangeError::NotEmpty { .. } | ChangeError::NotOff { .. } => {
            "choose a layout that fits beside them, or let them be replaced (--replace-existing)"
        }
        _ => "choose another layout: `migperfctl layout show` lists what the GPU offers",
    }
}
