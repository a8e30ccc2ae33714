//! What a machine's GPUs say, read through NVML: an inventory now ([`library::Nvml::inventory`]) and a series while
//! work runs ([`sampler::Sampler`]), and how they are divided ([`layout`]). It changes a device only with the feature
//! `control`, which the root helper alone has.
//!
//! NVML is loaded when it is needed and closed when its handle is dropped, since an open handle keeps an administrator
//! from changing the MIG mode or the driver. Nothing here panics because of what a driver answers: a missing value is a
//! reading with a reason, and a driver that hangs or goes away leaves a gap.

#[cfg(feature = "control")]
pub mod control;
pub mod layout;
pub mod library;
pub mod sampler;

mod ffi;
mod inventory;
mod processes;
