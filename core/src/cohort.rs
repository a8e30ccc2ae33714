//! A cohort's life as a state machine: workers' messages and the time in, messages to workers out.
//!
//! It decides when to warm, start, extend and stop, and when a cohort has failed; it owns no socket, process or clock.
//! The whole cohort fails when one member does: survivors are never compared quietly.

use std::time::Duration;

use crate::proof::{self, ProofError};
use crate::sample::{Interval, Sample, Samples, SamplesError};
use crate::trial::Timing;
use crate::units::MonotonicNanos;
use crate::worker_wire::{Built, Done, FailureKind, FromWorker, MemberConfig, PROTOCOL, Ready, ToWorker};
use crate::workload::Cudnn;

/// From the last Ready to the common start.
const START_DELAY: Duration = Duration::from_millis(500);
/// A member that leaves its wait later than this after the common start fails the cohort.
const LATEST_START: Duration = Duration::from_millis(250);
/// A member that completes no batch for this long, and for [`STALL_BATCHES`] of its batches, hangs.
const STALL: Duration = Duration::from_secs(30);
const STALL_BATCHES: u64 = 20;
/// After `stop` members have this long, and [`STALL_BATCHES`] of their batches, to hand over their samples.
const HAND_OVER: Duration = Duration::from_secs(60);
/// After the end of a window every member must report progress within this time.
const PROGRESS_LIMIT: Duration = Duration::from_secs(10);

/// What happens to a cohort.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A member said something.
    Message(usize, FromWorker),
    /// A member handed over samples.
    Samples(usize, Vec<Sample>),
    /// A member's connection or process ended; how, for people.
    Gone(usize, String),
    /// The control daemon was asked whether every member is its client.
    MpsProved(Result<(), String>),
    /// Time passed.
    Tick,
    /// The trial must end now; why, for people.
    Abort(Abort, String),
}

/// Why a trial is ended from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Abort {
    /// Somebody cancelled the job.
    Cancelled,
    /// A process of somebody else's came to the device.
    Contaminated,
    /// What the cohort depends on broke: its MPS control daemon, its device's layout.
    Failed,
}

/// What the cohort's owner must do.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Send a message to a member.
    Send(usize, ToWorker),
    /// Ask the MPS control daemon whether these processes are its clients, and answer with [`Event::MpsProved`].
    ProveMps(Vec<u32>),
    /// Every window has closed: device telemetry need go on no longer.
    WindowClosed,
    /// It is over: take the result, end what still runs.
    Finished,
}

/// Where a cohort stands, for people who watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Workers start, prove their allocation and build.
    Preparing,
    /// Workers warm up.
    Warming,
    /// Batches run and don't count yet.
    Settling,
    /// Batches count.
    Measuring,
    /// Samples are handed over.
    Collecting,
    /// Over.
    Finished,
}

/// Why a cohort has no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CohortError {
    /// A member's workload needs more memory than there is.
    #[error("member {member} does not fit: {detail}")]
    DoesNotFit {
        /// Which member.
        member: usize,
        /// What the allocator said.
        detail: String,
    },
    /// A member has not the device it was assigned.
    #[error("member {member} can't prove its allocation: {reason}")]
    Allocation {
        /// Which member.
        member: usize,
        /// What contradicts it.
        reason: String,
    },
    /// The members are not clients of the MPS control daemon.
    #[error("the cohort can't prove that it runs under MPS: {0}")]
    Mps(String),
    /// A member said that it failed.
    #[error("member {member} failed: {message}")]
    Member {
        /// Which member.
        member: usize,
        /// Its words.
        message: String,
    },
    /// A member ended before it was done.
    #[error("member {member} ended early: {how}")]
    Gone {
        /// Which member.
        member: usize,
        /// Exit status or signal.
        how: String,
    },
    /// A member acts on another configuration than the plan's.
    #[error("member {member} is configured differently from the plan (digest {found}, planned {planned})")]
    Disagreement {
        /// Which member.
        member: usize,
        /// Its digest.
        found: String,
        /// The plan's.
        planned: String,
    },
    /// A member broke the protocol.
    #[error("member {member} broke the protocol: {what}")]
    Protocol {
        /// Which member.
        member: usize,
        /// How.
        what: String,
    },
    /// Members were not Ready in time.
    #[error("members {missing:?} were not ready within {limit:?}")]
    NotReady {
        /// Which members.
        missing: Vec<usize>,
        /// The limit.
        limit: Duration,
    },
    /// A member started late.
    #[error("member {member} started {late:?} after the common start")]
    Late {
        /// Which member.
        member: usize,
        /// By how much.
        late: Duration,
    },
    /// A member stopped making progress.
    #[error("member {member} hangs: {what}")]
    Hang {
        /// Which member.
        member: usize,
        /// What it did not do.
        what: String,
    },
    /// The trial was ended from outside.
    #[error("{reason}")]
    Aborted {
        /// Why.
        cause: Abort,
        /// For people.
        reason: String,
    },
}

/// One member of a cohort that ran through.
#[derive(Debug, Clone, PartialEq)]
pub struct MemberResult {
    /// Its process.
    pub pid: u32,
    /// Its device and build.
    pub built: Built,
    /// Its warm-up.
    pub ready: Ready,
    /// Its end.
    pub done: Done,
    /// Its batches since the common start.
    pub samples: Samples,
}

/// A cohort that ran through.
#[derive(Debug, Clone, PartialEq)]
pub struct CohortResult {
    /// The common start.
    pub start: MonotonicNanos,
    /// The window in which batches count.
    pub window: Interval,
    /// Whether the window was extended for want of batches.
    pub extended: bool,
    /// In the order of the plan.
    pub members: Vec<MemberResult>,
}

#[derive(Debug, Default)]
struct Member {
    pid: Option<u32>,
    built: Option<Built>,
    warming: bool,
    ready: Option<Ready>,
    completed: u64,
    counted: u64,
    /// When `completed` last grew.
    moved: MonotonicNanos,
    /// When progress was last reported.
    reported: MonotonicNanos,
    samples: Vec<Sample>,
    done: Option<Done>,
}

#[derive(Debug, Clone, Copy)]
enum State {
    Preparing,
    ProvingMps,
    Warming,
    Running { start: MonotonicNanos, window: Interval, extended: bool },
    Collecting { start: MonotonicNanos, window: Interval, extended: bool, since: MonotonicNanos },
}

/// A cohort on its way from started processes to samples.
#[derive(Debug)]
pub struct Cohort {
    configs: Vec<MemberConfig>,
    timing: Timing,
    mps: bool,
    began: MonotonicNanos,
    members: Vec<Member>,
    state: State,
    over: Option<Result<CohortResult, CohortError>>,
}

impl Cohort {
    /// A cohort whose workers are being started now. `mps` asks for the control daemon's proof before warm-up.
    ///
    /// # Panics
    /// If there is no member.
    #[must_use]
    pub fn new(configs: Vec<MemberConfig>, mps: bool, now: MonotonicNanos) -> Self {
        let timing = configs.first().expect("a cohort has members").timing;
        let members = configs.iter().map(|_| Member::default()).collect();
        Self { configs, timing, mps, began: now, members, state: State::Preparing, over: None }
    }

    /// Takes an event and says what to do. After [`Action::Finished`] nothing more comes.
    pub fn on(&mut self, now: MonotonicNanos, event: Event) -> Vec<Action> {
        if self.over.is_some() {
            return Vec::new();
        }
        let mut actions = Vec::new();
        let step = self.take(now, event, &mut actions).and_then(|()| self.advance(now, &mut actions));
        match step {
            Err(error) => self.over = Some(Err(error)),
            Ok(None) => return actions,
            Ok(Some(result)) => self.over = Some(Ok(result)),
        }
        actions.push(Action::Finished);
        actions
    }

    /// When the next [`Event::Tick`] is due at the latest.
    #[must_use]
    pub fn wake_at(&self, now: MonotonicNanos) -> MonotonicNanos {
        match self.state {
            State::Preparing | State::ProvingMps | State::Warming => self.began.plus(self.timing.ready_limit.0),
            State::Running { window, .. } => {
                let stall = self.members.iter().map(|m| m.moved.plus(self.stall_limit(m))).min();
                let closing = if now < window.to { window.to } else { window.to.plus(PROGRESS_LIMIT) };
                stall.map_or(closing, |stall| stall.min(closing))
            }
            State::Collecting { since, .. } => since.plus(self.hand_over_limit()),
        }
    }

    /// Where it stands.
    #[must_use]
    pub fn phase(&self, now: MonotonicNanos) -> Phase {
        match self.state {
            _ if self.over.is_some() => Phase::Finished,
            State::Preparing | State::ProvingMps => Phase::Preparing,
            State::Warming => Phase::Warming,
            State::Running { window, .. } if now < window.from => Phase::Settling,
            State::Running { .. } => Phase::Measuring,
            State::Collecting { .. } => Phase::Collecting,
        }
    }

    /// The window in which batches count, once the start is set. It may still be extended.
    #[must_use]
    pub fn window(&self) -> Option<Interval> {
        match self.state {
            State::Running { window, .. } | State::Collecting { window, .. } => Some(window),
            _ => None,
        }
    }

    /// The result, once it is over.
    #[must_use]
    pub fn into_result(self) -> Option<Result<CohortResult, CohortError>> {
        self.over
    }

    fn take(&mut self, now: MonotonicNanos, event: Event, actions: &mut Vec<Action>) -> Result<(), CohortError> {
        match event {
            Event::Tick => Ok(()),
            Event::Abort(cause, reason) => Err(CohortError::Aborted { cause, reason }),
            Event::MpsProved(proof) => match (self.state, proof) {
                (State::ProvingMps, Ok(())) => {
                    self.state = State::Warming;
                    Ok(())
                }
                (_, Ok(())) => Ok(()),
                (_, Err(reason)) => Err(CohortError::Mps(reason)),
            },
            Event::Gone(member, _) if self.members[member].done.is_some() => Ok(()),
            Event::Gone(member, how) => Err(CohortError::Gone { member, how }),
            Event::Samples(member, samples) => match self.state {
                State::Collecting { .. } if self.members[member].done.is_none() => {
                    self.members[member].samples.extend(samples);
                    Ok(())
                }
                _ => Err(unexpected(member, "samples")),
            },
            Event::Message(member, message) => self.message(now, member, message, actions),
        }
    }

    fn message(
        &mut self,
        now: MonotonicNanos,
        index: usize,
        message: FromWorker,
        actions: &mut Vec<Action>,
    ) -> Result<(), CohortError> {
        let member = &mut self.members[index];
        match (message, self.state) {
            (FromWorker::Hello { protocol, pid, .. }, State::Preparing) if member.pid.is_none() => {
                if protocol != PROTOCOL {
                    let what = format!("it speaks version {protocol}, this daemon {PROTOCOL}");
                    return Err(CohortError::Protocol { member: index, what });
                }
                member.pid = Some(pid);
                actions.push(Action::Send(index, ToWorker::Prepare(Box::new(self.configs[index].clone()))));
                Ok(())
            }
            (FromWorker::Built(built), State::Preparing) if member.pid.is_some() && member.built.is_none() => {
                proof::check(&self.configs[index].allocation, &built.proof).map_err(|error: ProofError| {
                    CohortError::Allocation { member: index, reason: error.to_string() }
                })?;
                member.built = Some(built);
                Ok(())
            }
            (FromWorker::Ready(ready), State::Warming) if member.warming && member.ready.is_none() => {
                let planned = self.configs[index].digest();
                if ready.digest != planned {
                    let (found, planned) = (ready.digest.0, planned.0);
                    return Err(CohortError::Disagreement { member: index, found, planned });
                }
                member.ready = Some(ready);
                Ok(())
            }
            (FromWorker::Progress { completed, counted }, State::Running { .. } | State::Collecting { .. }) => {
                if completed > member.completed {
                    member.moved = now;
                }
                (member.completed, member.counted, member.reported) = (completed, counted, now);
                Ok(())
            }
            (FromWorker::Done(done), State::Collecting { start, .. }) if member.done.is_none() => {
                let late = done.started.since(start);
                if late > LATEST_START {
                    return Err(CohortError::Late { member: index, late });
                }
                if done.samples != member.samples.len() as u64 {
                    let what = format!("it announced {} samples and sent {}", done.samples, member.samples.len());
                    return Err(CohortError::Protocol { member: index, what });
                }
                member.done = Some(done);
                Ok(())
            }
            (FromWorker::Failed { kind, message }, _) => Err(match kind {
                FailureKind::DoesNotFit => CohortError::DoesNotFit { member: index, detail: message },
                FailureKind::Allocation => CohortError::Allocation { member: index, reason: message },
                _ => CohortError::Member { member: index, message },
            }),
            (message, _) => Err(unexpected(index, message_name(&message))),
        }
    }

    /// Moves on as far as the members' states and the time allow.
    fn advance(&mut self, now: MonotonicNanos, actions: &mut Vec<Action>) -> Result<Option<CohortResult>, CohortError> {
        if let State::Preparing = self.state
            && self.members.iter().all(|member| member.built.is_some())
        {
            if self.mps {
                self.state = State::ProvingMps;
                actions.push(Action::ProveMps(self.members.iter().filter_map(|member| member.pid).collect()));
            } else {
                self.state = State::Warming;
            }
        }
        if let State::Warming = self.state {
            self.warm(actions);
            if self.members.iter().all(|member| member.ready.is_some()) {
                self.start(now, actions);
            }
        }
        match self.state {
            State::Preparing | State::ProvingMps | State::Warming => self.check_ready_limit(now).map(|()| None),
            State::Running { start, window, extended } => {
                self.check_stalls(now)?;
                if now >= window.to {
                    self.close_window(now, start, window, extended, actions)?;
                }
                Ok(None)
            }
            State::Collecting { start, window, extended, since } => {
                if self.members.iter().all(|member| member.done.is_some()) {
                    return self.collect(start, window, extended).map(Some);
                }
                let limit = self.hand_over_limit();
                match self.members.iter().position(|member| member.done.is_none()) {
                    Some(member) if now >= since.plus(limit) => {
                        let what = format!("it did not hand over its samples within {limit:?}");
                        Err(CohortError::Hang { member, what })
                    }
                    _ => Ok(None),
                }
            }
        }
    }

    /// Sends `warm` to every member; to those that tune cuDNN one at a time, while the others wait.
    fn warm(&mut self, actions: &mut Vec<Action>) {
        let tunes = |index: &usize| self.configs[*index].workload.cudnn == Cudnn::Tuned;
        let tuning = (0..self.members.len()).find(|index| tunes(index) && self.members[*index].ready.is_none());
        let turn = tuning.map_or(0..self.members.len(), |index| index..index + 1);
        for index in turn {
            if !self.members[index].warming {
                self.members[index].warming = true;
                actions.push(Action::Send(index, ToWorker::Warm));
            }
        }
    }

    fn start(&mut self, now: MonotonicNanos, actions: &mut Vec<Action>) {
        let at = now.plus(START_DELAY);
        let from = at.plus(self.timing.settle.0);
        let window = Interval { from, to: from.plus(self.timing.window.0) };
        for (index, member) in self.members.iter_mut().enumerate() {
            member.moved = at;
            actions.push(Action::Send(index, ToWorker::Start { at, count_from: from }));
        }
        self.state = State::Running { start: at, window, extended: false };
    }

    fn check_ready_limit(&self, now: MonotonicNanos) -> Result<(), CohortError> {
        let limit = self.timing.ready_limit.0;
        if now < self.began.plus(limit) {
            return Ok(());
        }
        let missing = (0..self.members.len()).filter(|index| self.members[*index].ready.is_none()).collect();
        Err(CohortError::NotReady { missing, limit })
    }

    fn stall_limit(&self, member: &Member) -> Duration {
        let typical = member.ready.as_ref().map_or(0, |ready| ready.typical_ns);
        STALL.max(Duration::from_nanos(typical.saturating_mul(STALL_BATCHES * self.members.len() as u64)))
    }

    fn hand_over_limit(&self) -> Duration {
        self.members.iter().map(|member| self.stall_limit(member)).max().unwrap_or(STALL) + HAND_OVER
    }

    fn check_stalls(&self, now: MonotonicNanos) -> Result<(), CohortError> {
        for (index, member) in self.members.iter().enumerate() {
            let limit = self.stall_limit(member);
            if now >= member.moved.plus(limit) {
                return Err(CohortError::Hang { member: index, what: format!("no batch completed for {limit:?}") });
            }
        }
        Ok(())
    }

    /// At the end of the window: stops everyone, or extends while a member has too few batches.
    fn close_window(
        &mut self,
        now: MonotonicNanos,
        start: MonotonicNanos,
        window: Interval,
        extended: bool,
        actions: &mut Vec<Action>,
    ) -> Result<(), CohortError> {
        if let Some(member) = self.members.iter().position(|member| member.reported < window.to) {
            if now >= window.to.plus(PROGRESS_LIMIT) {
                let what = format!("it reported no progress for {PROGRESS_LIMIT:?}");
                return Err(CohortError::Hang { member, what });
            }
            return Ok(());
        }
        let fewest = self.members.iter().map(|member| counted_in(member, window)).min().unwrap_or(0);
        let longest = window.from.plus(self.timing.longest_window.0);
        if fewest < u64::from(self.timing.minimum_batches) && window.to < longest {
            // As long as the missing batches should take at the pace so far, and a tenth more.
            let needed = window.length() / fewest.max(1) * u64::from(self.timing.minimum_batches + 1);
            let to = window.from.plus(Duration::from_nanos(needed + needed / 10)).max(now).min(longest);
            self.state = State::Running { start, window: Interval { to, ..window }, extended: true };
            return Ok(());
        }
        for index in 0..self.members.len() {
            actions.push(Action::Send(index, ToWorker::Stop));
        }
        actions.push(Action::WindowClosed);
        self.state = State::Collecting { start, window, extended, since: now };
        Ok(())
    }

    fn collect(
        &mut self,
        start: MonotonicNanos,
        window: Interval,
        extended: bool,
    ) -> Result<CohortResult, CohortError> {
        let mut members = Vec::with_capacity(self.members.len());
        for (index, member) in self.members.drain(..).enumerate() {
            let samples = Samples::new(member.samples)
                .map_err(|error: SamplesError| CohortError::Protocol { member: index, what: error.to_string() })?;
            let (Some(pid), Some(built), Some(ready), Some(done)) =
                (member.pid, member.built, member.ready, member.done)
            else {
                return Err(unexpected(index, "an end without a beginning"));
            };
            members.push(MemberResult { pid, built, ready, done, samples });
        }
        Ok(CohortResult { start, window, extended, members })
    }
}

/// Batches inside the window, from a report that came somewhat after its end: those since then, at the pace since its
/// beginning, are taken off.
fn counted_in(member: &Member, window: Interval) -> u64 {
    let (whole, late) = (member.reported.since(window.from).as_nanos(), member.reported.since(window.to).as_nanos());
    let since = (u128::from(member.counted) * late).div_ceil(whole.max(1));
    member.counted.saturating_sub(u64::try_from(since).unwrap_or(u64::MAX))
}

fn unexpected(member: usize, what: &str) -> CohortError {
    CohortError::Protocol { member, what: format!("it sent {what} out of turn") }
}

fn message_name(message: &FromWorker) -> &'static str {
    match message {
        FromWorker::Hello { .. } => "hello",
        FromWorker::Built(_) => "built",
        FromWorker::Ready(_) => "ready",
        FromWorker::Progress { .. } => "progress",
        FromWorker::Done(_) => "done",
        FromWorker::Failed { .. } => "failed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Span;
    use crate::worker_wire::{Allocation, Proof};
    use crate::workload::{Model, Precision, Task, Workload};

    const SECOND: u64 = 1_000_000_000;

    fn config(member: u32, members: u32, cudnn: Cudnn) -> MemberConfig {
        let span = |seconds| Span(Duration::from_secs(seconds));
        MemberConfig {
            protocol: PROTOCOL,
            member,
            members,
            cohort: "c".into(),
            workload: Workload { cudnn, ..Workload::new(Model::Resnet18, Task::Train, 32, Precision::Fp32) },
            allocation: Allocation::Cpu,
            timing: Timing {
                warmup_batches: 20,
                warmup: span(3),
                settle: span(3),
                window: span(10),
                longest_window: span(30),
                minimum_batches: 30,
                ready_limit: span(120),
            },
            seed: 1,
            threads: 1,
            sample_capacity: 1000,
        }
    }

    fn built() -> Built {
        let proof = Proof {
            devices: 0,
            uuid: None,
            name: None,
            multiprocessors: None,
            memory: None,
            mps: None,
            driver_version: None,
            processors: vec![0],
        };
        Built { proof, parameters: 1, engine: "test".into(), elapsed_ns: 1 }
    }

    fn done(samples: u64, started: MonotonicNanos) -> Done {
        Done {
            samples,
            lost: 0,
            started,
            allocated_peak: None,
            reserved_peak: None,
            resident_peak: None,
            finite: Some(true),
        }
    }

    /// A cohort and a clock that tests move by hand.
    struct Stage {
        cohort: Cohort,
        now: MonotonicNanos,
    }

    impl Stage {
        fn new(members: u32, cudnn: Cudnn) -> Self {
            let configs = (0..members).map(|member| config(member, members, cudnn)).collect();
            Self { cohort: Cohort::new(configs, false, MonotonicNanos(0)), now: MonotonicNanos(0) }
        }

        fn say(&mut self, member: usize, message: FromWorker) -> Vec<Action> {
            self.cohort.on(self.now, Event::Message(member, message))
        }

        fn at(&mut self, seconds: u64) -> Vec<Action> {
            self.now = MonotonicNanos(seconds * SECOND);
            self.cohort.on(self.now, Event::Tick)
        }

        fn greet_and_build(&mut self, member: usize) -> Vec<Action> {
            self.say(member, FromWorker::Hello { protocol: PROTOCOL, pid: 100, version: "0".into() });
            self.say(member, FromWorker::Built(built()))
        }

        fn ready(&mut self, member: usize) -> Vec<Action> {
            let digest = self.cohort.configs[member].digest();
            let ready = Ready { digest, batches: 20, first_ns: 1, typical_ns: SECOND / 10 };
            self.say(member, FromWorker::Ready(ready))
        }

        /// Two members, both Ready at second 1: the start is at 1.5 s, the window from 4.5 s to 14.5 s.
        fn running() -> Self {
            let mut stage = Self::new(2, Cudnn::Heuristic);
            stage.at(1);
            stage.greet_and_build(0);
            stage.greet_and_build(1);
            assert_eq!(stage.ready(0), []);
            let start = MonotonicNanos(3 * SECOND / 2);
            let expected = ToWorker::Start { at: start, count_from: MonotonicNanos(9 * SECOND / 2) };
            assert_eq!(stage.ready(1), [Action::Send(0, expected.clone()), Action::Send(1, expected)]);
            stage
        }

        fn progress(&mut self, member: usize, counted: u64) -> Vec<Action> {
            self.say(member, FromWorker::Progress { completed: counted + 30, counted })
        }

        fn error(self) -> CohortError {
            self.cohort.into_result().expect("it is over").expect_err("it failed")
        }
    }

    #[test]
    fn a_cohort_runs_from_hello_to_samples() {
        let mut stage = Stage::running();
        for (seconds, phase) in [(2, Phase::Settling), (5, Phase::Measuring)] {
            stage.at(seconds);
            assert_eq!(stage.cohort.phase(stage.now), phase);
        }
        assert_eq!(stage.at(15), []);
        assert_eq!(stage.progress(0, 90), []);
        let stop = |member| Action::Send(member, ToWorker::Stop);
        assert_eq!(stage.progress(1, 95), [stop(0), stop(1), Action::WindowClosed]);
        let started = MonotonicNanos(3 * SECOND / 2 + 400);
        let sample = Sample { start: started, end: MonotonicNanos(2 * SECOND), items: 32 };
        for member in 0..2 {
            assert_eq!(stage.cohort.on(stage.now, Event::Samples(member, vec![sample])), []);
            let actions = stage.say(member, FromWorker::Done(done(1, started)));
            assert_eq!(actions.contains(&Action::Finished), member == 1);
        }
        let result = stage.cohort.into_result().unwrap().unwrap();
        assert_eq!((result.window.length(), result.extended), (10 * SECOND, false));
        assert_eq!(result.members[1].samples.as_slice(), [sample]);
    }

    #[test]
    fn too_few_batches_extend_the_window_to_its_limit() {
        let mut stage = Stage::running();
        stage.at(15);
        stage.progress(0, 90);
        assert_eq!(stage.progress(1, 8), []);
        // 7 by the end (8 less one since): 31/7 windows and a tenth, cut to the limit of 30 s.
        let State::Running { window, extended, .. } = stage.cohort.state else { panic!("still running") };
        assert_eq!((window.length(), extended), (30 * SECOND, true));
        stage.at(35);
        stage.progress(0, 300);
        assert_eq!(stage.progress(1, 25).len(), 3, "at the limit it stops with what it has");
    }

    #[test]
    fn a_report_that_comes_late_takes_no_more_off_than_its_share() {
        let mut stage = Stage::running();
        stage.at(15);
        stage.progress(0, 90);
        // Half a second of ten and a half: two of 33 came after the end, and thirty are enough.
        assert_eq!(stage.progress(1, 33).len(), 3);
        let mut stage = Stage::running();
        stage.at(15);
        stage.progress(0, 90);
        assert_eq!(stage.progress(1, 31), [], "two of 31 came after the end");
    }

    #[test]
    fn members_that_tune_cudnn_do_so_one_at_a_time() {
        let mut stage = Stage::new(3, Cudnn::Tuned);
        let warm = |member| Action::Send(member, ToWorker::Warm);
        stage.greet_and_build(0);
        stage.greet_and_build(1);
        assert_eq!(stage.greet_and_build(2), [warm(0)]);
        assert_eq!(stage.ready(0), [warm(1)]);
        assert_eq!(stage.ready(1), [warm(2)]);
    }

    #[test]
    fn one_members_failure_is_the_cohorts() {
        type Case = (fn(&mut Stage), &'static str);
        let cases: [Case; 8] = [
            (|s| drop(s.cohort.on(s.now, Event::Gone(1, "signal 9".into()))), "member 1 ended early: signal 9"),
            (|s| drop(s.at(60)), "member 0 hangs: no batch completed for 30s"),
            (|s| drop(s.ready(0)), "member 0 broke the protocol: it sent ready out of turn"),
            (
                |s| drop(s.cohort.on(s.now, Event::Samples(0, vec![]))),
                "member 0 broke the protocol: it sent samples out of turn",
            ),
            (
                |s| drop(s.say(1, FromWorker::Failed { kind: FailureKind::DoesNotFit, message: "80 GiB".into() })),
                "member 1 does not fit: 80 GiB",
            ),
            (
                |s| drop(s.cohort.on(s.now, Event::Abort(Abort::Cancelled, "cancelled by its owner".into()))),
                "cancelled by its owner",
            ),
            (
                |s| {
                    s.at(15);
                    s.progress(0, 90);
                    s.progress(1, 90);
                    s.say(1, FromWorker::Done(done(0, MonotonicNanos(2 * SECOND))));
                },
                "member 1 started 500ms after the common start",
            ),
            (
                |s| {
                    s.at(15);
                    s.progress(0, 90);
                    s.progress(1, 90);
                    s.say(1, FromWorker::Done(done(7, MonotonicNanos(3 * SECOND / 2))));
                },
                "member 1 broke the protocol: it announced 7 samples and sent 0",
            ),
        ];
        for (act, message) in cases {
            let mut stage = Stage::running();
            act(&mut stage);
            assert_eq!(stage.error().to_string(), message);
        }
    }

    #[test]
    fn a_member_with_another_configuration_fails_the_cohort() {
        let mut stage = Stage::new(1, Cudnn::Heuristic);
        stage.greet_and_build(0);
        let digest = MemberConfig { seed: 2, ..config(0, 1, Cudnn::Heuristic) }.digest();
        stage.say(0, FromWorker::Ready(Ready { digest, batches: 20, first_ns: 1, typical_ns: 1 }));
        assert!(matches!(stage.error(), CohortError::Disagreement { member: 0, .. }));
    }

    #[test]
    fn who_is_not_ready_in_time_is_named() {
        let mut stage = Stage::new(3, Cudnn::Heuristic);
        stage.greet_and_build(1);
        assert_eq!(stage.cohort.wake_at(stage.now), MonotonicNanos(120 * SECOND));
        stage.at(120);
        assert_eq!(stage.error(), CohortError::NotReady { missing: vec![0, 1, 2], limit: Duration::from_secs(120) });
    }

    #[test]
    fn a_member_on_another_device_fails_the_cohort() {
        let mut stage = Stage::new(1, Cudnn::Heuristic);
        stage.say(0, FromWorker::Hello { protocol: PROTOCOL, pid: 1, version: "0".into() });
        let mut wrong = built();
        wrong.proof.devices = 1;
        stage.say(0, FromWorker::Built(wrong));
        assert!(matches!(stage.error(), CohortError::Allocation { member: 0, .. }));
    }

    #[test]
    fn a_cohort_warms_only_once_the_control_daemon_knows_its_members() {
        for (proof, passes) in [(Ok(()), true), (Err("pid 100 is not among its clients".to_owned()), false)] {
            let mut cohort = Cohort::new(vec![config(0, 1, Cudnn::Heuristic)], true, MonotonicNanos(0));
            let mut on = |event| cohort.on(MonotonicNanos(1), event);
            on(Event::Message(0, FromWorker::Hello { protocol: PROTOCOL, pid: 100, version: "0".into() }));
            assert_eq!(on(Event::Message(0, FromWorker::Built(built()))), [Action::ProveMps(vec![100])]);
            let expected = if passes { Action::Send(0, ToWorker::Warm) } else { Action::Finished };
            assert_eq!(on(Event::MpsProved(proof)), [expected]);
        }
    }
}
