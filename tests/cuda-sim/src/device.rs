//! What a device is.

use std::ffi::c_char;
use std::ptr::NonNull;

use sim_machine::machine::{ComputeSetting, GpuDescription};
use sim_machine::state::{GpuState, Instance};

use crate::visible::Visible;
use crate::{Answer, Session, code, complain, mps, session, store};

const MIB: usize = 1024 * 1024;

/// Asks the device of an ordinal something.
pub(crate) fn ask<T>(
    ordinal: i32,
    question: impl FnOnce(&Session, Visible, &GpuDescription, &GpuState) -> Answer<T>,
) -> Answer<T> {
    let session = session()?;
    let device = usize::try_from(ordinal).ok().and_then(|ordinal| session.devices.get(ordinal));
    let device = *device.ok_or(code::INVALID_DEVICE)?;
    session
        .shared
        .read(|machine, state| question(session, device, &machine.gpus[device.gpu], &state.gpus[device.gpu]))
        .map_err(|error| complain(&error))?
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetCount(count: Option<&mut i32>) -> u32 {
    let answer = session().and_then(|session| i32::try_from(session.devices.len()).map_err(|_| code::UNKNOWN));
    store(count, answer)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGet(device: Option<&mut i32>, ordinal: i32) -> u32 {
    store(device, ask(ordinal, |_, _, _, _| Ok(ordinal)))
}

/// The 16 bytes of a UUID's text.
fn bytes(uuid: &str) -> Answer<[u8; 16]> {
    let hex: String = uuid.trim_start_matches("GPU-").trim_start_matches("MIG-").replace('-', "");
    let number = u128::from_str_radix(&hex, 16).map_err(|_| code::UNKNOWN)?;
    Ok(number.to_be_bytes())
}

/// The second version knows MIG devices.
#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetUuid_v2(uuid: Option<&mut [u8; 16]>, device: i32) -> u32 {
    let answer = ask(device, |_, visible, description, state| {
        if let Some(lie) = &description.lies.uuid {
            return bytes(lie);
        }
        match visible.instance {
            None => bytes(&description.uuid(visible.gpu)),
            Some(ids) => {
                let mut devices = state.mig_devices();
                let (_, ci) = devices.find(|(gi, ci)| (gi.id, ci.id) == ids).ok_or(code::INVALID_DEVICE)?;
                bytes(&ci.uuid)
            }
        }
    });
    store(uuid, answer)
}

/// The first version answers for the GPU that a MIG device lies in.
#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetUuid(uuid: Option<&mut [u8; 16]>, device: i32) -> u32 {
    store(uuid, ask(device, |_, visible, description, _| bytes(&description.uuid(visible.gpu))))
}

/// The GPU instance and the profile of a MIG device.
fn instance(visible: Visible, state: &GpuState) -> Answer<Option<&Instance>> {
    match visible.instance {
        None => Ok(None),
        Some((gi, _)) => state.instance(gi).map(Some).ok_or(code::INVALID_DEVICE),
    }
}

/// # Safety
/// The buffer has `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(name: Option<NonNull<c_char>>, length: i32, device: i32) -> u32 {
    let answer = ask(device, |_, visible, description, state| {
        let product = description.model().product_name.clone();
        let devices = || state.mig_devices().find(|(gi, ci)| Some((gi.id, ci.id)) == visible.instance);
        Ok(match devices() {
            None => product,
            Some((gi, ci)) => format!("{product} MIG {}", gi.device_profile(description, ci)),
        })
    });
    let (Some(name), Ok(room @ 1..)) = (name, usize::try_from(length)) else { return code::INVALID_VALUE };
    match answer {
        Ok(text) => {
            let text = &text.as_bytes()[..text.len().min(room - 1)];
            // SAFETY: at most `room` bytes with the end, which the caller's buffer has.
            unsafe {
                name.cast().copy_from_nonoverlapping(NonNull::from(text).cast::<u8>(), text.len());
                name.add(text.len()).write(0);
            }
            code::SUCCESS
        }
        Err(code) => code,
    }
}

/// Frame buffer of a device in bytes, and how much of it is in use.
pub(crate) fn memory(visible: Visible, description: &GpuDescription, state: &GpuState) -> Answer<(usize, usize)> {
    let instance = instance(visible, state)?;
    let total = match instance {
        None => Some(description.model().total_memory_mb),
        Some(instance) => instance.catalog(description).and_then(|profile| profile.memory_mb),
    };
    let used = state.memory_used_mb(description, instance.map(|instance| instance.id));
    let size = |mib: u64| usize::try_from(mib).map(|mib| mib * MIB).map_err(|_| code::UNKNOWN);
    Ok((size(total.ok_or(code::UNKNOWN)?)?, size(used)?))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceTotalMem_v2(bytes: Option<&mut usize>, device: i32) -> u32 {
    store(bytes, ask(device, |_, visible, description, state| Ok(memory(visible, description, state)?.0)))
}

/// Multiprocessors that the process may use. Under MPS a percentage below 100 takes whole pairs (18 of 132 at 14 %, seen
/// on an H200).
fn multiprocessors(session: &Session, visible: Visible, description: &GpuDescription, state: &GpuState) -> Answer<u32> {
    if let Some(lie) = description.lies.multiprocessors {
        return Ok(lie);
    }
    let all = match visible.instance {
        None => description.model().multiprocessors(),
        Some(ids) => {
            let mut devices = state.mig_devices();
            let (gi, ci) = devices.find(|(gi, ci)| (gi.id, ci.id) == ids).ok_or(code::INVALID_DEVICE)?;
            gi.multiprocessors(description, ci)
        }
    };
    Ok(match session.mps.as_ref().map(mps::Client::percentage) {
        Some(percentage @ 0.0..100.0) => {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most all of them")]
            let share = (f64::from(all) * percentage / 100.0) as u32;
            (share / 2 * 2).max(2)
        }
        _ => all,
    })
}

/// Attributes by their numbers in cuda.h; those that have no meaning here are 0.
#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetAttribute(value: Option<&mut i32>, attribute: i32, device: i32) -> u32 {
    let answer = ask(device, |session, visible, description, state| {
        let (major, minor) = description.model().compute_capability();
        let number = match attribute {
            // MAX_THREADS_PER_BLOCK
            1 => 1024,
            // WARP_SIZE
            10 => 32,
            // MULTIPROCESSOR_COUNT
            16 => multiprocessors(session, visible, description, state)?,
            // COMPUTE_MODE
            20 => match description.compute_mode {
                ComputeSetting::Default => 0,
                ComputeSetting::Prohibited => 2,
                ComputeSetting::ExclusiveProcess => 3,
            },
            // COMPUTE_CAPABILITY_MAJOR, _MINOR
            75 => major,
            76 => minor,
            // MPS_ENABLED
            133 => match description.lies.mps {
                Some(lie) => return Ok(lie),
                None => u32::from(session.mps.is_some()),
            },
            known if (1..=150).contains(&known) => 0,
            _ => return Err(code::INVALID_VALUE),
        };
        i32::try_from(number).map_err(|_| code::UNKNOWN)
    });
    store(value, answer)
}
