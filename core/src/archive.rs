//! A job in one file: its record, its trials' records and every batch, so that a report can be computed on any machine and
//! by any later version.
//!
//! The file begins with [`MAGIC`]. What follows are blocks: a length in bytes (u64, little-endian), then so many bytes.
//! The first block is the job's record as JSON, the second the record of the instances that were made for it, or null. Each
//! trial follows as its record as JSON and one block for each of its
//! members, in order: the batches in the binary form of [`crate::sample`]. The file ends after the last trial.

pub mod co_load;

use crate::record::{JobRecord, LayoutRecord, RECORD_FORMAT, TrialRecord};
use crate::report::{Report, Reporter};
use crate::sample::{Samples, SamplesError};

/// What every archive begins with; the digit is the version of the container.
pub const MAGIC: &[u8] = b"migperf archive 1\n";

/// Why bytes are no archive.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// It begins otherwise.
    #[error("this is no migperf archive, or one of a later version")]
    Magic,
    /// It ends within a block.
    #[error("the archive is cut short")]
    Short,
    /// A record is not what it should be.
    #[error("the archive's record of {0} can't be read")]
    Record(&'static str, #[source] serde_json::Error),
    /// A later version wrote the records.
    #[error(
        "the archive's records have format {found}, and this version reads up to {RECORD_FORMAT}; use a later migperf"
    )]
    Newer {
        /// Their format.
        found: u32,
    },
    /// Batches are not what they should be.
    #[error("the archive's batches can't be read")]
    Samples(#[source] SamplesError),
}

fn put(bytes: &mut Vec<u8>, block: &[u8]) {
    bytes.extend_from_slice(&(block.len() as u64).to_le_bytes());
    bytes.extend_from_slice(block);
}

/// The beginning of a job's archive.
///
/// # Errors
/// If the record can't be written as JSON.
pub fn begin(job: &JobRecord, layout: Option<&LayoutRecord>) -> Result<Vec<u8>, ArchiveError> {
    let mut bytes = MAGIC.to_vec();
    put(&mut bytes, &serde_json::to_vec(job).map_err(|error| ArchiveError::Record("the job", error))?);
    put(&mut bytes, &serde_json::to_vec(&layout).map_err(|error| ArchiveError::Record("the layout", error))?);
    Ok(bytes)
}

/// Appends the next trial.
///
/// # Errors
/// If the record can't be written as JSON.
pub fn append(bytes: &mut Vec<u8>, trial: &TrialRecord) -> Result<(), ArchiveError> {
    put(bytes, &serde_json::to_vec(trial).map_err(|error| ArchiveError::Record("a trial", error))?);
    for member in &trial.members {
        put(bytes, &member.samples.to_bytes());
    }
    Ok(())
}

/// An archive that is read trial by trial.
#[derive(Debug)]
pub struct Archive<'a> {
    job: JobRecord,
    layout: Option<LayoutRecord>,
    rest: &'a [u8],
}

impl<'a> Archive<'a> {
    /// Whether bytes begin as an archive does.
    #[must_use]
    pub fn is_one(bytes: &[u8]) -> bool {
        bytes.starts_with(MAGIC)
    }

    /// Reads the job's record.
    ///
    /// # Errors
    /// If this is no archive, is cut short, or is newer than this version.
    pub fn open(bytes: &'a [u8]) -> Result<Self, ArchiveError> {
        let rest = bytes.strip_prefix(MAGIC).ok_or(ArchiveError::Magic)?;
        let (block, rest) = take(rest)?;
        let job: JobRecord = record(block, "the job")?;
        let (block, rest) = take(rest)?;
        let layout = serde_json::from_slice(block).map_err(|error| ArchiveError::Record("the layout", error))?;
        Ok(Self { job, layout, rest })
    }

    /// The job's record.
    #[must_use]
    pub fn job(&self) -> &JobRecord {
        &self.job
    }

    /// The next trial with its batches; none after the last.
    ///
    /// # Errors
    /// If the archive is cut short, or what it holds can't be read.
    pub fn next_trial(&mut self) -> Result<Option<TrialRecord>, ArchiveError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let (block, mut rest) = take(self.rest)?;
        let mut trial: TrialRecord = record(block, "a trial")?;
        for member in &mut trial.members {
            let (block, after) = take(rest)?;
            member.samples = Samples::from_bytes(block).map_err(ArchiveError::Samples)?;
            rest = after;
        }
        self.rest = rest;
        Ok(Some(trial))
    }

    /// The report of everything in it.
    ///
    /// # Errors
    /// As [`Self::next_trial`].
    pub fn report(mut self) -> Result<Report, ArchiveError> {
        let mut reporter = Reporter::new(self.job.clone(), self.layout.clone());
        while let Some(trial) = self.next_trial()? {
            reporter.add(&trial);
        }
        Ok(reporter.finish())
    }
}

fn take(bytes: &[u8]) -> Result<(&[u8], &[u8]), ArchiveError> {
    let (length, rest) = bytes.split_first_chunk::<8>().ok_or(ArchiveError::Short)?;
    let length = usize::try_from(u64::from_le_bytes(*length)).map_err(|_| ArchiveError::Short)?;
    rest.split_at_checked(length).ok_or(ArchiveError::Short)
}

/// A record of a later format is told so, whatever else of it can't be read.
fn record<T: serde::de::DeserializeOwned>(block: &[u8], what: &'static str) -> Result<T, ArchiveError> {
    #[derive(serde::Deserialize)]
    struct Form {
        format: u32,
    }
    let form: Form = serde_json::from_slice(block).map_err(|error| ArchiveError::Record(what, error))?;
    if form.format > RECORD_FORMAT {
        return Err(ArchiveError::Newer { found: form.format });
    }
    serde_json::from_slice(block).map_err(|error| ArchiveError::Record(what, error))
}
