//! The control daemon: who may be a client, and the answers to commands.
//!
//! One line on a connection to the socket `control` is a request. A client's connection stays open for as long as it is a
//! client. The first client decides whose the server is; a client of another user is refused.

use std::fs::Permissions;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use sim_machine::process::Process;

use crate::server;

/// What the daemon knows.
struct Daemon {
    folder: PathBuf,
    server: Option<Server>,
    clients: Vec<Client>,
    default_percentage: f64,
    quitting: bool,
}

struct Server {
    child: Child,
    user: u32,
    /// Lines that were sent to it: the devices it is on.
    devices: Vec<String>,
}

struct Client {
    pid: u32,
    device: String,
}

type Shared = Arc<Mutex<Daemon>>;

fn lock(daemon: &Shared) -> MutexGuard<'_, Daemon> {
    daemon.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves until told to quit.
pub(crate) fn run(folder: &Path) -> ExitCode {
    let listener = match listen(folder) {
        Ok(listener) => listener,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let daemon = Arc::new(Mutex::new(Daemon {
        folder: folder.to_owned(),
        server: None,
        clients: Vec::new(),
        default_percentage: 100.0,
        quitting: false,
    }));
    for connection in listener.incoming().map_while(Result::ok) {
        let daemon = Arc::clone(&daemon);
        std::thread::spawn(move || serve(&daemon, &connection));
    }
    ExitCode::FAILURE
}

fn listen(folder: &Path) -> io::Result<UnixListener> {
    let socket = folder.join("control");
    if UnixStream::connect(&socket).is_ok() {
        return Err(io::Error::other("An instance of this daemon is already running"));
    }
    if !folder.exists() {
        std::fs::create_dir(folder)?;
    }
    if socket.exists() {
        std::fs::remove_file(&socket)?;
    }
    let listener = UnixListener::bind(&socket)?;
    std::fs::set_permissions(&socket, Permissions::from_mode(0o666))?;
    std::fs::write(folder.join("nvidia-cuda-mps-control.pid"), std::process::id().to_string())?;
    if let Some(logs) = std::env::var_os("CUDA_MPS_LOG_DIRECTORY").map(PathBuf::from) {
        std::fs::write(logs.join("control.log"), "Start\n")?;
    }
    Ok(listener)
}

fn serve(daemon: &Shared, mut connection: &UnixStream) {
    let mut line = String::new();
    if BufReader::new(connection).read_line(&mut line).is_err() {
        return;
    }
    let words: Vec<&str> = line.split_whitespace().collect();
    // Whoever asked may have gone; there is nobody to tell.
    match words[..] {
        ["client", gpu, gi, ci] => {
            let _ = client(daemon, connection, &format!("{gpu} {gi} {ci}"));
        }
        ["quit"] => quit(daemon, None),
        ["quit", "-t", seconds] => quit(daemon, seconds.parse().ok().map(Duration::from_secs)),
        _ => {
            let answer = lock(daemon).command(&words);
            let _ = connection.write_all(answer.as_bytes());
        }
    }
}

/// Keeps a client for as long as its connection is open.
fn client(daemon: &Shared, mut connection: &UnixStream, device: &str) -> io::Result<()> {
    let peer = getsockopt(&connection, PeerCredentials)?;
    let pid = u32::try_from(peer.pid()).map_err(io::Error::other)?;
    let percentage = {
        let mut daemon = lock(daemon);
        if daemon.quitting || !daemon.serve_user(peer.uid(), device)? {
            return connection.write_all(b"refused\n");
        }
        daemon.clients.push(Client { pid, device: device.to_owned() });
        daemon.default_percentage
    };
    let ended = writeln!(connection, "welcome {percentage}").and_then(|()| connection.read(&mut [0]));
    lock(daemon).clients.retain(|client| client.pid != pid);
    ended.map(|_| ())
}

/// Ends the daemon once its clients have gone or `limit` has passed. The server ends with it.
fn quit(daemon: &Shared, limit: Option<Duration>) {
    lock(daemon).quitting = true;
    let started = Instant::now();
    while !lock(daemon).clients.is_empty() && limit.is_none_or(|limit| started.elapsed() < limit) {
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut daemon = lock(daemon);
    for name in ["control", "nvidia-cuda-mps-control.pid"] {
        let _ = std::fs::remove_file(daemon.folder.join(name));
    }
    if let Some(mut server) = daemon.server.take() {
        drop(server.child.stdin.take());
        let _ = server.child.wait();
    }
    std::process::exit(0);
}

impl Daemon {
    /// Sees that the server is on a device; false if it is another user's.
    fn serve_user(&mut self, user: u32, device: &str) -> io::Result<bool> {
        let server = match &mut self.server {
            Some(server) => server,
            none => none.insert(Server { child: start_server()?, user, devices: Vec::new() }),
        };
        if server.user != user {
            return Ok(false);
        }
        if !server.devices.iter().any(|known| known == device) {
            let pipe = server.child.stdin.as_mut().ok_or_else(|| io::Error::other("the server has no input"))?;
            writeln!(pipe, "{device}")?;
            server.devices.push(device.to_owned());
        }
        Ok(true)
    }

    fn command(&mut self, words: &[&str]) -> String {
        let server = self.server.as_ref().map(|server| server.child.id());
        let is_server = |pid: &str| server.is_some_and(|server| pid.parse() == Ok(server));
        match words {
            ["get_server_list"] => server.map(|pid| format!("{pid}\n")).unwrap_or_default(),
            ["get_server_status", pid] if is_server(pid) => "ACTIVE\n".to_owned(),
            ["get_client_list", pid] if is_server(pid) => {
                self.clients.iter().map(|client| format!("{}\n", client.pid)).collect()
            }
            ["get_server_status" | "get_client_list", pid] => format!("Server {pid} not found\n"),
            ["ps"] => self.clients.iter().fold(
                "PID       ID    SERVER    DEVICE    NAMESPACE    COMMAND\n".to_owned(),
                |table, client| {
                    let program = Process::program(client.pid).unwrap_or_default();
                    let server = server.unwrap_or_default();
                    format!("{table}{:<9} 0     {server:<9} {:<9} 0            {program}\n", client.pid, client.device)
                },
            ),
            ["get_default_active_thread_percentage"] => format!("{:.1}\n", self.default_percentage),
            ["set_default_active_thread_percentage", share] => match share.parse() {
                Ok(share @ 0.1..=100.0) => {
                    self.default_percentage = share;
                    format!("{share:.1}\n")
                }
                _ => "Invalid percentage\n".to_owned(),
            },
            _ => format!("Command not recognized: {}\n", words.join(" ")),
        }
    }
}

fn start_server() -> io::Result<Child> {
    Command::new("/proc/self/exe").arg0(server::NAME).stdin(Stdio::piped()).stdout(Stdio::null()).spawn()
}
