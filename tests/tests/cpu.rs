//! The main job on the CPU: real workers, real cohorts, the whole way from a suite to a report.

use std::time::Duration;

use migperf_tests::Daemon;

/// Two cells of real work and short windows.
const SUITE: &str = r#"
version = 1
name = "cpu"
[defaults]
warmup-batches = 2
warmup = "100ms"
settle = "500ms"
window = "2s"
minimum-batches = 5
[[trial]]
sharing = "cpu"
workers = [1, 2]
workload = { model = "resnet18", task = "infer", batch-size = 1 }
"#;

#[tokio::test]
async fn a_suite_becomes_a_report() {
    let state = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(state.path(), &[]).await;
    let job = daemon.submit(SUITE, "cpu", true).await.unwrap();
    assert_eq!(daemon.wait_for(job, &["done", "failed"], Duration::from_secs(90)).await, "done");
    let report = daemon.report(job).await;
    println!("{report:#}");
    daemon.leave(Duration::from_secs(20)).await;
}
