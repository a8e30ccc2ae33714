//! A simulated machine with GPUs: what it is made of, what goes on on it, and how processes share that.
//!
//! Two libraries put C interfaces before it, `nvml-sim` and `cuda-sim`; the product loads them in place of NVIDIA's and
//! knows it only from the driver's version. A machine is described in the JSON file that `NVML_SIM_MACHINE` names
//! ([`machine::Machine`]) and boots when it is first looked at. What then happens lives in the file that `NVML_SIM_STATE`
//! names ([`shared::Shared`]), beside the device files and capabilities that a driver shows ([`files`]). Removing it boots the
//! machine as described; [`shared::Shared::restart`] is a reboot after which nothing that was created is there. Without
//! that variable each process has a machine to itself.
//!
//! This is the one place with tables of what GPUs offer: `data/mig_profiles.json`, compiled from NVIDIA's MIG user guide
//! and from printed output of real devices.

pub mod catalog;
pub mod faults;
pub mod files;
pub mod install;
pub mod machine;
pub mod mig;
pub mod process;
pub mod shared;
pub mod state;
