//! `demo`: from a fresh checkout to a report of real workers measured together, on the GPU if there is one.

use std::ffi::OsString;
use std::process::Command;

use anyhow::{Context, Result};

use crate::workspace::Workspace;
use crate::{binaries, process, setup, torch};

/// The suite that the demonstration measures.
const SUITE: &str = "configs/suites/quick.toml";

/// Set up, build, measure configs/suites/quick.toml on this machine and write the report to target/demo/.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// More arguments for `migperfctl run`
    #[arg(last = true)]
    client: Vec<OsString>,
}

/// Builds everything and measures the suite.
///
/// # Errors
/// When a step fails, or the client says that a trial is not valid.
pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    setup::run(workspace, &setup::Args::default())?;
    let libtorch = torch::made_earlier(workspace)?;
    let programs = binaries::build(workspace)?;
    let reports = workspace.target.join("demo");
    let mut client = Command::new(programs.join("migperfctl"));
    client.arg("run").arg(workspace.root.join(SUITE)).arg("--local").arg("--output").arg(&reports).args(&args.client);
    client.env("MIGPERF_LIBTORCH", &libtorch.libraries);
    process::run(&mut client).context("the measurement did not end well")?;
    eprintln!("demo: the report is in {} (report.html, report.txt, report.json, report.csv)", reports.display());
    Ok(())
}
