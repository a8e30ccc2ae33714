//! What a machine's GPUs said about themselves at one moment: identities, sharing state, processes. Data only; the
//! `gpu` crate reads it, and preflight checks decide on it.
//!
//! A value that a device did not give is a [`Reading::Absent`] with the reason, never a zero.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::{DeviceUuid, GpuUuid, MigUuid};
use crate::units::{Bytes, Megahertz, Milliwatts};

/// A value that a device gave, or why it gave none. Serialised as `{"value": …}` or `{"absent": "reason"}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reading<T> {
    /// What the device answered.
    Value(T),
    /// Why there is no value, for people.
    Absent(String),
}

impl<T> Reading<T> {
    /// A missing value with its reason.
    pub fn absent(reason: impl Into<String>) -> Self {
        Self::Absent(reason.into())
    }

    /// The value, if there is one.
    pub fn value(&self) -> Option<&T> {
        match self {
            Self::Value(value) => Some(value),
            Self::Absent(_) => None,
        }
    }

    /// Why there is no value, if there is none.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Value(_) => None,
            Self::Absent(reason) => Some(reason),
        }
    }

    /// The value itself, without the reason.
    pub fn into_option(self) -> Option<T> {
        match self {
            Self::Value(value) => Some(value),
            Self::Absent(_) => None,
        }
    }

    /// The same reading with its value converted.
    pub fn map<U>(self, convert: impl FnOnce(T) -> U) -> Reading<U> {
        match self {
            Self::Value(value) => Reading::Value(convert(value)),
            Self::Absent(reason) => Reading::Absent(reason),
        }
    }
}

impl<T, E: fmt::Display> From<Result<T, E>> for Reading<T> {
    fn from(result: Result<T, E>) -> Self {
        match result {
            Ok(value) => Self::Value(value),
            Err(error) => Self::Absent(error.to_string()),
        }
    }
}

/// The GPUs of one machine, or why none can be seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Inventory {
    /// The NVML that answered; absent where NVML is unavailable, with what is missing.
    pub nvml: Reading<NvmlLibrary>,
    /// Every GPU that answered, in NVML's order.
    pub gpus: Vec<Gpu>,
    /// GPUs that NVML counts but that did not answer, such as one that fell off the bus.
    pub silent: Vec<SilentGpu>,
}

impl Inventory {
    /// An inventory of a machine where NVML is unavailable.
    #[must_use]
    pub fn unavailable(reason: String) -> Self {
        Self { nvml: Reading::Absent(reason), gpus: Vec::new(), silent: Vec::new() }
    }

    /// The GPU that is, or that holds, this device.
    #[must_use]
    pub fn gpu_of(&self, device: &DeviceUuid) -> Option<&Gpu> {
        self.gpus.iter().find(|gpu| match device {
            DeviceUuid::Gpu(uuid) => gpu.uuid == *uuid,
            DeviceUuid::Mig(uuid) => gpu.instance(uuid).is_some(),
        })
    }

    /// Whether the answers come from the simulated device, so that everything measured on it is marked so.
    #[must_use]
    pub fn is_simulated(&self) -> bool {
        self.nvml.value().is_some_and(|nvml| nvml.simulated)
    }
}

/// The NVML library that answered, and the driver behind it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct NvmlLibrary {
    /// The path or name the library was loaded by.
    pub library: String,
    /// Such as `580.159.04`.
    pub driver_version: Reading<String>,
    /// NVML's own version, such as `13.580.159.04`.
    pub nvml_version: Reading<String>,
    /// The newest CUDA version that the driver supports.
    pub cuda_driver_version: Reading<CudaVersion>,
    /// The library announced itself as simulated.
    pub simulated: bool,
}

/// A CUDA version, such as 13.0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct CudaVersion {
    /// The part before the point.
    pub major: u32,
    /// The part after the point.
    pub minor: u32,
}

impl CudaVersion {
    /// The two parts of NVML's and CUDA's one number: 13000 is 13.0, 12080 is 12.8.
    #[must_use]
    pub fn from_number(number: u32) -> Self {
        Self { major: number / 1000, minor: number % 1000 / 10 }
    }
}

impl fmt::Display for CudaVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// A GPU that NVML counts but cannot describe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct SilentGpu {
    /// NVML's index.
    pub index: u32,
    /// What NVML answered instead.
    pub reason: String,
}

/// One GPU as NVML described it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Gpu {
    /// NVML's index: by PCI address, and not CUDA's order.
    pub index: u32,
    /// The identity by which everything else names the GPU.
    pub uuid: GpuUuid,
    /// The product name, such as `NVIDIA H200`.
    pub name: Reading<String>,
    /// The chip's generation.
    pub architecture: Reading<Architecture>,
    /// CUDA compute capability.
    pub compute_capability: Reading<CudaVersion>,
    /// Domain, bus, device and function, such as `00000000:18:00.0`.
    pub pci_bus_id: Reading<String>,
    /// Installed frame buffer, reserved parts included.
    pub memory_total: Reading<Bytes>,
    /// Frame buffer in use by anyone, now, without what the driver reserves.
    pub memory_used: Reading<Bytes>,
    /// Streaming multiprocessors of the whole GPU: NVML's core count divided by the cores that a multiprocessor of this
    /// compute capability has.
    pub multiprocessors: Reading<u32>,
    /// Who may create contexts.
    pub compute_mode: Reading<ComputeMode>,
    /// Whether the driver keeps the GPU initialised when nobody uses it.
    pub persistence: Reading<bool>,
    /// Whether and how the GPU is partitioned.
    pub mig: Reading<MigMode>,
    /// What stands between this machine and the hardware.
    pub virtualization: Reading<Virtualization>,
    /// The MIG devices that exist now, one per compute instance.
    pub instances: Reading<Vec<MigInstance>>,
    /// Every process with a context on the GPU, in any of its instances.
    pub processes: Reading<Vec<GpuProcess>>,
    /// The power limit that is enforced now.
    pub power_limit: Reading<Milliwatts>,
    /// The highest clock of the multiprocessors.
    pub clock_sm_max: Reading<Megahertz>,
    /// The highest clock of the memory.
    pub clock_memory_max: Reading<Megahertz>,
    /// Whether performance monitoring counters (GPM: the source of GRACT) can be read, Hopper and later.
    pub gpm: Reading<bool>,
}

impl Gpu {
    /// The MIG device with this UUID, if it is one of this GPU's.
    #[must_use]
    pub fn instance(&self, uuid: &MigUuid) -> Option<&MigInstance> {
        self.instances.value()?.iter().find(|instance| instance.uuid == *uuid)
    }

    /// The MPS servers that have a context on this GPU. A control daemon that no client has used yet has none.
    pub fn mps_servers(&self) -> impl Iterator<Item = &GpuProcess> {
        self.processes.value().into_iter().flatten().filter(|process| process.is_mps_server())
    }
}

/// A generation of NVIDIA GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Architecture {
    /// 2012.
    Kepler,
    /// 2014.
    Maxwell,
    /// 2016.
    Pascal,
    /// 2017.
    Volta,
    /// 2018.
    Turing,
    /// 2020: the first with MIG.
    Ampere,
    /// 2022, without MIG.
    Ada,
    /// 2022: the first with GPM, and with a MIG mode that needs no reset.
    Hopper,
    /// 2024.
    Blackwell,
    /// A generation that this version does not know, with NVML's number.
    Unknown(u32),
}

/// Who may create contexts on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ComputeMode {
    /// Any number of processes.
    Default,
    /// One thread; obsolete.
    ExclusiveThread,
    /// No process.
    Prohibited,
    /// One process, which may be an MPS server.
    ExclusiveProcess,
    /// A mode that this version does not know, with NVML's number.
    Unknown(u32),
}

/// Whether a GPU is partitioned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MigMode {
    /// The GPU or its driver has no MIG.
    Unsupported,
    /// Off, and no change is waiting.
    Disabled,
    /// On, and no change is waiting.
    Enabled,
    /// A change waits for a reset: until then nothing may be created.
    #[serde(rename_all = "kebab-case")]
    Pending {
        /// On now.
        current: bool,
        /// On after the reset.
        pending: bool,
    },
}

impl MigMode {
    /// From NVML's two modes.
    #[must_use]
    pub fn from_modes(current: bool, pending: bool) -> Self {
        match (current, pending) {
            (false, false) => Self::Disabled,
            (true, true) => Self::Enabled,
            (current, pending) => Self::Pending { current, pending },
        }
    }
}

/// What stands between this machine and the GPU's hardware.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Virtualization {
    /// Bare metal.
    None,
    /// A whole GPU given to a virtual machine.
    Passthrough,
    /// A virtual GPU: a share of one, inside a virtual machine.
    Vgpu,
    /// The host of virtual GPUs.
    HostVgpu,
    /// The host of virtual shared graphics.
    HostVsga,
    /// A mode that this version does not know, with NVML's number.
    Unknown(u32),
}

/// One MIG device: a compute instance inside a GPU instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct MigInstance {
    /// Valid until the instance is destroyed: a new one gets a new UUID.
    pub uuid: MigUuid,
    /// The GPU instance's id: opaque, and used again after a reboot.
    pub gpu_instance: Reading<u32>,
    /// The compute instance's id within the GPU instance.
    pub compute_instance: Reading<u32>,
    /// The profile as the device names it: `1g.18gb`, or `1c.3g.20gb` for a part of a GPU instance.
    pub profile: Reading<String>,
    /// Compute slices of the GPU instance.
    pub gpu_instance_slices: Reading<u32>,
    /// Compute slices of the compute instance.
    pub compute_instance_slices: Reading<u32>,
    /// Streaming multiprocessors of the compute instance.
    pub multiprocessors: Reading<u32>,
    /// Frame buffer of the GPU instance.
    pub memory_total: Reading<Bytes>,
    /// Where the GPU instance lies; needs privilege on most drivers.
    pub placement: Reading<Placement>,
}

/// Where a GPU instance lies, in the device's memory slices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Placement {
    /// The first slice.
    pub start: u32,
    /// How many slices.
    pub size: u32,
}

/// How a process uses a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProcessKind {
    /// A compute context of its own.
    Compute,
    /// A graphics context.
    Graphics,
    /// A client of an MPS server.
    MpsClient,
}

/// A process on a GPU, as NVML lists it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct GpuProcess {
    /// The process id in NVML's pid namespace.
    pub pid: u32,
    /// Its use of the GPU. A process in several of NVML's lists is an MPS client before it is a graphics process before it
    /// is a compute process.
    pub kind: ProcessKind,
    /// The program, as NVML names it; absent when the process has gone or belongs to another pid namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// Frame buffer that it holds; absent where the driver does not say (WDDM, some MIG drivers).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Bytes>,
    /// The GPU instance it runs in, with MIG.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_instance: Option<u32>,
    /// The compute instance it runs in, with MIG.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute_instance: Option<u32>,
}

impl GpuProcess {
    /// Whether this is an MPS server: the one process through which MPS clients reach the GPU.
    #[must_use]
    pub fn is_mps_server(&self) -> bool {
        self.program.as_deref().is_some_and(|program| {
            program.rsplit('/').next().is_some_and(|name| name.starts_with("nvidia-cuda-mps-server"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reading_is_a_value_or_a_reason() {
        for (reading, text) in [
            (Reading::Value(Bytes(5)), r#"{"value":5}"#),
            (Reading::absent("not supported"), r#"{"absent":"not supported"}"#),
        ] {
            assert_eq!(serde_json::to_string(&reading).unwrap(), text);
            assert_eq!(serde_json::from_str::<Reading<Bytes>>(text).unwrap(), reading);
        }
    }

    #[test]
    fn unknown_modes_keep_their_number() {
        let text = serde_json::to_string(&[ComputeMode::ExclusiveProcess, ComputeMode::Unknown(7)]).unwrap();
        assert_eq!(text, r#"["exclusive-process",{"unknown":7}]"#);
    }

    #[test]
    fn a_mode_that_waits_is_neither_on_nor_off() {
        assert_eq!(MigMode::from_modes(false, false), MigMode::Disabled);
        assert_eq!(MigMode::from_modes(true, true), MigMode::Enabled);
        let waiting = MigMode::from_modes(false, true);
        assert_eq!(serde_json::to_string(&waiting).unwrap(), r#"{"pending":{"current":false,"pending":true}}"#);
    }

    #[test]
    fn versions_are_read_from_one_number() {
        assert_eq!(CudaVersion::from_number(13_000).to_string(), "13.0");
        assert_eq!(CudaVersion::from_number(12_080).to_string(), "12.8");
    }

    #[test]
    fn the_mps_server_is_known_by_its_program() {
        let process = |program: Option<&str>| GpuProcess {
            pid: 1,
            kind: ProcessKind::Compute,
            program: program.map(str::to_owned),
            memory: None,
            gpu_instance: None,
            compute_instance: None,
        };
        assert!(process(Some("nvidia-cuda-mps-server")).is_mps_server());
        assert!(process(Some("/usr/bin/nvidia-cuda-mps-server")).is_mps_server());
        assert!(!process(Some("/opt/nvidia-cuda-mps-server-watch/python3")).is_mps_server());
        assert!(!process(None).is_mps_server());
    }
}
