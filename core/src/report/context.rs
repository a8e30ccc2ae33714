//! Where, with what and by whom a job was measured.

use serde::{Deserialize, Serialize};

use super::finding::{Finding, Plain};
use super::view::rfc3339;
use crate::device::{Gpu, MigMode, Reading};
use crate::record::JobRecord;
use crate::units::Bytes;

/// A text, where there is one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Text {
    /// The text.
    pub value: String,
}

/// The job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobReport {
    /// Its identity, unique between hosts.
    pub uid: String,
    /// The suite's name.
    pub name: String,
    /// What the suite is for.
    pub description: Option<String>,
    /// SHA-256 of the suite's text.
    pub suite_digest: String,
    /// The suite's text as it was submitted; absent in reports of versions that did not keep it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suite: Option<String>,
    /// `gpu` or `cpu`.
    pub target: String,
    /// Seed of parameters and inputs.
    pub seed: u64,
    /// Fresh cohorts planned for each cell.
    pub repeats: u32,
    /// When it was submitted, UTC.
    pub submitted: String,
    /// Who submitted it: a user name, or a number where the host knows none.
    pub owner: String,
}

/// The machine and its software.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContextReport {
    /// The host's name.
    pub host: String,
    /// A stable identity of the host, hashed.
    pub host_id: Finding<Text>,
    /// Kernel release.
    pub kernel: String,
    /// The processors' model.
    pub processor: Finding<Text>,
    /// Logical processors that the daemon may use.
    pub processors: u32,
    /// Installed memory in bytes.
    pub memory_bytes: Finding<Plain>,
    /// migperf's version that measured.
    pub migperf: String,
    /// The libtorch that workers load.
    pub libtorch: Finding<Text>,
    /// The NVIDIA driver.
    pub driver: Finding<Text>,
    /// The newest CUDA version that the driver supports.
    pub cuda: Finding<Text>,
    /// The GPUs that trials ran on, as they were before their first trial.
    pub gpus: Vec<GpuView>,
}

/// A GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuView {
    /// Its UUID.
    pub uuid: String,
    /// The product name.
    pub name: Finding<Text>,
    /// CUDA compute capability.
    pub compute_capability: Finding<Text>,
    /// Installed frame buffer in bytes.
    pub memory_total_bytes: Finding<Plain>,
    /// Streaming multiprocessors.
    pub multiprocessors: Finding<Plain>,
    /// The enforced power limit in watts.
    pub power_limit_w: Finding<Plain>,
    /// The highest clock of the multiprocessors in MHz.
    pub clock_sm_max_mhz: Finding<Plain>,
    /// The highest clock of the memory in MHz.
    pub clock_memory_max_mhz: Finding<Plain>,
    /// Whether it is partitioned: `unsupported`, `disabled`, `enabled` or `pending`.
    pub mig: Finding<Text>,
}

impl JobReport {
    pub(super) fn of(job: &JobRecord) -> Self {
        Self {
            uid: job.uid.0.clone(),
            name: job.plan.name.clone(),
            description: job.plan.description.clone(),
            suite_digest: job.suite_digest.clone(),
            suite: Some(job.suite.clone()),
            target: job.plan.target.name().to_owned(),
            seed: job.plan.seed,
            repeats: job.plan.repeats,
            submitted: rfc3339(job.submitted),
            owner: job.owner.name.clone().unwrap_or_else(|| job.owner.uid.to_string()),
        }
    }
}

impl ContextReport {
    /// Of a job, and of the GPUs as trial after trial saw them.
    pub(super) fn of(job: &JobRecord, gpus: Vec<GpuView>) -> Self {
        let (driver, cuda) = match &job.inventory.nvml {
            Reading::Absent(reason) => (Finding::absent(reason.as_str()), Finding::absent(reason.as_str())),
            Reading::Value(nvml) => (text(&nvml.driver_version), text(&nvml.cuda_driver_version)),
        };
        Self {
            host: job.host.name.clone(),
            host_id: text(&job.host.id),
            kernel: job.host.kernel.clone(),
            processor: text(&job.host.processor),
            processors: job.host.processors,
            memory_bytes: bytes(&job.host.memory),
            migperf: job.version.clone(),
            libtorch: text(&job.libtorch),
            driver,
            cuda,
            gpus,
        }
    }
}

fn text<T: ToString>(reading: &Reading<T>) -> Finding<Text> {
    match reading {
        Reading::Value(value) => Finding::Value(Text { value: value.to_string() }),
        Reading::Absent(reason) => Finding::absent(reason.as_str()),
    }
}

fn plain<T>(reading: &Reading<T>, number: impl Fn(&T) -> f64) -> Finding<Plain> {
    match reading {
        Reading::Value(value) => Finding::plain(number(value)),
        Reading::Absent(reason) => Finding::absent(reason.as_str()),
    }
}

fn bytes(reading: &Reading<Bytes>) -> Finding<Plain> {
    plain(reading, |bytes| bytes.0 as f64)
}

pub(super) fn gpu_view(gpu: &Gpu) -> GpuView {
    let mig = |mode: &MigMode| match mode {
        MigMode::Unsupported => "unsupported",
        MigMode::Disabled => "disabled",
        MigMode::Enabled => "enabled",
        MigMode::Pending { .. } => "pending",
    };
    GpuView {
        uuid: gpu.uuid.to_string(),
        name: text(&gpu.name),
        compute_capability: text(&gpu.compute_capability),
        memory_total_bytes: bytes(&gpu.memory_total),
        multiprocessors: plain(&gpu.multiprocessors, |count| f64::from(*count)),
        power_limit_w: plain(&gpu.power_limit, |limit| f64::from(limit.0) / 1e3),
        clock_sm_max_mhz: plain(&gpu.clock_sm_max, |clock| f64::from(clock.0)),
        clock_memory_max_mhz: plain(&gpu.clock_memory_max, |clock| f64::from(clock.0)),
        mig: match &gpu.mig {
            Reading::Value(mode) => Finding::Value(Text { value: mig(mode).to_owned() }),
            Reading::Absent(reason) => Finding::absent(reason.as_str()),
        },
    }
}
