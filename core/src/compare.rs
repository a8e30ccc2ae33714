//! Two reports against each other: what is the same, what changed, and what nobody can tell.
//!
//! Cells of the same name are compared number by number, over their repeats. Only differences between fresh cohorts
//! decide: Welch's test on logarithms, Holm's method over everything that is compared, and a least effect that matters;
//! so two reports of the same thing show a change in at most one of twenty comparisons of whole reports. Differences of
//! the context are named, never judged.

mod context;
pub mod markdown;
pub mod text;

use serde::{Deserialize, Serialize};

pub use context::Difference;

use crate::report::{Estimated, Finding, GroupReport, Report, TrialReport};
use crate::stats::{Bounds, Change, Ratio, beyond_chance, independent_ratio};
use crate::trial::Purpose;

/// Version of the comparison's JSON.
pub const SCHEMA: u32 = 1;

/// Two reports compared.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Comparison {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Whether either was measured on a simulated device.
    pub simulated: bool,
    /// The least relative change that matters.
    pub least_effect: f64,
    /// What differs in how and where they were measured.
    pub differences: Vec<Difference>,
    /// Every number that both have.
    pub rows: Vec<Row>,
    /// Cells of the first report alone.
    pub only_before: Vec<String>,
    /// Cells of the second report alone.
    pub only_after: Vec<String>,
}

/// One number of one group of one cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// The cell's name.
    pub cell: String,
    /// The group's work.
    pub workload: String,
    /// Which number: `throughput`, `mean`, `p99` or `energy-per-sample`.
    pub metric: String,
    /// Its unit.
    pub unit: String,
    /// The first report's, over its repeats.
    pub before: Finding<Estimated>,
    /// The second report's.
    pub after: Finding<Estimated>,
    /// The second over the first; null with the reason where cohorts are too few.
    pub ratio: Finding<Compared>,
    /// What that says.
    pub verdict: Verdict,
}

/// A ratio as a comparison gives it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Compared {
    /// Second over first: 1 is no change.
    pub value: f64,
    /// At 95 %, for this number alone.
    pub interval: Bounds,
    /// The probability of such a ratio without a change.
    pub p: f64,
    /// Cohorts of both.
    pub n: u64,
}

/// What a comparison says of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The interval lies within the least effect that matters.
    Same,
    /// Changed for the better.
    Better,
    /// Changed for the worse: a regression.
    Worse,
    /// The numbers don't say.
    CantTell,
}

impl Verdict {
    /// The name in every output.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Better => "better",
            Self::Worse => "worse",
            Self::CantTell => "can't tell",
        }
    }
}

/// A number that is compared.
struct Compare {
    name: &'static str,
    unit: &'static str,
    more_is_better: bool,
    of: fn(&TrialReport, &GroupReport) -> Option<f64>,
}

const METRICS: [Compare; 4] = [
    Compare {
        name: "throughput",
        unit: "samples/s",
        more_is_better: true,
        of: |_, group| group.throughput_samples_per_s.number(),
    },
    Compare { name: "mean", unit: "ms", more_is_better: false, of: |_, group| group.latency_ms.mean.number() },
    Compare {
        name: "p99",
        unit: "ms",
        more_is_better: false,
        of: |_, group| group.latency_ms.nearest_rank.p99.number(),
    },
    Compare {
        name: "energy-per-sample",
        unit: "J",
        more_is_better: false,
        of: |trial, _| trial.device.energy_per_sample_j.number(),
    },
];

/// Decides many comparisons at once: each of numbers from fresh cohorts, the first side's and the second's.
#[must_use]
pub fn decide(sides: &[(Vec<f64>, Vec<f64>)], least_effect: f64) -> Vec<(Result<Ratio, String>, Change)> {
    let ratios: Vec<Result<Ratio, String>> = sides
        .iter()
        .map(|(before, after)| independent_ratio(after, before).map_err(|reason| reason.to_string()))
        .collect();
    let probabilities: Vec<f64> = ratios.iter().filter_map(|ratio| Some(ratio.as_ref().ok()?.p)).collect();
    let mut beyond = beyond_chance(&probabilities).into_iter();
    ratios
        .into_iter()
        .map(|ratio| {
            let change = match &ratio {
                Ok(ratio) => ratio.change(beyond.next().unwrap_or(false), least_effect),
                Err(_) => Change::CantTell,
            };
            (ratio, change)
        })
        .collect()
}

/// A cell's repeats that have numbers.
fn usable(report: &Report, cell: u32) -> Vec<&TrialReport> {
    let counts =
        |trial: &&TrialReport| trial.cell == cell && trial.purpose != Purpose::Drift && trial.outcome.is_usable();
    report.trials.iter().filter(counts).collect()
}

impl Comparison {
    /// Of two reports; `least_effect` is the least relative change that matters, such as 0.02.
    #[must_use]
    pub fn of(before: &Report, after: &Report, least_effect: f64) -> Self {
        let mut rows = Vec::new();
        let mut sides = Vec::new();
        let mut directions = Vec::new();
        for cell in &before.cells {
            let Some(twin) = after.cells.iter().find(|twin| twin.name == cell.name) else { continue };
            let (first, second) = (usable(before, cell.cell), usable(after, twin.cell));
            for (place, workload) in works(&first, &second) {
                for metric in &METRICS {
                    let side = |trials: &[&TrialReport]| -> Vec<f64> {
                        trials.iter().filter_map(|trial| (metric.of)(trial, trial.groups.get(place)?)).collect()
                    };
                    let (a, b) = (side(&first), side(&second));
                    if a.is_empty() && b.is_empty() {
                        continue;
                    }
                    let over = |numbers: &[f64]| Finding::<Estimated>::from(crate::stats::between_cohorts(numbers));
                    rows.push(Row {
                        cell: cell.name.clone(),
                        workload: workload.clone(),
                        metric: metric.name.to_owned(),
                        unit: metric.unit.to_owned(),
                        before: over(&a),
                        after: over(&b),
                        ratio: Finding::absent("not decided"),
                        verdict: Verdict::CantTell,
                    });
                    sides.push((a, b));
                    directions.push(metric.more_is_better);
                }
            }
        }
        for ((row, more_is_better), (ratio, change)) in
            rows.iter_mut().zip(directions).zip(decide(&sides, least_effect))
        {
            row.ratio = match ratio {
                Ok(Ratio { value, interval, p, n }) => Finding::Value(Compared { value, interval, p, n: n as u64 }),
                Err(reason) => Finding::absent(reason),
            };
            row.verdict = match change {
                Change::Same => Verdict::Same,
                Change::CantTell => Verdict::CantTell,
                Change::More if more_is_better => Verdict::Better,
                Change::Less if !more_is_better => Verdict::Better,
                Change::More | Change::Less => Verdict::Worse,
            };
        }
        let only = |own: &Report, other: &Report| {
            let alone = own.cells.iter().filter(|cell| other.cells.iter().all(|twin| twin.name != cell.name));
            alone.map(|cell| cell.name.clone()).collect()
        };
        Self {
            schema: SCHEMA,
            simulated: before.simulated || after.simulated,
            least_effect,
            differences: context::differences(before, after),
            only_before: only(before, after),
            only_after: only(after, before),
            rows,
        }
    }

    /// How many numbers have a verdict.
    #[must_use]
    pub fn count(&self, verdict: Verdict) -> usize {
        self.rows.iter().filter(|row| row.verdict == verdict).count()
    }

    /// Whether something got worse.
    #[must_use]
    pub fn is_regression(&self) -> bool {
        self.count(Verdict::Worse) > 0
    }

    /// The verdicts in one line.
    #[must_use]
    pub fn summary(&self) -> String {
        let counts = [Verdict::Worse, Verdict::Better, Verdict::Same, Verdict::CantTell];
        let counts: Vec<String> = counts
            .into_iter()
            .filter(|verdict| self.count(*verdict) > 0)
            .map(|verdict| format!("{} {}", self.count(verdict), verdict.name()))
            .collect();
        match self.rows.len() {
            0 => "The reports have no number in common.".to_owned(),
            all => format!("{all} numbers compared: {}.", counts.join(", ")),
        }
    }
}

/// The kinds of work of a cell, by their place among the groups.
fn works(first: &[&TrialReport], second: &[&TrialReport]) -> Vec<(usize, String)> {
    let groups = first.iter().chain(second).find(|trial| !trial.groups.is_empty());
    let groups = groups.map_or(&[][..], |trial| &trial.groups);
    groups.iter().enumerate().map(|(place, group)| (place, group.workload.name.clone())).collect()
}

/// A ratio as a change in percent with its interval: `+3.1 % [+2.0, +4.2]`.
#[must_use]
pub fn percent(ratio: &Compared) -> String {
    let of = |ratio: f64| (ratio - 1.0) * 100.0;
    format!("{:+.1} % [{:+.1}, {:+.1}]", of(ratio.value), of(ratio.interval.low), of(ratio.interval.high))
}
