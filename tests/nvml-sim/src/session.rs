//! Opening and closing NVML, the machine behind it, and the functions that concern no device.

use std::ffi::{CStr, c_char};
use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use sim_machine::files;
use sim_machine::machine::Machine;
use sim_machine::process::Process;
use sim_machine::shared::{MACHINE, STATE, Shared, SharedError};
use sim_machine::state::{Client, State};

use crate::fault::begin;
use crate::text::{Buffer, put};
use crate::{Answer, code, store};

static SESSIONS: AtomicU32 = AtomicU32::new(0);
/// Held while NVML is open, as the driver's library holds device files: those beside the machine's state, and its
/// description. Who holds them blocks resets and changes of the MIG mode.
static HELD: Mutex<Vec<File>> = Mutex::new(Vec::new());

/// The machine that the environment named when this process first opened NVML.
fn shared() -> Answer<&'static Shared> {
    static MACHINE: OnceLock<Result<Shared, SharedError>> = OnceLock::new();
    MACHINE.get_or_init(Shared::from_environment).as_ref().map_err(complain)
}

/// A simulated machine that does not work is a test's mistake: its author sees why.
fn complain(error: &SharedError) -> u32 {
    let mut message = format!("nvml-sim: {error}");
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        message = format!("{message}: {error}");
        source = error.source();
    }
    eprintln!("{message}");
    code::UNKNOWN
}

/// Asks the machine something; NVML must be open, and does not return while the machine is stalled.
pub(crate) fn ask<T>(question: impl Fn(&Machine, &State) -> Answer<T>) -> Answer<T> {
    if SESSIONS.load(Ordering::Relaxed) == 0 {
        return Err(code::UNINITIALIZED);
    }
    loop {
        let answer = shared()?.read(|machine, state| (!state.stalled).then(|| question(machine, state)));
        match answer {
            Ok(Some(answer)) => return answer,
            Ok(None) => std::thread::sleep(Duration::from_millis(10)),
            Err(error) => return Err(complain(&error)),
        }
    }
}

/// Changes the machine; NVML must be open, and does not return while the machine is stalled.
pub(crate) fn change<T>(act: impl Fn(&Machine, &mut State) -> Answer<T>) -> Answer<T> {
    if SESSIONS.load(Ordering::Relaxed) == 0 {
        return Err(code::UNINITIALIZED);
    }
    loop {
        let answer = shared()?.update(|machine, state| (!state.stalled).then(|| act(machine, state)));
        match answer {
            Ok(Some(answer)) => return answer,
            Ok(None) => std::thread::sleep(Duration::from_millis(10)),
            Err(error) => return Err(complain(&error)),
        }
    }
}

fn open() -> u32 {
    let shared = match shared() {
        Ok(shared) => shared,
        Err(code) => return code,
    };
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    if SESSIONS.load(Ordering::Relaxed) == 0 {
        let own = Client { process: Process::current() };
        if let Err(error) = shared.update(|_, state| state.clients.push(own)) {
            return complain(&error);
        }
        let files = state_path().map(|state| files::held(&state, shared.machine())).unwrap_or_default();
        let description = std::env::var_os(MACHINE).map(PathBuf::from);
        held.extend(files.into_iter().chain(description).filter_map(|file| File::open(file).ok()));
    }
    SESSIONS.fetch_add(1, Ordering::Relaxed);
    code::SUCCESS
}

fn state_path() -> Option<PathBuf> {
    std::env::var_os(STATE).filter(|path| !path.is_empty()).map(PathBuf::from)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> u32 {
    begin!("nvmlInit_v2");
    open()
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit() -> u32 {
    begin!("nvmlInit");
    open()
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlInitWithFlags(_flags: u32) -> u32 {
    begin!("nvmlInitWithFlags");
    open()
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlShutdown() -> u32 {
    begin!("nvmlShutdown");
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    let closed = SESSIONS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |sessions| sessions.checked_sub(1));
    if closed == Ok(1) {
        held.clear();
        let own = Process::current();
        let forgotten = shared().and_then(|shared| {
            shared
                .update(|_, state| state.clients.retain(|client| client.process != own))
                .map_err(|error| complain(&error))
        });
        if let Err(code) = forgotten {
            return code;
        }
    }
    if closed.is_ok() { code::SUCCESS } else { code::UNINITIALIZED }
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(code: u32) -> *const c_char {
    let text: &CStr = match code {
        0 => c"The operation was successful",
        1 => c"NVML was not first initialized with nvmlInit()",
        2 => c"A supplied argument is invalid",
        3 => c"The requested operation is not available on target device",
        4 => c"The current user does not have permission for operation",
        6 => c"A query to find an object was unsuccessful",
        7 => c"An input argument is not large enough",
        13 => c"Local version of NVML doesn't implement this function",
        16 => c"The GPU requires a reset before it can be used again",
        19 => c"The operation cannot be performed because the GPU is currently in use",
        21 => c"No data",
        23 => c"Insufficient resources",
        25 => c"The provided version is invalid or unsupported",
        29 => c"Resource not in correct state to perform requested operation",
        15 => c"The GPU has fallen off the bus or has otherwise become inaccessible",
        _ => c"An internal driver error occurred",
    };
    text.as_ptr()
}

/// # Safety
/// The buffer has `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetDriverVersion(version: Buffer, length: u32) -> u32 {
    begin!("nvmlSystemGetDriverVersion");
    // SAFETY: the caller's promise is this function's.
    unsafe { put(version, length, ask(|machine, _| Ok(machine.driver_version()))) }
}

/// # Safety
/// The buffer has `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetNVMLVersion(version: Buffer, length: u32) -> u32 {
    begin!("nvmlSystemGetNVMLVersion");
    let text = ask(|machine, _| Ok(format!("{}.{}", machine.cuda / 1000, machine.driver_version())));
    // SAFETY: the caller's promise is this function's.
    unsafe { put(version, length, text) }
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlSystemGetCudaDriverVersion_v2(version: Option<&mut u32>) -> u32 {
    begin!("nvmlSystemGetCudaDriverVersion_v2");
    store(version, ask(|machine, _| Ok(machine.cuda)))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlSystemGetCudaDriverVersion(version: Option<&mut u32>) -> u32 {
    begin!("nvmlSystemGetCudaDriverVersion");
    nvmlSystemGetCudaDriverVersion_v2(version)
}

/// # Safety
/// The buffer has `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetProcessName(pid: u32, name: Buffer, length: u32) -> u32 {
    begin!("nvmlSystemGetProcessName");
    let text = ask(|machine, _| {
        let foreign = machine.gpus.iter().flat_map(|gpu| &gpu.processes).find(|process| process.pid == pid);
        foreign.map(|process| process.program.clone()).or_else(|| Process::program(pid)).ok_or(code::NOT_FOUND)
    });
    // A name that is too long is cut, unlike other texts.
    let text = text.map(|text| text.chars().take((length as usize).saturating_sub(1)).filter(char::is_ascii).collect());
    // SAFETY: the caller's promise is this function's.
    unsafe { put(name, length, text) }
}
