//! `cargo xtask`: sets a machine up, builds, demonstrates, tests and checks the project.

mod binaries;
mod carry;
mod chaos;
mod demo;
mod machine;
mod process;
mod setup;
mod test;
mod tidy;
mod torch;
mod workspace;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::workspace::Workspace;

/// Sets a machine up, builds, demonstrates, tests and checks migperf.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Setup(setup::Args),
    Torch(torch::Args),
    Demo(demo::Args),
    Test(test::Args),
    Tidy(tidy::Args),
    Carry(carry::Args),
    Chaos(chaos::Args),
}

fn main() -> ExitCode {
    run(Cli::parse()).unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

fn run(cli: Cli) -> Result<ExitCode> {
    let workspace = Workspace::find()?;
    match cli.command {
        Command::Setup(args) => setup::run(&workspace, &args)?,
        Command::Torch(args) => drop(torch::run(&workspace, &args)?),
        Command::Demo(args) => demo::run(&workspace, &args)?,
        Command::Test(args) => return test::run(&workspace, &args),
        Command::Tidy(args) => tidy::run(&workspace, &args)?,
        Command::Carry(carry::Args {}) => carry::run(&workspace)?,
        Command::Chaos(args) => return chaos::run(&workspace, &args),
    }
    Ok(ExitCode::SUCCESS)
}
