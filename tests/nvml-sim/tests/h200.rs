//! The simulated H200 answers as a real one did.
//!
//! `data/h200-nvml-answers.json` holds what the read-only calls of NVML returned on an NVIDIA H200 with driver
//! 580.159.04 and MIG off: for each call its code and, if it gave one, its value.
#![expect(unsafe_code, reason = "calls a C interface")]

use std::ffi::{CStr, c_char};

use nvml_wrapper_sys::bindings::*;
use serde_json::{Value, json};

const RECORDED: &str = include_str!("../data/h200-nvml-answers.json");

struct Simulated {
    lib: NvmlLib,
    device: nvmlDevice_t,
}

macro_rules! call {
    ($simulated:expr, $name:ident ( $($argument:expr),* )) => {{
        let function = $simulated.lib.$name.as_ref().expect(stringify!($name));
        // SAFETY: the symbols have the signatures of the binding, and every pointer is to a value that outlives the call.
        unsafe { function($($argument),*) }
    }};
}

fn open() -> Simulated {
    // On a GPU machine the real one: a device of the same model and driver is to answer as the recorded one did.
    let library = std::env::var_os("NVML_UNDER_TEST")
        .map_or_else(|| sim_machine::install::build().unwrap().join("libnvidia_ml_sim.so"), std::path::PathBuf::from);
    // SAFETY: the library is this workspace's own or the driver's, whose constructors have no conditions.
    let lib = unsafe { NvmlLib::new(&library) }.unwrap();
    let mut simulated = Simulated { lib, device: std::ptr::null_mut() };
    assert_eq!(call!(simulated, nvmlInit_v2()), 0);
    assert_eq!(call!(simulated, nvmlDeviceGetHandleByIndex_v2(0, &raw mut simulated.device)), 0);
    simulated
}

fn recorded() -> Value {
    serde_json::from_str(RECORDED).unwrap()
}

#[test]
fn single_numbers_are_the_recorded_ones() {
    let (s, recorded) = (open(), recorded());
    macro_rules! check {
        ($($name:ident),*) => {$(
            let mut value: u32 = 0;
            let code = call!(s, $name(s.device, (&raw mut value).cast()));
            assert_eq!(json!([code, value]), recorded[stringify!($name)], stringify!($name));
        )*};
    }
    check!(
        nvmlDeviceGetMaxMigDeviceCount,
        nvmlDeviceGetComputeMode,
        nvmlDeviceGetPersistenceMode,
        nvmlDeviceIsMigDeviceHandle,
        nvmlDeviceGetGpuInstanceId,
        nvmlDeviceGetComputeInstanceId,
        nvmlDeviceGetPowerManagementLimit,
        nvmlDeviceGetEnforcedPowerLimit,
        nvmlDeviceGetNumGpuCores,
        nvmlDeviceGetPerformanceState,
        nvmlDeviceGetMinorNumber,
        nvmlDeviceGetArchitecture,
        nvmlDeviceGetIndex
    );
    let (mut current, mut pending) = (9, 9);
    let code = call!(s, nvmlDeviceGetMigMode(s.device, &raw mut current, &raw mut pending));
    assert_eq!(json!([code, current, pending]), recorded["nvmlDeviceGetMigMode"]);
}

#[test]
fn calls_that_failed_fail_with_the_same_code() {
    let (s, recorded) = (open(), recorded());
    let mut device: nvmlDevice_t = std::ptr::null_mut();
    let mut instance: nvmlGpuInstance_t = std::ptr::null_mut();
    // SAFETY: plain integers, for which zero is a value.
    let mut attributes: nvmlDeviceAttributes_t = unsafe { std::mem::zeroed() };
    let mut small: [c_char; 8] = [0; 8];
    let mut sample: nvmlGpmSample_t = std::ptr::null_mut();
    assert_eq!(call!(s, nvmlGpmSampleAlloc(&raw mut sample)), recorded["gpmAlloc"]);
    for (code, name) in [
        (
            call!(s, nvmlDeviceGetMigDeviceHandleByIndex(s.device, 0, &raw mut device)),
            "nvmlDeviceGetMigDeviceHandleByIndex",
        ),
        (
            call!(s, nvmlDeviceGetDeviceHandleFromMigDeviceHandle(s.device, &raw mut device)),
            "nvmlDeviceGetDeviceHandleFromMigDeviceHandle(parent)",
        ),
        (call!(s, nvmlDeviceGetGpuInstanceById(s.device, 0, &raw mut instance)), "nvmlDeviceGetGpuInstanceById(0)"),
        (call!(s, nvmlDeviceGetAttributes_v2(s.device, &raw mut attributes)), "nvmlDeviceGetAttributes_v2"),
        (call!(s, nvmlDeviceGetUUID(s.device, small.as_mut_ptr(), 8)), "nvmlDeviceGetUUID_small"),
        (call!(s, nvmlGpmSampleGet(s.device, sample)), "nvmlGpmSampleGet"),
        (call!(s, nvmlGpmMigSampleGet(s.device, 0, sample)), "nvmlGpmMigSampleGet(0)"),
    ] {
        assert_eq!(json!(code), recorded[name], "{name}");
    }
    assert_eq!(call!(s, nvmlGpmSampleFree(sample)), 0);
}

#[test]
fn every_profile_is_the_recorded_one() {
    let (s, recorded) = (open(), recorded());
    for constant in 0..24 {
        let expected = &recorded["profiles"][constant.to_string()];
        // SAFETY: plain integers, for which zero is a value.
        let mut info: nvmlGpuInstanceProfileInfo_t = unsafe { std::mem::zeroed() };
        let code = call!(s, nvmlDeviceGetGpuInstanceProfileInfo(s.device, constant, &raw mut info));
        // SAFETY: as above.
        let mut named: nvmlGpuInstanceProfileInfo_v2_t = unsafe { std::mem::zeroed() };
        named.version = 152 | 2 << 24;
        let code_v2 = call!(s, nvmlDeviceGetGpuInstanceProfileInfoV(s.device, constant, &raw mut named));
        // SAFETY: the array holds a C string, at least an empty one.
        let name = unsafe { CStr::from_ptr(named.name.as_ptr()) }.to_str().unwrap();
        assert_eq!(json!([code_v2, name]), expected["v2"], "{constant}");
        if code != 0 {
            assert_eq!(json!([code]), expected["v1"], "{constant}");
            continue;
        }
        let values = [
            ("id", u64::from(info.id)),
            ("isP2pSupported", u64::from(info.isP2pSupported)),
            ("sliceCount", u64::from(info.sliceCount)),
            ("instanceCount", u64::from(info.instanceCount)),
            ("multiprocessorCount", u64::from(info.multiprocessorCount)),
            ("copyEngineCount", u64::from(info.copyEngineCount)),
            ("decoderCount", u64::from(info.decoderCount)),
            ("encoderCount", u64::from(info.encoderCount)),
            ("jpegCount", u64::from(info.jpegCount)),
            ("ofaCount", u64::from(info.ofaCount)),
            ("memorySizeMB", info.memorySizeMB),
        ];
        let mut v1 = vec![json!(code)];
        v1.extend(values.map(|(name, value)| json!([name, value])));
        assert_eq!(json!(v1), expected["v1"], "{constant}");

        let mut count = 0;
        let code = call!(
            s,
            nvmlDeviceGetGpuInstancePossiblePlacements_v2(s.device, info.id, std::ptr::null_mut(), &raw mut count)
        );
        assert_eq!(json!([code, count]), expected["placements_count"], "{constant}");
        let mut slots = vec![nvmlGpuInstancePlacement_t { start: 0, size: 0 }; count as usize];
        let code = call!(
            s,
            nvmlDeviceGetGpuInstancePossiblePlacements_v2(s.device, info.id, slots.as_mut_ptr(), &raw mut count)
        );
        let slots: Vec<_> = slots.iter().map(|slot| [slot.start, slot.size]).collect();
        assert_eq!(json!([code, slots]), expected["placements"], "{constant}");
        let code = call!(s, nvmlDeviceGetGpuInstanceRemainingCapacity(s.device, info.id, &raw mut count));
        assert_eq!(json!([code, count]), expected["remaining"], "{constant}");
        let mut instances: [nvmlGpuInstance_t; 8] = [std::ptr::null_mut(); 8];
        let code = call!(s, nvmlDeviceGetGpuInstances(s.device, info.id, instances.as_mut_ptr(), &raw mut count));
        assert_eq!(json!([code, count]), expected["instances"], "{constant}");
    }
}

#[test]
fn structures_have_the_sizes_of_the_header() {
    // A caller of another language relies on them; see nvml.h.
    assert_eq!(size_of::<nvmlGpuInstanceProfileInfo_t>(), 48);
    assert_eq!(size_of::<nvmlGpuInstanceProfileInfo_v2_t>(), 152);
    assert_eq!(size_of::<nvmlDeviceAttributes_t>(), 40);
    assert_eq!(size_of::<nvmlProcessInfo_t>(), 24);
    assert_eq!(size_of::<nvmlMemory_v2_t>(), 40);
    assert_eq!(size_of::<nvmlFieldValue_t>(), 40);
    assert_eq!(size_of::<nvmlGpmMetricsGet_t>(), 8424);
    assert_eq!(size_of::<nvmlPciInfo_t>(), 68);
}

#[test]
fn nonsense_is_refused() {
    let s = open();
    let mut value = 0;
    assert_eq!(call!(s, nvmlDeviceGetIndex(std::ptr::null_mut(), &raw mut value)), 2);
    assert_eq!(call!(s, nvmlDeviceGetIndex(s.device, std::ptr::null_mut())), 2);
    let mut device: nvmlDevice_t = std::ptr::null_mut();
    assert_eq!(call!(s, nvmlDeviceGetHandleByUUID(c"GPU-none".as_ptr(), &raw mut device)), 6);
    assert_eq!(call!(s, nvmlDeviceGetHandleByIndex_v2(1, &raw mut device)), 2);
}
