//! The worker's program: serves the connection on its standard input; see the library.

use std::process::ExitCode;

use migperf_worker::connection::Connection;
use migperf_worker::run::{self, RunError};

fn main() -> ExitCode {
    match Connection::from_standard_input().map_err(RunError::from).and_then(run::serve) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let chain = std::iter::successors(Some(&error as &dyn std::error::Error), |error| error.source());
            let words: Vec<String> = chain.map(ToString::to_string).collect();
            eprintln!("migperf-worker: {}", words.join(": "));
            ExitCode::FAILURE
        }
    }
}
