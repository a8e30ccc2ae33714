//! What a GPU does: memory, power, energy, utilisation, clocks. Under MIG the parent has no utilisation, and a MIG device
//! has only memory.

use std::ptr::NonNull;

use nvml_wrapper_sys::bindings::{nvmlFieldValue_t, nvmlMemory_t, nvmlMemory_v2_t, nvmlUtilization_t, nvmlValue_t};
use sim_machine::shared::now_ns;

use crate::fault::begin;
use crate::handle::{Device, Gpu, Target, ask_device, ask_gpu};
use crate::instances::version;
use crate::{Answer, code, store};

const MIB: u64 = 1024 * 1024;
/// Frame buffer that the driver keeps for itself, MiB.
const RESERVED_MB: u64 = 640;

/// Total, reserved and used, in bytes.
fn memory(target: Target<'_>) -> Answer<(u64, u64, u64)> {
    let Target { gpu, instance } = target;
    match instance {
        None => {
            let used = gpu.state.memory_used_mb(gpu.description, None);
            Ok((gpu.model().total_memory_mb * MIB, RESERVED_MB * MIB, used * MIB))
        }
        Some((gi, _)) => {
            let total = gi.catalog(gpu.description).and_then(|profile| profile.memory_mb).ok_or(code::UNKNOWN)?;
            Ok((total * MIB, 0, gpu.state.memory_used_mb(gpu.description, Some(gi.id)) * MIB))
        }
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetMemoryInfo(device: Device, into: Option<&mut nvmlMemory_t>) -> u32 {
    begin!("nvmlDeviceGetMemoryInfo");
    let answer = ask_device(device, memory);
    // The first version counts what is reserved as used.
    let answer = answer.map(|(total, reserved, used)| nvmlMemory_t {
        total,
        free: total.saturating_sub(reserved + used),
        used: reserved + used,
    });
    store(into, answer)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetMemoryInfo_v2(device: Device, into: Option<&mut nvmlMemory_v2_t>) -> u32 {
    begin!("nvmlDeviceGetMemoryInfo_v2");
    match into {
        Some(into) if into.version == version::<nvmlMemory_v2_t>(2) => {
            let version = into.version;
            let answer = ask_device(device, memory).map(|(total, reserved, used)| nvmlMemory_v2_t {
                version,
                total,
                reserved,
                free: total.saturating_sub(reserved + used),
                used,
            });
            store(Some(into), answer)
        }
        Some(_) => code::ARGUMENT_VERSION_MISMATCH,
        None => code::INVALID_ARGUMENT,
    }
}

fn power(device: Device) -> Answer<u32> {
    ask_gpu(device, code::NOT_SUPPORTED, |gpu| Ok(gpu.state.power_mw(gpu.description)))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetPowerUsage(device: Device, into: Option<&mut u32>) -> u32 {
    begin!("nvmlDeviceGetPowerUsage");
    store(into, power(device))
}

fn energy(device: Device) -> Answer<u64> {
    ask_gpu(device, code::NOT_SUPPORTED, |gpu| Ok(gpu.state.energy_mj(gpu.description, now_ns())))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetTotalEnergyConsumption(device: Device, into: Option<&mut u64>) -> u32 {
    begin!("nvmlDeviceGetTotalEnergyConsumption");
    store(into, energy(device))
}

fn power_limit(gpu: Gpu<'_>) -> Answer<u32> {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "watts of one GPU")]
    let milliwatts = (gpu.description.busy_watts * 1.4e3) as u32;
    Ok(milliwatts)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetEnforcedPowerLimit(device: Device, into: Option<&mut u32>) -> u32 {
    begin!("nvmlDeviceGetEnforcedPowerLimit");
    store(into, ask_gpu(device, code::NOT_SUPPORTED, power_limit))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetPowerManagementLimit(device: Device, into: Option<&mut u32>) -> u32 {
    begin!("nvmlDeviceGetPowerManagementLimit");
    store(into, ask_gpu(device, code::NOT_SUPPORTED, power_limit))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetUtilizationRates(device: Device, into: Option<&mut nvmlUtilization_t>) -> u32 {
    begin!("nvmlDeviceGetUtilizationRates");
    store(
        into,
        ask_gpu(device, code::NOT_SUPPORTED, |gpu| {
            if gpu.state.is_partitioned() {
                return Err(code::NOT_SUPPORTED);
            }
            let load = gpu.state.total_load(gpu.description);
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "percent")]
            let percent = |share: f64| (share * 100.0).round() as u32;
            Ok(nvmlUtilization_t { gpu: percent(load), memory: percent(load / 2.0) })
        }),
    )
}

/// Graphics, multiprocessors, memory and video, in MHz at full speed.
fn clock(kind: u32) -> Answer<u32> {
    match kind {
        0 | 1 => Ok(1_980),
        2 => Ok(3_201),
        3 => Ok(1_545),
        _ => Err(code::INVALID_ARGUMENT),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetClockInfo(device: Device, kind: u32, into: Option<&mut u32>) -> u32 {
    begin!("nvmlDeviceGetClockInfo");
    store(
        into,
        ask_gpu(device, code::NOT_SUPPORTED, |gpu| {
            let idle = gpu.state.contexts.is_empty() && kind < 2;
            clock(kind).map(|full| if idle { 345 } else { full })
        }),
    )
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetMaxClockInfo(device: Device, kind: u32, into: Option<&mut u32>) -> u32 {
    begin!("nvmlDeviceGetMaxClockInfo");
    store(into, ask_gpu(device, code::NOT_SUPPORTED, |_| clock(kind)))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetTemperature(device: Device, sensor: u32, into: Option<&mut u32>) -> u32 {
    begin!("nvmlDeviceGetTemperature");
    let answer = ask_gpu(device, code::NOT_SUPPORTED, |gpu| match sensor {
        0 => Ok(30 + gpu.state.power_mw(gpu.description) / 15_000),
        _ => Err(code::INVALID_ARGUMENT),
    });
    store(into, answer)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetCurrentClocksThrottleReasons(device: Device, into: Option<&mut u64>) -> u32 {
    begin!("nvmlDeviceGetCurrentClocksThrottleReasons");
    let answer = ask_gpu(device, code::NOT_SUPPORTED, |gpu| Ok(u64::from(gpu.state.contexts.is_empty())));
    store(into, answer)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetCurrentClocksEventReasons(device: Device, into: Option<&mut u64>) -> u32 {
    begin!("nvmlDeviceGetCurrentClocksEventReasons");
    nvmlDeviceGetCurrentClocksThrottleReasons(device, into)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetPerformanceState(device: Device, into: Option<&mut u32>) -> u32 {
    begin!("nvmlDeviceGetPerformanceState");
    store(into, ask_gpu(device, code::NOT_SUPPORTED, |_| Ok(0)))
}

/// The value of a field and its type.
fn field(device: Device, id: u32) -> Answer<(u32, nvmlValue_t)> {
    const UNSIGNED: u32 = 1;
    const UNSIGNED_LONG_LONG: u32 = 3;
    let number = |value| (UNSIGNED, nvmlValue_t { uiVal: value });
    match id {
        83 => energy(device).map(|value| (UNSIGNED_LONG_LONG, nvmlValue_t { ullVal: value })),
        // Whether the MIG mode changes without a reset.
        184 => ask_gpu(device, code::NOT_SUPPORTED, |gpu| Ok(number(u32::from(gpu.model().resetless_mig)))),
        185 | 186 => power(device).map(number),
        188 | 192 => ask_gpu(device, code::NOT_SUPPORTED, power_limit).map(number),
        _ => Err(code::NOT_SUPPORTED),
    }
}

/// # Safety
/// `values` is null or has `count` entries.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetFieldValues(
    device: Device,
    count: i32,
    values: Option<NonNull<nvmlFieldValue_t>>,
) -> u32 {
    begin!("nvmlDeviceGetFieldValues");
    let (Some(values), Ok(count @ 1..)) = (values, usize::try_from(count)) else { return code::INVALID_ARGUMENT };
    if let Err(code) = ask_device(device, |_| Ok(())) {
        return code;
    }
    // SAFETY: the caller has that many entries, and nobody else writes them during the call.
    for value in unsafe { NonNull::slice_from_raw_parts(values, count).as_mut() } {
        match field(device, value.fieldId) {
            Ok((kind, content)) => {
                value.valueType = kind;
                value.value = content;
                value.nvmlReturn = code::SUCCESS;
            }
            Err(code) => value.nvmlReturn = code,
        }
        value.latencyUsec = 0;
        value.timestamp = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .ok()
            .and_then(|now| i64::try_from(now.as_micros()).ok())
            .unwrap_or(0);
    }
    code::SUCCESS
}
