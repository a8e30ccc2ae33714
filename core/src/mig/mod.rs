//! MIG as the domain sees it: names of profiles, lists of them, and how wanted names meet existing instances.
//!
//! What a device offers is always asked of the device: no table of products is kept here.

pub mod profile;
pub mod resolve;
