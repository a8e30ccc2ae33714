//! A daemon that serves the interface and measures nothing: its jobs go the way a test says.

use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use migperf_core::archive;
use migperf_core::device::{Inventory, Reading};
use migperf_core::ids::JobUid;
use migperf_core::job::{Check, CheckItem, CheckState, JobState, PlanAnswer, Refusal};
use migperf_core::plan::Plan;
use migperf_core::record::{ClockPair, Host, JobRecord, JobResults, Outcome, Owner, RECORD_FORMAT, TrialRecord};
use migperf_core::report::Report;
use migperf_core::suite::{Suite, Target};
use migperf_core::units::{Bytes, MonotonicNanos, RealtimeNanos};
use migperf_dbus::Keyed;
use migperf_dbus::document;
use migperf_dbus::error::Error;
use migperf_dbus::names::{ROOT, filter, job as key, job_path, submit};
use zbus::connection::Builder;
use zbus::{Connection, Guid, ObjectServer, OwnedFd, OwnedObjectPath, OwnedVariant, Variant, interface};

/// What becomes of jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Conduct {
    /// Every trial ends, so many of the last ones without a valid result.
    Ends { failed: u32 },
    /// The first trial lasts until the job is cancelled.
    Endless,
    /// The same, and cancelling takes for ever.
    Stubborn,
    /// The daemon goes away during the first trial.
    Vanishes,
    /// The job fails before anything is measured.
    Fails,
    /// No job is accepted.
    Refuses,
    /// No suite is good enough.
    FindsFault,
}

/// A job of the fake's.
#[derive(Debug)]
pub(crate) struct FakeJob {
    pub(crate) name: String,
    pub(crate) state: JobState,
    pub(crate) done: u32,
    pub(crate) failed: u32,
    pub(crate) reason: Option<&'static str>,
    pub(crate) suite: String,
    pub(crate) plan: Plan,
    /// The options of its submission, as text.
    pub(crate) options: Vec<(String, String)>,
}

/// What every connection sees.
#[derive(Debug)]
pub(crate) struct Shared {
    conduct: Conduct,
    pub(crate) jobs: Vec<FakeJob>,
    connections: Vec<Connection>,
}

/// The fake's memory.
#[derive(Debug, Clone)]
pub(crate) struct Daemon(Arc<Mutex<Shared>>);

struct JobObject {
    daemon: Daemon,
    id: u32,
}

fn owned<'a>(value: impl Into<Variant<'a>>) -> OwnedVariant {
    OwnedVariant::try_from(value.into()).unwrap()
}

fn clocks() -> ClockPair {
    ClockPair { realtime: RealtimeNanos(1_767_225_600_000_000_000), monotonic: MonotonicNanos(1_000_000_000) }
}

impl FakeJob {
    /// A row of `ListJobs`, and `Progress`.
    fn row(&self, id: u32) -> Keyed {
        let mut row = Keyed::new();
        let mut put = |key: &str, value: OwnedVariant| row.insert(key.to_owned(), value);
        put(key::ID, owned(id));
        put(key::NAME, owned(self.name.as_str()));
        put(key::OWNER, owned(nix::unistd::Uid::current().as_raw()));
        put(key::STATE, owned(self.state.name()));
        put(key::SUBMITTED_USEC, owned(1_767_225_600_000_000_u64));
        put(key::TRIALS_TOTAL, owned(u32::try_from(self.plan.trials.len()).unwrap()));
        put(key::TRIALS_DONE, owned(self.done));
        put(key::TRIALS_FAILED, owned(self.failed));
        if let Some(reason) = self.reason {
            put(key::REASON, owned(reason));
        }
        if let Some(trial) = self.plan.trials.get(self.done as usize).filter(|_| self.state == JobState::Running) {
            put(key::TRIAL, owned(trial.spec.to_string()));
            put(key::PHASE, owned("measuring"));
        }
        row
    }

    /// Raw results without a single batch: trials that do not fit, which is a valid result, and failed ones.
    fn results(&self, id: u32) -> JobResults {
        let valid = self.done - self.failed;
        let trials = self.plan.trials.iter().take(self.done as usize).map(|trial| TrialRecord {
            format: RECORD_FORMAT,
            trial: trial.clone(),
            outcome: match trial.index < valid {
                true => Outcome::DoesNotFit { member: 0, detail: "no memory left".to_owned() },
                false => Outcome::Failed { reason: "member 0 died".to_owned() },
            },
            began: clocks(),
            ended: clocks(),
            gpu: None,
            start: None,
            window: None,
            extended: false,
            members: Vec::new(),
            telemetry: Reading::absent("no device"),
            instance_telemetry: Vec::new(),
            foreign: Vec::new(),
            simulated: false,
        });
        JobResults {
            layout: None,
            job: JobRecord {
                format: RECORD_FORMAT,
                uid: JobUid(format!("{id:032x}")),
                suite: self.suite.clone(),
                suite_digest: "0".repeat(64),
                plan: self.plan.clone(),
                host: Host {
                    name: "testhost".to_owned(),
                    id: Reading::absent("not told"),
                    kernel: "6.0".to_owned(),
                    processor: Reading::absent("not told"),
                    processors: 2,
                    memory: Reading::Value(Bytes(1 << 30)),
                },
                inventory: Inventory::unavailable("no NVML".to_owned()),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                libtorch: Reading::absent("none"),
                submitted: clocks().realtime,
                owner: Owner { uid: 0, name: None },
            },
            trials: trials.collect(),
        }
    }
}

impl Daemon {
    pub(crate) fn new(conduct: Conduct) -> Self {
        Self(Arc::new(Mutex::new(Shared { conduct, jobs: Vec::new(), connections: Vec::new() })))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Shared> {
        self.0.lock().unwrap()
    }

    /// Serves every client that connects to a socket.
    pub(crate) async fn listen(self, socket: &Path) {
        let listener = UnixListener::bind(socket).unwrap();
        listener.set_nonblocking(true).unwrap();
        let listener = tokio::net::UnixListener::from_std(listener).unwrap();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let stream = stream.into_std().unwrap();
                let daemon = self.clone();
                tokio::spawn(async move { daemon.serve(stream).await });
            }
        });
    }

    /// Serves one client until it leaves; its attached jobs end with it.
    pub(crate) async fn serve(self, stream: UnixStream) {
        let mut builder = Builder::unix_stream(stream).server(Guid::generate()).p2p().serve_at(ROOT, self.clone());
        let count = u32::try_from(self.lock().jobs.len()).unwrap();
        for id in 1..=count {
            if !self.lock().jobs[id as usize - 1].state.is_final() {
                builder = builder.serve_at(job_path(id), JobObject { daemon: self.clone(), id });
            }
        }
        let Ok(connection) = builder.build().await else { return };
        self.lock().connections.push(connection.clone());
        connection.closed().await;
        for job in &mut self.lock().jobs {
            let attached = job.options.contains(&(submit::ATTACHED.to_owned(), "true".to_owned()));
            if attached && !job.state.is_final() {
                job.state = JobState::Cancelled;
            }
        }
    }

    /// Changes a job and says so on every connection.
    async fn change(&self, id: u32, change: impl FnOnce(&mut FakeJob)) {
        let connections = {
            let mut shared = self.lock();
            change(&mut shared.jobs[id as usize - 1]);
            shared.connections.clone()
        };
        for connection in connections {
            let Ok(object) = connection.object_server().interface::<_, JobObject>(job_path(id)).await else { continue };
            let job = object.get().await;
            let _ = job.progress_changed(object.signal_emitter()).await;
            let _ = job.state_changed(object.signal_emitter()).await;
        }
    }

    async fn drive(self, id: u32, conduct: Conduct) {
        let pause = || tokio::time::sleep(Duration::from_millis(30));
        pause().await;
        if conduct == Conduct::Fails {
            self.change(id, |job| (job.state, job.reason) = (JobState::Failed, Some("the GPU fell off the bus"))).await;
            return;
        }
        self.change(id, |job| job.state = JobState::Running).await;
        pause().await;
        match conduct {
            Conduct::Ends { failed } => {
                let total = u32::try_from(self.lock().jobs[id as usize - 1].plan.trials.len()).unwrap();
                for done in 1..=total {
                    let failed = failed.saturating_sub(total - done);
                    self.change(id, |job| (job.done, job.failed) = (done, failed)).await;
                    pause().await;
                }
                self.change(id, |job| job.state = JobState::Done).await;
            }
            Conduct::Vanishes => {
                let connections = std::mem::take(&mut self.lock().connections);
                for connection in connections {
                    let _ = connection.close().await;
                }
            }
            _ => {}
        }
    }

    fn plan(suite: OwnedFd) -> Result<(String, Plan), Error> {
        let text = document::read(suite.into(), document::LONGEST_SUITE).unwrap();
        let text = String::from_utf8(text).unwrap();
        let suite = Suite::parse(&text).map_err(|errors| Error::InvalidSuite(errors.to_string()))?;
        let plan = Plan::expand(&suite, Target::Cpu).map_err(|error| Error::InvalidSuite(error.to_string()))?;
        Ok((text, plan))
    }
}

fn sealed(bytes: &[u8]) -> OwnedFd {
    document::seal(bytes).unwrap().into()
}

#[interface(name = "org.migperf1.Manager")]
impl Daemon {
    async fn submit_job(
        &self,
        suite: OwnedFd,
        options: Keyed,
        #[zbus(object_server)] server: &ObjectServer,
    ) -> Result<OwnedObjectPath, Error> {
        let conduct = self.lock().conduct;
        match conduct {
            Conduct::Refuses => return Err(Error::Refused("GPU 0 serves virtual GPUs to guests".to_owned())),
            Conduct::FindsFault => return Err(Error::InvalidSuite("nothing of it fits this device".to_owned())),
            _ => {}
        }
        let (suite, plan) = Self::plan(suite)?;
        let text = |value: &OwnedVariant| match &**value {
            Variant::Str(text) => text.as_str().to_owned(),
            Variant::Bool(flag) => flag.to_string(),
            Variant::U64(number) => number.to_string(),
            other => panic!("{other:?} is no documented option"),
        };
        let mut options: Vec<_> = options.iter().map(|(key, value)| (key.clone(), text(value))).collect();
        options.sort();
        let id = {
            let mut shared = self.lock();
            let name = plan.name.clone();
            let state = JobState::Queued;
            shared.jobs.push(FakeJob { name, state, done: 0, failed: 0, reason: None, suite, plan, options });
            u32::try_from(shared.jobs.len()).unwrap()
        };
        server.at(job_path(id), JobObject { daemon: self.clone(), id }).await?;
        tokio::spawn(self.clone().drive(id, conduct));
        Ok(OwnedObjectPath::try_from(job_path(id)).unwrap())
    }

    async fn plan_job(&self, suite: OwnedFd, options: Keyed) -> Result<OwnedFd, Error> {
        if matches!(&*options[submit::DEVICE], Variant::Str(device) if device.as_str() == "9") {
            return Err(Error::NoSuchDevice("there is no GPU 9; this host has none".to_owned()));
        }
        let (_, plan) = Self::plan(suite)?;
        let refusal = Refusal { problem: "the GPU is lent out".to_owned(), remedy: "ask for it back".to_owned() };
        let refusals = if self.lock().conduct == Conduct::Refuses { vec![refusal] } else { Vec::new() };
        let answer = PlanAnswer {
            layouts: plan.layouts(),
            plan,
            device: "two processors".to_owned(),
            refusals,
            layout_changes: Vec::new(),
            replaced_uuids: Vec::new(),
        };
        Ok(sealed(&serde_json::to_vec(&answer).unwrap()))
    }

    async fn list_jobs(&self, filter: Keyed, cursor: &str, limit: u32) -> Result<(Vec<Keyed>, String), Error> {
        let shared = self.lock();
        let state = filter.get(filter::STATE).map(|value| match &**value {
            Variant::Str(text) => text.as_str().to_owned(),
            other => panic!("{other:?} is no state"),
        });
        let below: usize = if cursor.is_empty() { usize::MAX } else { cursor.parse().unwrap() };
        let wanted = |job: &FakeJob| state.as_deref().is_none_or(|state| state == job.state.name());
        let numbered = shared.jobs.iter().enumerate().map(|(place, job)| (place + 1, job)).rev();
        let mut left = numbered.filter(|(id, job)| *id < below && wanted(job));
        let page: Vec<_> = left.by_ref().take(limit as usize).collect();
        let next = left.next().and(page.last()).map(|(id, _)| id.to_string()).unwrap_or_default();
        Ok((page.into_iter().map(|(id, job)| job.row(u32::try_from(id).unwrap())).collect(), next))
    }

    async fn open_report(&self, job: u32, format: &str, _options: Keyed) -> Result<OwnedFd, Error> {
        assert!(["json", "archive"].contains(&format), "{format}");
        let shared = self.lock();
        let Some(found) = (job as usize).checked_sub(1).and_then(|place| shared.jobs.get(place)) else {
            return Err(Error::NoSuchJob(format!("there is no job {job}")));
        };
        if found.done == 0 {
            return Err(Error::NothingToReport(format!("no trial of job {job} has ended")));
        }
        let results = found.results(job);
        if format == "archive" {
            let mut bytes = archive::begin(&results.job, results.layout.as_ref()).unwrap();
            results.trials.iter().for_each(|trial| archive::append(&mut bytes, trial).unwrap());
            return Ok(sealed(&bytes));
        }
        Ok(sealed(Report::from_results(&results).to_json().as_bytes()))
    }

    async fn cancel_job(&self, job: u32, _options: Keyed) -> Result<(), Error> {
        if job == 0 || job as usize > self.lock().jobs.len() {
            return Err(Error::NoSuchJob(format!("there is no job {job}")));
        }
        if self.lock().conduct != Conduct::Stubborn {
            self.change(job, |job| job.state = JobState::Cancelled).await;
        }
        Ok(())
    }

    async fn open_check(&self, _options: Keyed) -> Result<OwnedFd, Error> {
        let state = if self.lock().conduct == Conduct::Refuses { CheckState::Missing } else { CheckState::Limited };
        let driver = CheckItem {
            subject: "NVIDIA driver".to_owned(),
            state,
            found: "none is loaded".to_owned(),
            remedy: Some("install the driver".to_owned()),
        };
        Ok(sealed(&serde_json::to_vec(&Check { items: vec![driver] }).unwrap()))
    }

    #[zbus(property(emits_changed_signal = "const"))]
    async fn version(&self) -> String {
        env!("CARGO_PKG_VERSION").to_owned()
    }

    #[zbus(property(emits_changed_signal = "const"))]
    async fn state_directory(&self) -> String {
        "/fake/state".to_owned()
    }
}

#[interface(name = "org.migperf1.Job")]
impl JobObject {
    #[zbus(property)]
    async fn state(&self) -> String {
        self.daemon.lock().jobs[self.id as usize - 1].state.name().to_owned()
    }

    #[zbus(property)]
    async fn progress(&self) -> Keyed {
        self.daemon.lock().jobs[self.id as usize - 1].row(self.id)
    }
}
