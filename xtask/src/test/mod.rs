//! `test`: every check and test of the project. All of them run, whatever fails; the last line counts the tests.
//!
//! Checks and most tests use the dev profile. The programs and the worker are built once, with the release profile; the
//! end-to-end tests are pointed at them by `MIGPERF_BIN_DIR` and `MIGPERF_LIBTORCH`.

mod nvml;
pub(crate) mod page;
mod tally;

use std::env;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Result, bail};

use crate::test::tally::{Counts, Tally};
use crate::workspace::{Workspace, cargo};
use crate::{binaries, process, setup, tidy, torch};

/// The crate of the end-to-end tests, which run the built programs.
const END_TO_END: &str = "migperf-tests";

/// Set up, then run every check and test; the last line counts them.
///
/// A part that fails doesn't stop the others. A part that fails without a failed test (a
/// lint, a build) counts as one failed test; an ignored test counts as skipped.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Leave out the worker, what is built with it, and the end-to-end tests
    #[arg(long)]
    quick: bool,
    /// Only draw the HTML report in a browser and validate it
    #[arg(long, conflicts_with = "quick")]
    page: bool,
}

/// Runs all parts, says which failed, and closes with the line that counts.
///
/// # Errors
/// Never for a part that fails: the exit code tells.
#[expect(clippy::print_stdout, reason = "the closing line is the result of the command")]
pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<ExitCode> {
    let mut tally = Tally::default();
    let parts = match (args.page, args.quick) {
        (true, _) => page_only,
        (false, true) => quick,
        (false, false) => all,
    };
    parts(workspace, &mut tally);
    for line in tally.explanations() {
        eprintln!("test: {line}");
    }
    println!("{}", tally.closing_line());
    Ok(if tally.is_success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn page_only(workspace: &Workspace, tally: &mut Tally) {
    tally.check("set-up", || setup::run(workspace, &setup::Args::for_tests(true)));
    tally.check("the HTML report in a browser", || page::check(workspace));
    tally.leave_out("everything else (--page)");
}

fn quick(workspace: &Workspace, tally: &mut Tally) {
    tally.check("set-up", || setup::run(workspace, &setup::Args::for_tests(true)));
    checks(tally);
    tally.check("tidy", || tidy::run(workspace, &tidy::Args::source_only()));
    tally.tests("tests", || {
        let excluded = ["--exclude", binaries::WORKER, "--exclude", END_TO_END];
        let client = nvml::client(workspace)?;
        cargo_test(cargo().args(["test", "--workspace"]).args(excluded).env(nvml::VARIABLE, client))
    });
    tally.check("the HTML report in a browser", || page::check(workspace));
    tally.leave_out("the worker, its lints, what it links, and the end-to-end tests (--quick)");
}

fn all(workspace: &Workspace, tally: &mut Tally) {
    tally.check("set-up", || setup::run(workspace, &setup::Args::for_tests(false)));
    checks(tally);
    tally.check("lints of the worker", || {
        process::run(clippy().args([
            "--release",
            "--package",
            binaries::WORKER,
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ]))
    });
    tally.check("release build", || binaries::build(workspace).map(drop));
    tally.check("tidy", || tidy::run(workspace, &tidy::Args::default()));
    tally.tests("tests", || {
        let libtorch = torch::made_earlier(workspace)?;
        let client = nvml::client(workspace)?;
        cargo_test(
            cargo()
                .args(["test", "--workspace", "--exclude", binaries::WORKER])
                .env(nvml::VARIABLE, client)
                .env("MIGPERF_BIN_DIR", workspace.release())
                .env("MIGPERF_LIBTORCH", libtorch.libraries),
        )
    });
    tally.check("the HTML report in a browser", || page::check(workspace));
    tally.tests("tests of the worker", || {
        let libtorch = torch::made_earlier(workspace)?;
        let mut command = cargo();
        load_from(&mut command, &libtorch.libraries)?;
        cargo_test(command.args(["test", "--release", "--package", binaries::WORKER]))
    });
}

/// What needs neither libtorch nor the programs.
fn checks(tally: &mut Tally) {
    tally.check("formatting", || process::run(cargo().args(["fmt", "--all", "--check"])));
    tally.check("lints", || {
        let excluded = ["--exclude", binaries::WORKER];
        process::run(clippy().arg("--workspace").args(excluded).args(["--all-targets", "--", "-D", "warnings"]))
    });
    if process::on_path("cargo-deny").is_some() {
        // Without `advisories`: their database is fetched, and a change of it must not fail an unchanged tree.
        tally.check("licences and sources", || {
            process::run(cargo().args(["deny", "check", "bans", "licenses", "sources"]))
        });
    } else {
        tally.leave_out("licences and sources: cargo-deny is not installed (`cargo install --locked cargo-deny`)");
    }
}

fn clippy() -> Command {
    let mut command = cargo();
    command.arg("clippy");
    command
}

/// Lets the dynamic linker look in `libraries` first.
fn load_from(command: &mut Command, libraries: &Path) -> Result<()> {
    let before = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let folders = std::iter::once(libraries.to_owned()).chain(env::split_paths(&before));
    command.env("LD_LIBRARY_PATH", env::join_paths(folders)?);
    Ok(())
}

/// Runs `cargo test`, shows what it writes, and counts the tests.
#[expect(clippy::print_stdout, reason = "passes on what the tests write")]
fn cargo_test(command: &mut Command) -> Result<Counts> {
    let mut counts = Counts::default();
    let status = process::stream(command.arg("--no-fail-fast"), |line| {
        println!("{line}");
        counts.add_line(line);
    })?;
    if counts.failed == 0 {
        process::check(command, status)?;
    }
    if counts == Counts::default() {
        bail!("no test was run");
    }
    Ok(counts)
}
