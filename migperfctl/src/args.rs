//! The command line: what can be asked, and what of it can be judged before anything is started.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory as _, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use migperf_core::ids::{GpuUuid, IdError};
use migperf_core::job::JobState;

use crate::exit;
use crate::quick::Quick;
use crate::suite::{Source, SuiteFault};

/// Measures how a GPU should be shared
///
/// migperfctl hands suites to the migperf daemon and shows what it measured. It talks to the migperf service where that is
/// installed; elsewhere it starts a daemon of its own for as long as it is needed, with its state in
/// ~/.local/state/migperf.
#[derive(Debug, Parser)]
#[command(name = "migperfctl", version, after_long_help = exit::HELP, max_term_width = 110)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What goes with every command.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Global {
    /// Run locally with a daemon of your own, even where the service is installed
    #[arg(long, global = true, conflicts_with = "system")]
    pub(crate) local: bool,
    /// Use the migperf service on the system bus, and nothing else
    #[arg(long, global = true)]
    pub(crate) system: bool,
    /// Write JSON to standard output
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Measure a suite, or a one-off, and print the report
    ///
    /// The job belongs to this command: Ctrl-C cancels it and waits for its end, a second Ctrl-C leaves at once. A
    /// progress bar is shown on standard error where that is a terminal, else a line for each finished trial.
    #[command(after_help = RUN_EXAMPLES)]
    Run(Box<RunArgs>),
    /// Queue a suite and return at once
    ///
    /// The job goes on without this command. `watch`, `report` and `cancel` take the number that is printed.
    Submit(SubmitArgs),
    /// List jobs, newest first
    List(ListArgs),
    /// Show where a job stands
    Show(JobArgs),
    /// Follow a job to its end; Ctrl-C stops watching and leaves the job alone
    Watch(JobArgs),
    /// Print a job's report, as far as it has been measured
    ///
    /// A JSON report or an archive in a file is shown without a daemon, on any machine.
    #[command(after_help = REPORT_EXAMPLES)]
    Report(ReportArgs),
    /// Compare two reports: what is the same, what changed, and what can't be told
    ///
    /// Only differences between fresh cohorts decide, so both need repeats. Ends with 8 if something got worse.
    #[command(after_help = COMPARE_EXAMPLES)]
    Compare(CompareArgs),
    /// Write what a job measured, every batch of it, for other programs and other machines
    #[command(after_help = EXPORT_EXAMPLES)]
    Export(ExportArgs),
    /// Read measured tables of others (CSV, as MIGPerf writes them) and say where they contradict themselves
    ///
    /// In a closed loop throughput is batch size over latency. Ends with 6 if a row is off by more than 5 %.
    Import(ImportArgs),
    /// Cancel a job; what it has measured stays
    Cancel(JobArgs),
    /// Say what measuring needs here, what is missing, and what to do about it
    ///
    /// Ends with 5 if something is missing without which nothing can be measured.
    Check,
    /// Show how GPUs are divided into MIG instances, and change it for longer than a job
    ///
    /// Suites need none of it: a job brings about the layouts it measures, and undoes them.
    #[command(subcommand)]
    Layout(LayoutCommand),
    /// Write a completion script for a shell to standard output
    Completions {
        /// The shell
        shell: Shell,
    },
}

const RUN_EXAMPLES: &str = "\
Examples:
  migperfctl run night.toml
  migperfctl run night.toml --plan
  migperfctl run --model resnet50 --task infer --batch 1,8,32 --sharing exclusive,mps --workers 1,4
  migperfctl run --model resnet18 --task train --sharing mps,mps@14,time-slice --workers 7 --window 20s --output result
  migperfctl run --local --model bert-base --sequence-length 128 --device cpu";

const REPORT_EXAMPLES: &str = "\
Examples:
  migperfctl report 12
  migperfctl report 12 --format html -o night.html
  migperfctl report result/report.json --format markdown";

const EXPORT_EXAMPLES: &str = "\
Examples:
  migperfctl export 12 -o night.migperf
  migperfctl report night.migperf --format html -o night.html
  migperfctl export 12 --format co-load -o night";

const COMPARE_EXAMPLES: &str = "\
Examples:
  migperfctl compare 11 12
  migperfctl compare baseline/report.json 12 --format markdown";

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// The suite file; `-` reads standard input
    #[arg(conflicts_with = "quick")]
    suite: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) target: Target,
    /// Only show what would be measured and whether it would be refused
    #[arg(long, conflicts_with_all = ["output", "format"])]
    pub(crate) plan: bool,
    /// Also write report.html, report.txt, report.json and report.csv into this directory, which is made
    #[arg(long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
    /// What the printed report looks like
    #[arg(long, value_enum, value_name = "FORMAT", conflicts_with = "json")]
    pub(crate) format: Option<Format>,
    #[command(flatten)]
    pub(crate) quick: Quick,
}

#[derive(Debug, Args)]
pub(crate) struct SubmitArgs {
    /// The suite file; `-` reads standard input
    pub(crate) suite: PathBuf,
    #[command(flatten)]
    pub(crate) target: Target,
}

/// Where a suite is measured, and with which seed.
#[derive(Debug, Clone, Args)]
pub(crate) struct Target {
    /// What is measured: auto (a GPU if there is one, else the processors), cpu, or a GPU's index or UUID
    #[arg(long, value_name = "DEVICE", default_value_t = Device::Auto)]
    pub(crate) device: Device,
    /// Seed of parameters and inputs, instead of the suite's
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Let MIG instances that are there be destroyed where a layout needs it; at the end they are created anew, with other
    /// UUIDs
    #[arg(long)]
    pub(crate) replace_existing: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LayoutCommand {
    /// Show each GPU's MIG mode, instances, and what it offers
    Show,
    /// Show what `apply` would do; nothing is changed
    ///
    /// Ends with 5 if it would be refused.
    Plan(ChangeArgs),
    /// Bring a GPU to a layout, which stays until `restore`
    #[command(after_help = "Examples:\n  migperfctl layout apply 0 3g+2x1g\n  migperfctl layout apply 0 3g@4+1g@0\n  \
                            migperfctl layout apply 0 off")]
    Apply(ChangeArgs),
    /// Bring a GPU back to what was found before the first `apply`
    Restore {
        /// The GPU's index or UUID
        gpu: GpuName,
    },
}

#[derive(Debug, Args)]
pub(crate) struct ChangeArgs {
    /// The GPU's index or UUID
    pub(crate) gpu: GpuName,
    /// `off`, `empty`, or instances such as `7x1g`, `3g+2g+1g`, `3g@4+1g@0`, `3g(1c+2c)`
    pub(crate) layout: String,
    /// Let instances that are there be destroyed where the layout needs it
    #[arg(long)]
    pub(crate) replace_existing: bool,
}

/// A GPU, by its index or UUID.
#[derive(Debug, Clone)]
pub(crate) struct GpuName(Device);

impl FromStr for GpuName {
    type Err = DeviceError;

    fn from_str(text: &str) -> Result<Self, DeviceError> {
        match text.parse()? {
            device @ (Device::Index(_) | Device::Uuid(_)) => Ok(Self(device)),
            Device::Auto | Device::Cpu => Err(DeviceError::NoGpu(text.to_owned())),
        }
    }
}

impl fmt::Display for GpuName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Only jobs in this state: queued, waiting-for-gpu, running, restoring, done, failed, cancelled, interrupted
    #[arg(long, value_name = "STATE", value_parser = job_state)]
    pub(crate) state: Option<JobState>,
    /// Only your own jobs
    #[arg(long)]
    pub(crate) mine: bool,
    /// List at most this many
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) limit: u32,
}

#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct JobArgs {
    /// The job's number, as `list` shows it
    pub(crate) job: u32,
}

#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// The job's number, as `list` shows it, or a file with a JSON report or an archive
    #[arg(value_name = "JOB|FILE")]
    pub(crate) of: ReportOf,
    /// What the report looks like
    #[arg(long, value_enum, value_name = "FORMAT", conflicts_with = "json")]
    pub(crate) format: Option<Format>,
    /// Write it to this file instead of standard output
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// The job's number, as `list` shows it, or an archive
    #[arg(value_name = "JOB|FILE")]
    pub(crate) of: ReportOf,
    /// What is written
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = ExportFormat::Archive)]
    pub(crate) format: ExportFormat,
    /// The file, or with co-load the directory, that is written
    #[arg(short, long, value_name = "PATH")]
    pub(crate) output: PathBuf,
}

/// What an export looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportFormat {
    /// One file that `report` and `compare` read on any machine
    Archive,
    /// A folder for each worker of each trial, with worker.json and batches.jsonl
    CoLoad,
}

#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// Tables with the columns model_name, batch_size, latency (ms), throughput (items/s) and mig_profile
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct CompareArgs {
    /// The report before: a job's number, or a file with a JSON report or an archive
    #[arg(value_name = "JOB|FILE")]
    pub(crate) before: ReportOf,
    /// The report after
    #[arg(value_name = "JOB|FILE")]
    pub(crate) after: ReportOf,
    /// The least change that matters, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 2.0, value_parser = percent)]
    pub(crate) least_effect: f64,
    /// What the comparison looks like
    #[arg(long, value_enum, value_name = "FORMAT", conflicts_with = "json")]
    pub(crate) format: Option<CompareFormat>,
    /// Write it to this file instead of standard output
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

/// What a comparison looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CompareFormat {
    /// Tables for people
    Text,
    /// For a pull request
    Markdown,
    /// Everything
    Json,
}

fn percent(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').trim_end().parse::<f64>() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent),
        _ => Err(format!("`{text}` is no percentage between 0 and 100")),
    }
}

/// Whose report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ReportOf {
    /// A job of the daemon.
    Job(u32),
    /// A JSON report or an archive.
    File(PathBuf),
}

impl FromStr for ReportOf {
    type Err = String;

    /// Digits are a job; a file of such a name is reached by `./12`.
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "" => Err("an empty name is neither a job nor a file".to_owned()),
            _ if text.bytes().all(|byte| byte.is_ascii_digit()) => {
                text.parse().map(Self::Job).map_err(|_| format!("{text} is too large for a job's number"))
            }
            _ => Ok(Self::File(text.into())),
        }
    }
}

impl fmt::Display for ReportOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Job(job) => write!(f, "job {job}"),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

/// What a report looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Tables for people
    Text,
    /// Everything, in the documented versioned form
    Json,
    /// One line for each member of each trial
    Csv,
    /// One page with plots, for a browser; it loads nothing
    Html,
    /// Tables for issues, wikis and pull requests
    Markdown,
    /// JSON with the six metrics of the MIGPerf evaluation under its names and units
    MigperfEval,
}

impl Format {
    /// The format that was asked for, by either of the two ways to ask.
    pub(crate) fn asked(format: Option<Self>, json: bool) -> Self {
        format.unwrap_or(if json { Self::Json } else { Self::Text })
    }
}

/// What is measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Device {
    Auto,
    Cpu,
    Index(u32),
    Uuid(GpuUuid),
}

/// Why a text names no device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DeviceError {
    #[error(transparent)]
    Uuid(IdError),
    #[error("a MIG instance is not measured by itself; name its GPU, and the instance with --sharing mig:PROFILE")]
    Mig,
    #[error("`{0}` is none of auto, cpu, a GPU's index such as 0, or its UUID (GPU-...)")]
    Unknown(String),
    #[error("`{0}` is no GPU; name one by its index such as 0, or its UUID (GPU-...)")]
    NoGpu(String),
}

impl FromStr for Device {
    type Err = DeviceError;

    fn from_str(text: &str) -> Result<Self, DeviceError> {
        match text {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            _ if text.starts_with("MIG-") => Err(DeviceError::Mig),
            _ if text.starts_with("GPU-") => text.parse().map(Self::Uuid).map_err(DeviceError::Uuid),
            _ => text.parse().map(Self::Index).map_err(|_| DeviceError::Unknown(text.to_owned())),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Index(index) => index.fmt(f),
            Self::Uuid(uuid) => uuid.fmt(f),
        }
    }
}

fn job_state(text: &str) -> Result<JobState, String> {
    JobState::from_name(text).ok_or_else(|| {
        let known: Vec<&str> = JobState::ALL.iter().map(|state| state.name()).collect();
        format!("`{text}` is no state of a job; one of {}", known.join(", "))
    })
}

/// What a command line that is well formed asks to be measured, or why it does not.
#[derive(Debug)]
pub(crate) enum RunSource {
    /// A suite file.
    Suite(Source),
    /// A one-off, and its suite as it is for either target.
    Options(Source),
    Misused(clap::Error),
}

impl RunArgs {
    /// The suite that is to be measured.
    pub(crate) fn source(&self) -> Result<RunSource, SuiteFault> {
        let misused = |kind, text: String| {
            let mut command = Cli::command();
            command.build();
            match command.find_subcommand_mut("run") {
                Some(run) => RunSource::Misused(run.error(kind, text)),
                None => RunSource::Misused(command.error(kind, text)),
            }
        };
        if let Some(path) = &self.suite {
            return Source::read(path).map(RunSource::Suite);
        }
        if self.quick.models.is_empty() {
            let text = "name a suite file, or a model for a one-off: migperfctl run --model resnet18";
            return Ok(misused(ErrorKind::MissingRequiredArgument, text.to_owned()));
        }
        match self.quick.check() {
            Ok(()) => Source::of_options(&self.quick, None).map(RunSource::Options),
            Err(error) => Ok(misused(ErrorKind::ArgumentConflict, error.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(std::iter::once("migperfctl").chain(line.split_whitespace()))
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn good_lines_are_read() {
        for line in [
            "run night.toml",
            "run - --plan --json",
            "run night.toml --device 0 --seed 7 --output result --format csv",
            "run night.toml --device 0 --replace-existing",
            "run --local --model resnet18",
            "run --model resnet18,vit-b-16 --task infer,train --batch 1,8 --precision bf16 --workers 1,4 --plan",
            "submit night.toml --device GPU-5ebe9c2f-a33f-4a4c-bb17-7d1f4c1c4d3e",
            "list --state running --mine --limit 5",
            "--json list",
            "show 7",
            "watch 7 --system",
            "report 7 --format csv --output x.csv",
            "report result/report.json --format html -o x.html",
            "compare 7 before.json --format markdown --least-effect 5%",
            "export 7 -o x.migperf",
            "export x.migperf --format co-load -o x",
            "cancel 7",
            "check",
            "layout show --json",
            "layout plan 0 3g+2x1g",
            "layout apply GPU-5ebe9c2f-a33f-4a4c-bb17-7d1f4c1c4d3e off --replace-existing",
            "layout restore 0",
            "completions bash",
        ] {
            parse(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }

    #[test]
    fn bad_lines_say_what_is_wrong() {
        for (line, expected) in [
            ("", "Usage: migperfctl"),
            ("measure", "unrecognized subcommand"),
            ("run night.toml --model resnet18", "cannot be used with"),
            ("run night.toml --batch 8", "cannot be used with"),
            ("run --batch 8", "--model <MODEL>"),
            ("run night.toml --plan --output x", "cannot be used with"),
            ("run night.toml --json --format csv", "cannot be used with"),
            ("run night.toml --local --system", "cannot be used with"),
            ("run night.toml --device gpu0", "a GPU's index such as 0"),
            ("run night.toml --device GPU-12", "is not a GPU UUID"),
            ("run night.toml --device MIG-5ebe9c2f-a33f-4a4c-bb17-7d1f4c1c4d3e", "--sharing mig:PROFILE"),
            ("run night.toml --seed -1", "unexpected argument"),
            ("list --state finished", "one of queued, waiting-for-gpu"),
            ("list --limit 0", "0 is not in 1.."),
            ("show", "<JOB>"),
            ("show last", "invalid digit"),
            ("report 7 --format pdf", "[possible values: text, json, csv, html, markdown, migperf-eval]"),
            ("compare 7", "<JOB|FILE>"),
            ("compare 7 8 --least-effect much", "no percentage"),
            ("report 99999999999", "too large for a job's number"),
            ("layout restore cpu", "`cpu` is no GPU"),
            ("layout apply 0", "<LAYOUT>"),
        ] {
            let message = parse(line).map(|cli| panic!("{line}: {cli:?}")).unwrap_err().to_string();
            assert!(message.contains(expected), "{line}: {message}");
        }
    }

    #[test]
    fn run_without_anything_to_measure_is_misuse() {
        for (line, expected) in [
            ("run", "name a suite file, or a model"),
            ("run --model resnet18 --sharing exclusive --workers 2", "--sharing time-slice"),
        ] {
            let Command::Run(run) = parse(line).unwrap().command else { panic!("{line}") };
            let RunSource::Misused(error) = run.source().unwrap() else { panic!("{line}") };
            assert!(error.to_string().contains(expected), "{line}: {error}");
            assert_eq!(error.exit_code(), 2);
        }
    }
}
