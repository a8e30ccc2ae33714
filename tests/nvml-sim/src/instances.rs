//! What MIG is on a GPU: the mode, the profiles, and the GPU instances that exist. Nothing here changes any.

use std::ptr::NonNull;

use nvml_wrapper_sys::bindings::{
    nvmlDeviceAttributes_t, nvmlGpuInstanceInfo_t, nvmlGpuInstancePlacement_t, nvmlGpuInstanceProfileInfo_t,
    nvmlGpuInstanceProfileInfo_v2_t,
};
use sim_machine::catalog::{PROFILE_CONSTANTS, Profile};
use sim_machine::machine::MigSetting;

use crate::fault::begin;
use crate::handle::{Device, Gpu, GpuInstance, ask_device, ask_gpu, ask_instance};
use crate::text::fill;
use crate::{Answer, code, store};

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetMigMode(device: Device, current: Option<&mut u32>, pending: Option<&mut u32>) -> u32 {
    begin!("nvmlDeviceGetMigMode");
    let answer = ask_gpu(device, code::INVALID_ARGUMENT, |gpu| gpu.state.mig.ok_or(code::NOT_SUPPORTED));
    match store(current, answer.map(|(current, _)| u32::from(current))) {
        code::SUCCESS => store(pending, answer.map(|(_, pending)| u32::from(pending))),
        code => code,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceIsMigDeviceHandle(device: Device, into: Option<&mut u32>) -> u32 {
    begin!("nvmlDeviceIsMigDeviceHandle");
    store(into, ask_device(device, |target| Ok(u32::from(target.instance.is_some()))))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetMaxMigDeviceCount(device: Device, into: Option<&mut u32>) -> u32 {
    begin!("nvmlDeviceGetMaxMigDeviceCount");
    store(
        into,
        ask_gpu(device, code::INVALID_ARGUMENT, |gpu| {
            Ok(if gpu.state.is_partitioned() { gpu.model().compute_slices } else { 0 })
        }),
    )
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetMigDeviceHandleByIndex(device: Device, index: u32, into: Option<&mut Device>) -> u32 {
    begin!("nvmlDeviceGetMigDeviceHandleByIndex");
    store(
        into,
        ask_gpu(device, code::INVALID_ARGUMENT, |gpu| {
            let found = gpu.state.mig_devices().nth(index as usize).filter(|_| gpu.state.is_partitioned());
            found.map(|(gi, ci)| Device::mig(gpu.index, gi.id, ci.id)).ok_or(code::NOT_FOUND)
        }),
    )
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device: Device, into: Option<&mut Device>) -> u32 {
    begin!("nvmlDeviceGetDeviceHandleFromMigDeviceHandle");
    store(
        into,
        ask_device(device, |target| match target.instance {
            Some(_) => Ok(Device::gpu(target.gpu.index)),
            None => Err(code::INVALID_ARGUMENT),
        }),
    )
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetGpuInstanceId(device: Device, into: Option<&mut u32>) -> u32 {
    begin!("nvmlDeviceGetGpuInstanceId");
    let id = ask_device(device, |target| target.instance.map(|(gi, _)| gi.id).ok_or(code::INVALID_ARGUMENT));
    store(into, id)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetComputeInstanceId(device: Device, into: Option<&mut u32>) -> u32 {
    begin!("nvmlDeviceGetComputeInstanceId");
    let id = ask_device(device, |target| target.instance.map(|(_, ci)| ci.id).ok_or(code::INVALID_ARGUMENT));
    store(into, id)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetAttributes_v2(device: Device, into: Option<&mut nvmlDeviceAttributes_t>) -> u32 {
    begin!("nvmlDeviceGetAttributes_v2");
    store(
        into,
        ask_device(device, |target| {
            let (instance, compute) = target.instance.ok_or(code::NOT_SUPPORTED)?;
            let profile = instance.catalog(target.gpu.description).ok_or(code::UNKNOWN)?;
            Ok(nvmlDeviceAttributes_t {
                multiprocessorCount: instance.multiprocessors(target.gpu.description, compute),
                sharedCopyEngineCount: profile.engines.ce,
                sharedDecoderCount: profile.engines.dec,
                sharedEncoderCount: profile.engines.enc,
                sharedJpegCount: profile.engines.jpeg,
                sharedOfaCount: profile.engines.ofa,
                gpuInstanceSliceCount: profile.compute_slices,
                computeInstanceSliceCount: compute.slices,
                memorySizeMB: profile.memory_mb.unwrap_or(0),
            })
        }),
    )
}

/// The profile of a constant: absent ones are not supported, unknown ones not arguments.
fn by_constant(gpu: Gpu<'_>, constant: u32) -> Answer<&'static Profile> {
    if gpu.description.mig == MigSetting::Unsupported {
        return Err(code::NOT_SUPPORTED);
    }
    let found = gpu.model().profiles.iter().find(|profile| profile.constant == constant);
    found.ok_or(if constant < PROFILE_CONSTANTS { code::NOT_SUPPORTED } else { code::INVALID_ARGUMENT })
}

fn by_id(gpu: Gpu<'_>, id: u32) -> Answer<&'static Profile> {
    gpu.model().profiles.iter().find(|profile| profile.id == id).ok_or(code::INVALID_ARGUMENT)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetGpuInstanceProfileInfo(
    device: Device,
    constant: u32,
    into: Option<&mut nvmlGpuInstanceProfileInfo_t>,
) -> u32 {
    begin!("nvmlDeviceGetGpuInstanceProfileInfo");
    store(
        into,
        ask_gpu(device, code::INVALID_ARGUMENT, |gpu| {
            let profile = by_constant(gpu, constant)?;
            Ok(nvmlGpuInstanceProfileInfo_t {
                id: profile.id,
                isP2pSupported: 0,
                sliceCount: profile.compute_slices,
                instanceCount: profile.max_instances,
                multiprocessorCount: profile.sm_count.unwrap_or(0),
                copyEngineCount: profile.engines.ce,
                decoderCount: profile.engines.dec,
                encoderCount: profile.engines.enc,
                jpegCount: profile.engines.jpeg,
                ofaCount: profile.engines.ofa,
                memorySizeMB: profile.memory_mb.unwrap_or(0),
            })
        }),
    )
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetGpuInstanceProfileInfoV(
    device: Device,
    constant: u32,
    into: Option<&mut nvmlGpuInstanceProfileInfo_v2_t>,
) -> u32 {
    begin!("nvmlDeviceGetGpuInstanceProfileInfoV");
    let Some(into) = into else { return code::INVALID_ARGUMENT };
    if into.version != version::<nvmlGpuInstanceProfileInfo_v2_t>(2) {
        return code::ARGUMENT_VERSION_MISMATCH;
    }
    let answer = ask_gpu(device, code::INVALID_ARGUMENT, |gpu| by_constant(gpu, constant));
    match answer {
        Ok(profile) => {
            into.id = profile.id;
            into.isP2pSupported = 0;
            into.sliceCount = profile.compute_slices;
            into.instanceCount = profile.max_instances;
            into.multiprocessorCount = profile.sm_count.unwrap_or(0);
            into.copyEngineCount = profile.engines.ce;
            into.decoderCount = profile.engines.dec;
            into.encoderCount = profile.engines.enc;
            into.jpegCount = profile.engines.jpeg;
            into.ofaCount = profile.engines.ofa;
            into.memorySizeMB = profile.memory_mb.unwrap_or(0);
            fill(&mut into.name, &format!("MIG {}", profile.name));
            code::SUCCESS
        }
        Err(code) => code,
    }
}

/// The version that a structure must carry.
pub(crate) fn version<T>(number: usize) -> u32 {
    u32::try_from(size_of::<T>() | number << 24).unwrap_or(0)
}

/// # Safety
/// `placements` is null or has room for `count` entries.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGpuInstancePossiblePlacements_v2(
    device: Device,
    profile: u32,
    placements: Option<NonNull<nvmlGpuInstancePlacement_t>>,
    count: Option<&mut u32>,
) -> u32 {
    begin!("nvmlDeviceGetGpuInstancePossiblePlacements_v2");
    let answer = ask_gpu(device, code::INVALID_ARGUMENT, |gpu| {
        let slots = by_id(gpu, profile)?.placements.iter();
        Ok(slots.map(|slot| nvmlGpuInstancePlacement_t { start: slot.start, size: slot.size }).collect::<Vec<_>>())
    });
    // SAFETY: the caller's promise is this function's.
    unsafe { put_array(placements, count, answer, code::SUCCESS) }
}

/// Copies as many entries as there are, or says how many there are; `asked` is the code for a caller without an array.
///
/// # Safety
/// `array` is null or has room for `count` entries.
pub(crate) unsafe fn put_array<T>(
    array: Option<NonNull<T>>,
    count: Option<&mut u32>,
    answer: Answer<Vec<T>>,
    asked: u32,
) -> u32 {
    let Some(count) = count else { return code::INVALID_ARGUMENT };
    let entries = match answer {
        Ok(entries) => entries,
        Err(code) => return code,
    };
    let room = *count as usize;
    *count = u32::try_from(entries.len()).unwrap_or(u32::MAX);
    match array {
        None => asked,
        Some(_) if entries.len() > room => code::INSUFFICIENT_SIZE,
        Some(array) => {
            for (index, entry) in entries.into_iter().enumerate() {
                // SAFETY: the caller has room for `room` entries, and there are no more than that.
                unsafe { array.add(index).write(entry) };
            }
            code::SUCCESS
        }
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetGpuInstanceRemainingCapacity(
    device: Device,
    profile: u32,
    into: Option<&mut u32>,
) -> u32 {
    begin!("nvmlDeviceGetGpuInstanceRemainingCapacity");
    store(
        into,
        ask_gpu(device, code::INVALID_ARGUMENT, |gpu| Ok(gpu.state.remaining(gpu.model(), by_id(gpu, profile)?))),
    )
}

/// # Safety
/// `instances` is null or has room for every instance that exists; a caller learns how many from the profile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGpuInstances(
    device: Device,
    profile: u32,
    instances: Option<NonNull<GpuInstance>>,
    count: Option<&mut u32>,
) -> u32 {
    begin!("nvmlDeviceGetGpuInstances");
    let answer = ask_gpu(device, code::INVALID_ARGUMENT, |gpu| {
        let name = &by_id(gpu, profile)?.name;
        let found = gpu.state.instances.iter().filter(|instance| instance.profile == *name);
        Ok(found.map(|instance| GpuInstance::new(gpu.index, instance.id)).collect::<Vec<_>>())
    });
    let Some(count) = count else { return code::INVALID_ARGUMENT };
    // The count is not read: the array has room for the profile's greatest number of instances.
    *count = u32::MAX;
    // SAFETY: the caller's promise is this function's.
    unsafe { put_array(instances, Some(count), answer, code::INVALID_ARGUMENT) }
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetGpuInstanceById(device: Device, id: u32, into: Option<&mut GpuInstance>) -> u32 {
    begin!("nvmlDeviceGetGpuInstanceById");
    store(
        into,
        ask_gpu(device, code::INVALID_ARGUMENT, |gpu| {
            gpu.state.instance(id).map(|_| GpuInstance::new(gpu.index, id)).ok_or(code::NOT_FOUND)
        }),
    )
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlGpuInstanceGetInfo(instance: GpuInstance, into: Option<&mut nvmlGpuInstanceInfo_t>) -> u32 {
    begin!("nvmlGpuInstanceGetInfo");
    store(
        into,
        ask_instance(instance, |gpu, instance| {
            Ok(nvmlGpuInstanceInfo_t {
                // The handle of the parent, which a C caller takes for a pointer.
                device: std::ptr::without_provenance_mut(Device::gpu(gpu.index).number()),
                id: instance.id,
                profileId: instance.catalog(gpu.description).ok_or(code::UNKNOWN)?.id,
                placement: nvmlGpuInstancePlacement_t { start: instance.start, size: instance.size },
            })
        }),
    )
}
