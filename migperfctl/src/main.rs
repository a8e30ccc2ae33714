//! `migperfctl`: the client. It speaks the one D-Bus interface and measures nothing itself.

mod args;
mod commands;
mod connect;
mod exit;
mod follow;
mod job;
mod output;
mod quick;
mod service;
mod spawn;
mod suite;
mod view;

use std::process::ExitCode;

fn main() -> ExitCode {
    commands::run().into()
}
