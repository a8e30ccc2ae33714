//! The HTML report: what its first screen says, and that it is one safe, self-contained file. With `MIGPERF_PAGES` set to a
//! folder, the pages are left there for a browser and a validator (`cargo xtask test` does that).

use std::collections::HashSet;
use std::path::Path;

use migperf_core::record::JobResults;
use migperf_core::report::choice::{Choices, Decision};
use migperf_core::report::{Report, WATERMARK, html};
use migperf_core::suite::Target;
use migperf_core::trial::Sharing;

use crate::synthetic::{REPEATED, job, run, troubled};

/// One that infers beside six that train, two ways.
pub(crate) const MIXED: &str = r#"
version = 1
name = "mixed"
[defaults]
precision = "fp32"
window = "30s"
repeats = 4
[objective]
metric = "p99"
of = "infer"
[[trial]]
sharing = ["time-slice", "mps"]
members = [
  { count = 1, workload = { model = "resnet18", task = "infer", batch-size = 32 } },
  { count = 6, workload = { model = "resnet18", task = "train", batch-size = 32 } },
]
"#;

/// The job with MPS replaced by time-slicing under its name: the same thing twice.
fn a_a() -> JobResults {
    let mut results = job(MIXED, Target::Gpu);
    for record in &mut results.trials {
        if matches!(record.trial.spec.sharing, Sharing::Mps { .. }) {
            let mut twin = record.trial.clone();
            twin.spec.sharing = Sharing::TimeSlice;
            let trial = record.trial.clone();
            *record = run(&twin);
            record.trial = trial;
        }
    }
    results
}

fn of(results: &JobResults) -> (Report, String) {
    let report = Report::from_results(results);
    let page = html::render(&report);
    (report, page)
}

/// What stands above the comparison: the first screen.
fn first_screen(page: &str) -> &str {
    &page[page.find("<body>").unwrap()..page.find("id=\"comparison\"").unwrap()]
}

#[test]
fn the_first_screen_answers() {
    let (report, page) = of(&job(MIXED, Target::Gpu));
    let choices = Choices::of(&report);
    let choice = &choices.choices[0];
    assert!(choice.mixed && choices.from_suite);
    let Decision::Best(best) = choice.outcome else { panic!("{:?}", choice.outcome) };
    assert_eq!(choice.options[best].sharing, "mps");
    let first = first_screen(&page);
    assert!(
        first.contains(
            "How should NVIDIA Example be shared for 1x resnet18 infer b32 fp32 + 6x resnet18 train b32 fp32?"
        )
    );
    assert!(first.contains("<p class=\"a\">MPS.</p>"), "{first}");
    assert!(first.contains("p99 of infer, the lowest"), "the criterion is shown");
    assert!(first.contains("lower than under time-slicing"), "{first}");
}

#[test]
fn the_same_thing_twice_can_not_be_told_apart() {
    let (report, page) = of(&a_a());
    for choice in Choices::of(&report).choices {
        assert!(matches!(choice.outcome, Decision::CantTell(_) | Decision::NoChoice(_)), "{choice:?}");
    }
    assert!(first_screen(&page).contains("<p class=\"a\">Can't tell.</p>"));
}

#[test]
fn one_cohort_each_decides_nothing() {
    let (report, page) = of(&job(&MIXED.replace("repeats = 4", "repeats = 1"), Target::Gpu));
    let choice = &Choices::of(&report).choices[0];
    let Decision::CantTell(why) = &choice.outcome else { panic!("{:?}", choice.outcome) };
    assert!(why.contains("two repeats or more decide"), "{why}");
    assert!(first_screen(&page).contains("Can't tell."));
}

#[test]
fn the_objective_decides_what_is_better() {
    let highest = MIXED.replace("metric = \"p99\"\nof = \"infer\"", "metric = \"throughput\"\nof = \"train\"");
    let (report, page) = of(&job(&highest, Target::Gpu));
    let choice = &Choices::of(&report).choices[0];
    assert_eq!(choice.judged, "resnet18 train b32 fp32");
    assert!(matches!(choice.outcome, Decision::Best(_)), "{:?}", choice.outcome);
    assert!(first_screen(&page).contains("throughput of train, the highest"));
    let silent = MIXED.replace("[objective]\nmetric = \"p99\"\nof = \"infer\"", "");
    let (_, page) = of(&job(&silent, Target::Gpu));
    assert!(first_screen(&page).contains("the suite names no objective"));
}

/// Pages of all kinds: whole, simulated and troubled, hostile, of the processors, large, and of an older version.
fn pages() -> Vec<(&'static str, Report)> {
    let mut hostile = job(MIXED, Target::Gpu);
    let name = "</title><script>alert(1)</script><b a=\"'&";
    hostile.job.plan.name = name.to_owned();
    hostile.job.host.name = name.to_owned();
    hostile.job.suite = name.to_owned();
    hostile.job.plan.warnings.push(name.to_owned());
    let mut older = Report::from_results(&job(REPEATED, Target::Gpu));
    older.job.suite = None;
    older.trials.iter_mut().for_each(|trial| trial.series = None);
    let cpu = MIXED.replace("[\"time-slice\", \"mps\"]", "\"cpu\"").replace("repeats = 4", "repeats = 2");
    vec![
        ("repeated", Report::from_results(&job(REPEATED, Target::Gpu))),
        ("mixed", Report::from_results(&job(MIXED, Target::Gpu))),
        ("same", Report::from_results(&a_a())),
        ("troubled", Report::from_results(&troubled())),
        ("hostile", Report::from_results(&hostile)),
        ("processors", Report::from_results(&job(&cpu, Target::Cpu))),
        ("older", older),
        ("large", Report::from_results(&job(LARGE, Target::Gpu))),
    ]
}

/// 200 trials and more.
const LARGE: &str = r#"
version = 1
name = "large"
[defaults]
precision = "fp32"
window = "12s"
repeats = 3
[[trial]]
sharing = ["time-slice", "mps"]
workers = [1, 2, 4, 7]
workload = { model = "resnet18", task = ["train", "infer"], batch-size = [1, 8, 16, 32] }
"#;

#[test]
fn a_page_is_one_file_that_loads_nothing_and_can_be_trusted() {
    let folder = std::env::var_os("MIGPERF_PAGES");
    for (name, report) in pages() {
        let page = html::render(&report);
        for foreign in ["http:", "https:", "src=", "url(", "@import", "<script", "<link", "javascript:"] {
            let page = page.replace("&lt;script", "");
            assert!(!page.contains(foreign), "{name} contains {foreign}");
        }
        assert!(page.chars().all(|c| !c.is_control() || c == '\n'), "{name} has control characters");
        let mut ids = HashSet::new();
        for id in page.split(" id=\"").skip(1).map(|rest| &rest[..rest.find('"').unwrap()]) {
            assert!(ids.insert(id), "{name} has the id {id} twice");
        }
        for target in page.split("href=\"#").skip(1).map(|rest| &rest[..rest.find('"').unwrap()]) {
            assert!(ids.contains(target), "{name} points to {target}, which is not there");
        }
        let drawings = page.matches("<svg ").count();
        assert_eq!((page.matches("<title id=").count(), page.matches("<desc id=").count()), (drawings, drawings));
        assert_eq!(page.matches(WATERMARK).count(), if report.simulated { 2 } else { 0 }, "{name}");
        if let Some(folder) = &folder {
            std::fs::write(Path::new(folder).join(name).with_extension("html"), &page).unwrap();
        }
    }
}

#[test]
fn hundreds_of_trials_stay_small() {
    let (report, page) = of(&job(LARGE, Target::Gpu));
    assert!(report.trials.len() > 200, "{}", report.trials.len());
    assert!(page.len() < 700_000, "{} bytes", page.len());
    assert!(page.contains("have their table only and no plots"), "what is left out is said");
}

#[test]
fn plots_keep_what_is_extreme() {
    let mut results = job(MIXED, Target::Gpu);
    let record = results.trials.iter_mut().find(|record| record.trial.spec.members.len() > 1).unwrap();
    let mut samples = record.members[0].samples.as_slice().to_vec();
    let stalled = samples.len() / 2;
    let (start, later) = (samples[stalled].start, samples[stalled + 9].end);
    samples.drain(stalled + 1..stalled + 10);
    samples[stalled].end = later;
    record.members[0].done.samples = samples.len() as u64;
    record.members[0].samples = migperf_core::sample::Samples::new(samples).unwrap();
    let stall = (later.0 - start.0) as f64 / 1e6;
    let report = Report::from_results(&results);
    let series = report.trials.iter().filter(|trial| trial.members.len() > 1).find_map(|t| t.series.as_ref()).unwrap();
    let longest = series.members[0].longest_ms.iter().flatten().copied().fold(0.0, f64::max);
    assert!((longest - stall).abs() < 0.001, "{longest} {stall}");
    assert!((series.latencies[0].ms.last().unwrap() - stall).abs() < 0.001);
}
