//! One job from its turn to its end: device locked, trials run and stored one by one.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use migperf_core::chain::chain;
use migperf_core::cohort::Phase;
use migperf_core::device::{Gpu, Inventory};
use migperf_core::ids::JobId;
use migperf_core::job::JobState;
use migperf_core::preflight;
use migperf_core::record::{JobRecord, TrialRecord};
use migperf_core::report::{TrialReport, Verdict};
use migperf_core::units::RealtimeNanos;
use tokio::sync::watch;

use crate::admission::{self, Admission};
use crate::clock;
use crate::host;
use crate::lock::{DeviceLock, LockError};
use crate::settings::Settings;
use crate::store::{Store, StoreError};
use crate::trial::{self, Surroundings};

/// How often a job that waits for its device looks again.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Between trials, looks at a device that is not as it should be before the job fails.
const LOOKS: u32 = 5;

/// A job as those who watch see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobView {
    /// Its number.
    pub id: JobId,
    /// Its identity between hosts.
    pub uid: String,
    /// The suite's name.
    pub name: String,
    /// User id of who submitted it.
    pub owner: u32,
    /// Where it stands.
    pub state: JobState,
    /// Why it waits or how it failed.
    pub reason: Option<String>,
    /// Trials planned.
    pub trials_total: u32,
    /// Trials that ended.
    pub trials_done: u32,
    /// Of these, without a valid result.
    pub trials_failed: u32,
    /// What the current trial measures.
    pub trial: Option<String>,
    /// Where the current trial stands.
    pub phase: Option<Phase>,
    /// When it will have ended, if trials last as estimated.
    pub estimated_end: Option<RealtimeNanos>,
}

impl JobView {
    /// A job that was just accepted.
    pub(super) fn queued(id: JobId, record: &JobRecord) -> Self {
        Self {
            id,
            uid: record.uid.0.clone(),
            name: record.plan.name.clone(),
            owner: record.owner.uid,
            state: JobState::Queued,
            reason: None,
            trials_total: u32::try_from(record.plan.trials.len()).unwrap_or(u32::MAX),
            trials_done: 0,
            trials_failed: 0,
            trial: None,
            phase: None,
            estimated_end: None,
        }
    }
}

/// Moves a job to a state, in the store first and then for everyone to see.
pub(super) fn settle(store: &Mutex<Store>, view: &watch::Sender<JobView>, state: JobState, reason: Option<&str>) {
    let id = view.borrow().id;
    let stored = store.lock().unwrap_or_else(PoisonError::into_inner).set_state(id, state, reason, clock::wall());
    if let Err(error) = stored {
        tracing::error!(job = %id, error = chain(&error), "a job's state can't be stored");
    }
    tracing::info!(job = %id, state = state.name(), reason, "job");
    view.send_modify(|view| {
        view.state = state;
        view.reason = reason.map(str::to_owned);
        if state.is_final() {
            (view.trial, view.phase) = (None, None);
        }
    });
}

/// A job whose turn it is.
pub(super) struct Run {
    pub(super) settings: Arc<Settings>,
    pub(super) store: Arc<Mutex<Store>>,
    pub(super) id: JobId,
    pub(super) admission: Admission,
    pub(super) record: JobRecord,
    pub(super) view: watch::Sender<JobView>,
    pub(super) stop: watch::Receiver<Option<String>>,
}

impl Run {
    pub(super) async fn run(mut self) {
        let (state, reason) = match self.trials().await {
            Ok(()) => (JobState::Done, None),
            Err((state, reason)) => (state, Some(reason)),
        };
        settle(&self.store, &self.view, state, reason.as_deref());
    }

    async fn trials(&mut self) -> Result<(), (JobState, String)> {
        let _lock = self.lock().await?;
        settle(&self.store, &self.view, JobState::Running, None);
        let failed = |reason: &str| (JobState::Failed, reason.to_owned());
        let libtorch = self.admission.libtorch.take().ok_or_else(|| failed("no libtorch was found"))?;
        let processors = host::processors();
        let largest = self.record.plan.cells.iter().map(|cell| cell.members.len()).max().unwrap_or(1);
        let estimate = self.record.plan.estimate();
        for (number, planned) in self.record.plan.trials.iter().enumerate() {
            self.check_stop()?;
            let rest: Duration = estimate.trials[number..].iter().map(|span| span.0).sum();
            self.view.send_modify(|view| {
                view.trial = Some(planned.spec.to_string());
                view.phase = Some(Phase::Preparing);
                view.estimated_end = Some(RealtimeNanos(clock::wall().0 + migperf_core::units::nanos(rest)));
            });
            let (gpu, simulated) = self.look().await?;
            let around = Surroundings {
                settings: &self.settings,
                libtorch: &libtorch,
                gpu: gpu.as_ref(),
                simulated,
                processors: &processors,
                largest,
                job: &self.record.uid.0,
                seed: self.record.plan.seed,
            };
            let view = &self.view;
            let measured = trial::run(around, planned, self.stop.clone(), |phase| {
                view.send_modify(|view| view.phase = Some(phase));
            })
            .await;
            self.keep(measured).await?;
        }
        self.check_stop()
    }

    /// Stores a trial before anything is computed from it, then judges it.
    async fn keep(&self, measured: TrialRecord) -> Result<(), (JobState, String)> {
        let (store, id) = (Arc::clone(&self.store), self.id);
        let stored = tokio::task::spawn_blocking(move || {
            let store = || store.lock().unwrap_or_else(PoisonError::into_inner);
            store().add_trial(id, &measured)?;
            let verdict = TrialReport::of(&measured).outcome;
            let failed = !matches!(verdict, Verdict::Valid | Verdict::Flagged | Verdict::DoesNotFit { .. });
            if failed {
                store().count_failed(id)?;
            }
            let (trial, what) = (measured.trial.index, measured.trial.spec.to_string());
            tracing::info!(job = %id, trial, what, ?verdict, "trial");
            Ok::<_, StoreError>(failed)
        });
        let failed = match stored.await {
            Ok(Ok(failed)) => failed,
            Ok(Err(error)) => return Err((JobState::Failed, format!("a trial can't be stored: {}", chain(&error)))),
            Err(error) => return Err((JobState::Failed, error.to_string())),
        };
        self.view.send_modify(|view| {
            view.trials_done += 1;
            view.trials_failed += u32::from(failed);
        });
        Ok(())
    }

    fn check_stop(&self) -> Result<(), (JobState, String)> {
        match &*self.stop.borrow() {
            Some(reason) => Err((JobState::Cancelled, reason.clone())),
            None => Ok(()),
        }
    }

    /// The GPU as it is now, held against the plan again: much can change between two trials. A process that is just
    /// leaving gets a moment.
    async fn look(&self) -> Result<(Option<Gpu>, bool), (JobState, String)> {
        let Some(before) = &self.admission.gpu else { return Ok((None, false)) };
        let mut looks = 0;
        loop {
            looks += 1;
            let nvml = self.settings.nvml.clone();
            let looked = tokio::task::spawn_blocking(move || admission::look(nvml.as_deref())).await;
            let inventory: Inventory = looked.map_err(|error| (JobState::Failed, error.to_string()))?;
            let Some(gpu) = inventory.gpus.iter().find(|gpu| gpu.uuid == before.uuid) else {
                let reason = inventory.nvml.reason().unwrap_or("it is not among the machine's GPUs any more");
                return Err((JobState::Failed, format!("the GPU {} is gone: {reason}", before.uuid)));
            };
            let refusals = preflight::check(&self.record.plan, gpu, self.settings.mps_control.is_some(), &[]);
            match refusals.first() {
                None => return Ok((Some(gpu.clone()), inventory.is_simulated())),
                Some(refusal) if looks == LOOKS => {
                    return Err((JobState::Failed, format!("{}; {}", refusal.problem, refusal.remedy)));
                }
                Some(_) => tokio::time::sleep(LOOK_AGAIN).await,
            }
            self.check_stop()?;
        }
    }

    /// Takes the device's lock, waiting while somebody else measures.
    async fn lock(&mut self) -> Result<DeviceLock, (JobState, String)> {
        let device = self.admission.gpu.as_ref().map_or_else(|| "cpu".to_owned(), |gpu| gpu.uuid.to_string());
        loop {
            self.check_stop()?;
            match DeviceLock::take(&device) {
                Ok(lock) => return Ok(lock),
                Err(error @ LockError::System { .. }) => return Err((JobState::Failed, chain(&error))),
                Err(error) => {
                    let reason = error.to_string();
                    if self.view.borrow().reason.as_deref() != Some(&reason) {
                        settle(&self.store, &self.view, JobState::WaitingForGpu, Some(&reason));
                    }
                    tokio::select! {
                        () = tokio::time::sleep(LOOK_AGAIN) => {}
                        _ = self.stop.wait_for(Option::is_some) => {}
                    }
                }
            }
        }
    }
}
