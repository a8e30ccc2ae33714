//! docs/worker-protocol.md against the types: every example is read, says all that its type has, and every message has one.

use std::collections::BTreeSet;

use migperf_core::sample::Sample;
use migperf_core::units::MonotonicNanos;
use migperf_core::worker_wire::{Decoder, Frame, FromWorker, ToWorker, encode, encode_samples};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

const DOCUMENT: &str = include_str!("../../docs/worker-protocol.md");

/// The texts of the fenced blocks with this heading.
fn blocks(heading: &str) -> Vec<&'static str> {
    let fence = format!("```{heading}\n");
    DOCUMENT.split(fence.as_str()).skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

/// Reads each example and writes it again, which must give the same JSON. Returns the messages.
fn read_all<M: Serialize + DeserializeOwned>(heading: &str) -> Vec<M> {
    let read = |text: &&str| {
        let message: M = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error} in {text}"));
        let example: Value = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_value(&message).unwrap(), example, "fields are missing");
        message
    };
    blocks(heading).iter().map(read).collect()
}

fn names(heading: &str) -> BTreeSet<String> {
    let name = |text: &&str| serde_json::from_str::<Value>(text).unwrap()["type"].as_str().unwrap().to_owned();
    blocks(heading).iter().map(name).collect()
}

/// The names that an enum of messages has, as serde lists them when it meets another.
fn known<M: DeserializeOwned>() -> BTreeSet<String> {
    let error = serde_json::from_str::<M>(r#"{"type":"?"}"#).err().unwrap().to_string();
    error.split('`').skip(3).step_by(2).map(str::to_owned).collect()
}

#[test]
fn every_message_has_an_example_that_is_whole() {
    read_all::<ToWorker>("json to-worker");
    read_all::<FromWorker>("json from-worker");
    assert_eq!(names("json to-worker"), known::<ToWorker>());
    assert_eq!(names("json from-worker"), known::<FromWorker>());
    assert_eq!(known::<ToWorker>().len(), 5);
}

#[test]
fn the_digest_is_that_of_the_configuration_shown() {
    let config = read_all::<ToWorker>("json to-worker").into_iter().find_map(|message| match message {
        ToWorker::Prepare(config) => Some(config),
        _ => None,
    });
    let ready = read_all::<FromWorker>("json from-worker").into_iter().find_map(|message| match message {
        FromWorker::Ready(ready) => Some(ready),
        _ => None,
    });
    assert_eq!(ready.unwrap().digest, config.unwrap().digest());
}

#[test]
fn the_frames_shown_are_what_is_sent() {
    let bytes = |heading| -> Vec<u8> {
        let [text] = blocks(heading)[..] else { panic!("one block of `{heading}`") };
        text.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect()
    };
    assert_eq!(bytes("hex message"), encode(&ToWorker::Warm).unwrap());
    let sample = Sample { start: MonotonicNanos(5_000_000_000), end: MonotonicNanos(5_008_000_000), items: 32 };
    assert_eq!(bytes("hex samples"), encode_samples(&[sample]).unwrap());
    let mut decoder = Decoder::default();
    decoder.push(&bytes("hex samples"));
    assert_eq!(decoder.next_frame::<FromWorker>().unwrap(), Some(Frame::Samples(vec![sample])));
}
