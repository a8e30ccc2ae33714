//! A worker whose batches are naps of a hundredth of a second: it speaks the worker's protocol without libtorch, so that
//! tests of the daemon cost no processor. It answers for any device it is given.
//!
//! What the file that `PACED_WORKER` names holds is how it breaks the protocol; nothing there: it doesn't. What breaks after
//! the launch is broken by member 0 alone.

use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::process::{abort, exit};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use migperf_core::sample::Sample;
use migperf_core::units::MonotonicNanos;
use migperf_core::worker_wire::{
    Allocation, Built, ConfigDigest, Decoder, Done, FailureKind, Frame, FromWorker, LONGEST_FRAME, MemberConfig,
    PROTOCOL, Proof, Ready, ToWorker, encode, encode_samples,
};
use nix::time::{ClockId, clock_gettime};

const BATCH: Duration = Duration::from_millis(10);
const PROGRESS: Duration = Duration::from_millis(500);
/// Longer than any test.
const FOR_EVER: Duration = Duration::from_secs(600);

fn main() {
    let name = std::env::var("PACED_WORKER").unwrap_or_default();
    let fault = std::fs::read_to_string(name).unwrap_or_default();
    let connection = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().expect("a connection"));
    let stop = Arc::new(AtomicBool::new(false));
    let messages = listen(connection.try_clone().expect("a second handle"), Arc::clone(&stop));
    Paced { connection, messages, stop, fault }.live();
}

/// Reads messages until the connection ends, and the process with it.
fn listen(mut connection: UnixStream, stop: Arc<AtomicBool>) -> Receiver<ToWorker> {
    let (sender, messages) = sync_channel(8);
    std::thread::spawn(move || {
        let mut decoder = Decoder::default();
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = connection.read(&mut bytes) {
            decoder.push(&bytes[..count]);
            while let Some(Frame::Message(message)) = decoder.next_frame().expect("the daemon keeps to the protocol") {
                stop.fetch_or(message == ToWorker::Stop, Ordering::Relaxed);
                let _ = sender.send(message);
            }
        }
        exit(0);
    });
    messages
}

struct Paced {
    connection: UnixStream,
    messages: Receiver<ToWorker>,
    stop: Arc<AtomicBool>,
    fault: String,
}

impl Paced {
    fn live(&mut self) {
        match self.fault.as_str() {
            "garbage" => self.write(b"\x10\x00\x00\x00\x01these are no json"),
            "unknown kind" => self.write(b"\x01\x00\x00\x00\x09x"),
            "long frame" => {
                let length = u32::try_from(LONGEST_FRAME + 1).expect("it is short enough for its field");
                self.write(&[&length.to_le_bytes()[..], &[1]].concat());
            }
            "half a frame" => {
                self.write(b"\x10\x00\x00\x00\x01{");
                exit(0);
            }
            "words" => {
                eprintln!("paced-worker: something is missing");
                exit(3);
            }
            "crash" => abort(),
            "silence" => std::thread::sleep(FOR_EVER),
            _ => {}
        }
        let protocol = if self.fault == "version" { PROTOCOL + 1 } else { PROTOCOL };
        let version = env!("CARGO_PKG_VERSION").to_owned();
        self.send(&FromWorker::Hello { protocol, pid: std::process::id(), version });
        let ToWorker::Prepare(config) = self.next() else { panic!("not prepare") };
        if config.member != 0 {
            self.fault.clear();
        }
        self.prepare(&config);
        let ToWorker::Warm = self.next() else { panic!("not warm") };
        std::thread::sleep(config.timing.warmup.0);
        let digest = if self.fault == "digest" { ConfigDigest("0".repeat(64)) } else { config.digest() };
        let typical_ns = u64::try_from(BATCH.as_nanos()).expect("a short time");
        self.send(&FromWorker::Ready(Ready { digest, batches: 1, first_ns: typical_ns, typical_ns }));
        let ToWorker::Start { at, count_from } = self.next() else { panic!("not start") };
        self.work(&config, at, count_from);
        // The daemon closes the connection.
        std::thread::sleep(FOR_EVER);
    }

    fn prepare(&mut self, config: &MemberConfig) {
        match self.fault.as_str() {
            "never built" => std::thread::sleep(FOR_EVER),
            "samples early" => self.write(&encode_samples(&[]).expect("no samples are few")),
            "ready early" => {
                let ready = Ready { digest: config.digest(), batches: 1, first_ns: 1, typical_ns: 1 };
                self.send(&FromWorker::Ready(ready));
            }
            "does not fit" => {
                let message = "the parameters need 3 bytes, there are 2".to_owned();
                self.send(&FromWorker::Failed { kind: FailureKind::DoesNotFit, message });
            }
            _ => {}
        }
        let mut proof = Proof {
            devices: 0,
            uuid: None,
            name: None,
            multiprocessors: None,
            memory: None,
            mps: None,
            driver_version: None,
            processors: Vec::new(),
        };
        if let Allocation::Cuda { uuid, multiprocessors, memory, mps, .. } = &config.allocation {
            (proof.devices, proof.uuid, proof.multiprocessors) = (1, Some(uuid.clone()), *multiprocessors);
            (proof.memory, proof.mps) = (Some(*memory), Some(*mps));
        }
        self.send(&FromWorker::Built(Built { proof, parameters: 0, engine: "naps".to_owned(), elapsed_ns: 1 }));
    }

    fn work(&mut self, config: &MemberConfig, at: MonotonicNanos, count_from: MonotonicNanos) {
        std::thread::sleep(at.since(now()));
        let started = if self.fault == "late" { now().plus(Duration::from_secs(2)) } else { now() };
        let (mut samples, mut completed, mut counted) = (Vec::new(), 0, 0);
        let mut reported = Instant::now();
        while !self.stop.load(Ordering::Relaxed) {
            let start = now();
            std::thread::sleep(BATCH);
            samples.push(Sample { start, end: now(), items: config.workload.batch_size });
            completed += 1;
            counted += u64::from(start >= count_from);
            if reported.elapsed() >= PROGRESS && self.fault != "no progress" {
                reported = Instant::now();
                self.send(&FromWorker::Progress { completed, counted });
            }
        }
        match self.fault.as_str() {
            "slow to hand over" => std::thread::sleep(FOR_EVER),
            "out of order" => samples.reverse(),
            _ => {}
        }
        for part in samples.chunks(1000) {
            self.write(&encode_samples(part).expect("few samples"));
        }
        self.send(&FromWorker::Done(Done {
            samples: samples.len() as u64 + u64::from(self.fault == "miscounted"),
            lost: 0,
            started,
            allocated_peak: None,
            reserved_peak: None,
            resident_peak: None,
            finite: None,
        }));
    }

    fn next(&self) -> ToWorker {
        self.messages.recv().expect("the reader ends the process, not the channel")
    }

    fn send(&mut self, message: &FromWorker) {
        self.write(&encode(message).expect("a short message"));
    }

    /// A daemon that has closed the connection is about to be noticed by the reader.
    fn write(&mut self, bytes: &[u8]) {
        let _ = self.connection.write_all(bytes);
    }
}

fn now() -> MonotonicNanos {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("Linux has this clock");
    let nanos = Duration::from(time).as_nanos();
    MonotonicNanos(u64::try_from(nanos).expect("the machine has not run for centuries"))
}
