//! From what is there to what is wanted, one step at a time: the next step follows from what a look shows and nothing
//! else, so that a step which silently did nothing comes again, and whoever comes after a crash goes on.

use migperf_core::device::MigMode;
use migperf_core::mig::offer::Placement;
use migperf_core::mig::profile::Profile;
use migperf_gpu::layout::{ComputeInstance, Division, GpuInstance};

use crate::ledger::{Entry, Step, is_on};

/// What a GPU is to become. Instances that nobody mentions and that are not ours to destroy stay beside it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// MIG on.
    pub on: bool,
    /// GPU instances, each at its place.
    pub instances: Vec<TargetGpu>,
}

/// A wanted GPU instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetGpu {
    /// Its profile's id.
    pub profile_id: u32,
    /// Its profile.
    pub profile: Profile,
    /// Its place.
    pub placement: Placement,
    /// Its compute instances.
    pub compute: Vec<TargetPart>,
}

/// A wanted compute instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetPart {
    /// Its profile, as devices name it.
    pub profile: Profile,
    /// Its profile's id, where it is known.
    pub profile_id: Option<u32>,
    /// Its place, where that matters.
    pub placement: Option<Placement>,
}

impl TargetGpu {
    /// The same as an instance that exists or existed.
    #[must_use]
    pub fn like(gpu: &GpuInstance) -> Self {
        Self {
            profile_id: gpu.profile_id,
            profile: gpu.profile.clone(),
            placement: gpu.placement,
            compute: gpu.compute.iter().map(TargetPart::like).collect(),
        }
    }

    /// Whether an instance is of this profile and at this place, however it is divided.
    #[must_use]
    pub fn is(&self, gpu: &GpuInstance) -> bool {
        (self.profile_id, self.placement) == (gpu.profile_id, gpu.placement)
    }

    /// Whether an instance is so, and divided so.
    #[must_use]
    pub fn is_reached(&self, gpu: &GpuInstance) -> bool {
        self.is(gpu) && missing(self, gpu).is_empty() && extra(self, gpu).is_empty()
    }
}

impl TargetPart {
    fn like(compute: &ComputeInstance) -> Self {
        Self {
            profile: compute.profile.clone(),
            profile_id: Some(compute.profile_id),
            placement: Some(compute.placement),
        }
    }

    fn is(&self, compute: &ComputeInstance) -> bool {
        self.profile == compute.profile
            && self.profile_id.is_none_or(|id| id == compute.profile_id)
            && self.placement.is_none_or(|at| at == compute.placement)
    }
}

impl Target {
    /// What is there.
    #[must_use]
    pub fn like(division: &Division) -> Self {
        Self { on: is_on(division.mode), instances: division.instances.iter().map(TargetGpu::like).collect() }
    }

    /// Whether a GPU is so; others beside it don't matter.
    #[must_use]
    pub fn is_reached(&self, now: &Division) -> bool {
        let mode = if self.on { now.mode == MigMode::Enabled } else { !is_on(now.mode) && !is_pending(now.mode) };
        mode && self.instances.iter().all(|wanted| now.instances.iter().any(|gpu| wanted.is_reached(gpu)))
    }
}

/// Whether a mode waits for a reset.
#[must_use]
pub fn is_pending(mode: MigMode) -> bool {
    matches!(mode, MigMode::Pending { .. })
}

/// For each wanted part the index of the compute instance that serves it, each once; those with places choose first.
fn serve(wanted: &TargetGpu, gpu: &GpuInstance) -> Vec<Option<usize>> {
    let mut taken = vec![false; gpu.compute.len()];
    let mut served = vec![None; wanted.compute.len()];
    let mut order: Vec<usize> = (0..wanted.compute.len()).collect();
    order.sort_by_key(|at| wanted.compute[*at].placement.is_none());
    for at in order {
        let free = (0..gpu.compute.len()).find(|index| !taken[*index] && wanted.compute[at].is(&gpu.compute[*index]));
        if let Some(index) = free {
            taken[index] = true;
            served[at] = Some(index);
        }
    }
    served
}

fn missing<'w>(wanted: &'w TargetGpu, gpu: &GpuInstance) -> Vec<&'w TargetPart> {
    let served = serve(wanted, gpu);
    wanted.compute.iter().zip(served).filter(|(_, served)| served.is_none()).map(|(part, _)| part).collect()
}

fn extra<'g>(wanted: &TargetGpu, gpu: &'g GpuInstance) -> Vec<&'g ComputeInstance> {
    let served = serve(wanted, gpu);
    (0..gpu.compute.len()).filter(|index| !served.contains(&Some(*index))).map(|index| &gpu.compute[index]).collect()
}

fn destroy(gpu: &GpuInstance, compute: &ComputeInstance) -> Step {
    Step::DestroyCompute { gpu_instance: gpu.id, id: compute.id, uuid: compute.uuid.clone() }
}

/// What is to be done next; none when nothing is left that may be done. All destroys come before all creates.
#[must_use]
pub fn next(
    target: &Target,
    now: &Division,
    may_go: &dyn Fn(&GpuInstance) -> bool,
    may_part: &dyn Fn(&ComputeInstance) -> bool,
) -> Option<Step> {
    match now.mode {
        MigMode::Unsupported => return None,
        // Nothing may be created while a change waits: it is carried out, or taken back.
        MigMode::Pending { .. } => return Some(Step::SetMode(target.on)),
        MigMode::Disabled => return target.on.then_some(Step::SetMode(true)),
        MigMode::Enabled => {}
    }
    let mut open: Vec<&TargetGpu> = target.instances.iter().collect();
    let mut pairs: Vec<(&TargetGpu, &GpuInstance)> = Vec::new();
    let mut beside: Vec<&GpuInstance> = Vec::new();
    for gpu in &now.instances {
        match open.iter().position(|wanted| wanted.is(gpu)) {
            Some(at) => pairs.push((open.swap_remove(at), gpu)),
            None => beside.push(gpu),
        }
    }
    if let Some(gpu) = beside.into_iter().find(|gpu| may_go(gpu)) {
        return Some(match gpu.compute.first() {
            Some(compute) => destroy(gpu, compute),
            None => Step::DestroyGpu { id: gpu.id, profile: gpu.profile.clone(), placement: gpu.placement },
        });
    }
    for (wanted, gpu) in &pairs {
        if let Some(compute) = extra(wanted, gpu).into_iter().find(|compute| may_part(compute)) {
            return Some(destroy(gpu, compute));
        }
    }
    if !target.on {
        return now.instances.is_empty().then_some(Step::SetMode(false));
    }
    // An instance is filled before the next is made; the largest part first, which has the fewest places.
    for (wanted, gpu) in &pairs {
        if let Some(part) = missing(wanted, gpu).into_iter().max_by_key(|part| part.profile.compute_slices()) {
            return Some(Step::CreateCompute {
                gpu_instance: gpu.id,
                profile: part.profile.clone(),
                profile_id: part.profile_id,
                placement: part.placement,
            });
        }
    }
    let wanted = target.instances.iter().find(|wanted| open.contains(wanted))?;
    Some(Step::CreateGpu {
        profile_id: wanted.profile_id,
        profile: wanted.profile.clone(),
        placement: wanted.placement,
    })
}

/// The way back from an entry: what the GPU is to become again, and what can't or need not be as it was because somebody
/// else changed it.
#[must_use]
pub fn way_back(entry: &Entry, now: &Division) -> (Target, Vec<String>) {
    let mut left = Vec::new();
    let foreign: Vec<&GpuInstance> =
        now.instances.iter().filter(|gpu| !entry.owns(gpu) && !entry.was_found(gpu)).collect();
    let mut instances = Vec::new();
    for found in &entry.found.instances {
        let shown = found.as_written();
        let wanted = TargetGpu::like(found);
        let there = now.instances.iter().find(|gpu| wanted.is(gpu));
        let ours = entry.gone.contains(&found.id);
        match there {
            Some(gpu) if entry.was_found(gpu) || entry.owns(gpu) => {
                // What somebody else removed from it or put into it is not ours to put back or take out.
                let mut wanted = wanted;
                wanted.compute.clear();
                for compute in &found.compute {
                    let kept = gpu.compute.iter().any(|there| there.uuid == compute.uuid);
                    if kept || ours || entry.gone_compute.contains(&compute.uuid) {
                        wanted.compute.push(TargetPart::like(compute));
                    } else {
                        left.push(format!("compute instance {} of {shown} was removed by somebody else", compute.uuid));
                    }
                }
                instances.push(wanted);
            }
            // Somebody made the same again: it is as it was.
            Some(_) => {}
            None if !ours => left.push(format!("{shown} was removed by somebody else")),
            None => match foreign.iter().find(|gpu| overlap(gpu.placement, found.placement)) {
                Some(gpu) => {
                    left.push(format!("{shown} can't come back: somebody else made {} there", gpu.as_written()));
                }
                None => instances.push(wanted),
            },
        }
    }
    let mut on = entry.found_on();
    if !on && !foreign.is_empty() {
        let shown: Vec<String> = foreign.iter().map(|gpu| gpu.as_written().to_string()).collect();
        left.push(format!("MIG stays on: somebody else made {}", shown.join(", ")));
        on = true;
    }
    (Target { on, instances }, left)
}

fn overlap(a: Placement, b: Placement) -> bool {
    a.start < b.start.saturating_add(b.size) && b.start < a.start.saturating_add(a.size)
}

/// What an administrator would type to bring a GPU from what is there to what was found. Numbers of instances are those
/// of now.
#[must_use]
pub fn commands(entry: &Entry, now: Option<&Division>) -> Vec<String> {
    let index = entry.found.index;
    let Some(now) = now else {
        return vec![
            format!("nvidia-smi -i {index} -q -d MIG"),
            "nvidia-smi mig -lgi; nvidia-smi mig -lci".to_owned(),
            format!("# it was: {}", entry.found),
        ];
    };
    let (target, _) = way_back(entry, now);
    let mut now = now.clone();
    let mut commands = Vec::new();
    // Played on a copy: each step's effect is what a look would show.
    while let Some(step) = next(&target, &now, &|gpu| entry.owns(gpu), &|compute| entry.owns_compute(compute)) {
        commands.push(typed(index, &step));
        if !play(&mut now, &step) || commands.len() > 200 {
            break;
        }
    }
    commands
}

fn typed(index: u32, step: &Step) -> String {
    match step {
        Step::SetMode(on) => format!("nvidia-smi -i {index} -mig {}", u32::from(*on)),
        Step::DestroyCompute { gpu_instance, id, .. } => {
            format!("nvidia-smi mig -i {index} -dci -gi {gpu_instance} -ci {id}")
        }
        Step::DestroyGpu { id, .. } => format!("nvidia-smi mig -i {index} -dgi -gi {id}"),
        Step::CreateGpu { profile_id, placement, .. } => {
            format!("nvidia-smi mig -i {index} -cgi {profile_id}:{}", placement.start)
        }
        Step::CreateCompute { gpu_instance, profile, .. } if *gpu_instance > NO_NUMBER => {
            format!("nvidia-smi mig -i {index} -cci {profile} -gi <the number that -cgi printed>")
        }
        Step::CreateCompute { gpu_instance, profile, .. } => {
            format!("nvidia-smi mig -i {index} -cci {profile} -gi {gpu_instance}")
        }
    }
}

/// Above it are numbers of instances that only [`play`] made.
const NO_NUMBER: u32 = u32::MAX - 1_000;

/// The effect of a step on a look; instances that it makes have no number yet. Says whether there was one.
fn play(now: &mut Division, step: &Step) -> bool {
    match step {
        Step::SetMode(on) => {
            let mode = MigMode::from_modes(*on, *on);
            std::mem::replace(&mut now.mode, mode) != mode
        }
        Step::DestroyCompute { uuid, .. } => {
            let before = now.instances.iter().map(|gpu| gpu.compute.len()).sum::<usize>();
            now.instances.iter_mut().for_each(|gpu| gpu.compute.retain(|compute| compute.uuid != *uuid));
            before != now.instances.iter().map(|gpu| gpu.compute.len()).sum::<usize>()
        }
        Step::DestroyGpu { id, .. } => {
            let before = now.instances.len();
            now.instances.retain(|gpu| gpu.id != *id);
            before != now.instances.len()
        }
        Step::CreateGpu { profile_id, profile, placement } => {
            now.instances.push(GpuInstance {
                id: u32::MAX - u32::try_from(now.instances.len()).unwrap_or(0),
                profile_id: *profile_id,
                profile: profile.clone(),
                placement: *placement,
                compute: Vec::new(),
            });
            true
        }
        Step::CreateCompute { gpu_instance, profile, profile_id, placement } => {
            let Some(gpu) = now.instances.iter_mut().find(|gpu| gpu.id == *gpu_instance) else { return false };
            let number = gpu.compute.len();
            let uuid = format!("MIG-00000000-0000-0000-0000-{number:012x}");
            let Ok(uuid) = uuid.parse() else { return false };
            gpu.compute.push(ComputeInstance {
                id: u32::MAX,
                profile_id: profile_id.unwrap_or(0),
                profile: profile.clone(),
                placement: placement.unwrap_or(Placement { start: 0, size: profile.compute_slices() }),
                uuid,
            });
            true
        }
    }
}
