//! The main job on the CPU: real workers, real cohorts, the whole way from a suite to a report.

use std::time::Duration;

use migperf_tests::Daemon;
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(150);

/// Real work and short windows: one and two workers, and two that do unlike work.
const SUITE: &str = r#"
version = 1
name = "cpu"
[defaults]
warmup-batches = 1
warmup = "0ms"
settle = "500ms"
window = "3s"
longest-window = "6s"
minimum-batches = 4
[[trial]]
sharing = "cpu"
workers = 2
workload = { model = "resnet18", task = "infer", batch-size = 1 }
[[trial]]
sharing = "cpu"
members = [
  { workload = { model = "resnet18", task = "infer", batch-size = 1 } },
  { workload = { model = "resnet18", task = "train", batch-size = 2 } },
]
"#;

fn schema() -> jsonschema::Validator {
    let schema = serde_json::from_str(include_str!("../../docs/report.schema.json")).unwrap();
    jsonschema::draft202012::new(&schema).unwrap()
}

fn number(finding: &Value) -> f64 {
    finding["value"].as_f64().unwrap_or_else(|| panic!("no number: {finding}"))
}

fn check_member(member: &Value, common_s: f64) {
    let (items, rate) = (number(&member["items"]), number(&member["throughput_samples_per_s"]));
    let counted = member["batches"]["counted"].as_f64().unwrap();
    let batch = member["workload"]["batch_size"].as_f64().unwrap();
    assert!(counted >= 2.0 && (items - counted * batch).abs() < 0.5, "{member}");
    assert!(rate > 0.0);
    // The article's rate: the same items over the whole interval, so never more.
    let article = number(&member["article_samples_per_s"]);
    assert!((article - items / common_s).abs() < 1e-6 * article && article <= rate * 1.000_001, "{article} {rate}");
    let latency = &member["latency_ms"];
    let (min, p50) = (number(&latency["min"]), number(&latency["nearest_rank"]["p50"]));
    let (mean, max) = (number(&latency["mean"]), number(&latency["max"]));
    assert!(0.0 < min && min <= p50 && p50 <= max && min <= mean && mean <= max, "{latency}");
    for (low, high) in [("p50", "p90"), ("p90", "p95"), ("p95", "p99"), ("p99", "p99.9")] {
        for kind in ["nearest_rank", "linear"] {
            let at = |name: &str| latency[kind][name]["value"].as_f64();
            if let (Some(low), Some(high)) = (at(low), at(high)) {
                assert!(low <= high, "{latency}");
            }
        }
    }
    // So few batches have no such tail: absent with a reason, never a guess.
    assert!(latency["nearest_rank"]["p99.9"]["reason"].as_str().unwrap().starts_with("p99.9 needs 1000 samples"));
    // A closed loop: batch size over mean latency is the rate, but for the time between batches.
    assert!((rate * mean / 1000.0 / batch - 1.0).abs() < 0.1, "{rate}/s at {mean} ms");
    assert!(number(&member["resident_peak_bytes"]) > 50e6);
    assert!(member["allocated_peak_bytes"]["reason"].is_string());
    assert_eq!(member["device"], Value::Null);
    if member["workload"]["task"] == "train" {
        assert!(member["requests_per_min"]["reason"].is_string(), "training has no requests");
    } else {
        assert!((number(&member["requests_per_min"]) / rate - 60.0).abs() < 1e-6);
    }
}

#[tokio::test]
async fn a_suite_becomes_a_report_that_can_be_made_again() {
    let state = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(state.path(), &[]).await;
    let job = daemon.submit(SUITE, "cpu", true).await.unwrap();
    assert_eq!(daemon.wait_for(job, &["done", "failed"], LIMIT).await, "done", "{}", daemon.reason(job).await);
    let report = daemon.report(job).await;
    daemon.leave(Duration::from_secs(20)).await;

    let validator = schema();
    let errors: Vec<String> = validator.iter_errors(&report).map(|error| error.to_string()).collect();
    assert!(errors.is_empty(), "{errors:#?}");
    assert_eq!((&report["simulated"], &report["watermark"]), (&json!(false), &Value::Null));
    assert_eq!(report["job"]["target"], "cpu");

    let trials = report["trials"].as_array().unwrap();
    let shape: Vec<_> = trials.iter().map(|trial| (&trial["name"], &trial["purpose"])).collect();
    let (infer, train) = ("resnet18 infer b1 fp32", "resnet18 train b2 fp32");
    assert_eq!(
        shape,
        [
            (&json!(format!("cpu: 1x {infer}")), &json!("baseline")),
            (&json!(format!("cpu: 1x {train}")), &json!("baseline")),
            (&json!(format!("cpu: 2x {infer}")), &json!("requested")),
            (&json!(format!("cpu: 1x {infer} + 1x {train}")), &json!("requested")),
            (&json!(format!("cpu: 1x {infer}")), &json!("drift")),
            (&json!(format!("cpu: 1x {train}")), &json!("drift")),
        ]
    );
    assert_eq!(report["drift"].as_array().unwrap().len(), 2);
    for trial in trials {
        assert_eq!(trial["outcome"]["verdict"], "valid", "{}: {} {}", trial["name"], trial["outcome"], trial["flags"]);
        assert!(number(&trial["window"]["common_share"]) >= 0.8);
        let members = trial["members"].as_array().unwrap();
        assert_eq!(members.len() as u64, trial["cohort_members"].as_u64().unwrap());
        for member in members {
            check_member(member, number(&trial["window"]["common_s"]));
        }
        if members.len() > 1 {
            assert!(number(&trial["window"]["start_skew_us"]) < 50_000.0);
            assert_ne!(members[0]["pid"], members[1]["pid"]);
        }
        for (name, finding) in trial["device"].as_object().unwrap().iter().filter(|(name, _)| *name != "device") {
            assert_eq!(finding["value"], Value::Null, "{name} on the CPU");
            assert_eq!(finding["reason"], "on the CPU there is no device to ask", "{name}");
        }
    }
    let sum = |trial: &Value| {
        trial["members"].as_array().unwrap().iter().map(|m| number(&m["throughput_samples_per_s"])).sum::<f64>()
    };
    let pair = &trials[2]["groups"];
    assert_eq!(pair.as_array().unwrap().len(), 1);
    assert!((number(&pair[0]["throughput_samples_per_s"]) / sum(&trials[2]) - 1.0).abs() < 1e-9);
    // Unlike work: two groups, each with its own member, and no number that adds them.
    let mixed = &trials[3];
    let groups = mixed["groups"].as_array().unwrap();
    assert_eq!((&groups[0]["members"], &groups[1]["members"]), (&json!([0]), &json!([1])));
    for (group, member) in groups.iter().zip(mixed["members"].as_array().unwrap()) {
        assert_eq!(group["throughput_samples_per_s"]["value"], member["throughput_samples_per_s"]["value"]);
    }

    // Another daemon, from the stored records alone.
    let next = Daemon::start(state.path(), &[]).await;
    assert_eq!(next.report(job).await, report);
}
