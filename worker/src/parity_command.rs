//! `--parity FOLDER`: the comparisons of [`crate::parity`] on this machine's device, as a table.
//!
//! For a machine with a GPU, where the paths that are measured there can be checked and no Python is needed.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use migperf_core::workload::{Model, Precision, Task, UnknownName};
use tch::Device;

use crate::bridge::{self, LoadCudaError};
use crate::parity::{ParityError, Reference, formats, release};
use crate::step::StepError;

/// How it is called.
pub const USAGE: &str = "--parity FOLDER [--device cpu|cuda] [--precision NAME|all] [--model NAME|all]";

/// Why there is no table.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// Not as it is called.
    #[error("`{0}` is not understood; use {USAGE}")]
    Usage(String),
    /// No such model or precision.
    #[error(transparent)]
    Name(#[from] UnknownName),
    /// No CUDA.
    #[error(transparent)]
    Cuda(#[from] LoadCudaError),
    /// No reference, or a model that can't be run.
    #[error("the comparison failed")]
    Parity(#[from] ParityError),
    /// Memory could not be given back.
    #[error("memory could not be given back")]
    Release(#[from] StepError),
    /// The table can't be written.
    #[error("can't write to standard output")]
    Write(#[from] io::Error),
}

#[derive(Debug)]
struct Arguments {
    folder: PathBuf,
    device: Device,
    precisions: Vec<Precision>,
    models: Vec<Model>,
}

impl Arguments {
    fn parse(arguments: &[String]) -> Result<Self, CommandError> {
        let [folder, options @ ..] = arguments else { return Err(CommandError::Usage(String::new())) };
        let mut parsed = Self {
            folder: folder.into(),
            device: Device::Cpu,
            precisions: vec![Precision::Fp32],
            models: Model::ALL.iter().copied().filter(|model| *model != Model::Empty).collect(),
        };
        for option in options.chunks(2) {
            match option {
                [name, value] => match (name.as_str(), value.as_str()) {
                    ("--device", "cpu") => parsed.device = Device::Cpu,
                    ("--device", "cuda") => parsed.device = Device::Cuda(0),
                    ("--precision", "all") => parsed.precisions = Precision::ALL.to_vec(),
                    ("--precision", precision) => parsed.precisions = vec![precision.parse()?],
                    ("--model", "all") => {}
                    ("--model", model) => parsed.models = vec![model.parse()?],
                    _ => return Err(CommandError::Usage(option.join(" "))),
                },
                _ => return Err(CommandError::Usage(option.join(" "))),
            }
        }
        Ok(parsed)
    }
}

/// Prints a line for each comparison; the exit status is 0 only if all hold.
///
/// # Errors
/// When a comparison can't be made.
pub fn run(arguments: &[String]) -> Result<ExitCode, CommandError> {
    let arguments = Arguments::parse(arguments)?;
    if arguments.device.is_cuda() {
        bridge::load_cuda()?;
    }
    let mut out = io::stdout().lock();
    let mut all_hold = true;
    for model in arguments.models {
        let reference = Reference::load(&arguments.folder, model)?;
        let tasks: &[Task] = if reference.has_training() { &[Task::Infer, Task::Train] } else { &[Task::Infer] };
        for (&precision, &task) in arguments.precisions.iter().flat_map(|p| tasks.iter().map(move |t| (p, t))) {
            for &format in formats(model) {
                let comparisons = reference.compare(task, arguments.device, precision, format)?;
                release(arguments.device)?;
                for comparison in comparisons {
                    let (quantity, error, tolerance) = (comparison.quantity, comparison.error, comparison.tolerance);
                    let verdict = if comparison.holds() { "ok" } else { "FAILED" };
                    all_hold &= comparison.holds();
                    writeln!(
                        out,
                        "{model:<13} {task:<5} {precision} {format:<13} {quantity:<14} {error:9.2e} of {tolerance:.0e} {verdict}"
                    )?;
                }
            }
        }
    }
    Ok(if all_hold { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_read_or_refused() {
        let parse = |text: &str| Arguments::parse(&text.split(' ').map(str::to_owned).collect::<Vec<_>>());
        let parsed = parse("folder --device cuda --precision bf16 --model vit-b-16").unwrap();
        assert_eq!((parsed.device, parsed.models), (Device::Cuda(0), vec![Model::VitB16]));
        assert_eq!(parsed.precisions, [Precision::Bf16]);
        for wrong in ["folder --device", "folder --device tpu", "folder --precision fp64", "folder --model vit"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
