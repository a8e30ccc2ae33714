//! The server through which clients reach a GPU: a process that is on it. It ends when its daemon does.

use std::io::BufRead as _;
use std::process::ExitCode;

use sim_machine::process::Process;
use sim_machine::shared::Shared;
use sim_machine::state::{Context, Role};

/// The program's name, by which people and tools know it.
pub(crate) const NAME: &str = "nvidia-cuda-mps-server";

/// Frame buffer that it holds, MiB (seen on an H200).
const SERVER_MB: u64 = 69;

/// Takes a context on each device that the daemon names on a line of its own: GPU index, GPU and compute instance.
pub(crate) fn run() -> ExitCode {
    let Ok(shared) = Shared::from_environment() else { return ExitCode::FAILURE };
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let numbers: Vec<Option<u32>> = line.split(' ').map(|number| number.parse().ok()).collect();
        let [Some(gpu), gi, ci] = numbers[..] else { return ExitCode::FAILURE };
        let taken = shared.update(|_, state| {
            let contexts = state.gpus.get_mut(gpu as usize).map(|gpu| &mut gpu.contexts)?;
            let (process, instance) = (Process::current(), gi.zip(ci));
            contexts.push(Context { process, role: Role::MpsServer, instance, memory_mb: SERVER_MB });
            Some(())
        });
        if !matches!(taken, Ok(Some(()))) {
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
