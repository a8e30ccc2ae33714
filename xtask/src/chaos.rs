//! `chaos`: many short MIG jobs on simulated GPUs, in each of which something is killed at a random instant.

use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::workspace::{Workspace, cargo};
use crate::{binaries, machine, process, torch};

/// Kill daemon, helper or worker, or restart the simulated machine, at random instants of MIG jobs, and see whether
/// layouts, trials and other people's instances outlive it.
///
/// Needs root. Prints `N restored, N lost`; ends with a failure if anything is lost.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How many jobs
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    runs: u64,
    /// The same seed gives the same runs
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only the run of this number
    #[arg(long)]
    only: Option<u64>,
}

/// Runs them.
///
/// # Errors
/// When the programs can't be built, or the tests not be run.
#[expect(clippy::print_stdout, reason = "passes on what the runs write")]
pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<ExitCode> {
    if !machine::is_root() {
        bail!("only root can run the helper; run this as root");
    }
    let libtorch = torch::made_earlier(workspace)?;
    let programs = binaries::build(workspace)?;
    let mut command = cargo();
    command
        .args(["test", "--package", "migperf-tests", "--test", "chaos", "--", "--nocapture"])
        .env("MIGPERF_BIN_DIR", programs)
        .env("MIGPERF_LIBTORCH", libtorch.libraries)
        .env("MIGPERF_CHAOS_RUNS", args.runs.to_string())
        .env("MIGPERF_CHAOS_SEED", args.seed.to_string());
    if let Some(only) = args.only {
        command.env("MIGPERF_CHAOS_ONLY", only.to_string());
    }
    let mut count = None;
    let status = process::stream(&mut command, |line| {
        println!("{line}");
        if line.contains(" restored, ") {
            count = Some(line.to_owned());
        }
    })?;
    match count {
        Some(count) => println!("{count}"),
        None => bail!("no run was counted"),
    }
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
