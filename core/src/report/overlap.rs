//! Which batches count: the window, the interval that all members have in common, and what the edges cut.
//!
//! A batch belongs to the window if it lies wholly inside. The common interval runs from the latest of the members'
//! first such batches to the earliest of their last ones, and what counts lies wholly inside that.

use crate::record::TrialRecord;
use crate::report::verdict::{Fault, Remark};
use crate::sample::{Interval, Sample};
use crate::trial::Sharing;
use crate::worker_wire::Allocation;

/// The least share of the window that the common interval must have, in thousandths.
const LEAST_OVERLAP_PER_MILLE: u64 = 800;

/// One member's batches, sorted out.
#[derive(Debug, Clone, Copy)]
pub(super) struct Counted<'a> {
    /// Wholly inside the common interval.
    pub(super) batches: &'a [Sample],
    /// Wholly inside the window.
    pub(super) in_window: usize,
    /// Wholly inside the window and wholly outside of the common interval.
    pub(super) outside: usize,
    /// Cut by an edge of the window or of the common interval.
    pub(super) censored: usize,
}

/// A cohort's batches over their common interval.
#[derive(Debug)]
pub(super) struct Overlap<'a> {
    /// In which batches count.
    pub(super) window: Interval,
    /// In which all members had whole batches; none where a member has no batch.
    pub(super) common: Option<Interval>,
    /// In the order of the members.
    pub(super) members: Vec<Counted<'a>>,
    /// Nanoseconds between the earliest and the latest first batch after the common start.
    pub(super) start_skew_ns: Option<u64>,
}

/// The batches that lie wholly inside an interval.
fn inside(samples: &[Sample], interval: Interval) -> &[Sample] {
    let from = samples.partition_point(|sample| sample.start < interval.from);
    let to = samples.partition_point(|sample| sample.end <= interval.to);
    &samples[from.min(to)..to]
}

impl<'a> Overlap<'a> {
    /// Sorts out a trial's batches; none without a window.
    pub(super) fn of(record: &'a TrialRecord) -> Option<Self> {
        let window = record.window?;
        let in_window: Vec<&[Sample]> =
            record.members.iter().map(|member| inside(member.samples.as_slice(), window)).collect();
        let common = common(&in_window);
        let members = record.members.iter().zip(&in_window).map(|(member, in_window)| {
            let cut = |sample: &&Sample| window.cuts(sample) || common.is_some_and(|common| common.cuts(sample));
            let outside =
                |sample: &&Sample| common.is_none_or(|common| !common.contains(sample) && !common.cuts(sample));
            Counted {
                outside: in_window.iter().filter(outside).count(),
                batches: common.map_or(&[], |common| inside(in_window, common)),
                in_window: in_window.len(),
                censored: member.samples.as_slice().iter().filter(cut).count(),
            }
        });
        let firsts = || record.members.iter().filter_map(|member| Some(member.samples.as_slice().first()?.start));
        let start_skew_ns = firsts().max().zip(firsts().min()).map(|(latest, earliest)| latest.0 - earliest.0);
        Some(Self { window, common, members: members.collect(), start_skew_ns })
    }

    /// The common interval's share of the window, in [0, 1].
    pub(super) fn share(&self) -> Option<f64> {
        let length = self.window.length();
        (length > 0).then(|| self.common.map_or(0, Interval::length) as f64 / length as f64)
    }
}

fn common(in_window: &[&[Sample]]) -> Option<Interval> {
    let mut common: Option<Interval> = None;
    for batches in in_window {
        let (first, last) = (batches.first()?, batches.last()?);
        common = Some(match common {
            None => Interval { from: first.start, to: last.end },
            Some(so_far) => Interval { from: so_far.from.max(first.start), to: so_far.to.min(last.end) },
        });
    }
    common
}

/// Everything that makes a complete trial's numbers unusable.
pub(super) fn faults(record: &TrialRecord, overlap: Option<&Overlap<'_>>) -> Vec<Remark<Fault>> {
    let mut faults = identity(record);
    for (index, member) in record.members.iter().enumerate() {
        if member.done.lost > 0 {
            let text = format!("member {index} ran {} batches that were not recorded", member.done.lost);
            faults.push(Remark::of_member(Fault::LostSamples, index, text));
        } else if member.done.samples != member.samples.as_slice().len() as u64 {
            let text = format!(
                "member {index} handed over {} batches, {} are recorded",
                member.done.samples,
                member.samples.as_slice().len()
            );
            faults.push(Remark::of_member(Fault::LostSamples, index, text));
        }
        if member.done.finite == Some(false) {
            let text = format!("the last output or loss of member {index} was not finite");
            faults.push(Remark::of_member(Fault::NotFinite, index, text));
        }
    }
    let Some(overlap) = overlap else {
        faults.push(Remark::of_all(Fault::NoWindow, "the record has no window"));
        return faults;
    };
    let idle = overlap.members.iter().enumerate().filter(|(_, member)| member.in_window == 0);
    let before = faults.len();
    faults.extend(idle.map(|(index, _)| {
        let text = format!("member {index} completed no batch inside the window");
        Remark::of_member(Fault::NoBatches, index, text)
    }));
    let idle = faults.len() > before;
    let (common, window) = (overlap.common.map_or(0, Interval::length), overlap.window.length());
    let thin = u128::from(common) * 1_000 < u128::from(window) * u128::from(LEAST_OVERLAP_PER_MILLE);
    if !idle && (thin || window == 0) {
        let text = format!(
            "the members have {:.1} s of the window's {:.1} s in common, less than {} %",
            common as f64 / 1e9,
            window as f64 / 1e9,
            LEAST_OVERLAP_PER_MILLE / 10
        );
        faults.push(Remark::of_all(Fault::ThinOverlap, text));
    } else if !idle {
        let empty = overlap.members.iter().enumerate().filter(|(_, member)| member.batches.is_empty());
        faults.extend(empty.map(|(index, _)| {
            let text = format!("member {index} completed no batch inside the common interval");
            Remark::of_member(Fault::NoBatches, index, text)
        }));
    }
    faults
}

/// Whether these are the members that the plan asked for, each once, on the device they should share.
fn identity(record: &TrialRecord) -> Vec<Remark<Fault>> {
    let mut faults = Vec::new();
    let planned = &record.trial.spec.members;
    if record.members.len() != planned.len() {
        let text = format!("{} of {} members left a record", record.members.len(), planned.len());
        faults.push(Remark::of_all(Fault::MissingMember, text));
    }
    let divided = matches!(record.trial.spec.sharing, Sharing::Mig { mps: None, .. });
    let device = |index: usize| match &record.members[index].allocation {
        Allocation::Cpu => None,
        Allocation::Cuda { uuid, .. } => Some(uuid),
    };
    for (index, member) in record.members.iter().enumerate() {
        let twin = record.members[..index].iter().position(|other| other.pid == member.pid);
        if let Some(twin) = twin {
            let text = format!("members {twin} and {index} are the same process {}", member.pid);
            faults.push(Remark::of_member(Fault::DuplicateMember, index, text));
        }
        if divided && let Some(twin) = (0..index).find(|other| device(*other) == device(index)) {
            let text = format!("members {twin} and {index} ran on the same MIG device");
            faults.push(Remark::of_member(Fault::DuplicateMember, index, text));
        }
        if !divided && device(index) != device(0) {
            let text = format!("member {index} ran on another device than member 0");
            faults.push(Remark::of_member(Fault::OtherDevice, index, text));
        }
        if let (Allocation::Cuda { uuid, .. }, Some(found)) = (&member.allocation, &member.built.proof.uuid)
            && uuid != found
        {
            let text = format!("member {index} was assigned {uuid} and ran on {found}");
            faults.push(Remark::of_member(Fault::OtherDevice, index, text));
        }
        if member.digest != member.ready.digest {
            let text = format!("member {index} acted on another configuration than it was given");
            faults.push(Remark::of_member(Fault::Configuration, index, text));
        }
        let size = planned.get(index).map(|workload| workload.batch_size);
        let other = member.samples.as_slice().iter().find(|sample| Some(sample.items) != size);
        if let (Some(size), Some(other)) = (size, other) {
            let text = format!("member {index} ran a batch of {} where {size} were asked for", other.items);
            faults.push(Remark::of_member(Fault::Configuration, index, text));
        }
    }
    faults
}
