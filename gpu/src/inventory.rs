//! Everything a machine's GPUs say about themselves, read once. A question that fails leaves its own reading absent and
//! nothing else.

use migperf_core::device::{
    Architecture, ComputeMode, CudaVersion, Gpu, Inventory, MigInstance, MigMode, NvmlLibrary, Reading, SilentGpu,
    Virtualization,
};
use migperf_core::units::{Bytes, Megahertz, Milliwatts};
use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::Clock;
use nvml_wrapper::error::NvmlError as Answer;

use crate::library::{Nvml, reading, reason};
use crate::{ffi, processes};

const MIB: u64 = 1024 * 1024;

impl Nvml {
    /// Asks every GPU for what it is and who uses it.
    ///
    /// Takes milliseconds a GPU, or seconds where the driver has to initialise it first (no persistence).
    #[must_use]
    pub fn inventory(&self) -> Inventory {
        let nvml = self.wrapped();
        let mut inventory = Inventory {
            nvml: Reading::Value(NvmlLibrary {
                library: self.library().to_owned(),
                driver_version: reading(nvml.sys_driver_version()),
                nvml_version: reading(nvml.sys_nvml_version()),
                cuda_driver_version: reading(nvml.sys_cuda_driver_version())
                    .map(|number| CudaVersion::from_number(number.unsigned_abs())),
                simulated: self.is_simulated(),
            }),
            gpus: Vec::new(),
            silent: Vec::new(),
        };
        let count = match nvml.device_count() {
            Ok(count) => count,
            Err(answer) => {
                inventory.nvml = Reading::Absent(format!("NVML does not count the GPUs: {}", reason(&answer)));
                return inventory;
            }
        };
        for index in 0..count {
            match gpu(nvml, index) {
                Ok(gpu) => inventory.gpus.push(gpu),
                Err(reason) => inventory.silent.push(SilentGpu { index, reason }),
            }
        }
        inventory
    }
}

/// One GPU; fails only where not even its identity can be read.
fn gpu(nvml: &nvml_wrapper::Nvml, index: u32) -> Result<Gpu, String> {
    let device = nvml.device_by_index(index).map_err(|answer| reason(&answer))?;
    let uuid = device.uuid().map_err(|answer| reason(&answer))?.parse().map_err(|error| format!("{error}"))?;
    let mig = reading(mig_mode(&device));
    let compute_capability = reading(device.cuda_compute_capability())
        .map(|version| CudaVersion { major: version.major.unsigned_abs(), minor: version.minor.unsigned_abs() });
    let memory = reading(device.memory_info());
    Ok(Gpu {
        index,
        uuid,
        name: reading(device.name()),
        architecture: reading(ffi::architecture(&device)).map(architecture),
        pci_bus_id: reading(device.pci_info()).map(|pci| pci.bus_id),
        memory_total: memory.clone().map(|memory| Bytes(memory.total)),
        memory_used: memory.map(|memory| Bytes(memory.used)),
        multiprocessors: multiprocessors(device.num_cores(), &compute_capability),
        compute_capability,
        compute_mode: reading(ffi::compute_mode(&device)).map(compute_mode),
        persistence: reading(device.is_in_persistent_mode()),
        instances: instances(&device, &mig),
        mig,
        virtualization: reading(ffi::virtualization_mode(&device)).map(virtualization),
        processes: reading(processes::read(&device)),
        power_limit: reading(device.enforced_power_limit()).map(Milliwatts),
        clock_sm_max: reading(device.max_clock_info(Clock::SM)).map(Megahertz),
        clock_memory_max: reading(device.max_clock_info(Clock::Memory)).map(Megahertz),
        gpm: gpm(&device),
    })
}

/// Drivers before MIG lack the call, and GPUs without MIG do not support it.
fn mig_mode(device: &Device<'_>) -> Result<MigMode, Answer> {
    match device.mig_mode() {
        Ok(mode) => Ok(MigMode::from_modes(mode.current != 0, mode.pending != 0)),
        Err(Answer::NotSupported | Answer::FailedToLoadSymbol(_)) => Ok(MigMode::Unsupported),
        Err(answer) => Err(answer),
    }
}

/// GPM exists from Hopper and driver 520 on.
fn gpm(device: &Device<'_>) -> Reading<bool> {
    match device.gpm_support() {
        Err(Answer::NotSupported | Answer::FailedToLoadSymbol(_)) => Reading::Value(false),
        answer => reading(answer),
    }
}

/// The MIG devices of a GPU. NVML numbers as many as could exist and answers "not found" for those that do not.
fn instances(parent: &Device<'_>, mode: &Reading<MigMode>) -> Reading<Vec<MigInstance>> {
    match mode {
        Reading::Value(MigMode::Unsupported | MigMode::Disabled) => return Reading::Value(Vec::new()),
        Reading::Value(MigMode::Enabled | MigMode::Pending { .. }) | Reading::Absent(_) => {}
    }
    let count = match parent.mig_device_count() {
        Ok(count) => count,
        Err(answer) => return Reading::Absent(reason(&answer)),
    };
    let mut instances = Vec::new();
    for index in 0..count {
        match parent.mig_device_by_index(index) {
            Ok(device) => match instance(parent, &device) {
                Ok(instance) => instances.push(instance),
                Err(reason) => return Reading::Absent(format!("MIG device {index} has no identity: {reason}")),
            },
            Err(Answer::NotFound) => {}
            Err(answer) => return Reading::Absent(format!("MIG device {index}: {}", reason(&answer))),
        }
    }
    Reading::Value(instances)
}

fn instance(parent: &Device<'_>, device: &Device<'_>) -> Result<MigInstance, String> {
    let uuid = device.uuid().map_err(|answer| reason(&answer))?.parse().map_err(|error| format!("{error}"))?;
    let attributes = reading(device.attributes());
    let gpu_instance = ffi::gpu_instance_id(device);
    let placement = match &gpu_instance {
        Ok(id) => reading(ffi::placement(parent, *id)),
        Err(answer) => Reading::Absent(reason(answer)),
    };
    Ok(MigInstance {
        uuid,
        gpu_instance: reading(gpu_instance),
        compute_instance: reading(ffi::compute_instance_id(device)),
        profile: profile(reading(device.name())),
        gpu_instance_slices: attributes.clone().map(|attributes| attributes.gpu_instance_slice_count),
        compute_instance_slices: attributes.clone().map(|attributes| attributes.compute_instance_slice_count),
        multiprocessors: attributes.clone().map(|attributes| attributes.multiprocessor_count),
        memory_total: attributes.map(|attributes| Bytes(attributes.memory_size_mb * MIB)),
        placement,
    })
}

/// The profile in a MIG device's name: `NVIDIA H200 MIG 1g.18gb`.
fn profile(name: Reading<String>) -> Reading<String> {
    match name {
        Reading::Value(name) => match name.rsplit_once("MIG ") {
            Some((_, profile)) => Reading::Value(profile.to_owned()),
            None => Reading::Absent(format!("the device's name, `{name}`, names no profile")),
        },
        absent @ Reading::Absent(_) => absent,
    }
}

/// NVML counts cores, not multiprocessors. Cores of a multiprocessor by compute capability: NVIDIA's CUDA programming
/// guide, "Compute Capabilities".
fn multiprocessors(cores: Result<u32, Answer>, capability: &Reading<CudaVersion>) -> Reading<u32> {
    let per_multiprocessor = match capability.value() {
        Some(CudaVersion { major: 7, .. } | CudaVersion { major: 8, minor: 0 }) => 64,
        Some(CudaVersion { major: 8..=12, .. }) => 128,
        _ => return Reading::absent("the cores of a multiprocessor are not known for this compute capability"),
    };
    match cores {
        Ok(cores) if cores > 0 && cores % per_multiprocessor == 0 => Reading::Value(cores / per_multiprocessor),
        Ok(cores) => Reading::Absent(format!("{cores} cores are not whole multiprocessors of {per_multiprocessor}")),
        Err(answer) => Reading::Absent(reason(&answer)),
    }
}

fn architecture(number: u32) -> Architecture {
    match number {
        2 => Architecture::Kepler,
        3 => Architecture::Maxwell,
        4 => Architecture::Pascal,
        5 => Architecture::Volta,
        6 => Architecture::Turing,
        7 => Architecture::Ampere,
        8 => Architecture::Ada,
        9 => Architecture::Hopper,
        10 => Architecture::Blackwell,
        other => Architecture::Unknown(other),
    }
}

fn compute_mode(number: u32) -> ComputeMode {
    match number {
        0 => ComputeMode::Default,
        1 => ComputeMode::ExclusiveThread,
        2 => ComputeMode::Prohibited,
        3 => ComputeMode::ExclusiveProcess,
        other => ComputeMode::Unknown(other),
    }
}

fn virtualization(number: u32) -> Virtualization {
    match number {
        0 => Virtualization::None,
        1 => Virtualization::Passthrough,
        2 => Virtualization::Vgpu,
        3 => Virtualization::HostVgpu,
        4 => Virtualization::HostVsga,
        other => Virtualization::Unknown(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multiprocessors_follow_from_cores() {
        for (cores, major, minor, expected) in [
            (16_896, 9, 0, Some(132)),
            (6_912, 8, 0, Some(108)),
            (10_752, 8, 6, Some(84)),
            (16_897, 9, 0, None),
            (0, 9, 0, None),
            (2_880, 3, 5, None),
        ] {
            let capability = Reading::Value(CudaVersion { major, minor });
            assert_eq!(multiprocessors(Ok(cores), &capability).value().copied(), expected, "{cores} {major}.{minor}");
        }
        let capability = Reading::Value(CudaVersion { major: 9, minor: 0 });
        assert_eq!(
            multiprocessors(Err(Answer::NotSupported), &capability).reason(),
            Some("not supported by this device")
        );
    }

    #[test]
    fn the_profile_is_what_follows_mig_in_the_name() {
        for (name, expected) in [
            ("NVIDIA H200 MIG 1g.18gb", Some("1g.18gb")),
            ("NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb", Some("1c.3g.20gb")),
            ("NVIDIA H200 MIG 1g.18gb+me", Some("1g.18gb+me")),
            ("NVIDIA H200", None),
        ] {
            assert_eq!(profile(Reading::Value(name.to_owned())).value().map(String::as_str), expected);
        }
    }
}
