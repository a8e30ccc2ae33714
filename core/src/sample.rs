//! One timed batch, and the column form in which batches leave a worker and are stored.

use serde::{Deserialize, Serialize};

use crate::units::MonotonicNanos;

/// One batch: from before its first operation to after its device synchronisation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// When the batch began, CLOCK_MONOTONIC.
    pub start: MonotonicNanos,
    /// When its results were complete on the device, CLOCK_MONOTONIC.
    pub end: MonotonicNanos,
    /// Items (images, sequences, latents) it processed.
    pub items: u32,
}

impl Sample {
    /// Nanoseconds from start to end.
    #[must_use]
    pub fn latency(self) -> u64 {
        self.end.0.saturating_sub(self.start.0)
    }
}

/// Batches of one member in the order in which they ran: each starts no earlier than the one before it ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Samples(Vec<Sample>);

/// Why bytes or a sequence are not samples.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SamplesError {
    /// The length is no multiple of a sample's.
    #[error("{0} bytes are not whole samples of {SAMPLE_BYTES} bytes")]
    Length(usize),
    /// A batch ends before it starts.
    #[error("sample {0} ends before it starts")]
    Backwards(usize),
    /// A batch starts before the one before it ended.
    #[error("sample {0} starts before the one before it ended")]
    Overlap(usize),
}

/// Bytes of one sample in its binary form: start and end (u64), items (u32), little-endian.
pub const SAMPLE_BYTES: usize = 20;

impl Samples {
    /// Takes samples in the order in which they ran.
    ///
    /// # Errors
    /// If one runs backwards or overlaps the one before.
    pub fn new(samples: Vec<Sample>) -> Result<Self, SamplesError> {
        for (index, sample) in samples.iter().enumerate() {
            if sample.end < sample.start {
                return Err(SamplesError::Backwards(index));
            }
            if index > 0 && sample.start < samples[index - 1].end {
                return Err(SamplesError::Overlap(index));
            }
        }
        Ok(Self(samples))
    }

    /// All of them.
    #[must_use]
    pub fn as_slice(&self) -> &[Sample] {
        &self.0
    }

    /// The binary form: [`SAMPLE_BYTES`] for each.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.0.len() * SAMPLE_BYTES);
        for sample in &self.0 {
            put_sample(&mut bytes, *sample);
        }
        bytes
    }

    /// Reads the binary form.
    ///
    /// # Errors
    /// If the bytes are not whole, ordered samples.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, SamplesError> {
        Self::new(read_samples(bytes)?)
    }
}

/// Appends one sample's binary form.
pub fn put_sample(bytes: &mut Vec<u8>, sample: Sample) {
    bytes.extend_from_slice(&sample.start.0.to_le_bytes());
    bytes.extend_from_slice(&sample.end.0.to_le_bytes());
    bytes.extend_from_slice(&sample.items.to_le_bytes());
}

/// Reads whole samples without asking that they be ordered.
///
/// # Errors
/// If the bytes are not whole samples.
pub fn read_samples(bytes: &[u8]) -> Result<Vec<Sample>, SamplesError> {
    let (chunks, rest) = bytes.as_chunks::<SAMPLE_BYTES>();
    if !rest.is_empty() {
        return Err(SamplesError::Length(bytes.len()));
    }
    let u64_at = |chunk: &[u8; SAMPLE_BYTES], at: usize| {
        u64::from_le_bytes(chunk[at..at + 8].try_into().expect("eight bytes of a fixed chunk"))
    };
    Ok(chunks
        .iter()
        .map(|chunk| Sample {
            start: MonotonicNanos(u64_at(chunk, 0)),
            end: MonotonicNanos(u64_at(chunk, 8)),
            items: u32::from_le_bytes(chunk[16..].try_into().expect("four bytes of a fixed chunk")),
        })
        .collect())
}

/// A span of CLOCK_MONOTONIC, from its start up to and including its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interval {
    /// Its first instant.
    pub from: MonotonicNanos,
    /// Its last instant.
    pub to: MonotonicNanos,
}

impl Interval {
    /// Nanoseconds it lasts; zero if it is empty.
    #[must_use]
    pub fn length(self) -> u64 {
        self.to.0.saturating_sub(self.from.0)
    }

    /// Whether the whole batch lies inside.
    #[must_use]
    pub fn contains(self, sample: &Sample) -> bool {
        sample.start >= self.from && sample.end <= self.to
    }

    /// Whether the batch has a part inside and a part outside.
    #[must_use]
    pub fn cuts(self, sample: &Sample) -> bool {
        !self.contains(sample) && sample.start < self.to && sample.end > self.from
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(start: u64, end: u64) -> Sample {
        Sample { start: MonotonicNanos(start), end: MonotonicNanos(end), items: 32 }
    }

    #[test]
    fn bytes_come_back_as_they_went() {
        let samples = Samples::new(vec![sample(1, 5), sample(5, 9), sample(12, 12)]).unwrap();
        assert_eq!(Samples::from_bytes(&samples.to_bytes()).unwrap(), samples);
        assert_eq!(Samples::from_bytes(&[0; 21]), Err(SamplesError::Length(21)));
    }

    #[test]
    fn disorder_is_refused() {
        assert_eq!(Samples::new(vec![sample(5, 4)]), Err(SamplesError::Backwards(0)));
        assert_eq!(Samples::new(vec![sample(1, 5), sample(4, 9)]), Err(SamplesError::Overlap(1)));
    }

    #[test]
    fn an_edge_cuts_a_batch_that_lies_on_it() {
        let window = Interval { from: MonotonicNanos(10), to: MonotonicNanos(20) };
        for (start, end, inside, cut) in [
            (10, 20, true, false),
            (9, 11, false, true),
            (19, 21, false, true),
            (1, 9, false, false),
            (1, 30, false, true),
        ] {
            let sample = sample(start, end);
            assert_eq!((window.contains(&sample), window.cuts(&sample)), (inside, cut), "{start}-{end}");
        }
    }
}
