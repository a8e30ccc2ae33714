//! The blocks that denoising UNets are made of: residual blocks, attention over an image's places, and the levels of the
//! way down and up. Names are diffusers'.

use migperf_core::workload::MemoryFormat;
use tch::{TchError, Tensor};

use super::layers::{Conv2d, GroupNorm, Kernel, LayerNorm, Linear, attention, image_to_sequence, sequence_to_image};
use super::parameters::{Init, Scope};

/// What tells the UNets apart.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// Channels of the image, in and out.
    pub io_channels: i64,
    /// Height and width of the image.
    pub size: i64,
    /// Channels of each level.
    pub channels: [i64; 4],
    /// Which levels attend; the middle always does.
    pub attention: [bool; 4],
    /// Width of the context that is attended to; without one the image attends to itself only.
    pub context_width: Option<i64>,
    /// Heads of each attention.
    pub heads: i64,
    /// Of the residual blocks' normalisations.
    pub epsilon: f64,
    /// Whether downsampling pads only after the last row and column.
    pub pads_after: bool,
    /// Layout of images.
    pub memory_format: MemoryFormat,
}

impl Config {
    /// Groups of every group normalisation.
    pub const GROUPS: i64 = 32;
    /// Residual blocks of a level on the way down; one more on the way up.
    const BLOCKS: usize = 2;

    /// Width of the embedded time.
    #[must_use]
    pub fn time_width(&self) -> i64 {
        4 * self.channels[0]
    }
}

/// Two convolutions with the time added between them, beside a shortcut.
#[derive(Debug)]
pub struct Residual {
    norm_1: GroupNorm,
    conv_1: Conv2d,
    time: Linear,
    norm_2: GroupNorm,
    conv_2: Conv2d,
    shortcut: Option<Conv2d>,
}

impl Residual {
    /// Registers a block.
    ///
    /// # Errors
    /// When its parameters don't fit.
    pub fn new(scope: &Scope<'_>, config: &Config, inputs: i64, outputs: i64) -> Result<Self, TchError> {
        Ok(Self {
            norm_1: GroupNorm::new(&scope.at("norm1"), Config::GROUPS, inputs, config.epsilon)?,
            conv_1: Conv2d::new(&scope.at("conv1"), inputs, outputs, Kernel::three(1))?,
            time: Linear::new(&scope.at("time_emb_proj"), config.time_width(), outputs)?,
            norm_2: GroupNorm::new(&scope.at("norm2"), Config::GROUPS, outputs, config.epsilon)?,
            conv_2: Conv2d::new(&scope.at("conv2"), outputs, outputs, Kernel::three(1))?,
            shortcut: (inputs != outputs)
                .then(|| Conv2d::new(&scope.at("conv_shortcut"), inputs, outputs, Kernel::one(1)))
                .transpose()?,
        })
    }

    /// `[batch, inputs, height, width]` and the activated time `[batch, time width]` → `[batch, outputs, height, width]`.
    ///
    /// # Errors
    /// When the device fails or memory is full.
    pub fn forward(&self, x: &Tensor, time: &Tensor) -> Result<Tensor, TchError> {
        let time = self.time.forward(time)?.f_unsqueeze(-1)?.f_unsqueeze(-1)?;
        let y = self.conv_1.forward(&self.norm_1.forward(x)?.f_silu()?)?.f_add(&time)?;
        let y = self.conv_2.forward(&self.norm_2.forward(&y)?.f_silu()?)?;
        match &self.shortcut {
            Some(shortcut) => shortcut.forward(x)?.f_add(&y),
            None => x.f_add(&y),
        }
    }
}

/// Projections to queries, keys and values, attention, and a projection back.
#[derive(Debug)]
struct Attention {
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    heads: i64,
}

impl Attention {
    /// From `width` to `source` wide vectors; the projections have biases if `biased`, the output always.
    fn new(scope: &Scope<'_>, width: i64, source: i64, heads: i64, biased: bool) -> Result<Self, TchError> {
        let projection = |name: &str, inputs: i64| {
            let init = Init::by_inputs(inputs);
            Linear::with_init(&scope.at(name), inputs, width, init, biased.then_some(init))
        };
        Ok(Self {
            query: projection("to_q", width)?,
            key: projection("to_k", source)?,
            value: projection("to_v", source)?,
            output: Linear::new(&scope.at("to_out.0"), width, width)?,
            heads,
        })
    }

    /// `[batch, n, width]` and `[batch, m, source]` → `[batch, n, width]`.
    fn forward(&self, x: &Tensor, source: &Tensor) -> Result<Tensor, TchError> {
        let mixed =
            attention(&self.query.forward(x)?, &self.key.forward(source)?, &self.value.forward(source)?, self.heads)?;
        self.output.forward(&mixed)
    }
}

/// Attention over the places of an image.
#[derive(Debug)]
pub struct ImageAttention {
    norm: GroupNorm,
    memory_format: MemoryFormat,
    kind: AttentionKind,
}

#[derive(Debug)]
enum AttentionKind {
    /// The image attends to itself.
    Plain(Attention),
    /// A transformer block: to itself, to the context, and a gated linear unit, between two convolutions.
    Conditioned(Box<Conditioned>),
}

#[derive(Debug)]
struct Conditioned {
    proj_in: Conv2d,
    norm_1: LayerNorm,
    own: Attention,
    norm_2: LayerNorm,
    cross: Attention,
    norm_3: LayerNorm,
    up: Linear,
    down: Linear,
    proj_out: Conv2d,
}

impl Conditioned {
    fn new(scope: &Scope<'_>, width: i64, context: i64, heads: i64) -> Result<Self, TchError> {
        let block = scope.at("transformer_blocks.0");
        let norm = |name: &str| LayerNorm::new(&block.at(name), width, 1e-5);
        Ok(Self {
            proj_in: Conv2d::new(&scope.at("proj_in"), width, width, Kernel::one(1))?,
            norm_1: norm("norm1")?,
            own: Attention::new(&block.at("attn1"), width, width, heads, false)?,
            norm_2: norm("norm2")?,
            cross: Attention::new(&block.at("attn2"), width, context, heads, false)?,
            norm_3: norm("norm3")?,
            up: Linear::new(&block.at("ff.net.0.proj"), width, 8 * width)?,
            down: Linear::new(&block.at("ff.net.2"), 4 * width, width)?,
            proj_out: Conv2d::new(&scope.at("proj_out"), width, width, Kernel::one(1))?,
        })
    }

    /// `[batch, places, width]` and the context, or the image itself where none is given → `[batch, places, width]`.
    fn transform(&self, x: &Tensor, context: Option<&Tensor>) -> Result<Tensor, TchError> {
        let y = self.norm_1.forward(x)?;
        let x = self.own.forward(&y, &y)?.f_add(x)?;
        let y = self.norm_2.forward(&x)?;
        let x = self.cross.forward(&y, context.unwrap_or(&y))?.f_add(&x)?;
        let halves = self.up.forward(&self.norm_3.forward(&x)?)?.f_chunk(2, -1)?;
        let gated = halves[0].f_mul(&halves[1].f_gelu("none")?)?;
        self.down.forward(&gated)?.f_add(&x)
    }
}

impl ImageAttention {
    /// Registers an attention over images of `width` channels.
    ///
    /// # Errors
    /// When its parameters don't fit.
    pub fn new(scope: &Scope<'_>, config: &Config, width: i64) -> Result<Self, TchError> {
        let (norm, kind) = match config.context_width {
            Some(context) => (
                GroupNorm::new(&scope.at("norm"), Config::GROUPS, width, 1e-6)?,
                AttentionKind::Conditioned(Box::new(Conditioned::new(scope, width, context, config.heads)?)),
            ),
            None => (
                GroupNorm::new(&scope.at("group_norm"), Config::GROUPS, width, config.epsilon)?,
                AttentionKind::Plain(Attention::new(scope, width, width, config.heads, true)?),
            ),
        };
        Ok(Self { norm, memory_format: config.memory_format, kind })
    }

    /// `[batch, channels, height, width]` and the context where there is one → the image's shape.
    ///
    /// # Errors
    /// When the device fails or memory is full.
    pub fn forward(&self, x: &Tensor, context: Option<&Tensor>) -> Result<Tensor, TchError> {
        let (_, _, height, width) = x.size4()?;
        let to_image = |y: &Tensor| sequence_to_image(y, height, width, self.memory_format);
        let y = self.norm.forward(x)?;
        match &self.kind {
            AttentionKind::Plain(attention) => {
                let places = image_to_sequence(&y)?;
                to_image(&attention.forward(&places, &places)?)?.f_add(x)
            }
            AttentionKind::Conditioned(block) => {
                let places = image_to_sequence(&block.proj_in.forward(&y)?)?;
                block.proj_out.forward(&to_image(&block.transform(&places, context)?)?)?.f_add(x)
            }
        }
    }
}

/// A residual block and, on levels that attend, what follows it.
#[derive(Debug)]
struct Unit {
    residual: Residual,
    attention: Option<ImageAttention>,
}

impl Unit {
    fn new(scope: &Scope<'_>, config: &Config, level: usize, number: usize, inputs: i64) -> Result<Self, TchError> {
        let outputs = config.channels[level];
        Ok(Self {
            residual: Residual::new(&scope.at("resnets").at(number), config, inputs, outputs)?,
            attention: config.attention[level]
                .then(|| ImageAttention::new(&scope.at("attentions").at(number), config, outputs))
                .transpose()?,
        })
    }

    fn forward(&self, x: &Tensor, time: &Tensor, context: Option<&Tensor>) -> Result<Tensor, TchError> {
        let x = self.residual.forward(x, time)?;
        match &self.attention {
            Some(attention) => attention.forward(&x, context),
            None => Ok(x),
        }
    }
}

/// One level on the way down; all but the last halve height and width.
#[derive(Debug)]
pub struct Down {
    units: Vec<Unit>,
    downsample: Option<Conv2d>,
    pads_after: bool,
}

impl Down {
    /// Registers a level and notes the channels of what it will leave for the way up.
    ///
    /// # Errors
    /// When its parameters don't fit.
    pub fn new(
        scope: &Scope<'_>,
        config: &Config,
        level: usize,
        mut inputs: i64,
        skips: &mut Vec<i64>,
    ) -> Result<Self, TchError> {
        let outputs = config.channels[level];
        let mut units = Vec::new();
        for number in 0..Config::BLOCKS {
            units.push(Unit::new(scope, config, level, number, inputs)?);
            inputs = outputs;
            skips.push(outputs);
        }
        let kernel = Kernel { size: 3, stride: 2, padding: if config.pads_after { 0 } else { 1 } };
        let downsample = (level + 1 < config.channels.len())
            .then(|| Conv2d::new(&scope.at("downsamplers.0.conv"), outputs, outputs, kernel))
            .transpose()?;
        if downsample.is_some() {
            skips.push(outputs);
        }
        Ok(Self { units, downsample, pads_after: config.pads_after })
    }

    /// Goes one level down, leaving in `skips` what the way up takes.
    ///
    /// # Errors
    /// When the device fails or memory is full.
    pub fn forward(
        &self,
        mut x: Tensor,
        time: &Tensor,
        context: Option<&Tensor>,
        skips: &mut Vec<Tensor>,
    ) -> Result<Tensor, TchError> {
        for unit in &self.units {
            x = unit.forward(&x, time, context)?;
            skips.push(x.shallow_clone());
        }
        if let Some(downsample) = &self.downsample {
            x = if self.pads_after {
                downsample.forward(&x.f_constant_pad_nd([0, 1, 0, 1])?)?
            } else {
                downsample.forward(&x)?
            };
            skips.push(x.shallow_clone());
        }
        Ok(x)
    }
}

/// One level on the way up; all but the last double height and width.
#[derive(Debug)]
pub struct Up {
    units: Vec<Unit>,
    upsample: Option<Conv2d>,
}

impl Up {
    /// Registers a level that takes what the way down left, last first.
    ///
    /// # Errors
    /// When its parameters don't fit.
    pub fn new(
        scope: &Scope<'_>,
        config: &Config,
        level: usize,
        mut inputs: i64,
        skips: &mut Vec<i64>,
    ) -> Result<Self, TchError> {
        let outputs = config.channels[level];
        let mut units = Vec::new();
        for number in 0..=Config::BLOCKS {
            let skipped = skips.pop().unwrap_or(0);
            units.push(Unit::new(scope, config, level, number, inputs + skipped)?);
            inputs = outputs;
        }
        let upsample = (level > 0)
            .then(|| Conv2d::new(&scope.at("upsamplers.0.conv"), outputs, outputs, Kernel::three(1)))
            .transpose()?;
        Ok(Self { units, upsample })
    }

    /// Goes one level up, taking from `skips`.
    ///
    /// # Errors
    /// When the device fails or memory is full.
    pub fn forward(
        &self,
        mut x: Tensor,
        time: &Tensor,
        context: Option<&Tensor>,
        skips: &mut Vec<Tensor>,
    ) -> Result<Tensor, TchError> {
        for (unit, skip) in self.units.iter().zip(skips.split_off(skips.len() - self.units.len()).iter().rev()) {
            x = unit.forward(&Tensor::f_cat(&[&x, skip], 1)?, time, context)?;
        }
        match &self.upsample {
            Some(upsample) => {
                let (_, _, height, width) = x.size4()?;
                upsample.forward(&x.f_upsample_nearest2d([2 * height, 2 * width], 2.0, 2.0)?)
            }
            None => Ok(x),
        }
    }
}
