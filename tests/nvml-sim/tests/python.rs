//! Another language's client of NVML, NVIDIA's own for Python, on the simulated library: what it does not understand, no
//! client would.
//!
//! `MIGPERF_NVIDIA_ML_PY` names the folder in which nvidia-ml-py is; `cargo xtask test` fetches it.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// `nobody` of every distribution.
const NOBODY: u32 = 65_534;

fn check(part: &str, as_nobody: bool) {
    let package = std::env::var_os("MIGPERF_NVIDIA_ML_PY").map(PathBuf::from);
    let package = package.expect("MIGPERF_NVIDIA_ML_PY names no folder with nvidia-ml-py: run `cargo xtask test`");
    let folder = tempfile::tempdir().unwrap();
    sim_machine::install::install(folder.path()).unwrap();
    let machine = folder.path().join("machine.json");
    std::fs::write(&machine, r#"{ "gpus": [ { "model": "H200-141" } ] }"#).unwrap();
    let client = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/client.py");
    let mut command = Command::new("python3");
    command
        .arg(client)
        .arg(part)
        .env("PYTHONPATH", package)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("LD_LIBRARY_PATH", folder.path())
        .env("NVML_SIM_MACHINE", &machine);
    if as_nobody {
        // It has a machine of its own: the folder of a shared state is not its to write in.
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        command.uid(NOBODY).gid(NOBODY);
    } else {
        command.env("NVML_SIM_STATE", folder.path().join("state"));
    }
    let output = command.output().expect("python3 runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(said.trim(), "all as expected");
}

#[test]
fn python_divides_a_gpu_and_puts_it_back() {
    check("divided", false);
}

#[test]
fn python_may_not_divide_a_gpu_without_root() {
    check("unprivileged", true);
}
