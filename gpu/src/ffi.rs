//! The NVML calls that the safe wrapper lacks or answers ambiguously, and the crate's only unsafe code.
//!
//! Each takes a device of the wrapper, looks the symbol up as a field (the wrapper's methods panic where a library lacks
//! it) and returns plain values. No C type leaves this module.

#![expect(unsafe_code, reason = "NVML is a C library")]

#[cfg(feature = "control")]
pub(crate) mod control;
pub(crate) mod mig;

use std::mem::MaybeUninit;

use migperf_core::device::Placement;
use nvml_wrapper::Device;
use nvml_wrapper::error::{NvmlError as Answer, nvml_sym, nvml_try};
use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlGpuInstance_t, nvmlGpuInstanceInfo_t, nvmlReturn_t};

type Getter = unsafe extern "C" fn(nvmlDevice_t, *mut u32) -> nvmlReturn_t;

/// Calls a getter of one unsigned number.
///
/// The wrapper's enums would do for most, but it reports an unknown value and an unknown return code alike.
fn number<E: std::fmt::Display>(device: &Device<'_>, getter: Result<&Getter, E>) -> Result<u32, Answer> {
    let getter = getter.map_err(|error| Answer::FailedToLoadSymbol(error.to_string()))?;
    let mut value = 0;
    // SAFETY: the symbol has this signature in nvml.h (its enums are C unsigned ints), the handle is that of a live
    // `Device`, whose lifetime keeps the library loaded, and `value` outlives the call.
    nvml_try(unsafe { getter(device.handle(), &raw mut value) })?;
    Ok(value)
}

/// `nvmlComputeMode_t`.
pub(crate) fn compute_mode(device: &Device<'_>) -> Result<u32, Answer> {
    number(device, device.nvml().lib().nvmlDeviceGetComputeMode.as_ref())
}

/// `nvmlGpuVirtualizationMode_t`.
pub(crate) fn virtualization_mode(device: &Device<'_>) -> Result<u32, Answer> {
    number(device, device.nvml().lib().nvmlDeviceGetVirtualizationMode.as_ref())
}

/// `nvmlDeviceArchitecture_t`.
pub(crate) fn architecture(device: &Device<'_>) -> Result<u32, Answer> {
    number(device, device.nvml().lib().nvmlDeviceGetArchitecture.as_ref())
}

/// The GPU instance that a MIG device lies in.
pub(crate) fn gpu_instance_id(device: &Device<'_>) -> Result<u32, Answer> {
    number(device, device.nvml().lib().nvmlDeviceGetGpuInstanceId.as_ref())
}

/// The compute instance that a MIG device is, within its GPU instance.
pub(crate) fn compute_instance_id(device: &Device<'_>) -> Result<u32, Answer> {
    number(device, device.nvml().lib().nvmlDeviceGetComputeInstanceId.as_ref())
}

/// Where a GPU instance lies on its parent.
pub(crate) fn placement(parent: &Device<'_>, gpu_instance: u32) -> Result<Placement, Answer> {
    let lib = parent.nvml().lib();
    let by_id = nvml_sym(lib.nvmlDeviceGetGpuInstanceById.as_ref())?;
    let get_info = nvml_sym(lib.nvmlGpuInstanceGetInfo.as_ref())?;
    let mut instance: nvmlGpuInstance_t = std::ptr::null_mut();
    // SAFETY: the signature is the binding's, the parent's handle is live, and `instance` outlives the call.
    nvml_try(unsafe { by_id(parent.handle(), gpu_instance, &raw mut instance) })?;
    let mut info = MaybeUninit::<nvmlGpuInstanceInfo_t>::zeroed();
    // SAFETY: `instance` was given by the call above, and `info` has the size and alignment that NVML writes.
    nvml_try(unsafe { get_info(instance, info.as_mut_ptr()) })?;
    // SAFETY: every bit pattern of the structure's integers and pointers is valid, and it was zeroed before.
    let info = unsafe { info.assume_init() };
    Ok(Placement { start: info.placement.start, size: info.placement.size })
}
