//! Worker processes: started, listened to, and ended without exception.
//!
//! A worker is a process group of its own, killed by the kernel when this daemon ends however that happens. Its frames, and
//! then how it ended, come as cohort events in one order.

use std::io::{BufRead as _, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use migperf_core::cohort::Event;
use migperf_core::worker_wire::{Decoder, Frame, FromWorker, ToWorker, WireError, encode};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// Lines of a worker's standard error that are kept for the message about its end.
const KEPT_LINES: usize = 12;
/// How long a process that closed its connection may take to end before that is reported without its status.
const END_LIMIT: Duration = Duration::from_secs(6);

/// Why a process could not be started or spoken to.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// It could not be started.
    #[error("can't start {program}")]
    Start {
        /// Which program.
        program: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A message could not be sent.
    #[error("can't write to the worker")]
    Write(#[source] std::io::Error),
    /// A message is too long.
    #[error("can't encode a message for the worker")]
    Encode(#[source] WireError),
}

/// A process that the kernel kills when this daemon ends.
#[derive(Debug)]
pub struct BoundProcess {
    /// Its process id, and its process group's.
    pub pid: u32,
    ended: Ended,
}

/// How a process ended, once it has.
type Ended = watch::Receiver<Option<String>>;

async fn wait(ended: &mut Ended, limit: Duration) -> Option<String> {
    let over = ended.wait_for(Option::is_some);
    tokio::time::timeout(limit, over).await.ok().and_then(Result::ok).and_then(|how| how.clone())
}

impl BoundProcess {
    /// Starts a command that binds itself to its parent: the launcher does, in both of its forms.
    ///
    /// The kernel takes the *thread* that forked for the parent, so each process has a thread that lives as long as it does.
    ///
    /// # Errors
    /// If the program can't be executed.
    pub fn start(mut command: Command) -> Result<Self, WorkerError> {
        let program = command.get_program().to_string_lossy().into_owned();
        let failed = |source| WorkerError::Start { program: program.clone(), source };
        command.process_group(0).stderr(Stdio::piped());
        let (started, start) = std::sync::mpsc::sync_channel(1);
        let (end, ended) = watch::channel(None);
        std::thread::Builder::new()
            .name("worker-keeper".to_owned())
            .spawn(move || match command.spawn() {
                Err(error) => drop(started.send(Err(error))),
                Ok(child) => {
                    // The command holds our copy of the worker's end of the connection.
                    drop(command);
                    let _ = started.send(Ok(child.id()));
                    let _ = end.send(Some(keep(child)));
                }
            })
            .map_err(failed)?;
        let pid = start.recv().expect("the keeper always answers").map_err(failed)?;
        Ok(Self { pid, ended })
    }

    /// Its end, for somebody else to wait for.
    #[must_use]
    pub fn end(&self) -> ProcessEnd {
        ProcessEnd(self.ended.clone())
    }

    /// Waits until it has ended; `None` if that takes longer than `limit`.
    pub async fn ended(&mut self, limit: Duration) -> Option<String> {
        wait(&mut self.ended, limit).await
    }

    /// Kills its whole process group, and waits until it is gone.
    pub async fn kill(&mut self) {
        self.kill_now();
        if self.ended(END_LIMIT).await.is_none() {
            tracing::error!(pid = self.pid, "a killed process does not end: it is stuck in the driver");
        }
    }

    /// Kills its whole process group.
    pub fn kill_now(&self) {
        if self.ended.borrow().is_none()
            && let Ok(group) = i32::try_from(self.pid)
        {
            // It may have ended between the look and the signal; its keeper has not waited for it then, and the number
            // is not another's yet.
            let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
        }
    }
}

/// The end of a process, however far off.
#[derive(Debug)]
pub struct ProcessEnd(Ended);

impl ProcessEnd {
    /// Waits for it, and says how it ended.
    pub async fn over(&mut self) -> String {
        let how = self.0.wait_for(Option::is_some).await.ok().and_then(|how| how.clone());
        how.unwrap_or_else(|| "its keeper ended".to_owned())
    }
}

/// Reads a child's standard error to its end and waits for it. Says how it ended, with its last words.
fn keep(mut child: Child) -> String {
    let mut last = std::collections::VecDeque::new();
    if let Some(errors) = child.stderr.take() {
        for line in BufReader::new(errors).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line).trim_end().to_owned();
            tracing::debug!(pid = child.id(), "{line}");
            if last.len() == KEPT_LINES {
                last.pop_front();
            }
            last.push_back(line);
        }
    }
    let how = child.wait().map_or_else(|error| error.to_string(), describe);
    let words = last.into_iter().filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ");
    if words.is_empty() { how } else { format!("{how}: {words}") }
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => {
            let name = Signal::try_from(signal).map_or_else(|_| signal.to_string(), |signal| signal.to_string());
            format!("killed by {name}")
        }
        (None, None) => "ended".to_owned(),
    }
}

/// A worker and the daemon's end of its connection.
#[derive(Debug)]
pub struct Worker {
    process: BoundProcess,
    writer: OwnedWriteHalf,
}

impl Worker {
    /// Starts the launcher, and tells it what to become. Everything that follows comes through `events`.
    ///
    /// # Errors
    /// If the launcher can't be started.
    pub async fn start(
        member: usize,
        launcher: &Path,
        launch: ToWorker,
        events: mpsc::Sender<Event>,
    ) -> Result<Self, WorkerError> {
        let program = launcher.display().to_string();
        let failed = |source| WorkerError::Start { program: program.clone(), source };
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(failed)?;
        ours.set_nonblocking(true).map_err(failed)?;
        let mut command = Command::new(launcher);
        command.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::null());
        let process = BoundProcess::start(command)?;
        let (reader, writer) = UnixStream::from_std(ours).map_err(failed)?.into_split();
        tokio::spawn(listen(member, reader, process.ended.clone(), events));
        let mut worker = Self { process, writer };
        worker.send(&launch).await?;
        Ok(worker)
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid
    }

    /// Sends a message.
    ///
    /// # Errors
    /// If the connection ended.
    pub async fn send(&mut self, message: &ToWorker) -> Result<(), WorkerError> {
        let bytes = encode(message).map_err(WorkerError::Encode)?;
        self.writer.write_all(&bytes).await.map_err(WorkerError::Write)
    }

    /// Closes the connection, which ends a worker.
    pub async fn hang_up(&mut self) {
        // The other side may be gone already.
        let _ = self.writer.shutdown().await;
    }

    /// Waits for its end. Says whether it came in time.
    pub async fn ends_by(&mut self, limit: Instant) -> bool {
        self.process.ended(limit.saturating_duration_since(Instant::now())).await.is_some()
    }

    /// Kills what did not end when its connection did.
    pub async fn kill(&mut self) {
        self.process.kill().await;
    }
}

/// Turns a worker's frames, and then its end, into events.
async fn listen(member: usize, mut reader: OwnedReadHalf, mut ended: Ended, events: mpsc::Sender<Event>) {
    let mut decoder = Decoder::default();
    let mut buffer = vec![0; 64 << 10];
    loop {
        match reader.read(&mut buffer).await {
            Ok(0) | Err(_) => break,
            Ok(count) => decoder.push(&buffer[..count]),
        }
        loop {
            let event = match decoder.next_frame::<FromWorker>() {
                Ok(None) => break,
                Ok(Some(Frame::Message(message))) => Event::Message(member, message),
                Ok(Some(Frame::Samples(samples))) => Event::Samples(member, samples),
                Err(error) => {
                    let _ =
                        events.send(Event::Gone(member, format!("its connection holds no protocol: {error}"))).await;
                    return;
                }
            };
            if events.send(event).await.is_err() {
                return;
            }
        }
    }
    let how = wait(&mut ended, END_LIMIT).await.unwrap_or_else(|| "it closed its connection and goes on".to_owned());
    let _ = events.send(Event::Gone(member, how)).await;
}
