//! The report: a pure function of a job's raw records, which any later version can compute again. Its JSON is described
//! by `docs/report.schema.json` and `docs/report.md`; text and CSV are other views of the same values.

mod baseline;
mod cell;
pub mod choice;
mod compare;
mod context;
pub mod csv;
mod device;
pub mod eval;
mod finding;
pub mod html;
mod json;
mod latency;
mod layout;
pub mod markdown;
mod objective;
mod overlap;
mod series;
pub(crate) mod table;
pub mod text;
mod trial;
mod verdict;
mod view;

pub use cell::{CellGroup, CellOutcome, CellReport, Slowdown};
pub use compare::{AaReport, DriftReport};
pub use context::{ContextReport, GpuView, JobReport, Text};
pub use device::{DeviceReport, Throttle};
pub use finding::{Absent, Bounded, Central, Estimated, Finding, Plain, Sampled};
pub use latency::{Latency, Quantiles, closed_loop_disagreement};
pub use layout::{LayoutReport, TrialInstance, TrialLayout};
pub use objective::{Answer, Judgement, ObjectiveReport};
pub use series::{DeviceSeries, LatencyShape, MemberSeries, SHARES, Series, Track};
pub use trial::{Batches, GroupReport, MemberReport, Slowest, TrialReport, WindowReport};
pub use verdict::{Fault, Flag, Remark, Verdict};
pub use view::{SharingView, WorkloadView, rfc3339};

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::plan::LeftOut;
use crate::record::{JobRecord, JobResults, LayoutRecord, TrialRecord};
use baseline::Measured;

/// Version of the report's JSON. Additions keep it; a change of meaning raises it.
pub const SCHEMA: u32 = 1;
/// What stands over every output of a simulated measurement.
pub const WATERMARK: &str = "SIMULATED: no hardware was measured, the numbers say nothing of any device";

/// What a job found out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Whether any of it was measured on a simulated device.
    pub simulated: bool,
    /// [`WATERMARK`] if so.
    pub watermark: Option<String>,
    /// The job.
    pub job: JobReport,
    /// Where and with what.
    pub context: ContextReport,
    /// What became of the planned trials.
    pub summary: Summary,
    /// What the job did to its GPU's layout; null where it did nothing.
    pub layout: Option<LayoutReport>,
    /// The answer to the suite's objective; null without one.
    pub objective: Option<ObjectiveReport>,
    /// Each distinct thing that was measured, over its repeats, in the order of the plan.
    pub cells: Vec<CellReport>,
    /// The same work measured as two cells.
    pub a_a: Vec<AaReport>,
    /// Cells measured again at the end.
    pub drift: Vec<DriftReport>,
    /// Each trial, in the order in which they ran.
    pub trials: Vec<TrialReport>,
    /// What the suite has and the plan has not.
    pub left_out: Vec<Omission>,
    /// What the person who wrote the suite should know, and first what is wrong with the GPU's layout.
    pub warnings: Vec<String>,
    /// The flags and faults that occur in this report, explained.
    pub explanations: Vec<Explanation>,
}

/// What became of the planned trials.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Summary {
    /// Trials of the plan.
    pub planned: u32,
    /// Trials that have a record.
    pub recorded: u32,
    /// With numbers and no flags.
    pub valid: u32,
    /// With numbers and flags.
    pub flagged: u32,
    /// That did not happen as configured.
    pub invalid: u32,
    /// That need more memory than there is.
    pub does_not_fit: u32,
    /// That failed.
    pub failed: u32,
    /// That were cancelled.
    pub cancelled: u32,
    /// During which others used the device.
    pub contaminated: u32,
}

impl fmt::Display for Summary {
    /// `26 trials: 24 valid, 2 flagged`: kinds that did not happen are left out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = [
            ("valid", self.valid),
            ("flagged", self.flagged),
            ("invalid", self.invalid),
            ("that do not fit", self.does_not_fit),
            ("failed", self.failed),
            ("cancelled", self.cancelled),
            ("contaminated", self.contaminated),
            ("not run", self.planned.saturating_sub(self.recorded)),
        ];
        let counts: Vec<String> =
            counts.iter().filter(|(_, count)| *count > 0).map(|(what, count)| format!("{count} {what}")).collect();
        write!(f, "{} trials: {}", self.planned, counts.join(", "))
    }
}

/// Something that was not measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Omission {
    /// What.
    pub what: String,
    /// Why not.
    pub why: String,
}

/// What a flag or fault means.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Explanation {
    /// The code.
    pub code: String,
    /// What it means.
    pub cause: String,
    /// What to do about it.
    pub remedy: String,
}

/// A report that grows trial by trial, so that no more than one trial's samples must be at hand.
#[derive(Debug)]
pub struct Reporter {
    job: JobRecord,
    layout: Option<LayoutRecord>,
    trials: Vec<TrialReport>,
    gpus: Vec<GpuView>,
}

impl Reporter {
    /// Of a job without trials, and of the instances that were made for it.
    #[must_use]
    pub fn new(job: JobRecord, layout: Option<LayoutRecord>) -> Self {
        Self { job, layout, trials: Vec::new(), gpus: Vec::new() }
    }

    /// Takes the next trial, in the order in which they ran.
    pub fn add(&mut self, record: &TrialRecord) {
        if let Some(gpu) = &record.gpu
            && self.gpus.iter().all(|known| known.uuid != gpu.uuid.as_str())
        {
            self.gpus.push(context::gpu_view(gpu));
        }
        self.trials.push(TrialReport::of(record));
    }

    /// Whether no trial has been taken.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.trials.is_empty()
    }

    /// The report.
    #[must_use]
    pub fn finish(self) -> Report {
        let Self { job, layout, trials, gpus } = self;
        let plan = &job.plan;
        let measured = Measured { plan, trials: &trials };
        let cells: Vec<CellReport> =
            (0..).zip(&plan.cells).map(|(cell, spec)| CellReport::of(measured, cell, spec)).collect();
        let simulated = job.inventory.is_simulated() || trials.iter().any(|trial| trial.simulated);
        let problem = layout.as_ref().and_then(|layout| layout.end.problem());
        let omission = |left: &LeftOut| Omission { what: left.what.clone(), why: left.why.clone() };
        Report {
            schema: SCHEMA,
            simulated,
            watermark: simulated.then(|| WATERMARK.to_owned()),
            job: JobReport::of(&job),
            context: ContextReport::of(&job, gpus),
            summary: Summary::of(plan.trials.len(), &trials),
            layout: layout.as_ref().map(LayoutReport::of),
            objective: ObjectiveReport::of(plan, &cells),
            a_a: compare::a_a(measured),
            drift: compare::drift(measured),
            left_out: plan.left_out.iter().map(omission).collect(),
            warnings: problem.into_iter().chain(plan.warnings.iter().cloned()).collect(),
            explanations: explanations(&trials),
            cells,
            trials,
        }
    }
}

impl Report {
    /// Of a job's raw records.
    #[must_use]
    pub fn from_results(results: &JobResults) -> Self {
        let mut reporter = Reporter::new(results.job.clone(), results.layout.clone());
        results.trials.iter().for_each(|record| reporter.add(record));
        reporter.finish()
    }

    /// The report as JSON: indented, columns of numbers in one line each, with a line end.
    #[must_use]
    pub fn to_json(&self) -> String {
        json::indented(self).expect("a report has only names as keys, and finite numbers")
    }
}

impl Summary {
    fn of(planned: usize, trials: &[TrialReport]) -> Self {
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let mut summary = Self { planned: count(planned), recorded: count(trials.len()), ..Self::default() };
        for trial in trials {
            *match trial.outcome {
                Verdict::Valid => &mut summary.valid,
                Verdict::Flagged => &mut summary.flagged,
                Verdict::Invalid { .. } => &mut summary.invalid,
                Verdict::DoesNotFit { .. } => &mut summary.does_not_fit,
                Verdict::Failed { .. } => &mut summary.failed,
                Verdict::Cancelled { .. } => &mut summary.cancelled,
                Verdict::Contaminated { .. } => &mut summary.contaminated,
            } += 1;
        }
        summary
    }
}

fn explanations(trials: &[TrialReport]) -> Vec<Explanation> {
    let explain = |code: &str, cause: &str, remedy: &str| Explanation {
        code: code.to_owned(),
        cause: cause.to_owned(),
        remedy: remedy.to_owned(),
    };
    let faults = |trial: &TrialReport| match &trial.outcome {
        Verdict::Invalid { faults } => faults.iter().map(|fault| fault.code).collect(),
        _ => Vec::new(),
    };
    let raised = |flag: &Flag| trials.iter().any(|trial| trial.flags.iter().any(|raised| raised.code == *flag));
    let found = |fault: &Fault| trials.iter().any(|trial| faults(trial).contains(fault));
    let faults = Fault::ALL.iter().filter(|fault| found(fault));
    let flags = Flag::ALL.iter().filter(|flag| raised(flag));
    faults
        .map(|fault| explain(fault.code(), fault.cause(), fault.remedy()))
        .chain(flags.map(|flag| explain(flag.code(), flag.cause(), flag.remedy())))
        .collect()
}
