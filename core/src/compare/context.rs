//! What differs in how and where two reports were measured: named beside a comparison, since it may be the cause.

use serde::{Deserialize, Serialize};

use crate::report::{Finding, Plain, Report, Text};

/// One thing that differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Difference {
    /// What.
    pub what: String,
    /// In the first report.
    pub before: String,
    /// In the second.
    pub after: String,
}

fn text(finding: &Finding<Text>) -> String {
    finding.value().map_or_else(|| "unknown".to_owned(), |text| text.value.clone())
}

fn number(finding: &Finding<Plain>, unit: &str) -> String {
    finding.number().map_or_else(|| "unknown".to_owned(), |number| format!("{number:.0} {unit}"))
}

/// Every fact by name, in the order in which differences are told.
fn facts(report: &Report) -> Vec<(&'static str, String)> {
    let (job, context) = (&report.job, &report.context);
    let gpus = |of: fn(&crate::report::GpuView) -> String| {
        let all: Vec<String> = context.gpus.iter().map(of).collect();
        if all.is_empty() { "none".to_owned() } else { all.join(", ") }
    };
    vec![
        ("simulated", report.simulated.to_string()),
        ("target", job.target.clone()),
        ("GPU", gpus(|gpu| text(&gpu.name))),
        ("GPU's UUID", gpus(|gpu| gpu.uuid.clone())),
        ("multiprocessors", gpus(|gpu| number(&gpu.multiprocessors, ""))),
        ("MIG mode", gpus(|gpu| text(&gpu.mig))),
        ("power limit", gpus(|gpu| number(&gpu.power_limit_w, "W"))),
        ("highest clock", gpus(|gpu| number(&gpu.clock_sm_max_mhz, "MHz"))),
        ("driver", text(&context.driver)),
        ("CUDA of the driver", text(&context.cuda)),
        ("libtorch", text(&context.libtorch)),
        ("migperf", context.migperf.clone()),
        ("host", context.host.clone()),
        ("host's identity", text(&context.host_id)),
        ("processor", text(&context.processor)),
        ("processors", context.processors.to_string()),
        ("kernel", context.kernel.clone()),
        ("suite", job.name.clone()),
        ("suite's digest", job.suite_digest.clone()),
        ("seed", job.seed.to_string()),
        ("repeats", job.repeats.to_string()),
    ]
}

/// The length of a cell's window, where it has one.
fn window(report: &Report, cell: u32) -> Option<f64> {
    report.trials.iter().filter(|trial| trial.cell == cell).find_map(|trial| Some(trial.window.as_ref()?.window_s))
}

/// Everything that differs.
pub(super) fn differences(before: &Report, after: &Report) -> Vec<Difference> {
    let pairs = facts(before).into_iter().zip(facts(after));
    let mut differences: Vec<Difference> = pairs
        .filter(|((_, before), (_, after))| before != after)
        .map(|((what, before), (_, after))| Difference { what: what.to_owned(), before, after })
        .collect();
    let windows = before.cells.iter().filter_map(|cell| {
        let twin = after.cells.iter().find(|twin| twin.name == cell.name)?;
        let (first, second) = (window(before, cell.cell)?, window(after, twin.cell)?);
        ((first - second).abs() > 0.01 * first).then_some((first, second))
    });
    let windows: Vec<(f64, f64)> = windows.collect();
    if let Some((first, second)) = windows.first() {
        differences.push(Difference {
            what: format!("windows of {} cells, the first", windows.len()),
            before: format!("{first:.1} s"),
            after: format!("{second:.1} s"),
        });
    }
    differences
}
