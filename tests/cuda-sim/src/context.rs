//! Primary contexts: what makes a process one of the device's.

use std::cell::Cell;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sim_machine::machine::ComputeSetting;
use sim_machine::process::Process;
use sim_machine::state::{Context, GpuState, Role};

use crate::visible::Visible;
use crate::{Answer, code, complain, device, session, store};

/// Frame buffer of an empty context, MiB.
const CONTEXT_MB: u64 = 520;

/// How often each device's primary context was retained and not released.
static RETAINED: Mutex<Vec<u32>> = Mutex::new(Vec::new());

thread_local! {
    /// The calling thread's context.
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

fn retained() -> MutexGuard<'static, Vec<u32>> {
    RETAINED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A context's handle: the device's ordinal, from one on, so that it is not null.
fn handle(ordinal: i32) -> usize {
    usize::try_from(ordinal).unwrap_or(0) + 1
}

/// The count of a device, by its ordinal.
fn count(counts: &mut Vec<u32>, ordinal: i32) -> &mut u32 {
    let index = handle(ordinal) - 1;
    if counts.len() <= index {
        counts.resize(index + 1, 0);
    }
    &mut counts[index]
}

fn is_mine(context: &Context, device: Visible) -> bool {
    context.process == Process::current() && context.role != Role::MpsServer && context.instance == device.instance
}

/// Whether the compute mode lets another process have a context.
fn admits(mode: ComputeSetting, gpu: &GpuState, role: Role) -> bool {
    match mode {
        ComputeSetting::Default => true,
        ComputeSetting::Prohibited => false,
        ComputeSetting::ExclusiveProcess => role == Role::MpsClient || gpu.contexts.is_empty(),
    }
}

fn retain(ordinal: i32) -> Answer<usize> {
    let device = device::ask(ordinal, |_, device, _, _| Ok(device))?;
    let session = session()?;
    let mut counts = retained();
    let count = count(&mut counts, ordinal);
    if *count == 0 {
        let role = if session.mps.is_some() { Role::MpsClient } else { Role::Compute };
        let register = session.shared.update(|machine, state| {
            let gpu = &mut state.gpus[device.gpu];
            if !admits(machine.gpus[device.gpu].compute_mode, gpu, role) {
                return Err(code::DEVICE_UNAVAILABLE);
            }
            let process = Process::current();
            gpu.contexts.push(Context { process, role, instance: device.instance, memory_mb: CONTEXT_MB });
            Ok(())
        });
        register.map_err(|error| complain(&error))??;
    }
    *count += 1;
    Ok(handle(ordinal))
}

fn release(ordinal: i32) -> Answer<()> {
    let device = device::ask(ordinal, |_, device, _, _| Ok(device))?;
    let mut counts = retained();
    let count = count(&mut counts, ordinal);
    *count = count.checked_sub(1).ok_or(code::INVALID_CONTEXT)?;
    if *count == 0 {
        let forget = |state: &mut sim_machine::state::State| {
            state.gpus[device.gpu].contexts.retain(|context| !is_mine(context, device));
        };
        session()?.shared.update(|_, state| forget(state)).map_err(|error| complain(&error))?;
    }
    Ok(())
}

fn done(answer: Answer<()>) -> u32 {
    answer.err().unwrap_or(code::SUCCESS)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRetain(context: Option<&mut usize>, device: i32) -> u32 {
    if context.is_none() {
        return code::INVALID_VALUE;
    }
    store(context, retain(device))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRelease_v2(device: i32) -> u32 {
    done(release(device))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxGetState(device: i32, flags: Option<&mut u32>, active: Option<&mut i32>) -> u32 {
    let known = device::ask(device, |_, _, _, _| Ok(()));
    let is_active = known.map(|()| i32::from(*count(&mut retained(), device) > 0));
    match store(flags, known.map(|()| 0)) {
        code::SUCCESS => store(active, is_active),
        code => code,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxSetFlags_v2(device: i32, _flags: u32) -> u32 {
    done(device::ask(device, |_, _, _, _| Ok(())))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCurrent(context: usize) -> u32 {
    done(session().map(|_| CURRENT.set(context)))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxGetCurrent(context: Option<&mut usize>) -> u32 {
    store(context, session().map(|_| CURRENT.get()))
}

/// The ordinal of the calling thread's device.
fn current() -> Answer<i32> {
    session()?;
    CURRENT.get().checked_sub(1).and_then(|ordinal| i32::try_from(ordinal).ok()).ok_or(code::INVALID_CONTEXT)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxGetDevice(device: Option<&mut i32>) -> u32 {
    store(device, current())
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSynchronize() -> u32 {
    done(current().map(|_| ()))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemGetInfo_v2(free: Option<&mut usize>, total: Option<&mut usize>) -> u32 {
    let answer = current().and_then(|ordinal| {
        device::ask(ordinal, |_, visible, description, state| device::memory(visible, description, state))
    });
    match store(total, answer.map(|(total, _)| total)) {
        code::SUCCESS => store(free, answer.map(|(total, used)| total.saturating_sub(used))),
        code => code,
    }
}
