//! What one job does to its GPU's layout: changes on demand, and the way back when the job has ended.
//!
//! The helper performs and remembers; it also brings the GPU back when this daemon is gone, which it learns from a pipe
//! whose write end is held here and nowhere else.

use std::io::{PipeReader, PipeWriter};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use migperf_core::chain::chain;
use migperf_core::device::{Gpu, MigMode};
use migperf_core::ids::GpuUuid;
use migperf_core::mig::layout::Layout;
use migperf_core::record::{LayoutEnd, LayoutRecord};
use migperf_dbus::Keyed;
use migperf_dbus::error::Error as Said;
use migperf_dbus::helper::{Changed, apply, changed};
use tokio::time::Instant;

use crate::barrier::Switch;
use crate::helper::{Helper, HelperError};
use crate::layout::AppliedLayout;
use crate::lock::LockError;

/// How often something is tried that a process or a helper which is just ending stands in the way of.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// A change waits so long for those who are just leaving the GPU.
const LEAVE_LIMIT: Duration = Duration::from_secs(10);
/// The way back waits longer: until then the GPU is not as it was.
const RESTORE_LIMIT: Duration = Duration::from_secs(120);
/// A switch of the MIG mode waits so long for other trials on the host.
const OTHERS_LIMIT: Duration = Duration::from_secs(30 * 60);
/// Helpers that may die of one request.
const LIVES: u32 = 3;

/// Why a layout is not there.
#[derive(Debug, thiserror::Error)]
pub enum PartitionError {
    /// The helper did not do it.
    #[error(transparent)]
    Helper(HelperError),
    /// The MIG mode can't be switched.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// There is no pipe.
    #[error("can't make a pipe")]
    Pipe(#[source] std::io::Error),
    /// The job was cancelled meanwhile, or others stood in the way for too long.
    #[error("{0}")]
    Stopped(String),
    /// The device does not show what the helper said.
    #[error("{0}")]
    ReadBack(String),
}

/// What the GPU was like before the job's first change.
#[derive(Debug)]
struct Held {
    /// The end of its write end tells the helper that this daemon is gone: one pipe for all changes, so that the way back is
    /// not begun between two.
    pipe: (PipeReader, PipeWriter),
    found: Gpu,
    /// MIG devices that the last change left.
    uuids: Vec<String>,
}

/// A job's hand on its GPU's layout.
#[derive(Debug)]
pub struct Partition {
    helper: Arc<Helper>,
    nvml: Option<PathBuf>,
    gpu: GpuUuid,
    mandate: Mandate,
    held: Option<Held>,
    record: LayoutRecord,
}

/// For whom and how a job changes a layout.
#[derive(Debug, Clone)]
pub struct Mandate {
    /// Whether instances that were there before may be destroyed and created anew.
    pub replace_existing: bool,
    /// The user who asked for it.
    pub on_behalf_of: u32,
    /// What for.
    pub purpose: String,
}

impl Mandate {
    /// As the helper's options for a change.
    #[must_use]
    pub fn options(&self) -> Keyed {
        let mut options = self.way_back();
        options.insert(apply::REPLACE_EXISTING.to_owned(), self.replace_existing.into());
        options
    }

    /// As the helper's options for the way back.
    #[must_use]
    pub fn way_back(&self) -> Keyed {
        Keyed::from([
            (apply::ON_BEHALF_OF.to_owned(), self.on_behalf_of.into()),
            (apply::PURPOSE.to_owned(), zbus::Str::from(self.purpose.clone()).into()),
        ])
    }
}

impl Partition {
    /// A hand that has not moved yet.
    #[must_use]
    pub fn new(helper: Arc<Helper>, nvml: Option<PathBuf>, gpu: GpuUuid, mandate: Mandate) -> Self {
        Self { helper, nvml, gpu, mandate, held: None, record: LayoutRecord::default() }
    }

    /// Whether the layout is one that this job made.
    #[must_use]
    pub fn is_changed(&self) -> bool {
        self.held.is_some()
    }

    /// What was done so far.
    #[must_use]
    pub fn record(&self) -> &LayoutRecord {
        &self.record
    }

    /// Whether a change must be made before cohorts can run as they want on what is there. What this job made and what
    /// was undone meanwhile (its helper died) is made again.
    #[must_use]
    pub fn must_change(&self, there: &AppliedLayout, wanted: Option<&Layout>) -> bool {
        let undone = self.held.as_ref().is_some_and(|held| held.uuids != there.uuids());
        !there.serves(wanted) || (undone && wanted.is_some())
    }

    /// Brings a layout about.
    ///
    /// # Errors
    /// If the helper refuses or fails, or the device shows another layout afterwards.
    pub async fn change(
        &mut self,
        there: &AppliedLayout,
        wanted: Option<&Layout>,
        watcher: &dyn Watcher,
    ) -> Result<AppliedLayout, PartitionError> {
        let layout = wanted.map_or_else(|| "off".to_owned(), ToString::to_string);
        let options = self.mandate.options();
        // From now on the way back is owed, whatever the helper says.
        let held = match self.held.take() {
            Some(held) => self.held.insert(held),
            None => {
                let pipe = std::io::pipe().map_err(PartitionError::Pipe)?;
                self.held.insert(Held { pipe, found: there.gpu().clone(), uuids: Vec::new() })
            }
        };
        let switches = is_divided(there.gpu()) != wanted.is_some();
        tracing::info!(gpu = %self.gpu, layout, "the layout changes");
        let others = OTHERS_LIMIT;
        let what = What::Apply { layout: &layout, liveness: &held.pipe.0 };
        let request = Request {
            helper: &self.helper,
            nvml: self.nvml.as_deref(),
            gpu: &self.gpu,
            options: &options,
            what,
            switches,
            others,
        };
        let answer = request.insist(LEAVE_LIMIT, watcher).await?;
        note(&mut self.record, &answer);
        let read = AppliedLayout::read_back(self.nvml.clone(), &self.gpu).await.map_err(PartitionError::ReadBack)?;
        held.uuids = read.uuids();
        let mut told: Vec<String> =
            answer.0.iter().flat_map(|instance| &instance.compute).map(|compute| compute.uuid.clone()).collect();
        told.sort();
        if told != held.uuids || !read.serves(wanted) {
            let shown = |uuids: &[String]| if uuids.is_empty() { "none".to_owned() } else { uuids.join(", ") };
            let (told, there) = (shown(&told), shown(&held.uuids));
            let text =
                format!("the helper brought about `{layout}` ({told}), and the device shows other instances: {there}");
            return Err(PartitionError::ReadBack(text));
        }
        Ok(read)
    }

    /// Brings the GPU back to what was found, and says how that went; nothing where nothing was changed.
    pub async fn give_back(&mut self, watcher: &dyn Watcher) {
        let Some(held) = self.held.take() else { return };
        self.record.end = match self.restore(&held, watcher).await {
            Ok(end) => end,
            Err(error) => LayoutEnd::Failed { reason: chain(&error) },
        };
        match &self.record.end {
            LayoutEnd::AsFound => tracing::info!(gpu = %self.gpu, "the layout is as it was found"),
            end => tracing::error!(gpu = %self.gpu, ?end, "the layout is not as it was found"),
        }
    }

    async fn restore(&mut self, held: &Held, watcher: &dyn Watcher) -> Result<LayoutEnd, PartitionError> {
        let there = AppliedLayout::read_back(self.nvml.clone(), &self.gpu).await.map_err(PartitionError::ReadBack)?;
        let switches = is_divided(there.gpu()) != is_divided(&held.found);
        let options = self.mandate.way_back();
        let (what, others) = (What::Restore, OTHERS_LIMIT);
        let request = Request {
            helper: &self.helper,
            nvml: self.nvml.as_deref(),
            gpu: &self.gpu,
            options: &options,
            what,
            switches,
            others,
        };
        let answer = request.insist(RESTORE_LIMIT, &Unstoppable(watcher)).await?;
        note(&mut self.record, &answer);
        let read = AppliedLayout::read_back(self.nvml.clone(), &self.gpu).await.map_err(PartitionError::ReadBack)?;
        let mut left = texts(&answer.1, changed::LEFT);
        left.extend(difference(&held.found, read.gpu()));
        self.record.new_uuids = added(&held.found, read.gpu());
        Ok(if left.is_empty() { LayoutEnd::AsFound } else { LayoutEnd::Left { left } })
    }
}

/// Adds what a change did to the job's record.
fn note(record: &mut LayoutRecord, (_, did): &Changed) {
    record.changes += 1;
    record.mode_changed |= flag(did, changed::MODE_CHANGED);
}

/// An administrator's command: it waits for nobody's trial.
struct Impatient;

impl Watcher for Impatient {
    fn stop(&self) -> Option<String> {
        None
    }

    fn waits(&self, reason: &str) {
        tracing::info!(reason, "a change of a layout waits");
    }
}

/// Brings a GPU to a layout that outlasts this daemon, as the options say.
///
/// # Errors
/// If the helper refuses or fails, or trials run where the MIG mode must be switched.
pub async fn keep(
    helper: &Helper,
    nvml: Option<&Path>,
    gpu: &GpuUuid,
    layout: &str,
    options: &Keyed,
    switches: bool,
) -> Result<Changed, PartitionError> {
    let (reader, _writer) = std::io::pipe().map_err(PartitionError::Pipe)?;
    let what = What::Apply { layout, liveness: &reader };
    Request { helper, nvml, gpu, options, what, switches, others: Duration::ZERO }.insist(LEAVE_LIMIT, &Impatient).await
}

/// Brings a GPU back to what the helper found.
///
/// # Errors
/// If the helper refuses or fails, or trials run on this host.
pub async fn bring_back(
    helper: &Helper,
    nvml: Option<&Path>,
    gpu: &GpuUuid,
    options: &Keyed,
) -> Result<Changed, PartitionError> {
    let request = Request { helper, nvml, gpu, options, what: What::Restore, switches: true, others: Duration::ZERO };
    request.insist(LEAVE_LIMIT, &Impatient).await
}

/// Somebody who follows what goes on, and may want it to stop.
pub trait Watcher: Sync {
    /// Why it should stop, once it should.
    fn stop(&self) -> Option<String>;
    /// Hears what is waited for.
    fn waits(&self, reason: &str);
}

/// What must not be stopped: the way back.
struct Unstoppable<'a>(&'a dyn Watcher);

impl Watcher for Unstoppable<'_> {
    fn stop(&self) -> Option<String> {
        None
    }

    fn waits(&self, reason: &str) {
        self.0.waits(reason);
    }
}

#[derive(Clone, Copy)]
enum What<'a> {
    Apply { layout: &'a str, liveness: &'a PipeReader },
    Restore,
}

/// A request to the helper, and in what company it is made.
struct Request<'a> {
    helper: &'a Helper,
    nvml: Option<&'a Path>,
    gpu: &'a GpuUuid,
    options: &'a Keyed,
    what: What<'a>,
    /// The MIG mode changes: every NVML of ours must be closed.
    switches: bool,
    /// How long a switch waits for other trials of the host.
    others: Duration,
}

impl Request<'_> {
    async fn ask(&self) -> Result<Changed, HelperError> {
        match self.what {
            What::Restore => self.helper.restore(self.gpu.as_str(), self.options).await,
            What::Apply { layout, liveness } => {
                let liveness = liveness.try_clone().map_err(HelperError::NoDescriptor)?;
                self.helper.apply(self.gpu.as_str(), layout, OwnedFd::from(liveness), self.options).await
            }
        }
    }

    /// Asks until there is an answer that stays; those who are just leaving the GPU are waited for.
    async fn insist(&self, patience: Duration, watcher: &dyn Watcher) -> Result<Changed, PartitionError> {
        let switch = if self.switches { Some(clear(self.nvml, self.others, watcher).await?) } else { None };
        let deadline = Instant::now() + patience;
        let mut lives = LIVES;
        loop {
            // One that starts puts back first what an earlier one left, and needs NVML closed for it too.
            if let Err(error) = self.helper.ready().await {
                return Err(PartitionError::Helper(error));
            }
            let answer = {
                let _closed = match &switch {
                    Some(switch) => Some(switch.close_nvml().await),
                    None => None,
                };
                self.ask().await
            };
            match answer {
                Ok(changed) => return Ok(changed),
                // The next helper puts back first what this one left; then it is asked again.
                Err(error @ HelperError::Lost(_)) if lives > 1 => {
                    tracing::warn!(error = chain(&error), "the helper is asked again");
                    lives -= 1;
                }
                Err(HelperError::Said(Said::GpuBusy(text))) if Instant::now() < deadline => {
                    watcher.waits(&text);
                    tokio::time::sleep(LOOK_AGAIN).await;
                }
                Err(error) => return Err(PartitionError::Helper(error)),
            }
            if let Some(reason) = watcher.stop() {
                return Err(PartitionError::Stopped(reason));
            }
        }
    }
}

/// Marks the switch of a mode, and waits until no trial runs on the host.
async fn clear(nvml: Option<&Path>, patience: Duration, watcher: &dyn Watcher) -> Result<Switch, PartitionError> {
    let deadline = Instant::now() + patience;
    let mut switch = None;
    loop {
        let reason = match switch.take().map_or_else(|| Switch::mark(nvml), Ok) {
            Ok(mark) => {
                let trials = mark.in_its_way();
                if trials.is_empty() {
                    return Ok(mark);
                }
                switch = Some(mark);
                format!("the MIG mode is switched when no trial runs on this host; now on {}", trials.join(", "))
            }
            Err(error @ LockError::Held { .. }) => error.to_string(),
            Err(error) => return Err(error.into()),
        };
        if Instant::now() >= deadline {
            return Err(PartitionError::Stopped(reason));
        }
        watcher.waits(&reason);
        tokio::time::sleep(LOOK_AGAIN).await;
        if let Some(reason) = watcher.stop() {
            return Err(PartitionError::Stopped(reason));
        }
    }
}

fn is_divided(gpu: &Gpu) -> bool {
    matches!(gpu.mig.value(), Some(MigMode::Enabled))
}

/// A list of texts among keyed values.
pub(crate) fn texts(keyed: &Keyed, key: &str) -> Vec<String> {
    keyed.get(key).and_then(|value| Vec::<String>::try_from(value.clone()).ok()).unwrap_or_default()
}

/// A text among keyed values; empty where there is none.
pub(crate) fn text(keyed: &Keyed, key: &str) -> String {
    keyed.get(key).and_then(|value| String::try_from(value.clone()).ok()).unwrap_or_default()
}

/// A yes or no among keyed values.
pub(crate) fn flag(keyed: &Keyed, key: &str) -> bool {
    keyed.get(key).and_then(|value| bool::try_from(value.clone()).ok()).unwrap_or(false)
}

/// A number among keyed values; 0 where there is none.
pub(crate) fn number(keyed: &Keyed, key: &str) -> u32 {
    keyed.get(key).and_then(|value| u32::try_from(value.clone()).ok()).unwrap_or(0)
}

/// Profile and place of each MIG device, as texts, in one order.
fn placed(gpu: &Gpu) -> Vec<String> {
    let mut placed: Vec<String> = gpu
        .instances
        .value()
        .into_iter()
        .flatten()
        .map(|instance| {
            let profile = instance.profile.value().map_or("unknown", String::as_str);
            let place = instance.placement.value().map(|place| format!("@{}:{}", place.start, place.size));
            format!("{profile}{}", place.unwrap_or_default())
        })
        .collect();
    placed.sort();
    placed
}

/// How a GPU differs from what was found, seen by ourselves.
fn difference(found: &Gpu, now: &Gpu) -> Vec<String> {
    let mut left = Vec::new();
    if found.mig != now.mig {
        left.push(format!("the MIG mode was {:?} and is {:?}", found.mig, now.mig));
    }
    let (before, after) = (placed(found), placed(now));
    if before != after {
        let shown = |placed: &[String]| if placed.is_empty() { "none".to_owned() } else { placed.join(", ") };
        left.push(format!("the instances were {} and are {}", shown(&before), shown(&after)));
    }
    left
}

/// MIG devices that were not there when the job began.
fn added(found: &Gpu, now: &Gpu) -> Vec<String> {
    let before: Vec<&str> =
        found.instances.value().into_iter().flatten().map(|instance| instance.uuid.as_str()).collect();
    let after = now.instances.value().into_iter().flatten().map(|instance| instance.uuid.as_str());
    after.filter(|uuid| !before.contains(uuid)).map(str::to_owned).collect()
}
