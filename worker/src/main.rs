//! The worker's program: serves the connection on its standard input, compares the models with their reference
//! libraries, or times one workload alone; see the library.

use std::env;
use std::error::Error;
use std::process::ExitCode;

use migperf_core::chain::chain;
use migperf_worker::connection::Connection;
use migperf_worker::run::{self, RunError};
use migperf_worker::{bench_command, parity_command};

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.split_first() {
        None => status(Connection::from_standard_input().map_err(RunError::from).and_then(run::serve)),
        Some((first, rest)) if first == "--bench" => status(bench_command::run(rest)),
        Some((first, rest)) if first == "--parity" => parity_command::run(rest).unwrap_or_else(|error| failed(&error)),
        Some(_) => failed(&parity_command::CommandError::Usage(arguments.join(" "))),
    }
}

fn status<E: Error + 'static>(result: Result<(), E>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}

fn failed(error: &(dyn Error + 'static)) -> ExitCode {
    eprintln!("migperf-worker: {}", chain(error));
    ExitCode::FAILURE
}
