//! `org.migperf1.Manager`: the methods. Arguments are checked here, and every failure becomes an error of the contract.

use std::os::fd::OwnedFd as StdOwnedFd;

use migperf_core::chain::chain;
use migperf_core::ids::JobId;
use migperf_core::job::{JobState, PlanAnswer};
use migperf_core::record::Owner;
use migperf_dbus::Keyed;
use migperf_dbus::document::{self, LONGEST_SUITE};
use migperf_dbus::error::Error;
use migperf_dbus::names::{self, filter, job as key, layout, submit};
use zbus::{Connection, OwnedFd, OwnedObjectPath, OwnedVariant, Variant};

use crate::admission::{Admission, AdmissionError, Asked, Wanted};
use crate::check;
use crate::layouts;
use crate::partition::Mandate;
use crate::queue::{CancelError, ConnectionId, Queue, Submission, SubmitError};
use crate::store::{JobFilter, JobRow, Store, StoreError};

/// Jobs in one page of a list at most.
const LONGEST_PAGE: u32 = 1000;

/// The manager, as one connection sees it.
#[derive(Debug)]
pub(super) struct ManagerObject {
    queue: Queue,
    owner: Owner,
    connection: ConnectionId,
}

impl ManagerObject {
    pub(super) fn new(queue: Queue, owner: Owner, connection: ConnectionId) -> Self {
        Self { queue, owner, connection }
    }

    fn mandate(&self, replace_existing: bool, purpose: &str) -> Mandate {
        Mandate { replace_existing, on_behalf_of: self.owner.uid, purpose: purpose.to_owned() }
    }
}

#[zbus::interface(name = "org.migperf1.Manager")]
impl ManagerObject {
    async fn submit_job(
        &self,
        suite: OwnedFd,
        options: Keyed,
        #[zbus(connection)] connection: &Connection,
    ) -> Result<OwnedObjectPath, Error> {
        let options = SubmitOptions::read(options)?;
        let attached = options.attached.then_some(self.connection);
        let submission = Submission { asked: options.asked(suite)?, owner: self.owner.clone(), attached };
        let job = self.queue.submit(submission).await.map_err(refused)?;
        if let Some(view) = self.queue.view(job) {
            // The caller may ask for it before the addition is heard on its connection.
            super::add_job(connection, view).await.map_err(Error::ZBus)?;
        }
        let path = names::job_path(job.0);
        OwnedObjectPath::try_from(path).map_err(|error| internal(&error))
    }

    async fn plan_job(&self, suite: OwnedFd, options: Keyed) -> Result<OwnedFd, Error> {
        let options = SubmitOptions::read(options)?;
        let admission = self.queue.plan(options.asked(suite)?).await.map_err(refused)?;
        let device = admission.device();
        let Admission { plan, refusals, changes, .. } = admission;
        let layouts = plan.layouts();
        let (layout_changes, replaced_uuids) = (changes.lines, changes.replaced);
        send(&PlanAnswer { plan, device, refusals, layouts, layout_changes, replaced_uuids })
    }

    async fn list_jobs(&self, filter: Keyed, cursor: &str, limit: u32) -> Result<(Vec<Keyed>, String), Error> {
        let mut wanted = JobFilter::default();
        for (name, value) in filter {
            match name.as_str() {
                filter::STATE => {
                    let text: String = typed(&name, value)?;
                    let state = JobState::from_name(&text);
                    wanted.state = Some(state.ok_or_else(|| invalid(format!("`{text}` is not a state of a job")))?);
                }
                filter::OWNER => wanted.owner = Some(typed(&name, value)?),
                _ => return Err(unknown_key(&name)),
            }
        }
        if !cursor.is_empty() {
            let before = cursor.parse().map_err(|_| invalid(format!("`{cursor}` is no cursor of this list")))?;
            wanted.before = Some(before);
        }
        let limit = limit.clamp(1, LONGEST_PAGE);
        let rows = self.queue.with_store(|store| store.jobs(&wanted, limit)).map_err(stored)?;
        let full = rows.len() == limit as usize;
        let next = rows.last().filter(|_| full).map(|row| row.id.to_string()).unwrap_or_default();
        let rows = rows.into_iter().map(keyed_row).collect::<Result<_, _>>()?;
        Ok((rows, next))
    }

    async fn open_report(&self, job: u32, format: &str, options: Keyed) -> Result<OwnedFd, Error> {
        no_options(options)?;
        let state = self.queue.settings().state.clone();
        match format {
            "json" => {}
            "archive" => {
                let archive = tokio::task::spawn_blocking(move || {
                    Store::open_to_read(&state).and_then(|store| store.archive(JobId(job))).map_err(stored)
                });
                let bytes = archive.await.map_err(|error| internal(&error))??;
                return document::seal(&bytes).map(OwnedFd::from).map_err(|error| internal(&error));
            }
            other => {
                let known = "it has `json` and `archive`";
                return Err(invalid(format!("`{other}` is not a format of this daemon; {known}")));
            }
        }
        // A connection of its own: a large report takes a second, and a trial that ends meanwhile must be stored.
        let report = tokio::task::spawn_blocking(move || {
            let store = Store::open_to_read(&state).map_err(stored)?;
            let reporter = store.reporter(JobId(job)).map_err(stored)?;
            if reporter.is_empty() {
                return Err(Error::NothingToReport(format!("no trial of job {job} has ended yet")));
            }
            Ok(reporter.finish())
        });
        send(&report.await.map_err(|error| internal(&error))??)
    }

    async fn cancel_job(&self, job: u32, options: Keyed) -> Result<(), Error> {
        no_options(options)?;
        let user = self.owner.name.clone().unwrap_or_else(|| self.owner.uid.to_string());
        self.queue.cancel(JobId(job), format!("cancelled by {user}")).await.map_err(|error| match error {
            CancelError::NotRunning(_) => Error::NoSuchJob(error.to_string()),
            CancelError::Ending => internal(&error),
        })
    }

    async fn open_check(&self, options: Keyed) -> Result<OwnedFd, Error> {
        no_options(options)?;
        let settings = self.queue.settings().clone();
        let check = tokio::task::spawn_blocking(move || check::run(&settings));
        send(&check.await.map_err(|error| internal(&error))?)
    }

    async fn open_layouts(&self, options: Keyed) -> Result<OwnedFd, Error> {
        no_options(options)?;
        send(&layouts::show(self.queue.settings(), self.queue.helper()).await?)
    }

    async fn plan_layout(&self, gpu: &str, layout: &str, options: Keyed) -> Result<OwnedFd, Error> {
        let replace = replace_existing(options)?;
        send(&layouts::plan(self.queue.settings(), self.queue.helper(), gpu, layout, replace).await?)
    }

    async fn apply_layout(&self, gpu: &str, layout: &str, options: Keyed) -> Result<OwnedFd, Error> {
        let mandate = self.mandate(replace_existing(options)?, "layout apply");
        send(&layouts::apply(self.queue.settings(), self.queue.helper(), gpu, layout, &mandate).await?)
    }

    async fn restore_layout(&self, gpu: &str, options: Keyed) -> Result<OwnedFd, Error> {
        no_options(options)?;
        let mandate = self.mandate(false, "layout restore");
        send(&layouts::restore(self.queue.settings(), self.queue.helper(), gpu, &mandate).await?)
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn version(&self) -> &'static str {
        env!("CARGO_PKG_VERSION")
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn state_directory(&self) -> String {
        self.queue.settings().state.display().to_string()
    }
}

/// The options of `SubmitJob` and `PlanJob`.
struct SubmitOptions {
    device: Wanted,
    attached: bool,
    seed: Option<u64>,
    replace_existing: bool,
}

impl SubmitOptions {
    fn read(options: Keyed) -> Result<Self, Error> {
        let mut read = Self { device: Wanted::Auto, attached: false, seed: None, replace_existing: false };
        for (name, value) in options {
            match name.as_str() {
                submit::DEVICE => read.device = Wanted::from_option(&typed::<String>(&name, value)?),
                submit::ATTACHED => read.attached = typed(&name, value)?,
                submit::SEED => read.seed = Some(typed(&name, value)?),
                submit::REPLACE_EXISTING => read.replace_existing = typed(&name, value)?,
                _ => return Err(unknown_key(&name)),
            }
        }
        Ok(read)
    }

    fn asked(self, suite: OwnedFd) -> Result<Asked, Error> {
        let Self { device, seed, replace_existing, .. } = self;
        Ok(Asked { suite: read_suite(suite)?, device, seed, replace_existing })
    }
}

fn typed<T: TryFrom<OwnedVariant>>(name: &str, value: OwnedVariant) -> Result<T, Error> {
    let signature = value.value_signature().to_string();
    T::try_from(value).map_err(|_| invalid(format!("option `{name}` can't be of type `{signature}`")))
}

fn no_options(options: Keyed) -> Result<(), Error> {
    options.into_keys().next().map_or(Ok(()), |name| Err(unknown_key(&name)))
}

/// The option of `PlanLayout` and `ApplyLayout`.
fn replace_existing(options: Keyed) -> Result<bool, Error> {
    let mut replace = false;
    for (name, value) in options {
        match name.as_str() {
            layout::REPLACE_EXISTING => replace = typed(&name, value)?,
            _ => return Err(unknown_key(&name)),
        }
    }
    Ok(replace)
}

fn unknown_key(name: &str) -> Error {
    invalid(format!("`{name}` is not a key of this method's options"))
}

fn invalid(text: String) -> Error {
    Error::InvalidArgument(text)
}

fn internal(error: &(dyn std::error::Error + 'static)) -> Error {
    tracing::error!(error = chain(error), "a method failed");
    Error::Internal(error.to_string())
}

fn stored(error: StoreError) -> Error {
    match error {
        StoreError::NoSuchJob(_) => Error::NoSuchJob(error.to_string()),
        _ => internal(&error),
    }
}

fn refused(error: SubmitError) -> Error {
    match &error {
        SubmitError::Admission(AdmissionError::Suite(_) | AdmissionError::Plan(_)) => {
            Error::InvalidSuite(error.to_string())
        }
        SubmitError::Admission(AdmissionError::NoSuchDevice { .. }) => Error::NoSuchDevice(error.to_string()),
        SubmitError::Refused(_) => Error::Refused(error.to_string()),
        SubmitError::Store(_) | SubmitError::Ending => internal(&error),
    }
}

fn read_suite(suite: OwnedFd) -> Result<String, Error> {
    let bytes = document::read(StdOwnedFd::from(suite), LONGEST_SUITE).map_err(|error| invalid(error.to_string()))?;
    String::from_utf8(bytes).map_err(|_| Error::InvalidSuite("the suite is not UTF-8 text".to_owned()))
}

fn send(document: &impl serde::Serialize) -> Result<OwnedFd, Error> {
    let json = serde_json::to_vec(document).map_err(|error| internal(&error))?;
    document::seal(&json).map(OwnedFd::from).map_err(|error| internal(&error))
}

fn keyed_row(row: JobRow) -> Result<Keyed, Error> {
    let mut keyed = Keyed::new();
    let mut add = |key: &str, value: Variant<'static>| match OwnedVariant::try_from(value) {
        Ok(value) => {
            keyed.insert(key.to_owned(), value);
            Ok(())
        }
        Err(error) => Err(internal(&error)),
    };
    add(key::ID, row.id.0.into())?;
    add(key::UID, row.uid.into())?;
    add(key::NAME, row.name.into())?;
    add(key::OWNER, row.owner.into())?;
    add(key::STATE, row.state.name().into())?;
    add(key::SUBMITTED_USEC, (row.submitted.0 / 1000).into())?;
    add(key::TRIALS_TOTAL, row.trials_total.into())?;
    add(key::TRIALS_DONE, row.trials_done.into())?;
    add(key::TRIALS_FAILED, row.trials_failed.into())?;
    if let Some(reason) = row.reason {
        add(key::REASON, reason.into())?;
    }
    if let Some(ended) = row.ended {
        add(key::ENDED_USEC, (ended.0 / 1000).into())?;
    }
    Ok(keyed)
}
