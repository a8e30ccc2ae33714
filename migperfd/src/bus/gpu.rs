//! `org.migperf1.Gpu`: a GPU's identity.

use migperf_core::device::Gpu;
use zbus::fdo;

/// A GPU as it was when the connection was made.
#[derive(Debug)]
pub(super) struct GpuObject {
    gpu: Gpu,
}

impl GpuObject {
    pub(super) fn new(gpu: Gpu) -> Self {
        Self { gpu }
    }
}

#[zbus::interface(name = "org.migperf1.Gpu")]
impl GpuObject {
    #[zbus(property(emits_changed_signal = "const"))]
    fn index(&self) -> u32 {
        self.gpu.index
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn uuid(&self) -> &str {
        self.gpu.uuid.as_str()
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn name(&self) -> fdo::Result<String> {
        self.gpu.name.clone().into_option().ok_or_else(|| fdo::Error::Failed("the device did not tell its name".into()))
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn memory_bytes(&self) -> fdo::Result<u64> {
        let memory = self.gpu.memory_total.value().map(|memory| memory.0);
        memory.ok_or_else(|| fdo::Error::Failed("the device did not tell its memory".into()))
    }
}
