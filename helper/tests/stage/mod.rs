//! A simulated machine for a test, which runs in a process of its own: a simulated NVML knows one machine for as long as it
//! is loaded.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use migperf_core::ids::GpuUuid;
use migperf_gpu::library::Nvml;
use migperf_helper::config::Config;
use migperf_helper::engine::{Engine, Order, ledger_directory};
use migperf_helper::hand::{Answer, Hand, HandError, Hands, Request, perform};
use migperf_helper::ledger::{Hold, Ledger, Storage};
use sim_machine::faults::FAULTS;
use sim_machine::files;
use sim_machine::machine::Machine;
use sim_machine::shared::{MACHINE, STATE, Shared};

/// A machine and what the product needs to see it.
pub(crate) struct Stage {
    pub(crate) library: PathBuf,
    pub(crate) shared: Shared,
    pub(crate) state: PathBuf,
    pub(crate) folder: PathBuf,
    pub(crate) gpu: GpuUuid,
}

/// Runs `test`, of the test function's name, in a process that sees the machine.
pub(crate) fn on_machine(name: &str, description: &str, test: impl FnOnce(&Stage)) {
    assert!(
        nix::unistd::geteuid().is_root(),
        "only root changes a simulated GPU, as with a real one: run this as root"
    );
    let (Some(machine), Some(state)) = (std::env::var_os(MACHINE), std::env::var_os(STATE)) else {
        sim_machine::install::build().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let machine = folder.path().join("machine.json");
        std::fs::write(&machine, description).unwrap();
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env(MACHINE, machine)
            .env(STATE, folder.path().join("state"))
            .env(FAULTS, folder.path().join("faults.json"))
            .status()
            .unwrap();
        assert!(status.success(), "{name} failed on its machine");
        // A name that is no test's would run nothing and succeed.
        assert!(folder.path().join("ran").exists(), "`{name}` is not the test's own name");
        return;
    };
    let library = sim_machine::install::build().unwrap().join("libnvidia_ml_sim.so");
    let state = PathBuf::from(state);
    let folder = state.parent().unwrap().to_owned();
    let shared = Shared::new(Machine::read(Path::new(&machine)).unwrap(), Some(state.clone()));
    // Boots it.
    shared.update(|_, _| ()).unwrap();
    let gpu = shared.machine().gpus[0].uuid(0).parse().unwrap();
    test(&Stage { library, shared, state, folder: folder.clone(), gpu });
    std::fs::write(folder.join("ran"), "").unwrap();
}

/// Makes NVML calls in this process.
pub(crate) struct LocalHands(pub(crate) PathBuf);

struct LocalHand(Nvml);

impl Hands for LocalHands {
    fn start(&self) -> Result<Box<dyn Hand>, HandError> {
        let nvml = Nvml::open(Some(&self.0)).map_err(|error| HandError::Failed(error.to_string()))?;
        Ok(Box::new(LocalHand(nvml)))
    }
}

impl Hand for LocalHand {
    fn ask(&mut self, request: &Request) -> Result<Answer, HandError> {
        perform(&self.0, request)
    }
}

/// The file system without the waits for the disk, which tens of thousands of writes can't afford.
pub(crate) struct Quick;

impl Storage for Quick {
    fn write(&self, path: &Path, bytes: &[u8]) -> std::io::Result<()> {
        let new = path.with_extension("new");
        std::fs::write(&new, bytes)?;
        std::fs::rename(&new, path)
    }

    fn remove(&self, path: &Path) -> std::io::Result<()> {
        std::fs::remove_file(path)
    }
}

impl Stage {
    pub(crate) fn config(&self) -> Config {
        Config {
            nvml: Some(self.library.clone()),
            state_directory: self.folder.join("helper"),
            runtime_directory: self.folder.join("run"),
            device_directory: files::devices(&self.state),
            capabilities_directory: files::capabilities_folder(&self.state),
            boot_id: files::boot_id(&self.state),
            driver_identity: files::driver_load(&self.state),
            device_numbers: self.numbers(),
            call_limit_seconds: 5,
            release_limit_seconds: 1,
            ..Config::default()
        }
    }

    fn numbers(&self) -> PathBuf {
        let path = self.folder.join("devices");
        std::fs::write(&path, "Character devices:\n195 nvidia\n511 nvidia-caps\n").unwrap();
        path
    }

    /// The configuration as a file.
    pub(crate) fn config_file(&self, more: &str) -> PathBuf {
        let config = self.config();
        let mut text = format!("{more}\ncall-limit-seconds = 5\nrelease-limit-seconds = 5\nidle-exit-seconds = 1\n");
        let paths = [
            ("nvml", config.nvml.as_ref().unwrap()),
            ("state-directory", &config.state_directory),
            ("runtime-directory", &config.runtime_directory),
            ("device-directory", &config.device_directory),
            ("capabilities-directory", &config.capabilities_directory),
            ("boot-id", &config.boot_id),
            ("driver-identity", &config.driver_identity),
            ("device-numbers", &config.device_numbers),
        ];
        for (key, path) in paths {
            text.push_str(&format!("{key} = \"{}\"\n", path.display()));
        }
        let path = self.folder.join("helper.toml");
        std::fs::write(&path, text).unwrap();
        path
    }

    pub(crate) fn engine(&self) -> Engine {
        self.engine_with(Arc::new(LocalHands(self.library.clone())), Arc::new(Quick))
    }

    pub(crate) fn engine_with(&self, hands: Arc<dyn Hands>, storage: Arc<dyn Storage>) -> Engine {
        let config = self.config();
        let ledger = Ledger::open(ledger_directory(&config), storage).unwrap();
        Engine::new(config, hands, ledger)
    }

    /// The layout as the simulated machine has it: an independent reader.
    pub(crate) fn layout(&self) -> String {
        self.shared
            .read(|_, state| {
                let gpu = &state.gpus[0];
                let mut instances: Vec<String> = gpu
                    .instances
                    .iter()
                    .map(|one| {
                        let compute: Vec<String> =
                            one.compute.iter().map(|part| format!("{}c@{}", part.slices, part.start)).collect();
                        format!("{}@{}:{}({})", one.profile, one.start, one.size, compute.join("+"))
                    })
                    .collect();
                instances.sort();
                format!("{:?} {}", gpu.mig, instances.join(" "))
            })
            .unwrap()
    }

    /// UUIDs of all compute instances.
    pub(crate) fn uuids(&self) -> Vec<String> {
        self.shared
            .read(|_, state| state.gpus[0].mig_devices().map(|(_, compute)| compute.uuid.clone()).collect())
            .unwrap()
    }

    /// Puts an instance there, as somebody else would.
    pub(crate) fn create(&self, profile: &str, start: u32, parts: &[u32]) {
        self.shared
            .update(|machine, state| {
                let gpu = &machine.gpus[0];
                let profile = gpu.model().profile(profile).unwrap();
                let slot = *profile.placements.iter().find(|slot| slot.start == start).unwrap();
                let id = state.gpus[0].create_instance(gpu, profile.id, Some(slot)).unwrap();
                for slices in parts {
                    let birth = state.birth(sim_machine::shared::now_ns());
                    let known = sim_machine::mig::COMPUTE_SLICES.iter().position(|known| known == slices).unwrap();
                    let part = u32::try_from(known).unwrap();
                    state.gpus[0].create_compute(gpu, id, part, None, &birth).unwrap();
                }
            })
            .unwrap();
    }

    /// Removes everything, as if nobody had been there: mode and instances.
    pub(crate) fn clear(&self, on: bool) {
        self.shared
            .update(|_, state| {
                state.gpus[0].instances.clear();
                state.gpus[0].contexts.clear();
                state.gpus[0].mig = Some((on, on));
            })
            .unwrap();
        for file in std::fs::read_dir(ledger_directory(&self.config())).into_iter().flatten() {
            std::fs::remove_file(file.unwrap().path()).unwrap();
        }
        let _ = std::fs::remove_dir_all(files::devices(&self.state).join("nvidia-caps"));
    }
}

pub(crate) fn order() -> Order {
    Order {
        hold: Hold::WhileAlive,
        replace_existing: false,
        on_behalf_of: Some(1000),
        purpose: None,
        caller: "a test".to_owned(),
    }
}

pub(crate) fn replacing() -> Order {
    Order { replace_existing: true, ..order() }
}
