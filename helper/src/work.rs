//! Work on one GPU: a hand, an entry, and the loop that looks, writes down, and takes the next step.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use migperf_core::chain::chain;
use migperf_core::ids::GpuUuid;
use migperf_gpu::layout::{ComputeInstance, Division, GpuInstance, code};

use crate::bring::{self, Target};
use crate::engine::{Engine, within};
use crate::hand::{Answer, Hand, HandError, Request};
use crate::holders::{self, Change, Holder};
use crate::ledger::{Entry, LedgerError, Step};
use crate::nodes::NodeError;

/// How often a look or a step is tried that fails or does nothing.
const TRIES: u32 = 4;
/// Between two tries of something that is in use.
const PAUSE: Duration = Duration::from_millis(200);

/// Why work on a GPU could not go on.
#[derive(Debug, thiserror::Error)]
pub enum Cause {
    /// A call failed.
    #[error("{0}")]
    Hand(HandError),
    /// A call of a step failed.
    #[error("{0} failed: {1}")]
    Step(String, HandError),
    /// There is no room for an instance, by what the device says.
    #[error("no room for {what}: {free} free of {total} in the {layer}")]
    NoRoom {
        /// What was to be created.
        what: String,
        /// GPU or GPU instance.
        layer: String,
        /// More of it that could be created just then.
        free: u32,
        /// Of it at most.
        total: u32,
    },
    /// A call said that it succeeded, and nothing happened.
    #[error("{0} succeeded and did nothing, {TRIES} times")]
    NoEffect(String),
    /// Somebody is in the way.
    #[error("{what} is held up by {}", .holders.iter().map(Holder::to_string).collect::<Vec<_>>().join("; "))]
    Held {
        /// What.
        what: String,
        /// By whom.
        holders: Vec<Holder>,
    },
    /// There is nothing left that may be done, and it isn't there.
    #[error("the GPU became `{0}` instead")]
    NotReached(String),
    /// An answer that is none.
    #[error("an answer to another question: {0}")]
    Unexpected(String),
    /// What is to be done can't be written down.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// A device file can't be made.
    #[error(transparent)]
    Node(#[from] NodeError),
}

impl Cause {
    fn is_stuck(&self) -> bool {
        matches!(self, Self::Hand(HandError::Stuck(_)))
    }

    /// Whether it may pass by itself when somebody lets go.
    fn may_pass(&self) -> bool {
        match self {
            Self::Held { .. } => true,
            Self::Step(_, HandError::Refused(refusal)) => refusal.code == code::IN_USE,
            _ => false,
        }
    }
}

/// In which direction work goes.
#[derive(Debug, Clone, Copy)]
pub enum Way<'p> {
    /// To a layout: what is ours may go, and the instances of these numbers. The first failure ends it.
    Forward(&'p BTreeSet<u32>),
    /// Back: only what is ours may go. Every step is tried again.
    Back,
}

/// Work on one GPU.
pub struct Work<'e> {
    engine: &'e Engine,
    pub(crate) gpu: GpuUuid,
    hand: Option<Box<dyn Hand>>,
    pub(crate) entry: Option<Entry>,
    pub(crate) steps: u32,
}

impl std::fmt::Debug for Work<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Work").field("entry", &self.entry).field("steps", &self.steps).finish_non_exhaustive()
    }
}

impl<'e> Work<'e> {
    pub(crate) fn new(engine: &'e Engine, gpu: GpuUuid) -> Self {
        Self { engine, gpu, hand: None, entry: None, steps: 0 }
    }

    /// The entry; there is one from the first change on.
    pub(crate) fn entry_mut(&mut self) -> &mut Entry {
        self.entry.as_mut().expect("changes begin with an entry and end with it")
    }

    pub(crate) fn write(&mut self) -> Result<(), Cause> {
        let engine = self.engine;
        engine.ledger.write(self.entry_mut()).map_err(Cause::Ledger)
    }

    /// Asks the hand, a new one where there is none or the last one failed.
    pub(crate) fn ask(&mut self, request: &Request) -> Result<Answer, HandError> {
        let mut hand = match self.hand.take() {
            Some(hand) => hand,
            None => self.engine.hands.start()?,
        };
        let answer = hand.ask(request);
        let usable = matches!(answer, Ok(_) | Err(HandError::Refused(_) | HandError::NoSuchDevice(_)));
        // An NVML that knew the device before the mode changed must not be asked about it afterwards.
        if usable && !matches!(request, Request::SetMode(..)) {
            self.hand = Some(hand);
        }
        answer
    }

    /// How the GPU is divided; a passing fault does not count.
    pub(crate) fn look(&mut self) -> Result<Division, Cause> {
        let mut tries = 0;
        loop {
            tries += 1;
            match self.ask(&Request::Look(self.gpu.clone())) {
                Ok(Answer::Division(division)) => return Ok(division),
                Ok(other) => return Err(Cause::Unexpected(format!("{other:?}"))),
                Err(error @ HandError::Stuck(_)) => return Err(Cause::Hand(error)),
                Err(error) if tries >= TRIES => return Err(Cause::Hand(error)),
                Err(_) => {}
            }
        }
    }

    /// Who is in the way of a change.
    pub(crate) fn holders(&mut self, now: &Division, change: Change) -> Result<Vec<Holder>, Cause> {
        let mut tries = 0;
        let processes = loop {
            tries += 1;
            match self.ask(&Request::Processes(self.gpu.clone())) {
                Ok(Answer::Processes(processes)) => break processes,
                Ok(other) => return Err(Cause::Unexpected(format!("{other:?}"))),
                Err(error) if tries >= TRIES || matches!(error, HandError::Stuck(_)) => return Err(Cause::Hand(error)),
                Err(_) => {}
            }
        };
        Ok(holders::in_the_way(&self.engine.config.device_directory, now.minor, &processes, change))
    }

    /// Takes steps until the target is reached.
    pub(crate) fn drive(&mut self, target: &Target, way: Way<'_>) -> Result<Division, Cause> {
        let deadline = within(self.engine.config.release_limit_seconds);
        let mut last: Option<(Step, u32)> = None;
        loop {
            let now = self.look()?;
            self.entry_mut().absorb(&now);
            let entry = self.entry_mut();
            let may_go = |gpu: &GpuInstance| {
                entry.owns(gpu)
                    || matches!(way, Way::Forward(destroy) if destroy.contains(&gpu.id) && entry.was_found(gpu))
            };
            let replaces = matches!(way, Way::Forward(destroy) if !destroy.is_empty());
            let may_part = |compute: &ComputeInstance| {
                entry.owns_compute(compute) || (replaces && entry.found_compute(&compute.uuid))
            };
            let Some(step) = bring::next(target, &now, &may_go, &may_part) else {
                let reached = target.is_reached(&now);
                return if reached { Ok(now) } else { Err(Cause::NotReached(now.to_string())) };
            };
            let tried = match &last {
                Some((same, tried)) if *same == step => *tried,
                _ => 0,
            };
            if tried >= TRIES {
                return Err(Cause::NoEffect(shown(&step)));
            }
            self.entry_mut().pending = Some(step.clone());
            self.write()?;
            let failed = self.step(&step, &now).err();
            let waits = failed.as_ref().is_some_and(Cause::may_pass) && Instant::now() < deadline;
            last = Some((step.clone(), if waits { tried } else { tried + 1 }));
            match (failed, way) {
                (None, _) => self.steps += 1,
                (Some(cause), _) if cause.is_stuck() => return Err(cause),
                (Some(_), Way::Back) if waits => std::thread::sleep(PAUSE),
                (Some(cause), Way::Back) if tried + 1 >= TRIES => return Err(cause),
                (Some(cause), Way::Forward(_)) if !is_destroy(&step) || tried + 1 >= TRIES => return Err(cause),
                (Some(cause), _) => {
                    tracing::warn!(gpu = %self.gpu, step = shown(&step), cause = chain(&cause), "a step is tried again");
                }
            }
        }
    }

    fn step(&mut self, step: &Step, now: &Division) -> Result<(), Cause> {
        let gpu = self.gpu.clone();
        let request = match step {
            Step::SetMode(on) => {
                let holders = self.holders(now, Change::Mode)?;
                if !holders.is_empty() {
                    return Err(Cause::Held { what: shown(step), holders });
                }
                Request::SetMode(gpu, *on)
            }
            Step::DestroyCompute { gpu_instance, id, .. } => Request::DestroyComputeInstance(gpu, *gpu_instance, *id),
            Step::DestroyGpu { id, .. } => Request::DestroyGpuInstance(gpu, *id),
            Step::CreateGpu { profile_id, placement, .. } => Request::CreateGpuInstance(gpu, *profile_id, *placement),
            Step::CreateCompute { gpu_instance, profile, profile_id, placement } => {
                let profile_id = match profile_id {
                    Some(id) => *id,
                    None => self.part(*gpu_instance, profile.compute_slices(), step)?,
                };
                Request::CreateComputeInstance(gpu, *gpu_instance, profile_id, *placement)
            }
        };
        match self.ask(&request) {
            Ok(_) => Ok(()),
            Err(error @ HandError::Stuck(_)) => Err(Cause::Hand(error)),
            Err(HandError::Refused(refusal)) if refusal.code == code::INSUFFICIENT_RESOURCES => {
                Err(self.no_room(step).unwrap_or(Cause::Step(shown(step), HandError::Refused(refusal))))
            }
            Err(error) => Err(Cause::Step(shown(step), error)),
        }
    }

    /// The id of the first profile of so many slices that a GPU instance lists.
    fn part(&mut self, gpu_instance: u32, slices: u32, step: &Step) -> Result<u32, Cause> {
        let failed = |error| Cause::Step(shown(step), error);
        match self.ask(&Request::Parts(self.gpu.clone(), gpu_instance)) {
            Ok(Answer::Parts(parts)) => {
                let part = parts.iter().filter(|part| part.slices == slices).min_by_key(|part| part.id);
                let offered: Vec<String> = parts.iter().map(|part| format!("{}c", part.slices)).collect();
                let text = format!("GPU instance {gpu_instance} offers {} only", offered.join(", "));
                part.map(|part| part.id).ok_or_else(|| failed(HandError::Failed(text)))
            }
            Ok(other) => Err(Cause::Unexpected(format!("{other:?}"))),
            Err(error @ HandError::Stuck(_)) => Err(Cause::Hand(error)),
            Err(error) => Err(failed(error)),
        }
    }

    /// Which layer has no room, in the device's own numbers, where it tells them.
    fn no_room(&mut self, step: &Step) -> Option<Cause> {
        let what = shown(step);
        match step {
            Step::CreateCompute { gpu_instance, profile, .. } => {
                let Ok(Answer::Parts(parts)) = self.ask(&Request::Parts(self.gpu.clone(), *gpu_instance)) else {
                    return None;
                };
                let part = parts.iter().find(|part| part.slices == profile.compute_slices())?;
                let layer = format!("GPU instance {gpu_instance}");
                Some(Cause::NoRoom { what, layer, free: part.left, total: part.most })
            }
            Step::CreateGpu { profile_id, .. } => {
                let Ok(Answer::Profiles(profiles)) = self.ask(&Request::Profiles(self.gpu.clone())) else {
                    return None;
                };
                let profile = profiles.iter().find(|profile| profile.id == *profile_id)?;
                let there = self.look().ok()?;
                let there = there.instances.iter().filter(|gpu| gpu.profile_id == *profile_id).count();
                let total = profile.offer.most;
                let free = total.saturating_sub(u32::try_from(there).unwrap_or(u32::MAX));
                Some(Cause::NoRoom { what, layer: "GPU".to_owned(), free, total })
            }
            _ => None,
        }
    }

    /// Makes the device files that are missing.
    pub(crate) fn make_nodes(&mut self, now: &Division) -> Result<(), Cause> {
        let places = self.engine.places();
        let missing = places.missing(now)?;
        if missing.is_empty() {
            return Ok(());
        }
        self.entry_mut().nodes.extend(missing.iter().map(|node| node.path.clone()));
        self.write()?;
        missing.iter().try_for_each(|node| places.make(node)).map_err(Cause::Node)
    }

    /// Removes the device files that were made; says which could not be.
    pub(crate) fn remove_nodes(&mut self) -> Vec<String> {
        let places = self.engine.places();
        let nodes = std::mem::take(&mut self.entry_mut().nodes);
        let failed = nodes.iter().filter_map(|path| places.remove(path).err().map(|error| (path, error)));
        failed.map(|(path, error)| format!("the device file {} can't be removed: {error}", path.display())).collect()
    }
}

fn is_destroy(step: &Step) -> bool {
    matches!(step, Step::DestroyCompute { .. } | Step::DestroyGpu { .. })
}

/// A step in words.
fn shown(step: &Step) -> String {
    match step {
        Step::SetMode(on) => format!("switching MIG {}", if *on { "on" } else { "off" }),
        Step::DestroyCompute { uuid, .. } => format!("destroying the compute instance {uuid}"),
        Step::DestroyGpu { id, profile, placement } => {
            format!("destroying the GPU instance {id} ({profile}@{})", placement.start)
        }
        Step::CreateGpu { profile, placement, .. } => {
            format!("creating the GPU instance {profile}@{}", placement.start)
        }
        Step::CreateCompute { gpu_instance, profile, .. } => {
            format!("creating the compute instance {profile} in GPU instance {gpu_instance}")
        }
    }
}
