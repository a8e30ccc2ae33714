//! What the daemon is told about its machine: where programs, libraries and state are.
//!
//! In local mode all of it is the caller's own to say, through arguments and `MIGPERF_*` variables.

use std::path::{Path, PathBuf};

use clap::Parser;

/// The command line of `migperfd`.
#[derive(Debug, Parser)]
#[command(version, about = "Measures how GPUs are best shared: the daemon behind migperfctl")]
pub struct Arguments {
    /// Serve the client on standard input, peer-to-peer, instead of a bus
    #[arg(long, required = true)]
    pub peer: bool,
    /// Where jobs and their results are kept
    #[arg(long, env = "MIGPERF_STATE_DIRECTORY", value_name = "DIR")]
    pub state_directory: PathBuf,
    /// Where migperf-worker, migperf-worker-torch and migperf-helper are [default: beside this program]
    #[arg(long, env = "MIGPERF_BIN_DIR", value_name = "DIR")]
    pub programs: Option<PathBuf>,
    /// The folder of PyTorch's or libtorch's libraries [default: that of the machine's python3]
    #[arg(long, env = "MIGPERF_LIBTORCH", value_name = "DIR")]
    pub libtorch: Option<PathBuf>,
    /// The NVML library [default: libnvidia-ml.so.1, wherever the dynamic loader finds it]
    #[arg(long, env = "MIGPERF_NVML", value_name = "FILE")]
    pub nvml: Option<PathBuf>,
    /// A folder whose libcuda.so.1 workers load instead of the system's
    #[arg(long, env = "MIGPERF_CUDA_DIRECTORY", value_name = "DIR")]
    pub cuda_directory: Option<PathBuf>,
    /// The MPS control program [default: nvidia-cuda-mps-control in PATH]
    #[arg(long, env = "MIGPERF_MPS_CONTROL", value_name = "FILE")]
    pub mps_control: Option<PathBuf>,
    /// The configuration of the root helper, where root runs this daemon [default: the helper's own]
    #[arg(long, env = "MIGPERF_HELPER_CONFIG", value_name = "FILE")]
    pub helper_config: Option<PathBuf>,
}

/// Where everything is.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Jobs and their results.
    pub state: PathBuf,
    /// The folder of migperf's programs.
    pub programs: PathBuf,
    /// The launcher that becomes a worker.
    pub launcher: PathBuf,
    /// The worker that links libtorch.
    pub worker: PathBuf,
    /// The folder of libtorch, if one was named.
    pub libtorch: Option<PathBuf>,
    /// The NVML library, if one was named.
    pub nvml: Option<PathBuf>,
    /// A folder with another libcuda.so.1, if one was named.
    pub cuda_directory: Option<PathBuf>,
    /// The MPS control program, if there is one.
    pub mps_control: Option<PathBuf>,
    /// The root helper's configuration, if one was named.
    pub helper_config: Option<PathBuf>,
}

/// Why the settings can't be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// This program does not know where it is.
    #[error("can't tell where this program lies; name the folder of the workers with --programs")]
    OwnPath(#[source] std::io::Error),
    /// A text is no path that a worker could be given.
    #[error("{0} is not valid UTF-8")]
    NotText(PathBuf),
}

impl Settings {
    /// From the command line and the environment.
    ///
    /// # Errors
    /// If the folder of the programs can't be told, or a path is not text.
    pub fn from_arguments(arguments: Arguments) -> Result<Self, SettingsError> {
        let programs = match arguments.programs {
            Some(folder) => folder,
            None => {
                let own = std::env::current_exe().map_err(SettingsError::OwnPath)?;
                own.parent().map(Path::to_path_buf).unwrap_or_default()
            }
        };
        let mps_control = arguments.mps_control.or_else(|| in_path("nvidia-cuda-mps-control"));
        let settings = Self {
            state: arguments.state_directory,
            launcher: programs.join("migperf-worker"),
            worker: programs.join("migperf-worker-torch"),
            libtorch: arguments.libtorch,
            nvml: arguments.nvml,
            cuda_directory: arguments.cuda_directory,
            mps_control,
            helper_config: arguments.helper_config,
            programs,
        };
        let paths = [Some(&settings.worker), settings.cuda_directory.as_ref(), settings.libtorch.as_ref()];
        let odd = paths.into_iter().flatten().find(|path| path.to_str().is_none()).cloned();
        odd.map_or(Ok(settings), |path| Err(SettingsError::NotText(path)))
    }
}

/// A program of the search path.
fn in_path(program: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?).map(|folder| folder.join(program)).find(|file| file.is_file())
}
