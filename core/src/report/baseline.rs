//! Which cell is another's baseline, and members' numbers over those of their baselines, repeat by repeat.

use super::trial::{MemberReport, TrialReport};
use crate::mig::layout::Layout;
use crate::plan::Plan;
use crate::stats::between_cohorts;
use crate::trial::{InstanceMps, Purpose, Sharing, TrialSpec};
use crate::workload::Workload;

/// Why a baseline is not compared with itself.
pub(super) const IS_BASELINE: &str = "this cell is the baseline";

/// Which baseline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Against {
    /// The same work alone in the same mode.
    Solo,
    /// The same work alone on the whole device.
    Exclusive,
}

/// A plan and its trials' reports, as baselines are looked up in them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Measured<'a> {
    pub(super) plan: &'a Plan,
    pub(super) trials: &'a [TrialReport],
}

impl<'a> Measured<'a> {
    /// A cell's trials in their order, without a measurement again for drift.
    pub(super) fn trials(self, cell: u32) -> impl Iterator<Item = &'a TrialReport> {
        self.trials.iter().filter(move |trial| trial.cell == cell && trial.purpose != Purpose::Drift)
    }

    /// Those that have numbers.
    pub(super) fn usable(self, cell: u32) -> impl Iterator<Item = &'a TrialReport> {
        self.trials(cell).filter(|trial| trial.outcome.is_usable())
    }

    /// The cell of one member with this work whose sharing is as wanted; of several, one with the same timing.
    pub(super) fn alone(self, workload: &Workload, like: &TrialSpec, wanted: impl Fn(&Sharing) -> bool) -> Option<u32> {
        let fits =
            |spec: &TrialSpec| spec.members.as_slice() == std::slice::from_ref(workload) && wanted(&spec.sharing);
        let find = |same_timing: bool| {
            self.plan.cells.iter().position(|spec| fits(spec) && (!same_timing || spec.timing == like.timing))
        };
        find(true).or_else(|| find(false)).and_then(|cell| u32::try_from(cell).ok())
    }

    pub(super) fn baseline(self, cell: u32, spec: &TrialSpec, member: usize, against: Against) -> Result<u32, String> {
        let workload = &spec.members[member];
        let found = match (against, &spec.sharing) {
            (_, Sharing::Cpu) => self.alone(workload, spec, |sharing| *sharing == Sharing::Cpu),
            (Against::Exclusive, _) => self.alone(workload, spec, |sharing| *sharing == Sharing::Exclusive),
            (Against::Solo, Sharing::Mig { layout, mps }) => {
                let profile = instance(layout, spec.sharing.instance_of(member));
                let cap = |mps: &InstanceMps| mps.active_thread_percentage;
                self.alone(workload, spec, |sharing| match sharing {
                    Sharing::Mig { layout, mps: other } => {
                        let same = other.as_ref().map(cap) == mps.as_ref().map(cap);
                        same && profile.is_some() && instance(layout, 0) == profile
                    }
                    _ => false,
                })
            }
            (Against::Solo, mode) => self.alone(workload, spec, |sharing| sharing == mode),
        };
        match found {
            Some(baseline) if baseline == cell => Err(IS_BASELINE.to_owned()),
            Some(baseline) if self.usable(baseline).next().is_some() => Ok(baseline),
            Some(baseline) => Err(format!("the baseline, cell {baseline}, has no numbers")),
            None => {
                let mode = if against == Against::Solo { "in the same mode" } else { "on the whole device" };
                Err(format!("no cell measures {workload} alone {mode}"))
            }
        }
    }

    /// A number of a baseline's only member: that of the same repeat, else the mean over those there are.
    pub(super) fn of_baseline(
        self,
        baseline: u32,
        repeat: u32,
        number: impl Fn(&MemberReport) -> Option<f64>,
    ) -> Option<f64> {
        let of = |trial: &TrialReport| number(trial.members.first()?);
        if let Some(same) = self.usable(baseline).find(|trial| trial.repeat == repeat).and_then(of) {
            return Some(same);
        }
        let all: Vec<f64> = self.usable(baseline).filter_map(of).collect();
        between_cohorts(&all).ok().map(|estimate| estimate.value)
    }
}

/// The profile of a layout's `member`-th instance.
fn instance(layout: &str, member: usize) -> Option<String> {
    layout.parse::<Layout>().ok()?.members().get(member).map(ToString::to_string)
}

/// A member's throughput in items per second.
pub(super) fn rate(member: &MemberReport) -> Option<f64> {
    member.throughput_samples_per_s.number()
}

/// A member's mean latency in milliseconds.
pub(super) fn mean_latency(member: &MemberReport) -> Option<f64> {
    member.latency_ms.mean.number()
}

/// Each member's number over its baseline's, in each usable repeat; an inner vector for each repeat.
pub(super) fn ratios(
    measured: Measured<'_>,
    baselines: &[(usize, u32)],
    usable: &[&TrialReport],
    number: fn(&MemberReport) -> Option<f64>,
) -> Vec<Vec<f64>> {
    let of_repeat = |trial: &&TrialReport| {
        let of_member = |(member, baseline): &(usize, u32)| {
            let own = number(trial.members.get(*member)?)?;
            let base = measured.of_baseline(*baseline, trial.repeat, number)?;
            (base > 0.0 && own > 0.0).then_some(own / base)
        };
        baselines.iter().map(of_member).collect::<Option<Vec<f64>>>()
    };
    usable.iter().filter_map(of_repeat).collect()
}
