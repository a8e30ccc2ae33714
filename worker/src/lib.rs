//! One worker: a real model, trained or asked for its output, batch after batch, on one device.
//!
//! [`step::Step`] is one whole batch of a workload, ending with the device synchronised. [`models`] are the
//! architectures, [`bridge`] is what libtorch's bindings lack. The worker writes no files and knows nothing of cohorts.

pub mod bridge;
pub mod models;
pub mod step;
