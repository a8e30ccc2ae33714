//! For tests: the simulated libraries and programs, built and found under the names of NVIDIA's.

use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// What cargo builds, and the name that programs look for.
const NAMES: [(&str, &str); 3] = [
    ("libnvidia_ml_sim.so", "libnvidia-ml.so.1"),
    ("libcuda_sim.so", "libcuda.so.1"),
    ("nvidia-cuda-mps-control-sim", "nvidia-cuda-mps-control"),
];

/// Makes links in `folder` to the simulated libraries and the MPS control program, which are built first.
///
/// Put `folder` in `LD_LIBRARY_PATH` and `PATH` of the programs under test.
///
/// # Errors
/// If they cannot be built or linked.
pub fn install(folder: &Path) -> io::Result<()> {
    let built = build()?;
    NAMES.iter().try_for_each(|(from, to)| symlink(built.join(from), folder.join(to)))
}

/// Builds the simulators as the running test was built, and returns the folder they lie in.
///
/// # Errors
/// If cargo cannot be run or fails, or the running program is no test that cargo built.
pub fn build() -> io::Result<PathBuf> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    BUILT.get_or_init(|| run_cargo().map_err(|error| error.to_string())).clone().map_err(io::Error::other)
}

fn run_cargo() -> io::Result<PathBuf> {
    // The test lies in <target>/<profile>/deps.
    let test = std::env::current_exe()?;
    let missing = || io::Error::other(format!("{} does not lie in a folder of cargo's", test.display()));
    let folder = test.ancestors().find(|folder| folder.ends_with("deps")).and_then(Path::parent).ok_or_else(missing)?;
    let target = folder.parent().ok_or_else(missing)?;
    let profile = match folder.file_name().and_then(|name| name.to_str()).ok_or_else(missing)? {
        "debug" => "dev",
        name => name,
    };
    let status = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--quiet", "--package", "nvml-sim", "--package", "cuda-sim", "--profile", profile])
        .arg("--target-dir")
        .arg(target)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status()?;
    if status.success() { Ok(folder.to_owned()) } else { Err(io::Error::other("the simulators could not be built")) }
}
