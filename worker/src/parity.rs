//! Numerical comparison with the reference libraries, for every path that is measured: precision, memory format, device.
//!
//! References are made by tests/parity/make_reference.py, in fp32 on a CPU. Parameters and inputs follow from names, so
//! nothing but this program and the JSON files is needed. Errors are relative; what counts as equal depends on the
//! precision ([`tolerance`]).

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use migperf_core::workload::{Family, MemoryFormat, Model, Precision, Task, Workload};
use serde::Deserialize;
use tch::{Device, Kind, TchError, Tensor};

use crate::bridge::{self, Rule};
use crate::models::{Batch, Entry, Role, Values, from_names};
use crate::step::{Preparation, StepError, Work, default_rule};

/// What the reference libraries computed for one model.
#[derive(Debug, Deserialize)]
pub struct Reference {
    /// The model.
    pub model: Model,
    /// The libraries and their versions.
    pub versions: BTreeMap<String, String>,
    /// Names and shapes of the state dictionary.
    pub state: BTreeMap<String, Vec<i64>>,
    infer: Inference,
    train: Option<Training>,
}

#[derive(Debug, Deserialize)]
struct Inference {
    inputs: Vec<Input>,
    outputs: Vec<Output>,
}

#[derive(Debug, Deserialize)]
struct Output {
    norm: f64,
    values: Vec<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Training {
    inputs: Vec<Input>,
    target: Input,
    learning_rate: f64,
    losses: Vec<f64>,
    gradient_norms: BTreeMap<String, f64>,
    change_norms: BTreeMap<String, f64>,
}

/// Whole numbers where there is a bound, else real ones.
#[derive(Debug, Deserialize)]
struct Input {
    shape: Vec<i64>,
    #[serde(default)]
    from: i64,
    below: Option<u32>,
}

/// Why a comparison could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ParityError {
    /// The reference can't be read.
    #[error("can't read the reference {path}", path = path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The reference isn't what the script writes.
    #[error("{path} is not a reference that make_reference.py wrote", path = path.display())]
    Parse {
        /// Which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// The reference says nothing about what was asked.
    #[error("the reference of {model} has nothing about {task}")]
    Absent {
        /// The model.
        model: Model,
        /// The task, or the parameter that is missing.
        task: String,
    },
    /// The model isn't the reference's.
    #[error("{model} differs from its reference in {differing}")]
    Architecture {
        /// The model.
        model: Model,
        /// The first names whose shapes differ or which only one side has, or the count of parameters.
        differing: String,
    },
    /// The model could not be run.
    #[error("{0} could not be run")]
    Run(Workload, #[source] StepError),
}

/// What is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantity {
    /// Of all outputs the worst: the norm, and evenly spaced values against their own norm.
    Outputs,
    /// Of three training steps the worst loss.
    Losses,
    /// All gradient norms of the first step as one vector.
    Gradients,
    /// The worst single gradient norm, against itself plus a thousandth of the whole.
    WorstGradient,
    /// The norms of what three steps changed in each parameter, as one vector.
    Changes,
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Outputs => "outputs",
            Self::Losses => "losses",
            Self::Gradients => "gradients",
            Self::WorstGradient => "worst-gradient",
            Self::Changes => "changes",
        })
    }
}

/// One relative error.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Comparison {
    /// Of what.
    pub quantity: Quantity,
    /// How far from the reference.
    pub error: f64,
    /// How far it may be.
    pub tolerance: f64,
}

impl Comparison {
    /// Whether the error is within what the precision allows.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.error <= self.tolerance
    }
}

/// The largest relative error that a precision explains on a kind of device.
///
/// One rounding costs 6e-8 (fp32), 5e-4 (TF32, fp16) or 4e-3 (bf16); tens of layers add theirs up to a few times that: on a
/// CPU at most 3e-6, 1e-2 (fp16) and 2e-2 (bf16) were seen. A single gradient can lose ten times more, where what is left
/// is the difference of large parts. A wrong constant, name or order is off by far more than any of these.
///
/// On a GPU the measure is the reference libraries' own distance from these values, which tests/parity/deviation.py prints.
/// On an H200 it was, at most: fp32 1.4e-3 for a single gradient (ResNet-18, channels-last) and 2.1e-4 for the changes of
/// parameters (AdamW normalises what is only rounding, such as the gradient of a key's bias); TF32 7.2e-3 for outputs
/// (BERT-large, 24 layers) and 2.1e-2 for a single gradient; bf16 6.4e-2 for outputs and 4.7e-2 for a loss. The worker's
/// agreed with them to two digits, but for that loss (5.1e-2). About twice as much is allowed.
#[must_use]
pub fn tolerance(device: Device, precision: Precision, quantity: Quantity) -> f64 {
    use Quantity::{Changes, Gradients, Losses, Outputs, WorstGradient};
    let cuda = device.is_cuda();
    match (precision, quantity) {
        (Precision::Fp32, Changes) if cuda => 5e-4,
        (Precision::Fp32, Outputs | Losses | Gradients | Changes) => 1e-4,
        (Precision::Fp32, WorstGradient) if cuda => 3e-3,
        (Precision::Fp32, WorstGradient) => 1e-3,
        (Precision::Tf32, Outputs) if cuda => 1.5e-2,
        (Precision::Tf32, Outputs | Losses | Gradients | Changes) => 3e-3,
        (Precision::Tf32, WorstGradient) if cuda => 5e-2,
        (Precision::Tf32, WorstGradient) => 3e-2,
        (Precision::Bf16, Outputs | Losses) if cuda => 1.2e-1,
        (Precision::Bf16 | Precision::Fp16, Outputs | Losses | Gradients | Changes) => 3e-2,
        (Precision::Bf16 | Precision::Fp16, WorstGradient) => 3e-1,
    }
}

impl Reference {
    /// Reads a model's reference from a folder.
    ///
    /// # Errors
    /// When there is none or it isn't one.
    pub fn load(folder: &Path, model: Model) -> Result<Self, ParityError> {
        let path = folder.join(format!("{model}.json"));
        let text = fs::read_to_string(&path).map_err(|source| ParityError::Read { path: path.clone(), source })?;
        serde_json::from_str(&text).map_err(|source| ParityError::Parse { path, source })
    }

    /// Whether training can be compared.
    #[must_use]
    pub fn has_training(&self) -> bool {
        self.train.is_some()
    }

    /// Runs the model as a measurement would, and compares.
    ///
    /// # Errors
    /// When the model can't be run or the reference lacks the task.
    pub fn compare(
        &self,
        task: Task,
        device: Device,
        precision: Precision,
        memory_format: MemoryFormat,
    ) -> Result<Vec<Comparison>, ParityError> {
        let mut workload = Workload::new(self.model, task, 1, precision);
        workload.memory_format = memory_format;
        let failed = |error: StepError| ParityError::Run(workload.clone(), error);
        let errors = match task {
            Task::Infer => {
                let work = self.prepare(&workload, device, 0.0)?;
                self.infer(work).map_err(failed)?
            }
            Task::Train => {
                let training = self.train.as_ref().ok_or_else(|| self.absent(task))?;
                let work = self.prepare(&workload, device, training.learning_rate)?;
                self.train(training, &train_steps(training, work).map_err(failed)?)?
            }
        };
        let compared =
            |(quantity, error)| Comparison { quantity, error, tolerance: tolerance(device, precision, quantity) };
        Ok(errors.into_iter().map(compared).collect())
    }

    fn absent(&self, what: impl ToString) -> ParityError {
        ParityError::Absent { model: self.model, task: what.to_string() }
    }

    /// Builds the model and holds its names, shapes and count of parameters against the reference's.
    fn prepare(&self, workload: &Workload, device: Device, learning_rate: f64) -> Result<Work, ParityError> {
        let rule = match default_rule(workload.model.family()) {
            Rule::Sgd { momentum, weight_decay, .. } => Rule::Sgd { learning_rate, momentum, weight_decay },
            Rule::AdamW { beta1, beta2, epsilon, weight_decay, .. } => {
                Rule::AdamW { learning_rate, beta1, beta2, epsilon, weight_decay }
            }
        };
        // A scale at which no gradient of the references overflows, so that no step is skipped.
        let preparation = Preparation { values: Values::FromNames, rule, loss_scale: 1024.0 };
        let work = Work::new(workload, device, &preparation)
            .map_err(|error| ParityError::Run(workload.clone(), error))?
            .ok_or_else(|| self.absent(workload.task))?;
        let base = |entry: &&Entry| entry.role != Role::Head;
        let ours: BTreeMap<String, Vec<i64>> =
            work.parameters.entries().iter().filter(base).map(|e| (e.name.clone(), e.tensor.size())).collect();
        let only = |a: &BTreeMap<String, Vec<i64>>, b: &BTreeMap<String, Vec<i64>>| -> Vec<String> {
            a.iter().filter(|(name, shape)| b.get(*name) != Some(shape)).map(|(name, _)| name.clone()).collect()
        };
        let mut differing = only(&ours, &self.state);
        differing.extend(only(&self.state, &ours));
        if differing.is_empty() && work.parameters.count(Role::Parameter) != self.model.parameters() {
            differing.push("the count of parameters".to_owned());
        }
        if differing.is_empty() {
            Ok(work)
        } else {
            differing.truncate(5);
            Err(ParityError::Architecture { model: self.model, differing: differing.join(", ") })
        }
    }

    fn infer(&self, mut work: Work) -> Result<Vec<(Quantity, f64)>, StepError> {
        work.batch.inputs = fill_inputs(&work, &self.infer.inputs)?;
        work.run(|_| Ok(()))?;
        let mut worst: f64 = if work.last.len() == self.infer.outputs.len() { 0.0 } else { f64::INFINITY };
        for (ours, theirs) in work.last.iter().zip(&self.infer.outputs) {
            let ours = Vec::<f64>::try_from(ours.f_to_device(Device::Cpu)?.f_to_kind(Kind::Double)?.f_flatten(0, -1)?)?;
            let samples: Vec<f64> =
                (0..theirs.values.len()).map(|i| ours[i * ours.len() / theirs.values.len()]).collect();
            worst = larger(worst, (norm(&ours) - theirs.norm).abs() / theirs.norm);
            worst = larger(worst, relative(&samples, &theirs.values));
        }
        Ok(vec![(Quantity::Outputs, worst)])
    }

    fn train(&self, training: &Training, trained: &Trained) -> Result<Vec<(Quantity, f64)>, ParityError> {
        let by_name = |norms: &BTreeMap<String, f64>| -> Result<Vec<f64>, ParityError> {
            trained.names.iter().map(|name| norms.get(name).copied().ok_or_else(|| self.absent(name))).collect()
        };
        let (gradients, changes) = (by_name(&training.gradient_norms)?, by_name(&training.change_norms)?);
        let whole = norm(&gradients);
        let worst_gradient = trained
            .gradients
            .iter()
            .zip(&gradients)
            .map(|(ours, theirs)| (ours - theirs).abs() / (theirs + 1e-3 * whole))
            .fold(0.0, larger);
        let losses = trained.losses.iter().zip(&training.losses);
        Ok(vec![
            (Quantity::Losses, losses.map(|(ours, theirs)| (ours - theirs).abs() / theirs.abs()).fold(0.0, larger)),
            (Quantity::Gradients, relative(&trained.gradients, &gradients)),
            (Quantity::WorstGradient, worst_gradient),
            (Quantity::Changes, relative(&trained.changes, &changes)),
        ])
    }
}

/// What some steps of training did.
struct Trained {
    names: Vec<String>,
    losses: Vec<f64>,
    gradients: Vec<f64>,
    changes: Vec<f64>,
}

/// As many steps as the reference took.
fn train_steps(training: &Training, mut work: Work) -> Result<Trained, StepError> {
    let inputs = fill_inputs(&work, &training.inputs)?;
    work.batch = Batch { inputs, target: fill_input(&work, "target", &training.target)? };
    let trained: Vec<(String, Tensor)> = work
        .parameters
        .entries()
        .iter()
        .filter(|entry| entry.role != Role::Buffer)
        .map(|entry| (entry.name.clone(), entry.tensor.detach()))
        .collect();
    let before =
        trained.iter().map(|(_, tensor)| tensor.f_mul_scalar(1.0)).collect::<Result<Vec<Tensor>, TchError>>()?;
    let (mut losses, mut gradients) = (Vec::new(), Vec::new());
    for step in 0..training.losses.len() {
        work.run(|optimiser| {
            if step == 0 {
                gradients = optimiser.gradient_norms()?;
            }
            Ok(())
        })?;
        losses.push(work.last[0].f_double_value(&[])?);
    }
    let mut changes = Vec::new();
    for ((_, after), before) in trained.iter().zip(&before) {
        changes.push(after.f_sub(before)?.f_to_kind(Kind::Double)?.f_norm()?.f_double_value(&[])?);
    }
    Ok(Trained { names: trained.into_iter().map(|(name, _)| name).collect(), losses, gradients, changes })
}

fn fill_inputs(work: &Work, inputs: &[Input]) -> Result<Vec<Tensor>, StepError> {
    inputs.iter().enumerate().map(|(number, input)| fill_input(work, &format!("input.{number}"), input)).collect()
}

fn fill_input(work: &Work, name: &str, input: &Input) -> Result<Tensor, StepError> {
    let device = work.parameters.device();
    Ok(match input.below {
        Some(below) => from_names::index(name, &input.shape, input.from, below)?.f_to_device(device)?,
        None => {
            let values = from_names::real(name, &input.shape)?.f_to_device(device)?;
            work.parameters.lay_out(values.f_to_kind(work.parameters.kind())?)?
        }
    })
}

fn norm(values: &[f64]) -> f64 {
    values.iter().map(|value| value * value).sum::<f64>().sqrt()
}

/// ‖ours − theirs‖ / ‖theirs‖.
fn relative(ours: &[f64], theirs: &[f64]) -> f64 {
    let differences: Vec<f64> = ours.iter().zip(theirs).map(|(a, b)| a - b).collect();
    norm(&differences) / norm(theirs)
}

/// The larger one, where something that isn't a number is larger than everything.
fn larger(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::INFINITY } else { a.max(b) }
}

/// The memory formats that make a difference to a model.
#[must_use]
pub fn formats(model: Model) -> &'static [MemoryFormat] {
    match model.family() {
        Family::Bert | Family::Empty => &[MemoryFormat::Contiguous],
        Family::Resnet | Family::Vit | Family::Unet => MemoryFormat::ALL,
    }
}

/// Gives memory that a comparison used back, before a larger one follows.
///
/// # Errors
/// When the driver fails.
pub fn release(device: Device) -> Result<(), StepError> {
    Ok(bridge::empty_cache(device)?)
}
