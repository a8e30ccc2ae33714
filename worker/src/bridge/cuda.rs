//! CUDA at run time: loading libtorch's part of it, waiting for the device, and its memory.
//!
//! The worker isn't linked with CUDA, so that one binary serves machines with and without it.

use std::ffi::{CStr, CString, c_int, c_uint};
use std::fs;
use std::path::PathBuf;

use cudarc::driver::sys;
use migperf_core::units::Bytes;
use migperf_core::workload::Wait;
use tch::Device;

use super::{TorchError, check, index};

unsafe extern "C" {
    fn migperf_cuda_devices(count: *mut c_int) -> c_int;
    fn migperf_synchronise(device: c_int) -> c_int;
    fn migperf_empty_cache() -> c_int;
    fn migperf_reset_peak(device: c_int) -> c_int;
    fn migperf_memory(device: c_int, bytes: *mut i64) -> c_int;
}

/// Why CUDA can't be used by this process.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoadCudaError {
    /// The list of this process's mapped files can't be read.
    #[error("can't read /proc/self/maps to find libtorch: {detail}")]
    ReadMaps {
        /// The system's reason.
        detail: String,
    },
    /// libtorch_cpu lies where no CUDA part can be looked for.
    #[error("can't find libtorch_cpu.so among this process's mapped files")]
    FindLibtorch,
    /// The CUDA part is missing, or a library that it needs.
    #[error("can't load {path}: {detail}; install the CUDA libraries of this PyTorch, or point at one that has them")]
    Load {
        /// The library that was asked for.
        path: PathBuf,
        /// The dynamic linker's reason.
        detail: String,
    },
    /// It is loaded, but there is nothing to use it with.
    #[error("libtorch's CUDA part is loaded but sees no usable device; check the driver and CUDA_VISIBLE_DEVICES")]
    NoDevice,
    /// The driver refused how waiting was to be done.
    #[error("the CUDA driver refused to set how a wait is done: {detail}")]
    ChooseWait {
        /// The driver's result code, or what is missing.
        detail: String,
    },
}

/// Loads libtorch_cuda from beside the libtorch_cpu that this process already has, before any other use of libtorch:
/// its device hooks are looked up once. Returns the loaded path.
///
/// # Errors
/// When it, a library that it needs, or a usable device is missing.
pub fn load_cuda() -> Result<PathBuf, LoadCudaError> {
    let maps =
        fs::read_to_string("/proc/self/maps").map_err(|error| LoadCudaError::ReadMaps { detail: error.to_string() })?;
    let path = maps
        .lines()
        .filter_map(|line| line.find('/').map(|start| PathBuf::from(&line[start..])))
        .find(|path| path.file_name().is_some_and(|name| name == "libtorch_cpu.so"))
        .ok_or(LoadCudaError::FindLibtorch)?
        .with_file_name("libtorch_cuda.so");
    let failed = |detail: String| LoadCudaError::Load { path: path.clone(), detail };
    let name = CString::new(path.as_os_str().as_encoded_bytes()).map_err(|error| failed(error.to_string()))?;
    // SAFETY: the name is a NUL-terminated string; the library's constructors are libtorch's own, and it is never unloaded.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    if handle.is_null() {
        // SAFETY: after a failed dlopen, dlerror returns a NUL-terminated string of this thread, copied at once, or null.
        let detail = unsafe {
            let text = libc::dlerror();
            if text.is_null() { String::new() } else { CStr::from_ptr(text).to_string_lossy().into_owned() }
        };
        return Err(failed(detail));
    }
    match cuda_devices() {
        Ok(count) if count > 0 => Ok(path),
        Ok(_) => Err(LoadCudaError::NoDevice),
        Err(error) => Err(failed(error.to_string())),
    }
}

/// CUDA devices that libtorch can use; 0 before [`load_cuda`].
///
/// # Errors
/// When the driver fails.
pub fn cuda_devices() -> Result<usize, TorchError> {
    let mut count = 0;
    // SAFETY: `count` is a valid place for one int.
    check(unsafe { migperf_cuda_devices(&raw mut count) })?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// Fixes how this process waits for a device, by a flag of its primary context: spinning, or sleeping in the driver.
/// Left alone, the driver would choose by the number of contexts and processors. Waiting for the CPU is no wait.
///
/// Best called before anything makes the context: a driver that refuses to change a live one is an error here, unless the
/// flag is what was asked.
///
/// # Errors
/// When there is no driver or it refuses.
pub fn choose_wait(device: Device, wait: Wait) -> Result<(), LoadCudaError> {
    let Device::Cuda(ordinal) = device else { return Ok(()) };
    let refused = |detail: String| LoadCudaError::ChooseWait { detail };
    // SAFETY: only looks for the library.
    if !unsafe { sys::is_culib_present() } {
        return Err(refused("libcuda.so.1 can't be loaded".to_owned()));
    }
    let flag = match wait {
        Wait::Spin => sys::CUctx_flags::CU_CTX_SCHED_SPIN,
        Wait::Block => sys::CUctx_flags::CU_CTX_SCHED_BLOCKING_SYNC,
    } as c_uint;
    let ordinal = c_int::try_from(ordinal).map_err(|error| refused(error.to_string()))?;
    let (mut handle, mut flags, mut active): (sys::CUdevice, c_uint, c_int) = (0, 0, 0);
    // SAFETY: the library is present; cuInit takes no flags, the three variables are valid places for what is written, and
    // the flag is the driver's own.
    let result = unsafe {
        sys::cuInit(0)
            .result()
            .and_then(|()| sys::cuDeviceGet(&raw mut handle, ordinal).result())
            .and_then(|()| match sys::cuDevicePrimaryCtxSetFlags_v2(handle, flag) {
                // What it has is read next.
                sys::CUresult::CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE => Ok(()),
                other => other.result(),
            })
            .and_then(|()| sys::cuDevicePrimaryCtxGetState(handle, &raw mut flags, &raw mut active).result())
    };
    result.map_err(|error| refused(format!("{:?}", error.0)))?;
    if flags & sys::CUctx_flags::CU_CTX_SCHED_MASK as c_uint == flag {
        Ok(())
    } else {
        Err(refused(format!("asked for {flag:#x}, the context has {flags:#x}")))
    }
}

/// Waits until the current stream of a device has done everything, the way [`choose_wait`] fixed. The CPU is always done.
///
/// # Errors
/// When work on the device failed, which is often noticed only here.
pub fn synchronise(device: Device) -> Result<(), TorchError> {
    match device {
        // SAFETY: takes a number only.
        Device::Cuda(_) => check(unsafe { migperf_synchronise(index(device)) }),
        _ => Ok(()),
    }
}

/// libtorch's allocator on one device: bytes in live tensors, and bytes it holds from the driver, now and at most since
/// [`reset_peak_memory`]. Contexts, kernels and the libraries' own workspaces are not in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryStats {
    /// In live tensors, now.
    pub allocated: Bytes,
    /// In live tensors, at most.
    pub allocated_peak: Bytes,
    /// Held from the driver, now.
    pub reserved: Bytes,
    /// Held from the driver, at most.
    pub reserved_peak: Bytes,
}

/// What the allocator holds on a device; `None` on the CPU, whose allocator doesn't count.
///
/// # Errors
/// When the allocator isn't initialised.
pub fn memory_stats(device: Device) -> Result<Option<MemoryStats>, TorchError> {
    let Device::Cuda(_) = device else { return Ok(None) };
    let mut bytes = [0i64; 4];
    // SAFETY: `bytes` is a valid place for the four numbers that are written.
    check(unsafe { migperf_memory(index(device), bytes.as_mut_ptr()) })?;
    let [allocated, allocated_peak, reserved, reserved_peak] =
        bytes.map(|count| Bytes(u64::try_from(count).unwrap_or(0)));
    Ok(Some(MemoryStats { allocated, allocated_peak, reserved, reserved_peak }))
}

/// Lets the peaks of [`memory_stats`] start anew. Does nothing on the CPU.
///
/// # Errors
/// When the allocator isn't initialised.
pub fn reset_peak_memory(device: Device) -> Result<(), TorchError> {
    match device {
        // SAFETY: takes a number only.
        Device::Cuda(_) => check(unsafe { migperf_reset_peak(index(device)) }),
        _ => Ok(()),
    }
}

/// Gives cached, unused memory back to the driver. Does nothing on the CPU.
///
/// # Errors
/// When the driver fails.
pub fn empty_cache(device: Device) -> Result<(), TorchError> {
    match device {
        // SAFETY: takes nothing.
        Device::Cuda(_) => check(unsafe { migperf_empty_cache() }),
        _ => Ok(()),
    }
}
