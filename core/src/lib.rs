//! The domain of migperf, pure: no files, clocks, environment, threads, async or D-Bus.
//!
//! Data flows one way and each step is a new type: suite text → [`suite::Suite`] → [`plan::Plan`] of trials → a checked
//! job → one [`record::TrialRecord`] a trial → [`report::Report`].

pub mod affinity;
pub mod archive;
pub mod chain;
pub mod cohort;
pub mod compare;
pub mod device;
pub mod ids;
pub mod imported;
pub mod job;
pub mod layouts;
pub mod mig;
pub mod plan;
pub mod preflight;
pub mod proof;
pub mod record;
pub mod report;
pub mod sample;
pub mod stats;
pub mod suite;
pub mod telemetry;
pub mod trial;
pub mod units;
pub mod worker_wire;
pub mod workload;
