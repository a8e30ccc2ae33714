//! What measuring needs on this machine, and whether it is there.

use std::path::Path;

use migperf_core::device::{Inventory, Reading};
use migperf_core::job::{Check, CheckItem, CheckState};

use crate::admission;
use crate::helper::Helper;
use crate::host;
use crate::libtorch;
use crate::settings::Settings;

/// Looks at everything, without changing or holding anything.
#[must_use]
pub fn run(settings: &Settings) -> Check {
    let inventory = admission::look(settings.nvml.as_deref());
    let mut items = vec![driver(&inventory)];
    items.extend(inventory.gpus.iter().map(|gpu| {
        let name = gpu.name.value().map_or("unnamed", String::as_str);
        item(&format!("GPU {}", gpu.index), CheckState::Ok, format!("{name}, {}", gpu.uuid), None)
    }));
    items.extend(inventory.silent.iter().map(|gpu| {
        let remedy = "see `dmesg` and `nvidia-smi`; the GPU may have to be reset";
        item(&format!("GPU {}", gpu.index), CheckState::Limited, gpu.reason.clone(), Some(remedy))
    }));
    items.push(torch(settings, &inventory));
    items.push(mps(settings, &inventory));
    items.push(program("launcher", &settings.launcher));
    items.push(program("worker", &settings.worker));
    items.push(state(&settings.state));
    items.push(privilege(settings));
    let processors = host::processors().len();
    items.push(item("processors", CheckState::Ok, format!("{processors} for workers"), None));
    Check { items }
}

fn item(subject: &str, state: CheckState, found: String, remedy: Option<&str>) -> CheckItem {
    CheckItem { subject: subject.to_owned(), state, found, remedy: remedy.map(str::to_owned) }
}

fn driver(inventory: &Inventory) -> CheckItem {
    match &inventory.nvml {
        Reading::Absent(reason) => {
            let remedy = "install the NVIDIA driver to measure GPUs; without it, only `cpu` trials run";
            item("NVIDIA driver", CheckState::Limited, reason.clone(), Some(remedy))
        }
        Reading::Value(nvml) => {
            let shown = |reading: &Reading<String>| reading.value().cloned().unwrap_or_else(|| "unknown".to_owned());
            let cuda = nvml.cuda_driver_version.value().map_or("unknown".to_owned(), ToString::to_string);
            let simulated = if nvml.simulated { "SIMULATED, " } else { "" };
            let found = format!(
                "{simulated}driver {}, NVML {}, CUDA {cuda} ({})",
                shown(&nvml.driver_version),
                shown(&nvml.nvml_version),
                nvml.library
            );
            item("NVIDIA driver", CheckState::Ok, found, None)
        }
    }
}

fn torch(settings: &Settings, inventory: &Inventory) -> CheckItem {
    match libtorch::find(settings.libtorch.as_deref()) {
        Err(error) => item("libtorch", CheckState::Missing, error.to_string(), Some(libtorch::REMEDY)),
        Ok(found) => {
            let place = format!("{} in {}", found.version, found.folder.display());
            let needs_cuda = !inventory.gpus.is_empty() && !inventory.is_simulated();
            if needs_cuda && !found.has_cuda() {
                item("libtorch", CheckState::Missing, format!("{place}, for the CPU only"), Some(libtorch::REMEDY))
            } else {
                item("libtorch", CheckState::Ok, place, None)
            }
        }
    }
}

fn mps(settings: &Settings, inventory: &Inventory) -> CheckItem {
    match &settings.mps_control {
        Some(program) => item("MPS control program", CheckState::Ok, program.display().to_string(), None),
        None if inventory.gpus.is_empty() => {
            item("MPS control program", CheckState::Limited, "not found, and no GPU would use it".to_owned(), None)
        }
        None => {
            let remedy = "it comes with the driver's compute programs; without it, mps trials are refused";
            item(
                "MPS control program",
                CheckState::Limited,
                "nvidia-cuda-mps-control is not in PATH".to_owned(),
                Some(remedy),
            )
        }
    }
}

fn program(subject: &str, path: &Path) -> CheckItem {
    if path.is_file() {
        item(subject, CheckState::Ok, path.display().to_string(), None)
    } else {
        let remedy = "build or install all of migperf's programs into one folder, or name it with MIGPERF_BIN_DIR";
        item(subject, CheckState::Missing, format!("{} does not exist", path.display()), Some(remedy))
    }
}

fn state(directory: &Path) -> CheckItem {
    let probe = directory.join(".writable");
    match std::fs::write(&probe, "").and_then(|()| std::fs::remove_file(&probe)) {
        Ok(()) => item("state directory", CheckState::Ok, directory.display().to_string(), None),
        Err(error) => {
            let remedy = "make it writable, or name another with MIGPERF_STATE_DIRECTORY";
            item("state directory", CheckState::Missing, format!("{}: {error}", directory.display()), Some(remedy))
        }
    }
}

fn privilege(settings: &Settings) -> CheckItem {
    let user = if nix::unistd::geteuid().is_root() { "root" } else { "an ordinary user" };
    match Helper::find(settings).absence() {
        None => item("layouts", CheckState::Ok, format!("{user}: the helper can change how GPUs are divided"), None),
        Some(absence) => {
            let found = format!("{user}: {absence}; whole-GPU modes and instances that exist are measured");
            item("layouts", CheckState::Limited, found, Some(absence.remedy()))
        }
    }
}
