//! Processes as /proc shows them: who descends from a daemon, and what is left of it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use sim_machine::process::Process;

fn pids() -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").expect("/proc");
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// The parent of a process that runs.
fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.get(stat.rfind(')')? + 2..)?.split(' ').nth(1)?.parse().ok()
}

/// A process and its program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Running {
    /// The process, told apart from a later one of its number.
    pub process: Process,
    /// Its program's file name.
    pub program: String,
}

/// The root helper's program: it stays as long as its daemon, and outlives it to put a GPU back.
const HELPER: &str = "migperf-helper";

/// Everything that descends from a process and runs, in the order of their numbers; helpers apart.
#[must_use]
pub fn descendants(of: u32) -> Vec<Running> {
    offspring(of).into_iter().filter(|running| running.program != HELPER).collect()
}

/// The helpers of a daemon, the one that it started first.
#[must_use]
pub fn helpers(of: u32) -> Vec<Running> {
    offspring(of).into_iter().filter(|running| running.program == HELPER).collect()
}

fn offspring(of: u32) -> Vec<Running> {
    let parents: BTreeMap<u32, u32> = pids().into_iter().filter_map(|pid| Some((pid, parent(pid)?))).collect();
    let line = |pid: u32| std::iter::successors(Some(pid), |pid| parents.get(pid).copied()).skip(1);
    parents.keys().filter(|pid| line(**pid).any(|ancestor| ancestor == of)).filter_map(|pid| running(*pid)).collect()
}

fn running(pid: u32) -> Option<Running> {
    let program = std::fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    let program = program.file_name()?.to_string_lossy().into_owned();
    Some(Running { process: Process::find(pid)?, program })
}

/// Every process that has this variable in its environment: a test's own mark, which everything it starts inherits.
#[must_use]
pub fn marked(name: &str, value: &str) -> Vec<Running> {
    let mark = format!("{name}={value}");
    let has_mark = |pid: &u32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
    };
    pids().into_iter().filter(has_mark).filter_map(running).collect()
}

/// Waits until a condition holds.
///
/// # Panics
/// If it doesn't within `limit`; `otherwise` says what is wrong.
pub async fn eventually(limit: Duration, condition: impl Fn() -> bool, otherwise: impl Fn() -> String) {
    let deadline = Instant::now() + limit;
    while !condition() {
        assert!(Instant::now() < deadline, "{}", otherwise());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Waits until all of these have ended.
///
/// # Panics
/// If they haven't within `limit`.
pub async fn all_end(these: &[Running], limit: Duration) {
    let left = || these.iter().filter(|running| running.process.is_alive()).collect::<Vec<_>>();
    eventually(limit, || left().is_empty(), || format!("still running after {limit:?}: {:?}", left())).await;
}
