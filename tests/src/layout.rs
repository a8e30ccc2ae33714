//! How a simulated GPU is divided, read from the machine itself: not by the code that changes or measures it.

use std::collections::BTreeSet;
use std::fmt;

use sim_machine::shared::Shared;

/// A GPU instance.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Placed {
    /// Its profile.
    pub profile: String,
    /// First memory slot.
    pub start: u32,
    /// Memory slots.
    pub size: u32,
    /// Slices of each of its compute instances.
    pub compute: Vec<u32>,
}

/// What is on a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// The MIG mode now and after a reset; none: the GPU has no MIG.
    pub mode: Option<(bool, bool)>,
    /// Its GPU instances.
    pub instances: BTreeSet<Placed>,
    /// Identities of its compute instances.
    pub uuids: BTreeSet<String>,
}

impl Seen {
    /// Reads the first GPU of a machine.
    ///
    /// # Panics
    /// If the machine can't be read.
    #[must_use]
    pub fn on(machine: &Shared) -> Self {
        let look = machine.read(|_, state| {
            let gpu = &state.gpus[0];
            let instance = |instance: &sim_machine::state::Instance| Placed {
                profile: instance.profile.clone(),
                start: instance.start,
                size: instance.size,
                compute: instance.compute.iter().map(|compute| compute.slices).collect(),
            };
            Self {
                mode: gpu.mig,
                instances: gpu.instances.iter().map(instance).collect(),
                uuids: gpu.mig_devices().map(|(_, compute)| compute.uuid.clone()).collect(),
            }
        });
        look.expect("the machine can be read")
    }

    /// Whether mode, profiles and places are the same. UUIDs can't be kept by anyone.
    #[must_use]
    pub fn is_as(&self, other: &Self) -> bool {
        (self.mode, &self.instances) == (other.mode, &other.instances)
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = match self.mode {
            None => "no MIG",
            Some((false, false)) => "off",
            Some((true, true)) => "on",
            Some((true, false)) => "on, off after a reset",
            Some((false, true)) => "off, on after a reset",
        };
        write!(f, "MIG {mode}")?;
        for Placed { profile, start, size, compute } in &self.instances {
            write!(f, ", {profile}@{start}:{size} of {compute:?}")?;
        }
        Ok(())
    }
}
