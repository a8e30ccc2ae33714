//! `migperf-helper`: the root helper. Here it is only put together; see the library.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use migperf_core::chain::chain;
use migperf_helper::{hand, run};
use tracing_subscriber::EnvFilter;

/// Changes how GPUs are divided, for migperfd, and puts them back
#[derive(Debug, Parser)]
#[command(version)]
#[command(group(clap::ArgGroup::new("life").required(true).args(["peer", "system", "restore", "report", "hand"])))]
struct Arguments {
    /// Serve the process at the other end of the socket on standard input
    #[arg(long)]
    peer: bool,
    /// Serve the system bus
    #[arg(long)]
    system: bool,
    /// Put back what earlier helpers left, and end
    #[arg(long)]
    restore: bool,
    /// Say what is not as it was found, and end
    #[arg(long)]
    report: bool,
    /// Make NVML calls for the helper that is this process
    #[arg(long, value_name = "PID", hide = true)]
    hand: Option<i32>,
    /// NVML, for a hand
    #[arg(long, value_name = "FILE", hide = true, requires = "hand")]
    nvml: Option<PathBuf>,
    /// Configuration, instead of /etc/migperf/helper.toml
    #[arg(long, value_name = "FILE", conflicts_with = "hand")]
    config: Option<PathBuf>,
}

fn main() -> ExitCode {
    let filter = EnvFilter::try_from_env("MIGPERF_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false).init();
    let arguments = Arguments::parse();
    if let Some(parent) = arguments.hand {
        return match hand::be(arguments.nvml.as_deref(), parent) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                tracing::error!("{}", chain(&error));
                ExitCode::FAILURE
            }
        };
    }
    match serve(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{}", chain(&error));
            ExitCode::FAILURE
        }
    }
}

fn serve(arguments: Arguments) -> Result<(), run::RunError> {
    if arguments.restore {
        return run::restore(arguments.config);
    }
    if arguments.report {
        return run::report(arguments.config);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let life =
        async { if arguments.peer { run::peer(arguments.config).await } else { run::system(arguments.config).await } };
    let result = runtime.block_on(life);
    // A hand that hangs in the driver must not keep the helper.
    runtime.shutdown_background();
    result
}
