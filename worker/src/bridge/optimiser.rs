//! Fused optimisers over whole lists of parameters, with the dynamic loss scale of fp16.
//!
//! One kernel launch updates hundreds of parameters. Nothing here reads a value back from the device while training: a
//! step whose scaled gradients overflowed is skipped on the device, and the scale halved there.

use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::ptr;

use tch::Tensor;
use torch_sys::C_tensor;

use super::{TorchError, check};

unsafe extern "C" {
    fn migperf_sgd_new(
        parameters: *const *const C_tensor,
        count: usize,
        learning_rate: f64,
        momentum: f64,
        weight_decay: f64,
        initial_scale: f64,
        optimiser: *mut *mut c_void,
    ) -> c_int;
    fn migperf_adamw_new(
        parameters: *const *const C_tensor,
        count: usize,
        learning_rate: f64,
        beta1: f64,
        beta2: f64,
        epsilon: f64,
        weight_decay: f64,
        initial_scale: f64,
        optimiser: *mut *mut c_void,
    ) -> c_int;
    fn migperf_optimiser_free(optimiser: *mut c_void);
    fn migperf_optimiser_backward(optimiser: *const c_void, loss: *const C_tensor) -> c_int;
    fn migperf_optimiser_step(optimiser: *mut c_void) -> c_int;
    fn migperf_optimiser_scale(optimiser: *const c_void, scale: *mut f64) -> c_int;
    fn migperf_optimiser_gradient_norms(optimiser: *const c_void, norms: *mut f64) -> c_int;
}

/// How parameters follow their gradients.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rule {
    /// Stochastic gradient descent with momentum, no dampening, not Nesterov's.
    Sgd {
        /// Step size.
        learning_rate: f64,
        /// What is kept of the previous direction.
        momentum: f64,
        /// Coupled (L2) decay.
        weight_decay: f64,
    },
    /// Adam with decoupled weight decay, bias-corrected.
    AdamW {
        /// Step size.
        learning_rate: f64,
        /// Decay of the first moment.
        beta1: f64,
        /// Decay of the second moment.
        beta2: f64,
        /// Added to the denominator.
        epsilon: f64,
        /// Decoupled decay.
        weight_decay: f64,
    },
}

/// An optimiser of a fixed list of parameters; keeps its state on their device.
#[derive(Debug)]
pub struct Optimiser {
    handle: *mut c_void,
    parameters: usize,
    _of_this_thread: PhantomData<*const ()>,
}

impl Optimiser {
    /// An optimiser of these parameters (fp32 leaves that require gradients), with a loss scale if one is given.
    ///
    /// # Errors
    /// When the list is empty or its state doesn't fit.
    pub fn new(parameters: &[Tensor], rule: Rule, initial_scale: Option<f64>) -> Result<Self, TorchError> {
        let pointers: Vec<*const C_tensor> = parameters.iter().map(Tensor::as_ptr).collect();
        let scale = initial_scale.unwrap_or(0.0);
        let mut handle = ptr::null_mut();
        let (list, count) = (pointers.as_ptr(), pointers.len());
        // SAFETY: `list` holds `count` live tensors, of which the optimiser keeps references of its own; `handle` is a
        // valid place for one pointer.
        let code = unsafe {
            match rule {
                Rule::Sgd { learning_rate, momentum, weight_decay } => {
                    migperf_sgd_new(list, count, learning_rate, momentum, weight_decay, scale, &raw mut handle)
                }
                Rule::AdamW { learning_rate, beta1, beta2, epsilon, weight_decay } => migperf_adamw_new(
                    list,
                    count,
                    learning_rate,
                    beta1,
                    beta2,
                    epsilon,
                    weight_decay,
                    scale,
                    &raw mut handle,
                ),
            }
        };
        check(code)?;
        Ok(Self { handle, parameters: count, _of_this_thread: PhantomData })
    }

    /// Computes gradients of the loss (a scalar), scaled where there is a scale.
    ///
    /// # Errors
    /// When the device fails or memory is full.
    pub fn backward(&mut self, loss: &Tensor) -> Result<(), TorchError> {
        // SAFETY: the handle is live and the tensor lives through the call.
        check(unsafe { migperf_optimiser_backward(self.handle, loss.as_ptr()) })
    }

    /// Updates every parameter that has a gradient, and releases the gradients.
    ///
    /// # Errors
    /// When the device fails or memory is full.
    pub fn step(&mut self) -> Result<(), TorchError> {
        // SAFETY: the handle is live and borrowed exclusively.
        check(unsafe { migperf_optimiser_step(self.handle) })
    }

    /// The factor that the next loss is multiplied with, if losses are scaled. Waits for the device.
    ///
    /// # Errors
    /// When the device fails.
    pub fn loss_scale(&self) -> Result<Option<f64>, TorchError> {
        let mut scale = 0.0;
        // SAFETY: the handle is live and `scale` is a valid place for one number.
        check(unsafe { migperf_optimiser_scale(self.handle, &raw mut scale) })?;
        Ok((scale > 0.0).then_some(scale))
    }

    /// L2 norms of the gradients between [`Self::backward`] and [`Self::step`], in the parameters' order and without the
    /// loss scale. Waits for the device.
    ///
    /// # Errors
    /// When the device fails.
    pub fn gradient_norms(&self) -> Result<Vec<f64>, TorchError> {
        let mut norms = vec![0.0; self.parameters];
        // SAFETY: the handle is live and `norms` has a place for each of its parameters.
        check(unsafe { migperf_optimiser_gradient_norms(self.handle, norms.as_mut_ptr()) })?;
        Ok(norms)
    }
}

impl Drop for Optimiser {
    fn drop(&mut self) {
        // SAFETY: made by `new` and freed once.
        unsafe { migperf_optimiser_free(self.handle) };
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;

    const SGD: Rule = Rule::Sgd { learning_rate: 0.5, momentum: 0.9, weight_decay: 0.0 };
    const ADAMW: Rule = Rule::AdamW { learning_rate: 0.1, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.01 };

    fn leaf(value: f64) -> Tensor {
        Tensor::full([3], value, (Kind::Float, Device::Cpu)).set_requires_grad(true)
    }

    /// Steps along the gradient `factor` of a parameter that starts at `start`, and tells where it ends.
    fn descend(rule: Rule, scale: Option<f64>, start: f64, factors: &[f64]) -> (f64, Option<f64>) {
        let parameter = leaf(start);
        let mut optimiser = Optimiser::new(&[parameter.shallow_clone()], rule, scale).unwrap();
        for factor in factors {
            optimiser.backward(&(&parameter * *factor).sum(Kind::Float)).unwrap();
            optimiser.step().unwrap();
            assert!(!parameter.grad().defined(), "gradients are released");
        }
        (parameter.double_value(&[1]), optimiser.loss_scale().unwrap())
    }

    fn close(a: f64, b: f64) {
        assert!((a - b).abs() < 1e-5, "{a} is not {b}");
    }

    #[test]
    fn momentum_carries_over() {
        // 1 - 0.5·2, then a direction of 0.9·2 + 1.
        close(descend(SGD, None, 1.0, &[2.0]).0, 0.0);
        close(descend(SGD, None, 1.0, &[2.0, 1.0]).0, -1.4);
    }

    #[test]
    fn adamw_is_bias_corrected_and_decays() {
        // The first step is the learning rate against the gradient's sign, after decay by 0.1·0.01.
        close(descend(ADAMW, None, 1.0, &[3.0]).0, 0.999 - 0.1);
    }

    #[test]
    fn the_loss_scale_cancels() {
        for rule in [SGD, ADAMW] {
            let (plain, none) = descend(rule, None, 1.0, &[2.0, 1.0]);
            let (scaled, scale) = descend(rule, Some(65_536.0), 1.0, &[2.0, 1.0]);
            close(plain, scaled);
            assert_eq!((none, scale), (None, Some(65_536.0)));
        }
    }

    #[test]
    fn an_overflowed_step_is_skipped_and_the_scale_halved() {
        for rule in [SGD, ADAMW] {
            // 2^127 times 4 is no fp32 number: skipped; times 1 is one, and as good as a first step.
            let scale = 2f64.powi(127);
            assert_eq!(descend(rule, Some(scale), 1.0, &[4.0]), (1.0, Some(scale / 2.0)), "{rule:?}");
            close(descend(rule, Some(scale), 1.0, &[4.0, 1.0]).0, descend(rule, None, 1.0, &[1.0]).0);
        }
    }

    #[test]
    fn gradient_norms_are_without_the_scale_and_zero_where_there_is_none() {
        let (used, unused) = (leaf(1.0), leaf(1.0));
        let list = [used.shallow_clone(), unused.shallow_clone()];
        let mut optimiser = Optimiser::new(&list, SGD, Some(1024.0)).unwrap();
        optimiser.backward(&(&used * 2.0).sum(Kind::Float)).unwrap();
        let norms = optimiser.gradient_norms().unwrap();
        close(norms[0], 12f64.sqrt());
        close(norms[1], 0.0);
        optimiser.step().unwrap();
        close(unused.double_value(&[0]), 1.0);
    }
}
