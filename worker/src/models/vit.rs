//! Vision transformers as torchvision builds them (`vit_b_16`, `vit_l_16`), on 3×224×224 images with 1000 classes.
//!
//! Initial values are torchvision's, but for the last layer: it starts there at zero, which would leave the rest without
//! gradients in the first batch, and here normal.

use migperf_core::workload::{Model, Workload};
use tch::{TchError, Tensor};

use super::layers::{Conv2d, Kernel, LayerNorm, Linear, cross_entropy};
use super::parameters::{Init, Parameters, Scope};
use super::resnet::{CLASSES, IMAGE, labelled_images};
use super::{Batch, Network};

/// Height and width of a patch.
const PATCH: i64 = 16;
const EPSILON: f64 = 1e-6;

/// Uniform, by inputs and outputs.
fn xavier(inputs: i64, outputs: i64) -> Init {
    #[expect(clippy::cast_precision_loss, reason = "layers have far fewer than 2^53 inputs")]
    Init::Uniform { bound: (6.0 / (inputs + outputs) as f64).sqrt() }
}

/// One encoder layer, normalising before attention and before the two linear layers.
#[derive(Debug)]
struct Layer {
    norm_1: LayerNorm,
    projections: Tensor,
    projections_bias: Tensor,
    output: Linear,
    norm_2: LayerNorm,
    up: Linear,
    down: Linear,
    heads: i64,
}

impl Layer {
    fn new(scope: &Scope<'_>, width: i64, heads: i64) -> Result<Self, TchError> {
        let inner = 4 * width;
        let attention = scope.at("self_attention");
        let mlp_bias = Some(Init::Normal { deviation: 1e-6 });
        let mlp = |name: i64, inputs: i64, outputs: i64| {
            Linear::with_init(&scope.at("mlp").at(name), inputs, outputs, xavier(inputs, outputs), mlp_bias)
        };
        Ok(Self {
            norm_1: LayerNorm::new(&scope.at("ln_1"), width, EPSILON)?,
            projections: attention.parameter("in_proj_weight", &[3 * width, width], xavier(width, 3 * width))?,
            projections_bias: attention.parameter("in_proj_bias", &[3 * width], Init::Zeros)?,
            output: Linear::with_init(
                &attention.at("out_proj"),
                width,
                width,
                Init::by_inputs(width),
                Some(Init::Zeros),
            )?,
            norm_2: LayerNorm::new(&scope.at("ln_2"), width, EPSILON)?,
            up: mlp(0, width, inner)?,
            down: mlp(3, inner, width)?,
            heads,
        })
    }

    /// `[batch, tokens, width]` → the same.
    fn forward(&self, x: &Tensor) -> Result<Tensor, TchError> {
        let x = self.attend(&self.norm_1.forward(x)?)?.f_add(x)?;
        let inner = self.up.forward(&self.norm_2.forward(&x)?)?.f_gelu("none")?;
        self.down.forward(&inner)?.f_add(&x)
    }

    fn attend(&self, x: &Tensor) -> Result<Tensor, TchError> {
        let (batch, length, width) = x.size3()?;
        let parts = x
            .f_linear(&self.projections, Some(&self.projections_bias))?
            .f_view([batch, length, 3, self.heads, width / self.heads])?
            .f_permute([2, 0, 3, 1, 4])?
            .f_unbind(0)?;
        let mixed = Tensor::f_scaled_dot_product_attention(
            &parts[0],
            &parts[1],
            &parts[2],
            None::<&Tensor>,
            0.0,
            false,
            None,
            false,
        )?;
        self.output.forward(&mixed.f_transpose(1, 2)?.f_reshape([batch, length, width])?)
    }
}

/// A vision transformer.
#[derive(Debug)]
pub struct Vit {
    class_token: Tensor,
    patches: Conv2d,
    positions: Tensor,
    layers: Vec<Layer>,
    norm: LayerNorm,
    head: Linear,
}

impl Vit {
    /// Registers the parameters of one of the vision transformers.
    ///
    /// # Errors
    /// When they don't fit.
    pub fn new(root: &Scope<'_>, model: Model) -> Result<Self, TchError> {
        let (width, depth, heads) = if model == Model::VitL16 { (1024, 24, 16) } else { (768, 12, 12) };
        let tokens = (IMAGE / PATCH) * (IMAGE / PATCH) + 1;
        let encoder = root.at("encoder");
        #[expect(clippy::cast_precision_loss, reason = "a small constant")]
        let patch_init = Init::Normal { deviation: (1.0 / (3 * PATCH * PATCH) as f64).sqrt() };
        let kernel = Kernel { size: PATCH, stride: PATCH, padding: 0 };
        let head_init = Init::Normal { deviation: 0.02 };
        Ok(Self {
            class_token: root.parameter("class_token", &[1, 1, width], Init::Zeros)?,
            patches: Conv2d::with_init(&root.at("conv_proj"), 3, width, kernel, patch_init, Some(Init::Zeros))?,
            positions: encoder.parameter("pos_embedding", &[1, tokens, width], Init::Normal { deviation: 0.02 })?,
            layers: (0..depth)
                .map(|layer| Layer::new(&encoder.at("layers").at(format!("encoder_layer_{layer}")), width, heads))
                .collect::<Result<_, _>>()?,
            norm: LayerNorm::new(&encoder.at("ln"), width, EPSILON)?,
            head: Linear::with_init(&root.at("heads.head"), width, CLASSES, head_init, Some(Init::Zeros))?,
        })
    }

    /// `[batch, 3, 224, 224]` → `[batch, 1000]`.
    fn forward(&self, images: &Tensor) -> Result<Tensor, TchError> {
        let patches = self.patches.forward(images)?.f_flatten(2, -1)?.f_transpose(1, 2)?;
        let (batch, _, _) = patches.size3()?;
        let class = self.class_token.f_expand([batch, -1, -1], false)?;
        let mut x = Tensor::f_cat(&[&class, &patches], 1)?.f_add(&self.positions)?;
        for layer in &self.layers {
            x = layer.forward(&x)?;
        }
        self.head.forward(&self.norm.forward(&x)?.f_select(1, 0)?)
    }
}

impl Network for Vit {
    fn infer(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, TchError> {
        Ok(vec![self.forward(&inputs[0])?])
    }

    fn loss(&self, batch: &Batch) -> Result<Tensor, TchError> {
        cross_entropy(&self.forward(&batch.inputs[0])?, &batch.target)
    }

    fn synthetic_batch(&self, parameters: &Parameters, workload: &Workload) -> Result<Batch, TchError> {
        labelled_images(parameters, workload)
    }
}
