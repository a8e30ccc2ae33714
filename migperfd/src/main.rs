//! `migperfd`: the daemon. Here it is only put together; see the library.

use std::process::ExitCode;

use clap::Parser as _;
use migperf_core::chain::chain;
use migperfd::peer;
use migperfd::settings::Arguments;
use tracing_subscriber::EnvFilter;

#[tokio::main]
async fn main() -> ExitCode {
    let filter = EnvFilter::try_from_env("MIGPERF_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false).init();
    match peer::run(Arguments::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{}", chain(&error));
            ExitCode::from(error.exit_code())
        }
    }
}
