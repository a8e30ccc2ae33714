//! Which devices a process sees, by `CUDA_VISIBLE_DEVICES`. Pure.

use sim_machine::machine::Machine;
use sim_machine::state::State;

/// A device that the process sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Visible {
    /// The GPU's index.
    pub(crate) gpu: usize,
    /// GPU instance and compute instance, of a MIG device.
    pub(crate) instance: Option<(u32, u32)>,
}

/// The devices in the order of the variable.
///
/// An entry that names nothing ends the list, and so does one that is there already. Without the variable every GPU is
/// seen, of a GPU in MIG mode its first MIG device, and no other GPU beside a MIG device. A GPU in MIG mode is not seen
/// itself.
pub(crate) fn visible(machine: &Machine, state: &State, wanted: Option<&str>) -> Vec<Visible> {
    let Some(wanted) = wanted else {
        let all: Vec<Visible> = (0..machine.gpus.len()).filter_map(|gpu| ordinary(state, gpu)).collect();
        let mig = all.iter().copied().find(|device| device.instance.is_some());
        return mig.map_or(all, |device| vec![device]);
    };
    let mut devices = Vec::new();
    for entry in wanted.split(',').map(str::trim) {
        match named(machine, state, entry) {
            Some(device) if !devices.contains(&device) => devices.push(device),
            _ => break,
        }
    }
    devices
}

/// What an index means: the GPU, or the first MIG device of one in MIG mode.
fn ordinary(state: &State, gpu: usize) -> Option<Visible> {
    let gpu_state = state.gpus.get(gpu).filter(|gpu| !gpu.lost)?;
    if !gpu_state.is_partitioned() {
        return Some(Visible { gpu, instance: None });
    }
    let (gi, ci) = gpu_state.mig_devices().next()?;
    Some(Visible { gpu, instance: Some((gi.id, ci.id)) })
}

fn named(machine: &Machine, state: &State, entry: &str) -> Option<Visible> {
    if let Ok(index) = entry.parse() {
        return ordinary(state, index);
    }
    // A UUID may be cut short where it stays unambiguous; an empty entry names nothing.
    let is = |uuid: &str| entry.len() > "MIG-".len() && uuid.starts_with(entry);
    let mut found = Vec::new();
    for (gpu, (description, gpu_state)) in machine.gpus.iter().zip(&state.gpus).enumerate() {
        if gpu_state.lost {
            continue;
        }
        if is(&description.uuid(gpu)) && !gpu_state.is_partitioned() {
            found.push(Visible { gpu, instance: None });
        }
        let instances = gpu_state.mig_devices().filter(|(_, ci)| is(&ci.uuid));
        found.extend(instances.map(|(gi, ci)| Visible { gpu, instance: Some((gi.id, ci.id)) }));
    }
    match found[..] {
        [device] => Some(device),
        _ => None,
    }
}
