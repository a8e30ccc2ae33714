//! A PyTorch of our own, fetched by pip into `.torch/site`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::torch::PAIR;
use crate::torch::find::Package;
use crate::torch::links::remove;
use crate::{machine, process};

/// What libtorch_cpu of a CUDA build loads besides itself, and the headers that code for CUDA includes.
const COMPANIONS: &[&str] = &["nvidia-cuda-runtime==13.0.96", "nvidia-cuda-cupti==13.0.85", "nvidia-cuda-crt==13.0.88"];

/// A package that only a full set has: PyTorch can't use a GPU without it.
const ONLY_IN_FULL: &str = "nvidia_cudnn";

/// How much of PyTorch is fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Wheels {
    /// Enough to build, and to run on a CPU.
    Minimal,
    /// With the libraries that PyTorch needs to use a GPU.
    Full,
}

impl Wheels {
    fn wanted() -> Self {
        if machine::has_gpu() { Self::Full } else { Self::Minimal }
    }

    /// For people: what it costs. Measured with the wheels for x86-64.
    fn cost(self) -> &'static str {
        match self {
            Self::Minimal => "for a machine without a GPU, about 545 MB to download, 1.3 GB on disk",
            Self::Full => "with what a GPU needs, about 2.8 GB to download, 6 GB on disk",
        }
    }
}

/// The package that was fetched, fetching it first where it isn't there or is too little for this machine.
///
/// # Errors
/// When pip fails or what it fetched is not what was asked for.
pub(crate) fn package(torch: &Path) -> Result<Package> {
    if let Some(package) = fetched(torch) {
        return Ok(package);
    }
    let wheels = Wheels::wanted();
    let partial = torch.join("site.partial");
    remove(&partial)?;
    fs::create_dir_all(torch).with_context(|| format!("{} can't be made", torch.display()))?;
    eprintln!("torch: fetching PyTorch {} by pip: {}", PAIR.torch, wheels.cost());
    process::run(&mut install(wheels, &partial)).with_context(|| {
        format!(
            "pip could not fetch PyTorch {} (it wants Python 3.10 or later, glibc 2.28 or later and a way to the package \
             index); with another Python: `cargo xtask torch --from PATH`",
            PAIR.torch
        )
    })?;
    Package::read(&partial.join("torch")).context("pip fetched something else than was asked for")?;
    let site = site(torch);
    remove(&site)?;
    fs::rename(&partial, &site)?;
    Package::read(&site.join("torch"))
}

/// What was fetched earlier, if it is enough for this machine.
pub(crate) fn fetched(torch: &Path) -> Option<Package> {
    if held(&site(torch))? < Wheels::wanted() {
        return None;
    }
    Package::read(&site(torch).join("torch")).ok()
}

/// Whether a folder of libraries is the one that was fetched.
pub(crate) fn holds(torch: &Path, libraries: &Path) -> bool {
    fs::canonicalize(site(torch)).is_ok_and(|site| libraries.starts_with(site))
}

fn site(torch: &Path) -> PathBuf {
    torch.join("site")
}

fn install(wheels: Wheels, target: &Path) -> Command {
    let mut pip = Command::new("python3");
    // `--target` writes nowhere else, so a Python that the system manages permits it.
    pip.args(["-m", "pip", "install", "--no-input", "--no-compile", "--disable-pip-version-check"]);
    pip.args(["--root-user-action", "ignore", "--only-binary", ":all:"]);
    if wheels == Wheels::Minimal {
        pip.arg("--no-deps");
    }
    pip.arg("--target").arg(target).arg(format!("torch=={}", PAIR.torch)).args(COMPANIONS);
    // A user's configuration may ask for what can't go together with `--target`.
    pip.env("PIP_USER", "0");
    pip
}

/// Which set of wheels a folder holds, by the records that pip left. A set that lacks a companion is none.
fn held(site: &Path) -> Option<Wheels> {
    let records: Vec<String> = fs::read_dir(site)
        .ok()?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok()?.strip_suffix(".dist-info").map(str::to_owned))
        .collect();
    let is_whole =
        COMPANIONS.iter().all(|wheel| records.contains(&wheel.replace("==", "*").replace('-', "_").replace('*', "-")));
    let is_full = records.iter().any(|record| record.starts_with(ONLY_IN_FULL));
    is_whole.then_some(if is_full { Wheels::Full } else { Wheels::Minimal })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(records: &[&str], wheels: Option<Wheels>) {
        let site = tempfile::tempdir().unwrap();
        for record in records {
            fs::create_dir(site.path().join(record)).unwrap();
        }
        assert_eq!(held(site.path()), wheels, "{records:?}");
    }

    #[test]
    fn the_set_of_wheels_is_read_from_what_pip_recorded() {
        let runtime = "nvidia_cuda_runtime-13.0.96.dist-info";
        let cupti = "nvidia_cuda_cupti-13.0.85.dist-info";
        let crt = "nvidia_cuda_crt-13.0.88.dist-info";
        check(&[], None);
        check(&[runtime, cupti, "torch"], None);
        check(&[runtime, cupti, "nvidia_cuda_crt-13.0.90.dist-info"], None);
        check(&[runtime, cupti, crt], Some(Wheels::Minimal));
        check(&[runtime, cupti, crt, "nvidia_cudnn_cu13-9.19.0.56.dist-info"], Some(Wheels::Full));
    }

    #[test]
    fn the_pip_call_leaves_dependencies_out_only_without_a_gpu() {
        for (wheels, no_deps) in [(Wheels::Minimal, true), (Wheels::Full, false)] {
            let call = install(wheels, Path::new("site"));
            assert_eq!(call.get_args().any(|argument| argument == "--no-deps"), no_deps, "{wheels:?}");
        }
    }
}
