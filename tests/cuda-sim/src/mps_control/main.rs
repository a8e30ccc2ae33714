//! A simulated `nvidia-cuda-mps-control`: `-d` and `-f` start the daemon of `CUDA_MPS_PIPE_DIRECTORY`; without arguments
//! it reads commands for that daemon from its input. Started under the name `nvidia-cuda-mps-server` it is the server.

mod daemon;
mod server;

use std::io::{BufRead as _, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// Where the daemon's socket lies.
fn folder() -> PathBuf {
    std::env::var_os("CUDA_MPS_PIPE_DIRECTORY").map_or_else(|| "/tmp/nvidia-mps".into(), PathBuf::from)
}

fn main() -> ExitCode {
    let mut arguments = std::env::args();
    let program = arguments.next().unwrap_or_default();
    if program.ends_with(server::NAME) {
        return server::run();
    }
    match arguments.collect::<Vec<_>>().iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => session(),
        ["-f"] => daemon::run(&folder()),
        ["-d"] => background(),
        _ => {
            eprintln!("usage: nvidia-cuda-mps-control [-d | -f]");
            ExitCode::FAILURE
        }
    }
}

/// Starts the daemon in the background and waits until it can be reached.
fn background() -> ExitCode {
    let socket = folder().join("control");
    if UnixStream::connect(&socket).is_ok() {
        eprintln!("An instance of this daemon is already running");
        return ExitCode::FAILURE;
    }
    let daemon = Command::new("/proc/self/exe")
        .arg("-f")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn();
    let mut daemon = match daemon {
        Ok(daemon) => daemon,
        Err(error) => {
            eprintln!("the daemon cannot be started: {error}");
            return ExitCode::FAILURE;
        }
    };
    let until = Instant::now() + Duration::from_secs(10);
    while UnixStream::connect(&socket).is_err() {
        if Instant::now() > until || matches!(daemon.try_wait(), Ok(Some(_)) | Err(_)) {
            eprintln!("the daemon did not start");
            return ExitCode::FAILURE;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    ExitCode::SUCCESS
}

/// Sends each line of the input to the daemon and prints its answer.
fn session() -> ExitCode {
    let socket = folder().join("control");
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let mut answer = String::new();
        let asked = UnixStream::connect(&socket).and_then(|mut connection| {
            writeln!(connection, "{line}")?;
            connection.read_to_string(&mut answer)
        });
        if asked.is_err() {
            eprintln!("Cannot find MPS control daemon process");
            return ExitCode::FAILURE;
        }
        // A reader that went away is no failure of the daemon.
        let _ = std::io::stdout().write_all(answer.as_bytes());
    }
    ExitCode::SUCCESS
}
