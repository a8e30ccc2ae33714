//! Processes of the real machine that have contexts on the simulated one.

use serde::{Deserialize, Serialize};

/// A process, told apart from a later one with the same id by when it started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its id.
    pub pid: u32,
    /// Clock ticks between boot and its start.
    pub started: u64,
}

impl Process {
    /// The process of this id, if one runs.
    #[must_use]
    pub fn find(pid: u32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name, in parentheses, may hold anything; what follows it is regular. See proc_pid_stat(5).
        let mut fields = stat.get(stat.rfind(')')? + 2..)?.split(' ');
        let state = fields.next()?;
        let started = fields.nth(18)?.parse().ok()?;
        (!matches!(state, "Z" | "X")).then_some(Self { pid, started })
    }

    /// The calling process.
    #[must_use]
    pub fn current() -> Self {
        Self::find(std::process::id()).expect("the calling process runs")
    }

    /// Whether it still runs.
    #[must_use]
    pub fn is_alive(self) -> bool {
        Self::find(self.pid) == Some(self)
    }

    /// The first argument of a process, or its name.
    #[must_use]
    pub fn program(pid: u32) -> Option<String> {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let program = line.split(|byte| *byte == 0).next().filter(|program| !program.is_empty())?;
        Some(String::from_utf8_lossy(program).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel fills in a new program's arguments, and ends a process, a moment after it was told to.
    fn eventually(condition: impl Fn() -> bool) {
        let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while !condition() {
            assert!(std::time::Instant::now() < until);
            std::thread::yield_now();
        }
    }

    #[test]
    fn an_ended_process_is_not_alive_even_before_it_is_reaped() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::find(child.id()).unwrap();
        assert!(process.is_alive() && Process::current().is_alive());
        eventually(|| Process::program(child.id()).as_deref() == Some("sleep"));
        child.kill().unwrap();
        eventually(|| !process.is_alive());
        child.wait().unwrap();
        assert!(!process.is_alive());
    }
}
