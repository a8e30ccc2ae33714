//! A job followed to its end: its state and progress as they change, interrupts, and the daemon's own end.

use std::future::pending;
use std::time::Duration;

use anyhow::Context as _;
use futures_util::StreamExt as _;
use migperf_core::job::JobState;
use migperf_dbus::Keyed;
use migperf_dbus::names::{job as key, job_path};
use migperf_dbus::proxy::JobProxy;
use serde_json::Value;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval};
use zbus::proxy::OwnerChangedStream;

use crate::connect::Session;
use crate::exit::{Exit, Refusal};
use crate::job::{Standing, to_json};
use crate::view::View;

/// Rows that are asked for at once.
const PAGE: u32 = 100;

/// Ctrl-C and a request to terminate, both taken from now on.
#[derive(Debug)]
pub(crate) struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
}

impl Interrupts {
    pub(crate) fn listen() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("can't listen for signals");
        Ok(Self { interrupt: listen(SignalKind::interrupt())?, terminate: listen(SignalKind::terminate())? })
    }

    /// The next of either.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// What an interrupt means to the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnInterrupt {
    /// The job is cancelled and followed to its end; a second interrupt leaves.
    Cancel,
    /// The job goes on without being followed.
    Leave,
}

/// How following ended.
#[derive(Debug)]
pub(crate) enum Followed {
    /// With the job.
    Ended(Box<Standing>),
    /// Before it.
    Left,
}

/// A job at one moment, for people and for programs.
#[derive(Debug)]
pub(crate) struct Moment {
    pub(crate) standing: Standing,
    pub(crate) json: Value,
}

impl Moment {
    fn of_row(row: &Keyed) -> Self {
        Self { standing: row.into(), json: to_json(row) }
    }
}

/// The stored row of a job.
pub(crate) async fn find(session: &Session, job: u32) -> anyhow::Result<Moment> {
    let mut cursor = String::new();
    loop {
        let rows = session.manager.list_jobs(&Keyed::new(), &cursor, PAGE).await;
        let (rows, next) = session.answered(rows)?;
        let moments: Vec<Moment> = rows.iter().map(Moment::of_row).collect();
        // Newest first: past a lower number there is no higher one.
        let passed = moments.iter().any(|moment| moment.standing.id.is_some_and(|id| id < job));
        if let Some(found) = moments.into_iter().find(|moment| moment.standing.id == Some(job)) {
            return Ok(found);
        }
        if passed || next.is_empty() || next == cursor {
            return Err(Refusal::new(Exit::Nothing, format!("there is no job {job}; see `migperfctl list`")).into());
        }
        cursor = next;
    }
}

/// The end of the connection, or of the service's hold on its name.
async fn gone(session: &Session, owners: &mut Option<OwnerChangedStream<'_>>) {
    let left = async {
        match owners {
            Some(owners) => while let Some(Some(_)) = owners.next().await {},
            None => pending().await,
        }
    };
    tokio::select! {
        () = session.connection.closed() => {}
        () = left => {}
    }
}

async fn live(session: &Session, id: u32, job: &JobProxy<'_>) -> anyhow::Result<Moment> {
    let state = session.known(job.state().await)?;
    let progress = session.known(job.progress().await)?;
    let mut moment = Moment::of_row(&progress);
    moment.standing.id.get_or_insert(id);
    moment.standing.state = JobState::from_name(&state);
    if let Value::Object(values) = &mut moment.json {
        values.insert(key::ID.to_owned(), id.into());
        values.insert(key::STATE.to_owned(), state.into());
    }
    Ok(moment)
}

/// Follows a job to its end and shows what changes.
pub(crate) async fn follow(
    session: &Session,
    id: u32,
    on_interrupt: OnInterrupt,
    interrupts: &mut Interrupts,
    view: &mut View,
) -> anyhow::Result<Followed> {
    let job = JobProxy::builder(&session.connection).path(job_path(id)).build().await;
    let job = session.known(job)?;
    // Listening comes before looking, so that no change falls in between.
    let mut states = job.receive_state_changed().await;
    let mut progresses = job.receive_progress_changed().await;
    let mut owners = match session.connection.is_bus() {
        true => Some(session.known(job.inner().receive_owner_changed().await)?),
        false => None,
    };
    if job.state().await.is_err() && !session.connection.is_closed() {
        // No live object: it ended long ago, or there never was one.
        let stored = find(session, id).await?;
        if !stored.standing.is_final() {
            let text = format!("job {id} is {}, but can't be followed", stored.standing.state_name());
            return Err(Refusal::new(Exit::Failure, text).into());
        }
        view.show(&stored)?;
        return Ok(Followed::Ended(Box::new(stored.standing)));
    }
    let mut clock = interval(Duration::from_secs(1));
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut cancelling = false;
    loop {
        let moment = live(session, id, &job).await?;
        if moment.standing.is_final() {
            // The stored row has the final counts, whatever order the last signals came in.
            let last = find(session, id).await.unwrap_or(moment);
            view.show(&last)?;
            return Ok(Followed::Ended(Box::new(last.standing)));
        }
        view.show(&moment)?;
        tokio::select! {
            _ = states.next() => {}
            _ = progresses.next() => {}
            _ = clock.tick() => {}
            () = gone(session, &mut owners) => return Err(session.lost().into()),
            () = interrupts.next() => {
                if cancelling || on_interrupt == OnInterrupt::Leave {
                    return Ok(Followed::Left);
                }
                cancelling = true;
                view.note("cancelling; press Ctrl-C again to leave at once");
                cancel(session, id, view).await?;
            }
        }
    }
}

/// Cancels a followed job. One that has just ended is no failure: its end is seen next.
async fn cancel(session: &Session, id: u32, view: &mut View) -> anyhow::Result<()> {
    match session.answered(session.manager.cancel_job(id, &Keyed::new()).await) {
        Err(error) if session.connection.is_closed() => Err(error),
        Err(error) => {
            view.note(&format!("job {id} was not cancelled: {error:#}"));
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}
