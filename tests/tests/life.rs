//! Life and death: whatever is killed, closed, stopped or cancelled, nothing is left running, what was measured stays, and
//! the record says what happened.

use std::time::Duration;

use migperf_dbus::names::job as key;
use migperf_tests::paced::Stage;
use migperf_tests::processes::{Running, all_end, descendants, eventually, marked};
use migperf_tests::simulation::Simulation;
use migperf_tests::{Daemon, Environment, MARK, number, text};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

const LIMIT: Duration = Duration::from_secs(60);
/// Within this time everything that belonged to a daemon is gone.
const GONE: Duration = Duration::from_secs(10);

/// Short trials of paced workers: exclusive, time-slicing with one and with two, exclusive again.
const SHORT: &str = r#"
version = 1
name = "short"
[defaults]
warmup-batches = 1
warmup = "0ms"
settle = "500ms"
window = "500ms"
longest-window = "500ms"
minimum-batches = 5
[[trial]]
sharing = "time-slice"
workers = 2
workload = { model = "empty", task = "infer", batch-size = 1 }
"#;

fn stage() -> Stage {
    Stage::new(env!("CARGO_BIN_EXE_paced-worker"))
}

/// [`SHORT`] with one value written differently.
fn with(key: &str, value: &str) -> String {
    let lines = SHORT
        .lines()
        .map(|line| if line.starts_with(&format!("{key} =")) { format!("{key} = {value}") } else { line.to_owned() });
    lines.collect::<Vec<_>>().join("\n")
}

/// A window longer than any test.
fn endless() -> String {
    with("longest-window", "\"10m\"").replace("\nwindow = \"500ms\"", "\nwindow = \"10m\"")
}

/// Workers of the current trial, once it measures.
async fn measuring(daemon: &Daemon, job: u32, workers: usize) -> Vec<Running> {
    daemon.wait_for_phase(job, "measuring", LIMIT).await;
    let found = descendants(daemon.pid());
    assert_eq!(found.len(), workers, "{found:?}");
    found
}

async fn nothing_is_left(mark: &str) {
    let left = || marked(MARK, mark);
    eventually(GONE, || left().is_empty(), || format!("left behind: {:?}", left())).await;
}

fn signal(process: &Running, signal: Signal) {
    kill(Pid::from_raw(i32::try_from(process.process.pid).unwrap()), signal).unwrap();
}

/// The real worker under MPS: launcher, libtorch, MPS control daemon and server.
#[tokio::test]
async fn a_daemon_that_is_killed_takes_everything_with_it() {
    let suite = r#"
version = 1
name = "killed"
[defaults]
warmup-batches = 1
warmup = "0ms"
settle = "500ms"
window = "2s"
minimum-batches = 2
[[trial]]
sharing = ["exclusive", "mps"]
workload = { model = "resnet18", task = "infer", batch-size = 1 }
[[trial]]
sharing = "mps"
workers = 2
window = "10m"
workload = { model = "resnet18", task = "infer", batch-size = 1 }
"#;
    let simulation = Simulation::new(json!({}));
    let state = tempfile::tempdir().unwrap();
    let mut daemon = Daemon::start(state.path(), &simulation.environment()).await;
    let job = daemon.submit(suite, "auto", true).await.unwrap();
    let finished = async || number(&daemon.listed(job).await, key::TRIALS_DONE) == Some(2);
    while !finished().await {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    daemon.wait_for_phase(job, "measuring", LIMIT).await;
    let running = descendants(daemon.pid());
    let named = |name: &str| running.iter().filter(|running| running.program == name).count();
    // The simulated control daemon and its server are one program.
    assert_eq!((named("migperf-worker-torch"), named("nvidia-cuda-mps-control-sim")), (2, 2), "{running:?}");
    daemon.kill();
    all_end(&running, GONE).await;
    nothing_is_left(&daemon.mark).await;

    let next = Daemon::start(state.path(), &simulation.environment()).await;
    let row = next.listed(job).await;
    assert_eq!(text(&row, key::STATE).as_deref(), Some("interrupted"));
    assert_eq!(text(&row, key::REASON).as_deref(), Some("the daemon ended while the job was unfinished"));
    assert_eq!(number(&row, key::TRIALS_DONE), Some(2));
    let report = next.report(job).await;
    assert_eq!(report["summary"]["recorded"], 2);
    for trial in [0, 1] {
        let rate = &report["trials"][trial]["members"][0]["throughput_samples_per_s"]["value"];
        assert!(rate.as_f64().is_some_and(|rate| rate > 0.0), "{rate}");
    }
    // The GPU is free for it.
    let again = next.submit(&with("window", "\"500ms\""), "auto", true).await.unwrap();
    next.wait_for(again, &["running"], LIMIT).await;
    next.leave(LIMIT).await;
}

#[tokio::test]
async fn an_attached_job_ends_with_its_client() {
    let stage = stage();
    let daemon = stage.daemon().await;
    let job = daemon.submit(&endless(), "auto", true).await.unwrap();
    let workers = measuring(&daemon, job, 1).await;
    let mark = daemon.mark.clone();
    daemon.leave(LIMIT).await;
    all_end(&workers, GONE).await;
    nothing_is_left(&mark).await;
    let row = stage.daemon().await.listed(job).await;
    assert_eq!(text(&row, key::STATE).as_deref(), Some("cancelled"));
    assert_eq!(text(&row, key::REASON).as_deref(), Some("the client that ran it is gone"));
}

/// The connection ends while the daemon still plans the suite.
#[tokio::test]
async fn a_client_that_leaves_at_once_leaves_no_job() {
    for delay in [0, 5, 20, 60] {
        let stage = stage();
        let daemon = stage.daemon().await;
        let endless = endless();
        tokio::select! {
            _ = daemon.submit(&endless, "auto", true) => {}
            () = tokio::time::sleep(Duration::from_millis(delay)) => {}
        }
        let mark = daemon.mark.clone();
        daemon.leave(Duration::from_secs(20)).await;
        nothing_is_left(&mark).await;
    }
}

#[tokio::test]
async fn a_job_that_is_not_attached_goes_on_without_a_client() {
    let stage = stage();
    let daemon = stage.daemon().await;
    let job = daemon.submit(SHORT, "auto", false).await.unwrap();
    daemon.wait_for_phase(job, "measuring", LIMIT).await;
    let mark = daemon.mark.clone();
    // It ends of itself when the job has.
    daemon.leave(LIMIT).await;
    nothing_is_left(&mark).await;
    let next = stage.daemon().await;
    assert_eq!(text(&next.listed(job).await, key::STATE).as_deref(), Some("done"));
    assert_eq!(next.report(job).await["summary"]["recorded"], 4);
}

#[tokio::test]
async fn a_job_is_cancelled_in_any_phase() {
    let stage = stage();
    let daemon = stage.daemon().await;
    for (phase, suite, fault) in [
        ("preparing", SHORT.to_owned(), "never built"),
        ("warming", with("warmup", "\"10m\""), ""),
        ("settling", with("settle", "\"10m\""), ""),
        ("measuring", endless(), ""),
        ("collecting", SHORT.to_owned(), "slow to hand over"),
    ] {
        stage.workers_do(fault);
        let job = daemon.submit(&suite, "auto", true).await.unwrap();
        let behind = daemon.submit(&suite, "auto", true).await.unwrap();
        daemon.wait_for_phase(job, phase, LIMIT).await;
        let workers = descendants(daemon.pid());
        assert_eq!(daemon.job(behind).await.state().await.unwrap(), "queued");
        let manager = daemon.manager().await;
        // The one that waits first, so that it never runs.
        for job in [behind, job] {
            manager.cancel_job(job, &migperf_dbus::Keyed::new()).await.unwrap();
            daemon.wait_for(job, &["cancelled"], GONE).await;
            let reason = daemon.reason(job).await;
            assert!(reason.starts_with("cancelled by "), "{phase}: {reason}");
        }
        all_end(&workers, GONE).await;
        let report = daemon.report(job).await;
        assert_eq!(report["trials"][0]["outcome"]["verdict"], "cancelled", "{phase}");
        let error = manager.cancel_job(job, &migperf_dbus::Keyed::new()).await.unwrap_err();
        assert!(matches!(error, migperf_dbus::error::Error::NoSuchJob(_)), "{phase}: {error}");
    }
    daemon.leave(LIMIT).await;
}

#[tokio::test]
async fn one_worker_that_dies_fails_its_cohort_and_not_the_job() {
    let stage = stage();
    let daemon = stage.daemon().await;
    let job = daemon.submit(SHORT, "auto", true).await.unwrap();
    // The cohort of two is the third trial.
    let killed = loop {
        let done = number(&daemon.listed(job).await, key::TRIALS_DONE);
        let workers = descendants(daemon.pid());
        if done == Some(2) && workers.iter().filter(|worker| worker.program == "paced-worker").count() == 2 {
            break workers;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    daemon.wait_for_phase(job, "settling", LIMIT).await;
    signal(&killed[1], Signal::SIGKILL);
    daemon.wait_for(job, &["done"], LIMIT).await;
    all_end(&killed, GONE).await;
    let report = daemon.report(job).await;
    let outcomes: Vec<&serde_json::Value> =
        report["trials"].as_array().unwrap().iter().map(|trial| &trial["outcome"]).collect();
    assert_eq!(outcomes[2], &json!({ "verdict": "failed", "reason": "member 1 ended early: killed by SIGKILL" }));
    assert_eq!(report["trials"][2]["members"], json!([]), "survivors are not compared");
    for trial in [0, 1, 3] {
        assert!(outcomes[trial]["verdict"] != "failed", "{outcomes:?}");
    }
    daemon.leave(LIMIT).await;
}

/// A stopped process neither answers nor ends when its connection does.
async fn stop_a_worker(suite: &str, phase: &str, words: &str) {
    let stage = stage();
    let daemon = stage.daemon().await;
    let job =
        daemon.submit(&suite.replace("\"time-slice\"\nworkers = 2", "\"exclusive\""), "auto", true).await.unwrap();
    daemon.wait_for_phase(job, phase, LIMIT).await;
    let workers = descendants(daemon.pid());
    signal(&workers[0], Signal::SIGSTOP);
    all_end(&workers, LIMIT).await;
    let deadline = tokio::time::Instant::now() + GONE;
    while number(&daemon.listed(job).await, key::TRIALS_DONE) == Some(0) {
        assert!(tokio::time::Instant::now() < deadline, "the trial has no record");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let outcome = daemon.report(job).await["trials"][0]["outcome"].clone();
    let reason = outcome["reason"].as_str().unwrap();
    assert!(reason.ends_with(words), "{reason}");
    daemon.leave(LIMIT).await;
}

/// The window is over before it could stall: its end waits for a report of progress.
#[tokio::test]
async fn a_worker_that_stops_in_a_short_window_is_ended() {
    stop_a_worker(&with("settle", "\"2s\""), "settling", "hangs: it reported no progress for 10s").await;
}

#[tokio::test]
async fn a_worker_that_stops_in_a_long_window_is_ended() {
    stop_a_worker(&endless(), "measuring", "hangs: no batch completed for 30s").await;
}

#[tokio::test]
async fn a_worker_that_libtorch_fails_says_the_linkers_words() {
    let broken = tempfile::tempdir().unwrap();
    std::fs::create_dir(broken.path().join("lib")).unwrap();
    std::fs::write(broken.path().join("lib/libtorch_cpu.so"), "").unwrap();
    std::fs::write(broken.path().join("version.py"), "__version__ = '2.11.0'\n").unwrap();
    let simulation = Simulation::new(json!({}));
    let mut environment: Environment = simulation.environment();
    environment.push(("MIGPERF_LIBTORCH".to_owned(), broken.path().to_owned()));
    let state = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(state.path(), &environment).await;
    let job = daemon.submit(SHORT, "auto", true).await.unwrap();
    daemon.wait_for(job, &["done"], LIMIT).await;
    let report = daemon.report(job).await;
    let reason = report["trials"][0]["outcome"]["reason"].as_str().unwrap();
    assert!(reason.starts_with("member 0 ended early: exit status 127"), "{reason}");
    assert!(reason.contains("error while loading shared libraries"), "{reason}");
    assert!(reason.contains("lib/libtorch_cpu.so: file too short"), "{reason}");
    assert_eq!(report["summary"]["failed"], 4);
}

#[tokio::test]
async fn a_daemon_that_is_told_to_end_cancels_first() {
    let stage = stage();
    let daemon = stage.daemon().await;
    let job = daemon.submit(&endless(), "auto", false).await.unwrap();
    let waiting = daemon.submit(SHORT, "auto", false).await.unwrap();
    let workers = measuring(&daemon, job, 1).await;
    let mark = daemon.mark.clone();
    let status = daemon.terminate(LIMIT).await;
    assert!(status.success(), "{status}");
    all_end(&workers, GONE).await;
    nothing_is_left(&mark).await;
    let next = stage.daemon().await;
    for job in [job, waiting] {
        let row = next.listed(job).await;
        assert_eq!(text(&row, key::STATE).as_deref(), Some("cancelled"), "{row:?}");
        assert_eq!(text(&row, key::REASON).as_deref(), Some("the daemon was told to end"));
    }
}
