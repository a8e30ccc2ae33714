//! Finds the libtorch that workers load: the daemon looks, because a worker without it dies before its first line.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The one version that the worker's bindings go with.
pub const VERSION: &str = "2.11.0";

/// What to do where none is found.
pub const REMEDY: &str = "install PyTorch 2.11.0 for python3 (`pip install torch==2.11.0`), or name its folder of \
                          libraries with MIGPERF_LIBTORCH";

/// A usable libtorch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Libtorch {
    /// The folder that holds `libtorch_cpu.so`.
    pub folder: PathBuf,
    /// Its version, with the build's suffix where there is one: `2.11.0+cu130`.
    pub version: String,
}

impl Libtorch {
    /// Whether it can use a GPU: its CUDA half is there.
    #[must_use]
    pub fn has_cuda(&self) -> bool {
        self.folder.join("libtorch_cuda.so").exists()
    }
}

/// Why a place has no usable libtorch.
#[derive(Debug, thiserror::Error)]
pub enum LibtorchError {
    /// The library is not there.
    #[error("{0} holds no libtorch_cpu.so")]
    Missing(PathBuf),
    /// Its version can't be told.
    #[error(
        "the version of the libtorch in {0} can't be told: neither torch/version.py nor build-version is beside it"
    )]
    NoVersion(PathBuf),
    /// Another version.
    #[error("{folder} holds libtorch {found}, and the worker needs {VERSION}")]
    Version {
        /// Where.
        folder: PathBuf,
        /// What.
        found: String,
    },
    /// Nothing found anywhere.
    #[error("no PyTorch {VERSION} was found ({})", .0.join("; "))]
    Nowhere(Vec<String>),
}

/// Looks at the named folder if there is one, else where the machine's `python3` has its torch.
///
/// # Errors
/// If the named folder is not usable (nothing else is tried then), or nothing is.
pub fn find(named: Option<&Path>) -> Result<Libtorch, LibtorchError> {
    if let Some(folder) = named {
        return inspect(folder);
    }
    let mut tried = Vec::new();
    for python in ["python3", "/opt/migperf/venv/bin/python3"] {
        match ask_python(python) {
            Ok(folder) => match inspect(&folder) {
                Ok(found) => return Ok(found),
                Err(error) => tried.push(error.to_string()),
            },
            Err(reason) => tried.push(format!("{python}: {reason}")),
        }
    }
    Err(LibtorchError::Nowhere(tried))
}

/// Checks a folder of libraries, or a torch package above one.
fn inspect(named: &Path) -> Result<Libtorch, LibtorchError> {
    let candidates = [named.to_path_buf(), named.join("lib"), named.join("torch/lib")];
    let folder = candidates.into_iter().find(|folder| folder.join("libtorch_cpu.so").exists());
    let folder = folder.ok_or_else(|| LibtorchError::Missing(named.to_path_buf()))?;
    // Links would hide the libraries that lie beside the real one.
    let real = folder.join("libtorch_cpu.so").canonicalize().ok().and_then(|file| file.parent().map(Path::to_path_buf));
    let folder = real.unwrap_or(folder);
    let version = version_beside(&folder).ok_or_else(|| LibtorchError::NoVersion(folder.clone()))?;
    if version.split('+').next() == Some(VERSION) {
        Ok(Libtorch { folder, version })
    } else {
        Err(LibtorchError::Version { folder, found: version })
    }
}

/// The version that `torch/version.py` (a PyTorch package) or `build-version` (a libtorch archive) tells.
fn version_beside(folder: &Path) -> Option<String> {
    let above = folder.parent()?;
    if let Ok(text) = std::fs::read_to_string(above.join("version.py")) {
        let line = text.lines().find_map(|line| line.strip_prefix("__version__ = "))?;
        return Some(line.trim().trim_matches(['\'', '"']).to_owned());
    }
    std::fs::read_to_string(above.join("build-version")).ok().map(|text| text.trim().to_owned())
}

/// Asks a Python where its torch is, without importing it.
fn ask_python(python: &str) -> Result<PathBuf, String> {
    let script =
        "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')";
    let output = Command::new(python).args(["-c", script]).output().map_err(|error| error.to_string())?;
    match String::from_utf8_lossy(&output.stdout).trim() {
        "" => Err("it has no torch".to_owned()),
        folder => Ok(PathBuf::from(folder).join("lib")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(version: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let torch = root.path().join("torch");
        std::fs::create_dir_all(torch.join("lib")).unwrap();
        std::fs::write(torch.join("lib/libtorch_cpu.so"), "").unwrap();
        std::fs::write(torch.join("version.py"), format!("from typing import Optional\n__version__ = '{version}'\n"))
            .unwrap();
        root
    }

    #[test]
    fn a_package_is_found_from_any_of_its_folders() {
        let root = package("2.11.0+cu130");
        for named in ["", "torch", "torch/lib"] {
            let found = find(Some(&root.path().join(named))).unwrap();
            assert_eq!(found.version, "2.11.0+cu130");
            assert!(found.folder.ends_with("torch/lib"));
            assert!(!found.has_cuda());
        }
    }

    #[test]
    fn what_can_not_be_used_is_named() {
        let root = package("2.10.1");
        let message = find(Some(root.path())).unwrap_err().to_string();
        assert!(message.ends_with("holds libtorch 2.10.1, and the worker needs 2.11.0"), "{message}");
        std::fs::remove_file(root.path().join("torch/version.py")).unwrap();
        assert!(matches!(find(Some(root.path())), Err(LibtorchError::NoVersion(_))));
        assert!(matches!(find(Some(Path::new("/nonexistent"))), Err(LibtorchError::Missing(_))));
    }
}
