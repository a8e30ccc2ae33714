//! A simulated machine for one test: a folder with its description, its state, and the libraries and programs that stand in
//! for NVIDIA's.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};
use sim_machine::machine::Machine;
use sim_machine::shared::{self, Shared};
use tempfile::TempDir;

use crate::Environment;

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
        Self { folder, uuid }
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
        ]
    }

    /// The simulated NVML.
    #[must_use]
    pub fn library(&self) -> PathBuf {
        self.folder.path().join("libnvidia-ml.so.1")
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
