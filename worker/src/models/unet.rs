//! Denoising UNets as diffusers builds them: `UNet2DConditionModel` in Stable Diffusion 1.5's configuration (64×64 latents
//! of 4 channels, a context of 77×768) and `UNet2DModel` in that of DDPM on CIFAR-10 (32×32 images of 3 channels).
//!
//! A batch is one denoising step: the model finds the noise in its input at a given time. Training compares it with the
//! noise by mean squared error. Initial values are the framework's defaults.

use migperf_core::workload::{Model, Workload};
use tch::{Kind, TchError, Tensor};

use super::layers::{Conv2d, GroupNorm, Kernel, Linear};
use super::parameters::{Parameters, Scope};
use super::unet_blocks::{Config, Down, ImageAttention, Residual, Up};
use super::{Batch, Network};

/// Length and width of the text that Stable Diffusion is conditioned on.
const CONTEXT: [i64; 2] = [77, 768];
/// Noise levels that training draws from.
const NOISE_LEVELS: i64 = 1000;
/// The slowest wave of the time embedding, relative to the fastest.
const LONGEST_PERIOD: f64 = 10_000.0;

/// The two configurations.
fn config(root: &Scope<'_>, model: Model) -> Config {
    let memory_format = root.parameters().memory_format();
    if model == Model::DdpmUnet {
        Config {
            io_channels: 3,
            size: 32,
            channels: [128, 256, 256, 256],
            attention: [false, true, false, false],
            context_width: None,
            heads: 1,
            epsilon: 1e-6,
            pads_after: true,
            memory_format,
        }
    } else {
        Config {
            io_channels: 4,
            size: 64,
            channels: [320, 640, 1280, 1280],
            attention: [true, true, true, false],
            context_width: Some(CONTEXT[1]),
            heads: 8,
            epsilon: 1e-5,
            pads_after: false,
            memory_format,
        }
    }
}

/// A denoising UNet.
#[derive(Debug)]
pub struct Unet {
    config: Config,
    /// `[1, channels/2]`, fp32: the angular frequency of each wave of the time embedding.
    frequencies: Tensor,
    time_1: Linear,
    time_2: Linear,
    conv_in: Conv2d,
    downs: Vec<Down>,
    middle_in: Residual,
    middle: ImageAttention,
    middle_out: Residual,
    ups: Vec<Up>,
    norm_out: GroupNorm,
    conv_out: Conv2d,
}

impl Unet {
    /// Registers the parameters of one of the UNets.
    ///
    /// # Errors
    /// When they don't fit.
    pub fn new(root: &Scope<'_>, model: Model) -> Result<Self, TchError> {
        let config = config(root, model);
        let [first, .., last] = config.channels;
        let time = config.time_width();
        let embedding = root.at("time_embedding");
        let mut skips = vec![first];
        let mut inputs = first;
        let mut downs = Vec::new();
        for level in 0..config.channels.len() {
            downs.push(Down::new(&root.at("down_blocks").at(level), &config, level, inputs, &mut skips)?);
            inputs = config.channels[level];
        }
        let middle = root.at("mid_block");
        let mut ups = Vec::new();
        for (number, level) in (0..config.channels.len()).rev().enumerate() {
            ups.push(Up::new(&root.at("up_blocks").at(number), &config, level, inputs, &mut skips)?);
            inputs = config.channels[level];
        }
        Ok(Self {
            frequencies: frequencies(root.parameters(), &config)?,
            time_1: Linear::new(&embedding.at("linear_1"), first, time)?,
            time_2: Linear::new(&embedding.at("linear_2"), time, time)?,
            conv_in: Conv2d::new(&root.at("conv_in"), config.io_channels, first, Kernel::three(1))?,
            downs,
            middle_in: Residual::new(&middle.at("resnets.0"), &config, last, last)?,
            middle: ImageAttention::new(&middle.at("attentions.0"), &config, last)?,
            middle_out: Residual::new(&middle.at("resnets.1"), &config, last, last)?,
            ups,
            norm_out: GroupNorm::new(&root.at("conv_norm_out"), Config::GROUPS, first, config.epsilon)?,
            conv_out: Conv2d::new(&root.at("conv_out"), first, config.io_channels, Kernel::three(1))?,
            config,
        })
    }

    /// `[batch]` times → `[batch, time width]`, already through the activation that every block starts with.
    fn time(&self, times: &Tensor, kind: Kind) -> Result<Tensor, TchError> {
        let angles = times.f_unsqueeze(1)?.f_mul(&self.frequencies)?;
        let (sine, cosine) = (angles.f_sin()?, angles.f_cos()?);
        // Stable Diffusion puts the cosines first, DDPM the sines.
        let waves = if self.config.context_width.is_some() { [&cosine, &sine] } else { [&sine, &cosine] };
        let embedded = self.time_1.forward(&Tensor::f_cat(&waves, 1)?.f_to_kind(kind)?)?.f_silu()?;
        self.time_2.forward(&embedded)?.f_silu()
    }

    /// `[batch, channels, size, size]`, `[batch]` times and, with a context, `[batch, 77, 768]` → the noise, of the first
    /// input's shape.
    fn forward(&self, inputs: &[Tensor]) -> Result<Tensor, TchError> {
        let time = self.time(&inputs[1], inputs[0].f_kind()?)?;
        let context = inputs.get(2);
        let mut x = self.conv_in.forward(&inputs[0])?;
        let mut skips = vec![x.shallow_clone()];
        for down in &self.downs {
            x = down.forward(x, &time, context, &mut skips)?;
        }
        x = self.middle_in.forward(&x, &time)?;
        x = self.middle.forward(&x, context)?;
        x = self.middle_out.forward(&x, &time)?;
        for up in &self.ups {
            x = up.forward(x, &time, context, &mut skips)?;
        }
        self.conv_out.forward(&self.norm_out.forward(&x)?.f_silu()?)
    }
}

/// Geometric from 1 down: DDPM's last wave has exactly the longest period, Stable Diffusion's the one before it.
fn frequencies(parameters: &Parameters, config: &Config) -> Result<Tensor, TchError> {
    let half = config.channels[0] / 2;
    let shift = if config.context_width.is_some() { 0 } else { 1 };
    #[expect(clippy::cast_precision_loss, reason = "a few hundred channels")]
    let steps = (half - shift) as f64;
    Tensor::f_arange(half, (Kind::Float, parameters.device()))?
        .f_mul_scalar(-LONGEST_PERIOD.ln())?
        .f_div_scalar(steps)?
        .f_exp()?
        .f_unsqueeze(0)
}

impl Network for Unet {
    fn infer(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, TchError> {
        Ok(vec![self.forward(inputs)?])
    }

    fn loss(&self, batch: &Batch) -> Result<Tensor, TchError> {
        self.forward(&batch.inputs)?.f_mse_loss(&batch.target, tch::Reduction::Mean)
    }

    fn synthetic_batch(&self, parameters: &Parameters, workload: &Workload) -> Result<Batch, TchError> {
        let batch = i64::from(workload.batch_size);
        let Config { io_channels, size, .. } = self.config;
        let (kind, device) = (parameters.kind(), parameters.device());
        let noise = || parameters.lay_out(Tensor::f_randn([batch, io_channels, size, size], (kind, device))?);
        let mut inputs = vec![noise()?, Tensor::f_randint(NOISE_LEVELS, [batch], (Kind::Int64, device))?];
        if self.config.context_width.is_some() {
            inputs.push(Tensor::f_randn([batch, CONTEXT[0], CONTEXT[1]], (kind, device))?);
        }
        Ok(Batch { inputs, target: noise()? })
    }
}
