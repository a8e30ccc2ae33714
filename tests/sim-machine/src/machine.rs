//! The description of a simulated machine: a JSON file with strict keys.
//!
//! ```json
//! { "gpus": [ { "model": "H200-141", "mig": "enabled", "instances": [ { "profile": "3g.71gb", "start": 0 } ] } ] }
//! ```

use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::catalog::{Model, Slot, models};

/// A machine: its driver and its GPUs.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Machine {
    /// The release that the driver pretends to be; its version says SIMULATED after it.
    #[serde(default = "release")]
    pub driver: String,
    /// 13000 is CUDA 13.0.
    #[serde(default = "cuda")]
    pub cuda: u32,
    /// In NVML's order.
    #[serde(default)]
    pub gpus: Vec<GpuDescription>,
}

fn release() -> String {
    "580.159.04".to_owned()
}

fn cuda() -> u32 {
    13_000
}

/// One GPU and how it is set up.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct GpuDescription {
    /// A key of the catalog.
    pub model: String,
    /// `GPU-…`; made from the index if not given.
    #[serde(default)]
    pub uuid: Option<String>,
    /// The MIG mode at boot.
    #[serde(default)]
    pub mig: MigSetting,
    /// GPU instances that exist at boot.
    #[serde(default)]
    pub instances: Vec<InstanceDescription>,
    /// `default`, `exclusive-process` or `prohibited`.
    #[serde(default)]
    pub compute_mode: ComputeSetting,
    /// NVML's number: 0 bare metal, 1 passed through, 2 vGPU, 3 and 4 hosts.
    #[serde(default)]
    pub virtualization: u32,
    /// Other people's processes, which never end.
    #[serde(default)]
    pub processes: Vec<ProcessDescription>,
    /// Watts without work.
    #[serde(default = "idle_watts")]
    pub idle_watts: f64,
    /// Watts at full load.
    #[serde(default = "busy_watts")]
    pub busy_watts: f64,
    /// What CUDA gets wrong about this GPU and its instances.
    #[serde(default)]
    pub lies: Lies,
}

fn idle_watts() -> f64 {
    80.0
}

fn busy_watts() -> f64 {
    500.0
}

/// A MIG mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MigSetting {
    /// Off.
    #[default]
    Disabled,
    /// On.
    Enabled,
    /// Off, and on after a reset.
    Pending,
    /// The driver answers that there is none.
    Unsupported,
}

/// A compute mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ComputeSetting {
    /// Any number of processes.
    #[default]
    Default,
    /// One process.
    ExclusiveProcess,
    /// None.
    Prohibited,
}

/// A GPU instance.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct InstanceDescription {
    /// Such as `1g.18gb`.
    pub profile: String,
    /// The first memory slice.
    pub start: u32,
    /// Slices of each compute instance; one instance of them all if not given, none if empty.
    #[serde(default)]
    pub compute: Option<Vec<u32>>,
}

/// A process of somebody else.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ProcessDescription {
    /// Its id.
    pub pid: u32,
    /// Its program.
    pub program: String,
    /// Whether it is in the graphics list and not in the compute list.
    #[serde(default)]
    pub graphics: bool,
    /// MiB.
    #[serde(default)]
    pub memory_mb: u64,
}

/// What the simulated CUDA gets wrong.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Lies {
    /// Another UUID than the device's, `GPU-…` or `MIG-…`.
    #[serde(default)]
    pub uuid: Option<String>,
    /// Another number of multiprocessors.
    #[serde(default)]
    pub multiprocessors: Option<u32>,
    /// Another value of the attribute that says whether a process is an MPS client.
    #[serde(default)]
    pub mps: Option<i32>,
}

/// Why a description cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// The file cannot be read.
    #[error("the simulated machine's description {path} cannot be read")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The file is not a description.
    #[error("the simulated machine's description is wrong")]
    Malformed(#[source] serde_json::Error),
    /// No such model.
    #[error("there is no GPU model `{0}`; one of {known}", known = models().keys().cloned().collect::<Vec<_>>().join(", "))]
    UnknownModel(String),
    /// An instance that this model cannot have there.
    #[error("no GPU instance {profile} can start at slice {start}")]
    Unplaceable {
        /// The profile.
        profile: String,
        /// The slice.
        start: u32,
    },
}

impl Machine {
    /// Reads a description.
    ///
    /// # Errors
    /// If the file cannot be read or describes a machine that cannot be.
    pub fn read(path: &Path) -> Result<Self, MachineError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| MachineError::Unreadable { path: path.to_owned(), source })?;
        Self::parse(&text)
    }

    /// A machine from the text of its description.
    ///
    /// # Errors
    /// If the text describes a machine that cannot be.
    pub fn parse(text: &str) -> Result<Self, MachineError> {
        let machine: Self = serde_json::from_str(text).map_err(MachineError::Malformed)?;
        for gpu in &machine.gpus {
            let model = models().get(&gpu.model).ok_or_else(|| MachineError::UnknownModel(gpu.model.clone()))?;
            for instance in &gpu.instances {
                instance.slot(model)?;
            }
        }
        Ok(machine)
    }

    /// A machine with one H200, MIG off.
    #[must_use]
    pub fn plain() -> Self {
        Self::parse(r#"{ "gpus": [ { "model": "H200-141" } ] }"#).expect("this description is right")
    }

    /// The driver's version, which says that it is none.
    #[must_use]
    pub fn driver_version(&self) -> String {
        format!("{}-SIMULATED", self.driver)
    }
}

impl GpuDescription {
    /// The catalog's entry.
    #[must_use]
    pub fn model(&self) -> &'static Model {
        models().get(&self.model).expect("checked when the description was read")
    }
}

impl InstanceDescription {
    /// The memory slices that it takes.
    ///
    /// # Errors
    /// If the model has no such profile or not there.
    pub fn slot(&self, model: &Model) -> Result<Slot, MachineError> {
        model
            .profile(&self.profile)
            .and_then(|profile| profile.placements.iter().find(|slot| slot.start == self.start))
            .copied()
            .ok_or_else(|| MachineError::Unplaceable { profile: self.profile.clone(), start: self.start })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_are_strict() {
        for (text, part) in [
            (r#"{ "gpus": [ { "model": "H300" } ] }"#, "H300"),
            (r#"{ "gpus": [ { "model": "H200-141", "migs": true } ] }"#, "wrong"),
            (
                r#"{ "gpus": [ { "model": "H200-141", "instances": [ { "profile": "2g.35gb", "start": 1 } ] } ] }"#,
                "slice 1",
            ),
        ] {
            let error = Machine::parse(text).unwrap_err();
            assert!(error.to_string().contains(part), "{error}");
        }
        assert_eq!(Machine::plain().driver_version(), "580.159.04-SIMULATED");
    }
}
