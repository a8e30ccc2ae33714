//! The architectures, with the parameter names, shapes and counts of their reference libraries, so that published weights
//! load. What is done with them, and in which precision, is `step`'s business.
//!
//! Dropout is left out everywhere: it would make measurements random, and its share of the time is small.

pub mod bert;
pub mod from_names;
pub mod layers;
pub mod parameters;
pub mod resnet;
pub mod unet;
pub mod unet_blocks;
pub mod vit;

use std::fmt;

use migperf_core::workload::{Model, Workload};
use tch::{TchError, Tensor};

pub use parameters::{Entry, Parameters, Role, Values};

/// One batch: what goes in, and what training compares the output with.
#[derive(Debug)]
pub struct Batch {
    /// The model's inputs in its own order.
    pub inputs: Vec<Tensor>,
    /// Class labels, or the noise that a denoiser should find.
    pub target: Tensor,
}

/// An architecture whose parameters live in a [`Parameters`].
pub trait Network: fmt::Debug {
    /// The outputs in evaluation mode, the most telling one first.
    ///
    /// # Errors
    /// When the device fails or memory is full.
    fn infer(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, TchError>;

    /// The loss in training mode, a scalar.
    ///
    /// # Errors
    /// When the device fails or memory is full.
    fn loss(&self, batch: &Batch) -> Result<Tensor, TchError>;

    /// A synthetic batch on the parameters' device, drawn from libtorch's generator.
    ///
    /// # Errors
    /// When it doesn't fit.
    fn synthetic_batch(&self, parameters: &Parameters, workload: &Workload) -> Result<Batch, TchError>;
}

/// Builds a model's parameters, randomly initialised, in `parameters`. `None` for the model without work.
///
/// # Errors
/// When the parameters don't fit.
pub fn build(model: Model, parameters: &Parameters) -> Result<Option<Box<dyn Network>>, TchError> {
    let root = parameters.root();
    Ok(Some(match model {
        Model::Resnet18 | Model::Resnet34 | Model::Resnet50 | Model::Resnet101 | Model::Resnet152 => {
            Box::new(resnet::Resnet::new(&root, model)?)
        }
        Model::BertBase | Model::BertLarge | Model::DistilBert | Model::RobertaBase => {
            Box::new(bert::Bert::new(&root, model)?)
        }
        Model::VitB16 | Model::VitL16 => Box::new(vit::Vit::new(&root, model)?),
        Model::Sd15Unet | Model::DdpmUnet => Box::new(unet::Unet::new(&root, model)?),
        Model::Empty => return Ok(None),
    }))
}
