//! A large job's report: 10 million samples in 200 trials, within 3 s and 300 MB. It says something in a release build on
//! an idle machine only: `cargo test --release -p migperfd --test large -- --ignored --nocapture`.

#[expect(dead_code, reason = "the report's own tests use the rest")]
#[path = "../../core/tests/report/synthetic.rs"]
mod synthetic;

use std::fs;
use std::time::{Duration, Instant};

use migperf_core::plan::Plan;
use migperf_core::report::html;
use migperf_core::suite::{Suite, Target};
use migperfd::store::Store;

const SUITE: &str = r#"
version = 1
name = "large"
[defaults]
precision = "fp32"
window = "45s"
repeats = 10
[[trial]]
sharing = ["time-slice", "mps"]
workers = [2, 3, 4, 5, 6, 7, 8, 9, 10]
workload = { model = "resnet18", task = "infer", batch-size = 32 }
"#;
const SAMPLES_OF_TRIAL: u64 = 50_000;

/// The most memory that this process has had since it was last asked, in bytes.
fn peak_and_forget() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    fs::write("/proc/self/clear_refs", "5").unwrap();
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() * 1024
}

#[test]
#[ignore = "measures time and memory: needs a release build and an idle machine"]
fn ten_million_samples_are_reported_within_3_s_and_300_mb() {
    let folder = tempfile::tempdir().unwrap();
    let plan = Plan::expand(&Suite::parse(SUITE).unwrap(), Target::Gpu).unwrap();
    let (trials, mut samples) = (plan.trials.clone(), 0);
    let mut store = Store::open(folder.path()).unwrap();
    let job = store.add_job(&synthetic::results(plan, Vec::new()).job).unwrap();
    for trial in &trials {
        let members = trial.spec.members.len() as u64;
        let (from, window) = (100_000 * (u64::from(trial.index) + 1), 45_000);
        let length = (window + 3_000) * synthetic::MS / (SAMPLES_OF_TRIAL / members);
        let batches = (0..members).map(|member| {
            let start = (from - 3_000) * synthetic::MS + member * 1_000;
            let batch = |n: u64| {
                let at = start + n * length;
                synthetic::batch(at, at + length - (n * 7_919 + member) % (length / 20))
            };
            (0..SAMPLES_OF_TRIAL / members).map(batch).collect()
        });
        let record = synthetic::record(trial.clone(), (from, from + window), batches.collect());
        samples += record.members.iter().map(|member| member.samples.as_slice().len()).sum::<usize>();
        store.add_trial(job, &record).unwrap();
    }
    drop(store);
    peak_and_forget();
    let before = peak_and_forget();
    let begin = Instant::now();
    let report = Store::open_to_read(folder.path()).unwrap().reporter(job).unwrap().finish();
    let computed = begin.elapsed();
    let json = report.to_json();
    let page = html::render(&report);
    let (took, peak) = (begin.elapsed(), peak_and_forget());
    eprintln!(
        "{} trials, {samples} samples: computed in {computed:.2?}, with JSON ({} bytes) and HTML ({} bytes) {took:.2?}, peak {} MB ({} MB before)",
        report.trials.len(),
        json.len(),
        page.len(),
        peak / 1_000_000,
        before / 1_000_000
    );
    assert!(report.trials.len() >= 180 && samples >= 9_000_000);
    assert!(took < Duration::from_secs(3), "{took:?}");
    assert!(peak < 300_000_000, "{peak} bytes");
}
