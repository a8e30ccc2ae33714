//! The answer to the suite's objective: which cells meet it. Only an interval between cohorts decides; without one, or
//! where it lies across the bound, the answer is that nobody can tell.

use serde::{Deserialize, Serialize};

use super::cell::{CellGroup, CellReport};
use super::finding::{Estimated, Finding};
use crate::plan::Plan;
use crate::stats::{Kind, Quantile};
use crate::suite::{Metric, Objective};

/// What is known of one group of one cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// The whole interval is on the good side of the bound.
    Meets,
    /// The whole interval is on the bad side.
    Misses,
    /// The interval lies across the bound, or there is none between cohorts.
    CantTell,
    /// The number is missing.
    NoNumber,
    /// Without a bound: better than every other, by intervals that don't touch.
    Best,
    /// Without a bound: another is better, by intervals that don't touch.
    NotBest,
}

impl Answer {
    /// The name in every output.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Meets => "meets",
            Self::Misses => "misses",
            Self::CantTell => "can't tell",
            Self::NoNumber => "no number",
            Self::Best => "best",
            Self::NotBest => "not best",
        }
    }
}

/// The objective and how each cell that the suite asks for stands to it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ObjectiveReport {
    /// In words.
    pub text: String,
    /// The number that is judged.
    pub metric: String,
    /// Its unit.
    pub unit: String,
    /// The bound in that unit; null: the best wins.
    pub bound: Option<f64>,
    /// Whether more is better.
    pub more_is_better: bool,
    /// Which work is judged.
    pub of: String,
    /// One for each judged group of each cell that the suite asks for.
    pub judgements: Vec<Judgement>,
}

/// One group of one cell, judged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Judgement {
    /// The cell.
    pub cell: u32,
    /// The cell's name.
    pub name: String,
    /// The group's work.
    pub workload: String,
    /// The number that is judged.
    pub found: Finding<Estimated>,
    /// How it stands.
    pub answer: Answer,
    /// Why.
    pub why: String,
}

impl ObjectiveReport {
    /// Of a plan's objective, if it has one.
    pub(super) fn of(plan: &Plan, cells: &[CellReport]) -> Option<Self> {
        let objective = plan.objective?;
        let metric = objective.metric;
        let mut judgements = Vec::new();
        for (cell, spec) in cells.iter().zip(&plan.cells).filter(|(cell, _)| cell.requested) {
            for (place, (workload, _)) in spec.groups().into_iter().enumerate() {
                if !objective.of.includes(workload) {
                    continue;
                }
                let found = match cell.groups.get(place) {
                    Some(group) => group_number(metric, cell, group),
                    None => Finding::absent(cell.reason.as_deref().unwrap_or("no repeat has run")),
                };
                let (answer, why) = judge(objective, &found);
                let (name, workload) = (cell.name.clone(), workload.to_string());
                judgements.push(Judgement { cell: cell.cell, name, workload, found, answer, why });
            }
        }
        if objective.bound.is_none() {
            rank(metric.more_is_better(), &mut judgements);
        }
        Some(Self {
            text: objective.to_string(),
            metric: metric.name().to_owned(),
            unit: metric.unit().to_string(),
            bound: objective.bound,
            more_is_better: metric.more_is_better(),
            of: objective.of.to_string(),
            judgements,
        })
    }
}

/// The number that an objective judges, of one group of a cell.
pub(super) fn group_number(metric: Metric, cell: &CellReport, group: &CellGroup) -> Finding<Estimated> {
    let quantile = |quantile| match group.latency_ms.nearest_rank.get(quantile) {
        Some(found) => found.clone(),
        None => Finding::absent("a report has no such quantile"),
    };
    match metric {
        Metric::Mean => group.latency_ms.mean.clone(),
        Metric::P50 => quantile(Quantile::P50),
        Metric::P90 => quantile(Quantile::P90),
        Metric::P95 => quantile(Quantile::P95),
        Metric::P99 => quantile(Quantile::P99),
        Metric::P999 => quantile(Quantile::P99_9),
        Metric::Throughput => group.throughput_samples_per_s.clone(),
        Metric::EnergyPerSample => cell.energy_per_sample_j.clone(),
    }
}

/// The interval between cohorts, if that is what there is.
fn between(found: &Estimated) -> Option<crate::stats::Bounds> {
    found.interval.filter(|_| found.kind == Kind::BetweenCohorts)
}

fn judge(objective: Objective, found: &Finding<Estimated>) -> (Answer, String) {
    let found = match found {
        Finding::Absent(absent) => return (Answer::NoNumber, absent.reason.clone()),
        Finding::Value(found) => found,
    };
    let Some(bounds) = between(found) else {
        return (Answer::CantTell, "one cohort only: two repeats or more decide".to_owned());
    };
    let Some(bound) = objective.bound else { return (Answer::CantTell, String::new()) };
    let (all_good, all_bad) = if objective.metric.more_is_better() {
        (bounds.low >= bound, bounds.high < bound)
    } else {
        (bounds.high <= bound, bounds.low > bound)
    };
    match (all_good, all_bad) {
        (true, _) => (Answer::Meets, "the whole interval between cohorts is within the bound".to_owned()),
        (_, true) => (Answer::Misses, "the whole interval between cohorts is beyond the bound".to_owned()),
        _ => (Answer::CantTell, "the bound lies inside the interval between cohorts".to_owned()),
    }
}

/// Without a bound the best wins, if its interval touches no other's of the same work.
fn rank(more_is_better: bool, judgements: &mut [Judgement]) {
    let intervals: Vec<_> = judgements
        .iter()
        .map(|judgement| (judgement.workload.clone(), judgement.found.value().and_then(between)))
        .collect();
    for (place, judgement) in judgements.iter_mut().enumerate() {
        let Some(own) = intervals[place].1 else { continue };
        let others = || {
            let rivals = intervals.iter().enumerate();
            rivals.filter(|(other, (workload, _))| *other != place && *workload == judgement.workload)
        };
        let better = |a: crate::stats::Bounds, b: crate::stats::Bounds| {
            if more_is_better { a.low > b.high } else { a.high < b.low }
        };
        let beaten = others().any(|(_, (_, other))| other.is_some_and(|other| better(other, own)));
        let beats_all = others().all(|(_, (_, other))| other.is_some_and(|other| better(own, other)));
        (judgement.answer, judgement.why) = if beaten {
            (Answer::NotBest, "another cell is better, by intervals that don't touch".to_owned())
        } else if beats_all {
            (Answer::Best, "better than every other cell of this work, by intervals that don't touch".to_owned())
        } else {
            (Answer::CantTell, "its interval touches that of another cell, or another has none".to_owned())
        };
    }
}
