//! Programs of the administrator that run around a GPU's repartitioning: a scheduler is told to keep away, and to come
//! back. They come from the configuration alone, get a fresh environment, and have a time limit.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use migperf_gpu::layout::Division;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::config::{ConfigError, trusted};

/// Why a hook did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum HookError {
    /// Somebody but root could have written it.
    #[error(transparent)]
    Untrusted(#[from] ConfigError),
    /// It can't be executed.
    #[error("the hook {0} can't be executed")]
    Start(PathBuf, #[source] io::Error),
    /// It says no.
    #[error("the hook {0} failed: {1}")]
    Failed(PathBuf, std::process::ExitStatus),
    /// It took too long and was killed.
    #[error("the hook {0} did not end within {1:?}")]
    TimedOut(PathBuf, Duration),
}

/// Runs a hook for a GPU.
///
/// # Errors
/// If it can't be run, fails, or takes too long.
pub fn run(hook: &Path, verb: &str, gpu: &Division, limit: Duration) -> Result<(), HookError> {
    trusted(hook)?;
    let mut command = Command::new(hook);
    command
        .arg(verb)
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("MIGPERF_GPU_UUID", gpu.gpu.as_str())
        .env("MIGPERF_GPU_INDEX", gpu.index.to_string())
        .stdin(Stdio::null())
        // What it says goes where the helper's own log goes; the helper's standard output may be a protocol's.
        .stdout(io::stderr())
        .process_group(0);
    let mut child = command.spawn().map_err(|error| HookError::Start(hook.to_owned(), error))?;
    let deadline = Instant::now() + limit;
    loop {
        match child.try_wait().map_err(|error| HookError::Start(hook.to_owned(), error))? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => return Err(HookError::Failed(hook.to_owned(), status)),
            None if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(10)),
            None => {
                if let Ok(group) = i32::try_from(child.id()) {
                    // It may end right now, and then needs no signal.
                    let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
                }
                let _ = child.wait();
                return Err(HookError::TimedOut(hook.to_owned(), limit));
            }
        }
    }
}
