//! Damaged suites and damaged frames: whatever comes in, nothing panics and every refusal says why.
//!
//! Deterministic, so that a failure can be run again. The short runs are part of the tests; the long ones are
//! `cargo test --release -p migperf-core --test fuzz -- --ignored`.

use migperf_core::plan::{Plan, render_text};
use migperf_core::sample::Sample;
use migperf_core::suite::{Suite, Target};
use migperf_core::units::MonotonicNanos;
use migperf_core::worker_wire::{
    Allocation, Built, ConfigDigest, Decoder, Done, FailureKind, Frame, FromWorker, LONGEST_FRAME, Launch,
    MemberConfig, PROTOCOL, Proof, Ready, ToWorker, encode, encode_samples, missing,
};
use migperf_core::workload::{Model, Precision, Task, Workload};

const SHORT: u64 = 20_000;
const LONG: u64 = 1_000_000;

/// Xorshift64*: the same numbers on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound.max(1) as u64).unwrap()
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}

const TOKENS: &[&str] = &[
    "[[trial]]\n",
    "[trial]\n",
    "[defaults]\n",
    "[objective]\n",
    "version = 1\n",
    "name = \"y\"\n",
    "repeats = 1000\n",
    "sharing = ",
    "workers = ",
    "members = ",
    "workload = ",
    "only-on = ",
    "window = ",
    "settle = ",
    "model = ",
    "task = ",
    "batch-size = ",
    "sequence-length = ",
    "layout = ",
    "mode = ",
    "count = ",
    "active-thread-percentage = ",
    "metric = \"p99\"\n",
    "at-most = \"20ms\"\n",
    "of = \"infer\"\n",
    "longest-window = ",
    "precision = ",
    "\"exclusive\"",
    "\"time-slice\"",
    "\"mps\"",
    "\"mig\"",
    "\"cpu\"",
    "\"gpu\"",
    "\"7x1g\"",
    "\"3g+2g+1g\"",
    "\"1c.3g.20gb+me\"",
    "\"48x1g\"",
    "\"resnet18\"",
    "\"bert-base\"",
    "\"train\"",
    "\"infer\"",
    "\"45s\"",
    "\"1ms\"",
    "\"24h\"",
    "\"9999999999999h\"",
    "0",
    "1",
    "7",
    "48",
    "49",
    "-1",
    "1.5",
    "65536",
    "4294967296",
    "99999999999999999999999",
    "0x7fffffffffffffff",
    "1e308",
    "nan",
    "true",
    "1979-05-27",
    "[",
    "]",
    "{",
    "}",
    ",",
    "=",
    ".",
    "\n",
    "\"",
    "'''",
    "\\u0000",
    "#",
    "é",
    "\u{feff}",
    "\r\n",
    "[1, 2, 3, 4, 5, 6, 7, 8]",
    "[\"train\", \"infer\"]",
    "[[[[[[[[",
    "{ a = { a = { a = 1 } } }",
];

fn seeds() -> Vec<String> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs/suites");
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let shipped = paths.iter().map(|path| std::fs::read_to_string(path).unwrap());
    // Without comments more of the damage falls on what is read.
    let bare = |text: String| text.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n");
    let mut seeds: Vec<String> = shipped.map(bare).collect();
    seeds.push(
        r#"version = 1
name = "small"
[defaults]
repeats = 2
seed = 7
precision = "bf16"
[objective]
metric = "throughput"
at-least = "100/s"
of = { model = "resnet18", task = "infer" }
[[trial]]
sharing = ["mps", { mode = "mps", active-thread-percentage = [14, 50] }, { mode = "mig", layout = ["1g", "3g+2g"] }]
workers = [1, 2]
workload = { model = ["resnet18", "distilbert"], task = "infer", batch-size = 1, wait = ["spin", "block"] }
[[trial]]
only-on = "cpu"
sharing = "cpu"
window = "5s"
members = [ { count = 2, workload = { model = "resnet18", task = "infer", batch-size = [1, 2] } } ]
"#
        .to_owned(),
    );
    seeds
}

/// Half of the time a little and along the grain, so that much is still a suite; else at random.
fn damage(random: &mut Random, seeds: &[String]) -> Vec<u8> {
    let mut bytes = random.pick(seeds).clone().into_bytes();
    if random.below(2) == 0 {
        for _ in 0..=random.below(2) {
            match random.below(4) {
                0 => remove_line(random, &mut bytes),
                1 => replace_value(random, &mut bytes, |random| random.pick(TOKENS).as_bytes().to_vec()),
                2 => replace_value(random, &mut bytes, |random| {
                    let other = random.pick(seeds).as_bytes();
                    let at = random.below(other.len());
                    value_after(other, at).map_or_else(Vec::new, |value| other[value].to_vec())
                }),
                _ => repeat_trial(random, &mut bytes),
            }
        }
        return bytes;
    }
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len() + 1);
        let span = random.below(40).min(bytes.len() - at);
        match random.below(7) {
            0 => drop(bytes.drain(at..at + span)),
            1 => {
                let part = bytes[at..at + span].to_vec();
                bytes.splice(at..at, part);
            }
            2 => drop(bytes.splice(at..at, random.pick(TOKENS).bytes())),
            3 => drop(bytes.splice(at..at + span, random.pick(TOKENS).bytes())),
            4 if at < bytes.len() => bytes[at] = random.next().to_le_bytes()[0],
            5 => {
                let other = random.pick(seeds).as_bytes();
                let from = random.below(other.len());
                let to = (from + random.below(200)).min(other.len());
                bytes.splice(at..at, other[from..to].iter().copied());
            }
            _ => bytes.truncate(bytes.len() - span),
        }
    }
    bytes
}

fn remove_line(random: &mut Random, bytes: &mut Vec<u8>) {
    let at = random.below(bytes.len());
    let start = bytes[..at].iter().rposition(|b| *b == b'\n').map_or(0, |found| found + 1);
    let end = bytes[at..].iter().position(|b| *b == b'\n').map_or(bytes.len(), |found| at + found + 1);
    bytes.drain(start.min(end)..end);
}

/// Where the next value is written, roughly: from an `=` to the end of the line or of the list's or table's part.
fn value_after(bytes: &[u8], from: usize) -> Option<std::ops::Range<usize>> {
    let start = from + bytes[from..].iter().position(|b| *b == b'=')? + 1;
    let end = bytes[start..].iter().position(|b| b",}\n".contains(b)).map_or(bytes.len(), |at| start + at);
    Some(start..end)
}

fn replace_value(random: &mut Random, bytes: &mut Vec<u8>, with: impl Fn(&mut Random) -> Vec<u8>) {
    let at = random.below(bytes.len());
    if let Some(value) = value_after(bytes, at) {
        bytes.splice(value, with(random));
    }
}

/// Puts the last trial there again, so that doubles and other damage to one of two meet.
fn repeat_trial(random: &mut Random, bytes: &mut Vec<u8>) {
    let starts: Vec<usize> =
        bytes.windows(9).enumerate().filter(|(_, w)| *w == b"[[trial]]").map(|(at, _)| at).collect();
    if !starts.is_empty() {
        let from = *random.pick(&starts);
        let part = bytes[from..].to_vec();
        bytes.push(b'\n');
        bytes.extend(part);
    }
}

/// Returns whether the text was a suite.
fn check_suite(text: &str) -> bool {
    let suite = match Suite::parse(text) {
        Ok(suite) => suite,
        Err(errors) => {
            assert!(!errors.as_slice().is_empty(), "a refusal without a reason");
            assert!(errors.to_string().lines().all(|line| line.split(':').count() >= 3), "{errors}");
            return false;
        }
    };
    for target in Target::ALL {
        match Plan::expand(&suite, *target) {
            Ok(plan) if plan.trials.len() <= 200 => {
                assert!(!render_text(&plan).is_empty());
                assert!(plan.layout_changes() < plan.trials.len());
            }
            Ok(plan) => assert!(plan.estimate().trials.len() == plan.trials.len()),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    true
}

fn fuzz_suites(runs: u64) {
    let seeds = seeds();
    let mut random = Random(0x6d69_6770_6572_6631);
    let mut read = 0_u64;
    for run in 0..runs {
        let bytes = damage(&mut random, &seeds);
        let text = String::from_utf8_lossy(&bytes);
        let outcome = std::panic::catch_unwind(|| check_suite(&text));
        match outcome {
            Ok(was_suite) => read += u64::from(was_suite),
            Err(_) => panic!("run {run} panicked on:\n{text}"),
        }
    }
    assert!(read > runs / 10, "only {read} of {runs} damaged suites could still be read: too few to test the planner");
}

#[test]
fn damaged_suites_do_not_panic() {
    fuzz_suites(SHORT);
}

#[test]
#[ignore = "takes minutes; the long form of damaged_suites_do_not_panic"]
fn a_million_damaged_suites_do_not_panic() {
    fuzz_suites(LONG);
}

fn config() -> MemberConfig {
    let text = r#"{"warmup-batches":20,"warmup":"3s","settle":"3s","window":"45s","longest-window":"2m","minimum-batches":30,"ready-limit":"2m"}"#;
    MemberConfig {
        protocol: PROTOCOL,
        member: 0,
        members: 2,
        cohort: "c".into(),
        workload: Workload::new(Model::BertBase, Task::Train, 8, Precision::Bf16),
        allocation: Allocation::Cuda {
            uuid: "GPU-5ebe9c2f-a33f-4a4c-bb17-7d1f4c1c4d3e".parse().unwrap(),
            multiprocessors: Some(132),
            memory: migperf_core::units::Bytes(1 << 37),
            mps: true,
            active_thread_percentage: Some(14),
            simulated: false,
        },
        timing: serde_json::from_str(text).unwrap(),
        seed: 1,
        threads: 1,
        sample_capacity: 1 << 20,
    }
}

fn to_worker() -> Vec<ToWorker> {
    vec![
        ToWorker::Launch(Launch {
            protocol: PROTOCOL,
            program: "/usr/libexec/migperf-worker".into(),
            environment: vec![("CUDA_VISIBLE_DEVICES".into(), "0".into())],
            processors: vec![0, 1],
            parent: Some(7),
        }),
        ToWorker::Prepare(Box::new(config())),
        ToWorker::Warm,
        ToWorker::Start { at: MonotonicNanos(5), count_from: MonotonicNanos(9) },
        ToWorker::Stop,
    ]
}

fn from_worker() -> Vec<FromWorker> {
    let proof = Proof {
        devices: 1,
        uuid: None,
        name: Some("device".into()),
        multiprocessors: Some(132),
        memory: None,
        mps: Some(true),
        driver_version: Some(13_000),
        processors: vec![0],
    };
    vec![
        FromWorker::Hello { protocol: PROTOCOL, pid: 7, version: "0.1.0".into() },
        FromWorker::Built(Built { proof, parameters: 1, engine: "engine".into(), elapsed_ns: 5 }),
        FromWorker::Ready(Ready { digest: ConfigDigest("00".into()), batches: 20, first_ns: 1, typical_ns: 1 }),
        FromWorker::Progress { completed: 5, counted: 2 },
        FromWorker::Done(Done {
            samples: 3,
            lost: 0,
            started: MonotonicNanos(1),
            allocated_peak: None,
            reserved_peak: None,
            resident_peak: None,
            finite: Some(true),
        }),
        FromWorker::Failed { kind: FailureKind::DoesNotFit, message: "too large".into() },
    ]
}

/// Frames in a row, damaged unless the dice say otherwise, or bytes without any sense.
fn damaged_frames(random: &mut Random, frames: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes: Vec<u8> = Vec::new();
    if random.below(8) == 0 {
        return (0..random.below(200)).map(|_| random.next().to_le_bytes()[0]).collect();
    }
    for _ in 0..=random.below(4) {
        let mut frame = random.pick(frames).clone();
        for _ in 0..random.below(3) {
            let at = random.below(frame.len());
            match random.below(6) {
                0 => frame[at] = random.next().to_le_bytes()[0],
                1 => frame[at] ^= 1 << random.below(8),
                2 => frame.truncate(at + 1),
                3 => frame[at.min(4)] = *random.pick(&[0, 1, 2, 3, 0x40, 0x7f, 0xff]),
                4 => drop(frame.splice(
                    at..at,
                    random.pick(&[&b"\""[..], b"{", b"null", b"-1", b"1e999", b"\\ud800", b"\xff"]).iter().copied(),
                )),
                // Damage inside a frame whose length is right again.
                _ => {
                    let span = random.below(20).min(frame.len() - at);
                    frame.drain(at..at + span);
                    if let Some(length) = frame.len().checked_sub(5) {
                        frame[..4].copy_from_slice(&u32::try_from(length).unwrap().to_le_bytes());
                    }
                }
            }
            if frame.is_empty() {
                break;
            }
        }
        bytes.extend(frame);
    }
    bytes
}

/// Feeds bytes in pieces; returns how many frames came out before the end or the first error.
fn decode<M: for<'de> serde::Deserialize<'de>>(random: &mut Random, mut bytes: &[u8]) -> u64 {
    if let Ok(more) = missing(bytes) {
        assert!(more <= LONGEST_FRAME + 5);
    }
    let mut decoder = Decoder::default();
    let mut frames = 0;
    while !bytes.is_empty() {
        let (now, later) = bytes.split_at(1 + random.below(bytes.len()));
        decoder.push(now);
        bytes = later;
        loop {
            match decoder.next_frame::<M>() {
                Ok(None) => break,
                Ok(Some(Frame::Message(_) | Frame::Samples(_))) => frames += 1,
                Err(error) => {
                    assert!(!error.to_string().is_empty());
                    return frames;
                }
            }
        }
    }
    frames
}

fn fuzz_frames(runs: u64) {
    let sample = |at: u64| Sample { start: MonotonicNanos(at), end: MonotonicNanos(at + 5), items: 32 };
    let mut frames: Vec<Vec<u8>> = to_worker().iter().map(|message| encode(message).unwrap()).collect();
    frames.extend(from_worker().iter().map(|message| encode(message).unwrap()));
    frames.push(encode_samples(&[sample(1), sample(9), sample(20)]).unwrap());
    frames.push(encode_samples(&[]).unwrap());
    let mut random = Random(0x6d69_6770_6572_6632);
    let mut decoded = 0;
    for run in 0..runs {
        let bytes = damaged_frames(&mut random, &frames);
        let mut cuts = Random(random.next() | 1);
        let outcome = std::panic::catch_unwind(move || {
            let frames = decode::<FromWorker>(&mut cuts, &bytes) + decode::<ToWorker>(&mut cuts, &bytes);
            (frames, bytes)
        });
        match outcome {
            Ok((frames, _)) => decoded += frames,
            Err(_) => panic!("run {run} panicked"),
        }
    }
    assert!(decoded > runs / 4, "only {decoded} frames of {runs} damaged streams could be read");
}

#[test]
fn damaged_frames_do_not_panic() {
    fuzz_frames(SHORT);
}

#[test]
#[ignore = "takes minutes; the long form of damaged_frames_do_not_panic"]
fn a_million_damaged_streams_do_not_panic() {
    fuzz_frames(LONG);
}
