//! One worker: a real model, trained or asked for its output, batch after batch, on one device.
//!
//! [`run`] is a worker's life on its connection. [`step::Step`] is one whole batch of a workload, ending with the device
//! synchronised. [`models`] are the architectures, held against their reference libraries by [`parity`]; [`bridge`] is
//! what libtorch's bindings lack. The worker writes no files and knows nothing of cohorts.

pub mod bench_command;
pub mod bridge;
pub mod connection;
pub mod models;
pub mod parity;
pub mod parity_command;
#[expect(unsafe_code, reason = "asks the CUDA driver, whose interface is C")]
pub mod proof;
pub mod run;
pub mod step;
