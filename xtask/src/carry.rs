//! `carry`: what a GPU machine that has PyTorch needs to run migperf, in one small folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::workspace::{Workspace, cargo};
use crate::{binaries, process, setup};

/// Folders that go along as they are.
const FOLDERS: &[&str] = &["configs/suites", "tests/gpu", "tests/parity"];

/// Tests that run there: package, test, and the name under which it goes along.
const TESTS: &[(&str, &str, &str)] =
    &[("migperf-helper", "gpu", "test-helper-gpu"), ("nvml-sim", "h200", "test-nvml-answers")];

/// A program of the tests' that runs there too: package and name.
const PRINTER: (&str, &str) = ("nvml-sim", "nvml-sim-smi");

/// More than this is not carried: something that doesn't belong there has got in.
const MOST_BYTES: u64 = 60_000_000;

/// Put what a GPU machine with PyTorch needs to run migperf into .carry/
///
/// That is: the programs, stripped, the suites, and what the tests on a GPU read.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

/// Builds the programs and fills `.carry/` anew.
///
/// # Errors
/// When a build fails, a folder is missing, or the whole is too large.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    setup::run(workspace, &setup::Args::default())?;
    let programs = binaries::build(workspace)?;
    let carry = workspace.root.join(".carry");
    if carry.exists() {
        fs::remove_dir_all(&carry).with_context(|| format!("{} can't be removed", carry.display()))?;
    }
    fs::create_dir_all(carry.join("bin"))?;
    for name in binaries::names() {
        strip(&programs.join(name), &carry, name)?;
    }
    for (package, test, name) in TESTS {
        let command = ["test", "--release", "--no-run", "--package", package, "--test", test];
        strip(&built(cargo().args(command), test)?, &carry, name)?;
    }
    let (package, name) = PRINTER;
    strip(&built(cargo().args(["build", "--release", "--package", package, "--bin", name]), name)?, &carry, name)?;
    for folder in FOLDERS {
        copy(&workspace.root.join(folder), &carry.join(folder))?;
    }
    let bytes = size(&carry)?;
    if bytes > MOST_BYTES {
        bail!("{} has {bytes} bytes, more than {MOST_BYTES}: it is to stay small", carry.display());
    }
    eprintln!("carry: {} has {:.1} MB", carry.display(), bytes as f64 / 1e6);
    Ok(())
}

/// Puts a program along without its symbols.
fn strip(program: &Path, carry: &Path, name: &str) -> Result<()> {
    process::run(Command::new("strip").arg("-o").arg(carry.join("bin").join(name)).arg(program))
}

/// Builds and tells where cargo put the program or test of this name: the file's name has a hash.
fn built(command: &mut Command, target: &str) -> Result<PathBuf> {
    let output = command.arg("--message-format=json-render-diagnostics").output()?;
    if !output.status.success() {
        bail!("{command:?} failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let executable = |line: &str| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let is_it = message["target"]["name"] == target;
        message["executable"].as_str().filter(|_| is_it).map(PathBuf::from)
    };
    text.lines().rev().find_map(executable).with_context(|| format!("{command:?} built no program"))
}

/// Copies a folder with all in it. Permissions are kept, symbolic links are followed.
fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    let entries = fs::read_dir(from).with_context(|| format!("{} can't be carried along", from.display()))?;
    for entry in entries {
        let entry = entry?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if source.is_dir() {
            copy(&source, &target)?;
        } else {
            fs::copy(&source, &target).with_context(|| format!("{} can't be carried along", source.display()))?;
        }
    }
    Ok(())
}

/// The size of all files in a folder, in bytes.
fn size(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        bytes += if metadata.is_dir() { size(&entry.path())? } else { metadata.len() };
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_copied_whole_and_counted() {
        let place = tempfile::tempdir().unwrap();
        let (from, to) = (place.path().join("from"), place.path().join("to"));
        fs::create_dir_all(from.join("a/b")).unwrap();
        fs::write(from.join("one"), "1").unwrap();
        fs::write(from.join("a/b/three"), "333").unwrap();
        copy(&from, &to).unwrap();
        assert_eq!(fs::read_to_string(to.join("a/b/three")).unwrap(), "333");
        assert_eq!(size(&to).unwrap(), 4);
    }

    #[test]
    fn a_folder_that_is_missing_is_an_error() {
        let place = tempfile::tempdir().unwrap();
        let error = copy(&place.path().join("absent"), &place.path().join("to")).unwrap_err();
        assert!(format!("{error:#}").contains("absent"), "{error:#}");
    }
}
