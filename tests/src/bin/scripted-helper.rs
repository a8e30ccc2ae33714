//! A helper that does what a script says: for tests of what the daemon makes of its answers. It changes the simulated
//! machine's state without NVML, and promises nothing.
//!
//! The file that `SCRIPTED_HELPER` names holds the name of an error of the interface and its text, with which every
//! `Restore` is answered. `Idle` there: it says that layouts were brought about, and does nothing. Nothing there: it does
//! what it is asked.

use std::collections::BTreeSet;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};

use migperf_core::mig::layout::Layout;
use migperf_dbus::Keyed;
use migperf_dbus::error::Error;
use migperf_dbus::helper::{Changed, ComputeInstance, GpuInstance, PATH, changed};
use serde_json::json;
use sim_machine::catalog::Profile;
use sim_machine::machine::{GpuDescription, Machine};
use sim_machine::shared::{Shared, now_ns};
use sim_machine::state::{GpuState, Instance, State};
use zbus::connection::Builder;
use zbus::{Guid, OwnedFd};

/// What a GPU was like: its mode, and its instances.
type Found = (Option<(bool, bool)>, Vec<Instance>);

struct Helper {
    machine: Shared,
    found: Mutex<Option<Found>>,
}

#[tokio::main]
async fn main() {
    let stream = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().expect("a connection"));
    let machine = Shared::from_environment().expect("a simulated machine");
    let helper = Helper { machine, found: Mutex::new(None) };
    let builder = Builder::unix_stream(stream).server(Guid::generate()).p2p();
    let connection = builder.serve_at(PATH, helper).build().await.expect("a client");
    connection.closed().await;
    if let Ok(object) = connection.object_server().interface::<_, Helper>(PATH).await {
        object.get().await.put_back();
    }
}

#[zbus::interface(name = "org.migperf1.Helper")]
impl Helper {
    async fn apply_layout(
        &self,
        _gpu: &str,
        layout: &str,
        _liveness: OwnedFd,
        _options: Keyed,
    ) -> Result<Changed, Error> {
        let wanted: Layout = layout.parse().map_err(|_| Error::InvalidArgument(layout.to_owned()))?;
        let act = |machine: &Machine, state: &mut State| {
            let gpu = &mut state.gpus[0];
            let found = (gpu.mig, gpu.instances.clone());
            self.found.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(found);
            let before = uuids(gpu);
            let (mode, instances) = match &wanted {
                Layout::Off => (Some((false, false)), Vec::new()),
                Layout::On(_) => (Some((true, true)), made(&machine.gpus[0], &wanted)?),
            };
            let kept = (gpu.mig, gpu.instances.clone());
            (gpu.mig, gpu.instances) = (mode, instances);
            let told = told(&machine.gpus[0], gpu, &before, false);
            if script() == "Idle" {
                (gpu.mig, gpu.instances) = kept;
            }
            Ok(told)
        };
        self.machine.update(act).expect("the machine can be changed")
    }

    async fn restore(&self, _gpu: &str, _options: Keyed) -> Result<Changed, Error> {
        if let Some((name, text)) = script().split_once(' ') {
            return Err(match name {
                "RollbackFailed" => Error::RollbackFailed(text.to_owned()),
                "Quarantined" => Error::Quarantined(text.to_owned()),
                name => Error::Internal(format!("{name} is not in the script's language")),
            });
        }
        let before = self.machine.read(|_, state| uuids(&state.gpus[0])).expect("the machine can be read");
        self.put_back();
        let tell = |machine: &Machine, state: &State| told(&machine.gpus[0], &state.gpus[0], &before, true);
        Ok(self.machine.read(tell).expect("the machine can be read"))
    }

    async fn report(&self) -> Vec<Keyed> {
        Vec::new()
    }

    #[zbus(property(emits_changed_signal = "const"))]
    async fn version(&self) -> String {
        "scripted".to_owned()
    }
}

impl Helper {
    fn put_back(&self) {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some((mig, instances)) = found else { return };
        let put = |_: &Machine, state: &mut State| (state.gpus[0].mig, state.gpus[0].instances) = (mig, instances);
        self.machine.update(put).expect("the machine can be changed");
    }
}

fn script() -> String {
    std::env::var_os("SCRIPTED_HELPER").and_then(|file| std::fs::read_to_string(file).ok()).unwrap_or_default()
}

fn uuids(gpu: &GpuState) -> BTreeSet<String> {
    gpu.mig_devices().map(|(_, compute)| compute.uuid.clone()).collect()
}

/// New instances of a layout, as a machine that boots with them has them.
fn made(gpu: &GpuDescription, layout: &Layout) -> Result<Vec<Instance>, Error> {
    let wanted: Vec<&Profile> = layout
        .instances()
        .iter()
        .filter_map(|item| {
            let fits = |profile: &&Profile| {
                profile.name.parse().is_ok_and(|name: migperf_core::mig::profile::Profile| item.profile.matches(&name))
            };
            gpu.model().profiles.iter().filter(fits).min_by_key(|profile| profile.memory_mb)
        })
        .collect();
    let mut starts = Vec::new();
    if wanted.len() != layout.instances().len() || !place(&wanted, &mut starts) {
        return Err(Error::LayoutInfeasible(layout.to_string()));
    }
    let instances: Vec<_> =
        wanted.iter().zip(starts).map(|(profile, start)| json!({ "profile": profile.name, "start": start })).collect();
    let gpu = json!({ "model": gpu.model, "mig": "enabled", "instances": instances });
    let machine = Machine::parse(&json!({ "gpus": [gpu] }).to_string()).expect("the places are the catalog's");
    Ok(State::boot(&machine, now_ns()).gpus.remove(0).instances)
}

/// A place for each profile that overlaps no other's.
fn place(wanted: &[&Profile], starts: &mut Vec<u32>) -> bool {
    let Some(profile) = wanted.get(starts.len()) else { return true };
    for slot in &profile.placements {
        let size = |at: usize| wanted[at].placements[0].size;
        let free = |(at, start): (usize, &u32)| slot.start + slot.size <= *start || start + size(at) <= slot.start;
        if starts.iter().enumerate().all(free) {
            starts.push(slot.start);
            if place(wanted, starts) {
                return true;
            }
            starts.pop();
        }
    }
    false
}

fn told(described: &GpuDescription, gpu: &GpuState, before: &BTreeSet<String>, as_found: bool) -> Changed {
    let compute = |instance: &Instance, compute: &sim_machine::state::ComputeInstance| ComputeInstance {
        id: compute.id,
        profile: instance.device_profile(described, compute),
        uuid: compute.uuid.clone(),
    };
    let instances = gpu.instances.iter().map(|instance| GpuInstance {
        id: instance.id,
        profile: instance.profile.clone(),
        start: instance.start,
        size: instance.size,
        compute: instance.compute.iter().map(|part| compute(instance, part)).collect(),
    });
    let after = uuids(gpu);
    let texts = |texts: Vec<&String>| zbus::OwnedVariant::try_from(zbus::Variant::from(texts)).expect("texts");
    let did = Keyed::from([
        (changed::MODE_CHANGED.to_owned(), false.into()),
        (changed::REMOVED_UUIDS.to_owned(), texts(before.difference(&after).collect())),
        (changed::CREATED_UUIDS.to_owned(), texts(after.difference(before).collect())),
        (changed::STEPS.to_owned(), 1_u32.into()),
        (changed::AS_FOUND.to_owned(), as_found.into()),
    ]);
    (instances.collect(), did)
}
