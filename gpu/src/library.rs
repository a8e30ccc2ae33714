//! NVML itself: finding it, opening it, closing it, and what its errors mean to a person.

use std::ffi::OsString;
use std::path::Path;

use migperf_core::device::Reading;
use migperf_core::ids::DeviceUuid;
use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError as Answer;

/// The name that the driver installs NVML under; the dynamic loader finds it.
pub const DEFAULT_LIBRARY: &str = "libnvidia-ml.so.1";

/// The word in its version by which a simulated NVML says what it is.
const SIMULATED: &str = "SIMULATED";

/// Why NVML cannot be used, or why it did not answer a question.
#[derive(Debug, thiserror::Error)]
pub enum NvmlError {
    /// The library is not there or is not a library.
    #[error("NVML cannot be loaded from `{library}`: install the NVIDIA driver, or correct the path")]
    NotInstalled {
        /// What was asked of the dynamic loader.
        library: String,
        /// What it said.
        #[source]
        source: Answer,
    },
    /// The library is there but the kernel module is not.
    #[error("the NVIDIA kernel driver is not loaded: run `nvidia-smi` or `modprobe nvidia` as root, and see `dmesg`")]
    NoDriver,
    /// The library and the loaded kernel module are of different releases.
    #[error(
        "the NVML library and the loaded NVIDIA driver differ in version: reload the driver or restart the machine"
    )]
    VersionMismatch,
    /// The caller may not talk to the driver.
    #[error("no permission to use the NVIDIA driver: check the device files /dev/nvidia*")]
    NoPermission,
    /// The library could be loaded but is not a usable NVML.
    #[error("`{library}` is not a usable NVML")]
    NotUsable {
        /// What was loaded.
        library: String,
        /// What it answered.
        #[source]
        source: Answer,
    },
    /// No device has this UUID.
    #[error("there is no device {device}: it was removed, or its MIG instance was created anew with another UUID")]
    NoSuchDevice {
        /// The UUID asked for.
        device: DeviceUuid,
    },
    /// A question to a device failed.
    #[error("{device} did not tell its {what}")]
    Unanswered {
        /// The device that was asked.
        device: DeviceUuid,
        /// What it was asked.
        what: &'static str,
        /// What NVML answered.
        #[source]
        source: Answer,
    },
}

/// An open NVML. Dropping it closes NVML.
#[derive(Debug)]
pub struct Nvml {
    wrapped: nvml_wrapper::Nvml,
    library: String,
}

impl Nvml {
    /// Opens NVML at `library`, or where the dynamic loader finds the driver's.
    ///
    /// # Errors
    /// If NVML is not installed, its driver is not running, or it refuses this caller.
    pub fn open(library: Option<&Path>) -> Result<Self, NvmlError> {
        let name = library.map_or_else(|| OsString::from(DEFAULT_LIBRARY), |path| path.as_os_str().to_owned());
        let shown = name.to_string_lossy().into_owned();
        match nvml_wrapper::Nvml::builder().lib_path(&name).init() {
            Ok(wrapped) => Ok(Self { wrapped, library: shown }),
            Err(source @ (Answer::LibloadingError(_) | Answer::LibraryNotFound)) => {
                Err(NvmlError::NotInstalled { library: shown, source })
            }
            Err(Answer::DriverNotLoaded) => Err(NvmlError::NoDriver),
            Err(Answer::LibRmVersionMismatch) => Err(NvmlError::VersionMismatch),
            Err(Answer::NoPermission) => Err(NvmlError::NoPermission),
            Err(source) => Err(NvmlError::NotUsable { library: shown, source }),
        }
    }

    /// The path or name that NVML was loaded by.
    #[must_use]
    pub fn library(&self) -> &str {
        &self.library
    }

    /// Whether this NVML announces itself as simulated, in its own version or the driver's.
    #[must_use]
    pub fn is_simulated(&self) -> bool {
        [self.wrapped.sys_driver_version(), self.wrapped.sys_nvml_version()]
            .iter()
            .any(|version| version.as_ref().is_ok_and(|version| version.contains(SIMULATED)))
    }

    pub(crate) fn wrapped(&self) -> &nvml_wrapper::Nvml {
        &self.wrapped
    }

    /// The handle of a GPU or a MIG device.
    pub(crate) fn device(&self, uuid: &DeviceUuid) -> Result<Device<'_>, NvmlError> {
        self.wrapped.device_by_uuid(uuid.as_str()).map_err(|answer| match answer {
            Answer::NotFound | Answer::InvalidArg => NvmlError::NoSuchDevice { device: uuid.clone() },
            source => NvmlError::Unanswered { device: uuid.clone(), what: "handle", source },
        })
    }
}

/// Why there is no value, in words for a report.
pub(crate) fn reason(answer: &Answer) -> String {
    match answer {
        Answer::NotSupported => "not supported by this device".to_owned(),
        Answer::FailedToLoadSymbol(_) | Answer::FunctionNotFound => "not offered by this driver's NVML".to_owned(),
        Answer::NoPermission => "needs more privilege".to_owned(),
        Answer::GpuLost => "the GPU is lost: it fell off the bus".to_owned(),
        Answer::UnexpectedVariant(code) => format!("NVML answered with the unknown code {code}"),
        other => other.to_string(),
    }
}

/// An answer as a reading.
pub(crate) fn reading<T>(answer: Result<T, Answer>) -> Reading<T> {
    match answer {
        Ok(value) => Reading::Value(value),
        Err(answer) => Reading::Absent(reason(&answer)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_is_not_installed() {
        let error = Nvml::open(Some(Path::new("/nonexistent/libnvidia-ml.so.1"))).unwrap_err();
        assert!(
            matches!(&error, NvmlError::NotInstalled { library, .. } if library.starts_with("/nonexistent")),
            "{error}"
        );
    }

    #[test]
    fn a_file_that_is_no_library_is_not_installed_either() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(matches!(Nvml::open(Some(file.path())), Err(NvmlError::NotInstalled { .. })));
    }

    #[test]
    fn a_library_that_is_no_nvml_is_not_usable() {
        assert!(matches!(Nvml::open(Some(Path::new("libc.so.6"))), Err(NvmlError::NotUsable { .. })));
    }
}
