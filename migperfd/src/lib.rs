//! The daemon: it owns the queue, the store, the cohorts' processes and the telemetry, and serves `org.migperf1`.
//!
//! Decisions are migperf-core's; what stands here performs them. It never changes a GPU itself: it asks the
//! helper.

pub mod admission;
pub mod barrier;
pub mod bus;
pub mod check;
pub mod clock;
pub mod helper;
pub mod host;
pub mod layout;
pub mod layouts;
pub mod libtorch;
pub mod lock;
pub mod mps;
pub mod partition;
pub mod peer;
pub mod queue;
pub mod reach;
pub mod settings;
pub mod store;
pub mod survey;
pub mod trial;
pub mod workers;
