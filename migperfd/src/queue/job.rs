//! One job from its turn to its end: device locked, trials run and stored one by one.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use migperf_core::chain::chain;
use migperf_core::cohort::Phase;
use migperf_core::ids::{GpuUuid, JobId};
use migperf_core::job::JobState;
use migperf_core::mig::layout::Layout;
use migperf_core::preflight::{self, LayoutMeans, Means};
use migperf_core::record::{JobRecord, TrialRecord};
use migperf_core::report::{TrialReport, Verdict};
use migperf_core::units::RealtimeNanos;
use tokio::sync::watch;

use crate::admission::Admission;
use crate::barrier::TrialMark;
use crate::clock;
use crate::helper::Helper;
use crate::host;
use crate::layout::AppliedLayout;
use crate::lock::{DeviceLock, LockError};
use crate::partition::{Mandate, Partition, PartitionError, Watcher};
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
    pub(super) helper: Arc<Helper>,
    pub(super) replace_existing: bool,
    pub(super) id: JobId,
    pub(super) admission: Admission,
    pub(super) record: JobRecord,
    pub(super) view: watch::Sender<JobView>,
    pub(super) stop: watch::Receiver<Option<String>>,
}

impl Watcher for Run {
    fn stop(&self) -> Option<String> {
        self.stop.borrow().clone()
    }

    /// What is being restored stays so.
    fn waits(&self, reason: &str) {
        let state = match self.view.borrow().state {
            JobState::Restoring => JobState::Restoring,
            _ => JobState::WaitingForGpu,
        };
        if self.view.borrow().reason.as_deref() != Some(reason) {
            settle(&self.store, &self.view, state, Some(reason));
        }
    }
}

/// How a job ends that doesn't end as done, and why.
type Ending = (JobState, String);

fn failed(reason: impl Into<String>) -> Ending {
    (JobState::Failed, reason.into())
}

impl Run {
    pub(super) async fn run(mut self) {
        let (state, reason) = match self.through().await {
            Ok(()) => (JobState::Done, None),
            Err((state, reason)) => (state, Some(reason)),
        };
        settle(&self.store, &self.view, state, reason.as_deref());
    }

    /// The trials, and the way back of the GPU's layout whatever ends them.
    async fn through(&mut self) -> Result<(), Ending> {
        let _lock = self.lock().await?;
        settle(&self.store, &self.view, JobState::Running, None);
        let Some(gpu) = self.admission.gpu.as_ref().map(|gpu| gpu.uuid.clone()) else { return self.trials(None).await };
        let mandate = Mandate {
            replace_existing: self.replace_existing,
            on_behalf_of: self.record.owner.uid,
            purpose: format!("job {} ({})", self.id, self.record.uid.0),
        };
        let mut partition = Partition::new(Arc::clone(&self.helper), self.settings.nvml.clone(), gpu, mandate);
        let ended = self.trials(Some(&mut partition)).await;
        if !partition.is_changed() {
            return ended;
        }
        settle(&self.store, &self.view, JobState::Restoring, ended.as_ref().err().map(|(_, reason)| reason.as_str()));
        self.view.send_modify(|view| (view.trial, view.phase) = (None, None));
        partition.give_back(self).await;
        self.keep_layout(&partition).await;
        match (partition.record().end.problem(), ended) {
            (None, ended) => ended,
            (Some(problem), Ok(())) => Err(failed(problem)),
            (Some(problem), Err((_, reason))) => Err(failed(format!("{reason}; {problem}"))),
        }
    }

    async fn trials(&mut self, mut partition: Option<&mut Partition>) -> Result<(), Ending> {
        let libtorch = self.admission.libtorch.take().ok_or_else(|| failed("no libtorch was found"))?;
        let processors = host::processors();
        let largest = self.record.plan.cells.iter().map(|cell| cell.members.len()).max().unwrap_or(1);
        let estimate = self.record.plan.estimate();
        let layouts = self.record.plan.layouts();
        for (number, planned) in self.record.plan.trials.iter().enumerate() {
            self.check_stop()?;
            let rest: Duration = estimate.trials[number..].iter().map(|span| span.0).sum();
            self.view.send_modify(|view| {
                view.trial = Some(planned.spec.to_string());
                view.phase = Some(Phase::Preparing);
                view.estimated_end = Some(RealtimeNanos(clock::wall().0 + migperf_core::units::nanos(rest)));
            });
            let (mark, device) = match partition.as_deref_mut() {
                None => (None, None),
                Some(partition) => {
                    let stretch = layouts.iter().rfind(|stretch| stretch.first <= planned.index);
                    let wanted = stretch.and_then(|stretch| stretch.layout.as_ref());
                    let (mark, device) = self.divide(partition, wanted).await?;
                    (Some(mark), Some(device))
                }
            };
            let around = Surroundings {
                settings: &self.settings,
                libtorch: &libtorch,
                device: device.as_ref(),
                processors: &processors,
                largest,
                job: &self.record.uid.0,
                seed: self.record.plan.seed,
            };
            let view = &self.view;
            let measured = trial::run(around, planned, self.stop.clone(), self.breaks(partition.as_deref()), |phase| {
                view.send_modify(|view| view.phase = Some(phase));
            })
            .await;
            drop(mark);
            self.keep(measured).await?;
        }
        self.check_stop()
    }

    /// Ends when the layout that a trial runs on can't be relied on any more: the helper that keeps it died.
    async fn breaks(&self, partition: Option<&Partition>) -> String {
        if partition.is_none_or(|partition| !partition.is_changed()) {
            return std::future::pending().await;
        }
        self.helper.ended().await;
        "the helper that keeps the GPU's layout died".to_owned()
    }

    /// The GPU with the layout that a trial wants, marked as being measured.
    async fn divide(
        &self,
        partition: &mut Partition,
        wanted: Option<&Layout>,
    ) -> Result<(TrialMark, AppliedLayout), Ending> {
        loop {
            if partition.is_changed() {
                // A helper that died kept the layout no longer; the next one has put it back before it answers.
                self.helper.ready().await.map_err(|error| failed(chain(&error)))?;
            }
            let there = self.look().await?;
            let device = if partition.must_change(&there, wanted) && self.helper.absence().is_none() {
                let changed = partition.change(&there, wanted, self).await;
                self.keep_layout(partition).await;
                changed.map_err(|error| match error {
                    PartitionError::Stopped(reason) => (JobState::Cancelled, reason),
                    error => failed(format!("the GPU's layout could not be changed: {}", chain(&error))),
                })?
            } else {
                there
            };
            match TrialMark::set(self.settings.nvml.as_deref(), &device.gpu().uuid) {
                Ok(Some(mark)) => {
                    if self.view.borrow().state == JobState::WaitingForGpu {
                        settle(&self.store, &self.view, JobState::Running, None);
                    }
                    return Ok((mark, device));
                }
                Ok(None) => self.waits("the MIG mode of a GPU of this host is being switched"),
                Err(error @ LockError::System { .. }) => return Err(failed(chain(&error))),
                Err(error) => self.waits(&error.to_string()),
            }
            tokio::time::sleep(LOOK_AGAIN).await;
            self.check_stop()?;
        }
    }

    /// Stores what became of the layout. That it can't be stored changes nothing on the GPU, and nothing for the trials.
    async fn keep_layout(&self, partition: &Partition) {
        let (store, id, record) = (Arc::clone(&self.store), self.id, partition.record().clone());
        let stored = tokio::task::spawn_blocking(move || {
            store.lock().unwrap_or_else(PoisonError::into_inner).set_layout(id, &record)
        });
        match stored.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::error!(job = %self.id, error = chain(&error), "the layout's record can't be stored");
            }
            Err(error) => tracing::error!(job = %self.id, %error, "the layout's record can't be stored"),
        }
    }

    /// Stores a trial before anything is computed from it, then judges it.
    async fn keep(&self, measured: TrialRecord) -> Result<(), Ending> {
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
            Ok(Err(error)) => return Err(failed(format!("a trial can't be stored: {}", chain(&error)))),
            Err(error) => return Err(failed(error.to_string())),
        };
        self.view.send_modify(|view| {
            view.trials_done += 1;
            view.trials_failed += u32::from(failed);
        });
        Ok(())
    }

    fn check_stop(&self) -> Result<(), Ending> {
        match &*self.stop.borrow() {
            Some(reason) => Err((JobState::Cancelled, reason.clone())),
            None => Ok(()),
        }
    }

    /// The GPU as it is now, held against the plan again: much can change between two trials. A process that is just
    /// leaving gets a moment.
    async fn look(&self) -> Result<AppliedLayout, Ending> {
        let uuid: &GpuUuid = self.admission.gpu.as_ref().map(|gpu| &gpu.uuid).expect("a GPU is measured");
        let layout = match self.helper.absence() {
            Some(absence) => LayoutMeans::None { why: &absence.to_string(), remedy: absence.remedy() },
            // What stands in the way of a layout is the helper's to say.
            None => LayoutMeans::ReplaceInstances,
        };
        let means = Means { mps_program: self.settings.mps_control.is_some(), layout, ours: &[] };
        let mut looks = 0;
        loop {
            looks += 1;
            let there = AppliedLayout::read_back(self.settings.nvml.clone(), uuid).await.map_err(failed)?;
            let refusals = preflight::check(&self.record.plan, there.gpu(), means);
            match refusals.first() {
                None => return Ok(there),
                Some(refusal) if looks == LOOKS => {
                    return Err(failed(format!("{}; {}", refusal.problem, refusal.remedy)));
                }
                Some(_) => tokio::time::sleep(LOOK_AGAIN).await,
            }
            self.check_stop()?;
        }
    }

    /// Takes the device's lock, waiting while somebody else measures.
    async fn lock(&mut self) -> Result<DeviceLock, Ending> {
        let device = self.admission.gpu.as_ref().map_or_else(|| "cpu".to_owned(), |gpu| gpu.uuid.to_string());
        loop {
            self.check_stop()?;
            match DeviceLock::take(&device) {
                Ok(lock) => return Ok(lock),
                Err(error @ LockError::System { .. }) => return Err(failed(chain(&error))),
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
