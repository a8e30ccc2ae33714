//! How a GPU is divided now, and what it may be divided into: read with care, because what is overlooked here is
//! overlooked by everyone who changes a GPU.
//!
//! GPU instances are listed before their compute instances, so that a half-made one (without a compute instance and so
//! without a UUID) is found. Where NVML says that something is not there it is asked again: a list that ends early by a
//! passing fault would hide an instance.

use std::fmt;

use migperf_core::device::MigMode;
use migperf_core::ids::{DeviceUuid, GpuUuid, MigUuid};
use migperf_core::mig::layout::{Instance, Layout, Part, Place};
use migperf_core::mig::offer::{Offer, Offers, Placement};
use migperf_core::mig::profile::Profile;
use nvml_wrapper::Device;
use nvml_wrapper::structs::device::FieldId;
use serde::{Deserialize, Serialize};

use crate::ffi::mig as ffi;
use crate::library::{Nvml, NvmlError};

/// Return codes of nvml.h.
pub mod code {
    /// An argument is none, or an enumeration has ended.
    pub const INVALID_ARGUMENT: u32 = 2;
    /// The device or the mode it is in lacks this.
    pub const NOT_SUPPORTED: u32 = 3;
    /// Nothing is there.
    pub const NOT_FOUND: u32 = 6;
    /// The library lacks the function.
    pub const FUNCTION_NOT_FOUND: u32 = 13;
    /// Somebody uses it.
    pub const IN_USE: u32 = 19;
    /// No room.
    pub const INSUFFICIENT_RESOURCES: u32 = 23;
}

/// Constants of GPU instance profiles that are asked for: more than any driver has.
const CONSTANTS: u32 = 32;
/// Constants of compute instance profiles that are asked for.
const PART_CONSTANTS: u32 = 8;
/// `NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED`.
const FIELD_RESETLESS: FieldId = FieldId(184);

/// A call that NVML refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{call} answered {code} ({})", meaning(*code))]
pub struct Refusal {
    /// NVML's name of the function.
    pub call: String,
    /// What it returned.
    pub code: u32,
}

/// A return code in words.
#[must_use]
pub fn meaning(code: u32) -> &'static str {
    match code {
        0 => "success",
        1 => "NVML is not initialised",
        code::INVALID_ARGUMENT => "invalid argument",
        code::NOT_SUPPORTED => "not supported",
        4 => "no permission",
        code::NOT_FOUND => "not found",
        7 => "insufficient size",
        9 => "the driver is not loaded",
        10 => "timeout",
        code::FUNCTION_NOT_FOUND => "this driver's NVML lacks it",
        15 => "the GPU is lost",
        16 => "a reset is required",
        17 => "blocked by the operating system",
        code::IN_USE => "in use",
        21 => "no data",
        code::INSUFFICIENT_RESOURCES => "insufficient resources",
        25 => "version of an argument not known",
        29 => "invalid state",
        999 => "unknown error",
        _ => "a code that nvml.h does not explain here",
    }
}

/// Why a GPU's division can't be read.
#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    /// There is no such GPU, or NVML does not answer.
    #[error(transparent)]
    Nvml(#[from] NvmlError),
    /// A question was refused.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// An answer that can't be true.
    #[error("NVML's answers about the instances of {gpu} do not agree: {what}")]
    Inconsistent {
        /// The GPU.
        gpu: GpuUuid,
        /// What does not agree.
        what: String,
    },
}

/// How a GPU is divided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Division {
    /// The GPU.
    pub gpu: GpuUuid,
    /// NVML's index: what nvidia-smi calls it.
    pub index: u32,
    /// The number of its device file, `/dev/nvidia<minor>`.
    pub minor: u32,
    /// MIG on, off, changing or unknown to the device.
    pub mode: MigMode,
    /// The mode changes without a reset, and is not kept over a restart; false also where the device does not say.
    pub resetless: bool,
    /// GPU instances by ascending place.
    pub instances: Vec<GpuInstance>,
}

/// A GPU instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct GpuInstance {
    /// The device's number: opaque, and used again after it is destroyed.
    pub id: u32,
    /// The id of its profile.
    pub profile_id: u32,
    /// Its profile as the device names it.
    pub profile: Profile,
    /// Its memory slots.
    pub placement: Placement,
    /// Its compute instances by ascending place; empty for a half-made one.
    pub compute: Vec<ComputeInstance>,
}

/// A compute instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ComputeInstance {
    /// Its number within the GPU instance.
    pub id: u32,
    /// The id of its profile, among those of the GPU instance.
    pub profile_id: u32,
    /// Its profile as devices name it: `1c.3g.71gb` for a part.
    pub profile: Profile,
    /// Its compute slices within the GPU instance.
    pub placement: Placement,
    /// Its identity until it is destroyed.
    pub uuid: MigUuid,
}

/// A profile with the number by which it is created.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ProfileOffer {
    /// The id of the profile.
    pub id: u32,
    /// What it is.
    pub offer: Offer,
}

/// A compute instance profile within one GPU instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct PartOffer {
    /// The id of the profile.
    pub id: u32,
    /// Compute slices.
    pub slices: u32,
    /// Instances of it that can exist at most.
    pub most: u32,
    /// How many more fit now.
    pub left: u32,
}

impl Division {
    /// The same in the notation that people write, with every place.
    #[must_use]
    pub fn layout(&self) -> Layout {
        match self.mode {
            MigMode::Disabled | MigMode::Unsupported => Layout::Off,
            MigMode::Pending { .. } if self.instances.is_empty() => Layout::Off,
            MigMode::Enabled | MigMode::Pending { .. } => {
                Layout::On(self.instances.iter().map(GpuInstance::as_written).collect())
            }
        }
    }
}

impl fmt::Display for Division {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.layout().fmt(f)
    }
}

impl GpuInstance {
    /// The instance in the notation that people write.
    #[must_use]
    pub fn as_written(&self) -> Instance {
        let place = |at: Placement| Some(Place { start: at.start, size: Some(at.size) });
        let whole = matches!(self.compute.as_slice(), [one] if one.profile == self.profile);
        let part = |compute: &ComputeInstance| Part {
            slices: compute.profile.compute_slices(),
            place: if whole { None } else { place(compute.placement) },
        };
        Instance {
            profile: self.profile.clone(),
            place: place(self.placement),
            compute: self.compute.iter().map(part).collect(),
        }
    }
}

/// What a list of offers means to the planner.
#[must_use]
pub fn offers(profiles: &[ProfileOffer]) -> Offers {
    Offers::new(profiles.iter().map(|profile| profile.offer.clone()).collect())
}

impl Nvml {
    /// How a GPU is divided now.
    ///
    /// # Errors
    /// If the GPU is not there, does not answer, or its answers contradict each other.
    pub fn division(&self, gpu: &GpuUuid) -> Result<Division, LayoutError> {
        let device = self.device(&DeviceUuid::Gpu(gpu.clone()))?;
        let unanswered =
            |what| move |source| NvmlError::Unanswered { device: DeviceUuid::Gpu(gpu.clone()), what, source };
        let mode = match present(|| ffi::mig_mode(&device))? {
            Some((current, pending)) => MigMode::from_modes(current, pending),
            None => MigMode::Unsupported,
        };
        let instances = match mode {
            MigMode::Unsupported | MigMode::Disabled => Vec::new(),
            MigMode::Enabled | MigMode::Pending { .. } => instances(&device, gpu)?,
        };
        Ok(Division {
            gpu: gpu.clone(),
            index: device.index().map_err(unanswered("index"))?,
            minor: device.minor_number().map_err(unanswered("minor number"))?,
            mode,
            resetless: resetless(&device),
            instances,
        })
    }

    /// What a GPU may be divided into.
    ///
    /// # Errors
    /// If the GPU is not there, knows no MIG, or does not answer.
    pub fn profiles(&self, gpu: &GpuUuid) -> Result<Vec<ProfileOffer>, LayoutError> {
        let device = self.device(&DeviceUuid::Gpu(gpu.clone()))?;
        let mut offers = Vec::new();
        for info in profile_infos(&device)? {
            let offer = Offer {
                profile: named(gpu, &info)?,
                most: info.most,
                placements: ffi::possible_placements(&device, info.id)?,
                engines: info.engines,
                compute: Vec::new(),
            };
            offers.push(ProfileOffer { id: info.id, offer });
        }
        Ok(offers)
    }

    /// What a GPU instance may be divided into.
    ///
    /// # Errors
    /// If it is not there or does not answer.
    pub fn parts(&self, gpu: &GpuUuid, gpu_instance: u32) -> Result<Vec<PartOffer>, LayoutError> {
        let device = self.device(&DeviceUuid::Gpu(gpu.clone()))?;
        let within = ffi::gpu_instance(&device, gpu_instance)?;
        let mut parts = Vec::new();
        for info in part_infos(&device, within)? {
            let left = ffi::parts_left(&device, within, info.id)?;
            parts.push(PartOffer { id: info.id, slices: info.slices, most: info.most, left });
        }
        Ok(parts)
    }

    /// Every GPU's UUID, in NVML's order.
    ///
    /// # Errors
    /// If one does not answer.
    pub fn gpus(&self) -> Result<Vec<GpuUuid>, String> {
        let inventory = self.inventory();
        match (inventory.nvml.reason(), inventory.silent.first()) {
            (Some(reason), _) => Err(reason.to_owned()),
            (None, Some(silent)) => Err(format!("GPU {} does not answer: {}", silent.index, silent.reason)),
            (None, None) => Ok(inventory.gpus.into_iter().map(|gpu| gpu.uuid).collect()),
        }
    }
}

/// Asks again where the answer is that there is nothing; `None` if it is so both times.
fn present<T>(ask: impl Fn() -> Result<T, Refusal>) -> Result<Option<T>, Refusal> {
    let nothing = [code::INVALID_ARGUMENT, code::NOT_SUPPORTED, code::NOT_FOUND, code::FUNCTION_NOT_FOUND];
    match ask() {
        Err(refusal) if nothing.contains(&refusal.code) => match ask() {
            Err(refusal) if nothing.contains(&refusal.code) => Ok(None),
            answer => answer.map(Some),
        },
        answer => answer.map(Some),
    }
}

/// Constants that the device lacks are left out; the first that is none ends the enumeration.
fn profile_infos(device: &Device<'_>) -> Result<Vec<ffi::ProfileInfo>, Refusal> {
    let mut infos = Vec::new();
    for constant in 0..CONSTANTS {
        match present(|| ffi::profile_info(device, constant))? {
            Some(info) => infos.push(info),
            None if ffi::profile_info(device, constant).is_err_and(|it| it.code == code::INVALID_ARGUMENT) => break,
            None => {}
        }
    }
    Ok(infos)
}

fn part_infos(device: &Device<'_>, within: ffi::GpuInstanceHandle<'_>) -> Result<Vec<ffi::PartInfo>, Refusal> {
    let infos = (0..PART_CONSTANTS).map(|constant| present(|| ffi::part_info(device, within, constant)));
    infos.filter_map(Result::transpose).collect()
}

/// NVML writes `MIG 1g.18gb`.
fn named(gpu: &GpuUuid, info: &ffi::ProfileInfo) -> Result<Profile, LayoutError> {
    let name = info.name.strip_prefix("MIG ").unwrap_or(&info.name);
    name.parse().map_err(|_| LayoutError::Inconsistent {
        gpu: gpu.clone(),
        what: format!("profile {} is named `{}`, which is no profile's name", info.id, info.name),
    })
}

/// Drivers that do not know the question have no GPU for which the answer is yes.
fn resetless(device: &Device<'_>) -> bool {
    use nvml_wrapper::enums::device::SampleValue;
    let answers = device.field_values_for(&[FIELD_RESETLESS]).unwrap_or_default();
    let answer = answers.into_iter().next().and_then(Result::ok).and_then(|sample| sample.value.ok());
    matches!(answer, Some(SampleValue::U32(1) | SampleValue::U64(1)))
}

fn instances(device: &Device<'_>, gpu: &GpuUuid) -> Result<Vec<GpuInstance>, LayoutError> {
    let inconsistent = |what: String| LayoutError::Inconsistent { gpu: gpu.clone(), what };
    let mut uuids = mig_devices(device, gpu)?;
    let mut found = Vec::new();
    for profile in profile_infos(device)? {
        let name = named(gpu, &profile)?;
        for handle in ffi::gpu_instances(device, profile.id, profile.most)? {
            let info = ffi::gpu_instance_info(device, handle)?;
            let mut compute = Vec::new();
            for part in part_infos(device, handle)? {
                for instance in ffi::compute_instances(device, handle, part.id, part.most)? {
                    let at = ffi::compute_instance_info(device, instance)?;
                    let mine = uuids.iter().position(|(gi, ci, _)| (*gi, *ci) == (info.id, at.id));
                    let (.., uuid) = uuids.swap_remove(mine.ok_or_else(|| {
                        inconsistent(format!("compute instance {} of GPU instance {} has no UUID", at.id, info.id))
                    })?);
                    compute.push(ComputeInstance {
                        id: at.id,
                        profile_id: at.profile_id,
                        profile: name.part(part.slices).unwrap_or_else(|| name.clone()),
                        placement: at.placement,
                        uuid,
                    });
                }
            }
            compute.sort_by_key(|instance| (instance.placement, instance.id));
            found.push(GpuInstance {
                id: info.id,
                profile_id: info.profile_id,
                profile: name.clone(),
                placement: info.placement,
                compute,
            });
        }
    }
    if let Some((gi, ci, uuid)) = uuids.first() {
        return Err(inconsistent(format!("{uuid} is compute instance {ci} of GPU instance {gi}, which is not listed")));
    }
    found.sort_by_key(|instance| (instance.placement, instance.id));
    Ok(found)
}

/// Every MIG device with its GPU instance and compute instance.
fn mig_devices(device: &Device<'_>, gpu: &GpuUuid) -> Result<Vec<(u32, u32, MigUuid)>, LayoutError> {
    let unanswered = |what| move |source| NvmlError::Unanswered { device: DeviceUuid::Gpu(gpu.clone()), what, source };
    let count = device.mig_device_count().map_err(unanswered("number of MIG devices"))?;
    let mut devices = Vec::new();
    for index in 0..count {
        let found = match device.mig_device_by_index(index) {
            Err(nvml_wrapper::error::NvmlError::NotFound) => device.mig_device_by_index(index),
            answer => answer,
        };
        match found {
            Ok(mig) => {
                let uuid = mig.uuid().map_err(unanswered("MIG devices"))?;
                devices.push((
                    crate::ffi::gpu_instance_id(&mig).map_err(unanswered("MIG devices"))?,
                    crate::ffi::compute_instance_id(&mig).map_err(unanswered("MIG devices"))?,
                    uuid.parse().map_err(|_| LayoutError::Inconsistent {
                        gpu: gpu.clone(),
                        what: format!("`{uuid}` is no MIG device's UUID"),
                    })?,
                ));
            }
            Err(nvml_wrapper::error::NvmlError::NotFound) => {}
            Err(source) => return Err(unanswered("MIG devices")(source).into()),
        }
    }
    Ok(devices)
}
