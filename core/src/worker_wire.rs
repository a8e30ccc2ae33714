//! The protocol between the daemon and a worker, version 1: frames, messages and their limits. Documented for authors of
//! other workers in `docs/worker-protocol.md`.
//!
//! Bytes in, frames out: reading and writing sockets is the callers' part.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::ids::DeviceUuid;
use crate::sample::{SAMPLE_BYTES, Sample, put_sample, read_samples};
use crate::trial::Timing;
use crate::units::{Bytes, MonotonicNanos};
use crate::workload::Workload;

/// The version that both sides must name.
pub const PROTOCOL: u32 = 1;
/// The longest payload of a frame.
pub const LONGEST_FRAME: usize = 4 << 20;
/// Samples in one frame at most.
pub const SAMPLES_PER_FRAME: usize = 65_536;

const KIND_MESSAGE: u8 = 1;
const KIND_SAMPLES: u8 = 2;
const HEADER: usize = 5;

/// What the launcher needs before it becomes the worker: the first frame on a connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Launch {
    /// The protocol's version.
    pub protocol: u32,
    /// The program to become.
    pub program: String,
    /// Environment variables to set; every variable that CUDA or MPS reads and is not named here is removed.
    pub environment: Vec<(String, String)>,
    /// Host processors the worker may run on; empty: no restriction.
    pub processors: Vec<u32>,
    /// The daemon's pid: a launcher whose parent is not this process ends at once. None when the daemon is not its parent.
    pub parent: Option<u32>,
}

/// What a worker must find when it looks at the device it was given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", rename_all_fields = "kebab-case", deny_unknown_fields)]
pub enum Allocation {
    /// The host's processors.
    Cpu,
    /// One CUDA device.
    Cuda {
        /// `cuDeviceGetUuid_v2` must answer this.
        uuid: DeviceUuid,
        /// The device's multiprocessor count, where NVML told it.
        multiprocessors: Option<u32>,
        /// The most memory the device may show.
        memory: Bytes,
        /// Whether the process must be an MPS client.
        mps: bool,
        /// The cap on multiprocessors in percent, if one was set.
        active_thread_percentage: Option<u32>,
        /// The device library is a simulation: tensors stay on the host's processors, everything else is as on hardware.
        simulated: bool,
    },
}

/// One member's whole configuration: what its digest is taken of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct MemberConfig {
    /// The protocol's version.
    pub protocol: u32,
    /// This member's number in the cohort, from 0.
    pub member: u32,
    /// Members in the cohort.
    pub members: u32,
    /// The cohort's identity, fresh for each trial.
    pub cohort: String,
    /// What to run.
    pub workload: Workload,
    /// Where.
    pub allocation: Allocation,
    /// When.
    pub timing: Timing,
    /// Seed of parameters and inputs.
    pub seed: u64,
    /// Host threads for arithmetic on the CPU.
    pub threads: u32,
    /// Samples to allocate memory for before the start.
    pub sample_capacity: u32,
}

/// SHA-256 of a configuration, in hexadecimal.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ConfigDigest(pub String);

impl MemberConfig {
    /// The digest of this configuration's JSON, whose order of fields is the declaration's.
    #[must_use]
    pub fn digest(&self) -> ConfigDigest {
        let json = serde_json::to_vec(self).expect("a configuration has no map keys that JSON lacks");
        ConfigDigest(Sha256::digest(&json).iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

/// Daemon to worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub enum ToWorker {
    /// For the launcher only.
    Launch(Launch),
    /// Prove the allocation and build the workload; answered by `built`.
    Prepare(Box<MemberConfig>),
    /// Warm up; answered by `ready`.
    Warm,
    /// Run batches from this instant on, until `stop`.
    Start {
        /// When the first batch begins, CLOCK_MONOTONIC.
        at: MonotonicNanos,
        /// When batches begin to count: `progress` reports those that start from here on.
        count_from: MonotonicNanos,
    },
    /// Finish the running batch, hand over the samples, then `done`.
    Stop,
}

/// What a worker found when it looked at its device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Proof {
    /// CUDA devices that the process sees; 0 on the CPU.
    pub devices: u32,
    /// `cuDeviceGetUuid_v2`, in NVML's notation.
    pub uuid: Option<DeviceUuid>,
    /// The device's name.
    pub name: Option<String>,
    /// Its multiprocessors, as this process may use them.
    pub multiprocessors: Option<u32>,
    /// Its memory.
    pub memory: Option<Bytes>,
    /// Device attribute 133: the process is an MPS client.
    pub mps: Option<bool>,
    /// CUDA driver version, 1000 × major + 10 × minor.
    pub driver_version: Option<u32>,
    /// Processors the process may run on.
    pub processors: Vec<u32>,
}

/// What building a workload took and made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Built {
    /// The device, as this process sees it.
    pub proof: Proof,
    /// Trainable parameters of the reference architecture.
    pub parameters: u64,
    /// Version of libtorch, or of whatever else computes.
    pub engine: String,
    /// Nanoseconds from the process's start to here.
    pub elapsed_ns: u64,
}

/// How the warm-up went.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Ready {
    /// Digest of the configuration the worker acts on.
    pub digest: ConfigDigest,
    /// Batches of the warm-up.
    pub batches: u32,
    /// Nanoseconds of the first batch.
    pub first_ns: u64,
    /// Median nanoseconds of the later half.
    pub typical_ns: u64,
}

/// What a worker did, after its samples.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Done {
    /// Samples that were handed over.
    pub samples: u64,
    /// Batches that ran after the sample memory was full: they are missing.
    pub lost: u64,
    /// When the worker left its wait for the start instant, CLOCK_MONOTONIC.
    pub started: MonotonicNanos,
    /// Most memory the allocator held for tensors since warm-up; absent on the CPU.
    pub allocated_peak: Option<Bytes>,
    /// Most memory the allocator reserved from the device; absent on the CPU.
    pub reserved_peak: Option<Bytes>,
    /// Peak resident memory of the process on the host.
    pub resident_peak: Option<Bytes>,
    /// Whether the last output or loss was finite; absent where nothing was computed.
    pub finite: Option<bool>,
}

/// Why a worker can't go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FailureKind {
    /// The workload needs more memory than there is: a result, not a fault.
    DoesNotFit,
    /// The device is not the one that was assigned.
    Allocation,
    /// The configuration can't be run here.
    Unsupported,
    /// A library or the device failed.
    Engine,
    /// The other side broke the protocol.
    Protocol,
}

/// Worker to daemon.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub enum FromWorker {
    /// First of all.
    Hello {
        /// The protocol's version.
        protocol: u32,
        /// The worker's process.
        pid: u32,
        /// The worker program's own version.
        version: String,
    },
    /// Allocation proved, workload built.
    Built(Built),
    /// Warm; waiting for the start.
    Ready(Ready),
    /// Sent twice a second while batches run.
    Progress {
        /// Batches completed since the start.
        completed: u64,
        /// Of these, batches that began at or after `count-from`.
        counted: u64,
    },
    /// All samples are handed over.
    Done(Done),
    /// The worker can't go on and ends.
    Failed {
        /// What sort of failure.
        kind: FailureKind,
        /// What failed, for people.
        message: String,
    },
}

/// One frame's content.
#[derive(Debug, Clone, PartialEq)]
pub enum Frame<M> {
    /// A message.
    Message(M),
    /// Samples, in order.
    Samples(Vec<Sample>),
}

/// Why bytes are not a frame.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The length is over the limit.
    #[error("a frame of {0} bytes is over the limit of {LONGEST_FRAME}")]
    TooLong(usize),
    /// The kind is none we know.
    #[error("{0} is not a kind of frame")]
    Kind(u8),
    /// The message can't be read.
    #[error("a message is malformed")]
    Message(#[source] serde_json::Error),
    /// The samples can't be read.
    #[error("a block of samples is malformed")]
    Samples(#[source] crate::sample::SamplesError),
}

/// A message as a frame's bytes: payload length (u32, little-endian), kind (1), JSON.
///
/// # Errors
/// If the message is longer than a frame may be.
pub fn encode<M: Serialize>(message: &M) -> Result<Vec<u8>, WireError> {
    let json = serde_json::to_vec(message).map_err(WireError::Message)?;
    frame(KIND_MESSAGE, &json)
}

/// Samples as a frame's bytes: payload length, kind (2), at most [`SAMPLES_PER_FRAME`] in binary form.
///
/// # Errors
/// If there are more than a frame may hold.
pub fn encode_samples(samples: &[Sample]) -> Result<Vec<u8>, WireError> {
    let mut bytes = Vec::with_capacity(samples.len() * SAMPLE_BYTES);
    for sample in samples {
        put_sample(&mut bytes, *sample);
    }
    frame(KIND_SAMPLES, &bytes)
}

fn frame(kind: u8, payload: &[u8]) -> Result<Vec<u8>, WireError> {
    let length = u32::try_from(payload.len()).ok().filter(|_| payload.len() <= LONGEST_FRAME);
    let length = length.ok_or(WireError::TooLong(payload.len()))?;
    let mut bytes = Vec::with_capacity(HEADER + payload.len());
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.push(kind);
    bytes.extend_from_slice(payload);
    Ok(bytes)
}

/// Bytes still missing before the frame at the start of `bytes` is whole; 0 when it is.
///
/// The launcher reads with this, so that it never takes a byte that is the worker's.
///
/// # Errors
/// If the frame is longer than allowed.
pub fn missing(bytes: &[u8]) -> Result<usize, WireError> {
    let Some(length) = bytes.first_chunk::<4>() else { return Ok(HEADER - bytes.len()) };
    let length = u32::from_le_bytes(*length) as usize;
    if length > LONGEST_FRAME {
        return Err(WireError::TooLong(length));
    }
    Ok((HEADER + length).saturating_sub(bytes.len()))
}

/// Collects bytes and gives out frames.
#[derive(Debug, Default)]
pub struct Decoder {
    pending: Vec<u8>,
}

impl Decoder {
    /// Takes bytes as they came.
    pub fn push(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
    }

    /// The next whole frame, if there is one.
    ///
    /// # Errors
    /// If what came is not the protocol; the connection is of no further use then.
    pub fn next_frame<M: for<'de> Deserialize<'de>>(&mut self) -> Result<Option<Frame<M>>, WireError> {
        if missing(&self.pending)? > 0 || self.pending.len() < HEADER {
            return Ok(None);
        }
        let length = u32::from_le_bytes(*self.pending.first_chunk().expect("a whole header is there")) as usize;
        let payload = &self.pending[HEADER..HEADER + length];
        let frame = match self.pending[4] {
            KIND_MESSAGE => serde_json::from_slice(payload).map(Frame::Message).map_err(WireError::Message),
            KIND_SAMPLES => read_samples(payload).map(Frame::Samples).map_err(WireError::Samples),
            kind => Err(WireError::Kind(kind)),
        }?;
        self.pending.drain(..HEADER + length);
        Ok(Some(frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_survive_being_cut_anywhere() {
        let hello = FromWorker::Hello { protocol: PROTOCOL, pid: 7, version: "0.1.0".into() };
        let sample = Sample { start: MonotonicNanos(3), end: MonotonicNanos(9), items: 32 };
        let mut bytes = encode(&hello).unwrap();
        bytes.extend(encode_samples(&[sample; 3]).unwrap());
        for cut in 0..bytes.len() {
            let mut decoder = Decoder::default();
            let mut frames = Vec::new();
            for part in [&bytes[..cut], &bytes[cut..]] {
                decoder.push(part);
                while let Some(frame) = decoder.next_frame::<FromWorker>().unwrap() {
                    frames.push(frame);
                }
            }
            assert_eq!(frames, [Frame::Message(hello.clone()), Frame::Samples(vec![sample; 3])], "cut at {cut}");
        }
    }

    #[test]
    fn bytes_that_are_no_frame_are_refused() {
        let cases: [&[u8]; 4] = [&[255; 5], &[0, 0, 0, 0, 9], &[2, 0, 0, 0, 1, b'{', b'}'], &[1, 0, 0, 0, 2, 0]];
        for bytes in cases {
            let mut decoder = Decoder::default();
            decoder.push(bytes);
            assert!(decoder.next_frame::<FromWorker>().is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn the_launcher_reads_exactly_one_frame() {
        let bytes = encode(&ToWorker::Warm).unwrap();
        let mut held = 0;
        while missing(&bytes[..held]).unwrap() > 0 {
            held += missing(&bytes[..held]).unwrap();
        }
        assert_eq!(held, bytes.len());
    }
}
