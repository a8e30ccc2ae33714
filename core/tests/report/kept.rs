//! A job in one file, the folders of its workers, and the view under MIGPerf's names.

use migperf_core::archive::{self, Archive, ArchiveError, co_load};
use migperf_core::record::JobResults;
use migperf_core::report::{Report, eval};
use migperf_core::suite::Target;
use proptest::prelude::*;
use serde_json::Value;

use crate::page::MIXED;
use crate::synthetic::{job, troubled};

fn kept(results: &JobResults) -> Vec<u8> {
    let mut bytes = archive::begin(&results.job, results.layout.as_ref()).unwrap();
    results.trials.iter().for_each(|trial| archive::append(&mut bytes, trial).unwrap());
    bytes
}

#[test]
fn an_archive_gives_the_report_of_its_job() {
    for results in [job(MIXED, Target::Gpu), troubled()] {
        let bytes = kept(&results);
        assert!(Archive::is_one(&bytes));
        assert_eq!(Archive::open(&bytes).unwrap().report().unwrap(), Report::from_results(&results));
    }
}

#[test]
fn a_trial_comes_back_with_every_batch() {
    let results = troubled();
    let bytes = kept(&results);
    let mut archive = Archive::open(&bytes).unwrap();
    for record in &results.trials {
        assert_eq!(archive.next_trial().unwrap().as_ref(), Some(record));
    }
    assert!(archive.next_trial().unwrap().is_none());
}

#[test]
fn what_is_no_archive_is_refused() {
    let results = job(MIXED, Target::Gpu);
    assert!(matches!(Archive::open(b"SQLite format 3"), Err(ArchiveError::Magic)));
    assert!(matches!(Archive::open(archive::MAGIC), Err(ArchiveError::Short)));
    let mut newer = results.clone();
    newer.job.format += 1;
    let Err(error) = Archive::open(&kept(&newer)).map(drop) else { panic!("a later format is read") };
    assert!(error.to_string().contains("use a later migperf"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Damage is an error or another report, never a panic; a file that is cut short is never taken for whole.
    #[test]
    fn damage_is_survived(at in 0.0..1.0_f64, byte: u8, cut: bool) {
        let mut results = job(&MIXED.replace("30s", "10s").replace("repeats = 4", "repeats = 1"), Target::Gpu);
        results.trials.truncate(2);
        let mut bytes = kept(&results);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a place in the file")]
        let place = (at * bytes.len() as f64) as usize;
        if cut {
            bytes.truncate(place);
            let report = Archive::open(&bytes).and_then(Archive::report);
            prop_assert!(report.is_err() || report.is_ok_and(|report| report.trials.len() < 2));
        } else {
            bytes[place] = byte;
            let _ = Archive::open(&bytes).and_then(Archive::report);
        }
    }
}

#[test]
fn a_worker_has_a_folder_with_every_batch() {
    let results = job(MIXED, Target::Gpu);
    let record = results.trials.iter().find(|record| record.members.len() == 7).unwrap();
    let files = co_load::files(&results.job, record);
    assert_eq!(files.len(), 14);
    let folder = format!("trial-{:03}", record.trial.index);
    assert_eq!(files[2].path, format!("{folder}/worker-1/worker.json"));
    let worker: Value = serde_json::from_str(&files[2].text).unwrap();
    let cohorts: Vec<Value> = files
        .iter()
        .step_by(2)
        .map(|file| serde_json::from_str::<Value>(&file.text).unwrap()["cohort"].clone())
        .collect();
    assert!(cohorts.iter().all(|cohort| *cohort == worker["cohort"]), "workers of a cohort name it alike");
    assert_eq!(
        (&worker["worker"], &worker["workers"], &worker["workload"]["task"]),
        (&1.into(), &7.into(), &"train".into())
    );
    let samples = record.members[1].samples.as_slice();
    let lines: Vec<Value> = files[3].text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), samples.len());
    for (line, sample) in lines.iter().zip(samples) {
        assert_eq!((line["start_ns"].as_u64(), line["end_ns"].as_u64()), (Some(sample.start.0), Some(sample.end.0)));
    }
    let document = include_str!("../../../docs/report.md");
    for field in worker.as_object().unwrap().keys().chain(lines[0].as_object().unwrap().keys()) {
        assert!(document.contains(&format!("`{field}`")), "docs/report.md does not name {field}");
    }
}

#[test]
fn six_metrics_stand_under_migperfs_names() {
    let report = Report::from_results(&job(MIXED, Target::Gpu));
    let shown: Value = serde_json::from_str(&eval::render(&report)).unwrap();
    let metrics = &shown["metrics"]["mps: 1x resnet18 infer b32 fp32"];
    let cell = report.cells.iter().find(|cell| cell.name == "mps: 1x resnet18 infer b32 fp32").unwrap();
    let group = &cell.groups[0];
    for (name, expected) in [
        ("avg_latency", group.latency_ms.mean.number().unwrap()),
        ("tail_latency", group.latency_ms.nearest_rank.p99.number().unwrap()),
        ("throughput", group.requests_per_min.number().unwrap()),
        ("gract", 0.875),
        ("fb", cell.frame_buffer_mean_bytes.number().unwrap() / 1e9),
        ("energy", cell.energy_j.number().unwrap()),
    ] {
        let found = metrics[name].as_f64().unwrap();
        assert!((found - expected).abs() < 1e-9 * expected, "{name}: {found} is not {expected}");
        assert!(shown["units"][name].is_string(), "{name} has a unit");
    }
    // 400 W over the common interval.
    let minutes = metrics["energy_minutes"].as_f64().unwrap();
    assert!((metrics["energy"].as_f64().unwrap() - 400.0 * 60.0 * minutes).abs() < 50.0, "{metrics}");
    let mixed = "mps: 1x resnet18 infer b32 fp32 + 6x resnet18 train b32 fp32 | resnet18 train b32 fp32";
    assert_eq!(shown["metrics"][mixed]["framework_compatibility"], "detected");
    let trouble: Value = serde_json::from_str(&eval::render(&Report::from_results(&troubled()))).unwrap();
    assert!(trouble["watermark"].as_str().unwrap().starts_with("SIMULATED"));
    let missing = trouble["metrics"].as_object().unwrap().values().filter(|metrics| metrics["avg_latency"].is_null());
    assert!(missing.clone().count() > 0);
    assert!(missing.into_iter().all(|metrics| metrics["missing"]["avg_latency"].is_string()), "null has a reason");
}
