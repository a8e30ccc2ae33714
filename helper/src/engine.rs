//! Applying, rolling back, restoring: what the helper promises about a GPU's layout.
//!
//! One change at a time on the whole host, each step written down before it is made and read back after. Whatever fails,
//! the GPU goes back to what it was before the call; what can't be put back is said, with what an administrator would
//! type. Who asked is told in one line of the log for each change.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use migperf_core::chain::chain;
use migperf_core::device::MigMode;
use migperf_core::ids::{DeviceUuid, GpuUuid};
use migperf_core::mig::layout::Layout;
use migperf_gpu::layout::{Division, GpuInstance};

use crate::bring::{self, Target};
use crate::config::Config;
use crate::hand::{Answer, HandError, Hands, Request};
use crate::holders::{self, Change};
use crate::hooks;
use crate::ledger::{Entry, GpuLock, Hold, Identity, Ledger, LedgerError, State, is_on};
use crate::nodes::Places;
use crate::plan::{self, Plan};
use crate::request::audit;
pub use crate::request::{EngineError, Order, Outcome, Reconciled, Status};
use crate::work::{Cause, Way, Work};

/// A GPU with an open entry.
#[derive(Debug)]
struct Open {
    lock: GpuLock,
    entry: Entry,
}

/// The helper's work on GPUs.
pub struct Engine {
    pub(crate) config: Config,
    pub(crate) hands: Arc<dyn Hands>,
    pub(crate) ledger: Ledger,
    open: Mutex<BTreeMap<GpuUuid, Open>>,
    /// Hands that hang in the driver, of GPUs without an entry: their process, and when it started.
    stuck: Mutex<BTreeMap<GpuUuid, (u32, u64)>>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("config", &self.config).field("ledger", &self.ledger).finish_non_exhaustive()
    }
}

impl Engine {
    /// An engine that makes its calls through `hands`.
    #[must_use]
    pub fn new(config: Config, hands: Arc<dyn Hands>, ledger: Ledger) -> Self {
        Self { config, hands, ledger, open: Mutex::default(), stuck: Mutex::default() }
    }

    /// The configuration.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    fn open(&self) -> MutexGuard<'_, BTreeMap<GpuUuid, Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stuck(&self) -> MutexGuard<'_, BTreeMap<GpuUuid, (u32, u64)>> {
        self.stuck.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn identity(&self) -> Result<Identity, EngineError> {
        Identity::read(&self.config.boot_id, &self.config.driver_identity).map_err(EngineError::Identity)
    }

    pub(crate) fn places(&self) -> Places {
        Places {
            capabilities: self.config.capabilities_directory.clone(),
            devices: self.config.device_directory.clone(),
            numbers: self.config.device_numbers.clone(),
        }
    }

    /// Brings a GPU to a layout.
    ///
    /// # Errors
    /// If it may not or can't be; then the GPU is as it was before, unless the error says otherwise.
    pub fn apply(&self, gpu: &GpuUuid, layout: &Layout, order: &Order) -> Result<Outcome, EngineError> {
        let mut all = self.open();
        let result = self.apply_one(&mut all, gpu, layout, order);
        let did = match &result {
            Ok(outcome) => format!("done in {} steps: {}", outcome.steps, outcome.now),
            Err(error) => chain(error),
        };
        audit("apply", gpu, &layout.to_string(), order, &did);
        result
    }

    fn apply_one(
        &self,
        all: &mut BTreeMap<GpuUuid, Open>,
        gpu: &GpuUuid,
        layout: &Layout,
        order: &Order,
    ) -> Result<Outcome, EngineError> {
        self.not_stuck(gpu)?;
        let open = match all.remove(gpu) {
            Some(open) => Some(open),
            None => self.adopt(gpu)?,
        };
        let (lock, previous) = match open {
            Some(Open { lock, entry }) if entry.state == State::Settled => (lock, Some(entry)),
            Some(open) => {
                // It is on its way back, or that failed: first things first.
                let error = EngineError::Refused(format!("{gpu} is not yet as it was found; restore it first"));
                all.insert(gpu.clone(), open);
                return Err(error);
            }
            None => (self.ledger.lock(gpu)?, None),
        };
        let mut work = Work::new(self, gpu.clone());
        let prepared = self.prepare(&mut work, previous.as_ref(), layout, order);
        let keep = |all: &mut BTreeMap<_, _>, lock, entry| {
            all.insert(gpu.clone(), Open { lock, entry });
        };
        let (before, plan) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => {
                if let Some(entry) = previous {
                    keep(all, lock, entry);
                }
                return Err(error);
            }
        };
        if plan.target.is_reached(&before) && before.instances.iter().all(|gpu| !plan.destroy.contains(&gpu.id)) {
            let as_found = previous.is_none();
            if let Some(mut entry) = previous {
                entry.hold = order.hold;
                entry.wanted = layout.to_string();
                let written = self.ledger.write(&entry);
                keep(all, lock, entry);
                written?;
            }
            return Ok(Outcome { now: before.clone(), before, steps: 0, as_found, left: Vec::new() });
        }
        let first = previous.is_none();
        let mut entry = match previous.clone() {
            Some(entry) => entry,
            None => Entry::new(self.identity()?, before.clone(), layout.to_string(), order.hold),
        };
        entry.on_behalf_of = order.on_behalf_of;
        entry.purpose.clone_from(&order.purpose);
        entry.wanted = layout.to_string();
        entry.hold = order.hold;
        entry.state = State::Changing;
        if first {
            self.acquire(&mut entry)?;
        }
        work.entry = Some(entry);
        let outcome = self.forward(&mut work, &plan, &before, previous.as_ref());
        let entry = work.entry.take();
        let closed = first && matches!(outcome, Err(EngineError::RolledBack(_)));
        if let Some(entry) = entry.filter(|_| !closed) {
            keep(all, lock, entry);
        }
        outcome
    }

    /// Looks, plans, and makes sure that nobody is in the way. Changes nothing.
    fn prepare(
        &self,
        work: &mut Work<'_>,
        previous: Option<&Entry>,
        layout: &Layout,
        order: &Order,
    ) -> Result<(Division, Plan), EngineError> {
        let now = work.look().map_err(|cause| self.before_changes(&work.gpu, cause))?;
        if let MigMode::Pending { current, pending } = now.mode {
            let word = |on: bool| if on { "on" } else { "off" };
            return Err(EngineError::Refused(format!(
                "MIG is {} and will be {} after a reset of the GPU: reset it (`nvidia-smi -i {} --gpu-reset`), or take \
                 the change back (`nvidia-smi -i {} -mig {}`)",
                word(current),
                word(pending),
                now.index,
                now.index,
                u32::from(current)
            )));
        }
        let ours = |gpu: &GpuInstance| previous.is_some_and(|entry| entry.owns(gpu));
        let profiles = match (layout, now.mode) {
            (Layout::Off, _) | (_, MigMode::Unsupported) => Vec::new(),
            _ => match work.ask(&Request::Profiles(work.gpu.clone())) {
                Ok(Answer::Profiles(profiles)) => profiles,
                Ok(other) => return Err(self.before_changes(&work.gpu, Cause::Unexpected(format!("{other:?}")))),
                Err(error) => return Err(self.before_changes(&work.gpu, Cause::Hand(error))),
            },
        };
        let plan =
            plan::plan(&now, &profiles, layout, &ours, order.replace_existing).map_err(EngineError::Infeasible)?;
        if !plan.target.is_reached(&now) || !plan.destroy.is_empty() {
            let change = if is_on(now.mode) == plan.target.on { Change::Instances } else { Change::Mode };
            let holders = work.holders(&now, change).map_err(|cause| self.before_changes(&work.gpu, cause))?;
            if !holders.is_empty() {
                return Err(EngineError::Busy(holders));
            }
        }
        Ok((now, plan))
    }

    /// An error before anything was changed.
    fn before_changes(&self, gpu: &GpuUuid, cause: Cause) -> EngineError {
        match cause {
            Cause::Hand(HandError::NoSuchDevice(device)) => EngineError::NoSuchDevice(device),
            Cause::Hand(HandError::Stuck(pid)) => {
                let start = holders::stat(pid).map_or(0, |(_, start)| start);
                self.stuck().insert(gpu.clone(), (pid, start));
                EngineError::Quarantined(gpu.clone(), pid)
            }
            Cause::Hand(error) => EngineError::Nvml(error),
            Cause::Ledger(error) => EngineError::Ledger(error),
            other => EngineError::Refused(chain(&other)),
        }
    }

    fn not_stuck(&self, gpu: &GpuUuid) -> Result<(), EngineError> {
        let mut stuck = self.stuck();
        match stuck.get(gpu) {
            Some((pid, start)) if is_there(*pid, *start) => Err(EngineError::Quarantined(gpu.clone(), *pid)),
            Some(_) => {
                stuck.remove(gpu);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Writes the entry for the first time and runs the administrator's hook; without it nothing is changed.
    fn acquire(&self, entry: &mut Entry) -> Result<(), EngineError> {
        let Some(hook) = &self.config.hooks.acquire else { return Ok(()) };
        entry.acquired = true;
        self.ledger.write(entry)?;
        let limit = Duration::from_secs(self.config.hooks.limit_seconds);
        let Err(error) = hooks::run(hook, "acquire", &entry.found, limit) else { return Ok(()) };
        self.release(entry);
        self.ledger.close(&entry.found.gpu)?;
        Err(EngineError::Refused(format!("the GPU was not handed over: {}", chain(&error))))
    }

    /// Runs the administrator's hook after the GPU is as it was, also where acquiring was tried and failed.
    fn release(&self, entry: &mut Entry) {
        let hook = self.config.hooks.release.as_ref().filter(|_| entry.acquired);
        let Some(hook) = hook else { return };
        let limit = Duration::from_secs(self.config.hooks.limit_seconds);
        match hooks::run(hook, "release", &entry.found, limit) {
            Ok(()) => entry.acquired = false,
            Err(error) => {
                tracing::error!(gpu = %entry.found.gpu, error = chain(&error), "the GPU was not handed back to its scheduler");
                entry.left.push(format!("the release hook failed: {}", chain(&error)));
            }
        }
    }

    fn forward(
        &self,
        work: &mut Work<'_>,
        plan: &Plan,
        before: &Division,
        previous: Option<&Entry>,
    ) -> Result<Outcome, EngineError> {
        let reached = work.drive(&plan.target, Way::Forward(&plan.destroy)).and_then(|now| {
            work.make_nodes(&now)?;
            work.entry_mut().state = State::Settled;
            work.write()?;
            Ok(now)
        });
        let cause = match reached {
            Ok(now) => {
                let (before, steps) = (before.clone(), work.steps);
                return Ok(Outcome { before, now, steps, as_found: false, left: Vec::new() });
            }
            Err(cause) => cause,
        };
        if let Some(error) = self.quarantine(work, &cause) {
            return Err(error);
        }
        let cause = chain(&cause);
        tracing::warn!(gpu = %work.gpu, cause, "a change failed and is undone");
        let undone = match previous {
            None => self.back(work).map(|_| ()),
            Some(previous) => work.drive(&Target::like(before), Way::Back).and_then(|now| {
                work.make_nodes(&now)?;
                let entry = work.entry_mut();
                entry.state = State::Settled;
                entry.wanted.clone_from(&previous.wanted);
                entry.hold = previous.hold;
                work.write()
            }),
        };
        match undone {
            Ok(()) => Err(EngineError::RolledBack(cause)),
            Err(second) => {
                Err(self.rollback_failed(work, format!("{cause}; undoing it failed: {}", chain(&second)), &second))
            }
        }
    }

    fn quarantine(&self, work: &mut Work<'_>, cause: &Cause) -> Option<EngineError> {
        let Cause::Hand(HandError::Stuck(pid)) = cause else { return None };
        let start = holders::stat(*pid).map_or(0, |(_, start)| start);
        let entry = work.entry_mut();
        entry.state = State::Quarantined;
        entry.stuck = Some((*pid, start));
        entry.left = vec![format!("a call to the driver does not return (process {pid})")];
        if let Err(error) = work.write() {
            tracing::error!(gpu = %work.gpu, error = chain(&error), "the quarantine can't be written down");
        }
        tracing::error!(gpu = %work.gpu, pid, "a call to the driver does not return: the GPU is quarantined");
        Some(EngineError::Quarantined(work.gpu.clone(), *pid))
    }

    fn rollback_failed(&self, work: &mut Work<'_>, cause: String, second: &Cause) -> EngineError {
        if let Some(error) = self.quarantine(work, second) {
            return error;
        }
        // Whether it can be looked at or not: both is worth a try and no more.
        let now = work.look().ok();
        let entry = work.entry_mut();
        entry.state = State::RollbackFailed;
        entry.left = match &now {
            Some(now) => vec![format!("the GPU is `{now}` and was `{}`", entry.found)],
            None => vec![format!("the GPU can't be read; it was `{}`", entry.found)],
        };
        let (left, commands) = (entry.left.clone(), bring::commands(entry, now.as_ref()));
        if let Err(error) = work.write() {
            tracing::error!(gpu = %work.gpu, error = chain(&error), "the failed way back can't be written down");
        }
        tracing::error!(gpu = %work.gpu, cause, ?left, ?commands, "a GPU could not be put back");
        EngineError::RollbackFailed { cause, left, commands }
    }

    /// Goes back to what was found and closes the entry.
    fn back(&self, work: &mut Work<'_>) -> Result<(Division, Vec<String>), Cause> {
        work.entry_mut().state = State::Restoring;
        work.write()?;
        let now = work.look()?;
        work.entry_mut().absorb(&now);
        let (target, mut left) = bring::way_back(work.entry_mut(), &now);
        let now = work.drive(&target, Way::Back)?;
        left.extend(work.remove_nodes());
        let entry = work.entry_mut();
        entry.left.clear();
        self.release(entry);
        left.append(&mut entry.left);
        self.ledger.close(&work.gpu)?;
        work.entry = None;
        Ok((now, left))
    }

    /// Brings a GPU back to what was found. Where nothing is recorded nothing is done.
    ///
    /// # Errors
    /// If it can't be; then it is tried again later.
    pub fn restore(&self, gpu: &GpuUuid, order: &Order) -> Result<Outcome, EngineError> {
        let mut all = self.open();
        self.not_stuck(gpu)?;
        let open = match all.remove(gpu) {
            Some(open) => Some(open),
            None => self.adopt(gpu)?,
        };
        let Some(Open { lock, entry }) = open else {
            let mut work = Work::new(self, gpu.clone());
            let now = work.look().map_err(|cause| self.before_changes(gpu, cause))?;
            return Ok(Outcome { before: now.clone(), now, steps: 0, as_found: true, left: Vec::new() });
        };
        let wanted = entry.found.to_string();
        let (result, kept) = self.restore_entry(entry);
        if let Some(entry) = kept {
            all.insert(gpu.clone(), Open { lock, entry });
        }
        let did = match &result {
            Ok(outcome) if outcome.left.is_empty() => format!("done in {} steps", outcome.steps),
            Ok(outcome) => format!("done in {} steps, but for: {}", outcome.steps, outcome.left.join(", ")),
            Err(error) => chain(error),
        };
        audit("restore", gpu, &wanted, order, &did);
        result
    }

    fn restore_entry(&self, entry: Entry) -> (Result<Outcome, EngineError>, Option<Entry>) {
        let gpu = entry.found.gpu.clone();
        if let Some((pid, start)) = entry.stuck.filter(|(pid, start)| is_there(*pid, *start)) {
            tracing::error!(%gpu, pid, start, "the GPU is still quarantined");
            return (Err(EngineError::Quarantined(gpu, pid)), Some(entry));
        }
        let mut work = Work::new(self, gpu);
        work.entry = Some(entry);
        let result = self.restore_work(&mut work);
        (result, work.entry.take())
    }

    fn restore_work(&self, work: &mut Work<'_>) -> Result<Outcome, EngineError> {
        let done = self.foreign(work).and_then(|before| self.back(work).map(|(now, left)| (before, now, left)));
        match done {
            Ok((before, now, left)) => {
                let as_found = left.is_empty();
                Ok(Outcome { before, now, steps: work.steps, as_found, left })
            }
            Err(cause) => Err(self.rollback_failed(work, chain(&cause), &cause)),
        }
    }

    /// Looks, and makes an entry of another life of the machine one of this.
    fn foreign(&self, work: &mut Work<'_>) -> Result<Division, Cause> {
        let now = work.look()?;
        let identity = self.identity().map_err(|error| Cause::Unexpected(chain(&error)))?;
        let entry = work.entry_mut();
        if entry.identity != identity {
            let found = entry.found.to_string();
            tracing::info!(gpu = %now.gpu, found, now = %now, "an entry is of another boot or driver load: instances are not ours");
            entry.renew(identity, &now);
        }
        Ok(now)
    }

    /// Takes over an entry that another helper left and that nobody holds.
    fn adopt(&self, gpu: &GpuUuid) -> Result<Option<Open>, EngineError> {
        if self.ledger.read(gpu)?.is_none() {
            return Ok(None);
        }
        let lock = self.ledger.lock(gpu)?;
        // It may have been closed before the lock was free.
        Ok(self.ledger.read(gpu)?.map(|entry| Open { lock, entry }))
    }

    /// Puts back whatever an earlier helper left: every entry that nobody holds, but for those that are to be kept.
    ///
    /// # Errors
    /// If the ledger can't be read. Failures of single GPUs are in the list.
    pub fn reconcile(&self, order: &Order) -> Result<Vec<Reconciled>, EngineError> {
        let mut results = Vec::new();
        for (gpu, entry) in self.ledger.entries()? {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => {
                    results.push((gpu, Err(error.into())));
                    continue;
                }
            };
            let own = entry.identity == self.identity()?;
            if own && entry.hold == Hold::UntilRestored && entry.state == State::Settled {
                tracing::info!(%gpu, wanted = entry.wanted, "a layout is kept until it is restored");
                continue;
            }
            match self.restore(&gpu, order) {
                Err(EngineError::Ledger(LedgerError::Held(_))) => {}
                result => results.push((gpu, result.map(|_| ()))),
            }
        }
        Ok(results)
    }

    /// Tries again what could not be put back. Says whether any GPU still has an entry of this helper's that isn't settled.
    pub fn tend(&self, order: &Order) -> bool {
        let waiting: Vec<GpuUuid> = {
            let all = self.open();
            all.iter().filter(|(_, open)| open.entry.state != State::Settled).map(|(gpu, _)| gpu.clone()).collect()
        };
        waiting.iter().any(|gpu| self.restore(gpu, order).is_err())
    }

    /// Whether a GPU has an open entry of this helper's that does not outlive it.
    #[must_use]
    pub fn is_holding(&self) -> bool {
        let kept = |open: &Open| open.entry.hold == Hold::UntilRestored && open.entry.state == State::Settled;
        // While it is locked something is being done.
        self.open.try_lock().map_or(true, |all| all.values().any(|open| !kept(open)))
    }

    /// Every GPU that is not as it was found, by the ledger; it waits for nobody.
    ///
    /// # Errors
    /// If the ledger can't be read.
    pub fn report(&self) -> Result<Vec<Status>, EngineError> {
        let mut report = Vec::new();
        for (gpu, entry) in self.ledger.entries()? {
            report.push(match entry {
                Ok(entry) => Status::of(&entry),
                Err(error) => Status {
                    gpu,
                    state: "rollback-failed",
                    found: String::new(),
                    wanted: String::new(),
                    left: vec![chain(&error)],
                    commands: Vec::new(),
                },
            });
        }
        for (gpu, (pid, start)) in self.stuck().iter() {
            if is_there(*pid, *start) && report.iter().all(|status| status.gpu != *gpu) {
                report.push(Status {
                    gpu: gpu.clone(),
                    state: "quarantined",
                    found: String::new(),
                    wanted: String::new(),
                    left: vec![format!("a call to the driver does not return (process {pid})")],
                    commands: vec![format!("cat /proc/{pid}/stack"), "dmesg".to_owned()],
                });
            }
        }
        Ok(report)
    }

    /// Makes sure that a device is there.
    ///
    /// # Errors
    /// If it isn't, or NVML can't be asked.
    pub fn exists(&self, device: &DeviceUuid) -> Result<(), EngineError> {
        let request = match device {
            DeviceUuid::Gpu(gpu) => Request::Look(gpu.clone()),
            DeviceUuid::Mig(mig) => Request::Exists(mig.clone()),
        };
        let asked = self.hands.start().and_then(|mut hand| hand.ask(&request));
        match asked {
            Ok(_) => Ok(()),
            Err(HandError::NoSuchDevice(device)) => Err(EngineError::NoSuchDevice(device)),
            Err(error) => Err(EngineError::Nvml(error)),
        }
    }

    /// Every GPU.
    ///
    /// # Errors
    /// If NVML can't be asked.
    pub fn gpus(&self) -> Result<Vec<GpuUuid>, EngineError> {
        match self.hands.start().and_then(|mut hand| hand.ask(&Request::Gpus)) {
            Ok(Answer::Gpus(gpus)) => Ok(gpus),
            Ok(other) => Err(EngineError::Nvml(HandError::Failed(format!("an answer to another question: {other:?}")))),
            Err(error) => Err(EngineError::Nvml(error)),
        }
    }
}

fn is_there(pid: u32, start: u64) -> bool {
    holders::stat(pid).is_some_and(|(_, started)| started == start)
}

/// The time by which something must be over.
#[must_use]
pub fn within(seconds: u64) -> Instant {
    Instant::now() + Duration::from_secs(seconds)
}

/// Where the ledger lies in the state directory.
#[must_use]
pub fn ledger_directory(config: &Config) -> PathBuf {
    config.state_directory.join("gpu")
}
