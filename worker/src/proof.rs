//! What this process finds when it asks the CUDA driver for its device. Whether that is what was assigned is judged by
//! the daemon, with [`migperf_core::proof`].

use std::sync::Arc;

use cudarc::driver::sys::CUdevice_attribute_enum::{
    CU_DEVICE_ATTRIBUTE_MPS_ENABLED, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
};
use cudarc::driver::{CudaContext, DriverError, result, sys};
use migperf_core::ids::DeviceUuid;
use migperf_core::units::Bytes;
use migperf_core::worker_wire::{Allocation, Proof};
use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;

/// Why the device could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum ProofError {
    /// There is no CUDA driver.
    #[error("libcuda.so.1 can't be loaded: the NVIDIA driver's compute library is not installed, or not visible here")]
    NoDriver,
    /// The driver refused.
    #[error("the CUDA driver failed at {0}")]
    Driver(&'static str, #[source] DriverError),
}

/// A device that was found, and the primary context that keeps this process visible on it.
#[derive(Debug)]
pub struct Found {
    /// What the driver told.
    pub proof: Proof,
    /// Held until the worker ends; libtorch uses the same context.
    _context: Option<Arc<CudaContext>>,
}

/// Asks for what an allocation says should be there. A worker on the CPU asks nothing of a driver.
///
/// # Errors
/// If there is no driver, or it refuses. A wrong device is no error here.
pub fn find(allocation: &Allocation) -> Result<Found, ProofError> {
    let mut proof = Proof {
        devices: 0,
        uuid: None,
        name: None,
        multiprocessors: None,
        memory: None,
        mps: None,
        driver_version: None,
        processors: processors(),
    };
    if *allocation == Allocation::Cpu {
        return Ok(Found { proof, _context: None });
    }
    // SAFETY: only looks for the library.
    if !unsafe { sys::is_culib_present() } {
        return Err(ProofError::NoDriver);
    }
    let at = |act: &'static str| move |error| ProofError::Driver(act, error);
    result::init().map_err(at("cuInit"))?;
    let count = result::device::get_count().map_err(at("cuDeviceGetCount"))?;
    proof.devices = u32::try_from(count).unwrap_or(0);
    if count == 0 {
        return Ok(Found { proof, _context: None });
    }
    let context = CudaContext::new(0).map_err(at("cuDevicePrimaryCtxRetain"))?;
    let device = context.cu_device();
    let attribute = |attribute| {
        // SAFETY: `device` is a device of this driver, which the context above retains.
        unsafe { result::device::get_attribute(device, attribute) }.map_err(at("cuDeviceGetAttribute"))
    };
    proof.multiprocessors = u32::try_from(attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?).ok();
    proof.mps = Some(attribute(CU_DEVICE_ATTRIBUTE_MPS_ENABLED)? != 0);
    proof.name = Some(context.name().map_err(at("cuDeviceGetName"))?);
    // SAFETY: as above.
    let memory = unsafe { result::device::total_mem(device) }.map_err(at("cuDeviceTotalMem"))?;
    proof.memory = Some(Bytes(memory as u64));
    let mut version = 0;
    // SAFETY: `version` is a valid place for one int.
    unsafe { sys::cuDriverGetVersion(&raw mut version) }.result().map_err(at("cuDriverGetVersion"))?;
    proof.driver_version = u32::try_from(version).ok();
    proof.uuid = Some(uuid(device, allocation).map_err(at("cuDeviceGetUuid_v2"))?);
    Ok(Found { proof, _context: Some(context) })
}

/// `cuDeviceGetUuid_v2`, which under MIG answers for the instance and not for its GPU, in NVML's notation: with the
/// prefix of what was assigned, since CUDA gives 16 bytes without one.
fn uuid(device: sys::CUdevice, allocation: &Allocation) -> Result<DeviceUuid, DriverError> {
    let mut raw = sys::CUuuid { bytes: [0; 16] };
    // SAFETY: `raw` is a valid place for one UUID, and `device` a device of this driver.
    unsafe { sys::cuDeviceGetUuid_v2(&raw mut raw, device) }.result()?;
    let digits: String = raw.bytes.iter().map(|byte| format!("{:02x}", byte.cast_unsigned())).collect();
    let groups = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]];
    let mig = matches!(allocation, Allocation::Cuda { uuid: DeviceUuid::Mig(_), .. });
    let text = format!("{}-{}", if mig { "MIG" } else { "GPU" }, groups.join("-"));
    Ok(text.parse().expect("16 bytes in hexadecimal are a UUID"))
}

fn processors() -> Vec<u32> {
    let Ok(set) = sched_getaffinity(Pid::from_raw(0)) else { return Vec::new() };
    (0..CpuSet::count())
        .filter(|cpu| set.is_set(*cpu).unwrap_or(false))
        .filter_map(|cpu| u32::try_from(cpu).ok())
        .collect()
}
