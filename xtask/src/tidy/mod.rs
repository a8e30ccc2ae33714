//! `tidy`: the rules of the source tree that no compiler checks. Each rule is a module that turns what it looks at into
//! faults; none of them looks at history.

mod arrows;
mod manifests;
mod source;
mod tokens;
mod unsafe_code;
mod worker_program;

use std::fmt;

use anyhow::{Result, bail};

use crate::binaries;
use crate::workspace::Workspace;

/// Check the rules of the source tree: arrows, unsafe, the worker's libraries, sizes, lints.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Args {
    /// Don't look at the built worker
    #[arg(long)]
    source_only: bool,
}

impl Args {
    pub(crate) fn source_only() -> Self {
        Self { source_only: true }
    }
}

/// One breach of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    /// A file, with the line where there is one, or a crate.
    place: String,
    what: String,
}

impl Fault {
    fn new(place: impl Into<String>, what: impl Into<String>) -> Self {
        Self { place: place.into(), what: what.into() }
    }

    fn at(file: &str, line: usize, what: impl Into<String>) -> Self {
        Self::new(format!("{file}:{line}"), what)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.what)
    }
}

/// Checks all rules and says every fault.
///
/// # Errors
/// When a rule is broken or the tree can't be read.
pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    let mut faults = arrows::check(&workspace.packages);
    faults.extend(manifests::check_all(workspace)?);
    for file in source::files(&workspace.root)? {
        faults.extend(source::check(&file, &workspace.root));
        if file.path.ends_with(".rs") {
            match tokens::Tokens::read(&file.text) {
                Ok(tokens) => {
                    faults.extend(unsafe_code::check(&file.path, &tokens));
                    faults.extend(tokens::check(&file.path, &tokens));
                }
                Err(error) => faults.push(Fault::new(&file.path, format!("is not read as Rust: {error}"))),
            }
        }
    }
    if !args.source_only {
        faults.extend(worker_program::check_built(&workspace.release().join(binaries::WORKER_PROGRAM)));
    }
    for fault in &faults {
        eprintln!("tidy: {fault}");
    }
    match faults.len() {
        0 => {
            eprintln!(
                "tidy: all rules hold{}",
                if args.source_only { " (the built worker was not looked at)" } else { "" }
            );
            Ok(())
        }
        number => bail!("the rules of the source tree are broken in {number} places"),
    }
}
