//! One whole batch of a workload, from the input to the synchronised device.
//!
//! Training is forward, loss, backward and optimiser step; its parameters and optimiser state are fp32 and bf16 or fp16
//! are autocast, fp16 with a dynamic loss scale. Inference is the forward pass in evaluation and inference mode, with
//! parameters converted to the precision. Vision models are trained by SGD with momentum, transformers on text and
//! diffusion models by AdamW. The time of a batch is taken by the caller.

use std::mem;

use migperf_core::workload::{Cudnn, Family, Input, Precision, Task, Workload, WorkloadError};
use tch::{Device, Kind, TchError, Tensor};

use crate::bridge::{
    self, Autocast, InferenceMode, LoadCudaError, MemoryStats, Narrow, Numerics, Optimiser, Rule, TorchError,
};
use crate::models::{self, Batch, Network, Parameters, Role, Values};

/// The scale that fp16 training starts with; it halves at each overflow and doubles after 2000 steps without.
pub const INITIAL_LOSS_SCALE: f64 = 65_536.0;

/// Why a batch could not be prepared or done.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// The workload doesn't fit into the memory there is. A result, not a fault.
    #[error("the workload does not fit into memory: {detail}")]
    OutOfMemory {
        /// What libtorch said.
        detail: String,
    },
    /// The workload makes no sense.
    #[error("the workload can't be")]
    Workload(#[from] WorkloadError),
    /// The way of waiting for the device could not be fixed.
    #[error("the device can't be used as asked")]
    Device(#[from] LoadCudaError),
    /// libtorch failed otherwise.
    #[error("a batch failed in libtorch: {detail}")]
    Torch {
        /// What libtorch said.
        detail: String,
    },
}

impl From<TorchError> for StepError {
    fn from(error: TorchError) -> Self {
        match error {
            TorchError::OutOfMemory { detail } => Self::OutOfMemory { detail },
            TorchError::Failed { detail } => Self::Torch { detail },
        }
    }
}

impl From<TchError> for StepError {
    fn from(error: TchError) -> Self {
        TorchError::from(error).into()
    }
}

/// A workload ready to run, batch by batch, on the thread that made it. It sets numerics of the whole process, so there
/// should be one at a time.
#[derive(Debug)]
pub struct Step {
    device: Device,
    work: Option<Work>,
}

/// A model with what it needs for a batch.
#[derive(Debug)]
pub(crate) struct Work {
    device: Device,
    network: Box<dyn Network>,
    pub(crate) parameters: Parameters,
    pub(crate) batch: Batch,
    host: Option<Batch>,
    /// The loss, or the outputs, of the last batch.
    pub(crate) last: Vec<Tensor>,
    mode: Mode,
}

/// What a measurement and a comparison with the reference libraries do differently before the first batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Preparation {
    /// Where parameters' values come from.
    pub(crate) values: Values,
    /// The optimiser.
    pub(crate) rule: Rule,
    /// Where the loss scale of fp16 starts.
    pub(crate) loss_scale: f64,
}

impl Preparation {
    fn measured(workload: &Workload) -> Self {
        let rule = default_rule(workload.model.family());
        Self { values: Values::Random, rule, loss_scale: INITIAL_LOSS_SCALE }
    }
}

#[derive(Debug)]
enum Mode {
    Infer,
    Train { optimiser: Optimiser, autocast: Option<Narrow> },
}

impl Step {
    /// Builds the model with random parameters and a synthetic batch, both from `seed`.
    ///
    /// On a CUDA device the way of waiting is a flag of the device's context, set here; [`bridge::load_cuda`] comes first.
    ///
    /// # Errors
    /// [`StepError::OutOfMemory`] when parameters, optimiser state or batch don't fit; others when the workload can't be
    /// or the device fails.
    pub fn new(workload: &Workload, device: Device, seed: i64) -> Result<Self, StepError> {
        workload.check()?;
        if workload.model.family() == Family::Empty {
            return Ok(Self { device: Device::Cpu, work: None });
        }
        bridge::choose_wait(device, workload.wait)?;
        tch::manual_seed(seed);
        let work = Work::new(workload, device, &Preparation::measured(workload))?;
        bridge::synchronise(device)?;
        Ok(Self { device, work })
    }

    /// Does one batch and waits until the device has done it.
    ///
    /// # Errors
    /// [`StepError::OutOfMemory`] when it doesn't fit; others when the device fails.
    #[inline]
    pub fn run(&mut self) -> Result<(), StepError> {
        match &mut self.work {
            Some(work) => work.run(|_| Ok(())),
            None => Ok(()),
        }
    }

    /// The device it runs on; the CPU where there is no work, since libtorch then never looks at another.
    #[must_use]
    pub fn device(&self) -> Device {
        self.device
    }

    /// Parameters as the reference library counts them; a head that training adds isn't among them.
    #[must_use]
    pub fn parameters(&self) -> u64 {
        self.work.as_ref().map_or(0, |work| work.parameters.count(Role::Parameter))
    }

    /// What libtorch's allocator holds on the device; `None` on the CPU, where it doesn't count.
    ///
    /// # Errors
    /// When the allocator can't be asked.
    pub fn memory(&self) -> Result<Option<MemoryStats>, StepError> {
        Ok(bridge::memory_stats(self.device)?)
    }

    /// Whether the last batch's loss (training) or outputs (inference) were finite numbers; `None` before the first batch
    /// and where there is no work. Reads from the device, so it has no place between timed batches.
    ///
    /// # Errors
    /// When the device fails.
    pub fn last_is_finite(&self) -> Result<Option<bool>, StepError> {
        let Some(work) = self.work.as_ref().filter(|work| !work.last.is_empty()) else { return Ok(None) };
        for tensor in &work.last {
            if tensor.f_isfinite()?.f_all()?.f_int64_value(&[])? == 0 {
                return Ok(Some(false));
            }
        }
        Ok(Some(true))
    }

    /// The loss of the last training batch. Reads from the device.
    ///
    /// # Errors
    /// When the device fails.
    pub fn last_loss(&self) -> Result<Option<f64>, StepError> {
        match &self.work {
            Some(Work { mode: Mode::Train { .. }, last, .. }) => {
                Ok(last.first().map(|loss| loss.f_double_value(&[])).transpose()?)
            }
            _ => Ok(None),
        }
    }

    /// The factor that fp16 training multiplies its next loss with. Reads from the device.
    ///
    /// # Errors
    /// When the device fails.
    pub fn loss_scale(&self) -> Result<Option<f64>, StepError> {
        match &self.work {
            Some(Work { mode: Mode::Train { optimiser, .. }, .. }) => Ok(optimiser.loss_scale()?),
            _ => Ok(None),
        }
    }
}

/// The optimiser of a family, with rates at which random labels don't make it diverge.
#[must_use]
pub fn default_rule(family: Family) -> Rule {
    match family {
        Family::Resnet | Family::Vit | Family::Empty => {
            Rule::Sgd { learning_rate: 1e-3, momentum: 0.9, weight_decay: 0.0 }
        }
        Family::Bert | Family::Unet => {
            Rule::AdamW { learning_rate: 1e-5, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.01 }
        }
    }
}

impl Work {
    /// Sets the process's numerics and makes parameters, batch and optimiser. `None` for the model without work.
    pub(crate) fn new(
        workload: &Workload,
        device: Device,
        preparation: &Preparation,
    ) -> Result<Option<Self>, StepError> {
        let numerics = Numerics {
            tf32: workload.precision == Precision::Tf32,
            cudnn_benchmark: workload.cudnn == Cudnn::Tuned,
            deterministic: false,
        };
        numerics.apply()?;
        let train = workload.task == Task::Train;
        let narrow = match workload.precision {
            Precision::Fp32 | Precision::Tf32 => None,
            Precision::Bf16 => Some(Narrow::Bf16),
            Precision::Fp16 => Some(Narrow::Fp16),
        };
        let kind = match narrow {
            Some(Narrow::Bf16) if !train => Kind::BFloat16,
            Some(Narrow::Fp16) if !train => Kind::Half,
            _ => Kind::Float,
        };
        let parameters = Parameters::new(device, kind, workload.memory_format, train, preparation.values);
        let Some(network) = models::build(workload.model, &parameters)? else { return Ok(None) };
        let batch = network.synthetic_batch(&parameters, workload)?;
        let host = (workload.input == Input::Host).then(|| on_host(&batch, device)).transpose()?;
        let mode = if train {
            let scale = (narrow == Some(Narrow::Fp16)).then_some(preparation.loss_scale);
            Mode::Train { optimiser: Optimiser::new(&parameters.trained(), preparation.rule, scale)?, autocast: narrow }
        } else {
            Mode::Infer
        };
        Ok(Some(Self { device, network, parameters, batch, host, last: Vec::new(), mode }))
    }

    /// One batch. In training `observe` sees the optimiser between gradients and update.
    pub(crate) fn run(&mut self, observe: impl FnOnce(&Optimiser) -> Result<(), TorchError>) -> Result<(), StepError> {
        // What the previous batch left is released first, so that it doesn't count into this one's peak.
        drop(mem::take(&mut self.last));
        if let Some(host) = &self.host {
            for (to, from) in self.batch.inputs.iter_mut().zip(&host.inputs) {
                bridge::copy_async(to, from)?;
            }
            bridge::copy_async(&mut self.batch.target, &host.target)?;
        }
        match &mut self.mode {
            Mode::Infer => {
                let _mode = InferenceMode::enter()?;
                self.last = self.network.infer(&self.batch.inputs)?;
            }
            Mode::Train { optimiser, autocast } => {
                let cast = autocast.map(|narrow| Autocast::enter(self.device, narrow)).transpose()?;
                let loss = self.network.loss(&self.batch)?;
                drop(cast);
                optimiser.backward(&loss)?;
                observe(optimiser)?;
                optimiser.step()?;
                self.last.push(loss.f_detach()?);
            }
        }
        bridge::synchronise(self.device)?;
        Ok(())
    }
}

/// A copy of a batch in host memory, pinned where the device is a GPU.
fn on_host(batch: &Batch, device: Device) -> Result<Batch, TchError> {
    let copy = |tensor: &Tensor| {
        let host = tensor.f_to_device_(Device::Cpu, tensor.f_kind()?, false, true)?;
        if device.is_cuda() { host.f_pin_memory(device) } else { Ok(host) }
    };
    Ok(Batch { inputs: batch.inputs.iter().map(copy).collect::<Result<_, _>>()?, target: copy(&batch.target)? })
}
