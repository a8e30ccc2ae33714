//! The worker's side of its connection: a thread that reads, and writes from whoever's turn it is.
//!
//! The end of the connection is the end of the worker: a worker that is inside the device then has a few seconds to come
//! back before it is killed.

use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use migperf_core::sample::Sample;
use migperf_core::worker_wire::{
    Decoder, Frame, FromWorker, SAMPLES_PER_FRAME, ToWorker, WireError, encode, encode_samples,
};
use nix::sys::signal::{Signal, raise};

/// How long a worker may stay inside the device after its connection ended.
const LAST_BATCH: Duration = Duration::from_secs(5);

/// Why a message could not be exchanged.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// The daemon is gone, or has no more use for this worker.
    #[error("the daemon closed the connection")]
    Closed,
    /// The daemon sent something else than its turn.
    #[error("the daemon sent a message out of turn")]
    OutOfTurn,
    /// Writing failed.
    #[error("can't write to the daemon")]
    Write(#[source] std::io::Error),
    /// A message is too long.
    #[error("can't encode a message")]
    Encode(#[source] WireError),
    /// Standard input is no connection.
    #[error("standard input is not a connection; workers are started by migperfd")]
    NoConnection(#[source] std::io::Error),
}

/// A connection to the daemon.
#[derive(Debug)]
pub struct Connection {
    stream: UnixStream,
    messages: Receiver<ToWorker>,
    stop: Arc<AtomicBool>,
}

impl Connection {
    /// Takes the socket on standard input and begins to read it.
    ///
    /// # Errors
    /// If standard input is no socket.
    pub fn from_standard_input() -> Result<Self, ConnectionError> {
        let owned = std::io::stdin().as_fd().try_clone_to_owned().map_err(ConnectionError::NoConnection)?;
        let stream = UnixStream::from(owned);
        let mut reader = stream.try_clone().map_err(ConnectionError::NoConnection)?;
        reader.local_addr().map_err(ConnectionError::NoConnection)?;
        let (sender, messages) = sync_channel(4);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        std::thread::spawn(move || {
            let mut decoder = Decoder::default();
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = reader.read(&mut bytes) {
                decoder.push(&bytes[..count]);
                while let Ok(Some(Frame::Message(message))) = decoder.next_frame() {
                    if message == ToWorker::Stop {
                        stopped.store(true, Ordering::Relaxed);
                    }
                    if sender.send(message).is_err() {
                        return;
                    }
                }
            }
            stopped.store(true, Ordering::Relaxed);
            drop(sender);
            // The main thread sees the closed channel and returns, unless it is stuck inside the device.
            std::thread::sleep(LAST_BATCH);
            let _ = raise(Signal::SIGKILL);
        });
        Ok(Self { stream, messages, stop })
    }

    /// Becomes true when the daemon says `stop`, or is gone.
    #[must_use]
    pub fn stop_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.stop)
    }

    /// Another handle that sends, for a thread of its own.
    ///
    /// # Errors
    /// If the system gives no further descriptor.
    pub fn sender(&self) -> Result<Sender, ConnectionError> {
        Ok(Sender { stream: self.stream.try_clone().map_err(ConnectionError::Write)? })
    }

    /// Waits for the daemon's next message.
    ///
    /// # Errors
    /// If the connection ended.
    pub fn receive(&self) -> Result<ToWorker, ConnectionError> {
        self.messages.recv().map_err(|_| ConnectionError::Closed)
    }

    /// Sends a message.
    ///
    /// # Errors
    /// If the connection ended.
    pub fn send(&self, message: &FromWorker) -> Result<(), ConnectionError> {
        write(&self.stream, &encode(message).map_err(ConnectionError::Encode)?)
    }

    /// Sends samples, in as many frames as they need.
    ///
    /// # Errors
    /// If the connection ended.
    pub fn send_samples(&self, samples: &[Sample]) -> Result<(), ConnectionError> {
        samples
            .chunks(SAMPLES_PER_FRAME)
            .try_for_each(|part| write(&self.stream, &encode_samples(part).map_err(ConnectionError::Encode)?))
    }

    /// Says that nothing more comes, and waits for the daemon to close.
    pub fn finish(self) {
        let _ = self.stream.shutdown(Shutdown::Write);
        while self.messages.recv().is_ok() {}
    }
}

/// Sends messages from another thread, between those of the main one.
#[derive(Debug)]
pub struct Sender {
    stream: UnixStream,
}

impl Sender {
    /// Sends a message.
    ///
    /// # Errors
    /// If the connection ended.
    pub fn send(&self, message: &FromWorker) -> Result<(), ConnectionError> {
        write(&self.stream, &encode(message).map_err(ConnectionError::Encode)?)
    }
}

fn write(mut stream: &UnixStream, bytes: &[u8]) -> Result<(), ConnectionError> {
    stream.write_all(bytes).map_err(ConnectionError::Write)
}
