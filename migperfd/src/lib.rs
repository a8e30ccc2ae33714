//! The daemon: it owns the queue, the store, the cohorts' processes and the telemetry, and serves `org.migperf1`.
//!
//! Decisions are migperf-core's; what stands here performs them. It never changes a GPU: that is the helper's.

pub mod admission;
pub mod bus;
pub mod check;
pub mod clock;
pub mod host;
pub mod libtorch;
pub mod lock;
pub mod mps;
pub mod peer;
pub mod queue;
pub mod settings;
pub mod store;
pub mod trial;
pub mod workers;
