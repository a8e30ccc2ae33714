//! The calls that change a GPU's division, and those about compute instances.

use std::ptr::NonNull;

use nvml_wrapper_sys::bindings::{
    nvmlComputeInstanceInfo_t, nvmlComputeInstancePlacement_t, nvmlComputeInstanceProfileInfo_t,
    nvmlComputeInstanceProfileInfo_v2_t, nvmlGpuInstancePlacement_t,
};
use sim_machine::catalog::{Profile, Slot};
use sim_machine::machine::Machine;
use sim_machine::mig::{COMPUTE_CONSTANTS, Refused, compute_profiles, compute_starts};
use sim_machine::shared::now_ns;
use sim_machine::state::{Instance, State};

use crate::fault::begin;
use crate::handle::{ComputeInstance, Device, Gpu, GpuInstance, ask_compute, ask_gpu, ask_instance};
use crate::instances::{put_array, version};
use crate::session::change;
use crate::text::fill;
use crate::{Answer, code, store};

/// Only root may divide a GPU.
fn privileged() -> Answer<()> {
    if nix::unistd::geteuid().is_root() { Ok(()) } else { Err(code::NO_PERMISSION) }
}

fn number(refused: Refused) -> u32 {
    refused as u32
}

/// The index of the GPU that a handle means.
fn index_of(device: Device) -> Answer<usize> {
    ask_gpu(device, code::INVALID_ARGUMENT, |gpu| Ok(gpu.index))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceSetMigMode(device: Device, mode: u32, activation: Option<&mut u32>) -> u32 {
    begin!("nvmlDeviceSetMigMode");
    let Some(activation) = activation else { return code::INVALID_ARGUMENT };
    let answer = index_of(device).and_then(|gpu| {
        if mode > 1 {
            return Err(code::INVALID_ARGUMENT);
        }
        privileged()?;
        let own = std::process::id();
        change(|machine, state| state.set_mode(machine, gpu, mode == 1, own).map_err(number))
    });
    match answer {
        Ok(status) => {
            *activation = status.err().map_or(code::SUCCESS, number);
            code::SUCCESS
        }
        Err(code) => code,
    }
}

fn create(device: Device, profile: u32, at: Option<Slot>, into: Option<&mut GpuInstance>) -> u32 {
    if into.is_none() {
        return code::INVALID_ARGUMENT;
    }
    let made = index_of(device).and_then(|gpu| {
        privileged()?;
        change(|machine, state| {
            let id = state.gpus[gpu].create_instance(&machine.gpus[gpu], profile, at).map_err(number)?;
            Ok(GpuInstance::new(gpu, id))
        })
    });
    store(into, made)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceCreateGpuInstance(device: Device, profile: u32, into: Option<&mut GpuInstance>) -> u32 {
    begin!("nvmlDeviceCreateGpuInstance");
    create(device, profile, None, into)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceCreateGpuInstanceWithPlacement(
    device: Device,
    profile: u32,
    placement: Option<&nvmlGpuInstancePlacement_t>,
    into: Option<&mut GpuInstance>,
) -> u32 {
    begin!("nvmlDeviceCreateGpuInstanceWithPlacement");
    let Some(placement) = placement else { return code::INVALID_ARGUMENT };
    create(device, profile, Some(Slot { start: placement.start, size: placement.size }), into)
}

/// Changes something of a GPU instance that exists.
fn change_instance<T>(
    instance: GpuInstance,
    act: impl Fn(&Machine, &mut State, usize, u32) -> Result<T, Refused>,
) -> Answer<T> {
    let (gpu, id) = ask_instance(instance, |gpu, instance| Ok((gpu.index, instance.id)))?;
    privileged()?;
    change(|machine, state| act(machine, state, gpu, id).map_err(number))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlGpuInstanceDestroy(instance: GpuInstance) -> u32 {
    begin!("nvmlGpuInstanceDestroy");
    let done = change_instance(instance, |_, state, gpu, id| state.gpus[gpu].destroy_instance(id));
    done.err().unwrap_or(code::SUCCESS)
}

fn create_compute(instance: GpuInstance, profile: u32, at: Option<Slot>, into: Option<&mut ComputeInstance>) -> u32 {
    if into.is_none() {
        return code::INVALID_ARGUMENT;
    }
    let made = change_instance(instance, |machine, state, gpu, id| {
        let birth = state.birth(now_ns());
        let compute = state.gpus[gpu].create_compute(&machine.gpus[gpu], id, profile, at, &birth)?;
        Ok(ComputeInstance::new(gpu, id, compute))
    });
    store(into, made)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlGpuInstanceCreateComputeInstance(
    instance: GpuInstance,
    profile: u32,
    into: Option<&mut ComputeInstance>,
) -> u32 {
    begin!("nvmlGpuInstanceCreateComputeInstance");
    create_compute(instance, profile, None, into)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlGpuInstanceCreateComputeInstanceWithPlacement(
    instance: GpuInstance,
    profile: u32,
    placement: Option<&nvmlComputeInstancePlacement_t>,
    into: Option<&mut ComputeInstance>,
) -> u32 {
    begin!("nvmlGpuInstanceCreateComputeInstanceWithPlacement");
    let Some(placement) = placement else { return code::INVALID_ARGUMENT };
    create_compute(instance, profile, Some(Slot { start: placement.start, size: placement.size }), into)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlComputeInstanceDestroy(compute: ComputeInstance) -> u32 {
    begin!("nvmlComputeInstanceDestroy");
    let done = ask_compute(compute, |gpu, instance, compute| Ok((gpu.index, instance.id, compute.id))).and_then(
        |(gpu, instance, compute)| {
            privileged()?;
            change(|_, state| state.gpus[gpu].destroy_compute(instance, compute).map_err(number))
        },
    );
    done.err().unwrap_or(code::SUCCESS)
}

/// A compute instance profile of a GPU instance: id, slices and how many fit.
fn profile_info(
    gpu: Gpu<'_>,
    instance: &Instance,
    constant: u32,
    engine: u32,
) -> Answer<nvmlComputeInstanceProfileInfo_t> {
    let catalog = instance.catalog(gpu.description).ok_or(code::UNKNOWN)?;
    if constant >= COMPUTE_CONSTANTS || engine != 0 {
        return Err(code::INVALID_ARGUMENT);
    }
    let (id, slices) = compute_profile(catalog, constant).ok_or(code::NOT_SUPPORTED)?;
    Ok(nvmlComputeInstanceProfileInfo_t {
        id,
        sliceCount: slices,
        instanceCount: u32::try_from(compute_starts(catalog.compute_slices, slices).len()).unwrap_or(u32::MAX),
        multiprocessorCount: catalog.sm_count.unwrap_or(0) * slices / catalog.compute_slices.max(1),
        sharedCopyEngineCount: catalog.engines.ce,
        sharedDecoderCount: catalog.engines.dec,
        sharedEncoderCount: catalog.engines.enc,
        sharedJpegCount: catalog.engines.jpeg,
        sharedOfaCount: catalog.engines.ofa,
    })
}

fn compute_profile(catalog: &Profile, id: u32) -> Option<(u32, u32)> {
    compute_profiles(catalog).into_iter().find(|(known, _)| *known == id)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlGpuInstanceGetComputeInstanceProfileInfo(
    instance: GpuInstance,
    constant: u32,
    engine: u32,
    into: Option<&mut nvmlComputeInstanceProfileInfo_t>,
) -> u32 {
    begin!("nvmlGpuInstanceGetComputeInstanceProfileInfo");
    store(into, ask_instance(instance, |gpu, instance| profile_info(gpu, instance, constant, engine)))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlGpuInstanceGetComputeInstanceProfileInfoV(
    instance: GpuInstance,
    constant: u32,
    engine: u32,
    into: Option<&mut nvmlComputeInstanceProfileInfo_v2_t>,
) -> u32 {
    begin!("nvmlGpuInstanceGetComputeInstanceProfileInfoV");
    let Some(into) = into else { return code::INVALID_ARGUMENT };
    if into.version != version::<nvmlComputeInstanceProfileInfo_v2_t>(2) {
        return code::ARGUMENT_VERSION_MISMATCH;
    }
    let answer = ask_instance(instance, |gpu, instance| {
        let info = profile_info(gpu, instance, constant, engine)?;
        let whole = instance.catalog(gpu.description).is_some_and(|catalog| catalog.compute_slices == info.sliceCount);
        let part = if whole { String::new() } else { format!("{}c.", info.sliceCount) };
        Ok((info, format!("MIG {part}{}", instance.profile)))
    });
    match answer {
        Ok((info, name)) => {
            into.id = info.id;
            into.sliceCount = info.sliceCount;
            into.instanceCount = info.instanceCount;
            into.multiprocessorCount = info.multiprocessorCount;
            into.sharedCopyEngineCount = info.sharedCopyEngineCount;
            into.sharedDecoderCount = info.sharedDecoderCount;
            into.sharedEncoderCount = info.sharedEncoderCount;
            into.sharedJpegCount = info.sharedJpegCount;
            into.sharedOfaCount = info.sharedOfaCount;
            fill(&mut into.name, &name);
            code::SUCCESS
        }
        Err(code) => code,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlGpuInstanceGetComputeInstanceRemainingCapacity(
    instance: GpuInstance,
    profile: u32,
    into: Option<&mut u32>,
) -> u32 {
    begin!("nvmlGpuInstanceGetComputeInstanceRemainingCapacity");
    store(
        into,
        ask_instance(instance, |gpu, instance| {
            let catalog = instance.catalog(gpu.description).ok_or(code::UNKNOWN)?;
            let (_, slices) = compute_profile(catalog, profile).ok_or(code::INVALID_ARGUMENT)?;
            Ok(gpu.state.compute_remaining(catalog.compute_slices, instance, slices))
        }),
    )
}

/// # Safety
/// `placements` is null or has room for `count` entries.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlGpuInstanceGetComputeInstancePossiblePlacements(
    instance: GpuInstance,
    profile: u32,
    placements: Option<NonNull<nvmlComputeInstancePlacement_t>>,
    count: Option<&mut u32>,
) -> u32 {
    begin!("nvmlGpuInstanceGetComputeInstancePossiblePlacements");
    let answer = ask_instance(instance, |gpu, instance| {
        let catalog = instance.catalog(gpu.description).ok_or(code::UNKNOWN)?;
        let (_, slices) = compute_profile(catalog, profile).ok_or(code::INVALID_ARGUMENT)?;
        let place = |start| nvmlComputeInstancePlacement_t { start, size: slices };
        Ok(compute_starts(catalog.compute_slices, slices).into_iter().map(place).collect::<Vec<_>>())
    });
    // SAFETY: the caller's promise is this function's.
    unsafe { put_array(placements, count, answer, code::SUCCESS) }
}

/// # Safety
/// `computes` is null or has room for every compute instance that exists; a caller learns how many from the profile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlGpuInstanceGetComputeInstances(
    instance: GpuInstance,
    profile: u32,
    computes: Option<NonNull<ComputeInstance>>,
    count: Option<&mut u32>,
) -> u32 {
    begin!("nvmlGpuInstanceGetComputeInstances");
    let answer = ask_instance(instance, |gpu, instance| {
        let catalog = instance.catalog(gpu.description).ok_or(code::UNKNOWN)?;
        let (_, slices) = compute_profile(catalog, profile).ok_or(code::INVALID_ARGUMENT)?;
        let of_profile = instance.compute.iter().filter(|compute| compute.slices == slices);
        Ok(of_profile.map(|compute| ComputeInstance::new(gpu.index, instance.id, compute.id)).collect::<Vec<_>>())
    });
    let Some(count) = count else { return code::INVALID_ARGUMENT };
    // The count is not read: the array has room for the profile's greatest number of instances.
    *count = u32::MAX;
    // SAFETY: the caller's promise is this function's.
    unsafe { put_array(computes, Some(count), answer, code::INVALID_ARGUMENT) }
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlGpuInstanceGetComputeInstanceById(
    instance: GpuInstance,
    id: u32,
    into: Option<&mut ComputeInstance>,
) -> u32 {
    begin!("nvmlGpuInstanceGetComputeInstanceById");
    store(
        into,
        ask_instance(instance, |gpu, instance| {
            let found = instance.compute.iter().find(|compute| compute.id == id);
            found.map(|_| ComputeInstance::new(gpu.index, instance.id, id)).ok_or(code::NOT_FOUND)
        }),
    )
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlComputeInstanceGetInfo_v2(
    compute: ComputeInstance,
    into: Option<&mut nvmlComputeInstanceInfo_t>,
) -> u32 {
    begin!("nvmlComputeInstanceGetInfo_v2");
    store(
        into,
        ask_compute(compute, |gpu, instance, compute| {
            let catalog = instance.catalog(gpu.description).ok_or(code::UNKNOWN)?;
            let profile = compute_profiles(catalog).into_iter().find(|(_, slices)| *slices == compute.slices);
            Ok(nvmlComputeInstanceInfo_t {
                // Handles, which a C caller takes for pointers.
                device: std::ptr::without_provenance_mut(Device::gpu(gpu.index).number()),
                gpuInstance: std::ptr::without_provenance_mut(GpuInstance::new(gpu.index, instance.id).number()),
                id: compute.id,
                profileId: profile.ok_or(code::UNKNOWN)?.0,
                placement: nvmlComputeInstancePlacement_t { start: compute.start, size: compute.slices },
            })
        }),
    )
}
