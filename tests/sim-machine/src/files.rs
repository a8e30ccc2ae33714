//! The files that a driver shows, in folders beside the state: `dev/` with what clients hold open, `capabilities/` as
//! `/proc/driver/nvidia/capabilities` has them, `boot_id`, and `driver-load`, which is another after each load.
//!
//! The nodes of `dev/nvidia-caps/` are not made here: whoever creates an instance has to.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::machine::Machine;
use crate::shared::now_ns;
use crate::state::{State, uuid};

/// What was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// The machine.
    Boot,
    /// The driver alone.
    Driver,
}

fn beside(state: &Path, name: &str) -> PathBuf {
    state.with_file_name(name)
}

/// The folder that stands for `/dev`.
#[must_use]
pub fn devices(state: &Path) -> PathBuf {
    beside(state, "dev")
}

/// The folder that stands for `/proc/driver/nvidia/capabilities`.
#[must_use]
pub fn capabilities_folder(state: &Path) -> PathBuf {
    beside(state, "capabilities")
}

/// The file that stands for `/proc/sys/kernel/random/boot_id`.
#[must_use]
pub fn boot_id(state: &Path) -> PathBuf {
    beside(state, "boot_id")
}

/// The file whose content is another after each load of the driver.
#[must_use]
pub fn driver_load(state: &Path) -> PathBuf {
    beside(state, "driver-load")
}

/// Files that a client of the driver holds open.
#[must_use]
pub fn held(state: &Path, machine: &Machine) -> Vec<PathBuf> {
    let folder = devices(state);
    let gpus = (0..machine.gpus.len()).map(|index| folder.join(format!("nvidia{index}")));
    std::iter::once(folder.join("nvidiactl")).chain(gpus).collect()
}

/// Makes the files of a machine, or a driver, that starts.
pub(crate) fn start(state: &Path, machine: &Machine, start: Start) -> io::Result<()> {
    let fresh = |what: &str| format!("{}\n", uuid(&format!("{what} {} {}", now_ns(), std::process::id())));
    if start == Start::Boot {
        fs::write(boot_id(state), fresh("boot"))?;
    }
    fs::write(driver_load(state), fresh("driver"))?;
    fs::create_dir_all(devices(state))?;
    for file in held(state, machine) {
        // What clients hold open stays what it is.
        if !file.exists() {
            fs::write(file, "")?;
        }
    }
    // Nodes of instances lie in memory too.
    remove(&devices(state).join("nvidia-caps"))
}

fn remove(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Instances of every GPU: GPU instance and compute instance ids.
pub(crate) fn divided(state: &State) -> Vec<Vec<(u32, Vec<u32>)>> {
    let of_gpu = |gpu: &crate::state::GpuState| {
        gpu.instances.iter().map(|it| (it.id, it.compute.iter().map(|compute| compute.id).collect())).collect()
    };
    state.gpus.iter().map(of_gpu).collect()
}

fn capability(file: &Path, minor: u32, mode: u32) -> io::Result<()> {
    fs::create_dir_all(file.parent().unwrap_or(Path::new(".")))?;
    fs::write(file, format!("DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: 1\n"))
}

/// Makes the tree of capabilities anew. Minors as the driver counts them: 135 a GPU, 9 a GPU instance.
pub(crate) fn capabilities(state: &Path, now: &State) -> io::Result<()> {
    let folder = capabilities_folder(state);
    let (owner, all) = (0o400, 0o444);
    capability(&folder.join("mig/config"), 1, owner)?;
    capability(&folder.join("mig/monitor"), 2, all)?;
    for (gpu, instances) in (0_u32..).zip(divided(now)) {
        let of_gpu = folder.join(format!("gpu{gpu}/mig"));
        remove(&of_gpu)?;
        fs::create_dir_all(&of_gpu)?;
        for (gi, computes) in instances {
            let of_instance = of_gpu.join(format!("gi{gi}"));
            let minor = 3 + 135 * gpu + 9 * gi;
            capability(&of_instance.join("access"), minor, all)?;
            for ci in computes {
                capability(&of_instance.join(format!("ci{ci}/access")), minor + 1 + ci, all)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::Shared;

    #[test]
    fn files_follow_the_machine() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let machine = Machine::parse(r#"{ "gpus": [ { "model": "H200-141", "mig": "enabled" } ] }"#).unwrap();
        let shared = Shared::new(machine, Some(path.clone()));
        let read = |file: PathBuf| fs::read_to_string(file).unwrap();
        let create = |machine: &Machine, state: &mut State| {
            let gi = state.gpus[0].create_instance(&machine.gpus[0], 9, None).unwrap();
            state.gpus[0].create_compute(&machine.gpus[0], gi, 2, None, "one").unwrap();
            gi
        };
        let gi = shared.update(create).unwrap();
        let access = capabilities_folder(&path).join(format!("gpu0/mig/gi{gi}/ci0/access"));
        let minor = 3 + 9 * gi + 1;
        assert_eq!(
            read(access.clone()),
            format!("DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n")
        );
        assert!(devices(&path).join("nvidia0").exists() && devices(&path).join("nvidiactl").exists());
        let identities = || (read(boot_id(&path)), read(driver_load(&path)));
        let before = identities();
        shared.restart(Start::Driver).unwrap();
        let after = identities();
        assert!(!access.exists() && before.0 == after.0 && before.1 != after.1);
        shared.restart(Start::Boot).unwrap();
        assert!(identities().0 != after.0 && identities().1 != after.1);
    }
}
