//! Residual networks as torchvision builds them (`resnet18` to `resnet152`), on 3×224×224 images with 1000 classes.
//!
//! Training follows the common recipe: cross entropy, SGD with momentum. Initial values are torchvision's: convolutions
//! normal by their number of outputs, normalisations one and zero.

use migperf_core::workload::{Model, Workload};
use tch::{Kind, TchError, Tensor};

use super::layers::{BatchNorm2d, Conv2d, Kernel, Linear, cross_entropy};
use super::parameters::{Init, Parameters, Scope};
use super::{Batch, Network};

/// Classes of the last layer.
pub const CLASSES: i64 = 1000;
/// Height and width of an image.
pub const IMAGE: i64 = 224;

/// Blocks of the four stages, and whether they are bottlenecks.
fn stages(model: Model) -> ([i64; 4], bool) {
    match model {
        Model::Resnet34 => ([3, 4, 6, 3], false),
        Model::Resnet50 => ([3, 4, 6, 3], true),
        Model::Resnet101 => ([3, 4, 23, 3], true),
        Model::Resnet152 => ([3, 8, 36, 3], true),
        _ => ([2, 2, 2, 2], false),
    }
}

/// A convolution without bias and the normalisation that follows it.
#[derive(Debug)]
struct ConvNorm {
    conv: Conv2d,
    norm: BatchNorm2d,
}

impl ConvNorm {
    fn new(conv: &Scope<'_>, norm: &Scope<'_>, inputs: i64, outputs: i64, kernel: Kernel) -> Result<Self, TchError> {
        // Normal, by what a convolution's output passes on: keeps the variance of gradients through ReLU.
        #[expect(clippy::cast_precision_loss, reason = "layers have far fewer than 2^53 outputs")]
        let deviation = (2.0 / (outputs * kernel.size * kernel.size) as f64).sqrt();
        Ok(Self {
            conv: Conv2d::with_init(conv, inputs, outputs, kernel, Init::Normal { deviation }, None)?,
            norm: BatchNorm2d::new(norm, outputs)?,
        })
    }

    fn forward(&self, x: &Tensor, train: bool) -> Result<Tensor, TchError> {
        self.norm.forward(&self.conv.forward(x)?, train)
    }
}

/// A residual block: two or three convolutions beside a shortcut.
#[derive(Debug)]
struct Block {
    convs: Vec<ConvNorm>,
    downsample: Option<ConvNorm>,
}

impl Block {
    fn new(
        scope: &Scope<'_>,
        inputs: i64,
        width: i64,
        outputs: i64,
        stride: i64,
        bottleneck: bool,
    ) -> Result<Self, TchError> {
        let conv = |number: usize, from: i64, to: i64, kernel: Kernel| {
            ConvNorm::new(&scope.at(format!("conv{number}")), &scope.at(format!("bn{number}")), from, to, kernel)
        };
        let convs = if bottleneck {
            vec![
                conv(1, inputs, width, Kernel::one(1))?,
                conv(2, width, width, Kernel::three(stride))?,
                conv(3, width, outputs, Kernel::one(1))?,
            ]
        } else {
            vec![conv(1, inputs, width, Kernel::three(stride))?, conv(2, width, outputs, Kernel::three(1))?]
        };
        let shortcut = scope.at("downsample");
        let downsample = (stride != 1 || inputs != outputs)
            .then(|| ConvNorm::new(&shortcut.at(0), &shortcut.at(1), inputs, outputs, Kernel::one(stride)))
            .transpose()?;
        Ok(Self { convs, downsample })
    }

    fn forward(&self, x: &Tensor, train: bool) -> Result<Tensor, TchError> {
        let mut y = self.convs[0].forward(x, train)?;
        for conv in &self.convs[1..] {
            y = conv.forward(&y.f_relu_()?, train)?;
        }
        match &self.downsample {
            Some(downsample) => y.f_add_(&downsample.forward(x, train)?)?.f_relu_(),
            None => y.f_add_(x)?.f_relu_(),
        }
    }
}

/// A residual network.
#[derive(Debug)]
pub struct Resnet {
    stem: ConvNorm,
    blocks: Vec<Block>,
    fc: Linear,
}

impl Resnet {
    /// Registers the parameters of one of the residual networks.
    ///
    /// # Errors
    /// When they don't fit.
    pub fn new(root: &Scope<'_>, model: Model) -> Result<Self, TchError> {
        let (depths, bottleneck) = stages(model);
        let expansion = if bottleneck { 4 } else { 1 };
        let stem = ConvNorm::new(&root.at("conv1"), &root.at("bn1"), 3, 64, Kernel { size: 7, stride: 2, padding: 3 })?;
        let mut blocks = Vec::new();
        let mut inputs = 64;
        for (stage, depth) in (1..).zip(depths) {
            let width = 32 << stage;
            for block in 0..depth {
                let stride = if stage > 1 && block == 0 { 2 } else { 1 };
                let scope = root.at(format!("layer{stage}")).at(block);
                blocks.push(Block::new(&scope, inputs, width, width * expansion, stride, bottleneck)?);
                inputs = width * expansion;
            }
        }
        Ok(Self { stem, blocks, fc: Linear::new(&root.at("fc"), inputs, CLASSES)? })
    }

    /// `[batch, 3, 224, 224]` → `[batch, 1000]`.
    fn forward(&self, x: &Tensor, train: bool) -> Result<Tensor, TchError> {
        let mut x = self.stem.forward(x, train)?.f_relu_()?.f_max_pool2d([3, 3], [2, 2], [1, 1], [1, 1], false)?;
        for block in &self.blocks {
            x = block.forward(&x, train)?;
        }
        self.fc.forward(&x.f_adaptive_avg_pool2d([1, 1])?.f_flatten(1, -1)?)
    }
}

impl Network for Resnet {
    fn infer(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, TchError> {
        Ok(vec![self.forward(&inputs[0], false)?])
    }

    fn loss(&self, batch: &Batch) -> Result<Tensor, TchError> {
        cross_entropy(&self.forward(&batch.inputs[0], true)?, &batch.target)
    }

    fn synthetic_batch(&self, parameters: &Parameters, workload: &Workload) -> Result<Batch, TchError> {
        labelled_images(parameters, workload)
    }
}

/// Normal pixels and uniform labels: `[batch, 3, 224, 224]` and `[batch]`.
///
/// # Errors
/// When they don't fit.
pub fn labelled_images(parameters: &Parameters, workload: &Workload) -> Result<Batch, TchError> {
    let batch = i64::from(workload.batch_size);
    let device = parameters.device();
    let images = Tensor::f_randn([batch, 3, IMAGE, IMAGE], (parameters.kind(), device))?;
    Ok(Batch {
        inputs: vec![parameters.lay_out(images)?],
        target: Tensor::f_randint(CLASSES, [batch], (Kind::Int64, device))?,
    })
}
