//! Every model against its reference library, on the CPU in fp32; see tests/parity/make_reference.py.
//!
//! Inference of every model, with the names, shapes and counts of its parameters; training of one member of each family.
//! Other precisions and devices: `migperf-worker-torch --parity`.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use migperf_core::workload::{MemoryFormat, Model, Precision, Task};
use migperf_worker::parity::Reference;
use tch::Device;

fn check(model: Model, task: Task, format: MemoryFormat) {
    // The largest model takes 4 GB: one at a time.
    static ALONE: Mutex<()> = Mutex::new(());
    // Threads that wait for each other crawl on a machine that is busy with something else.
    tch::set_num_threads(1);
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/parity");
    let reference = Reference::load(&folder, model).unwrap();
    let comparisons = reference.compare(task, Device::Cpu, Precision::Fp32, format).unwrap_or_else(|error| {
        panic!("{model} {task} {format}: {error}");
    });
    assert!(!comparisons.is_empty());
    for comparison in comparisons {
        assert!(comparison.holds(), "{model} {task} {format}: {comparison:?}");
    }
}

macro_rules! parity {
    ($($name:ident: $model:ident $task:ident $format:ident;)*) => {
        $(#[test] fn $name() { check(Model::$model, Task::$task, MemoryFormat::$format); })*
    };
}

parity! {
    resnet18: Resnet18 Infer Contiguous;
    resnet18_channels_last: Resnet18 Infer ChannelsLast;
    resnet18_train: Resnet18 Train Contiguous;
    resnet34: Resnet34 Infer Contiguous;
    resnet50: Resnet50 Infer Contiguous;
    resnet101: Resnet101 Infer Contiguous;
    resnet152: Resnet152 Infer Contiguous;
    bert_base: BertBase Infer Contiguous;
    bert_base_train: BertBase Train Contiguous;
    bert_large: BertLarge Infer Contiguous;
    distilbert: DistilBert Infer Contiguous;
    roberta_base: RobertaBase Infer Contiguous;
    vit_b_16: VitB16 Infer Contiguous;
    vit_b_16_train: VitB16 Train Contiguous;
    vit_l_16: VitL16 Infer Contiguous;
    sd15_unet: Sd15Unet Infer Contiguous;
    ddpm_unet: DdpmUnet Infer Contiguous;
    ddpm_unet_channels_last: DdpmUnet Infer ChannelsLast;
    ddpm_unet_train: DdpmUnet Train Contiguous;
}

#[test]
fn every_model_is_compared() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/parity");
    for &model in Model::ALL.iter().filter(|&&model| model != Model::Empty) {
        let reference = Reference::load(&folder, model).unwrap();
        assert_eq!(reference.model, model);
        assert_eq!(reference.versions["torch"].split('+').next(), Some("2.11.0"), "{model}");
    }
}
