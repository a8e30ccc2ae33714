//! MIG as the domain sees it: names of profiles, what a device offers, layouts, and how wanted instances meet existing ones.
//!
//! What a device offers is always asked of the device: no table of products is kept here. Nothing is changed here
//! either; the planner says what to destroy and create.

pub mod compute;
pub mod layout;
pub mod offer;
pub mod planner;
pub mod profile;
pub mod resolve;
mod search;
