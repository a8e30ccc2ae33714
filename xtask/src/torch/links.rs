//! The folder of links against which torch-sys builds the worker: headers and the libraries that exist with and without
//! CUDA. torch-sys links `libtorch_cuda` wherever it finds one, so the folder must not hold it.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::torch::find::Package;
use crate::torch::{Libtorch, PAIR};

/// The libraries that every PyTorch has.
const LIBRARIES: &[&str] = &["libc10.so", "libtorch_cpu.so", "libtorch.so"];

/// OpenMP's library, which some builds of PyTorch bring along.
const OPENMP: &str = "libgomp.so.1";

/// Names the version for torch-sys, as in a libtorch archive.
const VERSION: &str = "build-version";

/// Leads to the folder that programs must load the libraries from.
const REAL: &str = "real-lib";

/// The folder of links in `.torch/`.
#[derive(Debug)]
pub(crate) struct Links {
    parent: PathBuf,
}

impl Links {
    pub(crate) fn new(parent: &Path) -> Self {
        Self { parent: parent.to_owned() }
    }

    fn folder(&self) -> PathBuf {
        self.parent.join("libtorch")
    }

    /// What the folder leads to, if all of it is there and of the right version.
    pub(crate) fn libtorch(&self) -> Option<Libtorch> {
        let folder = self.folder();
        let libraries = fs::canonicalize(folder.join(REAL)).ok()?;
        let package = Package::read(libraries.parent()?).ok()?;
        let is_whole = fs::read_to_string(folder.join(VERSION)).is_ok_and(|version| version.trim() == PAIR.torch)
            && fs::canonicalize(folder.join("include")).is_ok_and(|include| include == package.folder.join("include"))
            && LIBRARIES.iter().all(|name| folder.join("lib").join(name).is_file());
        is_whole.then_some(Libtorch { libraries })
    }

    /// Makes the folder, in place of one that may be there. A folder that bears the name is always whole.
    ///
    /// # Errors
    /// When the file system refuses.
    pub(crate) fn make(&self, package: &Package) -> Result<()> {
        let partial = self.parent.join("libtorch.partial");
        remove(&partial)?;
        let parent = fs::canonicalize(&self.parent)
            .or_else(|_| fs::create_dir_all(&self.parent).and_then(|()| fs::canonicalize(&self.parent)))
            .with_context(|| format!("{} can't be made", self.parent.display()))?;
        // Links within `.torch/` are relative, so that a checkout may be moved.
        let real = |up: &str| match package.folder.strip_prefix(&parent) {
            Ok(inside) => Path::new(up).join(inside),
            Err(_) => package.folder.clone(),
        };
        fs::create_dir_all(partial.join("lib"))?;
        symlink(real("..").join("include"), partial.join("include"))?;
        symlink(real("..").join("lib"), partial.join(REAL))?;
        let openmp = package.folder.join("lib").join(OPENMP).exists().then_some(OPENMP);
        for name in LIBRARIES.iter().copied().chain(openmp) {
            symlink(real("../..").join("lib").join(name), partial.join("lib").join(name))?;
        }
        fs::write(partial.join(VERSION), format!("{}\n", PAIR.torch))?;
        remove(&self.folder())?;
        Ok(fs::rename(partial, self.folder())?)
    }
}

/// Removes a folder that may not be there.
pub(super) fn remove(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("{} can't be removed", folder.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A `.torch/` with a PyTorch at `package` within or beside it.
    fn pytorch(folder: &Path) -> Package {
        for part in [
            "include/torch/csrc/api/include/torch/torch.h",
            "lib/libtorch_cpu.so",
            "lib/libc10.so",
            "lib/libtorch.so",
            "lib/libtorch_cuda.so",
            "lib/libgomp.so.1",
        ] {
            let file = folder.join(part);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "").unwrap();
        }
        fs::write(folder.join("version.py"), format!("__version__ = '{}+cu130'\n", PAIR.torch)).unwrap();
        Package::read(folder).unwrap()
    }

    #[test]
    fn the_folder_leads_to_the_package_and_hides_cuda() {
        let place = tempfile::tempdir().unwrap();
        for package in [".torch/site/torch", "elsewhere/torch"] {
            let package = pytorch(&place.path().join(package));
            let links = Links::new(&place.path().join(".torch"));
            links.make(&package).unwrap();
            assert_eq!(links.libtorch().unwrap().libraries, package.folder.join("lib"));
            let mut names: Vec<_> =
                fs::read_dir(links.folder().join("lib")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            assert_eq!(names, ["libc10.so", "libgomp.so.1", "libtorch.so", "libtorch_cpu.so"]);
        }
    }

    #[test]
    fn a_moved_checkout_keeps_its_libtorch() {
        let place = tempfile::tempdir().unwrap();
        let package = pytorch(&place.path().join("old/.torch/site/torch"));
        Links::new(&place.path().join("old/.torch")).make(&package).unwrap();
        fs::rename(place.path().join("old"), place.path().join("new")).unwrap();
        assert!(Links::new(&place.path().join("new/.torch")).libtorch().is_some());
    }

    #[test]
    fn a_folder_that_is_not_whole_is_made_again() {
        type Damage = fn(&Path);
        let damages: &[(&str, Damage)] = &[
            ("a library is gone", |folder| fs::remove_file(folder.join("libtorch/lib/libc10.so")).unwrap()),
            ("the package is gone", |folder| fs::remove_dir_all(folder.join("site/torch/include")).unwrap()),
            ("another version", |folder| fs::write(folder.join("libtorch/build-version"), "2.10.0").unwrap()),
            ("an update", |folder| {
                fs::write(folder.join("site/torch/version.py"), "__version__ = '2.12.0'\n").unwrap();
            }),
        ];
        for (name, damage) in damages {
            let place = tempfile::tempdir().unwrap();
            let package = place.path().join("site/torch");
            let links = Links::new(place.path());
            links.make(&pytorch(&package)).unwrap();
            damage(place.path());
            assert!(links.libtorch().is_none(), "{name}");
            links.make(&pytorch(&package)).unwrap();
            assert!(links.libtorch().is_some(), "{name}");
        }
    }
}
