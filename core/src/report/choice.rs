//! The answer that people come for: which way of sharing is better for a mix of work, by the suite's objective.
//!
//! A mix is what one cohort runs; the cells of a mix differ only in how they share. Two of them are compared repeat by
//! repeat. Only differences between fresh cohorts decide, beyond chance among all comparisons of the report, and larger
//! than what matters; otherwise the answer is that nobody can tell. Computed from a report, so that it exists for
//! reports of any version.

use std::str::FromStr as _;

use super::cell::{CellOutcome, CellReport};
use super::finding::{Estimated, Finding};
use super::objective::{Answer, group_number};
use super::trial::TrialReport;
use super::{Report, WorkloadView};
use crate::stats::{Change, Quantile, Ratio, beyond_chance, paired_ratio};
use crate::suite::Metric;
use crate::trial::Purpose;

/// The least relative difference that matters; the job's own A/A comparisons raise it.
pub const LEAST_EFFECT: f64 = 0.02;

/// Every question that a report answers.
#[derive(Debug, Clone, PartialEq)]
pub struct Choices {
    /// What better means, in words.
    pub criterion: String,
    /// Whether the suite says so; if not, the usual criterion was taken.
    pub from_suite: bool,
    /// The number that decides.
    pub metric: Metric,
    /// The least relative difference that matters in this report.
    pub least_effect: f64,
    /// Unlike work first, then the larger cohorts.
    pub choices: Vec<Choice>,
}

/// One mix: how to share the device for it.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// What a cohort runs: `1x resnet18 infer b32 fp32 + 6x resnet18 train b32 fp32`.
    pub mix: String,
    /// The work whose number decides.
    pub judged: String,
    /// How many members a cohort has.
    pub members: u32,
    /// Whether its members do unlike work.
    pub mixed: bool,
    /// The ways of sharing that were asked for, in the order of the plan.
    pub options: Vec<Choosable>,
    /// Each pair of options that have numbers.
    pub pairs: Vec<Pair>,
    /// Who wins.
    pub outcome: Decision,
}

/// One way of sharing.
#[derive(Debug, Clone, PartialEq)]
pub struct Choosable {
    /// The cell.
    pub cell: u32,
    /// How the members share.
    pub sharing: String,
    /// The deciding number.
    pub found: Finding<Estimated>,
    /// What became of the cell.
    pub outcome: CellOutcome,
    /// How it stands to the objective's bound, where there is one.
    pub bound: Option<Answer>,
}

/// Two ways of sharing compared.
#[derive(Debug, Clone, PartialEq)]
pub struct Pair {
    /// Places among the options.
    pub options: (usize, usize),
    /// The first one's number over the second's; or why there is no comparison.
    pub ratio: Result<Ratio, String>,
    /// What it says.
    pub change: Change,
}

/// Who wins, by places among the options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Better than every other.
    Best(usize),
    /// None of these beats the others, and together they beat the rest.
    Among(Vec<usize>),
    /// No comparison decides; why.
    CantTell(String),
    /// Fewer than two options have numbers.
    NoChoice(String),
}

impl Choices {
    /// Of a report.
    #[must_use]
    pub fn of(report: &Report) -> Self {
        let objective = report.objective.as_ref();
        let known = objective.and_then(|objective| Metric::from_str(&objective.metric).ok());
        let infers = report.cells.iter().flat_map(|cell| &cell.groups).any(|group| group.workload.task == "infer");
        let (metric, criterion) = match (objective, known) {
            (Some(objective), Some(metric)) => (metric, objective.text.clone()),
            _ if infers => (Metric::P99, "p99 of infer, the lowest".to_owned()),
            _ => (Metric::Throughput, "throughput of all work, the highest".to_owned()),
        };
        let judges = |cell: &CellReport, workload: &WorkloadView| match (objective, known) {
            (Some(objective), Some(_)) => objective
                .judgements
                .iter()
                .any(|judgement| judgement.cell == cell.cell && judgement.workload == workload.name),
            _ => !infers || workload.task == "infer",
        };
        let mut choices: Vec<Choice> = Vec::new();
        for cell in report.cells.iter().filter(|cell| cell.requested) {
            for (workload, found) in judged_groups(report, cell, metric, judges) {
                let mix = mix(cell);
                let bound = objective.filter(|objective| objective.bound.is_some()).and_then(|objective| {
                    let of =
                        objective.judgements.iter().find(|known| known.cell == cell.cell && known.workload == workload);
                    of.map(|judgement| judgement.answer)
                });
                let option = Choosable {
                    cell: cell.cell,
                    sharing: cell.sharing.name.clone(),
                    found,
                    outcome: cell.outcome,
                    bound,
                };
                match choices.iter_mut().find(|known| known.mix == mix && known.judged == workload) {
                    Some(choice) => choice.options.push(option),
                    None => choices.push(Choice {
                        mixed: mix.contains(" + "),
                        mix,
                        judged: workload,
                        members: cell.members,
                        options: vec![option],
                        pairs: Vec::new(),
                        outcome: Decision::NoChoice(String::new()),
                    }),
                }
            }
        }
        choices.sort_by_key(|choice| (!choice.mixed, std::cmp::Reverse(choice.members)));
        let noise = report.a_a.iter().filter_map(|a_a| Some((a_a.throughput_ratio.number()?.ln()).abs().exp() - 1.0));
        let mut found = Self {
            criterion,
            from_suite: known.is_some(),
            metric,
            least_effect: noise.fold(LEAST_EFFECT, f64::max),
            choices,
        };
        found.decide(report);
        found
    }

    fn decide(&mut self, report: &Report) {
        for choice in &mut self.choices {
            let with: Vec<usize> =
                (0..choice.options.len()).filter(|at| choice.options[*at].found.number().is_some()).collect();
            for (place, a) in with.iter().enumerate() {
                for b in &with[place + 1..] {
                    let ratio = compare(report, self.metric, &choice.judged, &choice.options[*a], &choice.options[*b]);
                    choice.pairs.push(Pair { options: (*a, *b), ratio, change: Change::CantTell });
                }
            }
        }
        let least = self.least_effect;
        let probabilities: Vec<f64> = self.pairs().filter_map(|pair| Some(pair.ratio.as_ref().ok()?.p)).collect();
        let mut beyond = beyond_chance(&probabilities).into_iter();
        for pair in self.choices.iter_mut().flat_map(|choice| &mut choice.pairs) {
            if let Ok(ratio) = &pair.ratio {
                pair.change = ratio.change(beyond.next().unwrap_or(false), least);
            }
        }
        for choice in &mut self.choices {
            choice.outcome = choice.decision(self.metric.more_is_better(), least);
        }
    }

    /// Every comparison of two ways of sharing.
    fn pairs(&self) -> impl Iterator<Item = &Pair> {
        self.choices.iter().flat_map(|choice| &choice.pairs)
    }
}

/// What a cell's cohort runs.
pub(super) fn mix(cell: &CellReport) -> String {
    cell.name.strip_prefix(&format!("{}: ", cell.sharing.name)).unwrap_or(&cell.name).to_owned()
}

/// The groups of a cell that are judged, with their number; a cell without numbers has its judgements' names only.
fn judged_groups(
    report: &Report,
    cell: &CellReport,
    metric: Metric,
    judges: impl Fn(&CellReport, &WorkloadView) -> bool,
) -> Vec<(String, Finding<Estimated>)> {
    if cell.groups.is_empty() {
        let judged = report.objective.iter().flat_map(|objective| &objective.judgements);
        let judged = judged.filter(|judgement| judgement.cell == cell.cell);
        return judged.map(|judgement| (judgement.workload.clone(), judgement.found.clone())).collect();
    }
    let groups = cell.groups.iter().filter(|group| judges(cell, &group.workload));
    groups.map(|group| (group.workload.name.clone(), group_number(metric, cell, group))).collect()
}

/// The deciding number of one repeat.
fn of_trial(trial: &TrialReport, metric: Metric, workload: &str) -> Option<f64> {
    let group = trial.groups.iter().find(|group| group.workload.name == workload)?;
    let quantile = |quantile| group.latency_ms.nearest_rank.get(quantile)?.number();
    match metric {
        Metric::Mean => group.latency_ms.mean.number(),
        Metric::P50 => quantile(Quantile::P50),
        Metric::P90 => quantile(Quantile::P90),
        Metric::P95 => quantile(Quantile::P95),
        Metric::P99 => quantile(Quantile::P99),
        Metric::P999 => quantile(Quantile::P99_9),
        Metric::Throughput => group.throughput_samples_per_s.number(),
        Metric::EnergyPerSample => trial.device.energy_per_sample_j.number(),
    }
}

fn compare(report: &Report, metric: Metric, workload: &str, a: &Choosable, b: &Choosable) -> Result<Ratio, String> {
    let repeats = |cell: u32| {
        let trials = report
            .trials
            .iter()
            .filter(move |trial| trial.cell == cell && trial.purpose != Purpose::Drift && trial.outcome.is_usable());
        trials.filter_map(move |trial| Some((trial.repeat, of_trial(trial, metric, workload)?)))
    };
    let pairs: Vec<(f64, f64)> = repeats(a.cell)
        .filter_map(|(repeat, own)| Some((own, repeats(b.cell).find(|(other, _)| *other == repeat)?.1)))
        .collect();
    paired_ratio(&pairs).map_err(|reason| match pairs.len() {
        1 => "there is one cohort of each only, and another run can differ: two repeats or more decide".to_owned(),
        _ => reason.to_string(),
    })
}

impl Choice {
    fn decision(&self, more_is_better: bool, least: f64) -> Decision {
        let with: Vec<usize> =
            (0..self.options.len()).filter(|at| self.options[*at].found.number().is_some()).collect();
        if with.len() < 2 {
            let what = if self.options.len() < 2 {
                "the suite asks for one way of sharing only"
            } else {
                "fewer than two ways of sharing have the number"
            };
            return Decision::NoChoice(what.to_owned());
        }
        let beats = |a: usize, b: usize| {
            let wins = if more_is_better { Change::More } else { Change::Less };
            let loses = if more_is_better { Change::Less } else { Change::More };
            self.pairs.iter().any(|pair| {
                (pair.options == (a, b) && pair.change == wins) || (pair.options == (b, a) && pair.change == loses)
            })
        };
        let unbeaten: Vec<usize> = with.iter().copied().filter(|a| !with.iter().any(|b| beats(*b, *a))).collect();
        let others = |of: &[usize]| with.iter().copied().filter(|at| !of.contains(at)).collect::<Vec<_>>();
        let rest = others(&unbeaten);
        let clear = !rest.is_empty() && unbeaten.iter().all(|a| rest.iter().all(|b| beats(*a, *b)));
        match unbeaten.as_slice() {
            [best] if clear => Decision::Best(*best),
            [_, _, ..] if clear => Decision::Among(unbeaten),
            _ => Decision::CantTell(self.why_not(least)),
        }
    }

    fn why_not(&self, least: f64) -> String {
        if let Some(reason) = self.pairs.iter().find_map(|pair| pair.ratio.as_ref().err()) {
            return reason.clone();
        }
        let percent = least * 100.0;
        if self.pairs.iter().all(|pair| pair.change == Change::Same) {
            return format!("they differ by less than {percent:.1} %, the least that matters here");
        }
        format!(
            "the differences between cohorts are not beyond chance, or not larger than {percent:.1} %, the least that matters here"
        )
    }
}
