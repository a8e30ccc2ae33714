//! The queue: one task that owns the jobs, runs them one after the other and tells everyone who watches.

mod job;

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use migperf_core::chain::chain;
use migperf_core::ids::{JobId, JobUid};
use migperf_core::job::JobState;
use migperf_core::record::{JobRecord, Owner, RECORD_FORMAT};
use migperf_dbus::helper::report;
use sha2::{Digest as _, Sha256};
use tokio::sync::{broadcast, mpsc, oneshot, watch};

pub use self::job::JobView;
use crate::admission::{self, Admission, Asked, Obstacle};
use crate::clock;
use crate::helper::{Helper, HelperError};
use crate::host;
use crate::layouts;
use crate::partition::text;
use crate::settings::Settings;
use crate::store::{Store, StoreError};

/// Why a job ends with its client's connection.
const GONE: &str = "the client that ran it is gone";

/// A connection to a client; jobs may be attached to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ConnectionId(pub u64);

/// A job as it is submitted.
#[derive(Debug)]
pub struct Submission {
    /// What is to be measured.
    pub asked: Asked,
    /// Who submits.
    pub owner: Owner,
    /// The connection whose end cancels the job.
    pub attached: Option<ConnectionId>,
}

/// Why a job was not accepted.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// The suite gives no plan here.
    #[error(transparent)]
    Admission(#[from] admission::AdmissionError),
    /// It can't be measured now.
    #[error("{}", .0.iter().map(|r| format!("{}\n  {}", r.problem, r.remedy)).collect::<Vec<_>>().join("\n"))]
    Refused(Vec<migperf_core::job::Refusal>),
    /// It could not be stored.
    #[error("the job can't be stored")]
    Store(#[from] StoreError),
    /// The daemon is ending.
    #[error("the daemon is ending")]
    Ending,
}

/// Why a job was not cancelled.
#[derive(Debug, thiserror::Error)]
pub enum CancelError {
    /// No such job, or it has ended.
    #[error("there is no unfinished job {0}")]
    NotRunning(JobId),
    /// The daemon is ending.
    #[error("the daemon is ending")]
    Ending,
}

enum Command {
    Add(Box<(Submission, Admission)>, oneshot::Sender<Result<JobId, SubmitError>>),
    Cancel(JobId, String, oneshot::Sender<Result<(), CancelError>>),
    Closed(ConnectionId),
    End(String),
}

/// A handle on the queue, for as many owners as need one.
#[derive(Debug, Clone)]
pub struct Queue {
    commands: mpsc::Sender<Command>,
    settings: Arc<Settings>,
    store: Arc<Mutex<Store>>,
    helper: Arc<Helper>,
    views: Arc<Mutex<BTreeMap<JobId, watch::Receiver<JobView>>>>,
    added: broadcast::Sender<JobId>,
    busy: watch::Receiver<bool>,
}

impl Queue {
    /// Starts the queue's task.
    #[must_use]
    pub fn start(settings: Arc<Settings>, store: Arc<Mutex<Store>>, helper: Arc<Helper>) -> Self {
        let (commands, receiver) = mpsc::channel(64);
        let (added, _) = broadcast::channel(64);
        let (busy_sender, busy) = watch::channel(false);
        let views = Arc::new(Mutex::new(BTreeMap::new()));
        let keeper = Keeper {
            settings: Arc::clone(&settings),
            store: Arc::clone(&store),
            helper: Arc::clone(&helper),
            views: Arc::clone(&views),
            added: added.clone(),
            busy: busy_sender,
            waiting: VecDeque::new(),
            running: None,
            closed: HashSet::new(),
            ending: false,
        };
        tokio::spawn(keeper.run(receiver));
        Self { commands, settings, store, helper, views, added, busy }
    }

    /// The helper, there or not.
    #[must_use]
    pub fn helper(&self) -> &Arc<Helper> {
        &self.helper
    }

    /// What the daemon knows of its machine.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The store, for a moment.
    pub fn with_store<T>(&self, act: impl FnOnce(&mut Store) -> T) -> T {
        act(&mut self.store.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Plans a suite without accepting it.
    ///
    /// # Errors
    /// If there is no plan.
    pub async fn plan(&self, asked: Asked) -> Result<Admission, SubmitError> {
        let obstacle = |why: String, remedy: &str| Obstacle { why, remedy: remedy.to_owned() };
        let means = match self.helper.report().await {
            Ok(report) => Ok(report.iter().map(|entry| (text(entry, report::GPU), layouts::standing(entry))).collect()),
            Err(HelperError::Absent { absence }) => Err(obstacle(absence.to_string(), absence.remedy())),
            Err(error) => Err(obstacle(chain(&error), "see the daemon's log for what the helper wrote")),
        };
        let settings = Arc::clone(&self.settings);
        tokio::task::spawn_blocking(move || admission::admit(&settings, &asked, &means))
            .await
            .map_err(|_| SubmitError::Ending)?
            .map_err(SubmitError::from)
    }

    /// Accepts a job, or says everything that is in its way.
    ///
    /// # Errors
    /// If there is no plan, something is in the way, or the store fails.
    pub async fn submit(&self, submission: Submission) -> Result<JobId, SubmitError> {
        let admission = self.plan(submission.asked.clone()).await?;
        if !admission.refusals.is_empty() {
            return Err(SubmitError::Refused(admission.refusals));
        }
        let (reply, answer) = oneshot::channel();
        let command = Command::Add(Box::new((submission, admission)), reply);
        self.commands.send(command).await.map_err(|_| SubmitError::Ending)?;
        answer.await.map_err(|_| SubmitError::Ending)?
    }

    /// Cancels an unfinished job.
    ///
    /// # Errors
    /// If there is none.
    pub async fn cancel(&self, job: JobId, reason: String) -> Result<(), CancelError> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(Command::Cancel(job, reason, reply)).await.map_err(|_| CancelError::Ending)?;
        answer.await.map_err(|_| CancelError::Ending)?
    }

    /// Cancels what was attached to a connection that has ended.
    pub async fn connection_closed(&self, connection: ConnectionId) {
        // A queue that is gone has no jobs.
        let _ = self.commands.send(Command::Closed(connection)).await;
    }

    /// Cancels everything and waits until nothing runs.
    pub async fn end(&self, reason: &str) {
        let _ = self.commands.send(Command::End(reason.to_owned())).await;
        let mut busy = self.busy.clone();
        let _ = busy.wait_for(|busy| !busy).await;
    }

    /// Whether a job waits or runs; changes can be awaited.
    #[must_use]
    pub fn busy(&self) -> watch::Receiver<bool> {
        self.busy.clone()
    }

    /// Jobs of this daemon's life, with where they stand.
    #[must_use]
    pub fn views(&self) -> Vec<watch::Receiver<JobView>> {
        self.views.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// One of them.
    #[must_use]
    pub fn view(&self, job: JobId) -> Option<watch::Receiver<JobView>> {
        self.views.lock().unwrap_or_else(PoisonError::into_inner).get(&job).cloned()
    }

    /// Hears of each job that is added from now on.
    #[must_use]
    pub fn additions(&self) -> broadcast::Receiver<JobId> {
        self.added.subscribe()
    }
}

/// A job that waits for its turn.
struct Waiting {
    id: JobId,
    submission: Submission,
    admission: Admission,
    record: JobRecord,
    view: watch::Sender<JobView>,
}

struct Running {
    id: JobId,
    attached: Option<ConnectionId>,
    stop: watch::Sender<Option<String>>,
    task: tokio::task::JoinHandle<()>,
}

/// The task that owns the jobs.
struct Keeper {
    settings: Arc<Settings>,
    store: Arc<Mutex<Store>>,
    helper: Arc<Helper>,
    views: Arc<Mutex<BTreeMap<JobId, watch::Receiver<JobView>>>>,
    added: broadcast::Sender<JobId>,
    busy: watch::Sender<bool>,
    waiting: VecDeque<Waiting>,
    running: Option<Running>,
    /// Connections that have ended: one may end while its suite is still being planned.
    closed: HashSet<ConnectionId>,
    ending: bool,
}

impl Keeper {
    async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        loop {
            self.begin_next();
            self.busy.send_replace(self.running.is_some() || !self.waiting.is_empty());
            let command = match &mut self.running {
                None => commands.recv().await,
                Some(running) => tokio::select! {
                    ended = &mut running.task => {
                        if let Err(error) = ended {
                            tracing::error!(job = %running.id, %error, "a job's task ended abnormally");
                        }
                        self.running = None;
                        continue;
                    }
                    command = commands.recv() => command,
                },
            };
            match command {
                None => return,
                Some(Command::Add(added, reply)) => {
                    let (submission, admission) = *added;
                    let result = if self.ending { Err(SubmitError::Ending) } else { self.add(submission, admission) };
                    let _ = reply.send(result);
                }
                Some(Command::Cancel(job, reason, reply)) => {
                    let found = self.cancel(|id, _| id == job, &reason);
                    let _ = reply.send(if found { Ok(()) } else { Err(CancelError::NotRunning(job)) });
                }
                Some(Command::Closed(connection)) => {
                    self.closed.insert(connection);
                    self.cancel(|_, attached| attached == Some(connection), GONE);
                }
                Some(Command::End(reason)) => {
                    self.ending = true;
                    self.cancel(|_, _| true, &reason);
                }
            }
        }
    }

    fn add(&mut self, submission: Submission, admission: Admission) -> Result<JobId, SubmitError> {
        let record = JobRecord {
            format: RECORD_FORMAT,
            uid: JobUid(random_uid()),
            suite_digest: Sha256::digest(&submission.asked.suite).iter().map(|byte| format!("{byte:02x}")).collect(),
            suite: submission.asked.suite.clone(),
            plan: admission.plan.clone(),
            host: host::read(),
            inventory: admission.inventory.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            libtorch: admission.libtorch.as_ref().map_or_else(
                || migperf_core::device::Reading::absent("none was found"),
                |libtorch| {
                    let text = format!("{} in {}", libtorch.version, libtorch.folder.display());
                    migperf_core::device::Reading::Value(text)
                },
            ),
            submitted: clock::wall(),
            owner: submission.owner.clone(),
        };
        let id = self.store.lock().unwrap_or_else(PoisonError::into_inner).add_job(&record)?;
        let (view, watched) = watch::channel(JobView::queued(id, &record));
        self.views.lock().unwrap_or_else(PoisonError::into_inner).insert(id, watched);
        tracing::info!(job = %id, name = record.plan.name, trials = record.plan.trials.len(), "queued");
        let orphan = submission.attached.is_some_and(|connection| self.closed.contains(&connection));
        self.waiting.push_back(Waiting { id, submission, admission, record, view });
        if orphan {
            self.cancel(|job, _| job == id, GONE);
        }
        // Nobody may be watching.
        let _ = self.added.send(id);
        Ok(id)
    }

    /// Cancels the jobs that match. Says whether there was one.
    fn cancel(&mut self, matches: impl Fn(JobId, Option<ConnectionId>) -> bool, reason: &str) -> bool {
        let mut found = false;
        if let Some(running) = &self.running
            && matches(running.id, running.attached)
        {
            running.stop.send_replace(Some(reason.to_owned()));
            found = true;
        }
        let (cancelled, kept): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|waiting| matches(waiting.id, waiting.submission.attached));
        self.waiting = kept;
        for waiting in cancelled {
            found = true;
            job::settle(&self.store, &waiting.view, JobState::Cancelled, Some(reason));
        }
        found
    }

    fn begin_next(&mut self) {
        if self.running.is_some() {
            return;
        }
        let Some(Waiting { id, submission, admission, record, view }) = self.waiting.pop_front() else { return };
        let (stop, stopped) = watch::channel(None);
        let run = job::Run {
            settings: Arc::clone(&self.settings),
            store: Arc::clone(&self.store),
            helper: Arc::clone(&self.helper),
            replace_existing: submission.asked.replace_existing,
            id,
            admission,
            record,
            view,
            stop: stopped,
        };
        let task = tokio::spawn(run.run());
        self.running = Some(Running { id, attached: submission.attached, stop, task });
    }
}

/// 128 random bits in hexadecimal, from the kernel.
fn random_uid() -> String {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap_or_default();
    let uid: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    if uid.len() == 32 {
        return uid;
    }
    // Without /proc: unique on this host, which is what is left.
    format!("{:016x}{:016x}", clock::wall().0, u64::from(std::process::id()))
}
