//! NVIDIA's Python client of NVML, with which the simulated library is tried: fetched once by pip, by version and hash.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::process;
use crate::workspace::Workspace;

/// The variable by which the tests find it.
pub(crate) const VARIABLE: &str = "MIGPERF_NVIDIA_ML_PY";

/// What is fetched, as pip's requirements say it.
const REQUIREMENT: &str = "nvidia-ml-py==13.615.71 \\\n    \
                           --hash=sha256:959bf4adf6fe1308e4bd739e722236b0d1ec8392e2cefad33ff70c311380b9b6\n";

/// The folder that holds the package, fetching it first where it isn't there.
///
/// # Errors
/// When pip can't fetch it, or fetched something else.
pub(crate) fn client(workspace: &Workspace) -> Result<PathBuf> {
    let folder = workspace.target.join("nvidia-ml-py");
    let stamp = folder.join("requirement");
    if fs::read_to_string(&stamp).is_ok_and(|found| found == REQUIREMENT) {
        return Ok(folder);
    }
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("{} can't be removed", folder.display()))?;
    }
    fs::create_dir_all(&folder)?;
    let wanted = folder.join("wanted.txt");
    fs::write(&wanted, REQUIREMENT)?;
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes"]);
    pip.arg("--target").arg(&folder).arg("--requirement").arg(&wanted);
    process::run(&mut pip).context("pip could not fetch nvidia-ml-py")?;
    fs::rename(&wanted, &stamp)?;
    Ok(folder)
}
