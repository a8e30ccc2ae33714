//! Workers that break the protocol: the cohort fails with a reason that names the member and the breach, its processes are
//! gone, and the daemon measures on.

use std::time::Duration;

use migperf_dbus::names::job as key;
use migperf_tests::paced::Stage;
use migperf_tests::{Daemon, number, processes};

const LIMIT: Duration = Duration::from_secs(60);

/// One worker that has the GPU to itself, for half a second.
const SUITE: &str = r#"
version = 1
name = "paced"
[defaults]
warmup-batches = 1
warmup = "0ms"
settle = "500ms"
window = "500ms"
longest-window = "500ms"
minimum-batches = 5
ready-limit = "2s"
[[trial]]
sharing = "exclusive"
workload = { model = "empty", task = "infer", batch-size = 1 }
"#;

async fn measure(daemon: &Daemon) -> (serde_json::Value, u32) {
    let job = daemon.submit(SUITE, "auto", true).await.unwrap();
    assert_eq!(daemon.wait_for(job, &["done", "failed"], LIMIT).await, "done");
    let failed = number(&daemon.listed(job).await, key::TRIALS_FAILED).unwrap();
    (daemon.report(job).await["trials"][0]["outcome"].clone(), failed)
}

/// Each way to break the protocol, and how the trial's reason begins.
async fn check(breaches: &[(&str, &str)]) {
    let stage = Stage::new(env!("CARGO_BIN_EXE_paced-worker"));
    let daemon = stage.daemon().await;
    for (fault, words) in breaches {
        stage.workers_do(fault);
        let (outcome, failed) = measure(&daemon).await;
        assert_eq!(outcome["verdict"], "failed", "{fault}: {outcome}");
        let reason = outcome["reason"].as_str().unwrap();
        assert!(reason.starts_with(words), "{fault}: {reason}");
        assert!(failed > 0, "{fault}");
        let left = processes::descendants(daemon.pid());
        assert!(left.is_empty(), "{fault}: {left:?}");
    }
    // And with workers that keep to it, the same daemon measures: a nap of a hundredth of a second, again and again.
    stage.workers_do("");
    let job = daemon.submit(SUITE, "auto", true).await.unwrap();
    daemon.wait_for(job, &["done"], LIMIT).await;
    let report = daemon.report(job).await;
    let rate = report["trials"][0]["members"][0]["throughput_samples_per_s"]["value"].as_f64();
    assert!(rate.is_some_and(|rate| rate > 30.0 && rate <= 100.0), "{rate:?}");
    daemon.leave(LIMIT).await;
}

#[tokio::test]
async fn bytes_that_are_no_protocol_fail_the_cohort() {
    check(&[
        ("garbage", "member 0 ended early: its connection holds no protocol: a message is malformed"),
        ("unknown kind", "member 0 ended early: its connection holds no protocol: 9 is not a kind of frame"),
        ("long frame", "member 0 ended early: its connection holds no protocol: a frame of 4194305 bytes is over"),
        ("half a frame", "member 0 ended early: exit status 0"),
        ("words", "member 0 ended early: exit status 3: paced-worker: something is missing"),
        ("crash", "member 0 ended early: killed by SIGABRT"),
        ("silence", "members [0] were not ready within 2s"),
        ("never built", "members [0] were not ready within 2s"),
        ("version", "member 0 broke the protocol: it speaks version 2, this daemon 1"),
    ])
    .await;
}

#[tokio::test]
async fn messages_out_of_turn_fail_the_cohort() {
    check(&[
        ("samples early", "member 0 broke the protocol: it sent samples out of turn"),
        ("ready early", "member 0 broke the protocol: it sent ready out of turn"),
        ("digest", "member 0 is configured differently from the plan"),
        ("late", "member 0 started 2"),
        ("miscounted", "member 0 broke the protocol: it announced"),
        ("out of order", "member 0 broke the protocol: sample 1 starts before"),
    ])
    .await;
}

#[tokio::test]
async fn a_worker_that_reports_no_progress_fails_the_cohort() {
    check(&[("no progress", "member 0 hangs: it reported no progress for 10s")]).await;
}

#[tokio::test]
async fn work_that_does_not_fit_is_a_result() {
    let stage = Stage::new(env!("CARGO_BIN_EXE_paced-worker"));
    let daemon = stage.daemon().await;
    stage.workers_do("does not fit");
    let (outcome, failed) = measure(&daemon).await;
    assert_eq!((outcome["verdict"].as_str(), failed), (Some("does-not-fit"), 0), "{outcome}");
    assert_eq!(outcome["reason"], "the parameters need 3 bytes, there are 2");
}
