//! What only a GPU can show. Run with `-- --ignored --test-threads=1` where there is one.

use std::fs;
use std::time::{Duration, Instant};

use migperf_core::workload::{Input, Model, Precision, Task, Wait, Workload};
use migperf_worker::bridge;
use migperf_worker::step::{Step, StepError};
use tch::Device;

const GPU: Device = Device::Cuda(0);

fn step(workload: &Workload) -> Step {
    bridge::load_cuda().unwrap();
    let mut step = Step::new(workload, GPU, 1).unwrap_or_else(|error| panic!("{workload}: {error}"));
    step.run().unwrap_or_else(|error| panic!("{workload}: {error}"));
    step
}

/// Processor time of this process, of which waiting by spinning is a part; in steps of 10 ms.
fn processor_time() -> Duration {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    Duration::from_millis(10 * (fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()))
}

#[test]
#[ignore = "needs a GPU"]
fn a_blocking_wait_leaves_the_processor_free_and_a_spinning_one_does_not() {
    // Few kernels, each long: nearly all of a batch is waiting.
    let mut workload = Workload::new(Model::Resnet18, Task::Infer, 2048, Precision::Fp32);
    let mut shares = Vec::new();
    for wait in [Wait::Spin, Wait::Block] {
        workload.wait = wait;
        let mut step = step(&workload);
        let (start, used) = (Instant::now(), processor_time());
        while start.elapsed() < Duration::from_secs(2) {
            step.run().unwrap();
        }
        shares.push((processor_time() - used).as_secs_f64() / start.elapsed().as_secs_f64());
    }
    assert!(shares[0] > 0.8 && shares[1] < 0.5, "shares of one processor: {shares:?}");
}

#[test]
#[ignore = "needs a GPU"]
fn memory_is_counted_and_given_back() {
    let step = step(&Workload::new(Model::Resnet18, Task::Train, 32, Precision::Fp32));
    let memory = step.memory().unwrap().expect("a GPU's allocator counts");
    // Parameters and momentum stay; activations were there in between.
    assert!(memory.allocated.0 > 2 * 4 * Model::Resnet18.parameters(), "{memory:?}");
    assert!(memory.allocated_peak.0 > memory.allocated.0 + (500 << 20), "{memory:?}");
    assert!(memory.reserved_peak >= memory.allocated_peak, "{memory:?}");
    bridge::reset_peak_memory(GPU).unwrap();
    assert_eq!(step.memory().unwrap().unwrap().allocated_peak, memory.allocated);
    drop(step);
    bridge::empty_cache(GPU).unwrap();
    // What cuBLAS and cuDNN work in stays with the process, whatever the tests before this one used.
    let left = bridge::memory_stats(GPU).unwrap().unwrap().reserved;
    assert!(left.0 < memory.reserved_peak.0 / 2, "{left:?} of {memory:?}");
}

#[test]
#[ignore = "needs a GPU"]
fn what_does_not_fit_is_a_result() {
    bridge::load_cuda().unwrap();
    let large = Workload::new(Model::Resnet152, Task::Train, 16_384, Precision::Fp32);
    let error = Step::new(&large, GPU, 1).and_then(|mut step| step.run()).unwrap_err();
    assert!(matches!(error, StepError::OutOfMemory { .. }), "{error:?}");
    bridge::empty_cache(GPU).unwrap();
    step(&Workload::new(Model::Resnet18, Task::Infer, 1, Precision::Fp32));
}

#[test]
#[ignore = "needs a GPU"]
fn input_from_the_host_is_the_same_input() {
    let mut workload = Workload::new(Model::Resnet18, Task::Train, 32, Precision::Bf16);
    let resident = step(&workload).last_loss().unwrap().unwrap();
    workload.input = Input::Host;
    let copied = step(&workload).last_loss().unwrap().unwrap();
    assert!((resident - copied).abs() < 1e-3 * resident, "{resident} and {copied}");
}

#[test]
#[ignore = "needs a GPU"]
fn fp16_training_finds_a_scale_and_stays_finite() {
    for model in [Model::Resnet50, Model::BertBase, Model::DdpmUnet] {
        let mut step = step(&Workload::new(model, Task::Train, 8, Precision::Fp16));
        for _ in 0..10 {
            step.run().unwrap();
        }
        assert_eq!(step.last_is_finite().unwrap(), Some(true), "{model}");
        assert!(step.loss_scale().unwrap().unwrap() >= 1.0, "{model}");
    }
}

#[test]
#[ignore = "needs a GPU"]
fn no_work_at_all_asks_nothing_of_the_device() {
    bridge::load_cuda().unwrap();
    let workload = Workload::new(Model::Empty, Task::Infer, 1, Precision::Fp32);
    let mut step = Step::new(&workload, GPU, 1).unwrap();
    step.run().unwrap();
    bridge::reset_peak_memory(step.device()).unwrap();
    assert!(step.memory().unwrap().is_none());
}
