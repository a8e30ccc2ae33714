//! A trial as a folder for each worker: `worker.json`, what it was, and `batches.jsonl`, every batch it ran. The form in
//! which the co-load article keeps its runs; the fields are described in `docs/report.md`.

use std::fmt::Write as _;

use serde::Serialize;

use crate::record::{JobRecord, MemberRecord, TrialRecord};
use crate::report::WorkloadView;
use crate::worker_wire::Allocation;

/// Version of these files.
pub const FORMAT: u32 = 1;

/// One file, its path with `/`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// From the folder of the export.
    pub path: String,
    /// Its text.
    pub text: String,
}

/// What `worker.json` says.
#[derive(Debug, Serialize)]
struct Worker<'a> {
    format: u32,
    /// Who belongs together: the job's identity and the trial.
    cohort: String,
    trial: u32,
    cell: u32,
    repeat: u32,
    worker: usize,
    workers: usize,
    sharing: String,
    workload: WorkloadView,
    device: Option<String>,
    host: &'a str,
    pid: u32,
    config_digest: &'a str,
    engine: &'a str,
    clock: &'static str,
    start_ns: Option<u64>,
    window_start_ns: Option<u64>,
    window_end_ns: Option<u64>,
    batches: usize,
    lost: u64,
    outcome: &'a crate::record::Outcome,
    simulated: bool,
}

/// The files of one trial; none where its cohort did not run through.
#[must_use]
pub fn files(job: &JobRecord, trial: &TrialRecord) -> Vec<File> {
    let mut files = Vec::new();
    for (place, member) in trial.members.iter().enumerate() {
        let folder = format!("trial-{:03}/worker-{place}", trial.trial.index);
        let worker = serde_json::to_string_pretty(&worker(job, trial, place, member));
        let worker = worker.expect("a worker's file has only names as keys, and whole numbers");
        files.push(File { path: format!("{folder}/worker.json"), text: format!("{worker}\n") });
        files.push(File { path: format!("{folder}/batches.jsonl"), text: batches(member) });
    }
    files
}

fn worker<'a>(job: &'a JobRecord, trial: &'a TrialRecord, place: usize, member: &'a MemberRecord) -> Worker<'a> {
    let planned = &trial.trial;
    Worker {
        format: FORMAT,
        cohort: format!("{}/{}", job.uid.0, planned.index),
        trial: planned.index,
        cell: planned.cell,
        repeat: planned.repeat,
        worker: place,
        workers: trial.members.len(),
        sharing: planned.spec.sharing.to_string(),
        workload: (&planned.spec.members[place]).into(),
        device: match &member.allocation {
            Allocation::Cpu => None,
            Allocation::Cuda { uuid, .. } => Some(uuid.to_string()),
        },
        host: &job.host.name,
        pid: member.pid,
        config_digest: &member.digest.0,
        engine: &member.built.engine,
        clock: "CLOCK_MONOTONIC",
        start_ns: trial.start.map(|at| at.0),
        window_start_ns: trial.window.map(|window| window.from.0),
        window_end_ns: trial.window.map(|window| window.to.0),
        batches: member.samples.as_slice().len(),
        lost: member.done.lost,
        outcome: &trial.outcome,
        simulated: trial.simulated,
    }
}

fn batches(member: &MemberRecord) -> String {
    let mut text = String::with_capacity(member.samples.as_slice().len() * 80);
    for (batch, sample) in member.samples.as_slice().iter().enumerate() {
        let (start, end, items) = (sample.start.0, sample.end.0, sample.items);
        let _ = writeln!(text, r#"{{"batch":{batch},"start_ns":{start},"end_ns":{end},"items":{items}}}"#);
    }
    text
}
