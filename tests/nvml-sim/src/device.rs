//! Finding devices, and what they are.

use std::ffi::{CStr, c_char};

use nvml_wrapper_sys::bindings::nvmlPciInfo_t;
use sim_machine::catalog::Generation;
use sim_machine::machine::{ComputeSetting, Machine};
use sim_machine::state::State;

use crate::fault::begin;
use crate::handle::{Device, Gpu, Target, ask_device, ask_gpu, gpu};
use crate::session::ask;
use crate::text::{Buffer, fill, put};
use crate::{Answer, code, store};

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetCount_v2(count: Option<&mut u32>) -> u32 {
    begin!("nvmlDeviceGetCount_v2");
    store(count, ask(|machine, _| u32::try_from(machine.gpus.len()).map_err(|_| code::UNKNOWN)))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: u32, device: Option<&mut Device>) -> u32 {
    begin!("nvmlDeviceGetHandleByIndex_v2");
    store(
        device,
        ask(|machine, state| match gpu(machine, state, index as usize)? {
            gpu if gpu.state.lost => Err(code::GPU_IS_LOST),
            gpu => Ok(Device::gpu(gpu.index)),
        }),
    )
}

/// The device of a UUID: a GPU or a MIG device.
fn by_uuid(machine: &Machine, state: &State, uuid: &str) -> Answer<Device> {
    for index in 0..machine.gpus.len() {
        let gpu = gpu(machine, state, index)?;
        let found = if gpu.description.uuid(index) == uuid {
            Some(Device::gpu(index))
        } else {
            let mut devices = gpu.state.mig_devices();
            devices.find(|(_, ci)| ci.uuid == uuid).map(|(gi, ci)| Device::mig(index, gi.id, ci.id))
        };
        if let Some(device) = found {
            return if gpu.state.lost { Err(code::GPU_IS_LOST) } else { Ok(device) };
        }
    }
    Err(code::NOT_FOUND)
}

/// # Safety
/// `uuid` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByUUID(uuid: *const c_char, device: Option<&mut Device>) -> u32 {
    begin!("nvmlDeviceGetHandleByUUID");
    if uuid.is_null() {
        return code::INVALID_ARGUMENT;
    }
    // SAFETY: not null, so a C string by the caller's promise.
    let uuid = unsafe { CStr::from_ptr(uuid) };
    let Ok(uuid) = uuid.to_str() else { return code::INVALID_ARGUMENT };
    store(device, ask(|machine, state| by_uuid(machine, state, uuid)))
}

/// # Safety
/// The buffer has `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetName(device: Device, name: Buffer, length: u32) -> u32 {
    begin!("nvmlDeviceGetName");
    let text = ask_device(device, |Target { gpu, instance }| {
        let product = &gpu.model().product_name;
        Ok(match instance {
            None => product.clone(),
            Some((gi, ci)) => format!("{product} MIG {}", gi.device_profile(gpu.description, ci)),
        })
    });
    // SAFETY: the caller's promise is this function's.
    unsafe { put(name, length, text) }
}

/// # Safety
/// The buffer has `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetUUID(device: Device, uuid: Buffer, length: u32) -> u32 {
    begin!("nvmlDeviceGetUUID");
    let text = ask_device(device, |Target { gpu, instance }| {
        Ok(instance.map_or_else(|| gpu.description.uuid(gpu.index), |(_, ci)| ci.uuid.clone()))
    });
    // SAFETY: the caller's promise is this function's.
    unsafe { put(uuid, length, text) }
}

fn index(gpu: Gpu<'_>) -> Answer<u32> {
    u32::try_from(gpu.index).map_err(|_| code::UNKNOWN)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetIndex(device: Device, into: Option<&mut u32>) -> u32 {
    begin!("nvmlDeviceGetIndex");
    store(into, ask_device(device, |target| index(target.gpu)))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetMinorNumber(device: Device, into: Option<&mut u32>) -> u32 {
    begin!("nvmlDeviceGetMinorNumber");
    store(into, ask_gpu(device, code::INVALID_ARGUMENT, index))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetPciInfo_v3(device: Device, into: Option<&mut nvmlPciInfo_t>) -> u32 {
    begin!("nvmlDeviceGetPciInfo_v3");
    store(
        into,
        ask_device(device, |target| {
            let bus = 0x18 + 0x10 * index(target.gpu)?;
            let ids = target.gpu.model().pci_device_id.trim_start_matches("0x");
            let mut info = nvmlPciInfo_t {
                busIdLegacy: [0; 16],
                domain: 0,
                bus,
                device: 0,
                pciDeviceId: u32::from_str_radix(ids, 16).map_err(|_| code::UNKNOWN)?,
                pciSubSystemId: 0,
                busId: [0; 32],
            };
            fill(&mut info.busIdLegacy, &format!("0000:{bus:02X}:00.0"));
            fill(&mut info.busId, &format!("00000000:{bus:02X}:00.0"));
            Ok(info)
        }),
    )
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetArchitecture(device: Device, into: Option<&mut u32>) -> u32 {
    begin!("nvmlDeviceGetArchitecture");
    store(
        into,
        ask_device(device, |target| {
            Ok(match target.gpu.model().arch {
                Generation::Ampere => 7,
                Generation::Hopper => 9,
                Generation::Blackwell => 10,
            })
        }),
    )
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetCudaComputeCapability(
    device: Device,
    major: Option<&mut u32>,
    minor: Option<&mut u32>,
) -> u32 {
    begin!("nvmlDeviceGetCudaComputeCapability");
    let answer = ask_device(device, |target| Ok(target.gpu.model().compute_capability()));
    match store(major, answer.map(|(major, _)| major)) {
        code::SUCCESS => store(minor, answer.map(|(_, minor)| minor)),
        code => code,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetNumGpuCores(device: Device, into: Option<&mut u32>) -> u32 {
    begin!("nvmlDeviceGetNumGpuCores");
    store(into, ask_gpu(device, code::NOT_SUPPORTED, |gpu| Ok(gpu.model().cores())))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetComputeMode(device: Device, into: Option<&mut u32>) -> u32 {
    begin!("nvmlDeviceGetComputeMode");
    store(
        into,
        ask_device(device, |target| {
            Ok(match target.gpu.description.compute_mode {
                ComputeSetting::Default => 0,
                ComputeSetting::Prohibited => 2,
                ComputeSetting::ExclusiveProcess => 3,
            })
        }),
    )
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetPersistenceMode(device: Device, into: Option<&mut u32>) -> u32 {
    begin!("nvmlDeviceGetPersistenceMode");
    store(into, ask_gpu(device, code::NOT_SUPPORTED, |_| Ok(1)))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetVirtualizationMode(device: Device, into: Option<&mut u32>) -> u32 {
    begin!("nvmlDeviceGetVirtualizationMode");
    store(into, ask_device(device, |target| Ok(target.gpu.description.virtualization)))
}
