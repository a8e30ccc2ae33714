//! What goes wrong on purpose: a plan that names the n-th call of a function and what happens then, and a record of all calls.
//!
//! ```json
//! [ { "function": "nvmlGpuInstanceDestroy", "nth": 2, "effect": { "code": 19 } } ]
//! ```
//! The plan is the file that `NVML_SIM_FAULTS` names; calls are counted over all processes, in a file beside it that removing
//! starts anew. `NVML_SIM_CALLS` names a file to which each call adds a line: process and function.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

/// The variable that names the plan.
pub const FAULTS: &str = "NVML_SIM_FAULTS";
/// The variable that names the record of calls.
pub const CALLS: &str = "NVML_SIM_CALLS";

/// A fault of one call, or of all calls of a function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Fault {
    /// Such as `nvmlGpuInstanceDestroy`; `*` is every function, counted together.
    pub function: String,
    /// Which call, from 1; each, if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nth: Option<u64>,
    /// What happens.
    pub effect: Effect,
}

/// What happens instead of, or around, a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Effect {
    /// It answers with this code and does nothing.
    Code(u32),
    /// It does not return for so many milliseconds, then goes on; never, if 0.
    HangMs(u64),
    /// Its process is killed before it does anything.
    KillBefore,
    /// Its process is killed after it did everything.
    KillAfter,
    /// It reports success and does nothing.
    Nothing,
}

/// Writes a plan, and counts from the start.
///
/// # Errors
/// If the file cannot be written.
pub fn write(path: &Path, plan: &[Fault]) -> io::Result<()> {
    match fs::remove_file(counts(path)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    fs::write(path, serde_json::to_vec(plan)?)
}

/// The functions that were called, in order, with their processes.
///
/// # Errors
/// If the record cannot be read.
pub fn calls(path: &Path) -> io::Result<Vec<(u32, String)>> {
    let text = fs::read_to_string(path)?;
    let line = |line: &str| {
        let (pid, function) = line.split_once(' ')?;
        Some((pid.parse().ok()?, function.to_owned()))
    };
    Ok(text.lines().filter_map(line).collect())
}

fn counts(plan: &Path) -> PathBuf {
    plan.with_extension("counts")
}

/// Counts a call; what is planned for it.
///
/// # Errors
/// If a file that the environment names cannot be used.
pub fn enter(function: &str) -> io::Result<Option<Effect>> {
    let named = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(path) = named(CALLS) {
        let mut file = File::options().create(true).append(true).open(path)?;
        file.write_all(format!("{} {function}\n", std::process::id()).as_bytes())?;
    }
    let Some(path) = named(FAULTS).filter(|path| path.exists()) else { return Ok(None) };
    let plan: Vec<Fault> = serde_json::from_slice(&fs::read(&path)?)?;
    let file = File::options().create(true).truncate(false).read(true).write(true).open(counts(&path))?;
    let mut file = Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, errno)| io::Error::from(errno))?;
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    let mut counted: BTreeMap<String, u64> =
        if text.is_empty() { BTreeMap::new() } else { serde_json::from_str(&text)? };
    for name in [function, "*"] {
        *counted.entry(name.to_owned()).or_default() += 1;
    }
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(&serde_json::to_vec(&counted)?)?;
    let is_planned = |fault: &&Fault| {
        let name = fault.function.as_str();
        (name == function || name == "*") && fault.nth.is_none_or(|nth| counted.get(name) == Some(&nth))
    };
    Ok(plan.iter().find(is_planned).map(|fault| fault.effect))
}
