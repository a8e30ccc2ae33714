//! The files of the source tree, and what none of them may say: a place on the machine where it was written.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use ignore::WalkBuilder;

use crate::tidy::Fault;

/// First folders of absolute paths that only exist on somebody's machine.
const MACHINE_FOLDERS: &[&str] = &["Users", "mnt", "work", "workspace"];

/// Hidden folders that only exist on somebody's machine, without the dot.
const MACHINE_HIDDEN: &[&str] = &["library", "pyenv"];

/// A checkout in `/src` would find its path in every second manifest.
const TELLING_COMPONENTS: usize = 2;

/// One file that isn't ignored.
#[derive(Debug)]
pub(super) struct File {
    /// From the root, with `/`.
    pub(super) path: String,
    pub(super) text: String,
}

/// All files of text in the tree, whether committed yet or not, in the order of their paths. Ignored files are left out,
/// in a checkout and in an unpacked archive alike.
pub(super) fn files(root: &Path) -> Result<Vec<File>> {
    let mut walk = WalkBuilder::new(root);
    walk.hidden(false).parents(false).git_global(false).git_exclude(false).require_git(false).ignore(false);
    walk.filter_entry(|entry| entry.file_name() != ".git");
    walk.sort_by_file_path(Ord::cmp);
    let mut files = Vec::new();
    for entry in walk.build() {
        let entry = entry.context("the source tree can't be read")?;
        if !entry.file_type().is_some_and(|kind| kind.is_file()) {
            continue;
        }
        let bytes = fs::read(entry.path()).with_context(|| format!("{} can't be read", entry.path().display()))?;
        let path = entry.path().strip_prefix(root).unwrap_or(entry.path()).to_string_lossy().into_owned();
        files.push(File { path, text: String::from_utf8_lossy(&bytes).into_owned() });
    }
    Ok(files)
}

/// Finds machine paths, and the path of this very checkout where that is long enough not to be met by chance.
pub(super) fn check(file: &File, root: &Path) -> Vec<Fault> {
    let is_telling = root.components().count() > TELLING_COMPONENTS;
    let root = root.to_string_lossy();
    let mut faults = Vec::new();
    for (number, line) in file.text.lines().enumerate() {
        let names_root = is_telling && line.contains(&*root);
        if let Some(found) = machine_path(line).or_else(|| names_root.then(|| root.to_string())) {
            faults.push(Fault::at(&file.path, number + 1, format!("names `{found}`, which is a place on one machine")));
        }
    }
    faults
}

fn machine_path(line: &str) -> Option<String> {
    let folders = MACHINE_FOLDERS.iter().map(|name| format!("/{name}/"));
    let hidden = MACHINE_HIDDEN.iter().map(|name| format!("/.{name}/"));
    let absolute = folders
        .into_iter()
        .find(|folder| line.match_indices(folder.as_str()).any(|(at, _)| !line[..at].ends_with(is_part_of_a_path)));
    absolute.or_else(|| hidden.into_iter().find(|folder| line.contains(folder.as_str())))
}

/// Whether a character before a `/` makes it the middle of a path or of an address.
fn is_part_of_a_path(character: char) -> bool {
    character.is_alphanumeric() || "._-~*/})$>".contains(character)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_line(line: &str, faults: usize) {
        let file = File { path: "README.md".to_owned(), text: format!("first\n{line}\n") };
        let found = check(&file, Path::new("/srv/checkouts/migperf"));
        assert_eq!(found.len(), faults, "{line}: {found:?}");
        assert!(found.iter().all(|fault| fault.place == "README.md:2"), "{found:?}");
    }

    #[test]
    fn places_of_one_machine_are_found() {
        for name in MACHINE_FOLDERS {
            check_line(&format!("see /{name}/migperf/notes"), 1);
            check_line(&format!("path = \"/{name}/x\""), 1);
            check_line(&format!("target/{name}/x and ./{name}/x and https://example.org/{name}/x"), 0);
        }
        for name in MACHINE_HIDDEN {
            check_line(&format!("~/.{name}/x"), 1);
        }
        check_line("built in /srv/checkouts/migperf/target", 1);
        let file = File { path: "README.md".to_owned(), text: "core/src/lib.rs".to_owned() };
        assert_eq!(check(&file, Path::new("/src")), [], "a short path means nothing");
        check_line("/usr/lib/migperf and /var/lib/migperf", 0);
    }

    #[test]
    fn ignored_files_are_not_looked_at() {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in [
            (".gitignore", "/target\n"),
            (".git/config", ""),
            ("target/a.rs", ""),
            (".ci/run", "#!/bin/bash"),
            ("core/src/lib.rs", ""),
        ] {
            let file = root.path().join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        let paths: Vec<String> = files(root.path()).unwrap().into_iter().map(|file| file.path).collect();
        assert_eq!(paths, [".ci/run", ".gitignore", "core/src/lib.rs"]);
    }
}
