//! An installed PyTorch: where it is and whether it is the version that the worker is built for. It is never imported.

use std::fs;
use std::path::{self, Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::process;
use crate::torch::PAIR;

/// A PyTorch of the right version, with headers and libraries.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Package {
    /// The package's folder, `.../site-packages/torch`, without symbolic links in its path.
    pub(crate) folder: PathBuf,
}

/// Asks for the package's folder without importing it, which would take seconds and load CUDA.
const QUESTION: &str = "import importlib.util as u; s = u.find_spec('torch'); \
                        print(list(s.submodule_search_locations or [''])[0] if s else '')";

impl Package {
    /// Checks that `folder` is a PyTorch that can be built against.
    ///
    /// # Errors
    /// When it is not a PyTorch, another version, or without headers or libraries.
    pub(crate) fn read(folder: &Path) -> Result<Self> {
        let version_file = folder.join("version.py");
        let text = fs::read_to_string(&version_file)
            .with_context(|| format!("{} is no PyTorch: it has no version.py", folder.display()))?;
        let version = version_in(&text).with_context(|| format!("{} names no version", version_file.display()))?;
        if !is_right(version) {
            bail!(
                "{} is PyTorch {version}, but the worker is built for {} (its bindings, tch {}, accept no other)",
                folder.display(),
                PAIR.torch,
                PAIR.tch
            );
        }
        for part in ["include/torch/csrc/api/include/torch/torch.h", "lib/libtorch_cpu.so", "lib/libc10.so"] {
            if !folder.join(part).exists() {
                bail!(
                    "the PyTorch in {} lacks {part}: it is not one that programs can be built against",
                    folder.display()
                );
            }
        }
        Ok(Self { folder: fs::canonicalize(folder)? })
    }
}

/// The PyTorch at a path that a person gave: the package, what holds it, or an interpreter that finds it.
///
/// # Errors
/// When nothing of the kind is there or [`Package::read`] refuses it.
pub(crate) fn at(path: &Path) -> Result<Package> {
    if path.is_file() {
        return by_python(path);
    }
    for package in [path.to_owned(), path.join("torch")] {
        if package.join("version.py").is_file() {
            return Package::read(&package);
        }
    }
    let interpreter = path.join("bin/python3");
    if interpreter.exists() {
        return by_python(&interpreter);
    }
    bail!("{} is neither a PyTorch, nor a folder that holds one, nor a Python interpreter", path.display());
}

/// The PyTorch that an interpreter would import.
///
/// # Errors
/// When the interpreter can't be run, has no PyTorch, or [`Package::read`] refuses it.
pub(crate) fn by_python(interpreter: &Path) -> Result<Package> {
    // From `/`, because the interpreter looks in the current folder first.
    let is_name = interpreter.components().count() == 1;
    let program = if is_name { interpreter.to_owned() } else { path::absolute(interpreter)? };
    let answer = process::capture(Command::new(program).args(["-c", QUESTION]).current_dir("/"))?;
    let folder = answer.trim();
    if folder.is_empty() {
        bail!("{} has no PyTorch", interpreter.display());
    }
    Package::read(Path::new(folder))
}

/// The version in a `version.py`: the value of `__version__`.
fn version_in(text: &str) -> Option<&str> {
    let value = text.lines().find_map(|line| line.strip_prefix("__version__")?.trim_start().strip_prefix('='))?;
    let value = value.trim().trim_matches(['\'', '"']);
    (!value.is_empty()).then_some(value)
}

/// Whether it is the version wanted, in any build of it (`2.11.0`, `2.11.0+cu130`), but no pre-release.
fn is_right(version: &str) -> bool {
    version.strip_prefix(PAIR.torch).is_some_and(|build| build.is_empty() || build.starts_with('+'))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with the few files by which a PyTorch is recognised.
    fn pytorch(folder: &Path, version: &str) {
        for part in ["include/torch/csrc/api/include/torch/torch.h", "lib/libtorch_cpu.so", "lib/libc10.so"] {
            let file = folder.join(part);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "").unwrap();
        }
        fs::write(folder.join("version.py"), format!("__all__ = []\n__version__ = '{version}'\ndebug = False\n"))
            .unwrap();
    }

    #[test]
    fn only_the_version_of_the_pair_is_right() {
        for (version, right) in [
            ("2.11.0", true),
            ("2.11.0+cu130", true),
            ("2.11.0+cpu", true),
            ("2.11.0a0+git1", false),
            ("2.11.01", false),
            ("2.11.1", false),
            ("2.1.0", false),
            ("", false),
        ] {
            assert_eq!(is_right(version), right, "{version}");
        }
    }

    #[test]
    fn the_version_is_read_from_the_file_that_names_it() {
        for (text, version) in [
            ("__version__ = '2.11.0+cu130'\ndebug = False", Some("2.11.0+cu130")),
            ("from typing import Optional\n__version__=\"2.8.0\"", Some("2.8.0")),
            ("debug = False", None),
            ("__version__ = ''", None),
        ] {
            assert_eq!(version_in(text), version, "{text}");
        }
    }

    #[test]
    fn a_path_may_be_the_package_or_the_folder_that_holds_it() {
        let site = tempfile::tempdir().unwrap();
        let folder = site.path().join("torch");
        pytorch(&folder, "2.11.0+cu130");
        let wanted = Package { folder: fs::canonicalize(&folder).unwrap() };
        for path in [site.path(), &folder] {
            assert_eq!(at(path).unwrap(), wanted, "{}", path.display());
        }
    }

    #[test]
    fn what_cannot_be_built_against_is_refused_with_the_reason() {
        let site = tempfile::tempdir().unwrap();
        let folder = site.path().join("torch");
        let refusal = || format!("{:#}", at(site.path()).unwrap_err());
        assert!(refusal().contains("neither a PyTorch"), "{}", refusal());
        pytorch(&folder, "2.10.0");
        assert!(refusal().contains("is PyTorch 2.10.0"), "{}", refusal());
        pytorch(&folder, "2.11.0");
        fs::remove_dir_all(folder.join("include")).unwrap();
        assert!(refusal().contains("torch.h"), "{}", refusal());
    }
}
