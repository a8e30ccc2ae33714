//! One trial's report: raw record in, counted batches, numbers, flags and a verdict out.

use serde::{Deserialize, Serialize};

use super::device::DeviceReport;
use super::finding::{Estimated, Finding, Plain};
use super::latency::{Latency, Progress, closed_loop_disagreement, milliseconds, sum};
use super::layout::TrialLayout;
use super::overlap::{Counted, Overlap, faults};
use super::series::Series;
use super::verdict::{Fault, Flag, Remark, Verdict};
use super::view::{SharingView, WorkloadView, rfc3339};
use crate::record::{MemberRecord, Outcome, TrialRecord};
use crate::sample::Interval;
use crate::stats::{Quantile, jain};
use crate::trial::{Purpose, Sharing};
use crate::units::Bytes;
use crate::worker_wire::Allocation;
use crate::workload::{Task, Workload};

/// A larger share of a member's time between its batches is flagged.
const GAPS: f64 = 0.05;
/// A larger contradiction between throughput and latency is flagged.
const DISAGREEMENT: f64 = 0.05;

/// One trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrialReport {
    /// Its place in the plan, from 0.
    pub trial: u32,
    /// The cell it measures.
    pub cell: u32,
    /// Which repeat of the cell it is, from 0.
    pub repeat: u32,
    /// Why it is in the plan.
    pub purpose: Purpose,
    /// The cell's name.
    pub name: String,
    /// How the members shared.
    pub sharing: SharingView,
    /// How many members the cohort should have.
    pub cohort_members: u32,
    /// What may be done with the numbers.
    pub outcome: Verdict,
    /// What to be careful about.
    pub flags: Vec<Remark<Flag>>,
    /// When its first worker was started, UTC.
    pub began: String,
    /// Seconds from there until the last worker had ended.
    pub lasted_s: f64,
    /// Whether the device was simulated.
    pub simulated: bool,
    /// How the GPU was divided; null on the CPU.
    pub layout: Option<TrialLayout>,
    /// The window and what the members had of it in common; null where the cohort did not run through.
    pub window: Option<WindowReport>,
    /// In the order of the plan; empty where the cohort did not run through.
    pub members: Vec<MemberReport>,
    /// Members with the same work, together; empty where there are no numbers. Unlike work is never added up.
    pub groups: Vec<GroupReport>,
    /// The device over the common interval.
    pub device: DeviceReport,
    /// Its course in time, thinned for plots; absent without numbers, and in reports of versions that did not keep it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub series: Option<Series>,
}

/// The window of a trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WindowReport {
    /// Seconds.
    pub window_s: f64,
    /// Seconds in which every member had whole batches: what all numbers are about.
    pub common_s: Finding<Plain>,
    /// The common interval's share of the window, in [0, 1].
    pub common_share: Finding<Plain>,
    /// Microseconds between the members' first batches after the common start.
    pub start_skew_us: Finding<Plain>,
    /// Whether the window was extended for want of batches.
    pub extended: bool,
    /// Batches that the suite wants of each member in the window.
    pub minimum_batches: u32,
}

/// One member's batches, counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Batches {
    /// Wholly inside the common interval: these make the numbers.
    pub counted: u64,
    /// Wholly inside the window.
    pub in_window: u64,
    /// Wholly inside the window, wholly outside of the common interval.
    pub outside_common: u64,
    /// Cut by an edge of the window or of the common interval, and not counted.
    pub censored: u64,
    /// Run, but not recorded.
    pub lost: u64,
}

/// One member.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemberReport {
    /// Its number, from 0.
    pub member: u32,
    /// What it ran.
    pub workload: WorkloadView,
    /// The UUID it ran on; null on the CPU.
    pub device: Option<String>,
    /// Its process.
    pub pid: u32,
    /// Host processors it was confined to; empty: not confined.
    pub processors: Vec<u32>,
    /// Whether no other member shared these.
    pub processors_disjoint: bool,
    /// Seconds from the process's start to Ready.
    pub ready_s: f64,
    /// Milliseconds of the first batch of all, in the warm-up.
    pub first_batch_ms: f64,
    /// Its batches; null without a window.
    pub batches: Option<Batches>,
    /// Items of the counted batches.
    pub items: Finding<Plain>,
    /// Items per second from the first counted batch's start to the last one's end.
    pub throughput_samples_per_s: Finding<Estimated>,
    /// Items of the counted batches over the common interval's whole length, as the co-load article has it: edges cost
    /// up to one batch.
    pub article_samples_per_s: Finding<Plain>,
    /// Requests per minute; a request is one item. Only of inference.
    pub requests_per_min: Finding<Estimated>,
    /// How long its batches took.
    pub latency_ms: Latency,
    /// The share of time between batches, in [0, 1].
    pub gap_share: Finding<Plain>,
    /// The most memory that its allocator held for tensors, in bytes.
    pub allocated_peak_bytes: Finding<Plain>,
    /// The most memory that its allocator reserved from the device, in bytes.
    pub reserved_peak_bytes: Finding<Plain>,
    /// Its peak resident memory on the host, in bytes.
    pub resident_peak_bytes: Finding<Plain>,
}

/// Members with the same work.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupReport {
    /// What they ran.
    pub workload: WorkloadView,
    /// Their numbers.
    pub members: Vec<u32>,
    /// The sum of their throughputs, in items per second.
    pub throughput_samples_per_s: Finding<Estimated>,
    /// The sum in requests per minute; only of inference.
    pub requests_per_min: Finding<Estimated>,
    /// All their batches' latencies pooled.
    pub latency_ms: Latency,
    /// The member with the lowest throughput.
    pub slowest: Slowest,
    /// Jain's index of the members' throughputs: 1 when all are equal.
    pub fairness: Finding<Plain>,
}

/// The slowest member of a group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slowest {
    /// Which.
    pub member: u32,
    /// Its throughput in items per second.
    pub throughput_samples_per_s: Finding<Estimated>,
    /// Its mean latency.
    pub mean_ms: Finding<Estimated>,
    /// Its 99th percentile by nearest rank.
    pub p99_ms: Finding<Estimated>,
}

impl TrialReport {
    /// Of a raw record.
    #[must_use]
    pub fn of(record: &TrialRecord) -> Self {
        let overlap = Overlap::of(record);
        let mut flags = Vec::new();
        let verdict = verdict(record, overlap.as_ref());
        let common = overlap.as_ref().and_then(|overlap| overlap.common).filter(|_| verdict.is_none());
        let reason = verdict.as_ref().map_or_else(String::new, |verdict| format!("the trial is {}", verdict.name()));
        let usable = common.ok_or(reason.as_str());
        let members: Vec<MemberReport> = record
            .members
            .iter()
            .zip(&record.trial.spec.members)
            .enumerate()
            .map(|(index, (member, workload))| {
                let counted = overlap.as_ref().and_then(|overlap| overlap.members.get(index)).copied();
                member_report(index, member, workload, counted, usable)
            })
            .collect();
        let (groups, device) = match (usable, &overlap) {
            (Ok(common), Some(overlap)) => {
                let groups = groups(record, overlap, &members);
                let rate = match groups.as_slice() {
                    [only] => only.throughput_samples_per_s.number().ok_or("the throughput is missing"),
                    _ => Err("the members' work is unlike: items of one kind are not items of another"),
                };
                let device = DeviceReport::over(record, common, rate, &mut flags);
                raise(record, &members, &mut flags);
                (groups, device)
            }
            _ => (Vec::new(), DeviceReport::absent(&reason)),
        };
        let series = match (usable, &overlap) {
            (Ok(common), Some(overlap)) => Some(Series::of(record, overlap, common)),
            _ => None,
        };
        let degraded = flags.iter().any(|flag| !flag.code.is_note());
        Self {
            trial: record.trial.index,
            cell: record.trial.cell,
            repeat: record.trial.repeat,
            purpose: record.trial.purpose,
            name: record.trial.spec.to_string(),
            sharing: (&record.trial.spec.sharing).into(),
            cohort_members: u32::try_from(record.trial.spec.members.len()).unwrap_or(u32::MAX),
            outcome: verdict.unwrap_or(if degraded { Verdict::Flagged } else { Verdict::Valid }),
            flags,
            began: rfc3339(record.began.realtime),
            lasted_s: record.ended.monotonic.since(record.began.monotonic).as_secs_f64(),
            simulated: record.simulated,
            layout: record.gpu.as_ref().map(TrialLayout::of),
            window: overlap.as_ref().map(|overlap| window_report(record, overlap)),
            members,
            groups,
            device,
            series,
        }
    }
}

/// Why there are no numbers; none where there are.
fn verdict(record: &TrialRecord, overlap: Option<&Overlap<'_>>) -> Option<Verdict> {
    match &record.outcome {
        Outcome::DoesNotFit { member, detail } => Some(Verdict::DoesNotFit { member: *member, reason: detail.clone() }),
        Outcome::Failed { reason } => Some(Verdict::Failed { reason: reason.clone() }),
        Outcome::Cancelled { reason } => Some(Verdict::Cancelled { reason: reason.clone() }),
        Outcome::Contaminated { reason } => Some(Verdict::Contaminated { reason: reason.clone() }),
        Outcome::Complete if !record.foreign.is_empty() => {
            let names = record.foreign.iter().map(|process| match &process.program {
                Some(program) => format!("{program} ({})", process.pid),
                None => format!("process {}", process.pid),
            });
            let reason = format!("others used the device: {}", names.collect::<Vec<_>>().join(", "));
            Some(Verdict::Contaminated { reason })
        }
        Outcome::Complete => {
            let faults: Vec<Remark<Fault>> = faults(record, overlap);
            (!faults.is_empty()).then_some(Verdict::Invalid { faults })
        }
    }
}

fn window_report(record: &TrialRecord, overlap: &Overlap<'_>) -> WindowReport {
    let none = || Finding::absent("a member has no batch in the window");
    WindowReport {
        window_s: overlap.window.length() as f64 / 1e9,
        common_s: overlap.common.map_or_else(none, |common| Finding::plain(common.length() as f64 / 1e9)),
        common_share: overlap.common.and(overlap.share()).map_or_else(none, Finding::plain),
        start_skew_us: overlap
            .start_skew_ns
            .map_or_else(|| Finding::absent("no member has a batch"), |skew| Finding::plain(skew as f64 / 1e3)),
        extended: record.extended,
        minimum_batches: record.trial.spec.timing.minimum_batches,
    }
}

fn member_report(
    index: usize,
    member: &MemberRecord,
    workload: &Workload,
    counted: Option<Counted<'_>>,
    usable: Result<Interval, &str>,
) -> MemberReport {
    let bytes = |bytes: Option<Bytes>, reason: &str| {
        bytes.map_or_else(|| Finding::absent(reason), |bytes| Finding::plain(bytes.0 as f64))
    };
    let no_allocator = "the worker's allocator does not say";
    let (progress, article, latency_ms) = match (usable, counted) {
        (Ok(common), Some(counted)) => {
            let progress = Progress::of(counted.batches);
            let article = Finding::plain(progress.items as f64 / (common.length() as f64 / 1e9));
            (progress, article, Latency::of_batches(counted.batches))
        }
        (usable, _) => {
            let reason = usable.err().unwrap_or("there is no window");
            let progress = Progress { items: 0, rate: Finding::absent(reason), gap_share: Finding::absent(reason) };
            (progress, Finding::absent(reason), Latency::absent(reason))
        }
    };
    MemberReport {
        member: u32::try_from(index).unwrap_or(u32::MAX),
        workload: workload.into(),
        device: match &member.allocation {
            Allocation::Cpu => None,
            Allocation::Cuda { uuid, .. } => Some(uuid.to_string()),
        },
        pid: member.pid,
        processors: member.processors.clone(),
        processors_disjoint: member.processors_disjoint,
        ready_s: member.ready_after_ns as f64 / 1e9,
        first_batch_ms: milliseconds(member.ready.first_ns),
        batches: counted.map(|counted| Batches {
            counted: if usable.is_ok() { counted.batches.len() as u64 } else { 0 },
            in_window: counted.in_window as u64,
            outside_common: counted.outside as u64,
            censored: counted.censored as u64,
            lost: member.done.lost,
        }),
        items: match usable {
            Ok(_) => Finding::plain(progress.items as f64),
            Err(reason) => Finding::absent(reason),
        },
        requests_per_min: requests(workload.task, &progress.rate),
        throughput_samples_per_s: progress.rate,
        article_samples_per_s: article,
        latency_ms,
        gap_share: progress.gap_share,
        allocated_peak_bytes: bytes(member.done.allocated_peak, no_allocator),
        reserved_peak_bytes: bytes(member.done.reserved_peak, no_allocator),
        resident_peak_bytes: bytes(member.done.resident_peak, "the host does not say"),
    }
}

/// Items per second of inference as requests per minute.
pub(super) fn requests(task: Task, rate: &Finding<Estimated>) -> Finding<Estimated> {
    match task {
        Task::Train => Finding::absent("training serves no requests"),
        Task::Infer => rate.clone().map(|rate| Estimated {
            value: rate.value * 60.0,
            interval: rate.interval.map(|mut bounds| {
                bounds.low *= 60.0;
                bounds.high *= 60.0;
                bounds
            }),
            ..rate
        }),
    }
}

fn groups(record: &TrialRecord, overlap: &Overlap<'_>, members: &[MemberReport]) -> Vec<GroupReport> {
    let group = |(workload, indices): (&Workload, Vec<usize>)| {
        let rates: Vec<_> = indices.iter().map(|index| &members[*index].throughput_samples_per_s).collect();
        let throughput = sum(&rates);
        let slowest = indices.iter().copied().min_by(|a, b| {
            let rate = |index: usize| members[index].throughput_samples_per_s.number().unwrap_or(f64::NEG_INFINITY);
            rate(*a).total_cmp(&rate(*b))
        })?;
        let slowest = &members[slowest];
        let numbers: Vec<f64> = rates.iter().filter_map(|rate| rate.number()).collect();
        Some(GroupReport {
            workload: workload.into(),
            members: indices.iter().filter_map(|index| u32::try_from(*index).ok()).collect(),
            requests_per_min: requests(workload.task, &throughput),
            throughput_samples_per_s: throughput,
            latency_ms: match indices.as_slice() {
                [only] => members[*only].latency_ms.clone(),
                _ => Latency::pooled(indices.iter().flat_map(|index| overlap.members[*index].batches)),
            },
            slowest: Slowest {
                member: slowest.member,
                throughput_samples_per_s: slowest.throughput_samples_per_s.clone(),
                mean_ms: slowest.latency_ms.mean.clone(),
                p99_ms: slowest.latency_ms.nearest_rank.get(Quantile::P99).cloned()?,
            },
            fairness: match jain(&numbers) {
                Ok(index) if numbers.len() == indices.len() => Finding::plain(index),
                Ok(_) => Finding::absent("a member's throughput is missing"),
                Err(reason) => Finding::absent(reason.to_string()),
            },
        })
    };
    record.trial.spec.groups().into_iter().filter_map(group).collect()
}

fn raise(record: &TrialRecord, members: &[MemberReport], flags: &mut Vec<Remark<Flag>>) {
    let minimum = record.trial.spec.timing.minimum_batches;
    for (index, member) in members.iter().enumerate() {
        let in_window = member.batches.map_or(0, |batches| batches.in_window);
        if in_window < u64::from(minimum) {
            let text = format!("member {index} has {in_window} batches in the window, {minimum} are wanted");
            flags.push(Remark::of_member(Flag::FewBatches, index, text));
        }
        let gaps = member.gap_share.number();
        if let Some(gaps) = gaps.filter(|gaps| *gaps > GAPS) {
            let text = format!("member {index} spent {:.0} % of its time between batches", gaps * 100.0);
            flags.push(Remark::of_member(Flag::BatchGaps, index, text));
        }
        let parts = (member.throughput_samples_per_s.number(), member.latency_ms.mean.number(), gaps);
        if let (Some(rate), Some(mean), Some(gaps)) = parts {
            let off = closed_loop_disagreement(rate, member.workload.batch_size, mean, gaps);
            if !off.is_finite() || off.abs() > DISAGREEMENT {
                let text = format!("throughput and latency of member {index} disagree by {:+.0} %", off * 100.0);
                flags.push(Remark::of_member(Flag::ThroughputLatency, index, text));
            }
        }
    }
    if record.extended {
        let window = record.window.map_or(0, Interval::length) as f64 / 1e9;
        let text = format!("the window was extended from {} to {window:.1} s", record.trial.spec.timing.window);
        flags.push(Remark::of_all(Flag::WindowExtended, text));
    }
    let sharers = record.members.iter().filter(|member| !member.processors_disjoint).count();
    if record.members.len() > 1 && sharers > 0 && record.trial.spec.sharing != Sharing::Cpu {
        let text = format!("{sharers} of {} members have host processors in common with others", record.members.len());
        flags.push(Remark::of_all(Flag::SharedProcessors, text));
    }
}
