//! One cell of the plan over its repeats: means between fresh cohorts, and slowdowns against its baselines.
//!
//! A repeat is compared with the same repeat of its baseline, because those two ran near each other in time.

use serde::{Deserialize, Serialize};

use super::baseline::{Against, Measured, mean_latency, rate, ratios};
use super::finding::{Estimated, Finding, Plain};
use super::latency::{Latency, Quantiles};
use super::trial::{GroupReport, TrialReport};
use super::verdict::Flag;
use super::view::{SharingView, WorkloadView};
use crate::plan::Origin;
use crate::stats::{between_cohorts, jain};
use crate::trial::{Purpose, TrialSpec};
use crate::workload::Workload;

/// What became of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CellOutcome {
    /// Every planned repeat is valid.
    Valid,
    /// Every planned repeat has numbers, some with flags.
    Flagged,
    /// Some repeats have numbers, others have none.
    Partial,
    /// No repeat happened as configured.
    Invalid,
    /// The work needs more memory than there is.
    DoesNotFit,
    /// No repeat ran through.
    Failed,
    /// The job was cancelled before a repeat had run through.
    Cancelled,
    /// Others used the device.
    Contaminated,
    /// No repeat has been started.
    NotRun,
}

impl CellOutcome {
    /// The name in every output.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Valid => "valid",
            Self::Flagged => "flagged",
            Self::Partial => "partial",
            Self::Invalid => "invalid",
            Self::DoesNotFit => "does-not-fit",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Contaminated => "contaminated",
            Self::NotRun => "not-run",
        }
    }
}

/// One cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CellReport {
    /// Its place in the plan, from 0.
    pub cell: u32,
    /// Its name.
    pub name: String,
    /// How the members share.
    pub sharing: SharingView,
    /// How many members a cohort has.
    pub members: u32,
    /// Whether the suite asks for it; if not, a comparison needs it.
    pub requested: bool,
    /// Repeats that were planned, without a measurement again for drift.
    pub planned: u32,
    /// The trials that ran, without a measurement again for drift.
    pub trials: Vec<u32>,
    /// How many of these have numbers.
    pub usable: u32,
    /// What became of it.
    pub outcome: CellOutcome,
    /// Why a repeat has no numbers; null where all have.
    pub reason: Option<String>,
    /// The flags that its repeats raised.
    pub flags: Vec<Flag>,
    /// Members with the same work; empty where there are no numbers. Unlike work is never added up.
    pub groups: Vec<CellGroup>,
    /// Jain's index of all members' progress, each as a share of its solo throughput in the same mode.
    pub progress_fairness: Finding<Estimated>,
    /// Frame buffer in use on the device, mean over time, in bytes.
    pub frame_buffer_mean_bytes: Finding<Estimated>,
    /// The most frame buffer in use on the device in any repeat, in bytes.
    pub frame_buffer_peak_bytes: Finding<Plain>,
    /// The device's mean power in watts.
    pub power_w: Finding<Estimated>,
    /// The device's energy over the common interval, in joules.
    pub energy_j: Finding<Estimated>,
    /// The device's energy in joules for each item; only where all members do the same work.
    pub energy_per_sample_j: Finding<Estimated>,
    /// Graphics engine activity in [0, 1].
    pub gract: Finding<Estimated>,
}

/// Members with the same work, over a cell's repeats.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CellGroup {
    /// What they ran.
    pub workload: WorkloadView,
    /// Their numbers.
    pub members: Vec<u32>,
    /// The sum of their throughputs, in items per second.
    pub throughput_samples_per_s: Finding<Estimated>,
    /// The sum in requests per minute; only of inference.
    pub requests_per_min: Finding<Estimated>,
    /// Their mean throughput each, in items per second.
    pub member_samples_per_s: Finding<Estimated>,
    /// The slowest member's throughput in items per second.
    pub slowest_samples_per_s: Finding<Estimated>,
    /// Latencies of their batches: pooled within each repeat, then the mean over the repeats; min and max of all.
    pub latency_ms: Latency,
    /// The slowest member's 99th percentile by nearest rank.
    pub slowest_p99_ms: Finding<Estimated>,
    /// Jain's index of their throughputs.
    pub fairness: Finding<Estimated>,
    /// The largest less the smallest throughput of the repeats, as a share of the mean.
    pub spread: Finding<Plain>,
    /// Against the same work alone in the same mode.
    pub against_solo: Slowdown,
    /// Against the same work alone on the whole device.
    pub against_exclusive: Slowdown,
    /// Their throughput together over that of one alone on the whole device; only where all members do the same work.
    pub gain: Finding<Estimated>,
}

/// How much slower members are than a baseline; 1 is as fast.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slowdown {
    /// The cells compared with.
    pub baselines: Vec<u32>,
    /// The baseline's throughput over the members', mean over them.
    pub throughput: Finding<Estimated>,
    /// The same of the member that suffers most.
    pub worst_throughput: Finding<Estimated>,
    /// The members' mean latency over the baseline's, mean over them.
    pub mean_latency: Finding<Estimated>,
}

/// The mean over repeats with the interval between cohorts; a single repeat's own estimate, labelled as its own.
pub(super) fn over_repeats(findings: &[&Finding<Estimated>]) -> Finding<Estimated> {
    match findings {
        [] => Finding::absent("no repeat has numbers"),
        [only] => (*only).clone(),
        [first, ..] => {
            let numbers: Vec<f64> = findings.iter().filter_map(|finding| finding.number()).collect();
            if numbers.is_empty() { (*first).clone() } else { between_cohorts(&numbers).into() }
        }
    }
}

/// The mean over repeats of numbers that have no interval of their own.
pub(super) fn mean_over_repeats(numbers: &[Option<f64>], absent: &str) -> Finding<Estimated> {
    let there: Vec<f64> = numbers.iter().copied().flatten().collect();
    if there.is_empty() { Finding::absent(absent) } else { between_cohorts(&there).into() }
}

/// The mean over repeats of any form of number; the first repeat's reason where none has one.
fn mean_of<'a, T: super::finding::Central + 'a>(findings: impl Iterator<Item = &'a Finding<T>>) -> Finding<Estimated> {
    let findings: Vec<_> = findings.collect();
    let numbers: Vec<Option<f64>> = findings.iter().map(|finding| finding.number()).collect();
    mean_over_repeats(
        &numbers,
        findings.first().and_then(|finding| finding.reason()).unwrap_or("no repeat has numbers"),
    )
}

impl CellReport {
    /// Of one cell.
    pub(super) fn of(measured: Measured<'_>, cell: u32, spec: &TrialSpec) -> Self {
        let plan = measured.plan;
        let planned = plan.trials.iter().filter(|trial| trial.cell == cell && trial.purpose != Purpose::Drift).count();
        let ran: Vec<&TrialReport> = measured.trials(cell).collect();
        let usable: Vec<&TrialReport> = measured.usable(cell).collect();
        let mut flags: Vec<Flag> = usable.iter().flat_map(|trial| &trial.flags).map(|flag| flag.code).collect();
        flags.sort_unstable();
        flags.dedup();
        let devices = || usable.iter().map(|trial| &trial.device);
        let peak = devices().filter_map(|device| Some(device.frame_buffer_bytes.value()?.peak)).reduce(f64::max);
        let no_frame_buffer = devices().find_map(|device| device.frame_buffer_bytes.reason());
        Self {
            cell,
            name: spec.to_string(),
            sharing: (&spec.sharing).into(),
            members: count(spec.members.len()),
            requested: matches!(plan.origins.get(cell as usize), Some(Origin::Suite { .. })),
            planned: count(planned),
            trials: ran.iter().map(|trial| trial.trial).collect(),
            usable: count(usable.len()),
            outcome: outcome(planned, &ran, &usable),
            reason: ran.iter().find_map(|trial| trial.outcome.reason()),
            flags,
            groups: groups(measured, cell, spec, &usable),
            progress_fairness: progress_fairness(measured, cell, spec, &usable),
            frame_buffer_mean_bytes: mean_of(devices().map(|device| &device.frame_buffer_bytes)),
            frame_buffer_peak_bytes: peak
                .map_or_else(|| Finding::absent(no_frame_buffer.unwrap_or("no repeat has numbers")), Finding::plain),
            power_w: mean_of(devices().map(|device| &device.power_w)),
            energy_j: mean_of(devices().map(|device| &device.energy_j)),
            energy_per_sample_j: mean_of(devices().map(|device| &device.energy_per_sample_j)),
            gract: mean_of(devices().map(|device| &device.gract)),
        }
    }
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

fn outcome(planned: usize, ran: &[&TrialReport], usable: &[&TrialReport]) -> CellOutcome {
    use super::verdict::Verdict;
    let Some(last) = ran.last() else { return CellOutcome::NotRun };
    if !usable.is_empty() {
        return if usable.len() < planned.max(ran.len()) {
            CellOutcome::Partial
        } else if usable.iter().all(|trial| trial.outcome == Verdict::Valid) {
            CellOutcome::Valid
        } else {
            CellOutcome::Flagged
        };
    }
    match last.outcome {
        Verdict::Valid | Verdict::Flagged => CellOutcome::Flagged,
        Verdict::Invalid { .. } => CellOutcome::Invalid,
        Verdict::DoesNotFit { .. } => CellOutcome::DoesNotFit,
        Verdict::Failed { .. } => CellOutcome::Failed,
        Verdict::Cancelled { .. } => CellOutcome::Cancelled,
        Verdict::Contaminated { .. } => CellOutcome::Contaminated,
    }
}

fn groups(measured: Measured<'_>, cell: u32, spec: &TrialSpec, usable: &[&TrialReport]) -> Vec<CellGroup> {
    if usable.is_empty() {
        return Vec::new();
    }
    let kinds = spec.groups();
    let alike = kinds.len() == 1;
    let group = |(place, (workload, members)): (usize, (&Workload, Vec<usize>))| {
        let repeats: Vec<&GroupReport> = usable.iter().filter_map(|trial| trial.groups.get(place)).collect();
        let over = |of: fn(&GroupReport) -> &Finding<Estimated>| {
            over_repeats(&repeats.iter().map(|group| of(group)).collect::<Vec<_>>())
        };
        let throughput = over(|group| &group.throughput_samples_per_s);
        let size = members.len() as f64;
        CellGroup {
            workload: workload.into(),
            requests_per_min: over(|group| &group.requests_per_min),
            member_samples_per_s: match members.as_slice() {
                [_] => throughput.clone(),
                _ => mean_over_repeats(
                    &repeats
                        .iter()
                        .map(|group| group.throughput_samples_per_s.number().map(|sum| sum / size))
                        .collect::<Vec<_>>(),
                    "a member's throughput is missing",
                ),
            },
            slowest_samples_per_s: over(|group| &group.slowest.throughput_samples_per_s),
            slowest_p99_ms: over(|group| &group.slowest.p99_ms),
            latency_ms: latency(&repeats),
            fairness: mean_of(repeats.iter().map(|group| &group.fairness)),
            spread: spread(&repeats),
            against_solo: slowdown(measured, cell, spec, &members, usable, Against::Solo),
            against_exclusive: slowdown(measured, cell, spec, &members, usable, Against::Exclusive),
            gain: if alike {
                gain(measured, cell, spec, usable)
            } else {
                Finding::absent("the members' work is unlike: their throughputs are not added up")
            },
            throughput_samples_per_s: throughput,
            members: members.iter().map(|member| count(*member)).collect(),
        }
    };
    kinds.into_iter().enumerate().map(group).collect()
}

fn latency(repeats: &[&GroupReport]) -> Latency {
    let extreme = |of: fn(&Latency) -> &Finding<Plain>, pick: fn(f64, f64) -> f64| {
        let numbers = repeats.iter().filter_map(|group| of(&group.latency_ms).number());
        numbers.reduce(pick).map_or_else(|| Finding::absent("no repeat has numbers"), Finding::plain)
    };
    let quantiles = |of: fn(&Latency) -> &Quantiles| {
        Quantiles::of(|quantile| {
            over_repeats(&repeats.iter().filter_map(|group| of(&group.latency_ms).get(quantile)).collect::<Vec<_>>())
        })
    };
    Latency {
        mean: over_repeats(&repeats.iter().map(|group| &group.latency_ms.mean).collect::<Vec<_>>()),
        min: extreme(|latency| &latency.min, f64::min),
        max: extreme(|latency| &latency.max, f64::max),
        nearest_rank: quantiles(|latency| &latency.nearest_rank),
        linear: quantiles(|latency| &latency.linear),
    }
}

fn spread(repeats: &[&GroupReport]) -> Finding<Plain> {
    let rates: Vec<f64> = repeats.iter().filter_map(|group| group.throughput_samples_per_s.number()).collect();
    if rates.len() < 2 {
        return Finding::absent("a spread needs 2 repeats with numbers");
    }
    let most = rates.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
    Finding::plain((most - least) / (rates.iter().sum::<f64>() / rates.len() as f64))
}

fn slowdown(
    measured: Measured<'_>,
    cell: u32,
    spec: &TrialSpec,
    members: &[usize],
    usable: &[&TrialReport],
    against: Against,
) -> Slowdown {
    let baselines: Result<Vec<(usize, u32)>, String> = members
        .iter()
        .map(|member| measured.baseline(cell, spec, *member, against).map(|baseline| (*member, baseline)))
        .collect();
    let baselines = match baselines {
        Ok(baselines) => baselines,
        Err(reason) => {
            return Slowdown {
                baselines: Vec::new(),
                throughput: Finding::absent(reason.as_str()),
                worst_throughput: Finding::absent(reason.as_str()),
                mean_latency: Finding::absent(reason),
            };
        }
    };
    let mean = |ratios: &[f64]| ratios.iter().sum::<f64>() / ratios.len() as f64;
    let missing = "a member or its baseline lacks the number";
    let over = |per_repeat: Vec<f64>| mean_over_repeats(&per_repeat.into_iter().map(Some).collect::<Vec<_>>(), missing);
    let slower: Vec<Vec<f64>> = ratios(measured, &baselines, usable, rate)
        .into_iter()
        .map(|ratios| ratios.into_iter().map(f64::recip).collect())
        .collect();
    let mut cells: Vec<u32> = baselines.iter().map(|(_, baseline)| *baseline).collect();
    cells.sort_unstable();
    cells.dedup();
    Slowdown {
        throughput: over(slower.iter().map(|ratios| mean(ratios)).collect()),
        worst_throughput: over(slower.iter().map(|ratios| ratios.iter().copied().fold(0.0, f64::max)).collect()),
        mean_latency: over(
            ratios(measured, &baselines, usable, mean_latency).iter().map(|ratios| mean(ratios)).collect(),
        ),
        baselines: cells,
    }
}

fn gain(measured: Measured<'_>, cell: u32, spec: &TrialSpec, usable: &[&TrialReport]) -> Finding<Estimated> {
    match measured.baseline(cell, spec, 0, Against::Exclusive) {
        Err(reason) => Finding::absent(reason),
        Ok(baseline) => {
            let every: Vec<(usize, u32)> = (0..spec.members.len()).map(|member| (member, baseline)).collect();
            let sums: Vec<Option<f64>> =
                ratios(measured, &every, usable, rate).iter().map(|ratios| Some(ratios.iter().sum())).collect();
            mean_over_repeats(&sums, "a member or its baseline lacks the number")
        }
    }
}

fn progress_fairness(
    measured: Measured<'_>,
    cell: u32,
    spec: &TrialSpec,
    usable: &[&TrialReport],
) -> Finding<Estimated> {
    if spec.members.len() < 2 {
        return Finding::absent("one member alone shares nothing");
    }
    let baselines: Result<Vec<(usize, u32)>, String> = (0..spec.members.len())
        .map(|member| measured.baseline(cell, spec, member, Against::Solo).map(|baseline| (member, baseline)))
        .collect();
    match baselines {
        Err(reason) => Finding::absent(reason),
        Ok(baselines) => {
            let indices: Vec<Option<f64>> =
                ratios(measured, &baselines, usable, rate).iter().map(|progress| jain(progress).ok()).collect();
            mean_over_repeats(&indices, "no repeat has numbers")
        }
    }
}
