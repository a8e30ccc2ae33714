//! What every crate's manifest must say: the workspace's lints, and the one version of libtorch's bindings.

use std::fs;

use anyhow::{Context, Result};

use crate::tidy::Fault;
use crate::torch::PAIR;
use crate::workspace::{Package, Workspace};

/// Libtorch's bindings, which come in one version.
const BINDINGS: &[&str] = &["tch", "torch-sys"];

/// Checks the manifests of all crates.
pub(super) fn check_all(workspace: &Workspace) -> Result<Vec<Fault>> {
    let mut faults = Vec::new();
    for package in &workspace.packages {
        let path = &package.manifest_path;
        let text = fs::read_to_string(path).with_context(|| format!("{} can't be read", path.display()))?;
        let place = workspace.relative(path).display().to_string();
        faults.extend(lints(&place, &text));
        faults.extend(bindings(&place, package));
    }
    Ok(faults)
}

/// Every crate has the workspace's lints and none of its own beside them.
fn lints(place: &str, text: &str) -> Option<Fault> {
    let manifest: toml::Table = match text.parse() {
        Ok(manifest) => manifest,
        Err(error) => return Some(Fault::new(place, format!("is not read as TOML: {error}"))),
    };
    let inherits = manifest.get("lints").and_then(|lints| lints.get("workspace")).and_then(toml::Value::as_bool);
    (inherits != Some(true))
        .then(|| Fault::new(place, "doesn't have the workspace's lints (`[lints] workspace = true`)"))
}

/// The bindings are those that fit the version of libtorch, exactly.
fn bindings(place: &str, package: &Package) -> Vec<Fault> {
    let wanted = format!("={}", PAIR.tch);
    package
        .dependencies
        .iter()
        .filter(|dependency| BINDINGS.contains(&dependency.name.as_str()) && dependency.req != wanted)
        .map(|dependency| {
            let (name, found) = (&dependency.name, &dependency.req);
            Fault::new(place, format!("{name} is `{found}`, but libtorch {} goes with `{wanted}`", PAIR.torch))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lints_are_inherited() {
        for (text, holds) in [
            ("[lints]\nworkspace = true", true),
            ("lints.workspace = true", true),
            ("[lints]\nworkspace = false", false),
            ("[lints.rust]\nunsafe_code = \"allow\"", false),
            ("[package]\nname = \"x\"", false),
            ("[lints", false),
        ] {
            assert_eq!(lints("x/Cargo.toml", text).is_none(), holds, "{text}");
        }
    }

    #[test]
    fn the_bindings_are_those_of_the_pair() {
        let exact = format!("={}", PAIR.tch);
        for (name, req, holds) in [
            ("tch", exact.as_str(), true),
            ("torch-sys", exact.as_str(), true),
            ("tch", "^0.24.0", false),
            ("torch-sys", "=0.26.0", false),
            ("toml", "^1", true),
        ] {
            let package = serde_json::from_value(json!({
                "name": "migperf-worker",
                "manifest_path": "/src/worker/Cargo.toml",
                "dependencies": [{"name": name, "req": req, "kind": null}],
                "targets": [],
            }))
            .unwrap();
            assert_eq!(bindings("worker/Cargo.toml", &package).is_empty(), holds, "{name} {req}");
        }
    }
}
