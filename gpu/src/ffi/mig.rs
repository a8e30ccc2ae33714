//! Reading MIG instances and what they may be made of. Every answer is a value or NVML's return code as a number: the
//! wrapper's error type keeps only the codes that it knows.

use std::ffi::{CStr, c_char};
use std::marker::PhantomData;
use std::mem::{MaybeUninit, size_of};

use migperf_core::mig::offer::{Engines, Placement};
use nvml_wrapper::Device;
use nvml_wrapper_sys::bindings::{
    nvmlComputeInstance_t, nvmlComputeInstanceInfo_t, nvmlComputeInstanceProfileInfo_t, nvmlGpuInstance_t,
    nvmlGpuInstanceInfo_t, nvmlGpuInstancePlacement_t, nvmlGpuInstanceProfileInfo_v2_t,
};

use crate::layout::Refusal;

/// `NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED`: the only one there is.
const ENGINES_SHARED: u32 = 0;

/// A GPU instance of a live device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GpuInstanceHandle<'d> {
    pub(super) raw: nvmlGpuInstance_t,
    device: PhantomData<&'d ()>,
}

/// A compute instance of a live device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ComputeInstanceHandle<'d> {
    pub(super) raw: nvmlComputeInstance_t,
    device: PhantomData<&'d ()>,
}

/// A GPU instance profile as NVML describes it.
#[derive(Debug, Clone)]
pub(crate) struct ProfileInfo {
    pub(crate) id: u32,
    pub(crate) name: String,
    pub(crate) most: u32,
    pub(crate) engines: Engines,
}

/// A compute instance profile within one GPU instance.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PartInfo {
    pub(crate) id: u32,
    pub(crate) slices: u32,
    pub(crate) most: u32,
}

/// What an instance is and where it lies.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InstanceInfo {
    pub(crate) id: u32,
    pub(crate) profile_id: u32,
    pub(crate) placement: Placement,
}

pub(super) fn handle<'d>(raw: nvmlGpuInstance_t) -> GpuInstanceHandle<'d> {
    GpuInstanceHandle { raw, device: PhantomData }
}

#[cfg(feature = "control")]
pub(super) fn compute_handle<'d>(raw: nvmlComputeInstance_t) -> ComputeInstanceHandle<'d> {
    ComputeInstanceHandle { raw, device: PhantomData }
}

/// The code of a call as a result.
pub(super) fn checked(call: &'static str, code: u32) -> Result<(), Refusal> {
    if code == 0 { Ok(()) } else { Err(Refusal { call: call.to_owned(), code }) }
}

/// Looks up a symbol of the library and calls it.
macro_rules! call {
    ($lib:expr, $name:ident, $($argument:expr),*) => {
        match $lib.$name.as_ref() {
            // SAFETY: the signature is the binding's; handles are those of live objects, whose lifetimes keep the library
            // loaded, and every pointer is to something that outlives the call and has the room that NVML writes.
            Ok(function) => $crate::ffi::mig::checked(stringify!($name), unsafe { function($($argument),*) }),
            Err(_) => Err($crate::layout::Refusal {
                call: stringify!($name).to_owned(),
                code: $crate::layout::code::FUNCTION_NOT_FOUND,
            }),
        }
    };
}
#[cfg(feature = "control")]
pub(super) use call;

/// The GPU instance profile of a constant.
pub(crate) fn profile_info(device: &Device<'_>, constant: u32) -> Result<ProfileInfo, Refusal> {
    let mut info = MaybeUninit::<nvmlGpuInstanceProfileInfo_v2_t>::zeroed();
    // SAFETY: the pointer is to a whole structure, zeroed, whose first field is set before NVML reads it.
    unsafe { (*info.as_mut_ptr()).version = version::<nvmlGpuInstanceProfileInfo_v2_t>(2) };
    call!(device.nvml().lib(), nvmlDeviceGetGpuInstanceProfileInfoV, device.handle(), constant, info.as_mut_ptr())?;
    // SAFETY: every bit pattern of the structure's integers and characters is valid, and it was zeroed before.
    let info = unsafe { info.assume_init() };
    Ok(ProfileInfo {
        id: info.id,
        name: text(&info.name),
        most: info.instanceCount,
        engines: Engines([info.copyEngineCount, info.decoderCount, info.encoderCount, info.jpegCount, info.ofaCount]),
    })
}

fn version<T>(number: usize) -> u32 {
    u32::try_from(size_of::<T>() | number << 24).expect("structures are small")
}

fn text(characters: &[c_char]) -> String {
    let bytes: Vec<u8> = characters.iter().map(|c| c.to_ne_bytes()[0]).collect();
    CStr::from_bytes_until_nul(&bytes).map_or_else(|_| String::new(), |text| text.to_string_lossy().into_owned())
}

/// Where instances of a profile may lie on an empty GPU.
pub(crate) fn possible_placements(device: &Device<'_>, profile_id: u32) -> Result<Vec<Placement>, Refusal> {
    let lib = device.nvml().lib();
    let mut count = 0;
    let none = std::ptr::null_mut();
    call!(lib, nvmlDeviceGetGpuInstancePossiblePlacements_v2, device.handle(), profile_id, none, &raw mut count)?;
    let mut placements = vec![nvmlGpuInstancePlacement_t { start: 0, size: 0 }; count as usize];
    let into = placements.as_mut_ptr();
    call!(lib, nvmlDeviceGetGpuInstancePossiblePlacements_v2, device.handle(), profile_id, into, &raw mut count)?;
    placements.truncate(count as usize);
    Ok(placements.into_iter().map(|at| Placement { start: at.start, size: at.size }).collect())
}

/// The GPU instances of a profile, of which there are at most `most`.
pub(crate) fn gpu_instances<'d>(
    device: &'d Device<'_>,
    profile_id: u32,
    most: u32,
) -> Result<Vec<GpuInstanceHandle<'d>>, Refusal> {
    let mut handles = vec![std::ptr::null_mut(); most as usize];
    let mut count = most;
    let into = handles.as_mut_ptr();
    call!(device.nvml().lib(), nvmlDeviceGetGpuInstances, device.handle(), profile_id, into, &raw mut count)?;
    handles.truncate(count as usize);
    Ok(handles.into_iter().map(handle).collect())
}

/// The GPU instance of an id.
pub(crate) fn gpu_instance<'d>(device: &'d Device<'_>, id: u32) -> Result<GpuInstanceHandle<'d>, Refusal> {
    let mut raw: nvmlGpuInstance_t = std::ptr::null_mut();
    call!(device.nvml().lib(), nvmlDeviceGetGpuInstanceById, device.handle(), id, &raw mut raw)?;
    Ok(handle(raw))
}

/// What a GPU instance is.
pub(crate) fn gpu_instance_info(device: &Device<'_>, of: GpuInstanceHandle<'_>) -> Result<InstanceInfo, Refusal> {
    let mut info = MaybeUninit::<nvmlGpuInstanceInfo_t>::zeroed();
    call!(device.nvml().lib(), nvmlGpuInstanceGetInfo, of.raw, info.as_mut_ptr())?;
    // SAFETY: every bit pattern of the structure's integers and pointers is valid, and it was zeroed before.
    let info = unsafe { info.assume_init() };
    let placement = Placement { start: info.placement.start, size: info.placement.size };
    Ok(InstanceInfo { id: info.id, profile_id: info.profileId, placement })
}

/// The compute instance profile of a constant within a GPU instance.
pub(crate) fn part_info(
    device: &Device<'_>,
    within: GpuInstanceHandle<'_>,
    constant: u32,
) -> Result<PartInfo, Refusal> {
    let mut info = MaybeUninit::<nvmlComputeInstanceProfileInfo_t>::zeroed();
    let (lib, into) = (device.nvml().lib(), info.as_mut_ptr());
    call!(lib, nvmlGpuInstanceGetComputeInstanceProfileInfo, within.raw, constant, ENGINES_SHARED, into)?;
    // SAFETY: every bit pattern of the structure's integers is valid, and it was zeroed before.
    let info = unsafe { info.assume_init() };
    Ok(PartInfo { id: info.id, slices: info.sliceCount, most: info.instanceCount })
}

/// How many more compute instances of a profile fit into a GPU instance now.
pub(crate) fn parts_left(device: &Device<'_>, within: GpuInstanceHandle<'_>, profile: u32) -> Result<u32, Refusal> {
    let mut count = 0;
    let lib = device.nvml().lib();
    call!(lib, nvmlGpuInstanceGetComputeInstanceRemainingCapacity, within.raw, profile, &raw mut count)?;
    Ok(count)
}

/// The compute instances of a profile within a GPU instance, of which there are at most `most`.
pub(crate) fn compute_instances<'d>(
    device: &'d Device<'_>,
    within: GpuInstanceHandle<'d>,
    profile_id: u32,
    most: u32,
) -> Result<Vec<ComputeInstanceHandle<'d>>, Refusal> {
    let mut handles = vec![std::ptr::null_mut(); most as usize];
    let mut count = most;
    let into = handles.as_mut_ptr();
    call!(device.nvml().lib(), nvmlGpuInstanceGetComputeInstances, within.raw, profile_id, into, &raw mut count)?;
    handles.truncate(count as usize);
    Ok(handles.into_iter().map(|raw| ComputeInstanceHandle { raw, device: PhantomData }).collect())
}

/// What a compute instance is.
pub(crate) fn compute_instance_info(
    device: &Device<'_>,
    of: ComputeInstanceHandle<'_>,
) -> Result<InstanceInfo, Refusal> {
    let mut info = MaybeUninit::<nvmlComputeInstanceInfo_t>::zeroed();
    call!(device.nvml().lib(), nvmlComputeInstanceGetInfo_v2, of.raw, info.as_mut_ptr())?;
    // SAFETY: every bit pattern of the structure's integers and pointers is valid, and it was zeroed before.
    let info = unsafe { info.assume_init() };
    let placement = Placement { start: info.placement.start, size: info.placement.size };
    Ok(InstanceInfo { id: info.id, profile_id: info.profileId, placement })
}

/// The MIG mode: current and pending.
pub(crate) fn mig_mode(device: &Device<'_>) -> Result<(bool, bool), Refusal> {
    let (mut current, mut pending) = (0, 0);
    call!(device.nvml().lib(), nvmlDeviceGetMigMode, device.handle(), &raw mut current, &raw mut pending)?;
    Ok((current != 0, pending != 0))
}
