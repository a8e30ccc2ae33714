//! Which crate may depend on which. The rooms and their walls are ARCHITECTURE.md's; this table is what enforces them.
//!
//! Dependencies of tests are free, except that nothing at all depends on a program.

use std::collections::BTreeSet;

use crate::tidy::Fault;
use crate::workspace::{Kind, Package};

/// The crates of the workspace that each crate may depend on. A crate without a row is a fault.
const ARROWS: &[(&str, &[&str])] = &[
    ("cuda-sim", &["sim-machine"]),
    ("migperf-core", &[]),
    ("migperf-dbus", &["migperf-core"]),
    ("migperf-gpu", &["migperf-core"]),
    ("migperf-helper", &["migperf-core", "migperf-dbus", "migperf-gpu"]),
    ("migperf-launcher", &["migperf-core"]),
    ("migperf-tests", &["migperf-core", "migperf-dbus", "migperf-gpu", "sim-machine"]),
    ("migperf-worker", &["migperf-core"]),
    ("migperfctl", &["migperf-core", "migperf-dbus"]),
    ("migperfd", &["migperf-core", "migperf-dbus", "migperf-gpu"]),
    ("nvml-sim", &["sim-machine"]),
    ("sim-machine", &[]),
    ("xtask", &[]),
];

/// Libraries that only some crates may use, whatever else they depend on: each is a wall of the architecture.
const OWNED: &[(&str, &[&str])] = &[
    ("tch", &["migperf-worker"]),
    ("torch-sys", &["migperf-worker"]),
    ("cudarc", &["migperf-worker"]),
    ("nvml-wrapper", &["migperf-gpu"]),
    ("nvml-wrapper-sys", &["migperf-gpu", "nvml-sim"]),
    ("rusqlite", &["migperfd"]),
    ("zbus", &["migperf-dbus", "migperf-helper", "migperf-tests", "migperfctl", "migperfd"]),
    ("zbus_polkit", &["migperfd"]),
    ("anyhow", &["migperfctl", "migperfd", "migperf-helper", "migperf-launcher", "migperf-worker", "xtask"]),
];

/// Parts of our own crates that only one crate may ask for: crate, feature, and who may. What changes a device is the
/// helper's alone.
const FEATURES: &[(&str, &str, &str)] = &[("migperf-gpu", "control", "migperf-helper")];

/// Crates that stay pure: they use these libraries and no others.
const PURE: &[(&str, &[&str])] = &[("migperf-core", &["serde", "serde_json", "sha2", "strsim", "thiserror", "toml"])];

/// Checks the dependencies of all crates of the workspace.
pub(super) fn check(packages: &[Package]) -> Vec<Fault> {
    let members: BTreeSet<&str> = packages.iter().map(|package| package.name.as_str()).collect();
    let programs: BTreeSet<&str> = packages.iter().filter(|p| p.is_program()).map(|p| p.name.as_str()).collect();
    packages.iter().flat_map(|package| check_one(package, &members, &programs)).collect()
}

fn check_one(package: &Package, members: &BTreeSet<&str>, programs: &BTreeSet<&str>) -> Vec<Fault> {
    let name = package.name.as_str();
    let Some(arrows) = row(ARROWS, name) else {
        return vec![Fault::new(name, "has no row in the table of arrows (xtask/src/tidy/arrows.rs)")];
    };
    let mut faults = Vec::new();
    for dependency in &package.dependencies {
        let other = dependency.name.as_str();
        if programs.contains(other) {
            faults.push(Fault::new(name, format!("depends on the program {other}; programs are only ever run")));
        }
        if dependency.kind == Some(Kind::Dev) {
            continue;
        }
        for (owned, feature, owner) in FEATURES {
            if other == *owned && name != *owner && dependency.features.iter().any(|wanted| wanted == feature) {
                faults.push(Fault::new(name, format!("must not ask {other} for `{feature}`: that is {owner}'s part")));
            }
        }
        if members.contains(other) {
            if !arrows.contains(&other) {
                faults.push(Fault::new(name, format!("must not depend on {other}")));
            }
            continue;
        }
        if row(OWNED, other).is_some_and(|owners| !owners.contains(&name)) {
            faults.push(Fault::new(name, format!("must not use {other}: that is another crate's part")));
        }
        if row(PURE, name).is_some_and(|allowed| !allowed.contains(&other)) {
            faults.push(Fault::new(
                name,
                format!("must not use {other}: the crate is pure and its libraries are listed"),
            ));
        }
    }
    faults
}

fn row<'a>(table: &'a [(&str, &'a [&'a str])], name: &str) -> Option<&'a [&'a str]> {
    table.iter().find(|(key, _)| *key == name).map(|(_, value)| *value)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn package(name: &str, target: &str, dependencies: &[(&str, Option<&str>)]) -> Package {
        let dependencies: Vec<_> =
            dependencies.iter().map(|(name, kind)| json!({"name": name, "req": "^1", "kind": kind})).collect();
        serde_json::from_value(json!({
            "name": name,
            "manifest_path": format!("/src/{name}/Cargo.toml"),
            "dependencies": dependencies,
            "targets": [{"kind": [target]}],
        }))
        .unwrap()
    }

    #[test]
    fn only_the_helper_changes_devices() {
        for (name, faults) in [("migperf-helper", 0), ("migperfd", 1)] {
            let mut package = package(name, "lib", &[("migperf-gpu", None)]);
            package.dependencies[0].features = vec!["control".to_owned()];
            let gpu = self::package("migperf-gpu", "lib", &[]);
            let found = check(&[package, gpu]);
            assert_eq!(found.len(), faults, "{name}: {found:?}");
        }
    }

    /// Adds one dependency to a sound workspace and compares the crates with faults.
    fn check_with(crate_name: &str, dependency: &str, kind: Option<&str>, faults: usize) {
        let sound: &[(&str, &str, &[&str])] = &[
            ("migperf-core", "lib", &["serde", "toml"]),
            ("migperf-dbus", "lib", &["migperf-core", "zbus"]),
            ("migperf-gpu", "lib", &["migperf-core", "nvml-wrapper"]),
            ("migperfd", "bin", &["migperf-core", "migperf-dbus", "migperf-gpu", "rusqlite", "anyhow"]),
            ("migperfctl", "bin", &["migperf-core", "migperf-dbus", "zbus"]),
            ("migperf-worker", "bin", &["migperf-core", "tch", "cudarc"]),
            ("migperf-tests", "lib", &["migperf-dbus"]),
        ];
        let packages: Vec<Package> = sound
            .iter()
            .map(|(name, target, dependencies)| {
                let mut all: Vec<_> = dependencies.iter().map(|dependency| (*dependency, None)).collect();
                if *name == crate_name {
                    all.push((dependency, kind));
                }
                package(name, target, &all)
            })
            .collect();
        let found = check(&packages);
        assert_eq!(found.len(), faults, "{crate_name} -> {dependency} ({kind:?}): {found:?}");
        assert!(found.iter().all(|fault| fault.place == crate_name && fault.what.contains(dependency)), "{found:?}");
    }

    #[test]
    fn arrows_go_one_way() {
        check_with("migperfd", "serde_json", None, 0);
        check_with("migperf-core", "migperf-dbus", None, 1);
        check_with("migperf-dbus", "migperf-gpu", None, 1);
        check_with("migperfctl", "migperf-gpu", None, 1);
        check_with("migperf-worker", "migperf-dbus", Some("build"), 1);
        check_with("migperf-tests", "migperf-gpu", Some("dev"), 0);
    }

    #[test]
    fn nothing_depends_on_a_program() {
        check_with("migperfctl", "migperfd", None, 2);
        check_with("migperf-tests", "migperfd", Some("dev"), 1);
    }

    #[test]
    fn libraries_stay_with_their_owners() {
        check_with("migperfd", "tch", None, 1);
        check_with("migperfd", "torch-sys", Some("build"), 1);
        check_with("migperfd", "nvml-wrapper-sys", None, 1);
        check_with("migperfctl", "rusqlite", None, 1);
        check_with("migperf-worker", "zbus", None, 1);
        check_with("migperf-gpu", "anyhow", None, 1);
        check_with("migperf-gpu", "anyhow", Some("dev"), 0);
    }

    #[test]
    fn the_domain_stays_pure() {
        check_with("migperf-core", "serde_json", None, 0);
        check_with("migperf-core", "libc", None, 1);
        check_with("migperf-core", "proptest", Some("dev"), 0);
    }

    #[test]
    fn a_crate_without_a_row_is_a_fault() {
        let faults = check(&[package("migperf-new", "lib", &[])]);
        assert_eq!(faults.len(), 1, "{faults:?}");
    }
}
