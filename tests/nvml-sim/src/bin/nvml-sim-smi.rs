//! Prints what an NVML library says of MIG, as `nvidia-smi mig` of release 580 prints it: `-lgip`, `-lgipp`, `-lgi`, `-lci`.
//!
//! It reads any NVML library, the simulated one or a driver's, and knows nothing of either: what it prints was asked.

#![expect(unsafe_code, reason = "calls a C interface")]
#![expect(clippy::print_stdout, reason = "it is a printer")]

use std::ffi::{CStr, OsString};
use std::fmt::Write as _;
use std::process::ExitCode;

use nvml_wrapper_sys::bindings::*;

const USAGE: &str = "usage: nvml-sim-smi [--library FILE] mig -lgip | -lgipp | -lgi | -lci";
/// Constants of profiles are asked for up to this one.
const MOST_CONSTANTS: u32 = 64;
/// More instances of one profile than any GPU has.
const MOST_INSTANCES: usize = 64;

/// An open library.
struct Nvml {
    lib: NvmlLib,
}

/// Calls a function; gives its code as the error.
macro_rules! ask {
    ($nvml:expr, $name:ident ( $($argument:expr),* )) => {{
        let function = $nvml.lib.$name.as_ref().map_err(|error| error.to_string())?;
        // SAFETY: the symbols have the signatures of the binding, every pointer is to a value that outlives the call, and
        // arrays have the room that is said.
        match unsafe { function($($argument),*) } {
            0 => Ok(()),
            code => Err(code),
        }
    }};
}

/// Why there is nothing to print.
type Wrong = String;

fn failed(what: &str) -> impl Fn(u32) -> Wrong + '_ {
    move |code| format!("{what} failed with code {code}")
}

/// A profile as the library describes it.
struct Profile {
    info: nvmlGpuInstanceProfileInfo_v2_t,
    constant: u32,
}

impl Profile {
    fn name(&self) -> String {
        // SAFETY: the library ends the text within the array, which was zeroed before.
        unsafe { CStr::from_ptr(self.info.name.as_ptr()) }.to_string_lossy().into_owned()
    }
}

impl Nvml {
    fn open(library: &OsString) -> Result<Self, Wrong> {
        // SAFETY: loading a library runs its constructors: an NVML's have no conditions.
        let lib = unsafe { NvmlLib::new(library) }.map_err(|error| error.to_string())?;
        let nvml = Self { lib };
        ask!(nvml, nvmlInit_v2()).map_err(failed("nvmlInit_v2"))?;
        Ok(nvml)
    }

    fn gpus(&self) -> Result<Vec<nvmlDevice_t>, Wrong> {
        let mut count = 0;
        ask!(self, nvmlDeviceGetCount_v2(&raw mut count)).map_err(failed("nvmlDeviceGetCount_v2"))?;
        let mut gpus = Vec::new();
        for index in 0..count {
            let mut device = std::ptr::null_mut();
            let asked = ask!(self, nvmlDeviceGetHandleByIndex_v2(index, &raw mut device));
            asked.map_err(failed("nvmlDeviceGetHandleByIndex_v2"))?;
            gpus.push(device);
        }
        Ok(gpus)
    }

    fn is_divided(&self, gpu: nvmlDevice_t) -> Result<bool, Wrong> {
        let (mut current, mut pending) = (0, 0);
        Ok(ask!(self, nvmlDeviceGetMigMode(gpu, &raw mut current, &raw mut pending)).is_ok() && current == 1)
    }

    /// Profiles in the order in which they are printed: by slices, and as the header counts them.
    fn profiles(&self, gpu: nvmlDevice_t) -> Result<Vec<Profile>, Wrong> {
        let mut profiles = Vec::new();
        for constant in 0..MOST_CONSTANTS {
            // SAFETY: plain numbers and characters, for which zero is a value.
            let mut info: nvmlGpuInstanceProfileInfo_v2_t = unsafe { std::mem::zeroed() };
            let size = size_of::<nvmlGpuInstanceProfileInfo_v2_t>();
            info.version = u32::try_from(size | 2 << 24).map_err(|error| error.to_string())?;
            match ask!(self, nvmlDeviceGetGpuInstanceProfileInfoV(gpu, constant, &raw mut info)) {
                Ok(()) => profiles.push(Profile { info, constant }),
                Err(3) => {}
                Err(2) => break,
                Err(code) => return Err(failed("nvmlDeviceGetGpuInstanceProfileInfoV")(code)),
            }
        }
        profiles.sort_by_key(|profile| (profile.info.sliceCount, profile.constant));
        Ok(profiles)
    }

    fn instances(&self, gpu: nvmlDevice_t, profile: &Profile) -> Result<Vec<nvmlGpuInstance_t>, Wrong> {
        let mut handles = vec![std::ptr::null_mut(); MOST_INSTANCES];
        let mut count = u32::try_from(MOST_INSTANCES).map_err(|error| error.to_string())?;
        let asked = ask!(self, nvmlDeviceGetGpuInstances(gpu, profile.info.id, handles.as_mut_ptr(), &raw mut count));
        asked.map_err(failed("nvmlDeviceGetGpuInstances"))?;
        handles.truncate(count as usize);
        Ok(handles)
    }

    fn instance_info(&self, instance: nvmlGpuInstance_t) -> Result<nvmlGpuInstanceInfo_t, Wrong> {
        // SAFETY: plain numbers and a pointer, for which zero is a value.
        let mut info: nvmlGpuInstanceInfo_t = unsafe { std::mem::zeroed() };
        ask!(self, nvmlGpuInstanceGetInfo(instance, &raw mut info)).map_err(failed("nvmlGpuInstanceGetInfo"))?;
        Ok(info)
    }
}

fn profiles(nvml: &Nvml) -> Result<String, Wrong> {
    let rule = format!("+{}+\n", "-".repeat(79));
    let mut text = rule.clone();
    for line in [
        "GPU instance profiles:",
        "GPU   Name               ID    Instances   Memory     P2P    SM    DEC   ENC",
        "                               Free/Total   GiB              CE    JPEG  OFA",
    ] {
        let _ = writeln!(text, "| {line:<78}|");
    }
    let _ = writeln!(text, "|{}|", "=".repeat(79));
    for (index, gpu) in nvml.gpus()?.into_iter().enumerate() {
        for profile in nvml.profiles(gpu)? {
            let info = &profile.info;
            let mut free = 0;
            let asked = ask!(nvml, nvmlDeviceGetGpuInstanceRemainingCapacity(gpu, info.id, &raw mut free));
            asked.map_err(failed("nvmlDeviceGetGpuInstanceRemainingCapacity"))?;
            #[expect(clippy::cast_precision_loss, reason = "mebibytes of one GPU")]
            let memory = info.memorySizeMB as f64 / 1024.0;
            let p2p = if info.isP2pSupported == 0 { "No" } else { "Yes" };
            let (sm, dec, enc) = (info.multiprocessorCount, info.decoderCount, info.encoderCount);
            let _ = writeln!(
                text,
                "|{index:>4}  {:<18}{:>4}     {free}/{:<9}{memory:<11.2}{p2p:<7}{sm:<7}{dec:<6}{enc:<4}|",
                profile.name(),
                info.id,
                info.instanceCount,
            );
            let (ce, jpeg, ofa) = (info.copyEngineCount, info.jpegCount, info.ofaCount);
            let _ = writeln!(text, "|{:63}{ce:<6}{jpeg:<6}{ofa:<4}|", "");
            text += &rule;
        }
    }
    Ok(text)
}

fn placements(nvml: &Nvml) -> Result<String, Wrong> {
    let mut text = String::new();
    for (index, gpu) in nvml.gpus()?.into_iter().enumerate() {
        for profile in nvml.profiles(gpu)? {
            let mut places = vec![nvmlGpuInstancePlacement_t { start: 0, size: 0 }; MOST_INSTANCES];
            let mut count = u32::try_from(MOST_INSTANCES).map_err(|error| error.to_string())?;
            let id = profile.info.id;
            let (array, count_of) = (places.as_mut_ptr(), &raw mut count);
            let asked = ask!(nvml, nvmlDeviceGetGpuInstancePossiblePlacements_v2(gpu, id, array, count_of));
            asked.map_err(failed("nvmlDeviceGetGpuInstancePossiblePlacements_v2"))?;
            places.truncate(count as usize);
            let starts: Vec<String> = places.iter().map(|place| place.start.to_string()).collect();
            let word = if places.len() == 1 { "Placement " } else { "Placements" };
            let size = places.first().map_or(0, |place| place.size);
            let _ = writeln!(text, "GPU {index:>2} Profile ID {id:>2} {word}: {{{}}}:{size}", starts.join(","));
        }
    }
    Ok(text)
}

/// Lines in a frame of this width, the last ones each with a rule below.
fn table(width: usize, head: &[&str], rows: &[String]) -> String {
    let rule = format!("+{}+\n", "-".repeat(width));
    let mut text = rule.clone();
    for line in head {
        let _ = writeln!(text, "| {line:<0$}|", width - 1);
    }
    let _ = writeln!(text, "|{}|", "=".repeat(width));
    for row in rows {
        let _ = writeln!(text, "|{row:<width$}|");
        text += &rule;
    }
    text
}

const NONE_DIVIDED: &str = "No MIG-enabled devices found.\n";

fn gpu_instances(nvml: &Nvml) -> Result<String, Wrong> {
    let (mut rows, mut divided) = (Vec::new(), false);
    for (index, gpu) in nvml.gpus()?.into_iter().enumerate() {
        if !nvml.is_divided(gpu)? {
            continue;
        }
        divided = true;
        for profile in nvml.profiles(gpu)? {
            for instance in nvml.instances(gpu, &profile)? {
                let info = nvml.instance_info(instance)?;
                rows.push(format!(
                    "{index:>4}  {:<19}{:>5}{:>9}{:>11}:{:<6}",
                    profile.name(),
                    info.profileId,
                    info.id,
                    info.placement.start,
                    info.placement.size
                ));
            }
        }
    }
    Ok(match (divided, rows.is_empty()) {
        (false, _) => NONE_DIVIDED.to_owned(),
        (true, true) => "No GPU instances found: Not Found\n".to_owned(),
        (true, false) => {
            let head = [
                "GPU instances:",
                "GPU   Name               Profile  Instance   Placement",
                "                           ID       ID       Start:Size",
            ];
            table(57, &head, &rows)
        }
    })
}

fn compute_instances(nvml: &Nvml) -> Result<String, Wrong> {
    let (mut rows, mut divided) = (Vec::new(), false);
    for (index, gpu) in nvml.gpus()?.into_iter().enumerate() {
        if !nvml.is_divided(gpu)? {
            continue;
        }
        divided = true;
        for profile in nvml.profiles(gpu)? {
            for instance in nvml.instances(gpu, &profile)? {
                let whole = nvml.instance_info(instance)?;
                for constant in 0..MOST_CONSTANTS {
                    // SAFETY: plain numbers, for which zero is a value.
                    let mut part: nvmlComputeInstanceProfileInfo_t = unsafe { std::mem::zeroed() };
                    let into = &raw mut part;
                    match ask!(nvml, nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, constant, 0, into)) {
                        Ok(()) => {}
                        Err(3) => continue,
                        Err(2) => break,
                        Err(code) => return Err(failed("nvmlGpuInstanceGetComputeInstanceProfileInfo")(code)),
                    }
                    let name = match profile.name().strip_prefix("MIG ") {
                        Some(name) if part.sliceCount < profile.info.sliceCount => {
                            format!("MIG {}c.{name}", part.sliceCount)
                        }
                        _ => profile.name(),
                    };
                    let mut handles = vec![std::ptr::null_mut(); MOST_INSTANCES];
                    let mut count = u32::try_from(MOST_INSTANCES).map_err(|error| error.to_string())?;
                    let (array, count_of) = (handles.as_mut_ptr(), &raw mut count);
                    let asked = ask!(nvml, nvmlGpuInstanceGetComputeInstances(instance, part.id, array, count_of));
                    asked.map_err(failed("nvmlGpuInstanceGetComputeInstances"))?;
                    for handle in handles.into_iter().take(count as usize) {
                        // SAFETY: plain numbers and pointers, for which zero is a value.
                        let mut info: nvmlComputeInstanceInfo_t = unsafe { std::mem::zeroed() };
                        let asked = ask!(nvml, nvmlComputeInstanceGetInfo_v2(handle, &raw mut info));
                        asked.map_err(failed("nvmlComputeInstanceGetInfo_v2"))?;
                        let place = format!("{}:{}", info.placement.start, info.placement.size);
                        rows.push(format!(
                            "{index:>4}{:>7}       {name:<19}{:>3}{:>10}          {place:<8}",
                            whole.id, info.profileId, info.id
                        ));
                    }
                }
            }
        }
    }
    Ok(match (divided, rows.is_empty()) {
        (false, _) => NONE_DIVIDED.to_owned(),
        (true, true) => "No compute instances found: Not Found\n".to_owned(),
        (true, false) => {
            let head = [
                "Compute instances:",
                "GPU     GPU       Name             Profile   Instance   Placement",
                "      Instance                       ID        ID       Start:Size",
                "        ID",
            ];
            table(68, &head, &rows)
        }
    })
}

fn run() -> Result<String, Wrong> {
    let mut arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let mut library = OsString::from("libnvidia-ml.so.1");
    if arguments.first().is_some_and(|first| first == "--library") && arguments.len() > 1 {
        library = arguments.drain(..2).nth(1).unwrap_or_default();
    }
    let [command, list] = arguments.as_slice() else { return Err(USAGE.to_owned()) };
    if command != "mig" {
        return Err(USAGE.to_owned());
    }
    let list = match list.to_str() {
        Some("-lgip") => profiles,
        Some("-lgipp") => placements,
        Some("-lgi") => gpu_instances,
        Some("-lci") => compute_instances,
        _ => return Err(USAGE.to_owned()),
    };
    list(&Nvml::open(&library)?)
}

fn main() -> ExitCode {
    match run() {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(wrong) => {
            eprintln!("nvml-sim-smi: {wrong}");
            ExitCode::FAILURE
        }
    }
}
