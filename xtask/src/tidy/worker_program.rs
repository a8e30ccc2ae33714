//! What the built worker asks of the dynamic linker. One program serves machines with and without a GPU, so it must
//! start where no CUDA library is; and it loads the CUDA part of libtorch itself, later.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use goblin::elf::Elf;

use crate::tidy::Fault;

/// The beginnings of the names of libraries that the worker must not need in order to start.
const NOT_NEEDED: &[&str] =
    &["libtorch.so", "libtorch_cuda", "libtorch_python", "libc10_cuda", "libcuda", "libcudart", "libnvidia-ml"];

/// What it can't be without; a worker that lacks it was not linked with libtorch at all.
const NEEDED: &str = "libtorch_cpu.so";

/// Checks the worker where the release profile puts it.
pub(super) fn check_built(program: &Path) -> Vec<Fault> {
    let place = program.display().to_string();
    if !program.exists() {
        return vec![Fault::new(place, "is not built, so what it links is unknown (`--source-only` leaves this out)")];
    }
    match needed_libraries(program) {
        Ok(libraries) => check(&place, &libraries),
        Err(error) => vec![Fault::new(place, format!("is not read: {error:#}"))],
    }
}

fn check(place: &str, libraries: &[String]) -> Vec<Fault> {
    let mut faults: Vec<Fault> = libraries
        .iter()
        .filter(|library| NOT_NEEDED.iter().any(|start| library.starts_with(start)))
        .map(|library| Fault::new(place, format!("needs {library} in order to start")))
        .collect();
    if !libraries.iter().any(|library| library == NEEDED) {
        faults.push(Fault::new(place, format!("doesn't need {NEEDED}: it is not linked with libtorch")));
    }
    faults
}

/// The libraries that an ELF file names as needed.
fn needed_libraries(program: &Path) -> Result<Vec<String>> {
    let bytes = fs::read(program)?;
    let elf = Elf::parse(&bytes).context("it is no ELF file")?;
    Ok(elf.libraries.iter().map(|&library| library.to_owned()).collect())
}

#[cfg(test)]
mod tests {
    use std::env;

    use super::*;

    #[test]
    fn a_worker_starts_without_cuda() {
        let sound = ["libtorch_cpu.so", "libc10.so", "libstdc++.so.6", "libgcc_s.so.1", "libc.so.6"];
        for (extra, faults) in [
            (None, 0),
            (Some("libgomp.so.1"), 0),
            (Some("libtorch.so"), 1),
            (Some("libtorch_cuda.so"), 1),
            (Some("libtorch_cuda_linalg.so"), 1),
            (Some("libc10_cuda.so"), 1),
            (Some("libcuda.so.1"), 1),
            (Some("libcudart.so.13"), 1),
            (Some("libnvidia-ml.so.1"), 1),
        ] {
            let libraries: Vec<String> = sound.into_iter().chain(extra).map(str::to_owned).collect();
            assert_eq!(check("worker", &libraries).len(), faults, "{extra:?}");
        }
    }

    #[test]
    fn a_worker_without_libtorch_is_none() {
        assert_eq!(check("worker", &["libc.so.6".to_owned()]).len(), 1);
    }

    #[test]
    fn the_libraries_are_read_from_a_real_program() {
        let libraries = needed_libraries(&env::current_exe().unwrap()).unwrap();
        assert!(libraries.iter().any(|library| library.starts_with("libc.so")), "{libraries:?}");
    }

    #[test]
    fn a_program_that_is_absent_or_no_program_is_a_fault() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("migperf-worker-torch");
        assert!(check_built(&program)[0].what.contains("is not built"));
        fs::write(&program, "#!/bin/sh\n").unwrap();
        assert!(check_built(&program)[0].what.contains("no ELF file"));
    }
}
