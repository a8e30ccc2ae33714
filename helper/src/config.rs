//! The helper's configuration: the only source of paths that root executes or loads.
//!
//! A strict TOML file, `/etc/migperf/helper.toml` unless `--config` names another. It, every file it names and every
//! folder on the way must be root's and not writable by others; see docs/helper.md.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

/// Where the configuration is looked for.
pub const DEFAULT: &str = "/etc/migperf/helper.toml";

/// Why the configuration can't be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A file can't be read or is not there.
    #[error("can't read {0}")]
    Read(PathBuf, #[source] io::Error),
    /// It is not TOML, or has keys that don't exist.
    #[error("{0} is not a configuration of the helper")]
    Malformed(PathBuf, #[source] Box<toml::de::Error>),
    /// Somebody but root could change what root would execute or load.
    #[error("{0} belongs to user {1}: what the helper reads, loads or executes must be root's; `chown root` it")]
    NotRoots(PathBuf, u32),
    /// Likewise.
    #[error("{0} can be written by others than its owner: `chmod go-w` it")]
    Writable(PathBuf),
    /// A relative path.
    #[error("{0} is not an absolute path")]
    Relative(PathBuf),
}

/// Everything that can be configured.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Config {
    /// NVML, if not where the dynamic loader finds it.
    pub nvml: Option<PathBuf>,
    /// The MPS control program.
    pub mps_control: PathBuf,
    /// The program that binds another's life to the helper's.
    pub launcher: PathBuf,
    /// Where the ledger is kept.
    pub state_directory: PathBuf,
    /// Where MPS daemons have their pipes and logs.
    pub runtime_directory: PathBuf,
    /// Where the driver's device files are.
    pub device_directory: PathBuf,
    /// Where the driver describes its capabilities.
    pub capabilities_directory: PathBuf,
    /// Where the kernel lists the numbers of its drivers.
    pub device_numbers: PathBuf,
    /// Where the kernel tells which boot this is.
    pub boot_id: PathBuf,
    /// A file whose text, or a directory whose number, changes when the driver is loaded again.
    pub driver_identity: PathBuf,
    /// How long one call to the driver may take.
    pub call_limit_seconds: u64,
    /// How long instances that are still in use may take to be free on the way back.
    pub release_limit_seconds: u64,
    /// After how long without anything to do the helper on the system bus ends.
    pub idle_exit_seconds: u64,
    /// What runs around a GPU's repartitioning.
    pub hooks: HooksConfig,
}

/// Hooks.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct HooksConfig {
    /// Before a GPU's first change; unless it succeeds nothing is changed.
    pub acquire: Option<PathBuf>,
    /// After the GPU is as it was found.
    pub release: Option<PathBuf>,
    /// How long each may take.
    pub limit_seconds: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            nvml: None,
            mps_control: "/usr/bin/nvidia-cuda-mps-control".into(),
            launcher: "/usr/lib/migperf/migperf-worker".into(),
            state_directory: "/var/lib/migperf-helper".into(),
            runtime_directory: "/run/migperf-helper".into(),
            device_directory: "/dev".into(),
            capabilities_directory: "/proc/driver/nvidia/capabilities".into(),
            device_numbers: "/proc/devices".into(),
            boot_id: "/proc/sys/kernel/random/boot_id".into(),
            driver_identity: "/sys/module/nvidia".into(),
            call_limit_seconds: 60,
            release_limit_seconds: 60,
            idle_exit_seconds: 60,
            hooks: HooksConfig::default(),
        }
    }
}

impl Default for HooksConfig {
    fn default() -> Self {
        Self { acquire: None, release: None, limit_seconds: 300 }
    }
}

impl Config {
    /// Reads the named file, or the default one, which need not exist.
    ///
    /// # Errors
    /// If it can't be read, is wrong, or somebody but root could have written it or a file that it names.
    pub fn read(named: Option<&Path>) -> Result<Self, ConfigError> {
        let path = named.unwrap_or(Path::new(DEFAULT));
        let text = match std::fs::read_to_string(path) {
            Err(error) if named.is_none() && error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            text => text.map_err(|error| ConfigError::Read(path.to_owned(), error))?,
        };
        trusted(path)?;
        let config: Self =
            toml::from_str(&text).map_err(|error| ConfigError::Malformed(path.to_owned(), Box::new(error)))?;
        let hooks = [&config.hooks.acquire, &config.hooks.release];
        for loaded in hooks.into_iter().chain([&config.nvml]).flatten() {
            trusted(loaded)?;
        }
        Ok(config)
    }

    /// How long one call may take.
    #[must_use]
    pub fn call_limit(&self) -> Duration {
        Duration::from_secs(self.call_limit_seconds)
    }
}

/// Makes sure that a file, with every folder on the way to it, is root's (or of the user that runs this, who is root but
/// in tests) and can't be written by others. A folder that anybody may write into but not take from (`/tmp`) is on
/// nobody's side, and so allowed.
///
/// # Errors
/// If it isn't, or isn't there.
pub fn trusted(path: &Path) -> Result<(), ConfigError> {
    if !path.is_absolute() {
        return Err(ConfigError::Relative(path.to_owned()));
    }
    let real = std::fs::canonicalize(path).map_err(|error| ConfigError::Read(path.to_owned(), error))?;
    let own = nix::unistd::geteuid().as_raw();
    for part in path.ancestors().chain(real.ancestors()) {
        let found = std::fs::symlink_metadata(part).map_err(|error| ConfigError::Read(part.to_owned(), error))?;
        if found.uid() != 0 && found.uid() != own {
            return Err(ConfigError::NotRoots(part.to_owned(), found.uid()));
        }
        let sticky = found.is_dir() && found.mode() & 0o1000 != 0;
        if found.mode() & 0o022 != 0 && !found.is_symlink() && !sticky {
            return Err(ConfigError::Writable(part.to_owned()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn unknown_keys_and_files_of_others_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("helper.toml");
        std::fs::write(&path, "idle-exit-seconds = 5\n[hooks]\nlimit-seconds = 7\n").unwrap();
        let config = Config::read(Some(&path)).unwrap();
        assert_eq!((config.idle_exit_seconds, config.hooks.limit_seconds), (5, 7));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
        assert!(matches!(Config::read(Some(&path)), Err(ConfigError::Writable(_))));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::write(&path, "idle-exit = 5\n").unwrap();
        assert!(matches!(Config::read(Some(&path)), Err(ConfigError::Malformed(..))));
        let hook = folder.path().join("hook");
        std::fs::write(&hook, "").unwrap();
        std::fs::set_permissions(&hook, std::fs::Permissions::from_mode(0o777)).unwrap();
        std::fs::write(&path, format!("[hooks]\nacquire = \"{}\"\n", hook.display())).unwrap();
        assert!(matches!(Config::read(Some(&path)), Err(ConfigError::Writable(wrong)) if wrong == hook));
        assert!(matches!(Config::read(Some(Path::new("/nonexistent"))), Err(ConfigError::Read(..))));
    }
}
