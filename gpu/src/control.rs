//! Changing how a GPU is divided: single calls, without judgement. Who may ask for them, in which order and with what
//! promise is the root helper's.

use migperf_core::ids::{DeviceUuid, GpuUuid};
use migperf_core::mig::offer::Placement;

use crate::ffi::{control, mig};
use crate::layout::{LayoutError, Refusal, code};
use crate::library::Nvml;

impl Nvml {
    /// Asks for a MIG mode. The mode has changed only if a later look says so: the status tells why it may not have.
    ///
    /// # Errors
    /// If NVML refuses.
    pub fn set_mig_mode(&self, gpu: &GpuUuid, on: bool) -> Result<(), LayoutError> {
        let device = self.device(&DeviceUuid::Gpu(gpu.clone()))?;
        match control::set_mig_mode(&device, on)? {
            0 => Ok(()),
            status => Err(Refusal { call: "nvmlDeviceSetMigMode (activation)".to_owned(), code: status }.into()),
        }
    }

    /// Creates a GPU instance at a place; gives its id.
    ///
    /// # Errors
    /// If NVML refuses.
    pub fn create_gpu_instance(&self, gpu: &GpuUuid, profile: u32, at: Placement) -> Result<u32, LayoutError> {
        let device = self.device(&DeviceUuid::Gpu(gpu.clone()))?;
        Ok(control::create_gpu_instance(&device, profile, at)?)
    }

    /// Destroys a GPU instance, which has no compute instances any more.
    ///
    /// # Errors
    /// If NVML refuses.
    pub fn destroy_gpu_instance(&self, gpu: &GpuUuid, id: u32) -> Result<(), LayoutError> {
        let device = self.device(&DeviceUuid::Gpu(gpu.clone()))?;
        Ok(control::destroy_gpu_instance(&device, mig::gpu_instance(&device, id)?)?)
    }

    /// Creates a compute instance, at its place where one is said and the driver can be told; gives its id.
    ///
    /// # Errors
    /// If NVML refuses.
    pub fn create_compute_instance(
        &self,
        gpu: &GpuUuid,
        gpu_instance: u32,
        profile: u32,
        at: Option<Placement>,
    ) -> Result<u32, LayoutError> {
        let device = self.device(&DeviceUuid::Gpu(gpu.clone()))?;
        let within = mig::gpu_instance(&device, gpu_instance)?;
        match control::create_compute_instance(&device, within, profile, at) {
            // Drivers before release 525 choose the place themselves.
            Err(refusal) if at.is_some() && refusal.code == code::FUNCTION_NOT_FOUND => {
                Ok(control::create_compute_instance(&device, within, profile, None)?)
            }
            answer => Ok(answer?),
        }
    }

    /// Destroys a compute instance.
    ///
    /// # Errors
    /// If NVML refuses.
    pub fn destroy_compute_instance(&self, gpu: &GpuUuid, gpu_instance: u32, id: u32) -> Result<(), LayoutError> {
        let device = self.device(&DeviceUuid::Gpu(gpu.clone()))?;
        let within = mig::gpu_instance(&device, gpu_instance)?;
        Ok(control::destroy_compute_instance(&device, control::compute_instance(&device, within, id)?)?)
    }
}
