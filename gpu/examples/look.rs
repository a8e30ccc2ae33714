//! Prints what this machine's GPUs say and what watching them costs: `look [SECONDS] [LIBRARY]`.
//!
//! Everything is read through the crate as the daemon reads it, so the output of a real machine shows which readings
//! its driver gives and how long the sampler's thread was busy.
#![expect(clippy::print_stdout, reason = "an example that prints")]

use std::path::PathBuf;
use std::time::{Duration, Instant};

use migperf_core::ids::DeviceUuid;
use migperf_gpu::library::Nvml;
use migperf_gpu::sampler::Sampler;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let seconds: u64 = arguments.next().map_or(Ok(5), |text| text.parse())?;
    let library = arguments.next().map(PathBuf::from);
    let library = library.as_deref();

    let started = Instant::now();
    let nvml = Nvml::open(library)?;
    let opened = started.elapsed();
    let inventory = nvml.inventory();
    let read = started.elapsed() - opened;
    println!("{}", serde_json::to_string_pretty(&inventory)?);
    println!("opened in {opened:?}, read in {read:?}");

    let mut devices = Vec::new();
    for gpu in &inventory.gpus {
        devices.push(DeviceUuid::Gpu(gpu.uuid.clone()));
        devices
            .extend(gpu.instances.value().into_iter().flatten().map(|instance| DeviceUuid::Mig(instance.uuid.clone())));
    }
    drop(nvml);
    let sampler = Sampler::start(library, devices, Duration::from_millis(100))?;
    std::thread::sleep(Duration::from_secs(seconds));
    for series in sampler.stop() {
        println!("{}", serde_json::to_string(&series)?);
    }
    Ok(())
}
