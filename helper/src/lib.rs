//! The root helper: the one program that changes a GPU, for the daemon, under a promise.
//!
//! **Who is trusted with what.** The caller (the daemon's user, or root) is trusted to say *that* something is to be
//! changed and for whom; it is not trusted with paths, programs, or the judgement whether a change is safe. Each request is
//! checked from scratch. Paths that root executes or loads come from root's own configuration ([`config`]). NVML is called
//! in a child that can be left behind ([`hand`]). What is changed is written down first ([`ledger`]), and put back when
//! the caller is gone, when a step fails, when a helper starts, and at boot ([`engine`]).
//!
//! **The promise.** Whatever happens, the GPU ends as it was found; nobody else's process is ended and nobody else's
//! instance destroyed; and what could not be put back is said, with the commands that would.

pub mod bring;
pub mod config;
pub mod engine;
pub mod hand;
pub mod holders;
pub mod hooks;
pub mod ledger;
pub mod mps;
pub mod nodes;
pub mod plan;
pub mod request;
pub mod run;
pub mod service;
pub mod work;
