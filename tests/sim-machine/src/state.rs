//! What goes on on a simulated machine: instances, contexts, and the power and activity that follow from them.
//!
//! Load is constant between two changes, so power and activity are summed up at each change and extrapolated from it.

use serde::{Deserialize, Serialize};

use crate::catalog::{Profile, Slot};
use crate::machine::{GpuDescription, Machine, MigSetting};
use crate::mig::compute_starts;
use crate::process::Process;

/// The energy counter steps this often, in nanoseconds (seen on an H200).
pub const ENERGY_STEP_NS: u64 = 100_000_000;

/// The machine since it booted.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct State {
    /// In the order of the description.
    pub gpus: Vec<GpuState>,
    /// NVML calls do not return while this is set.
    pub stalled: bool,
    /// Processes that have NVML open.
    pub clients: Vec<Client>,
    /// Compute instances that were ever created.
    pub(crate) births: u64,
}

/// A process that has NVML open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Client {
    /// Whose it is.
    pub process: Process,
}

/// One GPU.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct GpuState {
    /// Fell off the bus.
    pub lost: bool,
    /// MIG mode now and after a reset; absent where the driver has none.
    pub mig: Option<(bool, bool)>,
    /// GPU instances.
    pub instances: Vec<Instance>,
    /// Contexts of living processes.
    pub contexts: Vec<Context>,
    meter: Meter,
}

/// A GPU instance.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Instance {
    /// The id by which NVML knows it.
    pub id: u32,
    /// The profile's name.
    pub profile: String,
    /// First memory slice.
    pub start: u32,
    /// Memory slices.
    pub size: u32,
    /// Its compute instances: the MIG devices.
    pub compute: Vec<ComputeInstance>,
    busy_ns: f64,
}

/// A compute instance.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ComputeInstance {
    /// The id within the GPU instance.
    pub id: u32,
    /// Compute slices.
    pub slices: u32,
    /// The first of them within the GPU instance.
    pub start: u32,
    /// `MIG-…`.
    pub uuid: String,
}

/// What a process is to a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// Has a context of its own.
    Compute,
    /// Works through an MPS server.
    MpsClient,
    /// Is one.
    MpsServer,
}

/// A context.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Context {
    /// Whose it is.
    pub process: Process,
    /// What the process is.
    pub role: Role,
    /// GPU instance and compute instance ids, with MIG.
    pub instance: Option<(u32, u32)>,
    /// Frame buffer, MiB.
    pub memory_mb: u64,
}

/// Sums up to the last change.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Meter {
    since_ns: u64,
    energy_mj: f64,
    /// The counter at the last step before `since_ns`.
    shown_mj: f64,
    busy_ns: f64,
}

impl State {
    /// A machine that has just started.
    #[must_use]
    pub fn boot(machine: &Machine, now_ns: u64) -> Self {
        let gpus = machine.gpus.iter().enumerate().map(|(index, gpu)| GpuState::boot(gpu, index, now_ns)).collect();
        Self { gpus, stalled: false, clients: Vec::new(), births: 0 }
    }

    /// Whether a context or an open NVML belongs to a process that has ended.
    #[must_use]
    pub fn has_dead(&self) -> bool {
        let contexts = self.gpus.iter().flat_map(|gpu| &gpu.contexts).map(|context| context.process);
        contexts.chain(self.clients.iter().map(|client| client.process)).any(|process| !process.is_alive())
    }

    /// Brings the sums up to now and forgets ended processes: to be called before every change.
    pub fn advance(&mut self, machine: &Machine, now_ns: u64) {
        self.clients.retain(|client| client.process.is_alive());
        for (gpu, description) in self.gpus.iter_mut().zip(&machine.gpus) {
            gpu.advance(description, now_ns);
            gpu.contexts.retain(|context| context.process.is_alive());
        }
    }
}

/// A UUID's text that depends on `seed` alone.
#[must_use]
pub fn uuid(seed: &str) -> String {
    // FNV-1a over the seed, twice with different starts: well spread, and the same in every process.
    let hash = |start: u64| {
        seed.bytes()
            .fold(start, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
            .to_be_bytes()
    };
    let bytes: Vec<u8> = [hash(0xcbf2_9ce4_8422_2325), hash(0x8422_2325_cbf2_9ce4)].concat();
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

impl GpuDescription {
    /// The GPU's UUID.
    #[must_use]
    pub fn uuid(&self, index: usize) -> String {
        self.uuid.clone().unwrap_or_else(|| format!("GPU-{}", uuid(&format!("{} {index}", self.model))))
    }
}

impl GpuState {
    fn boot(gpu: &GpuDescription, index: usize, now_ns: u64) -> Self {
        let model = gpu.model();
        let instances = gpu.instances.iter().map(|described| {
            let slot = described.slot(model).expect("checked when the description was read");
            let profile = model.profile(&described.profile).expect("checked when the description was read");
            let id = model.instance_id(slot);
            let compute = described.compute.clone().unwrap_or_else(|| vec![profile.compute_slices]);
            let starts = compute_places(profile.compute_slices, &compute);
            let mut instance = Instance::new(id, profile, slot);
            for ((ci, slices), start) in (0..).zip(compute).zip(starts) {
                let seed = format!("{} gi {id} ci {ci} of {now_ns}", gpu.uuid(index));
                instance.compute.push(ComputeInstance { id: ci, slices, start, uuid: format!("MIG-{}", uuid(&seed)) });
            }
            instance
        });
        Self {
            lost: false,
            mig: match gpu.mig {
                MigSetting::Disabled => Some((false, false)),
                MigSetting::Enabled => Some((true, true)),
                MigSetting::Pending => Some((false, true)),
                MigSetting::Unsupported => None,
            },
            instances: instances.collect(),
            contexts: Vec::new(),
            meter: Meter { since_ns: now_ns, energy_mj: 2.5e6, shown_mj: 2.5e6, busy_ns: 0.0 },
        }
    }

    /// Whether MIG is on now.
    #[must_use]
    pub fn is_partitioned(&self) -> bool {
        self.mig.is_some_and(|(current, _)| current)
    }

    /// The GPU instance of this id.
    #[must_use]
    pub fn instance(&self, id: u32) -> Option<&Instance> {
        self.instances.iter().find(|instance| instance.id == id)
    }

    /// Every MIG device in NVML's order.
    pub fn mig_devices(&self) -> impl Iterator<Item = (&Instance, &ComputeInstance)> {
        self.instances.iter().flat_map(|instance| instance.compute.iter().map(move |compute| (instance, compute)))
    }

    /// The share of time in which the engine of a GPU instance, or of the whole GPU, is active: one worker leaves a
    /// tenth of it idle, a second a tenth of that.
    #[must_use]
    pub fn load(&self, instance: Option<u32>) -> f64 {
        let workers = self.contexts.iter().filter(|context| context.role != Role::MpsServer);
        let workers = workers.filter(|context| context.instance.map(|(gi, _)| gi) == instance).count();
        1.0 - 0.1_f64.powi(i32::try_from(workers).unwrap_or(i32::MAX))
    }

    /// The load of the whole GPU, its instances by their share of it.
    #[must_use]
    pub fn total_load(&self, gpu: &GpuDescription) -> f64 {
        if !self.is_partitioned() {
            return self.load(None);
        }
        let model = gpu.model();
        let share = |instance: &Instance| {
            let slices = model.profile(&instance.profile).map_or(0, |profile| profile.compute_slices);
            f64::from(slices) / f64::from(model.compute_slices)
        };
        self.instances.iter().map(|instance| share(instance) * self.load(Some(instance.id))).sum()
    }

    /// Power now, in milliwatts.
    #[must_use]
    pub fn power_mw(&self, gpu: &GpuDescription) -> u32 {
        let watts = gpu.idle_watts + (gpu.busy_watts - gpu.idle_watts) * self.total_load(gpu);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "watts of one GPU")]
        let milliwatts = (watts * 1e3) as u32;
        milliwatts
    }

    /// The energy counter in millijoules: it stands still between steps.
    #[must_use]
    pub fn energy_mj(&self, gpu: &GpuDescription, now_ns: u64) -> u64 {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "positive, and small for centuries"
        )]
        let shown = self.energy_at_step(gpu, now_ns) as u64;
        shown
    }

    fn energy_at_step(&self, gpu: &GpuDescription, now_ns: u64) -> f64 {
        let step = now_ns / ENERGY_STEP_NS * ENERGY_STEP_NS;
        if step < self.meter.since_ns {
            return self.meter.shown_mj;
        }
        self.meter.energy_mj + f64::from(self.power_mw(gpu)) * seconds(step - self.meter.since_ns)
    }

    /// Nanoseconds of activity since boot of a GPU instance or of the whole GPU; absent where there is none such.
    #[must_use]
    pub fn busy_ns(&self, gpu: &GpuDescription, instance: Option<u32>, now_ns: u64) -> Option<f64> {
        let (sum, load) = match instance {
            None => (self.meter.busy_ns, self.total_load(gpu)),
            Some(id) => (self.instance(id)?.busy_ns, self.load(Some(id))),
        };
        Some(sum + load * seconds(now_ns.saturating_sub(self.meter.since_ns)) * 1e9)
    }

    /// Frame buffer in use by everyone, MiB, of a GPU instance or of the whole GPU.
    #[must_use]
    pub fn memory_used_mb(&self, gpu: &GpuDescription, instance: Option<u32>) -> u64 {
        let contexts = self.contexts.iter().filter(|context| match instance {
            None => true,
            Some(id) => context.instance.is_some_and(|(gi, _)| gi == id),
        });
        let foreign = if instance.is_none() { gpu.processes.iter().map(|process| process.memory_mb).sum() } else { 0 };
        contexts.map(|context| context.memory_mb).sum::<u64>() + foreign
    }

    fn advance(&mut self, gpu: &GpuDescription, now_ns: u64) {
        let shown_mj = self.energy_at_step(gpu, now_ns);
        let span = seconds(now_ns.saturating_sub(self.meter.since_ns));
        let loads: Vec<f64> = self.instances.iter().map(|instance| self.load(Some(instance.id))).collect();
        self.meter = Meter {
            since_ns: now_ns,
            energy_mj: self.meter.energy_mj + f64::from(self.power_mw(gpu)) * span,
            shown_mj,
            busy_ns: self.meter.busy_ns + self.total_load(gpu) * span * 1e9,
        };
        for (instance, load) in self.instances.iter_mut().zip(loads) {
            instance.busy_ns += load * span * 1e9;
        }
    }
}

/// Where compute instances of so many slices lie together: the largest are placed first.
fn compute_places(whole: u32, slices: &[u32]) -> Vec<u32> {
    let mut order: Vec<usize> = (0..slices.len()).collect();
    order.sort_by_key(|at| std::cmp::Reverse(slices[*at]));
    let mut places = vec![0; slices.len()];
    let mut taken: Vec<(u32, u32)> = Vec::new();
    for at in order {
        let free = |start: &u32| taken.iter().all(|(from, to)| start + slices[at] <= *from || *to <= *start);
        places[at] = compute_starts(whole, slices[at]).into_iter().find(free).unwrap_or(0);
        taken.push((places[at], places[at] + slices[at]));
    }
    places
}

impl ComputeInstance {
    /// Its compute slices.
    #[must_use]
    pub fn slot(&self) -> Slot {
        Slot { start: self.start, size: self.slices }
    }
}

impl Instance {
    pub(crate) fn new(id: u32, profile: &Profile, slot: Slot) -> Self {
        let (profile, compute) = (profile.name.clone(), Vec::new());
        Self { id, profile, start: slot.start, size: slot.size, compute, busy_ns: 0.0 }
    }

    /// Its memory slices.
    #[must_use]
    pub fn slot(&self) -> Slot {
        Slot { start: self.start, size: self.size }
    }

    /// Its profile in the catalog.
    #[must_use]
    pub fn catalog<'a>(&self, gpu: &'a GpuDescription) -> Option<&'a Profile> {
        gpu.model().profile(&self.profile)
    }

    /// Multiprocessors of one of its compute instances.
    #[must_use]
    pub fn multiprocessors(&self, gpu: &GpuDescription, compute: &ComputeInstance) -> u32 {
        let profile = self.catalog(gpu);
        let (sm, slices) = profile.map_or((0, 1), |profile| (profile.sm_count.unwrap_or(0), profile.compute_slices));
        sm * compute.slices / slices.max(1)
    }

    /// A compute instance's profile as the device names it: `3g.71gb`, or `1c.3g.71gb` for a part.
    #[must_use]
    pub fn device_profile(&self, gpu: &GpuDescription, compute: &ComputeInstance) -> String {
        match self.catalog(gpu) {
            Some(profile) if profile.compute_slices != compute.slices => {
                format!("{}c.{}", compute.slices, self.profile)
            }
            _ => self.profile.clone(),
        }
    }
}

fn seconds(ns: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "spans since boot are exact in a double")]
    let ns = ns as f64;
    ns / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn worker() -> Context {
        Context { process: Process::current(), role: Role::Compute, instance: None, memory_mb: 500 }
    }

    #[test]
    fn the_energy_counter_steps_and_never_goes_back() {
        let machine = Machine::plain();
        let gpu = &machine.gpus[0];
        let mut state = State::boot(&machine, 0);
        assert_eq!(state.gpus[0].energy_mj(gpu, 99 * MS), 2_500_000);
        assert_eq!(state.gpus[0].energy_mj(gpu, 100 * MS), 2_508_000);
        assert_eq!(state.gpus[0].energy_mj(gpu, 199 * MS), 2_508_000);
        let mut last = 0;
        for ms in 200..2_000 {
            // Changes inside and at the edges of steps.
            if ms % 37 == 0 {
                state.advance(&machine, ms * MS);
                if ms % 2 == 0 { state.gpus[0].contexts.push(worker()) } else { state.gpus[0].contexts.clear() }
            }
            let now = state.gpus[0].energy_mj(gpu, ms * MS);
            assert!(now >= last, "{ms}");
            assert!(now == last || ms % 100 == 0 || last == 0, "{ms}: stepped off its beat");
            last = now;
        }
        // Between idle all the time and busy all the time.
        assert!((2_500_000 + 80 * 1_999..2_500_000 + 500 * 1_999).contains(&last), "{last}");
    }

    #[test]
    fn load_moves_power_and_activity() {
        let machine = Machine::plain();
        let gpu = &machine.gpus[0];
        let mut state = State::boot(&machine, 0);
        assert_eq!(state.gpus[0].power_mw(gpu), 80_000);
        state.advance(&machine, 1_000 * MS);
        state.gpus[0].contexts.push(worker());
        assert_eq!(state.gpus[0].power_mw(gpu), 458_000);
        let busy = state.gpus[0].busy_ns(gpu, None, 2_000 * MS).unwrap();
        assert!((busy - 0.9e9).abs() < 1.0, "{busy}");
        assert_eq!(state.gpus[0].memory_used_mb(gpu, None), 500);
    }

    #[test]
    fn instances_exist_at_boot_with_uuids_of_this_boot() {
        let machine = Machine::parse(
            r#"{ "gpus": [ { "model": "H200-141", "mig": "enabled", "instances": [
                { "profile": "3g.71gb", "start": 4, "compute": [1, 2] }, { "profile": "1g.18gb", "start": 0 } ] } ] }"#,
        )
        .unwrap();
        let gpu = &machine.gpus[0];
        let first = State::boot(&machine, 1);
        let devices: Vec<_> = first.gpus[0]
            .mig_devices()
            .map(|(gi, ci)| (gi.id, ci.id, gi.device_profile(gpu, ci), gi.multiprocessors(gpu, ci)))
            .collect();
        let expected = [(2, 0, "1c.3g.71gb", 20), (2, 1, "2c.3g.71gb", 40), (7, 0, "1g.18gb", 16)];
        assert_eq!(devices, expected.map(|(gi, ci, name, sm)| (gi, ci, name.to_owned(), sm)));
        let uuids = |state: &State| state.gpus[0].mig_devices().map(|(_, ci)| ci.uuid.clone()).collect::<Vec<_>>();
        assert_eq!(uuids(&first), uuids(&State::boot(&machine, 1)));
        assert_ne!(uuids(&first), uuids(&State::boot(&machine, 2)));
    }
}
