//! Where text goes: results to standard output, everything else to standard error.

use std::env;
use std::io::{self, IsTerminal as _, Write as _};

use anyhow::Context as _;
use terminal_size::{Width, terminal_size_of};

/// Columns where there is no terminal to ask.
const USUAL_WIDTH: usize = 120;

/// Writes to standard output. A reader that has seen enough (`| head`) is no failure.
pub(crate) fn put(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error).context("can't write to standard output"),
        _ => Ok(()),
    }
}

/// The same, with a line end.
pub(crate) fn line(text: &str) -> anyhow::Result<()> {
    put(&format!("{text}\n"))
}

/// A line about what goes on, on standard error. Nobody is left to tell if that fails.
pub(crate) fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "migperf: {text}");
}

/// How standard output shows text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Display {
    /// In columns.
    pub(crate) width: usize,
    pub(crate) colour: bool,
}

/// What standard output is.
pub(crate) fn display() -> Display {
    let set = |name| env::var_os(name).is_some_and(|value| !value.is_empty());
    let dumb = env::var_os("TERM").is_some_and(|term| term == "dumb");
    let terminal = terminal_size_of(io::stdout()).map(|(Width(columns), _)| columns.into());
    Display { width: terminal.unwrap_or(USUAL_WIDTH), colour: io::stdout().is_terminal() && !set("NO_COLOR") && !dumb }
}

/// Text of others without what could disturb a terminal.
pub(crate) fn harmless(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(super::harmless("a\u{1b}[2Jb\nc"), "a\u{fffd}[2Jb\u{fffd}c");
    }
}
