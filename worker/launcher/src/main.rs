//! `migperf-worker`: becomes a worker, or another program that must not outlive its daemon.
//!
//! It reads exactly one frame (`launch`) from the connection on its standard input, binds its life to the daemon's,
//! confines itself to the named processors, sets the environment and executes the named program, which goes on with the
//! same connection. It links neither libtorch nor CUDA: a library that is missing there fails the program it executes,
//! where the daemon can see it.

use std::convert::Infallible;
use std::ffi::CString;
use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStringExt as _;
use std::process::ExitCode;

use migperf_core::chain::chain;
use migperf_core::worker_wire::{Decoder, FailureKind, Frame, FromWorker, Launch, PROTOCOL, ToWorker, encode, missing};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, execve, getppid};

/// Variables that change how CUDA, MPS, libtorch or its thread pools behave: only those that the launch names remain.
const STEERING: [&str; 13] = [
    "CUDA_", "CUDNN_", "CUBLAS_", "NVIDIA_", "MIGPERF_", "TORCH_", "PYTORCH_", "ATEN_", "OMP_", "GOMP_", "KMP_",
    "MKL_", "LD_",
];

const USAGE: &str = "migperf-worker is started by migperfd, with a connection as its standard input.
       migperf-worker --bound PARENT PROGRAM [ARGUMENT...]   executes a program that ends with its parent, PARENT";

/// Why nothing could be executed.
#[derive(Debug, thiserror::Error)]
enum LaunchError {
    #[error("{USAGE}")]
    Usage,
    #[error("can't read the launch from the connection")]
    Read(#[source] std::io::Error),
    #[error("the connection does not begin with a launch")]
    Frame(#[source] migperf_core::worker_wire::WireError),
    #[error("the connection does not begin with a launch")]
    NoLaunch,
    #[error("the daemon speaks version {0} of the protocol, this worker {PROTOCOL}; install both from one release")]
    Version(u32),
    #[error("the process that started this one has ended")]
    Orphan,
    #[error("a text holds a NUL byte")]
    Nul(#[from] std::ffi::NulError),
    #[error("can't bind to the parent's life")]
    Bind(#[source] nix::Error),
    #[error("can't run on processors {0:?}")]
    Processors(Vec<u32>, #[source] nix::Error),
    #[error("can't execute {0}")]
    Execute(String, #[source] nix::Error),
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.split_first() {
        None => launch(),
        Some((first, rest)) if first == "--bound" => bound(rest),
        Some(_) => Err(LaunchError::Usage),
    };
    let Err(error) = outcome;
    eprintln!("migperf-worker: {}", chain(&error));
    if let (true, Ok(frame)) = (arguments.is_empty(), encode(&failure(&error))) {
        // Nobody may be listening any more, and then nobody misses it.
        let _ = connection().and_then(|mut connection| connection.write_all(&frame));
    }
    ExitCode::FAILURE
}

fn failure(error: &LaunchError) -> FromWorker {
    FromWorker::Failed { kind: FailureKind::Unsupported, message: chain(error) }
}

/// Reads the launch and becomes what it says.
fn launch() -> Result<Infallible, LaunchError> {
    let launch = read_launch()?;
    if launch.protocol != PROTOCOL {
        return Err(LaunchError::Version(launch.protocol));
    }
    if let Some(parent) = launch.parent {
        bind_to(parent)?;
    }
    if !launch.processors.is_empty() {
        let error = |source| LaunchError::Processors(launch.processors.clone(), source);
        let mut set = CpuSet::new();
        for processor in &launch.processors {
            set.set(*processor as usize).map_err(error)?;
        }
        sched_setaffinity(Pid::from_raw(0), &set).map_err(error)?;
    }
    let kept = std::env::vars_os()
        .filter(|(name, _)| !STEERING.iter().any(|prefix| name.as_encoded_bytes().starts_with(prefix.as_bytes())))
        .map(|(mut name, value)| {
            name.push("=");
            name.push(value);
            name.into_vec()
        });
    let named = launch.environment.iter().map(|(name, value)| format!("{name}={value}").into_bytes());
    let environment = kept.chain(named).map(CString::new).collect::<Result<Vec<_>, _>>()?;
    execute(&launch.program, &[&launch.program], &environment)
}

/// Executes a program that ends with its parent; environment and descriptors stay as they are.
fn bound(arguments: &[String]) -> Result<Infallible, LaunchError> {
    let [parent, command @ ..] = arguments else { return Err(LaunchError::Usage) };
    let (Ok(parent), Some(program)) = (parent.parse(), command.first()) else { return Err(LaunchError::Usage) };
    bind_to(parent)?;
    let environment = std::env::vars_os()
        .map(|(mut name, value)| {
            name.push("=");
            name.push(value);
            CString::new(name.into_vec())
        })
        .collect::<Result<Vec<_>, _>>()?;
    execute(program, command, &environment)
}

fn execute<S: AsRef<str>>(program: &str, arguments: &[S], environment: &[CString]) -> Result<Infallible, LaunchError> {
    let path = CString::new(program)?;
    let arguments = arguments.iter().map(|text| CString::new(text.as_ref())).collect::<Result<Vec<_>, _>>()?;
    execve(&path, &arguments, environment).map_err(|source| LaunchError::Execute(program.to_owned(), source))
}

/// Asks the kernel to kill this process when its parent ends, and ends it now if the parent already has.
fn bind_to(parent: u32) -> Result<(), LaunchError> {
    set_pdeathsig(Signal::SIGKILL).map_err(LaunchError::Bind)?;
    let expected = i32::try_from(parent).map(Pid::from_raw);
    if expected == Ok(getppid()) { Ok(()) } else { Err(LaunchError::Orphan) }
}

/// Reads one frame and not a byte more: the rest of the connection is the program's.
fn read_launch() -> Result<Launch, LaunchError> {
    let mut connection = connection().map_err(LaunchError::Read)?;
    let mut bytes = Vec::new();
    loop {
        let wanted = missing(&bytes).map_err(LaunchError::Frame)?;
        if wanted == 0 {
            break;
        }
        let held = bytes.len();
        bytes.resize(held + wanted, 0);
        connection.read_exact(&mut bytes[held..]).map_err(LaunchError::Read)?;
    }
    let mut decoder = Decoder::default();
    decoder.push(&bytes);
    match decoder.next_frame().map_err(LaunchError::Frame)? {
        Some(Frame::Message(ToWorker::Launch(launch))) => Ok(launch),
        _ => Err(LaunchError::NoLaunch),
    }
}

/// The connection on standard input, without the buffer that `Stdin` would fill.
fn connection() -> std::io::Result<std::fs::File> {
    Ok(std::io::stdin().as_fd().try_clone_to_owned()?.into())
}
