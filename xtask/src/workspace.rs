//! The workspace as `cargo metadata` describes it: where it is, where it builds, and its crates with their dependencies.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::process;

/// Where the workspace is, where it builds, and its crates.
#[derive(Debug, Deserialize)]
pub(crate) struct Workspace {
    #[serde(rename = "workspace_root")]
    pub(crate) root: PathBuf,
    #[serde(rename = "target_directory")]
    pub(crate) target: PathBuf,
    pub(crate) packages: Vec<Package>,
}

/// One crate of the workspace.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) manifest_path: PathBuf,
    pub(crate) dependencies: Vec<Dependency>,
    pub(crate) targets: Vec<Target>,
}

/// One line of a crate's dependencies.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    /// The requirement as cargo normalises it, such as `=0.24.0` or `^1`.
    pub(crate) req: String,
    pub(crate) kind: Option<Kind>,
    /// Those that are asked for beside the defaults.
    #[serde(default)]
    pub(crate) features: Vec<String>,
}

/// The kinds that cargo names; a normal dependency has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    Dev,
    Build,
}

/// One thing that a crate builds: a library, a program, a test.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Target {
    pub(crate) kind: Vec<String>,
}

impl Workspace {
    /// Asks cargo about the workspace around the current folder.
    ///
    /// # Errors
    /// When cargo can't be run or knows no workspace here.
    pub(crate) fn find() -> Result<Self> {
        let json = process::capture(cargo().args(["metadata", "--no-deps", "--format-version", "1"]))?;
        serde_json::from_str(&json).context("`cargo metadata` said what can't be read")
    }

    /// The folder of links against which the worker is built, and what else `torch` makes.
    pub(crate) fn torch(&self) -> PathBuf {
        self.root.join(".torch")
    }

    /// Where the release profile puts programs.
    pub(crate) fn release(&self) -> PathBuf {
        self.target.join("release")
    }

    /// Whether any crate depends on `name`, in whatever way.
    pub(crate) fn uses(&self, name: &str) -> bool {
        self.packages.iter().any(|package| package.dependencies.iter().any(|dependency| dependency.name == name))
    }

    /// `path` as seen from the root of the workspace.
    pub(crate) fn relative<'a>(&self, path: &'a Path) -> &'a Path {
        path.strip_prefix(&self.root).unwrap_or(path)
    }
}

impl Package {
    pub(crate) fn is_program(&self) -> bool {
        self.targets.iter().any(|target| target.kind.iter().any(|kind| kind == "bin"))
    }
}

/// A cargo that builds as it would outside of `cargo xtask`: without what `cargo run` told this program about
/// itself (build scripts that watch those variables would run again), and without settings of torch-sys that
/// would lead it away from the folder of links.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in env::vars_os() {
        let name = name.to_string_lossy();
        let about_us = name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
        if about_us || name.starts_with("LIBTORCH") {
            command.env_remove(&*name);
        }
    }
    command
}
