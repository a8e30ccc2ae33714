//! NVML's C interface over a simulated machine: with the return codes that a driver of release 580 gives. See `sim-machine` for how a machine is described.
//!
//! It says SIMULATED in the versions of the driver and of NVML. Functions take nullable references where NVML's take
//! pointers to single values, which is the same to a C caller; only text and arrays are raw.

#![expect(unsafe_code, reason = "a C interface")]
#![expect(unreachable_pub, reason = "exported to C")]

mod change;
mod device;
mod fault;
mod gpm;
mod handle;
mod instances;
mod processes;
mod session;
mod telemetry;
mod text;

/// Return codes of nvml.h.
mod code {
    pub(crate) const SUCCESS: u32 = 0;
    pub(crate) const UNINITIALIZED: u32 = 1;
    pub(crate) const INVALID_ARGUMENT: u32 = 2;
    pub(crate) const NOT_SUPPORTED: u32 = 3;
    pub(crate) const NO_PERMISSION: u32 = 4;
    pub(crate) const NOT_FOUND: u32 = 6;
    pub(crate) const INSUFFICIENT_SIZE: u32 = 7;
    pub(crate) const GPU_IS_LOST: u32 = 15;
    pub(crate) const NO_DATA: u32 = 21;
    pub(crate) const ARGUMENT_VERSION_MISMATCH: u32 = 25;
    pub(crate) const UNKNOWN: u32 = 999;
}

/// What the functions answer with: a value to store, or a code.
type Answer<T> = Result<T, u32>;

/// Stores an answer and gives its code.
fn store<T>(into: Option<&mut T>, answer: Answer<T>) -> u32 {
    match (into, answer) {
        (None, _) => code::INVALID_ARGUMENT,
        (Some(into), Ok(value)) => {
            *into = value;
            code::SUCCESS
        }
        (Some(_), Err(code)) => code,
    }
}
