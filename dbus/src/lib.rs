//! The bus contract, once: names, wire types, proxies and errors. No behaviour.
//!
//! The same interfaces are served on the system bus and, peer-to-peer, on a socket between a client and its own daemon.
//! `interfaces/*.xml` are the golden descriptions for other languages' clients; the daemon's tests hold them against
//! what it serves.

pub mod document;
pub mod error;
pub mod helper;
pub mod names;
pub mod proxy;

/// Keyed values whose absent keys mean "not known" or "not asked": the `a{sv}` of every options argument.
pub type Keyed = std::collections::HashMap<String, zbus::OwnedVariant>;
