//! `org.migperf1.Helper` on a connection: arguments are checked, work is done on threads of its own, and liveness
//! descriptors are watched. It holds no state of a GPU: that is the engine's.

use std::collections::HashMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use migperf_core::chain::chain;
use migperf_core::ids::{DeviceUuid, GpuUuid};
use migperf_core::mig::layout::Layout;
use migperf_dbus::Keyed;
use migperf_dbus::error::Error;
use migperf_dbus::helper::{self as contract, Changed, apply, changed, mps as mps_key, report};
use migperf_gpu::layout::Division;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe::Receiver;
use zbus::message::Header;

use crate::engine::{Engine, EngineError, Order, Outcome};
use crate::ledger::{Hold, LedgerError};
use crate::mps::{Limits, Mps, MpsError};

/// Who speaks on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caller {
    /// A process of root's at the other end of a socket pair.
    Peer(i32),
    /// Whom the bus's policy lets through: the message tells who.
    Bus,
}

/// Everything that the helper holds while it runs.
#[derive(Debug)]
pub struct Held {
    engine: Engine,
    /// Which liveness descriptor counts for a GPU: the latest.
    alive: Mutex<HashMap<GpuUuid, u64>>,
    mps: Mutex<HashMap<DeviceUuid, (Mps, u64)>>,
    count: AtomicU64,
    /// Requests in progress, and when the last one ended.
    busy: Mutex<(u32, Instant)>,
}

/// An order of the helper's own.
#[must_use]
pub fn own(purpose: &str) -> Order {
    Order {
        hold: Hold::WhileAlive,
        replace_existing: false,
        on_behalf_of: None,
        purpose: Some(purpose.to_owned()),
        caller: "the helper itself".to_owned(),
    }
}

impl Held {
    /// Nothing is held yet.
    #[must_use]
    pub fn new(engine: Engine) -> Self {
        Self {
            engine,
            alive: Mutex::default(),
            mps: Mutex::default(),
            count: AtomicU64::new(0),
            busy: Mutex::new((0, Instant::now())),
        }
    }

    /// The engine.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    fn alive(&self) -> MutexGuard<'_, HashMap<GpuUuid, u64>> {
        self.alive.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn mps(&self) -> MutexGuard<'_, HashMap<DeviceUuid, (Mps, u64)>> {
        self.mps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn busy(&self) -> MutexGuard<'_, (u32, Instant)> {
        self.busy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long nothing has been asked for or held that would end with the helper; none while something is.
    #[must_use]
    pub fn idle(&self) -> Option<Duration> {
        let (requests, since) = *self.busy();
        let quiet = requests == 0 && self.mps().is_empty() && !self.engine.is_holding();
        quiet.then(|| since.elapsed())
    }

    /// Stops every MPS daemon.
    pub fn stop_all_mps(&self) {
        let all: Vec<Mps> = self.mps().drain().map(|(_, (mps, _))| mps).collect();
        all.into_iter().for_each(Mps::stop);
    }

    /// Restores every GPU that this helper holds for somebody who is there no longer, as the last thing before it ends.
    pub fn restore_all(&self, purpose: &str) {
        let gpus: Vec<GpuUuid> = self.alive().drain().map(|(gpu, _)| gpu).collect();
        for gpu in gpus {
            // What fails is in the ledger and in the log.
            let _ = self.engine.restore(&gpu, &own(purpose));
        }
    }

    /// Counts a request for as long as the guard lives.
    fn request(self: &Arc<Self>) -> Request {
        self.busy().0 += 1;
        Request(Arc::clone(self))
    }
}

/// A request in progress.
struct Request(Arc<Held>);

impl Drop for Request {
    fn drop(&mut self) {
        let mut busy = self.0.busy();
        *busy = (busy.0 - 1, Instant::now());
    }
}

/// The object.
#[derive(Debug)]
pub struct HelperObject {
    held: Arc<Held>,
    caller: Caller,
}

impl HelperObject {
    /// An object for the callers of one connection.
    #[must_use]
    pub fn new(held: Arc<Held>, caller: Caller) -> Self {
        Self { held, caller }
    }

    fn caller(&self, header: &Header<'_>) -> String {
        match (self.caller, header.sender()) {
            (Caller::Peer(pid), _) => format!("process {pid} of root"),
            (Caller::Bus, Some(sender)) => format!("{sender} on the system bus"),
            (Caller::Bus, None) => "somebody on the system bus".to_owned(),
        }
    }
}

/// Runs blocking work on a thread of its own.
async fn work<T: Send + 'static>(
    held: &Arc<Held>,
    work: impl FnOnce(&Arc<Held>) -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let request = held.request();
    let done = tokio::task::spawn_blocking(move || work(&request.0)).await;
    done.map_err(|error| Error::Internal(format!("a request ended badly: {error}")))?
}

/// Runs a request to its end, whether its caller waits for it or not.
async fn apart<T: Send + 'static>(
    request: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Result<T, Error> {
    tokio::spawn(request).await.map_err(|error| Error::Internal(format!("a request ended badly: {error}")))?
}

/// Restores a GPU when the liveness descriptor ends that counts for it by then.
async fn restore_after(held: Arc<Held>, liveness: Receiver, gpu: GpuUuid, number: u64) {
    ended(liveness).await;
    if held.alive().get(&gpu) != Some(&number) {
        return;
    }
    // What fails is tried again, and is in the ledger and in the log.
    let _ = work(&held, move |held| {
        held.engine.restore(&gpu, &own("the caller is gone")).map_err(reply)?;
        held.alive().retain(|of, latest| *of != gpu || *latest != number);
        Ok(())
    })
    .await;
}

/// Stops a device's MPS control daemon when its liveness descriptor ends.
async fn stop_after(held: Arc<Held>, liveness: Receiver, device: DeviceUuid, number: u64) {
    ended(liveness).await;
    let _ = work(&held, move |held| {
        let mps = {
            let mut all = held.mps();
            let counts = all.get(&device).is_some_and(|(_, of)| *of == number);
            counts.then(|| all.remove(&device)).flatten()
        };
        if let Some((mps, _)) = mps {
            tracing::info!(%device, "the caller is gone: its MPS control daemon stops");
            mps.stop();
        }
        Ok(())
    })
    .await;
}

#[zbus::interface(name = "org.migperf1.Helper")]
impl HelperObject {
    #[zbus(out_args("instances", "changed"))]
    async fn apply_layout(
        &self,
        #[zbus(header)] header: Header<'_>,
        gpu: &str,
        layout: &str,
        liveness: zbus::OwnedFd,
        options: Keyed,
    ) -> Result<(Vec<contract::GpuInstance>, Keyed), Error> {
        let gpu = gpu_uuid(gpu)?;
        let layout: Layout = layout.parse().map_err(|error| Error::InvalidArgument(chain(&error)))?;
        let order = order(&options, self.caller(&header), true)?;
        let liveness = pipe(liveness)?;
        let number = self.held.count.fetch_add(1, Ordering::Relaxed);
        let held = Arc::clone(&self.held);
        // On a task of its own: a caller that goes away while it waits must not take the watch with it.
        apart(async move {
            let hold = order.hold;
            let named = gpu.clone();
            let result = work(&held, move |held| {
                let outcome = held.engine.apply(&named, &layout, &order).map_err(reply)?;
                match order.hold {
                    Hold::WhileAlive => held.alive().insert(named, number),
                    Hold::UntilRestored => held.alive().remove(&named),
                };
                Ok(changes(&outcome))
            })
            .await?;
            if hold == Hold::WhileAlive {
                tokio::spawn(restore_after(held, liveness, gpu, number));
            }
            Ok(result)
        })
        .await
    }

    #[zbus(out_args("instances", "changed"))]
    async fn restore(
        &self,
        #[zbus(header)] header: Header<'_>,
        gpu: &str,
        options: Keyed,
    ) -> Result<(Vec<contract::GpuInstance>, Keyed), Error> {
        let gpu = gpu_uuid(gpu)?;
        let order = order(&options, self.caller(&header), false)?;
        work(&self.held, move |held| {
            let outcome = held.engine.restore(&gpu, &order).map_err(reply)?;
            held.alive().remove(&gpu);
            Ok(changes(&outcome))
        })
        .await
    }

    #[zbus(out_args("started"))]
    async fn start_mps(&self, device: &str, uid: u32, liveness: zbus::OwnedFd, options: Keyed) -> Result<Keyed, Error> {
        let device: DeviceUuid = device.parse().map_err(|error| Error::InvalidArgument(chain(&error)))?;
        if uid == 0 && self.caller == Caller::Bus {
            return Err(Error::InvalidArgument("MPS never runs as root here: name the workers' user".to_owned()));
        }
        let limits = limits(&options)?;
        let liveness = pipe(liveness)?;
        let number = self.held.count.fetch_add(1, Ordering::Relaxed);
        let held = Arc::clone(&self.held);
        apart(async move {
            let named = device.clone();
            let reply = work(&held, move |held| start_mps(held, named, uid, limits, number)).await?;
            tokio::spawn(stop_after(held, liveness, device, number));
            Ok(reply)
        })
        .await
    }

    async fn stop_mps(&self, device: &str, options: Keyed) -> Result<(), Error> {
        let device: DeviceUuid = device.parse().map_err(|error| Error::InvalidArgument(chain(&error)))?;
        only(&options, &[])?;
        work(&self.held, move |held| {
            let mps = held.mps().remove(&device);
            match mps {
                Some((mps, _)) => {
                    mps.stop();
                    tracing::info!(%device, "an MPS control daemon stopped");
                    Ok(())
                }
                None => Err(Error::NoSuchDevice(format!("no MPS control daemon of ours serves {device}"))),
            }
        })
        .await
    }

    #[zbus(out_args("gpus"))]
    async fn report(&self) -> Result<Vec<Keyed>, Error> {
        work(&self.held, |held| {
            let statuses = held.engine.report().map_err(reply)?;
            let entry = |status: crate::engine::Status| {
                Keyed::from([
                    (report::GPU.to_owned(), text(status.gpu.to_string())),
                    (report::STATE.to_owned(), text(status.state.to_owned())),
                    (report::FOUND.to_owned(), text(status.found)),
                    (report::WANTED.to_owned(), text(status.wanted)),
                    (report::LEFT.to_owned(), texts(status.left)),
                    (report::COMMANDS.to_owned(), texts(status.commands)),
                ])
            };
            Ok(statuses.into_iter().map(entry).collect())
        })
        .await
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn version(&self) -> &'static str {
        env!("CARGO_PKG_VERSION")
    }
}

fn start_mps(held: &Held, device: DeviceUuid, uid: u32, limits: Limits, number: u64) -> Result<Keyed, Error> {
    held.engine.exists(&device).map_err(reply)?;
    let previous = {
        let mut all = held.mps();
        match all.get(&device) {
            Some((mps, _)) if mps.is_running() => {
                return Err(Error::Refused(format!(
                    "an MPS control daemon of ours serves {device} already; stop it first"
                )));
            }
            _ => all.remove(&device),
        }
    };
    if let Some((dead, _)) = previous {
        dead.stop();
    }
    let mps = Mps::start(&held.engine.config, &device, uid, limits).map_err(|error| {
        let text = chain(&error);
        match error {
            MpsError::Program(_) | MpsError::Closed { .. } => Error::Refused(text),
            _ => Error::Internal(text),
        }
    })?;
    tracing::info!(target: "migperf_helper::audit", verb = "start-mps", %device, uid, pid = mps.pid(), ?limits, "audit");
    let reply = Keyed::from([
        (mps_key::PIPE_DIRECTORY.to_owned(), text(mps.pipe_directory().display().to_string())),
        (mps_key::LOG_DIRECTORY.to_owned(), text(mps.log_directory().display().to_string())),
        (mps_key::PID.to_owned(), mps.pid().into()),
    ]);
    held.mps().insert(device, (mps, number));
    Ok(reply)
}

fn gpu_uuid(gpu: &str) -> Result<GpuUuid, Error> {
    gpu.parse().map_err(|error| Error::InvalidArgument(chain(&error)))
}

/// The read end of a pipe whose other end is still open.
fn pipe(liveness: zbus::OwnedFd) -> Result<Receiver, Error> {
    let liveness = OwnedFd::from(liveness);
    let wrong = |what: String| Error::InvalidArgument(format!("the liveness descriptor {what}"));
    let mut polled = [PollFd::new(liveness.as_fd(), PollFlags::POLLIN)];
    poll(&mut polled, PollTimeout::ZERO).map_err(|errno| wrong(format!("can't be used: {errno}")))?;
    let over = polled[0].revents().is_some_and(|events| events.intersects(PollFlags::POLLHUP | PollFlags::POLLERR));
    if over {
        return Err(wrong("has ended already".to_owned()));
    }
    Receiver::from_owned_fd(liveness).map_err(|error| wrong(format!("is not the read end of a pipe: {error}")))
}

/// Waits until the other end is closed; what is written there means nothing.
async fn ended(mut liveness: Receiver) {
    let mut buffer = [0; 256];
    while liveness.read(&mut buffer).await.is_ok_and(|count| count > 0) {}
}

fn only(options: &Keyed, known: &[&str]) -> Result<(), Error> {
    match options.keys().find(|key| !known.contains(&key.as_str())) {
        Some(unknown) => Err(Error::InvalidArgument(format!("there is no option `{unknown}`"))),
        None => Ok(()),
    }
}

fn option<T: TryFrom<zbus::OwnedVariant>>(options: &Keyed, key: &str, wanted: &str) -> Result<Option<T>, Error> {
    let Some(value) = options.get(key) else { return Ok(None) };
    let wrong = || Error::InvalidArgument(format!("the option `{key}` must be {wanted}"));
    let value = value.try_clone().map_err(|_| wrong())?;
    T::try_from(value).map(Some).map_err(|_| wrong())
}

/// Texts of callers go into logs and ledgers: no control characters, and not without end.
fn clean(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(200).collect()
}

fn order(options: &Keyed, caller: String, holds: bool) -> Result<Order, Error> {
    let common = [apply::ON_BEHALF_OF, apply::PURPOSE];
    let known = [apply::HOLD, apply::REPLACE_EXISTING, apply::ON_BEHALF_OF, apply::PURPOSE];
    only(options, if holds { &known } else { &common })?;
    let hold: Option<String> = option(options, apply::HOLD, "a text")?;
    let hold = match hold.as_deref() {
        None | Some("while-alive") => Hold::WhileAlive,
        Some("until-restored") => Hold::UntilRestored,
        Some(_) => {
            let text = format!("the option `{}` must be `while-alive` or `until-restored`", apply::HOLD);
            return Err(Error::InvalidArgument(text));
        }
    };
    let purpose: Option<String> = option(options, apply::PURPOSE, "a text")?;
    Ok(Order {
        hold,
        replace_existing: option(options, apply::REPLACE_EXISTING, "a boolean")?.unwrap_or(false),
        on_behalf_of: option(options, apply::ON_BEHALF_OF, "an unsigned number of 32 bits")?,
        purpose: purpose.as_deref().map(clean),
        caller,
    })
}

fn limits(options: &Keyed) -> Result<Limits, Error> {
    only(options, &[mps_key::ACTIVE_THREAD_PERCENTAGE, mps_key::PINNED_MEMORY_LIMIT_BYTES])?;
    let percent: Option<u32> = option(options, mps_key::ACTIVE_THREAD_PERCENTAGE, "a number from 1 to 100")?;
    let bytes: Option<u64> = option(options, mps_key::PINNED_MEMORY_LIMIT_BYTES, "a number of bytes")?;
    if percent.is_some_and(|percent| !(1..=100).contains(&percent)) {
        let text = format!("the option `{}` must be from 1 to 100", mps_key::ACTIVE_THREAD_PERCENTAGE);
        return Err(Error::InvalidArgument(text));
    }
    if bytes.is_some_and(|bytes| bytes == 0 || bytes % (1 << 20) != 0) {
        let text = format!("the option `{}` must be whole MiB, and not none", mps_key::PINNED_MEMORY_LIMIT_BYTES);
        return Err(Error::InvalidArgument(text));
    }
    Ok(Limits { active_thread_percentage: percent, pinned_memory: bytes })
}

fn text(text: String) -> zbus::OwnedVariant {
    zbus::Str::from(text).into()
}

fn texts(texts: Vec<String>) -> zbus::OwnedVariant {
    zbus::Variant::from(texts).try_into().expect("texts hold no descriptor")
}

/// What was done, in the words of the contract.
fn changes(outcome: &Outcome) -> Changed {
    let uuids = |division: &Division| -> Vec<String> {
        division.instances.iter().flat_map(|gpu| &gpu.compute).map(|compute| compute.uuid.to_string()).collect()
    };
    let (before, now) = (uuids(&outcome.before), uuids(&outcome.now));
    let without = |all: &[String], known: &[String]| -> Vec<String> {
        all.iter().filter(|uuid| !known.contains(uuid)).cloned().collect()
    };
    let instances = outcome.now.instances.iter().map(|gpu| contract::GpuInstance {
        id: gpu.id,
        profile: gpu.profile.to_string(),
        start: gpu.placement.start,
        size: gpu.placement.size,
        compute: gpu
            .compute
            .iter()
            .map(|compute| contract::ComputeInstance {
                id: compute.id,
                profile: compute.profile.to_string(),
                uuid: compute.uuid.to_string(),
            })
            .collect(),
    });
    let done = Keyed::from([
        (changed::MODE_CHANGED.to_owned(), (outcome.before.mode != outcome.now.mode).into()),
        (changed::REMOVED_UUIDS.to_owned(), texts(without(&before, &now))),
        (changed::CREATED_UUIDS.to_owned(), texts(without(&now, &before))),
        (changed::STEPS.to_owned(), outcome.steps.into()),
        (changed::AS_FOUND.to_owned(), outcome.as_found.into()),
        (changed::LEFT.to_owned(), texts(outcome.left.clone())),
    ]);
    (instances.collect(), done)
}

fn reply(error: EngineError) -> Error {
    let text = chain(&error);
    match error {
        EngineError::NoSuchDevice(_) => Error::NoSuchDevice(text),
        EngineError::Infeasible(_) => Error::LayoutInfeasible(text),
        EngineError::Busy(_) | EngineError::Ledger(LedgerError::Held(_)) => Error::GpuBusy(text),
        EngineError::Refused(_) => Error::Refused(text),
        EngineError::RolledBack(_) => Error::RolledBack(text),
        EngineError::RollbackFailed { .. } => Error::RollbackFailed(text),
        EngineError::Quarantined(..) => Error::Quarantined(text),
        EngineError::Ledger(_) | EngineError::Nvml(_) | EngineError::Identity(_) => Error::Internal(text),
    }
}
