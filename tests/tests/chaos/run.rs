//! One run: a job, a blow, the recovery that a user would do, and the judgement.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use migperf_core::layouts::Layouts;
use migperf_dbus::document::{self, LONGEST_REPORT};
use migperf_dbus::names::{job as key, submit};
use migperf_dbus::{Keyed, names};
use migperf_tests::layout::Seen;
use migperf_tests::paced::Stage;
use migperf_tests::processes::{Running, descendants, helpers, marked};
use migperf_tests::simulation::Simulation;
use migperf_tests::{Daemon, MARK, number, text};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::case::{Blow, Case, Moment, Start};

const LIMIT: Duration = Duration::from_secs(90);
const HELPER: &str = "migperf-helper";

type Verdict = Result<(), String>;

pub(crate) async fn run(case: Case) -> Verdict {
    let stage = Stage::on(Simulation::new(case.gpu()), env!("CARGO_BIN_EXE_paced-worker"));
    let machine = stage.simulation.machine();
    let before = Seen::on(&machine);
    if case.start == Start::Stale {
        leave_stale(&stage).await?;
    }
    let mut daemon = stage.daemon().await;
    let job = submit(&daemon, &case).await?;
    wait_for(case.moment, &daemon, job, &stage).await;
    let listed = daemon.listed(job).await;
    let finished = number(&listed, key::TRIALS_DONE).unwrap_or(0);
    let expected = strike(&stage, &case, &mut daemon, &before).await;
    let next = match case.blow {
        // The daemon goes on.
        Blow::Helper | Blow::Worker => {
            let state = daemon.wait_for(job, &["done", "failed"], LIMIT).await;
            if state == "failed" {
                return Err(format!("the job failed: {}", daemon.reason(job).await));
            }
            daemon
        }
        Blow::Daemon | Blow::Both | Blow::Reboot | Blow::RebootWithManager => stage.daemon().await,
    };
    settled(&next).await?;
    judge(&next, job, finished).await?;
    let after = Seen::on(&machine);
    if !after.is_as(&expected) {
        return Err(format!("expected: {expected}; found: {after}"));
    }
    // Identities of others' instances stay too, unless the job had leave to replace them.
    let had_leave = case.start == Start::Replaced && case.blow != Blow::RebootWithManager;
    if !had_leave && after.uuids != expected.uuids {
        return Err("an instance of somebody else was touched".to_owned());
    }
    let mark = next.mark.clone();
    next.leave(LIMIT).await;
    gone(&mark).await
}

async fn submit(daemon: &Daemon, case: &Case) -> Result<u32, String> {
    let suite = document::seal(case.suite().as_bytes()).map_err(|error| error.to_string())?;
    let options = Keyed::from([
        (submit::DEVICE.to_owned(), zbus::Str::from("0").into()),
        (submit::REPLACE_EXISTING.to_owned(), (case.start == Start::Replaced).into()),
    ]);
    let path = daemon.manager().await.submit_job(suite.into(), &options).await.map_err(|error| error.to_string())?;
    names::job_of_path(path.as_str()).ok_or_else(|| format!("{path} is no job"))
}

/// Waits for the moment to strike; the job's end is the last one.
async fn wait_for(moment: Moment, daemon: &Daemon, job: u32, stage: &Stage) {
    let (nth, after) = match moment {
        Moment::After(delay) => return tokio::time::sleep(delay).await,
        Moment::Change { nth, after } => (nth, after),
    };
    let machine = stage.simulation.machine();
    let (object, mut seen, mut changes) = (daemon.job(job).await, Seen::on(&machine), 0);
    while changes < nth {
        let state = object.state().await.unwrap_or_default();
        if !matches!(state.as_str(), "queued" | "waiting-for-gpu" | "running" | "restoring") {
            return;
        }
        let now = Seen::on(&machine);
        if now != seen {
            (seen, changes) = (now, changes + 1);
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    tokio::time::sleep(after).await;
}

/// A machine that restarted while a layout was changed, and whose boot unit did not run.
async fn leave_stale(stage: &Stage) -> Verdict {
    let mut daemon = stage.daemon().await;
    let applied = daemon.manager().await.apply_layout("0", "2x2g", &Keyed::new()).await;
    applied.map_err(|error| format!("preparing: {error}"))?;
    end_all(&mut daemon);
    stage.simulation.reboot();
    Ok(())
}

fn end(process: &Running) {
    let pid = i32::try_from(process.process.pid).expect("a process id");
    // It may have ended just now.
    let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
}

/// Everything of a daemon, at once: nobody has time to put anything back.
fn end_all(daemon: &mut Daemon) {
    let mut running = marked(MARK, &daemon.mark);
    // Helpers first: they would act on the end of the others.
    running.sort_by_key(|running| running.program != HELPER);
    running.iter().for_each(end);
    daemon.kill();
    while !marked(MARK, &daemon.mark).is_empty() {
        marked(MARK, &daemon.mark).iter().for_each(end);
    }
}

/// Strikes, and says what must be on the GPU in the end.
async fn strike(stage: &Stage, case: &Case, daemon: &mut Daemon, before: &Seen) -> Seen {
    let of = |program: &str| -> Vec<Running> {
        descendants(daemon.pid()).into_iter().filter(|running| running.program == program).collect()
    };
    match case.blow {
        Blow::Helper => helpers(daemon.pid()).first().into_iter().for_each(end),
        Blow::Worker => of("paced-worker").first().into_iter().for_each(end),
        Blow::Daemon => {
            let mark = daemon.mark.clone();
            daemon.kill();
            // The helper puts the GPU back; a user who starts a daemon before need not wait for it.
            if case.number.is_multiple_of(2) {
                let _ = gone(&mark).await;
            }
        }
        Blow::Both => end_all(daemon),
        Blow::Reboot | Blow::RebootWithManager => {
            end_all(daemon);
            stage.simulation.reboot();
            let mut expected = Seen { instances: BTreeSet::new(), uuids: BTreeSet::new(), mode: before.mode };
            if case.model == "H200-141" {
                // From Hopper on the mode ends with the driver.
                expected.mode = Some((false, false));
            }
            if case.blow == Blow::RebootWithManager && before.mode == Some((true, true)) {
                stage.simulation.divide(&before.instances);
                expected = Seen::on(&stage.simulation.machine());
            }
            boot_unit(stage);
            return expected;
        }
    }
    before.clone()
}

/// What the unit does at boot.
fn boot_unit(stage: &Stage) {
    let environment = stage.environment();
    let config = environment.iter().find(|(name, _)| name == "MIGPERF_HELPER_CONFIG").expect("a configuration");
    let helper = migperf_tests::programs().join(HELPER);
    let status = Command::new(helper)
        .arg("--restore")
        .arg("--config")
        .arg(&config.1)
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .expect("the helper starts");
    assert!(status.success(), "`migperf-helper --restore` ended with {status}");
}

/// Waits until nothing is held changed any more.
async fn settled(daemon: &Daemon) -> Verdict {
    let deadline = Instant::now() + LIMIT;
    loop {
        let answer = daemon.manager().await.open_layouts(&Keyed::new()).await.map_err(|error| error.to_string())?;
        let bytes = document::read(answer.into(), LONGEST_REPORT).map_err(|error| error.to_string())?;
        let layouts: Layouts = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
        if let Some(obstacle) = layouts.obstacle {
            return Err(format!("the helper is not there: {}", obstacle.problem));
        }
        let Some(standing) = layouts.gpus.iter().find_map(|gpu| gpu.standing.as_ref()) else { return Ok(()) };
        if Instant::now() >= deadline || standing.state == "rollback-failed" || standing.state == "quarantined" {
            return Err(format!("the helper still holds the GPU: {standing:?}"));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// What was finished before the blow is stored and can be reported.
async fn judge(daemon: &Daemon, job: u32, finished: u32) -> Verdict {
    let row = daemon.listed(job).await;
    let stored = number(&row, key::TRIALS_DONE).unwrap_or(0);
    if stored < finished {
        return Err(format!("{finished} trials had ended, {stored} are stored"));
    }
    if stored > 0 {
        let report = daemon.report(job).await;
        let recorded = report["summary"]["recorded"].as_u64().unwrap_or(0);
        if recorded != u64::from(stored) {
            return Err(format!("{stored} trials ended, the report has {recorded}"));
        }
        if report["simulated"] != true {
            return Err("the report is not marked as simulated".to_owned());
        }
    }
    match text(&row, key::STATE).as_deref() {
        Some("done" | "interrupted" | "cancelled") => Ok(()),
        state => Err(format!("the job is {state:?}")),
    }
}

/// Waits until nothing of a daemon runs.
async fn gone(mark: &str) -> Verdict {
    let deadline = Instant::now() + LIMIT;
    while let left @ [_, ..] = marked(MARK, mark).as_slice() {
        if Instant::now() >= deadline {
            return Err(format!("left behind: {left:?}"));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}
