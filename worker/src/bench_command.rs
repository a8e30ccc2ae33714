//! `--bench`: one workload alone in this process, timed batch by batch as a cohort's member is, without daemon or cohort.
//!
//! It is what other implementations of the same work are compared with; a measurement of sharing it is not.

use std::time::Instant;

use migperf_core::workload::{Input, Workload};
use tch::Device;

use crate::bridge::{self, LoadCudaError};
use crate::step::{Step, StepError};

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The command line.
    #[error("usage: migperf-worker-torch --bench cpu|cuda MODEL TASK BATCH-SIZE PRECISION BATCHES [host]")]
    Usage,
    /// libtorch can't use the device.
    #[error("libtorch can't use the device")]
    Cuda(#[from] LoadCudaError),
    /// The workload failed.
    #[error("the workload failed")]
    Step(#[from] StepError),
}

/// Runs `BATCHES` timed batches after a fifth as many (at least twenty) to warm up, and prints one line of JSON: mean,
/// median, 99th percentile (nearest rank) and minimum of a batch in milliseconds by the monotonic clock.
///
/// # Errors
/// If the command line makes no sense or the workload can't be run.
pub fn run(arguments: &[String]) -> Result<(), BenchError> {
    let [device, model, task, batch_size, precision, batches, rest @ ..] = arguments else {
        return Err(BenchError::Usage);
    };
    let model = parse(model)?;
    let task = parse(task)?;
    let precision = parse(precision)?;
    let batch_size = parse(batch_size)?;
    let batches: usize = parse(batches)?;
    let mut workload = Workload::new(model, task, batch_size, precision);
    for option in rest {
        match option.as_str() {
            "host" => workload.input = Input::Host,
            format => workload.memory_format = parse(format)?,
        }
    }
    let device = match device.as_str() {
        "cpu" => Device::Cpu,
        "cuda" => {
            bridge::load_cuda()?;
            Device::Cuda(0)
        }
        _ => return Err(BenchError::Usage),
    };
    if batches == 0 {
        return Err(BenchError::Usage);
    }
    let mut step = Step::new(&workload, device, 1)?;
    for _ in 0..(batches / 5).max(20) {
        step.run()?;
    }
    let mut milliseconds = Vec::with_capacity(batches);
    for _ in 0..batches {
        let start = Instant::now();
        step.run()?;
        milliseconds.push(start.elapsed().as_secs_f64() * 1e3);
    }
    #[expect(clippy::cast_precision_loss, reason = "far fewer batches than 2^53")]
    let mean = milliseconds.iter().sum::<f64>() / batches as f64;
    milliseconds.sort_by(f64::total_cmp);
    let rank = |percent: usize| milliseconds[(batches * percent).div_ceil(100).max(1) - 1];
    let result = serde_json::json!({
        "workload": workload.to_string(),
        "batches": batches,
        "mean_ms": mean,
        "p50_ms": rank(50),
        "p99_ms": rank(99),
        "min_ms": milliseconds[0],
    });
    print_line(&result.to_string());
    Ok(())
}

fn parse<T: std::str::FromStr>(text: &str) -> Result<T, BenchError> {
    text.parse().map_err(|_| BenchError::Usage)
}

#[expect(clippy::print_stdout, reason = "the result is what this command is for")]
fn print_line(line: &str) {
    println!("{line}");
}
