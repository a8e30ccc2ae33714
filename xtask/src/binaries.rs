//! The programs, built with the release profile into one folder.

use std::path::PathBuf;

use anyhow::Result;

use crate::process;
use crate::workspace::{Workspace, cargo};

/// The crate of the worker: the one that links libtorch. It is always built by itself and with the release profile, so
/// that the bindings, which take minutes, are compiled once.
pub(crate) const WORKER: &str = "migperf-worker";

/// The worker's program.
pub(crate) const WORKER_PROGRAM: &str = "migperf-worker-torch";

/// The other programs and their crates.
const PROGRAMS: &[(&str, &str)] = &[
    ("migperfd", "migperfd"),
    ("migperfctl", "migperfctl"),
    ("migperf-worker", "migperf-launcher"),
    ("migperf-helper", "migperf-helper"),
];

/// The names of all programs.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    PROGRAMS.iter().map(|(program, _)| *program).chain([WORKER_PROGRAM])
}

/// Builds all programs and returns the folder they are in. Needs the private libtorch.
///
/// # Errors
/// When cargo fails.
pub(crate) fn build(workspace: &Workspace) -> Result<PathBuf> {
    let mut service = cargo();
    service.args(["build", "--release"]);
    for (_, package) in PROGRAMS {
        service.args(["--package", package]);
    }
    process::run(&mut service)?;
    process::run(cargo().args(["build", "--release", "--package", WORKER]))?;
    Ok(workspace.release())
}
