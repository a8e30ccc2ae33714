//! `setup`: the packages that the build needs, installed by apt where they are missing, then the private libtorch.

use std::process::Command;

use anyhow::{Result, bail};

use crate::test::page;
use crate::workspace::Workspace;
use crate::{machine, process, torch};

/// Install what the build needs (by apt, as root), then make the private libtorch.
///
/// Nothing is installed and apt isn't asked where everything is there already. Without root the command to type is
/// printed instead.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Args {
    /// Packages only: no libtorch, so the worker can't be built
    #[arg(long)]
    no_torch: bool,
    /// Also what only the tests need: a browser and npm, to look at the HTML report
    #[arg(long)]
    tests: bool,
}

impl Args {
    /// All that the tests need, or all but libtorch.
    pub(crate) fn for_tests(no_torch: bool) -> Self {
        Self { no_torch, tests: true }
    }
}

/// Something the build needs from the operating system.
struct Requirement {
    what: &'static str,
    packages: &'static [&'static str],
    /// Whether this checkout needs it now.
    is_needed: fn(&Workspace, &Args) -> bool,
    is_there: fn() -> bool,
}

const REQUIREMENTS: &[Requirement] = &[
    Requirement {
        what: "a C++ compiler and linker (libtorch's bindings, SQLite)",
        packages: &["g++"],
        is_needed: |_, _| true,
        is_there: || process::on_path("c++").is_some() && process::on_path("cc").is_some(),
    },
    Requirement {
        what: "Python's pip (fetches libtorch, and the tests' client of NVML)",
        packages: &["python3", "python3-pip"],
        is_needed: |workspace, args| args.tests || !args.no_torch && torch::needs_pip(workspace),
        is_there: || process::succeeds(Command::new("python3").args(["-m", "pip", "--version"])),
    },
    Requirement {
        what: "pkg-config and libsystemd's headers (notifications and the journal)",
        packages: &["pkg-config", "libsystemd-dev"],
        is_needed: |workspace, _| workspace.uses("systemd"),
        is_there: || process::succeeds(Command::new("pkg-config").args(["--exists", "libsystemd"])),
    },
    Requirement {
        what: "Chromium (draws the HTML report in its test)",
        packages: &["chromium"],
        is_needed: |_, args| args.tests,
        is_there: || page::browser().is_some(),
    },
    Requirement {
        what: "Node.js and npm (fetch and run the HTML report's validator)",
        packages: &["nodejs", "npm"],
        is_needed: |_, args| args.tests,
        is_there: || process::on_path("node").is_some() && process::on_path("npm").is_some(),
    },
];

/// Installs what is missing, then makes the private libtorch.
///
/// # Errors
/// When something is missing and can't be installed, or libtorch can't be made.
pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    let missing: Vec<&Requirement> = REQUIREMENTS
        .iter()
        .filter(|requirement| (requirement.is_needed)(workspace, args) && !(requirement.is_there)())
        .collect();
    if !missing.is_empty() {
        for requirement in &missing {
            eprintln!("setup: missing: {}", requirement.what);
        }
        install(&missing.iter().flat_map(|requirement| requirement.packages).copied().collect::<Vec<_>>())?;
        if let Some(requirement) = missing.iter().find(|requirement| !(requirement.is_there)()) {
            bail!("apt installed {}, but {} is still not found", requirement.packages.join(" "), requirement.what);
        }
    }
    if !args.no_torch {
        torch::run(workspace, &torch::Args::default())?;
    }
    Ok(())
}

fn install(packages: &[&str]) -> Result<()> {
    let names = packages.join(" ");
    if process::on_path("apt-get").is_none() {
        bail!(
            "this system has no apt-get: install with its package manager what Debian calls {names}, then run this again"
        );
    }
    if !machine::is_root() {
        bail!(
            "as root, run\n\n    apt-get update && apt-get install --yes --no-install-recommends {names}\n\nthen run this again"
        );
    }
    // One unreachable source of several makes the update fail although the packages can be had.
    if let Err(error) = process::run(apt().arg("update")) {
        eprintln!("setup: {error:#}; going on with the package lists that are there");
    }
    process::run(apt().args(["install", "--yes", "--no-install-recommends"]).args(packages))
}

fn apt() -> Command {
    let mut command = Command::new("apt-get");
    command.arg("--quiet").env("DEBIAN_FRONTEND", "noninteractive");
    command
}
