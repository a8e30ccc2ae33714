//! Whether a worker has the device it was assigned: its own findings held against its allocation.

use crate::ids::DeviceUuid;
use crate::units::Bytes;
use crate::worker_wire::{Allocation, Proof};

/// How a worker's findings contradict its allocation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProofError {
    /// A CPU worker sees a GPU, or a GPU worker sees none or several.
    #[error("the process sees {found} CUDA devices where {wanted} was assigned")]
    Devices {
        /// What it should see.
        wanted: u32,
        /// What it sees.
        found: u32,
    },
    /// Another device.
    #[error("the process runs on {} where {wanted} was assigned", .found.as_ref().map_or("an unknown device", DeviceUuid::as_str))]
    Uuid {
        /// What was assigned.
        wanted: DeviceUuid,
        /// What it has.
        found: Option<DeviceUuid>,
    },
    /// The number of multiprocessors is not the device's, or not the capped part of it.
    #[error("the process may use {} multiprocessors where {least} to {most} were expected", .found.map_or("an unknown number of".to_owned(), |n| n.to_string()))]
    Multiprocessors {
        /// The fewest that fit.
        least: u32,
        /// The most that fit.
        most: u32,
        /// What it has.
        found: Option<u32>,
    },
    /// The memory is not the device's.
    #[error("the device shows {} of memory where {wanted} was assigned", .found.map_or("an unknown amount".to_owned(), |n| n.to_string()))]
    Memory {
        /// What NVML told of the device.
        wanted: Bytes,
        /// What CUDA tells.
        found: Option<Bytes>,
    },
    /// An MPS cohort's member that is no MPS client (CUDA falls back silently), or the reverse.
    #[error("the process is {}an MPS client", if *.wanted { "not " } else { "" })]
    Mps {
        /// Whether it should be one.
        wanted: bool,
    },
}

/// CUDA shows somewhat less memory than NVML, which counts what the driver reserves; no less than this share of it.
const LEAST_MEMORY_PERCENT: u64 = 85;
/// The driver rounds an active thread percentage to whole groups of multiprocessors, at most this many.
const PERCENTAGE_GRANULE: u32 = 2;

/// Holds a worker's findings against its allocation.
///
/// # Errors
/// Names the first contradiction. An answer that is missing is a contradiction.
pub fn check(allocation: &Allocation, proof: &Proof) -> Result<(), ProofError> {
    let Allocation::Cuda { uuid, multiprocessors, memory, mps, active_thread_percentage, .. } = allocation else {
        return match proof.devices {
            0 => Ok(()),
            found => Err(ProofError::Devices { wanted: 0, found }),
        };
    };
    if proof.devices != 1 {
        return Err(ProofError::Devices { wanted: 1, found: proof.devices });
    }
    if proof.uuid.as_ref() != Some(uuid) {
        return Err(ProofError::Uuid { wanted: uuid.clone(), found: proof.uuid.clone() });
    }
    if proof.mps != Some(*mps) {
        return Err(ProofError::Mps { wanted: *mps });
    }
    if let Some(whole) = *multiprocessors {
        let (least, most) = match active_thread_percentage {
            Some(percent @ 1..100) => {
                let share = whole * percent / 100;
                (1.max(share.saturating_sub(PERCENTAGE_GRANULE)), (share + PERCENTAGE_GRANULE).min(whole))
            }
            _ => (whole, whole),
        };
        if !proof.multiprocessors.is_some_and(|found| (least..=most).contains(&found)) {
            return Err(ProofError::Multiprocessors { least, most, found: proof.multiprocessors });
        }
    }
    let fits = |found: Bytes| found <= *memory && found.0 >= memory.0 / 100 * LEAST_MEMORY_PERCENT;
    if !proof.memory.is_some_and(fits) {
        return Err(ProofError::Memory { wanted: *memory, found: proof.memory });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allocation(percentage: Option<u32>) -> Allocation {
        Allocation::Cuda {
            uuid: "GPU-5ebe9c2f-a33f-4a4c-bb17-7d1f4c1c4d3e".parse().unwrap(),
            multiprocessors: Some(132),
            memory: Bytes(150_754_820_096),
            mps: percentage.is_some(),
            active_thread_percentage: percentage,
            simulated: false,
        }
    }

    fn proof(multiprocessors: u32, mps: bool) -> Proof {
        Proof {
            devices: 1,
            uuid: Some("GPU-5ebe9c2f-a33f-4a4c-bb17-7d1f4c1c4d3e".parse().unwrap()),
            name: Some("NVIDIA H200".into()),
            multiprocessors: Some(multiprocessors),
            memory: Some(Bytes(150_109_880_320)),
            mps: Some(mps),
            driver_version: Some(13_000),
            processors: vec![0],
        }
    }

    /// 18 of 132 at 14 % is what an H200 showed.
    #[test]
    fn what_hardware_showed_is_accepted() {
        assert_eq!(check(&allocation(None), &proof(132, false)), Ok(()));
        assert_eq!(check(&allocation(Some(14)), &proof(18, true)), Ok(()));
        assert_eq!(check(&allocation(Some(100)), &proof(132, true)), Ok(()));
    }

    #[test]
    fn each_lie_is_found() {
        let honest = proof(132, false);
        let cases: [(Proof, &str); 6] = [
            (Proof { devices: 2, ..honest.clone() }, "2 CUDA devices"),
            (Proof { uuid: None, ..honest.clone() }, "unknown device"),
            (Proof { uuid: "GPU-00000000-a33f-4a4c-bb17-7d1f4c1c4d3e".parse().ok(), ..honest.clone() }, "GPU-00000000"),
            (Proof { mps: Some(true), ..honest.clone() }, "an MPS client"),
            (Proof { multiprocessors: Some(131), ..honest.clone() }, "131 multiprocessors"),
            (Proof { memory: Some(Bytes(17_000_000_000)), ..honest }, "15.83 GiB"),
        ];
        for (lie, words) in cases {
            let message = check(&allocation(None), &lie).unwrap_err().to_string();
            assert!(message.contains(words), "{message}");
        }
        let uncapped = check(&allocation(Some(14)), &proof(132, true)).unwrap_err();
        assert!(matches!(uncapped, ProofError::Multiprocessors { .. }));
        let silent = check(&allocation(Some(14)), &proof(132, false)).unwrap_err();
        assert_eq!(silent.to_string(), "the process is not an MPS client");
    }

    #[test]
    fn a_cpu_worker_sees_no_gpu() {
        let mut found = proof(132, false);
        assert!(check(&Allocation::Cpu, &found).is_err());
        found.devices = 0;
        assert_eq!(check(&Allocation::Cpu, &found), Ok(()));
    }
}
