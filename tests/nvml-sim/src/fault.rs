//! Faults that the environment plans for calls, see [`sim_machine::faults`].

use std::time::Duration;

use sim_machine::faults::{self, Effect};

use crate::code;

/// A call that has begun. Dropping it is its end.
#[derive(Debug)]
pub(crate) struct Call {
    /// The answer that it gives without doing anything.
    pub(crate) answer: Option<u32>,
    deadly: bool,
}

fn die() {
    let _ = nix::sys::signal::kill(nix::unistd::Pid::this(), nix::sys::signal::Signal::SIGKILL);
}

/// Begins a call of a function.
pub(crate) fn enter(function: &str) -> Call {
    let effect = faults::enter(function).unwrap_or_else(|error| {
        eprintln!("nvml-sim: the plan of faults cannot be used: {error}");
        Some(Effect::Code(code::UNKNOWN))
    });
    let mut call = Call { answer: None, deadly: false };
    match effect {
        None => {}
        Some(Effect::Code(code)) => call.answer = Some(code),
        Some(Effect::Nothing) => call.answer = Some(code::SUCCESS),
        Some(Effect::HangMs(0)) => loop {
            std::thread::sleep(Duration::from_secs(3600));
        },
        Some(Effect::HangMs(ms)) => std::thread::sleep(Duration::from_millis(ms)),
        Some(Effect::KillBefore) => die(),
        Some(Effect::KillAfter) => call.deadly = true,
    }
    call
}

impl Drop for Call {
    fn drop(&mut self) {
        if self.deadly {
            die();
        }
    }
}

/// Begins a call, and ends it where an answer is planned.
macro_rules! begin {
    ($function:literal) => {
        let call = $crate::fault::enter($function);
        if let Some(code) = call.answer {
            return code;
        }
    };
}
pub(crate) use begin;
