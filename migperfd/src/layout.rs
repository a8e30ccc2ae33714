//! A GPU's layout as it was read back, and what it gives to the members of a cohort.
//!
//! Device identities are never remembered: each change of a layout makes new ones, so that they are read from the device
//! before each trial.

use std::path::PathBuf;

use migperf_core::device::{Gpu, Inventory, MigInstance, MigMode, Reading};
use migperf_core::ids::{DeviceUuid, GpuUuid};
use migperf_core::mig::layout::{Instance, Layout, Place};
use migperf_core::mig::profile::Profile;
use migperf_core::mig::resolve::{ExistingInstance, resolve};
use migperf_core::trial::{Sharing, TrialSpec};
use migperf_core::units::Bytes;
use migperf_core::worker_wire::Allocation;

use crate::admission;

/// A GPU with the layout that it has. Nothing but a read-back makes one, and a cohort starts from one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppliedLayout {
    gpu: Gpu,
    simulated: bool,
}

impl AppliedLayout {
    /// Reads a GPU's layout from the device.
    ///
    /// # Errors
    /// If the GPU is not there.
    pub async fn read_back(nvml: Option<PathBuf>, uuid: &GpuUuid) -> Result<Self, String> {
        let looked = tokio::task::spawn_blocking(move || admission::look(nvml.as_deref())).await;
        let inventory: Inventory = looked.map_err(|error| error.to_string())?;
        let simulated = inventory.is_simulated();
        let reason = inventory.nvml.reason().unwrap_or("it is not among the machine's GPUs any more").to_owned();
        match inventory.gpus.into_iter().find(|gpu| gpu.uuid == *uuid) {
            Some(gpu) => Ok(Self { gpu, simulated }),
            None => Err(format!("the GPU {uuid} is gone: {reason}")),
        }
    }

    /// The GPU as it was read.
    #[must_use]
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Whether the device is simulated.
    #[must_use]
    pub fn is_simulated(&self) -> bool {
        self.simulated
    }

    /// Identities of its MIG devices, ascending.
    #[must_use]
    pub fn uuids(&self) -> Vec<String> {
        let instances = self.gpu.instances.value().into_iter().flatten();
        let mut uuids: Vec<String> = instances.map(|instance| instance.uuid.as_str().to_owned()).collect();
        uuids.sort();
        uuids
    }

    /// Whether cohorts can run on it as they want: the whole GPU, or the instances of a layout.
    #[must_use]
    pub fn serves(&self, wanted: Option<&Layout>) -> bool {
        match wanted {
            None => !matches!(self.gpu.mig.value(), Some(MigMode::Enabled | MigMode::Pending { .. })),
            Some(layout) => instances(layout, &self.gpu).is_ok(),
        }
    }

    /// What each member of a cohort is given.
    ///
    /// # Errors
    /// If an instance is missing, or the device did not tell its memory.
    pub fn allocations(&self, spec: &TrialSpec) -> Result<Vec<Allocation>, String> {
        let (mps, active_thread_percentage) = match &spec.sharing {
            Sharing::Mps { active_thread_percentage } => (true, *active_thread_percentage),
            Sharing::Mig { mps: Some(mps), .. } => (true, mps.active_thread_percentage),
            _ => (false, None),
        };
        let cuda = |uuid: DeviceUuid, multiprocessors: Option<u32>, memory: Bytes| {
            let simulated = self.simulated;
            Allocation::Cuda { uuid, multiprocessors, memory, mps, active_thread_percentage, simulated }
        };
        if let Sharing::Mig { layout, .. } = &spec.sharing {
            let wanted: Layout = layout.parse().map_err(|error| format!("{error}"))?;
            let there = instances(&wanted, &self.gpu)?;
            let one = |member: usize| {
                let instance = there.get(spec.sharing.instance_of(member));
                let instance = instance.ok_or_else(|| format!("member {member} has no instance in `{layout}`"))?;
                let memory = *instance.memory_total.value().ok_or("an instance did not tell its memory")?;
                let uuid = DeviceUuid::Mig(instance.uuid.clone());
                Ok(cuda(uuid, instance.multiprocessors.value().copied(), memory))
            };
            return (0..spec.members.len()).map(one).collect();
        }
        let memory = *self.gpu.memory_total.value().ok_or("the GPU did not tell its memory")?;
        let multiprocessors = self.gpu.multiprocessors.value().copied();
        let whole = cuda(DeviceUuid::Gpu(self.gpu.uuid.clone()), multiprocessors, memory);
        Ok(vec![whole; spec.members.len()])
    }
}

/// The MIG devices of a layout among those that exist, in its order.
///
/// # Errors
/// Says which are missing.
pub fn instances<'a>(wanted: &Layout, gpu: &'a Gpu) -> Result<Vec<&'a MigInstance>, String> {
    let existing: &[MigInstance] = match &gpu.instances {
        Reading::Value(instances) => instances,
        Reading::Absent(reason) => return Err(reason.clone()),
    };
    let mut known: Vec<(&MigInstance, Profile)> =
        existing.iter().filter_map(|instance| Some((instance, instance.profile.value()?.parse().ok()?))).collect();
    // Instances with a place have no choice: they are served first.
    let (mut served, mut free) = (Vec::new(), Vec::new());
    for (place, profile) in members(wanted) {
        let Some(place) = place else {
            free.push(profile);
            served.push(None);
            continue;
        };
        let is_there = |(instance, known): &(&MigInstance, Profile)| {
            let at = instance.placement.value();
            profile.matches(known)
                && at.is_some_and(|at| at.start == place.start && place.size.is_none_or(|size| size == at.size))
        };
        let found = known.iter().position(is_there).ok_or_else(|| format!("there is no {profile}{place}"))?;
        served.push(Some(known.remove(found).0));
    }
    let available: Vec<ExistingInstance> = known
        .iter()
        .map(|(instance, profile)| ExistingInstance { uuid: instance.uuid.clone(), profile: profile.clone() })
        .collect();
    let chosen = resolve(&free, &available).map_err(|error| error.to_string())?;
    let mut rest = chosen.into_iter().map(|index| known[index].0);
    Ok(served.into_iter().filter_map(|served| served.or_else(|| rest.next())).collect())
}

/// Each compute instance of a layout with its GPU instance's place, in the layout's order.
fn members(layout: &Layout) -> Vec<(Option<Place>, Profile)> {
    let of = |instance: &Instance| {
        let parts = instance.compute.iter().filter_map(|part| instance.profile.part(part.slices));
        parts.map(|profile| (instance.place, profile)).collect::<Vec<_>>()
    };
    layout.instances().iter().flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use migperf_core::device::Placement;
    use serde_json::json;

    use super::*;

    /// A GPU with instances of these profiles at these slots.
    fn gpu(devices: &[(&str, u32, u32)]) -> Gpu {
        let absent = json!({ "absent": "not asked" });
        let mut gpu =
            json!({ "index": 0, "uuid": "GPU-5ebe9c2f-a33f-4a4c-bb17-7d1f4c1c4d3e", "mig": { "value": "enabled" } });
        for name in [
            "name",
            "architecture",
            "compute-capability",
            "pci-bus-id",
            "memory-total",
            "memory-used",
            "multiprocessors",
            "compute-mode",
            "persistence",
            "virtualization",
            "processes",
            "power-limit",
            "clock-sm-max",
            "clock-memory-max",
            "gpm",
            "instances",
        ] {
            gpu[name] = absent.clone();
        }
        let mut gpu: Gpu = serde_json::from_value(gpu).unwrap();
        let none = || Reading::absent("not asked");
        let device = |(at, (profile, start, size)): (usize, &(&str, u32, u32))| MigInstance {
            uuid: format!("MIG-5ebe9c2f-a33f-4a4c-bb17-7d1f4c1c4d{at:02x}").parse().unwrap(),
            gpu_instance: none(),
            compute_instance: none(),
            profile: Reading::Value((*profile).to_owned()),
            gpu_instance_slices: none(),
            compute_instance_slices: none(),
            multiprocessors: none(),
            memory_total: Reading::absent("not asked"),
            placement: Reading::Value(Placement { start: *start, size: *size }),
        };
        gpu.instances = Reading::Value(devices.iter().enumerate().map(device).collect());
        gpu
    }

    fn check(layout: &str, expected: Result<&[u32], &str>) {
        let gpu = gpu(&[("1g.18gb", 0, 1), ("1g.18gb", 1, 1), ("1c.3g.71gb", 4, 4), ("2c.3g.71gb", 4, 4)]);
        let found = instances(&layout.parse().unwrap(), &gpu);
        let number = |instance: &&MigInstance| u32::from_str_radix(&instance.uuid.as_str()[38..], 16).unwrap();
        let found = found.map(|found| found.iter().map(number).collect::<Vec<_>>());
        assert_eq!(found.as_deref().map_err(String::as_str), expected, "{layout}");
    }

    #[test]
    fn members_get_the_instances_that_their_layout_says() {
        check("1g+1g", Ok(&[0, 1]));
        check("1g+1g@0", Ok(&[1, 0]));
        check("1g@1:1+3g@4(2c+1c)", Ok(&[1, 3, 2]));
        check("3g(1c+2c)+1g", Ok(&[2, 3, 0]));
        check("1g@2", Err("there is no 1g@2"));
        check("1g@0:2", Err("there is no 1g@0:2"));
        check("3g", Err("3g: 1 wanted, 0 exist (there are: 1g.18gb, 1g.18gb, 1c.3g.71gb, 2c.3g.71gb)"));
        check("empty", Ok(&[]));
    }
}
