//! Layers shared by the architectures: registration under the reference libraries' names, and one call each.

use migperf_core::workload::MemoryFormat;
use tch::{TchError, Tensor};

use super::parameters::{Init, Scope};

/// A two-dimensional convolution, `[batch, inputs, height, width]` → `[batch, outputs, height', width']`.
#[derive(Debug)]
pub struct Conv2d {
    weight: Tensor,
    bias: Option<Tensor>,
    stride: i64,
    padding: i64,
}

/// The shape of a square convolution.
#[derive(Debug, Clone, Copy)]
pub struct Kernel {
    /// Height and width.
    pub size: i64,
    /// Step in both directions.
    pub stride: i64,
    /// Zeros around the input.
    pub padding: i64,
}

impl Kernel {
    /// Three by three, which keeps height and width at stride 1.
    #[must_use]
    pub fn three(stride: i64) -> Self {
        Self { size: 3, stride, padding: 1 }
    }

    /// One by one.
    #[must_use]
    pub fn one(stride: i64) -> Self {
        Self { size: 1, stride, padding: 0 }
    }
}

impl Conv2d {
    /// A convolution with bias, initialised by its number of inputs.
    ///
    /// # Errors
    /// When its parameters don't fit.
    pub fn new(scope: &Scope<'_>, inputs: i64, outputs: i64, kernel: Kernel) -> Result<Self, TchError> {
        let init = Init::by_inputs(inputs * kernel.size * kernel.size);
        Self::with_init(scope, inputs, outputs, kernel, init, Some(init))
    }

    /// A convolution whose weight, and bias if it has one, start as given.
    ///
    /// # Errors
    /// When its parameters don't fit.
    pub fn with_init(
        scope: &Scope<'_>,
        inputs: i64,
        outputs: i64,
        kernel: Kernel,
        weight: Init,
        bias: Option<Init>,
    ) -> Result<Self, TchError> {
        Ok(Self {
            weight: scope.parameter("weight", &[outputs, inputs, kernel.size, kernel.size], weight)?,
            bias: bias.map(|init| scope.parameter("bias", &[outputs], init)).transpose()?,
            stride: kernel.stride,
            padding: kernel.padding,
        })
    }

    /// Applies it.
    ///
    /// # Errors
    /// When the device fails or memory is full.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor, TchError> {
        x.f_conv2d(&self.weight, self.bias.as_ref(), self.stride, self.padding, 1, 1)
    }
}

/// A linear layer, `[.., inputs]` → `[.., outputs]`.
#[derive(Debug)]
pub struct Linear {
    weight: Tensor,
    bias: Option<Tensor>,
}

impl Linear {
    /// A linear layer with bias, initialised by its number of inputs.
    ///
    /// # Errors
    /// When its parameters don't fit.
    pub fn new(scope: &Scope<'_>, inputs: i64, outputs: i64) -> Result<Self, TchError> {
        let init = Init::by_inputs(inputs);
        Self::with_init(scope, inputs, outputs, init, Some(init))
    }

    /// A linear layer whose weight, and bias if it has one, start as given.
    ///
    /// # Errors
    /// When its parameters don't fit.
    pub fn with_init(
        scope: &Scope<'_>,
        inputs: i64,
        outputs: i64,
        weight: Init,
        bias: Option<Init>,
    ) -> Result<Self, TchError> {
        Ok(Self {
            weight: scope.parameter("weight", &[outputs, inputs], weight)?,
            bias: bias.map(|init| scope.parameter("bias", &[outputs], init)).transpose()?,
        })
    }

    /// Applies it.
    ///
    /// # Errors
    /// When the device fails or memory is full.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor, TchError> {
        x.f_linear(&self.weight, self.bias.as_ref())
    }
}

/// Normalisation of each channel over batch, height and width, with running statistics.
///
/// The count of batches that the reference library keeps is registered, because its state dictionary has it, but not
/// advanced: with a fixed momentum nothing reads it.
#[derive(Debug)]
pub struct BatchNorm2d {
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
}

impl BatchNorm2d {
    const MOMENTUM: f64 = 0.1;
    const EPSILON: f64 = 1e-5;

    /// Normalisation of that many channels.
    ///
    /// # Errors
    /// When its parameters don't fit.
    pub fn new(scope: &Scope<'_>, channels: i64) -> Result<Self, TchError> {
        let norm = Self {
            weight: scope.parameter("weight", &[channels], Init::Ones)?,
            bias: scope.parameter("bias", &[channels], Init::Zeros)?,
            running_mean: scope.buffer("running_mean", &[channels], Init::Zeros)?,
            running_var: scope.buffer("running_var", &[channels], Init::Ones)?,
        };
        let _registered_only = scope.counter("num_batches_tracked")?;
        Ok(norm)
    }

    /// Applies it: by the batch's own statistics in training, by the running ones otherwise.
    ///
    /// # Errors
    /// When the device fails or memory is full.
    pub fn forward(&self, x: &Tensor, train: bool) -> Result<Tensor, TchError> {
        x.f_batch_norm(
            Some(&self.weight),
            Some(&self.bias),
            Some(&self.running_mean),
            Some(&self.running_var),
            train,
            Self::MOMENTUM,
            Self::EPSILON,
            true,
        )
    }
}

/// Normalisation of the last dimension.
#[derive(Debug)]
pub struct LayerNorm {
    weight: Tensor,
    bias: Tensor,
    width: i64,
    epsilon: f64,
}

impl LayerNorm {
    /// Normalisation of vectors of that width.
    ///
    /// # Errors
    /// When its parameters don't fit.
    pub fn new(scope: &Scope<'_>, width: i64, epsilon: f64) -> Result<Self, TchError> {
        Ok(Self {
            weight: scope.parameter("weight", &[width], Init::Ones)?,
            bias: scope.parameter("bias", &[width], Init::Zeros)?,
            width,
            epsilon,
        })
    }

    /// Applies it.
    ///
    /// # Errors
    /// When the device fails or memory is full.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor, TchError> {
        x.f_layer_norm(self.width, Some(&self.weight), Some(&self.bias), self.epsilon, true)
    }
}

/// Normalisation of groups of channels.
#[derive(Debug)]
pub struct GroupNorm {
    weight: Tensor,
    bias: Tensor,
    groups: i64,
    epsilon: f64,
}

impl GroupNorm {
    /// Normalisation of that many channels in that many groups.
    ///
    /// # Errors
    /// When its parameters don't fit.
    pub fn new(scope: &Scope<'_>, groups: i64, channels: i64, epsilon: f64) -> Result<Self, TchError> {
        Ok(Self {
            weight: scope.parameter("weight", &[channels], Init::Ones)?,
            bias: scope.parameter("bias", &[channels], Init::Zeros)?,
            groups,
            epsilon,
        })
    }

    /// Applies it.
    ///
    /// # Errors
    /// When the device fails or memory is full.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor, TchError> {
        x.f_group_norm(self.groups, Some(&self.weight), Some(&self.bias), self.epsilon, true)
    }
}

/// A table of vectors, `[..]` of indices → `[.., width]`.
#[derive(Debug)]
pub struct Embedding {
    weight: Tensor,
}

impl Embedding {
    /// A table of `entries` vectors.
    ///
    /// # Errors
    /// When it doesn't fit.
    pub fn new(scope: &Scope<'_>, entries: i64, width: i64, init: Init) -> Result<Self, TchError> {
        Ok(Self { weight: scope.parameter("weight", &[entries, width], init)? })
    }

    /// Looks indices up.
    ///
    /// # Errors
    /// When the device fails or memory is full.
    pub fn forward(&self, indices: &Tensor) -> Result<Tensor, TchError> {
        Tensor::f_embedding(&self.weight, indices, -1, false, false)
    }
}

/// Scaled dot-product attention of separate projections. Queries are `[batch, n, width]`, keys and values
/// `[batch, m, width]`; the result is `[batch, n, width]`.
///
/// # Errors
/// When the device fails or memory is full.
pub fn attention(query: &Tensor, key: &Tensor, value: &Tensor, heads: i64) -> Result<Tensor, TchError> {
    let (batch, length, width) = query.size3()?;
    let split = |x: &Tensor| x.f_view([batch, -1, heads, width / heads])?.f_transpose(1, 2);
    Tensor::f_scaled_dot_product_attention(
        &split(query)?,
        &split(key)?,
        &split(value)?,
        None::<&Tensor>,
        0.0,
        false,
        None,
        false,
    )?
    .f_transpose(1, 2)?
    .f_reshape([batch, length, width])
}

/// `[batch, channels, height, width]` → `[batch, height·width, channels]`; no copy where the input is channels-last.
///
/// # Errors
/// When the device fails or memory is full.
pub fn image_to_sequence(x: &Tensor) -> Result<Tensor, TchError> {
    let (batch, channels, height, width) = x.size4()?;
    x.f_permute([0, 2, 3, 1])?.f_reshape([batch, height * width, channels])
}

/// The reverse of [`image_to_sequence`], in the given memory format; no copy into channels-last.
///
/// # Errors
/// When the device fails or memory is full.
pub fn sequence_to_image(x: &Tensor, height: i64, width: i64, format: MemoryFormat) -> Result<Tensor, TchError> {
    let (batch, _, channels) = x.size3()?;
    let image = x.f_reshape([batch, height, width, channels])?.f_permute([0, 3, 1, 2])?;
    match format {
        MemoryFormat::ChannelsLast => Ok(image),
        MemoryFormat::Contiguous => image.f_contiguous(),
    }
}

/// Mean cross entropy of `[batch, classes]` logits against `[batch]` labels.
///
/// # Errors
/// When the device fails or memory is full.
pub fn cross_entropy(logits: &Tensor, labels: &Tensor) -> Result<Tensor, TchError> {
    logits.f_cross_entropy_loss(labels, None::<&Tensor>, tch::Reduction::Mean, -100, 0.0)
}
