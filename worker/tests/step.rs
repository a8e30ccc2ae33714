//! Batches of every kind run on the CPU, and training moves the loss.

use std::sync::{Mutex, MutexGuard, PoisonError};

use migperf_core::workload::{Input, Model, Precision, Task, Workload};
use migperf_worker::step::Step;
use tch::Device;

/// Numerics and random numbers are the process's own: one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    // Threads that wait for each other crawl on a machine that is busy with something else.
    tch::set_num_threads(1);
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run(workload: &Workload, batches: usize) -> Step {
    let mut step = Step::new(workload, Device::Cpu, 1).unwrap_or_else(|error| panic!("{workload}: {error}"));
    assert_eq!(step.last_is_finite().unwrap(), None, "{workload}: nothing has run yet");
    for _ in 0..batches {
        step.run().unwrap_or_else(|error| panic!("{workload}: {error}"));
    }
    step
}

/// Not here: fp16 training of convolutions, whose gradients libtorch computes on the CPU a hundred times slower.
#[test]
fn every_precision_runs_and_gives_finite_numbers() {
    let _alone = alone();
    for (model, task) in [
        (Model::Resnet18, Task::Infer),
        (Model::Resnet18, Task::Train),
        (Model::DistilBert, Task::Infer),
        (Model::DistilBert, Task::Train),
    ] {
        for &precision in Precision::ALL {
            if (model, task, precision) == (Model::Resnet18, Task::Train, Precision::Fp16) {
                continue;
            }
            let mut workload = Workload::new(model, task, 2, precision);
            workload.sequence_length = model.longest_sequence().map(|_| 8);
            let step = run(&workload, 1);
            assert_eq!(step.last_is_finite().unwrap(), Some(true), "{workload}");
            assert_eq!(step.parameters(), model.parameters());
            assert_eq!(step.memory().unwrap(), None, "the CPU's allocator doesn't count");
            assert_eq!(step.last_loss().unwrap().is_some(), task == Task::Train);
            assert_eq!(step.loss_scale().unwrap().is_some(), task == Task::Train && precision == Precision::Fp16);
        }
    }
}

#[test]
fn training_lowers_the_loss() {
    let _alone = alone();
    let workload = Workload::new(Model::Resnet18, Task::Train, 2, Precision::Fp32);
    let mut step = run(&workload, 1);
    let first = step.last_loss().unwrap().unwrap();
    for _ in 0..3 {
        step.run().unwrap();
    }
    let last = step.last_loss().unwrap().unwrap();
    assert!(last < first, "{first} -> {last}");
}

#[test]
fn the_same_seed_gives_the_same_first_loss_wherever_the_input_is() {
    let _alone = alone();
    let mut workload = Workload::new(Model::Resnet18, Task::Train, 2, Precision::Fp32);
    let resident = run(&workload, 1).last_loss().unwrap();
    workload.input = Input::Host;
    assert_eq!(run(&workload, 1).last_loss().unwrap(), resident);
}

#[test]
fn the_empty_model_does_nothing() {
    let _alone = alone();
    let step = run(&Workload::new(Model::Empty, Task::Infer, 1, Precision::Fp32), 1000);
    assert_eq!((step.parameters(), step.last_is_finite().unwrap()), (0, None));
}
