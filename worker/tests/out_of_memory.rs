//! A workload that doesn't fit is a result, and the process goes on.
//!
//! Alone in its file, because it limits the memory of the whole process.

use std::fs;

use migperf_core::workload::{Model, Precision, Task, Workload};
use migperf_worker::step::{Step, StepError};
use nix::sys::resource::{Resource, setrlimit};
use tch::Device;

/// Bytes of address space that this process uses.
fn address_space() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmSize:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

#[test]
fn what_does_not_fit_is_a_result() {
    let small = Workload::new(Model::Resnet18, Task::Infer, 1, Precision::Fp32);
    Step::new(&small, Device::Cpu, 1).unwrap().run().unwrap();
    let limit = address_space() + (3 << 30);
    setrlimit(Resource::RLIMIT_AS, limit, limit).unwrap();

    // The images alone take 5 GB.
    let images = Workload::new(Model::Resnet18, Task::Infer, 8192, Precision::Fp32);
    assert!(matches!(Step::new(&images, Device::Cpu, 1), Err(StepError::OutOfMemory { .. })));
    // The parameters alone take 3.4 GB.
    let parameters = Workload::new(Model::Sd15Unet, Task::Infer, 1, Precision::Fp32);
    assert!(matches!(Step::new(&parameters, Device::Cpu, 1), Err(StepError::OutOfMemory { .. })));
    // The images take 0.3 GB, the first activations 1.6 GB each.
    let activations = Workload::new(Model::Resnet18, Task::Train, 512, Precision::Fp32);
    let mut step = Step::new(&activations, Device::Cpu, 1).unwrap();
    let error = step.run().unwrap_err();
    assert!(matches!(error, StepError::OutOfMemory { .. }), "{error:?}");
    assert!(!error.to_string().contains("Exception raised"), "{error}");
    drop(step);

    Step::new(&small, Device::Cpu, 1).unwrap().run().unwrap();
}
