//! The store: jobs, trials and samples in one SQLite file. Raw records go in before anything is computed from them.

mod schema;

use std::path::{Path, PathBuf};

use migperf_core::archive::{self, ArchiveError};
use migperf_core::ids::JobId;
use migperf_core::job::JobState;
use migperf_core::record::{JobRecord, JobResults, LayoutRecord, TrialRecord};
use migperf_core::report::Reporter;
use migperf_core::sample::{Samples, SamplesError};
use migperf_core::units::RealtimeNanos;
use rusqlite::{Connection, OpenFlags, OptionalExtension as _, params};

/// Why the store could not be opened, read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file can't be opened or made.
    #[error("can't open the store {0}")]
    Open(PathBuf, #[source] rusqlite::Error),
    /// A later version of migperf wrote it.
    #[error("the store {path} has format {found}, and this version reads up to {known}; use the migperf that wrote it")]
    Newer {
        /// Where.
        path: PathBuf,
        /// Its format.
        found: i64,
        /// The latest that this version knows.
        known: i64,
    },
    /// The store could not be brought to the present format; it is as it was.
    #[error("can't bring the store to format {0}")]
    Migrate(i64, #[source] rusqlite::Error),
    /// A statement failed.
    #[error("the store failed at: {act}")]
    Statement {
        /// What was being done.
        act: &'static str,
        /// Why.
        #[source]
        source: rusqlite::Error,
    },
    /// What was stored can't be read.
    #[error("a stored record can't be read: {0}")]
    Record(&'static str, #[source] serde_json::Error),
    /// Stored samples can't be read.
    #[error("stored samples can't be read")]
    Samples(#[source] SamplesError),
    /// An archive can't be made.
    #[error("the job can't be written as an archive")]
    Archive(#[source] ArchiveError),
    /// No such job.
    #[error("there is no job {0}")]
    NoSuchJob(JobId),
}

fn at(act: &'static str) -> impl Fn(rusqlite::Error) -> StoreError {
    move |source| StoreError::Statement { act, source }
}

/// A job as lists show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobRow {
    /// Its number.
    pub id: JobId,
    /// Its identity between hosts.
    pub uid: String,
    /// The suite's name.
    pub name: String,
    /// Who submitted it.
    pub owner: u32,
    /// Where it stands.
    pub state: JobState,
    /// Why it waits or failed.
    pub reason: Option<String>,
    /// When it was submitted.
    pub submitted: RealtimeNanos,
    /// When it ended.
    pub ended: Option<RealtimeNanos>,
    /// Trials planned.
    pub trials_total: u32,
    /// Trials that ended, whatever their outcome.
    pub trials_done: u32,
    /// Of these, those without a result.
    pub trials_failed: u32,
}

/// Which jobs a list shows.
#[derive(Debug, Clone, Default)]
pub struct JobFilter {
    /// Only in this state.
    pub state: Option<JobState>,
    /// Only of this user.
    pub owner: Option<u32>,
    /// Only with a smaller number.
    pub before: Option<u32>,
}

/// An open store.
#[derive(Debug)]
pub struct Store {
    connection: Connection,
}

impl Store {
    /// Opens the store of a state directory, making or migrating it.
    ///
    /// # Errors
    /// If it can't be opened or is newer than this program.
    pub fn open(directory: &Path) -> Result<Self, StoreError> {
        let path = directory.join("migperf.sqlite3");
        let mut connection = Connection::open(&path).map_err(|source| StoreError::Open(path.clone(), source))?;
        connection
            .execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON;")
            .map_err(|source| StoreError::Open(path.clone(), source))?;
        schema::migrate(&mut connection, &path)?;
        Ok(Self { connection })
    }

    /// Opens a store that exists, only to read: beside the one that writes, which need not wait for it.
    ///
    /// # Errors
    /// If it can't be opened.
    pub fn open_to_read(directory: &Path) -> Result<Self, StoreError> {
        let path = directory.join("migperf.sqlite3");
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&path, flags).map_err(|source| StoreError::Open(path, source))?;
        Ok(Self { connection })
    }

    /// Stores a new job, queued.
    ///
    /// # Errors
    /// If it can't be written.
    pub fn add_job(&mut self, record: &JobRecord) -> Result<JobId, StoreError> {
        let json = serde_json::to_string(record).map_err(|error| StoreError::Record("job", error))?;
        let total = u32::try_from(record.plan.trials.len()).unwrap_or(u32::MAX);
        self.connection
            .execute(
                "INSERT INTO job (uid, name, owner, state, submitted_ns, trials_total, record) VALUES (?,?,?,?,?,?,?)",
                params![
                    record.uid.0,
                    record.plan.name,
                    record.owner.uid,
                    JobState::Queued.name(),
                    signed(record.submitted.0),
                    total,
                    json
                ],
            )
            .map_err(at("adding a job"))?;
        Ok(JobId(u32::try_from(self.connection.last_insert_rowid()).unwrap_or(u32::MAX)))
    }

    /// Moves a job to a state.
    ///
    /// # Errors
    /// If it can't be written.
    pub fn set_state(
        &mut self,
        job: JobId,
        state: JobState,
        reason: Option<&str>,
        at_time: RealtimeNanos,
    ) -> Result<(), StoreError> {
        let ended = state.is_final().then(|| signed(at_time.0));
        self.connection
            .execute(
                "UPDATE job SET state = ?, reason = ?, ended_ns = coalesce(?, ended_ns) WHERE id = ?",
                params![state.name(), reason, ended, job.0],
            )
            .map_err(at("setting a job's state"))?;
        Ok(())
    }

    /// Marks every job that a dead daemon left unfinished as interrupted, and says how many.
    ///
    /// # Errors
    /// If it can't be written.
    pub fn interrupt_unfinished(&mut self, reason: &str, at_time: RealtimeNanos) -> Result<usize, StoreError> {
        self.connection
            .execute(
                "UPDATE job SET state = 'interrupted', reason = ?, ended_ns = ? \
                 WHERE state IN ('queued', 'waiting-for-gpu', 'running', 'restoring')",
                params![reason, signed(at_time.0)],
            )
            .map_err(at("marking interrupted jobs"))
    }

    /// Stores a trial and its samples: all of it or nothing.
    ///
    /// # Errors
    /// If it can't be written.
    pub fn add_trial(&mut self, job: JobId, record: &TrialRecord) -> Result<(), StoreError> {
        let json = serde_json::to_string(record).map_err(|error| StoreError::Record("trial", error))?;
        let transaction = self.connection.transaction().map_err(at("beginning a trial"))?;
        transaction
            .execute("INSERT INTO trial (job, number, record) VALUES (?,?,?)", params![job.0, record.trial.index, json])
            .map_err(at("adding a trial"))?;
        for (member, stored) in record.members.iter().enumerate() {
            transaction
                .execute(
                    "INSERT INTO samples (job, trial, member, data) VALUES (?,?,?,?)",
                    params![job.0, record.trial.index, signed(member as u64), stored.samples.to_bytes()],
                )
                .map_err(at("adding samples"))?;
        }
        transaction
            .execute("UPDATE job SET trials_done = trials_done + 1 WHERE id = ?", [job.0])
            .map_err(at("counting a trial"))?;
        transaction.commit().map_err(at("committing a trial"))
    }

    /// Keeps what became of the layout of a job's GPU.
    ///
    /// # Errors
    /// If it can't be written.
    pub fn set_layout(&mut self, job: JobId, record: &LayoutRecord) -> Result<(), StoreError> {
        let json = serde_json::to_string(record).map_err(|error| StoreError::Record("layout", error))?;
        self.connection
            .execute("UPDATE job SET layout = ? WHERE id = ?", params![json, job.0])
            .map(drop)
            .map_err(at("keeping a layout"))
    }

    /// Counts a stored trial as one without a valid result.
    ///
    /// # Errors
    /// If it can't be written.
    pub fn count_failed(&mut self, job: JobId) -> Result<(), StoreError> {
        self.connection
            .execute("UPDATE job SET trials_failed = trials_failed + 1 WHERE id = ?", [job.0])
            .map(drop)
            .map_err(at("counting a trial without a result"))
    }

    /// One job as lists show it.
    ///
    /// # Errors
    /// If there is none.
    pub fn job(&self, job: JobId) -> Result<JobRow, StoreError> {
        self.connection
            .query_row(&format!("{SELECT_JOB} WHERE id = ?"), [job.0], job_row)
            .optional()
            .map_err(at("reading a job"))?
            .ok_or(StoreError::NoSuchJob(job))
    }

    /// Jobs, newest first.
    ///
    /// # Errors
    /// If they can't be read.
    pub fn jobs(&self, filter: &JobFilter, limit: u32) -> Result<Vec<JobRow>, StoreError> {
        let sql = format!(
            "{SELECT_JOB} WHERE (?1 IS NULL OR state = ?1) AND (?2 IS NULL OR owner = ?2) AND (?3 IS NULL OR id < ?3) \
             ORDER BY id DESC LIMIT ?4"
        );
        let mut statement = self.connection.prepare(&sql).map_err(at("listing jobs"))?;
        let state = filter.state.map(JobState::name);
        let rows = statement
            .query_map(params![state, filter.owner, filter.before, limit], job_row)
            .map_err(at("listing jobs"))?;
        rows.collect::<Result<_, _>>().map_err(at("listing jobs"))
    }

    /// Everything that a job measured so far.
    ///
    /// # Errors
    /// If there is no such job, or what is stored can't be read.
    pub fn results(&self, job: JobId) -> Result<JobResults, StoreError> {
        let mut trials = Vec::new();
        let (record, layout) = self.records(job)?;
        self.each_trial(job, |trial| trials.push(trial))?;
        Ok(JobResults { job: record, layout, trials })
    }

    /// The report of what a job measured so far, of one trial after the other: a job's samples need not fit into memory.
    ///
    /// # Errors
    /// If there is no such job, or what is stored can't be read.
    pub fn reporter(&self, job: JobId) -> Result<Reporter, StoreError> {
        let (record, layout) = self.records(job)?;
        let mut reporter = Reporter::new(record, layout);
        self.each_trial(job, |trial| reporter.add(&trial))?;
        Ok(reporter)
    }

    /// Everything that a job measured so far in one file: see [`archive`].
    ///
    /// # Errors
    /// If there is no such job, or what is stored can't be read.
    pub fn archive(&self, job: JobId) -> Result<Vec<u8>, StoreError> {
        let (record, layout) = self.records(job)?;
        let mut bytes = archive::begin(&record, layout.as_ref()).map_err(StoreError::Archive)?;
        let mut failed = None;
        self.each_trial(job, |trial| {
            if failed.is_none() {
                failed = archive::append(&mut bytes, &trial).err();
            }
        })?;
        failed.map_or(Ok(bytes), |error| Err(StoreError::Archive(error)))
    }

    /// What was the same for every trial of a job, and the instances that were made for it.
    fn records(&self, job: JobId) -> Result<(JobRecord, Option<LayoutRecord>), StoreError> {
        let (json, layout): (String, Option<String>) = self
            .connection
            .query_row("SELECT record, layout FROM job WHERE id = ?", [job.0], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()
            .map_err(at("reading a job"))?
            .ok_or(StoreError::NoSuchJob(job))?;
        let record = serde_json::from_str(&json).map_err(|error| StoreError::Record("job", error))?;
        let layout = layout.map(|json| serde_json::from_str(&json)).transpose();
        let layout = layout.map_err(|error| StoreError::Record("layout", error))?;
        Ok((record, layout))
    }

    /// Every trial with its samples, in the order in which they ran.
    fn each_trial(&self, job: JobId, mut each: impl FnMut(TrialRecord)) -> Result<(), StoreError> {
        let mut statement = self
            .connection
            .prepare("SELECT record FROM trial WHERE job = ? ORDER BY number")
            .map_err(at("reading trials"))?;
        let texts = statement.query_map([job.0], |row| row.get::<_, String>(0)).map_err(at("reading trials"))?;
        for text in texts {
            let text = text.map_err(at("reading trials"))?;
            let mut trial: TrialRecord =
                serde_json::from_str(&text).map_err(|error| StoreError::Record("trial", error))?;
            self.read_samples(job, &mut trial)?;
            each(trial);
        }
        Ok(())
    }

    fn read_samples(&self, job: JobId, trial: &mut TrialRecord) -> Result<(), StoreError> {
        let mut statement = self
            .connection
            .prepare_cached("SELECT data FROM samples WHERE job = ? AND trial = ? AND member = ?")
            .map_err(at("reading samples"))?;
        for (member, stored) in trial.members.iter_mut().enumerate() {
            let data: Vec<u8> = statement
                .query_row(params![job.0, trial.trial.index, signed(member as u64)], |row| row.get(0))
                .map_err(at("reading samples"))?;
            stored.samples = Samples::from_bytes(&data).map_err(StoreError::Samples)?;
        }
        Ok(())
    }
}

const SELECT_JOB: &str = "SELECT id, uid, name, owner, state, reason, submitted_ns, ended_ns, trials_total, trials_done, \
                          trials_failed FROM job";

fn job_row(row: &rusqlite::Row<'_>) -> rusqlite::Result<JobRow> {
    let state: String = row.get(4)?;
    let unknown = || rusqlite::Error::InvalidColumnType(4, state.clone(), rusqlite::types::Type::Text);
    Ok(JobRow {
        id: JobId(row.get(0)?),
        uid: row.get(1)?,
        name: row.get(2)?,
        owner: row.get(3)?,
        state: JobState::from_name(&state).ok_or_else(unknown)?,
        reason: row.get(5)?,
        submitted: RealtimeNanos(unsigned(row.get(6)?)),
        ended: row.get::<_, Option<i64>>(7)?.map(|value| RealtimeNanos(unsigned(value))),
        trials_total: row.get(8)?,
        trials_done: row.get(9)?,
        trials_failed: row.get(10)?,
    })
}

/// SQLite's integers are signed; ours end long before the sign bit (the year 2262).
fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn unsigned(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}
