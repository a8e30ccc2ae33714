//! Workloads as they are written: each key a value or a list, and their product in one documented order.

use crate::suite::options::Options;
use crate::suite::problem::{Problem, has_convolutions};
use crate::suite::reader::{At, Faults, Fields, Value, named, one_or_many, small};
use crate::workload::{Cudnn, Input, MemoryFormat, Model, Precision, Task, Wait, Workload};

const KEYS: &[&str] =
    &["model", "task", "precision", "batch-size", "sequence-length", "input", "memory-format", "wait", "cudnn"];

/// Every workload that a table stands for. Keys expand in the order of the fields, the last one fastest.
#[derive(Debug, Clone)]
pub(super) struct Matrix {
    models: Vec<Model>,
    tasks: Vec<Task>,
    precisions: Vec<Precision>,
    batch_sizes: Vec<u32>,
    /// None: the model's default.
    sequence_lengths: Vec<Option<u32>>,
    inputs: Vec<Input>,
    /// None: the default of model and precision.
    memory_formats: Vec<Option<MemoryFormat>>,
    waits: Vec<Wait>,
    cudnns: Vec<Cudnn>,
    /// What `[defaults]` or the trial say to models that take sequences.
    usual_sequence: Option<u32>,
    /// What `[defaults]` or the trial say to models with convolutions.
    usual_format: Option<MemoryFormat>,
}

fn values<T>(list: Vec<At<T>>) -> Vec<T> {
    list.into_iter().map(|at| at.value).collect()
}

impl Matrix {
    /// Reads a workload's table; `usual` is what the trial and `[defaults]` say about keys that it leaves out.
    pub(super) fn read(value: &Value<'_>, usual: &Options, faults: &mut Faults<'_>) -> Option<Self> {
        let fields = Fields::of_value(value, "a workload", KEYS, faults)?;
        macro_rules! axis {
            ($key:literal) => {
                fields.get($key).map(|value| {
                    one_or_many($key, value, faults, |value, faults| named($key, value, faults)).map(values)
                })
            };
            ($key:literal, $range:expr) => {
                fields
                    .get($key)
                    .map(|value| one_or_many($key, value, faults, |value, faults| small($key, $range, value, faults)))
            };
        }
        let models = match fields.need("model", "model = \"resnet18\"", faults) {
            Some(value) => one_or_many("model", value, faults, |value, faults| named::<Model>("model", value, faults)),
            None => None,
        };
        let tasks = fields.need("task", "task = [\"train\", \"infer\"]", faults).and_then(|_| axis!("task")?);
        let batch_sizes = fields
            .need("batch-size", "batch-size = 32", faults)
            .and_then(|_| axis!("batch-size", 1..=Workload::LARGEST_BATCH)?);
        let precisions = axis!("precision").unwrap_or_else(|| Some(vec![usual.precision.unwrap_or(Precision::Fp32)]));
        let sequence_lengths = axis!("sequence-length", 1..=u32::MAX);
        let inputs = axis!("input").unwrap_or_else(|| Some(vec![usual.input.unwrap_or(Input::Device)]));
        let memory_formats: Option<Option<Vec<MemoryFormat>>> = axis!("memory-format");
        let waits = axis!("wait").unwrap_or_else(|| Some(vec![usual.wait.unwrap_or(Wait::Spin)]));
        let cudnns = axis!("cudnn").unwrap_or_else(|| Some(vec![usual.cudnn.unwrap_or(Cudnn::Heuristic)]));
        let models = models?;
        let mut fits = true;
        for model in &models {
            if memory_formats.is_some() && !has_convolutions(model.value.family()) {
                faults.add(&model.place, Problem::NoConvolutions(model.value));
                fits = false;
            }
            match (&sequence_lengths, model.value.longest_sequence()) {
                (Some(_), None) => {
                    faults.add(&model.place, Problem::NoSequences(model.value));
                    fits = false;
                }
                (Some(Some(lengths)), Some(longest)) => {
                    for At { value: length, place } in lengths.iter().filter(|length| length.value > longest) {
                        let problem = Problem::SequenceLength { length: *length, model: model.value, longest };
                        faults.add(place, problem);
                        fits = false;
                    }
                }
                (None, Some(longest)) => {
                    if let Some(length) = usual.sequence_length.filter(|length| *length > longest) {
                        let problem = Problem::SequenceLength { length, model: model.value, longest };
                        faults.add(&model.place, problem);
                        fits = false;
                    }
                }
                _ => {}
            }
        }
        let matrix = Self {
            models: values(models),
            tasks: tasks?,
            precisions: precisions?,
            batch_sizes: values(batch_sizes?),
            sequence_lengths: match sequence_lengths {
                Some(lengths) => values(lengths?).into_iter().map(Some).collect(),
                None => vec![None],
            },
            inputs: inputs?,
            memory_formats: match memory_formats {
                Some(formats) => formats?.into_iter().map(Some).collect(),
                None => vec![None],
            },
            waits: waits?,
            cudnns: cudnns?,
            usual_sequence: usual.sequence_length,
            usual_format: usual.memory_format,
        };
        fits.then_some(matrix)
    }

    /// How many workloads there are, saturating.
    pub(super) fn len(&self) -> usize {
        self.lengths().iter().fold(1, |product, length| product.saturating_mul(*length))
    }

    fn lengths(&self) -> [usize; 9] {
        [
            self.models.len(),
            self.tasks.len(),
            self.precisions.len(),
            self.batch_sizes.len(),
            self.sequence_lengths.len(),
            self.inputs.len(),
            self.memory_formats.len(),
            self.waits.len(),
            self.cudnns.len(),
        ]
    }

    /// The workload at a place of the documented order, below [`Self::len`].
    pub(super) fn workload(&self, index: usize) -> Workload {
        let [model, task, precision, batch_size, sequence_length, input, memory_format, wait, cudnn] =
            digits(index, self.lengths());
        let (model, precision) = (self.models[model], self.precisions[precision]);
        let mut workload = Workload::new(model, self.tasks[task], self.batch_sizes[batch_size], precision);
        if model.longest_sequence().is_some() {
            let usual = self.usual_sequence.or(workload.sequence_length);
            workload.sequence_length = self.sequence_lengths[sequence_length].or(usual);
        }
        if has_convolutions(model.family()) {
            let usual = self.usual_format.unwrap_or(workload.memory_format);
            workload.memory_format = self.memory_formats[memory_format].unwrap_or(usual);
        }
        workload.input = self.inputs[input];
        workload.wait = self.waits[wait];
        workload.cudnn = self.cudnns[cudnn];
        workload
    }
}

/// A number in a system of mixed radices, the last digit the fastest.
pub(super) fn digits<const N: usize>(mut index: usize, radices: [usize; N]) -> [usize; N] {
    let mut digits = [0; N];
    for (digit, radix) in digits.iter_mut().zip(radices).rev() {
        *digit = index % radix;
        index /= radix;
    }
    digits
}
