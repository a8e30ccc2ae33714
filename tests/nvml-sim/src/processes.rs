//! Who is on a device.

use std::ptr::NonNull;

use nvml_wrapper_sys::bindings::nvmlProcessInfo_t;
use sim_machine::state::Role;

use crate::fault::begin;
use crate::handle::{Device, Target, ask_device};
use crate::instances::put_array;
use crate::{Answer, code};

const MIB: u64 = 1024 * 1024;
/// What NVML writes for a process in no instance.
const NO_INSTANCE: u32 = u32::MAX;

#[derive(Clone, Copy, PartialEq)]
enum List {
    Compute,
    Graphics,
    Mps,
}

fn list(device: Device, list: List) -> Answer<Vec<nvmlProcessInfo_t>> {
    ask_device(device, |Target { gpu, instance }| {
        let contexts = gpu.state.contexts.iter().filter(|context| match list {
            List::Compute => true,
            List::Graphics => false,
            List::Mps => context.role == Role::MpsClient,
        });
        let contexts = contexts.filter(|context| match instance {
            None => true,
            Some((gi, ci)) => context.instance == Some((gi.id, ci.id)),
        });
        let ours = contexts.map(|context| {
            let (gi, ci) = context.instance.unwrap_or((NO_INSTANCE, NO_INSTANCE));
            info(context.process.pid, context.memory_mb, gi, ci)
        });
        let foreign = gpu.description.processes.iter().filter(|process| {
            instance.is_none() && list == if process.graphics { List::Graphics } else { List::Compute }
        });
        let foreign = foreign.map(|process| info(process.pid, process.memory_mb, NO_INSTANCE, NO_INSTANCE));
        Ok(ours.chain(foreign).collect())
    })
}

fn info(pid: u32, memory_mb: u64, gi: u32, ci: u32) -> nvmlProcessInfo_t {
    nvmlProcessInfo_t { pid, usedGpuMemory: memory_mb * MIB, gpuInstanceId: gi, computeInstanceId: ci }
}

/// A caller without room for any entry learns the number by `INSUFFICIENT_SIZE`, or success where there are none.
///
/// # Safety
/// `infos` is null or has room for `count` entries.
unsafe fn put(infos: Option<NonNull<nvmlProcessInfo_t>>, count: Option<&mut u32>, device: Device, which: List) -> u32 {
    let answer = list(device, which);
    let asked = if answer.as_ref().is_ok_and(Vec::is_empty) { code::SUCCESS } else { code::INSUFFICIENT_SIZE };
    // SAFETY: the caller's promise is this function's.
    unsafe { put_array(infos, count, answer, asked) }
}

/// # Safety
/// `infos` is null or has room for `count` entries.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    device: Device,
    count: Option<&mut u32>,
    infos: Option<NonNull<nvmlProcessInfo_t>>,
) -> u32 {
    begin!("nvmlDeviceGetComputeRunningProcesses_v3");
    // SAFETY: the caller's promise is this function's.
    unsafe { put(infos, count, device, List::Compute) }
}

/// # Safety
/// `infos` is null or has room for `count` entries.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGraphicsRunningProcesses_v3(
    device: Device,
    count: Option<&mut u32>,
    infos: Option<NonNull<nvmlProcessInfo_t>>,
) -> u32 {
    begin!("nvmlDeviceGetGraphicsRunningProcesses_v3");
    // SAFETY: the caller's promise is this function's.
    unsafe { put(infos, count, device, List::Graphics) }
}

/// # Safety
/// `infos` is null or has room for `count` entries.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMPSComputeRunningProcesses_v3(
    device: Device,
    count: Option<&mut u32>,
    infos: Option<NonNull<nvmlProcessInfo_t>>,
) -> u32 {
    begin!("nvmlDeviceGetMPSComputeRunningProcesses_v3");
    // SAFETY: the caller's promise is this function's.
    unsafe { put(infos, count, device, List::Mps) }
}
