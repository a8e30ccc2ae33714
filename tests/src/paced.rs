//! A daemon whose workers are paced ones, on a simulated GPU of its own: for tests of what surrounds a measurement.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use serde_json::json;
use tempfile::TempDir;

use crate::simulation::Simulation;
use crate::{Daemon, Environment, link_programs};

/// The folders of such a daemon. They outlive it, so that another can come after it.
#[derive(Debug)]
pub struct Stage {
    /// Its GPU.
    pub simulation: Simulation,
    folder: TempDir,
}

impl Stage {
    /// A stage; `worker` is the path of the program `paced-worker`, which cargo tells its tests.
    ///
    /// # Panics
    /// If a folder can't be made.
    #[must_use]
    pub fn new(worker: &str) -> Self {
        Self::on(Simulation::new(json!({})), worker)
    }

    /// A stage on a simulated machine.
    ///
    /// # Panics
    /// If a folder can't be made.
    #[must_use]
    pub fn on(simulation: Simulation, worker: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        for part in ["bin", "state"] {
            std::fs::create_dir(folder.path().join(part)).expect("a folder");
        }
        link_programs(&folder.path().join("bin"), Path::new(worker));
        Self { simulation, folder }
    }

    /// Its daemon's environment.
    #[must_use]
    pub fn environment(&self) -> Environment {
        let mut environment = self.simulation.environment();
        environment.push(("MIGPERF_BIN_DIR".to_owned(), self.folder.path().join("bin")));
        environment.push(("PACED_WORKER".to_owned(), self.fault()));
        environment.push(("SCRIPTED_HELPER".to_owned(), self.script()));
        environment
    }

    /// Its daemon's state directory.
    #[must_use]
    pub fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    fn fault(&self) -> PathBuf {
        self.folder.path().join("fault")
    }

    fn script(&self) -> PathBuf {
        self.folder.path().join("script")
    }

    /// Puts another program in the helper's place, `scripted-helper` for one; none: there is no helper.
    ///
    /// # Panics
    /// If the link can't be made.
    pub fn helper_is(&self, program: Option<&str>) {
        let link = self.folder.path().join("bin/migperf-helper");
        let _ = std::fs::remove_file(&link);
        if let Some(program) = program {
            symlink(program, link).expect("a link");
        }
    }

    /// What a scripted helper answers from now on.
    ///
    /// # Panics
    /// If the file can't be written.
    pub fn helper_does(&self, script: &str) {
        std::fs::write(self.script(), script).expect("a file");
    }

    /// How workers that start from now on break the protocol; nothing: they don't.
    ///
    /// # Panics
    /// If the file can't be written.
    pub fn workers_do(&self, fault: &str) {
        std::fs::write(self.fault(), fault).expect("a file");
    }

    /// Starts a daemon.
    pub async fn daemon(&self) -> Daemon {
        Daemon::start(&self.state(), &self.environment()).await
    }
}
