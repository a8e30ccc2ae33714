//! `torch`: a private libtorch in `.torch/`, against which the worker is built and with which it is tested.
//!
//! The libraries come from an installed PyTorch or from pip; the worker is built against a folder of links to them
//! without the CUDA libraries, so that one program runs on machines with and without a GPU.

mod find;
mod links;
mod pip;

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::torch::find::Package;
use crate::torch::links::Links;
use crate::workspace::Workspace;

/// The release of libtorch and the release of its Rust bindings that go together: torch-sys compiles against exactly
/// one version. They are raised together, here and in worker/Cargo.toml (`tidy` compares).
pub(crate) const PAIR: Pair = Pair { torch: "2.11.0", tch: "0.24.0" };

/// See [`PAIR`].
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) torch: &'static str,
    pub(crate) tch: &'static str,
}

/// Names a PyTorch to use, for sessions that don't want to repeat `--from`.
const VARIABLE: &str = "MIGPERF_TORCH";

/// Make the private libtorch in .torch/, from an installed PyTorch or from pip.
///
/// It is taken from the first of these that has the one version the worker is built for, with its headers: --from, or
/// $MIGPERF_TORCH; what an earlier call made; the PyTorch of `python3`; pip. Pip fetches the smallest set of wheels
/// that builds and runs on a CPU, or, on a machine with a GPU, all that PyTorch needs there. The size is said first.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Args {
    /// A PyTorch to use: its package folder, the site-packages or virtual environment around it, or a Python
    /// interpreter
    #[arg(long, value_name = "PATH")]
    from: Option<PathBuf>,
}

/// The private libtorch, made and whole.
#[derive(Debug)]
pub(crate) struct Libtorch {
    /// The real folder of the shared libraries. Programs must load them from here, not through the folder of links: the
    /// libraries find each other relative to where they were found.
    pub(crate) libraries: PathBuf,
}

/// Makes the private libtorch unless it is there.
///
/// # Errors
/// When the PyTorch that was named is not the right one, or none can be had.
pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<Libtorch> {
    let folder = workspace.torch();
    let links = Links::new(&folder);
    let package = match named(args) {
        Some(path) => find::at(&path)?,
        None => match made(&folder, &links) {
            Some(libtorch) => {
                eprintln!("torch: libtorch {} is in {}", PAIR.torch, folder.display());
                return Ok(libtorch);
            }
            None => installed().map_or_else(|| pip::package(&folder), Ok)?,
        },
    };
    links
        .make(&package)
        .with_context(|| format!("the folder of links to {} was not made", package.folder.display()))?;
    let libtorch = links.libtorch().context("the folder of links was made, but is not whole")?;
    eprintln!("torch: libtorch {} in {} leads to {}", PAIR.torch, folder.display(), libtorch.libraries.display());
    Ok(libtorch)
}

/// The private libtorch that [`run`] made earlier, if it is whole and fits this machine.
pub(crate) fn made_earlier(workspace: &Workspace) -> Result<Libtorch> {
    let folder = workspace.torch();
    made(&folder, &Links::new(&folder)).context("there is no private libtorch here: run `cargo xtask torch` first")
}

/// Whether [`run`] will need pip.
pub(crate) fn needs_pip(workspace: &Workspace) -> bool {
    let folder = workspace.torch();
    named(&Args::default()).is_none()
        && made(&folder, &Links::new(&folder)).is_none()
        && pip::fetched(&folder).is_none()
        && find::by_python(Path::new("python3")).is_err()
}

fn named(args: &Args) -> Option<PathBuf> {
    args.from.clone().or_else(|| env::var_os(VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from))
}

/// What is there already. Wheels that serve a CPU only don't count on a machine that has got a GPU since.
fn made(folder: &Path, links: &Links) -> Option<Libtorch> {
    let libtorch = links.libtorch()?;
    let is_fetched = pip::holds(folder, &libtorch.libraries);
    (!is_fetched || pip::fetched(folder).is_some()).then_some(libtorch)
}

fn installed() -> Option<Package> {
    match find::by_python(Path::new("python3")) {
        Ok(package) => Some(package),
        Err(error) => {
            eprintln!("torch: {error:#}");
            None
        }
    }
}
