//! Handles: numbers that a C caller takes for pointers. One of an instance that is gone finds nothing.

use sim_machine::catalog::Model;
use sim_machine::machine::{GpuDescription, Machine};
use sim_machine::state::{self, GpuState, Instance, State};

use crate::session::ask;
use crate::{Answer, code};

/// A device: a GPU, or a MIG device of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct Device(usize);

/// A GPU instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct GpuInstance(usize);

/// A compute instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct ComputeInstance(usize);

const DEVICE: usize = 0x4e56_0000;
const MIG_DEVICE: usize = 0x4e57_0000_0000;
const INSTANCE: usize = 0x4e58_0000;
const COMPUTE_INSTANCE: usize = 0x4e59_0000_0000;

impl Device {
    pub(crate) fn gpu(index: usize) -> Self {
        Self(DEVICE | index)
    }

    pub(crate) fn mig(gpu: usize, gi: u32, ci: u32) -> Self {
        Self(MIG_DEVICE | gpu << 16 | (gi as usize) << 8 | ci as usize)
    }

    pub(crate) fn number(self) -> usize {
        self.0
    }

    /// Which GPU, and which GPU instance and compute instance of it.
    fn parts(self) -> Option<(usize, Option<(u32, u32)>)> {
        if self.0 & !0xff == DEVICE {
            return Some((self.0 & 0xff, None));
        }
        let id = |shift: usize| u32::try_from(self.0 >> shift & 0xff).ok();
        (self.0 & !0x00ff_ffff == MIG_DEVICE).then(|| Some((self.0 >> 16 & 0xff, Some((id(8)?, id(0)?)))))?
    }
}

impl GpuInstance {
    pub(crate) fn new(gpu: usize, id: u32) -> Self {
        Self(INSTANCE | gpu << 8 | id as usize)
    }

    pub(crate) fn number(self) -> usize {
        self.0
    }

    fn parts(self) -> Option<(usize, u32)> {
        (self.0 & !0xffff == INSTANCE).then(|| Some((self.0 >> 8 & 0xff, u32::try_from(self.0 & 0xff).ok()?)))?
    }
}

impl ComputeInstance {
    pub(crate) fn new(gpu: usize, gi: u32, ci: u32) -> Self {
        Self(COMPUTE_INSTANCE | gpu << 16 | (gi as usize) << 8 | ci as usize)
    }

    /// The GPU instance that it lies in, and its id there.
    fn parts(self) -> Option<(GpuInstance, u32)> {
        let id = |shift: usize| u32::try_from(self.0 >> shift & 0xff).ok();
        let is_one = self.0 & !0x00ff_ffff == COMPUTE_INSTANCE;
        is_one.then(|| Some((GpuInstance::new(self.0 >> 16 & 0xff, id(8)?), id(0)?)))?
    }
}

/// A GPU that a handle means.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Gpu<'a> {
    pub(crate) index: usize,
    pub(crate) description: &'a GpuDescription,
    pub(crate) state: &'a GpuState,
}

impl Gpu<'_> {
    pub(crate) fn model(&self) -> &'static Model {
        self.description.model()
    }
}

/// What a handle means.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) gpu: Gpu<'a>,
    /// Of a MIG device.
    pub(crate) instance: Option<(&'a Instance, &'a state::ComputeInstance)>,
}

impl<'a> Target<'a> {
    /// The whole GPU, or what a question about it answers for a MIG device.
    pub(crate) fn whole(&self, of_mig: u32) -> Answer<Gpu<'a>> {
        if self.instance.is_some() { Err(of_mig) } else { Ok(self.gpu) }
    }
}

/// The GPU at an index.
pub(crate) fn gpu<'a>(machine: &'a Machine, state: &'a State, index: usize) -> Answer<Gpu<'a>> {
    match (machine.gpus.get(index), state.gpus.get(index)) {
        (Some(description), Some(state)) => Ok(Gpu { index, description, state }),
        _ => Err(code::INVALID_ARGUMENT),
    }
}

fn find<'a>(machine: &'a Machine, state: &'a State, device: Device) -> Answer<Target<'a>> {
    let (index, instance) = device.parts().ok_or(code::INVALID_ARGUMENT)?;
    let gpu = gpu(machine, state, index)?;
    if gpu.state.lost {
        return Err(code::GPU_IS_LOST);
    }
    let instance = match instance {
        None => None,
        Some((gi, ci)) => {
            let found = gpu.state.mig_devices().find(|(instance, compute)| instance.id == gi && compute.id == ci);
            Some(found.ok_or(code::INVALID_ARGUMENT)?)
        }
    };
    Ok(Target { gpu, instance })
}

/// Asks a device something.
pub(crate) fn ask_device<T>(device: Device, question: impl Fn(Target<'_>) -> Answer<T>) -> Answer<T> {
    ask(|machine, state| question(find(machine, state, device)?))
}

/// Asks a whole GPU something; `of_mig` is the answer for a MIG device.
pub(crate) fn ask_gpu<T>(device: Device, of_mig: u32, question: impl Fn(Gpu<'_>) -> Answer<T>) -> Answer<T> {
    ask_device(device, |target| question(target.whole(of_mig)?))
}

/// Asks a GPU instance something.
pub(crate) fn ask_instance<T>(handle: GpuInstance, question: impl Fn(Gpu<'_>, &Instance) -> Answer<T>) -> Answer<T> {
    let (index, id) = handle.parts().ok_or(code::INVALID_ARGUMENT)?;
    ask_gpu(Device::gpu(index), code::INVALID_ARGUMENT, |gpu| {
        question(gpu, gpu.state.instance(id).ok_or(code::INVALID_ARGUMENT)?)
    })
}

/// Asks a compute instance something.
pub(crate) fn ask_compute<T>(
    handle: ComputeInstance,
    question: impl Fn(Gpu<'_>, &Instance, &state::ComputeInstance) -> Answer<T>,
) -> Answer<T> {
    let (instance, id) = handle.parts().ok_or(code::INVALID_ARGUMENT)?;
    ask_instance(instance, |gpu, instance| {
        let compute = instance.compute.iter().find(|compute| compute.id == id).ok_or(code::INVALID_ARGUMENT)?;
        question(gpu, instance, compute)
    })
}
