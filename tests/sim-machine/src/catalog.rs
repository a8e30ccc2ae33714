//! What each GPU model offers, from the table in `data/`.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use serde::Deserialize;

const TABLE: &str = include_str!("../data/mig_profiles.json");

/// MIG profile constants of nvml.h that a driver of release 580 knows; further ones are invalid arguments.
pub const PROFILE_CONSTANTS: u32 = 17;

#[derive(Debug, Deserialize)]
struct Table {
    gpus: BTreeMap<String, Model>,
}

/// One GPU model.
#[derive(Debug, Deserialize)]
pub struct Model {
    /// As NVML names it.
    pub product_name: String,
    /// The chip's generation.
    pub arch: Generation,
    /// Installed frame buffer, MiB.
    pub total_memory_mb: u64,
    /// Slices of GPU instances.
    pub compute_slices: u32,
    /// Streaming multiprocessors without MIG; absent where the largest profile has them all.
    full_sm: Option<u32>,
    /// Device and vendor id as one hexadecimal number.
    pub pci_device_id: String,
    /// Whether the MIG mode changes without a reset.
    pub resetless_mig: bool,
    /// GPU instance profiles.
    pub profiles: Vec<Profile>,
}

/// A generation with MIG.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum Generation {
    /// 8.0.
    Ampere,
    /// 9.0.
    Hopper,
    /// 10.0, or 12.0 for the workstation chips.
    Blackwell,
}

/// One GPU instance profile.
#[derive(Debug, Deserialize)]
pub struct Profile {
    /// Such as `1g.18gb`.
    pub name: String,
    /// The constant to ask for it by.
    #[serde(rename = "nvml_const_value")]
    pub constant: u32,
    /// The id to create it by.
    pub id: u32,
    /// Compute slices.
    pub compute_slices: u32,
    /// MiB; absent in the table where no source gave it.
    pub memory_mb: Option<u64>,
    /// Streaming multiprocessors; absent where no source gave it.
    pub sm_count: Option<u32>,
    /// How many fit.
    pub max_instances: u32,
    /// Where they fit.
    pub placements: Vec<Slot>,
    /// Other engines.
    pub engines: Engines,
}

/// A range of memory slices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct Slot {
    /// The first.
    pub start: u32,
    /// How many.
    pub size: u32,
}

/// Engines beside the multiprocessors.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct Engines {
    /// Copy engines.
    pub ce: u32,
    /// Decoders.
    pub dec: u32,
    /// Encoders.
    pub enc: u32,
    /// JPEG decoders.
    pub jpeg: u32,
    /// Optical flow accelerators.
    pub ofa: u32,
}

/// Every model by its key, such as `H200-141`.
#[must_use]
pub fn models() -> &'static BTreeMap<String, Model> {
    static MODELS: OnceLock<BTreeMap<String, Model>> = OnceLock::new();
    MODELS.get_or_init(|| serde_json::from_str::<Table>(TABLE).expect("the table is part of this crate").gpus)
}

impl Model {
    /// Streaming multiprocessors without MIG.
    #[must_use]
    pub fn multiprocessors(&self) -> u32 {
        self.full_sm.or_else(|| self.profiles.iter().filter_map(|profile| profile.sm_count).max()).unwrap_or(0)
    }

    /// CUDA compute capability.
    #[must_use]
    pub fn compute_capability(&self) -> (u32, u32) {
        match self.arch {
            Generation::Ampere => (8, 0),
            Generation::Hopper => (9, 0),
            Generation::Blackwell if self.product_name.contains("RTX") => (12, 0),
            Generation::Blackwell => (10, 0),
        }
    }

    /// CUDA cores: 64 a multiprocessor in compute capability 8.0 and 128 after (NVIDIA's CUDA programming guide).
    #[must_use]
    pub fn cores(&self) -> u32 {
        self.multiprocessors() * if self.arch == Generation::Ampere { 64 } else { 128 }
    }

    /// The profile of this name.
    #[must_use]
    pub fn profile(&self, name: &str) -> Option<&Profile> {
        self.profiles.iter().find(|profile| profile.name == name)
    }

    /// The id of a GPU instance. Ids seen on real devices: one pool for each size, then by start.
    #[must_use]
    pub fn instance_id(&self, slot: Slot) -> u32 {
        let slots = self.profiles.iter().flat_map(|profile| &profile.placements).map(|slot| slot.start + slot.size);
        let slots = slots.max().unwrap_or(1);
        let pool = match slots / slot.size.max(1) {
            0 | 1 => 0,
            2 | 3 => 1,
            4..=7 => 3,
            _ => 7,
        };
        pool + slot.start / slot.size.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_every_model() {
        assert_eq!(models().len(), 11);
        let h200 = &models()["H200-141"];
        assert_eq!((h200.multiprocessors(), h200.cores(), h200.compute_capability()), (132, 16_896, (9, 0)));
        assert_eq!(models()["A30-24"].multiprocessors(), 56);
    }

    #[test]
    fn instance_ids_are_those_of_the_captures() {
        // The golden traces of the table: gpu, start, size, id.
        for (model, start, size, id) in [
            ("A100-40", 6, 1, 13),
            ("A100-40", 4, 2, 5),
            ("A100-40", 0, 2, 3),
            ("A100-40", 4, 4, 2),
            ("A100-40", 0, 4, 1),
            ("RTXPRO6000-96", 0, 6, 1),
            ("RTXPRO6000-96", 6, 3, 5),
            ("RTXPRO6000-96", 9, 3, 6),
            ("A30-24", 0, 1, 3),
            ("A30-24", 1, 1, 4),
            ("H200-141", 0, 8, 0),
        ] {
            assert_eq!(models()[model].instance_id(Slot { start, size }), id, "{model} {start}+{size}");
        }
    }
}
