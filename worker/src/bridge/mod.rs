//! The safe face of the C++ bridge: what tch lacks, with errors that tell a full memory apart.
//!
//! With `proof`, which asks the CUDA driver, the only place of the worker in which `unsafe` is allowed. C types and raw pointers don't leave it; guards and the
//! optimiser own what they point to. It decides nothing: which precision, rule or wait is used is `step`'s choice.
#![expect(unsafe_code, reason = "this module wraps libtorch's C++ and the CUDA driver")]

mod cuda;
mod optimiser;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::marker::PhantomData;
use std::ptr;

use tch::{Device, TchError, Tensor};
use torch_sys::C_tensor;

pub use cuda::{
    LoadCudaError, MemoryStats, choose_wait, cuda_devices, empty_cache, load_cuda, memory_stats, reset_peak_memory,
    synchronise,
};
pub use optimiser::{Optimiser, Rule};

unsafe extern "C" {
    fn migperf_last_error() -> *const c_char;
    fn migperf_inference_mode_enter(guard: *mut *mut c_void) -> c_int;
    fn migperf_inference_mode_leave(guard: *mut c_void);
    fn migperf_autocast_enter(device: c_int, kind: c_int, guard: *mut *mut c_void) -> c_int;
    fn migperf_autocast_leave(guard: *mut c_void);
    fn migperf_channels_last(tensor: *const C_tensor, result: *mut *mut C_tensor) -> c_int;
    fn migperf_is_channels_last(tensor: *const C_tensor, result: *mut c_int) -> c_int;
    fn migperf_copy_async(to: *const C_tensor, from: *const C_tensor) -> c_int;
    fn migperf_numerics(tf32: c_int, cudnn_benchmark: c_int, deterministic: c_int) -> c_int;
}

/// Why libtorch could not do something.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TorchError {
    /// The device's or the host's memory is full: the work doesn't fit.
    #[error("out of memory: {detail}")]
    OutOfMemory {
        /// What libtorch said, without its stack trace.
        detail: String,
    },
    /// Anything else.
    #[error("libtorch failed: {detail}")]
    Failed {
        /// What libtorch said, without its stack trace.
        detail: String,
    },
}

/// What libtorch, cuBLAS, cuDNN, the CUDA runtime and the C++ library say when memory is full. tch hands over only the
/// text of an exception, not its type.
const FULL_MEMORY: [&str; 7] = [
    "out of memory",
    "can't allocate memory",
    "not enough memory",
    "bad_alloc",
    "cudaErrorMemoryAllocation",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
];

impl TorchError {
    /// Sorts what libtorch said by whether it means that memory is full.
    #[must_use]
    pub fn from_text(text: &str) -> Self {
        let detail = text.split("\nException raised from").next().unwrap_or(text).trim().to_owned();
        if FULL_MEMORY.iter().any(|phrase| detail.contains(phrase)) {
            Self::OutOfMemory { detail }
        } else {
            Self::Failed { detail }
        }
    }
}

impl From<TchError> for TorchError {
    fn from(error: TchError) -> Self {
        match error {
            TchError::Torch(text) => Self::from_text(&text),
            other => Self::from_text(&other.to_string()),
        }
    }
}

/// Turns a bridge function's answer into a result.
fn check(code: c_int) -> Result<(), TorchError> {
    if code == 0 {
        return Ok(());
    }
    // SAFETY: the text is a NUL-terminated string of this thread, valid until the next failing call on this thread; it is
    // copied at once.
    let detail = unsafe { CStr::from_ptr(migperf_last_error()) }.to_string_lossy().into_owned();
    if code == 2 { Err(TorchError::OutOfMemory { detail }) } else { Err(TorchError::from_text(&detail)) }
}

/// The device as the bridge counts: -1 for the CPU, else the CUDA device's index.
fn index(device: Device) -> c_int {
    match device {
        Device::Cuda(index) => c_int::try_from(index).unwrap_or(c_int::MAX),
        _ => -1,
    }
}

/// Inference mode while it lives: no autograd records, no version counters. Belongs to the thread that entered it.
#[derive(Debug)]
pub struct InferenceMode {
    guard: *mut c_void,
    _of_this_thread: PhantomData<*const ()>,
}

impl InferenceMode {
    /// Enters inference mode.
    ///
    /// # Errors
    /// When memory for the guard can't be had.
    pub fn enter() -> Result<Self, TorchError> {
        let mut guard = ptr::null_mut();
        // SAFETY: `guard` is a valid place for one pointer.
        check(unsafe { migperf_inference_mode_enter(&raw mut guard) })?;
        Ok(Self { guard, _of_this_thread: PhantomData })
    }
}

impl Drop for InferenceMode {
    fn drop(&mut self) {
        // SAFETY: made by `enter`, left once, on the thread that entered (the type is not Send).
        unsafe { migperf_inference_mode_leave(self.guard) };
    }
}

/// The narrow types that autocast and converted parameters know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Narrow {
    /// bfloat16.
    Bf16,
    /// IEEE half precision.
    Fp16,
}

/// Autocast while it lives; leaving it forgets the cast parameters. Belongs to the thread that entered it.
#[derive(Debug)]
pub struct Autocast {
    guard: *mut c_void,
    _of_this_thread: PhantomData<*const ()>,
}

impl Autocast {
    /// Operations that gain from it run in `narrow` on devices of this kind.
    ///
    /// # Errors
    /// When libtorch has no autocast for the device.
    pub fn enter(device: Device, narrow: Narrow) -> Result<Self, TorchError> {
        let kind = match narrow {
            Narrow::Fp16 => 5,
            Narrow::Bf16 => 15,
        };
        let mut guard = ptr::null_mut();
        // SAFETY: `guard` is a valid place for one pointer.
        check(unsafe { migperf_autocast_enter(index(device), kind, &raw mut guard) })?;
        Ok(Self { guard, _of_this_thread: PhantomData })
    }
}

impl Drop for Autocast {
    fn drop(&mut self) {
        // SAFETY: made by `enter`, left once, on the thread that entered (the type is not Send).
        unsafe { migperf_autocast_leave(self.guard) };
    }
}

/// The same values in NHWC order; of a tensor of four dimensions.
///
/// # Errors
/// When the tensor hasn't four dimensions or the copy doesn't fit.
pub fn channels_last(tensor: &Tensor) -> Result<Tensor, TorchError> {
    let mut result = ptr::null_mut();
    // SAFETY: the tensor lives through the call; on success `result` is a new tensor that the returned value owns.
    unsafe {
        check(migperf_channels_last(tensor.as_ptr(), &raw mut result))?;
        Ok(Tensor::from_ptr(result))
    }
}

/// Whether a tensor of four dimensions lies in NHWC order.
///
/// # Errors
/// When libtorch can't say.
pub fn is_channels_last(tensor: &Tensor) -> Result<bool, TorchError> {
    let mut result = 0;
    // SAFETY: the tensor lives through the call and `result` is a valid place for one int.
    check(unsafe { migperf_is_channels_last(tensor.as_ptr(), &raw mut result) })?;
    Ok(result != 0)
}

/// Copies values into `to`, of the same shape; from pinned host memory to a device the call doesn't wait for the copy.
///
/// # Errors
/// When shapes differ or the device fails.
pub fn copy_async(to: &mut Tensor, from: &Tensor) -> Result<(), TorchError> {
    // SAFETY: both tensors live through the call; `to` is borrowed exclusively.
    check(unsafe { migperf_copy_async(to.as_ptr(), from.as_ptr()) })
}

/// How the process computes. These are settings of the whole process, not of one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Numerics {
    /// Whether matrix products and convolutions of fp32 may use TF32.
    pub tf32: bool,
    /// Whether cuDNN tries its algorithms instead of choosing by heuristics.
    pub cudnn_benchmark: bool,
    /// Whether only deterministic algorithms may be used; libtorch warns where there is none.
    pub deterministic: bool,
}

impl Numerics {
    /// Puts the settings into force.
    ///
    /// # Errors
    /// When libtorch refuses one.
    pub fn apply(self) -> Result<(), TorchError> {
        // SAFETY: takes numbers only.
        check(unsafe { migperf_numerics(self.tf32.into(), self.cudnn_benchmark.into(), self.deterministic.into()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_memory_is_told_apart() {
        for text in [
            "CUDA out of memory. Tried to allocate 20.00 GiB.\nException raised from malloc at x.cpp:1",
            "[enforce fail at alloc_cpu.cpp:121] data. DefaultCPUAllocator: can't allocate memory: you tried to allocate 1",
            "std::bad_alloc",
            "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        ] {
            match TorchError::from_text(text) {
                TorchError::OutOfMemory { detail } => assert!(!detail.contains("Exception raised"), "{detail}"),
                other => panic!("{text}: {other:?}"),
            }
        }
        assert!(matches!(TorchError::from_text("CUDA error: an illegal memory access"), TorchError::Failed { .. }));
    }
}
