//! A plan: the trials that a suite comes to on one target, in the order in which they are measured.
//!
//! Pure: the same suite and target give the same plan. What a device can't do is told to it by the caller.

mod order;
mod render;

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

pub use self::order::LayoutStretch;
pub use self::render::render_text;
use crate::suite::{MOST_TRIALS, Objective, Suite, Target};
use crate::trial::{PlannedTrial, Purpose, TrialSpec};
use crate::units::Span;

/// What a trial is taken to need for starting its processes, loading the engine and building the workload: a round
/// number for estimates, from workers that were ready within ten seconds.
pub const START: Span = Span(std::time::Duration::from_secs(8));

/// What a change of the GPU's layout is taken to need: a round number for estimates (not tried on hardware).
pub const LAYOUT_CHANGE: Span = Span(std::time::Duration::from_secs(5));

/// Where a cell comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "from", rename_all = "kebab-case", rename_all_fields = "kebab-case", deny_unknown_fields)]
pub enum Origin {
    /// A `[[trial]]` of the suite.
    Suite {
        /// Its line, from 1.
        line: u32,
    },
    /// Added, because a cohort is compared with it.
    Baseline {
        /// The first cell that is.
        of: u32,
    },
}

/// Something of the suite that is not measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct LeftOut {
    /// What.
    pub what: String,
    /// Why not.
    pub why: String,
}

/// Trials in the order in which they are measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Plan {
    /// The suite's name.
    pub name: String,
    /// What the suite is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// What it runs on.
    pub target: Target,
    /// What the answer is judged by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objective: Option<Objective>,
    /// Seed of parameters and inputs.
    pub seed: u64,
    /// How many fresh cohorts measure each cell.
    pub repeats: u32,
    /// Distinct things to measure, in the order of one repeat.
    pub cells: Vec<TrialSpec>,
    /// Where each cell comes from.
    pub origins: Vec<Origin>,
    /// Every measurement, in order.
    pub trials: Vec<PlannedTrial>,
    /// What the suite has and this plan has not.
    pub left_out: Vec<LeftOut>,
    /// What the person who wrote the suite should know.
    pub warnings: Vec<String>,
}

/// Why a suite gives no plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Trials that must be measured can't be on this target.
    #[error(
        "{} the {}, and this run is on the {}; add `only-on = \"{}\"` to leave them out here",
        trials_of(.lines), .other.in_words(), .target.in_words(), .other.name()
    )]
    WrongTarget {
        /// The target of the plan.
        target: Target,
        /// What the trials need instead.
        other: Target,
        /// Their lines in the suite.
        lines: Vec<u32>,
    },
    /// Nothing is left to measure.
    #[error("nothing of this suite can be measured on the {}: {}", .target.in_words(), reasons(.left_out))]
    Nothing {
        /// The target of the plan.
        target: Target,
        /// All that was left out.
        left_out: Vec<LeftOut>,
    },
    /// Repeats and baselines come to too many trials.
    #[error("the plan comes to {trials} trials, over the limit of {limit}; take fewer repeats or split the suite")]
    TooManyTrials {
        /// How many.
        trials: usize,
        /// The limit.
        limit: usize,
    },
}

fn trials_of(lines: &[u32]) -> String {
    match lines {
        [line] => format!("the [[trial]] of line {line} needs"),
        _ => {
            let lines: Vec<String> = lines.iter().map(u32::to_string).collect();
            format!("the [[trial]]s of lines {} need", lines.join(", "))
        }
    }
}

fn reasons(left_out: &[LeftOut]) -> String {
    let mut reasons: Vec<&str> = left_out.iter().map(|left| left.why.as_str()).collect();
    reasons.dedup();
    reasons.join("; ")
}

/// How long a plan takes, at least.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Estimate {
    /// Of each trial: [`START`], warm-up, settle phase and window. Windows may be extended, warm-ups of slow workloads
    /// last longer.
    pub trials: Vec<Span>,
    /// Of all changes of the layout between trials. That to the first layout and that back to what was found depend on
    /// what is found.
    pub layout_changes: Span,
    /// Of all trials and changes.
    pub total: Span,
}

impl Plan {
    /// The plan of a suite for a target.
    ///
    /// # Errors
    /// If a trial can't be on the target and is not marked so, or there is nothing or too much to measure.
    pub fn expand(suite: &Suite, target: Target) -> Result<Self, PlanError> {
        Self::expand_where(suite, target, |_| None)
    }

    /// The same, leaving out cells and baselines for which `unfit` has a reason, such as what the device can't do.
    ///
    /// # Errors
    /// As [`Self::expand`].
    pub fn expand_where(
        suite: &Suite,
        target: Target,
        unfit: impl Fn(&TrialSpec) -> Option<String>,
    ) -> Result<Self, PlanError> {
        let mut left_out = Vec::new();
        let mut warnings = Vec::new();
        let asked = asked(suite, target, &unfit, &mut left_out, &mut warnings)?;
        if asked.is_empty() {
            return Err(PlanError::Nothing { target, left_out });
        }
        let (cells, origins) = order::arrange(asked, target, &unfit, &mut left_out);
        let drift: Vec<usize> = (0..cells.len()).filter(|at| order::is_anchor(&cells[*at], target)).collect();
        let count = cells.len().saturating_mul(suite.repeats as usize).saturating_add(drift.len());
        if count > MOST_TRIALS {
            return Err(PlanError::TooManyTrials { trials: count, limit: MOST_TRIALS });
        }
        // Repeats are the outer loop, so that a mode isn't confounded with time; but not around changes of the layout, which
        // would come anew in each repeat.
        let groups = order::groups(&cells);
        let rounds = groups.iter().flat_map(|group| {
            (0..suite.repeats).flat_map(move |repeat| group.clone().map(move |cell| (repeat, cell, None)))
        });
        let again = drift.into_iter().map(|cell| (suite.repeats, cell, Some(Purpose::Drift)));
        let trials = rounds
            .chain(again)
            .zip(0..)
            .map(|((repeat, cell, purpose), index)| PlannedTrial {
                index,
                cell: u32::try_from(cell).expect("fewer cells than the limit of trials"),
                repeat,
                purpose: purpose.unwrap_or(match origins[cell] {
                    Origin::Suite { .. } => Purpose::Requested,
                    Origin::Baseline { .. } => Purpose::Baseline,
                }),
                spec: cells[cell].clone(),
            })
            .collect();
        Ok(Self {
            name: suite.name.clone(),
            description: suite.description.clone(),
            target,
            objective: suite.objective,
            seed: suite.seed,
            repeats: suite.repeats,
            cells,
            origins,
            trials,
            left_out,
            warnings,
        })
    }

    /// How long it takes, at least.
    #[must_use]
    pub fn estimate(&self) -> Estimate {
        let trials: Vec<Span> = self.trials.iter().map(|trial| lasts(&trial.spec)).collect();
        let layout_changes = Span(self.layouts().iter().filter_map(|stretch| stretch.change).map(|span| span.0).sum());
        let total = Span(layout_changes.0 + trials.iter().map(|span| span.0).sum::<std::time::Duration>());
        Estimate { trials, layout_changes, total }
    }

    /// How the GPU is divided, stretch by stretch. A stretch's layout has at least the instances that each of its
    /// trials asks for; no layout: the GPU is whole. A CPU's plan is one stretch without layout.
    #[must_use]
    pub fn layouts(&self) -> Vec<LayoutStretch> {
        order::stretches(&self.cells, &self.trials)
    }

    /// How often the layout changes between trials.
    #[must_use]
    pub fn layout_changes(&self) -> usize {
        self.layouts().len().saturating_sub(1)
    }
}

fn lasts(spec: &TrialSpec) -> Span {
    let timing = spec.timing;
    Span(START.0 + timing.warmup.0 + timing.settle.0 + timing.window.0)
}

/// The cells that the suite asks for on this target, each once, with their lines.
fn asked(
    suite: &Suite,
    target: Target,
    unfit: &impl Fn(&TrialSpec) -> Option<String>,
    left_out: &mut Vec<LeftOut>,
    warnings: &mut Vec<String>,
) -> Result<Vec<(TrialSpec, u32)>, PlanError> {
    let mut cells: Vec<(TrialSpec, u32)> = Vec::new();
    let mut lines: HashMap<TrialSpec, u32> = HashMap::new();
    let mut wrong = Vec::new();
    for trial in &suite.trials {
        if let Some(only) = trial.only_on.filter(|only| *only != target) {
            let more = trial.cells.len() - 1;
            let more = if more == 0 { String::new() } else { format!(" and {more} more") };
            let first = trial.cells.first().map(TrialSpec::to_string).unwrap_or_default();
            left_out.push(LeftOut {
                what: format!("line {}: {first}{more}", trial.line),
                why: format!("it is for the {} only", only.in_words()),
            });
            continue;
        }
        if trial.target() != target {
            wrong.push(trial.line);
            continue;
        }
        if trial.settles_hastily() {
            warnings.push(format!(
                "line {}: a settle phase under 3s may end before the device's clocks are steady",
                trial.line
            ));
        }
        let mut repeated: Vec<(u32, usize)> = Vec::new();
        for cell in &trial.cells {
            if let Some(why) = unfit(cell) {
                left_out.push(LeftOut { what: format!("line {}: {cell}", trial.line), why });
                continue;
            }
            match lines.get(cell) {
                None => {
                    lines.insert(cell.clone(), trial.line);
                    cells.push((cell.clone(), trial.line));
                }
                Some(line) => match repeated.iter_mut().find(|(known, _)| known == line) {
                    Some((_, count)) => *count += 1,
                    None => repeated.push((*line, 1)),
                },
            }
        }
        warnings.extend(repeated.into_iter().map(|(line, count)| {
            format!("line {}: {count} of its trials are already asked for by line {line} and measured once", trial.line)
        }));
    }
    if wrong.is_empty() {
        return Ok(cells);
    }
    let other = if target == Target::Gpu { Target::Cpu } else { Target::Gpu };
    Err(PlanError::WrongTarget { target, other, lines: wrong })
}
