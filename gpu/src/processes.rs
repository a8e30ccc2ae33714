//! Who is on a device: NVML's three process lists as one.

use std::collections::BTreeMap;

use migperf_core::device::{GpuProcess, ProcessKind};
use migperf_core::ids::DeviceUuid;
use migperf_core::units::Bytes;
use nvml_wrapper::Device;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError as Answer;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;

use crate::library::{Nvml, NvmlError};

/// How often a list is asked for again that grew between the question for its length and the one for its entries.
const ATTEMPTS: u32 = 5;

/// The longest program name that is asked for, in bytes.
const PROGRAM_LENGTH: usize = 256;

impl Nvml {
    /// Every process with a context on a GPU (in all its instances) or on one MIG device, in the order of their ids.
    ///
    /// # Errors
    /// If the device does not exist or one of the lists cannot be read: a list that is missing is not an empty one.
    pub fn processes(&self, device: &DeviceUuid) -> Result<Vec<GpuProcess>, NvmlError> {
        read(&self.device(device)?).map_err(|source| NvmlError::Unanswered {
            device: device.clone(),
            what: "processes",
            source,
        })
    }
}

/// The processes of a device in the order of their ids.
pub(crate) fn read(device: &Device<'_>) -> Result<Vec<GpuProcess>, Answer> {
    // Later lists win: an MPS client is in the compute list too.
    let lists = [
        (ProcessKind::Compute, list(|| device.running_compute_processes())?),
        (ProcessKind::Graphics, list(|| device.running_graphics_processes())?),
        (ProcessKind::MpsClient, list(|| device.mps_running_compute_processes())?),
    ];
    let mut processes = BTreeMap::new();
    for (kind, list) in lists {
        for info in list {
            let process = GpuProcess {
                pid: info.pid,
                kind,
                program: device.nvml().sys_process_name(info.pid, PROGRAM_LENGTH).ok().filter(|name| !name.is_empty()),
                memory: match info.used_gpu_memory {
                    UsedGpuMemory::Used(bytes) => Some(Bytes(bytes)),
                    UsedGpuMemory::Unavailable => None,
                },
                gpu_instance: info.gpu_instance_id,
                compute_instance: info.compute_instance_id,
            };
            processes.insert((process.pid, process.gpu_instance, process.compute_instance), process);
        }
    }
    Ok(processes.into_values().collect())
}

/// One list; empty where the device has no such processes at all.
fn list(ask: impl Fn() -> Result<Vec<ProcessInfo>, Answer>) -> Result<Vec<ProcessInfo>, Answer> {
    for _ in 1..ATTEMPTS {
        match ask() {
            Err(Answer::InsufficientSize(_)) => {}
            Err(Answer::NotSupported | Answer::FailedToLoadSymbol(_)) => return Ok(Vec::new()),
            answer => return answer,
        }
    }
    ask()
}
