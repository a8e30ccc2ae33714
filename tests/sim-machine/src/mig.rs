//! What changes a GPU's division: the MIG mode, GPU instances, compute instances, and a reboot. The rules and refusals are
//! those of NVML's documentation and of captures; placement follows the model in the catalog's table.

use crate::catalog::{Engines, Model, Profile, Slot};
use crate::machine::{GpuDescription, Machine};
use crate::state::{ComputeInstance, GpuState, Instance, State, uuid};

/// Why a change was refused. The numbers are NVML's return codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[repr(u32)]
pub enum Refused {
    /// The profile or the place is not this device's.
    #[error("invalid argument")]
    InvalidArgument = 2,
    /// There is no MIG, or it is off.
    #[error("not supported")]
    NotSupported = 3,
    /// Only root may.
    #[error("no permission")]
    NoPermission = 4,
    /// No such instance.
    #[error("not found")]
    NotFound = 6,
    /// Only after a reset.
    #[error("reset required")]
    ResetRequired = 16,
    /// A process, a client or a part of it is in the way.
    #[error("in use")]
    InUse = 19,
    /// No room.
    #[error("insufficient resources")]
    InsufficientResources = 23,
    /// The mode waits for a reset.
    #[error("invalid state")]
    InvalidState = 29,
}

/// What NVML said about a mode that was asked for: it is there, or it waits.
pub type Activation = Result<(), Refused>;

/// Compute slices of compute instance profiles, by NVML's constants; the ids are the same numbers.
pub const COMPUTE_SLICES: [u32; 5] = [1, 2, 3, 4, 7];
/// Compute instance profile constants of nvml.h that a driver of release 580 knows.
pub const COMPUTE_CONSTANTS: u32 = 8;

fn overlap(a: Slot, b: Slot) -> bool {
    a.start < b.start + b.size && b.start < a.start + a.size
}

fn engines(of: Engines) -> [u32; 5] {
    [of.ce, of.dec, of.enc, of.jpeg, of.ofa]
}

/// Whether an instance of a profile can be placed beside others.
fn fits(model: &Model, there: &[(&Profile, Slot)], profile: &Profile, slot: Slot) -> bool {
    let pool = |kind: usize| model.profiles.iter().map(|profile| engines(profile.engines)[kind]).max().unwrap_or(0);
    let taken = |kind: usize| there.iter().map(|(profile, _)| engines(profile.engines)[kind]).sum::<u32>();
    let count = there.iter().filter(|(other, _)| other.id == profile.id).count();
    there.iter().all(|(_, other)| !overlap(*other, slot))
        && count < profile.max_instances as usize
        && (0..5).all(|kind| taken(kind) + engines(profile.engines)[kind] <= pool(kind))
}

/// Places at which an instance of a profile can be created beside others.
fn free_places<'a>(
    model: &'a Model,
    there: &'a [(&Profile, Slot)],
    profile: &'a Profile,
) -> impl Iterator<Item = Slot> + 'a {
    profile.placements.iter().copied().filter(move |slot| fits(model, there, profile, *slot))
}

/// The place that the driver chooses: the one after which most can still be created, and the lowest of several.
fn chosen_place(model: &Model, there: &[(&Profile, Slot)], profile: &Profile) -> Option<Slot> {
    let left = |slot: Slot| {
        let after: Vec<(&Profile, Slot)> = there.iter().copied().chain([(profile, slot)]).collect();
        model.profiles.iter().map(|other| free_places(model, &after, other).count()).sum::<usize>()
    };
    free_places(model, there, profile).max_by_key(|slot| (left(*slot), std::cmp::Reverse(slot.start)))
}

/// First slices at which a compute instance of so many slices may lie within a GPU instance of `whole` slices.
#[must_use]
pub fn compute_starts(whole: u32, slices: u32) -> Vec<u32> {
    let step = match slices {
        1 => 1,
        2 => 2,
        3 => 4,
        _ => 8,
    };
    (0..whole).step_by(step).filter(|start| start + slices <= whole).collect()
}

/// The compute instance profiles of a GPU instance: id and slices. A 4g offers no 3c (captures).
#[must_use]
pub fn compute_profiles(profile: &Profile) -> Vec<(u32, u32)> {
    let whole = profile.compute_slices;
    let is_offered = |(_, slices): &(u32, u32)| *slices <= whole && (*slices, whole) != (3, 4);
    (0..).zip(COMPUTE_SLICES).filter(is_offered).collect()
}

impl GpuState {
    fn there<'a>(&self, model: &'a Model) -> Vec<(&'a Profile, Slot)> {
        self.instances.iter().filter_map(|it| Some((model.profile(&it.profile)?, it.slot()))).collect()
    }

    /// How many more instances of a profile can be created, one after the other.
    #[must_use]
    pub fn remaining(&self, model: &Model, profile: &Profile) -> u32 {
        let mut there = self.there(model);
        let mut count = 0;
        loop {
            let Some(slot) = free_places(model, &there, profile).next() else { return count };
            there.push((profile, slot));
            count += 1;
        }
    }

    /// How many more compute instances of so many slices can be created within a GPU instance.
    #[must_use]
    pub fn compute_remaining(&self, whole: u32, instance: &Instance, slices: u32) -> u32 {
        let mut taken: Vec<Slot> = instance.compute.iter().map(ComputeInstance::slot).collect();
        let mut count = 0;
        for start in compute_starts(whole, slices) {
            let slot = Slot { start, size: slices };
            if taken.iter().all(|other| !overlap(*other, slot)) {
                taken.push(slot);
                count += 1;
            }
        }
        count
    }

    /// Whether instances may be created or destroyed now.
    fn divisible(&self) -> Result<(), Refused> {
        match self.mig {
            Some((true, true)) => Ok(()),
            Some((false, _)) | None => Err(Refused::NotSupported),
            Some((true, false)) => Err(Refused::InvalidState),
        }
    }

    fn position(&self, id: u32) -> Result<usize, Refused> {
        self.instances.iter().position(|instance| instance.id == id).ok_or(Refused::NotFound)
    }

    /// Creates a GPU instance, where it is said or where the driver chooses; gives its id.
    ///
    /// # Errors
    /// As NVML's `nvmlDeviceCreateGpuInstanceWithPlacement`.
    pub fn create_instance(&mut self, gpu: &GpuDescription, profile: u32, at: Option<Slot>) -> Result<u32, Refused> {
        self.divisible()?;
        let model = gpu.model();
        let profile = model.profiles.iter().find(|known| known.id == profile).ok_or(Refused::InvalidArgument)?;
        let there = self.there(model);
        let slot = match at {
            None => chosen_place(model, &there, profile).ok_or(Refused::InsufficientResources)?,
            Some(slot) if !profile.placements.contains(&slot) => return Err(Refused::InvalidArgument),
            Some(slot) if !fits(model, &there, profile, slot) => return Err(Refused::InsufficientResources),
            Some(slot) => slot,
        };
        let id = model.instance_id(slot);
        self.instances.push(Instance::new(id, profile, slot));
        self.instances.sort_by_key(|instance| instance.id);
        Ok(id)
    }

    /// Destroys a GPU instance.
    ///
    /// # Errors
    /// If it has compute instances or processes, or is none.
    pub fn destroy_instance(&mut self, id: u32) -> Result<(), Refused> {
        let at = self.position(id)?;
        let used = self.contexts.iter().any(|context| context.instance.is_some_and(|(gi, _)| gi == id));
        if used || !self.instances[at].compute.is_empty() {
            return Err(Refused::InUse);
        }
        self.instances.remove(at);
        Ok(())
    }

    /// Creates a compute instance of a profile within a GPU instance; gives its id. `birth` makes its UUID another than all
    /// before.
    ///
    /// # Errors
    /// As NVML's `nvmlGpuInstanceCreateComputeInstanceWithPlacement`.
    pub fn create_compute(
        &mut self,
        gpu: &GpuDescription,
        instance: u32,
        profile: u32,
        at: Option<Slot>,
        birth: &str,
    ) -> Result<u32, Refused> {
        self.divisible()?;
        let position = self.position(instance)?;
        let within = &mut self.instances[position];
        let catalog = within.catalog(gpu).ok_or(Refused::InvalidArgument)?;
        let (_, slices) =
            compute_profiles(catalog).into_iter().find(|(id, _)| *id == profile).ok_or(Refused::InvalidArgument)?;
        let starts = compute_starts(catalog.compute_slices, slices);
        let free = |start: u32| {
            let slot = Slot { start, size: slices };
            within.compute.iter().all(|other| !overlap(other.slot(), slot))
        };
        let start = match at {
            None => starts.into_iter().find(|start| free(*start)).ok_or(Refused::InsufficientResources)?,
            Some(slot) if slot.size != slices || !starts.contains(&slot.start) => return Err(Refused::InvalidArgument),
            Some(slot) if !free(slot.start) => return Err(Refused::InsufficientResources),
            Some(slot) => slot.start,
        };
        let id = (0..).find(|id| within.compute.iter().all(|other| other.id != *id)).unwrap_or(0);
        let uuid = format!("MIG-{}", uuid(&format!("gi {instance} ci {id} {birth}")));
        within.compute.push(ComputeInstance { id, slices, start, uuid });
        within.compute.sort_by_key(|compute| compute.id);
        Ok(id)
    }

    /// Destroys a compute instance.
    ///
    /// # Errors
    /// If processes use it, or it is none.
    pub fn destroy_compute(&mut self, instance: u32, compute: u32) -> Result<(), Refused> {
        let position = self.position(instance)?;
        let at = self.instances[position].compute.iter().position(|it| it.id == compute).ok_or(Refused::NotFound)?;
        if self.contexts.iter().any(|context| context.instance == Some((instance, compute))) {
            return Err(Refused::InUse);
        }
        self.instances[position].compute.remove(at);
        Ok(())
    }
}

impl State {
    /// Asks a GPU for a MIG mode, on behalf of the client process `caller`. The outer answer is the call's, the inner one the
    /// activation's: unless that succeeded, the mode is pending and not there.
    ///
    /// # Errors
    /// If the GPU has no MIG.
    pub fn set_mode(&mut self, machine: &Machine, gpu: usize, on: bool, caller: u32) -> Result<Activation, Refused> {
        let description = &machine.gpus[gpu];
        let others = self.clients.iter().any(|client| client.process.pid != caller);
        let state = &mut self.gpus[gpu];
        let (current, pending) = state.mig.as_mut().ok_or(Refused::NotSupported)?;
        *pending = on;
        if *current == on {
            return Ok(Ok(()));
        }
        // What stands between a virtual machine and the device: NVML's numbers.
        match description.virtualization {
            2 => return Ok(Err(Refused::NotSupported)),
            1 if !description.model().resetless_mig => return Ok(Err(Refused::ResetRequired)),
            _ => {}
        }
        let busy = !state.contexts.is_empty() || !description.processes.is_empty() || !state.instances.is_empty();
        if busy || others {
            return Ok(Err(Refused::InUse));
        }
        *current = on;
        Ok(Ok(()))
    }

    /// A text that no other call gives.
    pub fn birth(&mut self, now_ns: u64) -> String {
        self.births += 1;
        format!("birth {} at {now_ns}", self.births)
    }

    /// The machine after a reboot, or after its driver was unloaded and loaded: no instance, no process, no client. The mode is
    /// kept where it lies in the board's memory (a reset changes it: Ampere), and lost where it needs none.
    #[must_use]
    pub fn restarted(&self, machine: &Machine, now_ns: u64) -> Self {
        let mut new = Self::boot(machine, now_ns);
        new.births = self.births;
        for ((gpu, old), description) in new.gpus.iter_mut().zip(&self.gpus).zip(&machine.gpus) {
            gpu.instances.clear();
            gpu.mig = old.mig.map(|(_, pending)| {
                let mode = pending && !description.model().resetless_mig;
                (mode, mode)
            });
        }
        new
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::catalog::models;

    fn table() -> Value {
        serde_json::from_str(include_str!("../data/mig_profiles.json")).unwrap()
    }

    fn empty(model: &str) -> (Machine, State) {
        let text = format!(r#"{{ "gpus": [ {{ "model": "{model}", "mig": "enabled" }} ] }}"#);
        let machine = Machine::parse(&text).unwrap();
        let state = State::boot(&machine, 1);
        (machine, state)
    }

    fn id(model: &str, profile: &str) -> u32 {
        models()[model].profile(profile).unwrap().id
    }

    #[test]
    fn instances_are_created_as_in_the_captured_traces() {
        for trace in table()["golden_traces"].as_array().unwrap() {
            let model = trace["gpu"].as_str().unwrap();
            let (machine, mut state) = empty(model);
            let gpu = &mut state.gpus[0];
            let mut seen = Vec::new();
            for profile in trace["create"].as_array().unwrap() {
                let made = gpu.create_instance(&machine.gpus[0], id(model, profile.as_str().unwrap()), None);
                seen.push(match made {
                    Ok(id) => {
                        let made = gpu.instance(id).unwrap();
                        format!("{}:{}#{id}", made.start, made.size)
                    }
                    Err(Refused::InsufficientResources) => "INSUFFICIENT_RESOURCES".to_owned(),
                    Err(other) => other.to_string(),
                });
            }
            assert_eq!(Value::from(seen), trace["expect"], "{trace}");
        }
    }

    #[test]
    fn capacity_remains_as_captured() {
        let table = table();
        let golden = &table["golden_remaining_capacity"];
        let model = golden["gpu"].as_str().unwrap();
        let (machine, mut state) = empty(model);
        for step in golden["steps"].as_array().unwrap() {
            if let Some(after) = step["after"].as_array() {
                let profile = models()[model].profile(after[0].as_str().unwrap()).unwrap();
                let start = u32::try_from(after[1].as_u64().unwrap()).unwrap();
                let slot = profile.placements.iter().find(|slot| slot.start == start).copied();
                state.gpus[0].create_instance(&machine.gpus[0], profile.id, slot).unwrap();
            }
            for (name, count) in step["remaining"].as_object().unwrap() {
                let profile = models()[model].profile(name).unwrap();
                let left = state.gpus[0].remaining(&models()[model], profile);
                assert_eq!(u64::from(left), count.as_u64().unwrap(), "{name} {step}");
            }
        }
        for (key, model) in models() {
            let (_, state) = empty(key);
            for profile in &model.profiles {
                assert_eq!(state.gpus[0].remaining(model, profile), profile.max_instances, "{key} {}", profile.name);
            }
        }
    }

    /// Layouts of base profiles: distinct sets of placed instances, distinct multisets of profiles, and of these the ones to
    /// which nothing can be added.
    fn count(model: &str, base: impl Fn(&Profile) -> bool) -> [usize; 4] {
        use std::collections::BTreeSet;
        let model = &models()[model];
        let profiles: Vec<&Profile> = model.profiles.iter().filter(|profile| base(profile)).collect();
        type Layout<'a> = Vec<(&'a Profile, Slot)>;
        let key = |layout: &Layout<'_>| {
            let mut key: Vec<(u32, u32)> = layout.iter().map(|(profile, slot)| (profile.id, slot.start)).collect();
            key.sort_unstable();
            key
        };
        let kinds = |key: &[(u32, u32)]| {
            let mut kinds: Vec<u32> = key.iter().map(|(profile, _)| *profile).collect();
            kinds.sort_unstable();
            kinds
        };
        let mut found: BTreeSet<Vec<(u32, u32)>> = BTreeSet::new();
        let mut full = BTreeSet::new();
        let mut open: Vec<Layout<'_>> = vec![Vec::new()];
        while let Some(layout) = open.pop() {
            let mut more = 0;
            for profile in &profiles {
                for slot in free_places(model, &layout, profile) {
                    more += 1;
                    let mut next = layout.clone();
                    next.push((profile, slot));
                    if found.insert(key(&next)) {
                        open.push(next);
                    }
                }
            }
            if more == 0 {
                full.insert(key(&layout));
            }
        }
        let multisets: BTreeSet<Vec<u32>> = found.iter().map(|key| kinds(key)).collect();
        let full_multisets: BTreeSet<Vec<u32>> = full.iter().map(|key| kinds(key)).collect();
        [found.len(), multisets.len(), full.len(), full_multisets.len()]
    }

    #[test]
    fn there_are_as_many_layouts_as_known() {
        let base = |profile: &Profile| !profile.name.contains(['+', '-']);
        for model in ["A100-40", "H200-141"] {
            let single = |profile: &Profile| base(profile) && profile.constant <= 4;
            assert_eq!(count(model, single), [297, 37, 19, 14], "{model}");
            assert_eq!(count(model, base), [722, 77, 78, 38], "{model}");
        }
        assert_eq!(count("A30-24", |profile| base(profile) && profile.constant <= 4), [25, 9, 5, 4]);
    }

    #[test]
    fn what_is_in_use_is_not_destroyed() {
        let (machine, mut state) = empty("H200-141");
        let birth = state.birth(1);
        let gpu = &mut state.gpus[0];
        let gi = gpu.create_instance(&machine.gpus[0], id("H200-141", "3g.71gb"), None).unwrap();
        assert_eq!(gpu.create_compute(&machine.gpus[0], gi, 3, None, &birth), Err(Refused::InvalidArgument));
        assert_eq!(gpu.create_compute(&machine.gpus[0], gi, 1, None, &birth), Ok(0));
        assert_eq!(gpu.create_compute(&machine.gpus[0], gi, 1, None, &birth), Err(Refused::InsufficientResources));
        assert_eq!(gpu.create_compute(&machine.gpus[0], gi, 0, None, &birth), Ok(1));
        assert_eq!(gpu.destroy_instance(gi), Err(Refused::InUse));
        assert_eq!(gpu.destroy_compute(gi, 0), Ok(()));
        assert_eq!(gpu.destroy_compute(gi, 1), Ok(()));
        assert_eq!(gpu.destroy_compute(gi, 1), Err(Refused::NotFound));
        assert_eq!(gpu.destroy_instance(gi), Ok(()));
        assert_eq!(gpu.destroy_instance(gi), Err(Refused::NotFound));
    }

    #[test]
    fn the_mode_waits_while_something_is_there() {
        let (machine, mut state) = empty("A100-80");
        let profile = id("A100-80", "1g.10gb");
        let gi = state.gpus[0].create_instance(&machine.gpus[0], profile, None).unwrap();
        assert_eq!(state.set_mode(&machine, 0, false, 1), Ok(Err(Refused::InUse)));
        assert_eq!(state.gpus[0].mig, Some((true, false)));
        assert_eq!(state.gpus[0].create_instance(&machine.gpus[0], profile, None), Err(Refused::InvalidState));
        state.gpus[0].destroy_instance(gi).unwrap();
        assert_eq!(state.set_mode(&machine, 0, false, 1), Ok(Ok(())));
        assert_eq!(state.gpus[0].create_instance(&machine.gpus[0], profile, None), Err(Refused::NotSupported));
    }

    #[test]
    fn a_reboot_keeps_the_mode_where_the_board_does() {
        for (model, kept) in [("A100-80", true), ("H200-141", false)] {
            let (machine, mut state) = empty(model);
            let first = state.gpus[0].create_instance(&machine.gpus[0], 0, None);
            assert!(first.is_ok());
            let after = state.restarted(&machine, 2);
            assert_eq!(after.gpus[0].mig, Some((kept, kept)), "{model}");
            assert!(after.gpus[0].instances.is_empty());
        }
    }
}
