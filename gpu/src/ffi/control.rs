//! The calls that change a device.

use std::ptr;

use migperf_core::mig::offer::Placement;
use nvml_wrapper::Device;
use nvml_wrapper_sys::bindings::{
    nvmlComputeInstance_t, nvmlComputeInstanceInfo_t, nvmlComputeInstancePlacement_t, nvmlGpuInstance_t,
    nvmlGpuInstancePlacement_t,
};

use super::mig::{ComputeInstanceHandle, GpuInstanceHandle, call, gpu_instance_info, handle};
use crate::layout::{Refusal, code};

/// Asks for a MIG mode. Gives the activation status: unless it is 0, the mode is pending and not there.
pub(crate) fn set_mig_mode(device: &Device<'_>, on: bool) -> Result<u32, Refusal> {
    let mut activation = 0;
    call!(device.nvml().lib(), nvmlDeviceSetMigMode, device.handle(), u32::from(on), &raw mut activation)?;
    Ok(activation)
}

/// Creates a GPU instance at a place and gives its id.
pub(crate) fn create_gpu_instance(device: &Device<'_>, profile: u32, at: Placement) -> Result<u32, Refusal> {
    let placement = nvmlGpuInstancePlacement_t { start: at.start, size: at.size };
    let mut raw: nvmlGpuInstance_t = ptr::null_mut();
    let (lib, at) = (device.nvml().lib(), &raw const placement);
    call!(lib, nvmlDeviceCreateGpuInstanceWithPlacement, device.handle(), profile, at, &raw mut raw)?;
    made("nvmlDeviceCreateGpuInstanceWithPlacement", raw)?;
    gpu_instance_info(device, handle(raw)).map(|info| info.id)
}

/// A call that succeeded without a handle did nothing.
fn made<T>(call: &str, handle: *mut T) -> Result<(), Refusal> {
    if handle.is_null() { Err(Refusal { call: call.to_owned(), code: code::NOT_FOUND }) } else { Ok(()) }
}

/// Destroys a GPU instance.
pub(crate) fn destroy_gpu_instance(device: &Device<'_>, instance: GpuInstanceHandle<'_>) -> Result<(), Refusal> {
    call!(device.nvml().lib(), nvmlGpuInstanceDestroy, instance.raw)
}

/// Creates a compute instance, at a place where one is said, and gives its id.
pub(crate) fn create_compute_instance(
    device: &Device<'_>,
    within: GpuInstanceHandle<'_>,
    profile: u32,
    at: Option<Placement>,
) -> Result<u32, Refusal> {
    let lib = device.nvml().lib();
    let mut raw: nvmlComputeInstance_t = ptr::null_mut();
    match at {
        None => call!(lib, nvmlGpuInstanceCreateComputeInstance, within.raw, profile, &raw mut raw)?,
        Some(at) => {
            let placement = nvmlComputeInstancePlacement_t { start: at.start, size: at.size };
            let (at, into) = (&raw const placement, &raw mut raw);
            call!(lib, nvmlGpuInstanceCreateComputeInstanceWithPlacement, within.raw, profile, at, into)?;
        }
    }
    made("nvmlGpuInstanceCreateComputeInstance", raw)?;
    let mut info = std::mem::MaybeUninit::<nvmlComputeInstanceInfo_t>::zeroed();
    call!(lib, nvmlComputeInstanceGetInfo_v2, raw, info.as_mut_ptr())?;
    // SAFETY: every bit pattern of the structure's integers and pointers is valid, and it was zeroed before.
    Ok(unsafe { info.assume_init() }.id)
}

/// Destroys a compute instance.
pub(crate) fn destroy_compute_instance(
    device: &Device<'_>,
    instance: ComputeInstanceHandle<'_>,
) -> Result<(), Refusal> {
    call!(device.nvml().lib(), nvmlComputeInstanceDestroy, instance.raw)
}

/// The compute instance of an id within a GPU instance.
pub(crate) fn compute_instance<'d>(
    device: &Device<'_>,
    within: GpuInstanceHandle<'d>,
    id: u32,
) -> Result<ComputeInstanceHandle<'d>, Refusal> {
    let mut raw: nvmlComputeInstance_t = ptr::null_mut();
    call!(device.nvml().lib(), nvmlGpuInstanceGetComputeInstanceById, within.raw, id, &raw mut raw)?;
    made("nvmlGpuInstanceGetComputeInstanceById", raw)?;
    Ok(super::mig::compute_handle(raw))
}
