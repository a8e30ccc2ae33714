//! The CUDA driver's C interface over a simulated machine, as far as a program needs it to see which device it has: count,
//! identity, attributes, memory, and a primary context, which registers the process with the machine, so that the
//! simulated NVML lists it. There is nothing to compute with.
//!
//! Honours `CUDA_VISIBLE_DEVICES`, `CUDA_MPS_PIPE_DIRECTORY` and `CUDA_MPS_ACTIVE_THREAD_PERCENTAGE` as the driver does. As
//! there, a process whose MPS control daemon cannot be reached runs without MPS and without an error.

#![expect(unsafe_code, reason = "a C interface")]
#![expect(unreachable_pub, reason = "exported to C")]

mod context;
mod device;
mod mps;
mod visible;

use std::ffi::{CStr, c_char};
use std::sync::OnceLock;

use sim_machine::shared::{Shared, SharedError};

use visible::Visible;

/// Return codes of cuda.h.
mod code {
    pub(crate) const SUCCESS: u32 = 0;
    pub(crate) const INVALID_VALUE: u32 = 1;
    pub(crate) const NOT_INITIALIZED: u32 = 3;
    pub(crate) const DEVICE_UNAVAILABLE: u32 = 46;
    pub(crate) const NO_DEVICE: u32 = 100;
    pub(crate) const INVALID_DEVICE: u32 = 101;
    pub(crate) const INVALID_CONTEXT: u32 = 201;
    pub(crate) const MPS_CONNECTION_FAILED: u32 = 805;
    pub(crate) const UNKNOWN: u32 = 999;
}

/// What the functions answer with: a value to store, or a code.
type Answer<T> = Result<T, u32>;

/// Stores an answer and gives its code.
fn store<T>(into: Option<&mut T>, answer: Answer<T>) -> u32 {
    match (into, answer) {
        (None, _) => code::INVALID_VALUE,
        (Some(into), Ok(value)) => {
            *into = value;
            code::SUCCESS
        }
        (Some(_), Err(code)) => code,
    }
}

/// What this process sees since `cuInit`.
struct Session {
    shared: Shared,
    devices: Vec<Visible>,
    /// Absent without MPS.
    mps: Option<mps::Client>,
}

static SESSION: OnceLock<Answer<Session>> = OnceLock::new();

fn open() -> Answer<Session> {
    let shared = Shared::from_environment().map_err(|error| complain(&error))?;
    let wanted = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    let devices = shared
        .read(|machine, state| visible::visible(machine, state, wanted.as_deref()))
        .map_err(|error| complain(&error))?;
    let first = devices.first().ok_or(code::NO_DEVICE)?;
    let mps = mps::Client::connect(first)?;
    Ok(Session { shared, devices, mps })
}

/// A simulated machine that does not work is a test's mistake: its author sees why.
fn complain(error: &SharedError) -> u32 {
    let mut message = format!("cuda-sim: {error}");
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        message = format!("{message}: {error}");
        source = error.source();
    }
    eprintln!("{message}");
    code::UNKNOWN
}

/// The session, once `cuInit` has succeeded.
fn session() -> Answer<&'static Session> {
    match SESSION.get() {
        None => Err(code::NOT_INITIALIZED),
        Some(session) => session.as_ref().map_err(|code| *code),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuInit(flags: u32) -> u32 {
    if flags != 0 {
        return code::INVALID_VALUE;
    }
    SESSION.get_or_init(open).as_ref().err().copied().unwrap_or(code::SUCCESS)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDriverGetVersion(version: Option<&mut i32>) -> u32 {
    let cuda = || i32::try_from(session()?.shared.machine().cuda).map_err(|_| code::UNKNOWN);
    store(version, cuda())
}

/// Names and descriptions of the codes.
fn words(code: u32) -> Option<(&'static CStr, &'static CStr)> {
    Some(match code {
        0 => (c"CUDA_SUCCESS", c"no error"),
        1 => (c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"),
        3 => (c"CUDA_ERROR_NOT_INITIALIZED", c"initialization error"),
        46 => (c"CUDA_ERROR_DEVICE_UNAVAILABLE", c"CUDA-capable device(s) is/are busy or unavailable"),
        100 => (c"CUDA_ERROR_NO_DEVICE", c"no CUDA-capable device is detected"),
        101 => (c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal"),
        201 => (c"CUDA_ERROR_INVALID_CONTEXT", c"invalid device context"),
        805 => (c"CUDA_ERROR_MPS_CONNECTION_FAILED", c"MPS client failed to connect to the MPS control daemon"),
        999 => (c"CUDA_ERROR_UNKNOWN", c"unknown error"),
        _ => return None,
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGetErrorName(code: u32, text: Option<&mut *const c_char>) -> u32 {
    store(text, words(code).map(|(name, _)| name.as_ptr()).ok_or(code::INVALID_VALUE))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGetErrorString(code: u32, text: Option<&mut *const c_char>) -> u32 {
    store(text, words(code).map(|(_, text)| text.as_ptr()).ok_or(code::INVALID_VALUE))
}
