//! A simulated machine for one test: a folder with its description, its state, and the libraries and programs that stand in
//! for NVIDIA's.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};
use sim_machine::catalog::Slot;
use sim_machine::files::{self, Start};
use sim_machine::machine::Machine;
use sim_machine::mig::compute_profiles;
use sim_machine::shared::{self, Shared, now_ns};
use sim_machine::state::State;
use tempfile::TempDir;

use crate::layout::Placed;
use crate::{Environment, programs};

static MACHINES: AtomicU32 = AtomicU32::new(0);

/// A machine with one GPU, which has a UUID of its own: tests don't wait for each other's device.
#[derive(Debug)]
pub struct Simulation {
    folder: TempDir,
    /// The GPU's UUID.
    pub uuid: String,
}

impl Simulation {
    /// A machine with an H200 that `changes` describe further, as [`sim_machine::machine`] documents.
    ///
    /// # Panics
    /// If the simulators can't be built or the description is wrong.
    #[must_use]
    pub fn new(changes: Value) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let number = MACHINES.fetch_add(1, Ordering::Relaxed);
        let uuid = format!("GPU-{:08x}-0000-4000-8000-{number:012x}", std::process::id());
        let mut gpu = json!({ "model": "H200-141", "uuid": uuid });
        for (key, value) in changes.as_object().into_iter().flatten() {
            gpu[key] = value.clone();
        }
        let description = json!({ "gpus": [gpu] }).to_string();
        Machine::parse(&description).expect("the description is right");
        std::fs::write(folder.path().join("machine.json"), description).expect("a file");
        sim_machine::install::install(folder.path()).expect("the simulators are built");
        let simulation = Self { folder, uuid };
        simulation.configure_helper();
        // Boots it.
        simulation.machine().update(|_, _| ()).expect("the machine starts");
        simulation
    }

    /// A configuration for the root helper on this machine.
    fn configure_helper(&self) {
        let here = |name: &str| self.folder.path().join(name);
        std::fs::write(here("devices"), "Character devices:\n195 nvidia\n511 nvidia-caps\n").expect("a file");
        let state = here("state");
        let lines = [
            ("nvml", here("libnvidia-ml.so.1")),
            ("mps-control", here("nvidia-cuda-mps-control")),
            ("launcher", programs().join("migperf-worker")),
            ("state-directory", here("helper")),
            ("runtime-directory", here("run")),
            ("device-directory", files::devices(&state)),
            ("capabilities-directory", files::capabilities_folder(&state)),
            ("boot-id", files::boot_id(&state)),
            ("driver-identity", files::driver_load(&state)),
            ("device-numbers", here("devices")),
        ];
        let text: String = lines.iter().map(|(key, path)| format!("{key} = \"{}\"\n", path.display())).collect();
        std::fs::write(here("helper.toml"), text).expect("a file");
    }

    /// Restarts the machine. Processes are the caller's to end before.
    ///
    /// # Panics
    /// If its state can't be written.
    pub fn reboot(&self) {
        self.machine().restart(Start::Boot).expect("the machine starts");
    }

    /// What another manager of MIG does at boot: the mode is on, and these instances are there, with new identities.
    ///
    /// # Panics
    /// If they can't be.
    pub fn divide(&self, instances: &BTreeSet<Placed>) {
        let divide = |machine: &Machine, state: &mut State| {
            state.set_mode(machine, 0, true, std::process::id()).expect("a mode").expect("an idle GPU");
            for Placed { profile, start, size, compute } in instances {
                let (gpu, birth) = (&machine.gpus[0], state.birth(now_ns()));
                let catalog = gpu.model().profile(profile).expect("a profile of this model");
                let place = Slot { start: *start, size: *size };
                let id = state.gpus[0].create_instance(gpu, catalog.id, Some(place)).expect("a place");
                for slices in compute {
                    let parts = compute_profiles(catalog);
                    let (part, _) = parts.iter().find(|(_, known)| known == slices).expect("a part");
                    state.gpus[0].create_compute(gpu, id, *part, None, &birth).expect("room");
                }
            }
        };
        self.machine().update(divide).expect("the machine can be changed");
    }

    /// What a daemon's environment must hold to be on this machine.
    #[must_use]
    pub fn environment(&self) -> Environment {
        let file = |name: &str| self.folder.path().join(name);
        vec![
            ("MIGPERF_NVML".to_owned(), self.library()),
            ("MIGPERF_CUDA_DIRECTORY".to_owned(), self.folder.path().to_owned()),
            ("MIGPERF_MPS_CONTROL".to_owned(), file("nvidia-cuda-mps-control")),
            (shared::MACHINE.to_owned(), file("machine.json")),
            (shared::STATE.to_owned(), file("state")),
            ("MIGPERF_HELPER_CONFIG".to_owned(), file("helper.toml")),
        ]
    }

    /// The simulated NVML.
    #[must_use]
    pub fn library(&self) -> PathBuf {
        self.folder.path().join("libnvidia-ml.so.1")
    }

    /// The device file of its GPU.
    #[must_use]
    pub fn device(&self) -> PathBuf {
        files::devices(&self.folder.path().join("state")).join("nvidia0")
    }

    /// The machine itself, to look at it or to change what goes on there.
    ///
    /// # Panics
    /// If its description is gone.
    #[must_use]
    pub fn machine(&self) -> Shared {
        let machine = Machine::read(&self.folder.path().join("machine.json")).expect("a description");
        Shared::new(machine, Some(self.folder.path().join("state")))
    }
}
