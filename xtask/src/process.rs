//! Running other programs: said before, checked after.

use std::env;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context, Result, bail};

/// Runs a program whose output the user sees.
///
/// # Errors
/// When it can't be started or fails.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    say(command);
    let status = command.status().with_context(|| cannot_start(command))?;
    check(command, status)
}

/// Runs a program and returns what it wrote to its standard output.
///
/// # Errors
/// When it can't be started, fails, or writes what isn't UTF-8.
pub(crate) fn capture(command: &mut Command) -> Result<String> {
    let output = command.stderr(Stdio::inherit()).output().with_context(|| cannot_start(command))?;
    check(command, output.status)?;
    String::from_utf8(output.stdout).with_context(|| format!("`{}` wrote what isn't UTF-8", text(command)))
}

/// Whether a program starts and succeeds; its output is of no interest.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

/// Runs a program and hands over each line of its standard output while it runs.
///
/// # Errors
/// When it can't be started or its output can't be read; a failure of the program itself is in the status.
pub(crate) fn stream(command: &mut Command, mut line: impl FnMut(&str)) -> Result<ExitStatus> {
    say(command);
    let mut child = command.stdout(Stdio::piped()).spawn().with_context(|| cannot_start(command))?;
    let mut output = BufReader::new(child.stdout.take().expect("the standard output was asked for"));
    let mut bytes = Vec::new();
    while output.read_until(b'\n', &mut bytes)? > 0 {
        line(String::from_utf8_lossy(&bytes).trim_end_matches('\n'));
        bytes.clear();
    }
    child.wait().with_context(|| format!("`{}` could not be waited for", text(command)))
}

/// Fails unless `status` is success.
///
/// # Errors
/// Names the command and how it ended.
pub(crate) fn check(command: &Command, status: ExitStatus) -> Result<()> {
    if !status.success() {
        bail!("`{}` failed ({status})", text(command));
    }
    Ok(())
}

/// The first file of that name in the folders of `PATH`.
pub(crate) fn on_path(name: &str) -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?).map(|folder| folder.join(name)).find(|file| file.is_file())
}

fn say(command: &Command) {
    eprintln!("+ {}", text(command));
}

fn cannot_start(command: &Command) -> String {
    format!("`{}` could not be started", command.get_program().display())
}

fn text(command: &Command) -> String {
    let program = PathBuf::from(command.get_program());
    let name = program.file_name().unwrap_or(program.as_os_str()).to_string_lossy().into_owned();
    let arguments = command.get_args().map(|argument| argument.to_string_lossy().into_owned());
    std::iter::once(name).chain(arguments).collect::<Vec<_>>().join(" ")
}
