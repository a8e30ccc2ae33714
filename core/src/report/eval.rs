//! The report in the terms of MIGPerf (arXiv:2301.00407): six metrics for each workload configuration, under the names and
//! units of its evaluation recipe.

use std::collections::BTreeMap;

use serde::Serialize;

use super::finding::{Central, Finding};
use super::{CellGroup, CellReport, Report};
use crate::report::cell::CellOutcome;

/// What `--format migperf-eval` writes.
#[derive(Debug, Serialize)]
struct Evaluation<'a> {
    /// What each metric counts.
    units: BTreeMap<&'static str, &'static str>,
    /// Why numbers are not of hardware; null where they are.
    watermark: Option<&'a str>,
    metrics: BTreeMap<String, Metrics>,
}

/// One workload configuration.
#[derive(Debug, Serialize)]
struct Metrics {
    avg_latency: Option<f64>,
    tail_latency: Option<f64>,
    throughput: Option<f64>,
    gract: Option<f64>,
    fb: Option<f64>,
    energy: Option<f64>,
    /// The time over which the energy was taken.
    energy_minutes: Option<f64>,
    /// Whether the framework found the device it was given and worked on it.
    framework_compatibility: &'static str,
    verdict: &'static str,
    /// Why a metric is null, by its name.
    missing: BTreeMap<&'static str, String>,
}

/// The report as JSON under MIGPerf's names.
#[must_use]
pub fn render(report: &Report) -> String {
    let units = [
        ("avg_latency", "ms"),
        ("tail_latency", "ms, 99th percentile"),
        ("throughput", "req/min; samples/min of training"),
        ("gract", "[0, 1]"),
        ("fb", "GB (10^9 bytes), mean over time, of the device"),
        ("energy", "J, of the device, over energy_minutes"),
    ];
    let mut metrics = BTreeMap::new();
    for cell in &report.cells {
        if cell.groups.is_empty() {
            metrics.insert(cell.name.clone(), Metrics::of(report, cell, None));
        }
        for group in &cell.groups {
            let name = match cell.groups.len() {
                1 => cell.name.clone(),
                _ => format!("{} | {}", cell.name, group.workload.name),
            };
            metrics.insert(name, Metrics::of(report, cell, Some(group)));
        }
    }
    let evaluation = Evaluation { units: units.into_iter().collect(), watermark: report.watermark.as_deref(), metrics };
    let json = serde_json::to_string_pretty(&evaluation).expect("only names as keys, and finite numbers");
    format!("{json}\n")
}

impl Metrics {
    fn of(report: &Report, cell: &CellReport, group: Option<&CellGroup>) -> Self {
        let mut missing = BTreeMap::new();
        let no_numbers = || cell.reason.clone().unwrap_or_else(|| "no repeat has numbers".to_owned());
        let mut metric = |name: &'static str, finding: Option<(Option<f64>, Option<&str>)>| match finding {
            Some((Some(value), _)) => Some(value),
            Some((None, reason)) => {
                missing.insert(name, reason.unwrap_or_default().to_owned());
                None
            }
            None => {
                missing.insert(name, no_numbers());
                None
            }
        };
        fn parts<T: Central>(finding: &Finding<T>) -> (Option<f64>, Option<&str>) {
            (finding.number(), finding.reason())
        }
        let scaled = |(value, reason): (Option<f64>, _), factor: f64| (value.map(|value| value * factor), reason);
        let of_cell = |found| group.map(|_| found);
        let minutes: Vec<f64> = report
            .trials
            .iter()
            .filter(|trial| cell.trials.contains(&trial.trial) && trial.outcome.is_usable())
            .filter_map(|trial| Some(trial.window.as_ref()?.common_s.number()? / 60.0))
            .collect();
        Self {
            avg_latency: metric("avg_latency", group.map(|group| parts(&group.latency_ms.mean))),
            tail_latency: metric("tail_latency", group.map(|group| parts(&group.latency_ms.nearest_rank.p99))),
            throughput: metric("throughput", group.map(|group| scaled(parts(&group.throughput_samples_per_s), 60.0))),
            gract: metric("gract", of_cell(parts(&cell.gract))),
            fb: metric("fb", of_cell(scaled(parts(&cell.frame_buffer_mean_bytes), 1e-9))),
            energy: metric("energy", of_cell(parts(&cell.energy_j))),
            energy_minutes: (!minutes.is_empty()).then(|| minutes.iter().sum::<f64>() / minutes.len() as f64),
            framework_compatibility: match cell.outcome {
                CellOutcome::Valid | CellOutcome::Flagged | CellOutcome::Partial => "detected",
                CellOutcome::DoesNotFit | CellOutcome::Contaminated => "detected",
                CellOutcome::Invalid | CellOutcome::Failed => "not detected",
                CellOutcome::Cancelled | CellOutcome::NotRun => "not tried",
            },
            verdict: cell.outcome.name(),
            missing,
        }
    }
}
