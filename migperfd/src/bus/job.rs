//! `org.migperf1.Job`: where a job stands.

use std::collections::HashMap;

use migperf_core::cohort::Phase;
use migperf_dbus::names::job as key;
use tokio::sync::watch;
use zbus::Connection;
use zbus::Variant;

use crate::queue::JobView;

/// A job of this daemon's life.
#[derive(Debug)]
pub(super) struct JobObject {
    view: watch::Receiver<JobView>,
}

impl JobObject {
    pub(super) fn new(view: watch::Receiver<JobView>) -> Self {
        Self { view }
    }
}

#[zbus::interface(name = "org.migperf1.Job")]
impl JobObject {
    #[zbus(property(emits_changed_signal = "const"))]
    fn id(&self) -> u32 {
        self.view.borrow().id.0
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn uid(&self) -> String {
        self.view.borrow().uid.clone()
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn name(&self) -> String {
        self.view.borrow().name.clone()
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn owner(&self) -> u32 {
        self.view.borrow().owner
    }

    #[zbus(property)]
    fn state(&self) -> &'static str {
        self.view.borrow().state.name()
    }

    #[zbus(property)]
    fn progress(&self) -> HashMap<&'static str, Variant<'static>> {
        let view = self.view.borrow();
        let mut progress = HashMap::from([
            (key::TRIALS_TOTAL, Variant::from(view.trials_total)),
            (key::TRIALS_DONE, Variant::from(view.trials_done)),
            (key::TRIALS_FAILED, Variant::from(view.trials_failed)),
        ]);
        let mut add = |key, value: Option<Variant<'static>>| drop(value.map(|value| progress.insert(key, value)));
        add(key::REASON, view.reason.clone().map(Variant::from));
        add(key::TRIAL, view.trial.clone().map(Variant::from));
        add(key::PHASE, view.phase.map(|phase| Variant::from(phase_name(phase))));
        add(key::ESTIMATED_END_USEC, view.estimated_end.map(|end| Variant::from(end.0 / 1000)));
        progress
    }
}

fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Preparing => "preparing",
        Phase::Warming => "warming",
        Phase::Settling => "settling",
        Phase::Measuring => "measuring",
        Phase::Collecting => "collecting",
        Phase::Finished => "finished",
    }
}

/// Signals each change of a job's view on a connection, until either ends.
pub(super) async fn announce(connection: Connection, path: String, mut view: watch::Receiver<JobView>) {
    let mut state = view.borrow().state;
    loop {
        tokio::select! {
            () = connection.closed() => return,
            changed = view.changed() => if changed.is_err() { return },
        }
        let now = view.borrow_and_update().state;
        let Ok(object) = connection.object_server().interface::<_, JobObject>(path.as_str()).await else { return };
        let emitter = object.signal_emitter();
        let job = object.get().await;
        // Progress first: whoever sees the final state has seen the final counts.
        let told = job.progress_changed(emitter).await;
        if now != state {
            state = now;
            if let Err(error) = job.state_changed(emitter).await {
                tracing::debug!(%error, path, "a change of state was not signalled");
            }
        }
        if told.is_err() {
            return;
        }
    }
}
