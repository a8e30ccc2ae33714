//! The commands, one function each: ask the daemon, show what it says, and how the program ends.

mod check;
mod compare;
mod export;
mod import;
mod jobs;
mod layout;
mod report;
mod run;

use std::io;

use anyhow::Context as _;
use clap::{CommandFactory as _, Parser as _};
use migperf_dbus::Keyed;
use migperf_dbus::names::submit as key;
use zbus::{OwnedVariant, Variant};

use crate::args::{Cli, Command, Target};
use crate::connect::{Session, Way, connect};
use crate::exit::Exit;
use crate::output;
use crate::spawn::Surroundings;

/// Reads the command line, does what it says, and tells what went wrong.
pub(crate) fn run() -> Exit {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return misuse(&error),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let done = runtime.context("can't start").and_then(|runtime| runtime.block_on(command(cli)));
    done.unwrap_or_else(|error| {
        output::note(&format!("error: {}", told(&error)));
        Exit::of(&error)
    })
}

/// Shows a usage error, or the help that was asked for.
fn misuse(error: &clap::Error) -> Exit {
    // Nobody is left to tell if this can't be written.
    let _ = error.print();
    if error.use_stderr() { Exit::Usage } else { Exit::Valid }
}

/// An error and its causes, without repeating what a cause's own text already ends with.
fn told(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if text.ends_with(&cause) {
            continue;
        }
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&cause);
    }
    text
}

async fn command(cli: Cli) -> anyhow::Result<Exit> {
    let Cli { global, command } = cli;
    let around = Surroundings::of_process();
    let way = Way::of(global);
    let session = || connect(way, &around);
    match command {
        Command::Run(args) => run::run(*args, global.json, session).await,
        Command::Submit(args) => run::submit(args, global.json, session).await,
        Command::List(args) => jobs::list(&session().await?, args, global.json).await,
        Command::Show(args) => jobs::show(&session().await?, args.job, global.json).await,
        Command::Watch(args) => jobs::watch(&session().await?, args.job, global.json).await,
        Command::Report(args) => report::report(args, global.json, session).await,
        Command::Compare(args) => compare::compare(args, global.json, session).await,
        Command::Export(args) => export::export(args, session).await,
        Command::Import(args) => import::import(&args, global.json),
        Command::Cancel(args) => jobs::cancel(&session().await?, args.job, global.json).await,
        Command::Check => check::check(session().await, global.json).await,
        Command::Layout(command) => layout::layout(&session().await?, command, global.json).await,
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "migperfctl", &mut io::stdout());
            Ok(Exit::Valid)
        }
    }
}

fn owned<'a>(value: impl Into<Variant<'a>>) -> anyhow::Result<OwnedVariant> {
    OwnedVariant::try_from(value.into()).context("can't make a value for the bus")
}

/// The options of `SubmitJob` and `PlanJob`.
fn submit_options(target: &Target, attached: bool) -> anyhow::Result<Keyed> {
    let mut options = Keyed::new();
    options.insert(key::DEVICE.to_owned(), owned(target.device.to_string())?);
    if attached {
        options.insert(key::ATTACHED.to_owned(), owned(true)?);
    }
    if let Some(seed) = target.seed {
        options.insert(key::SEED.to_owned(), owned(seed)?);
    }
    if target.replace_existing {
        options.insert(key::REPLACE_EXISTING.to_owned(), owned(true)?);
    }
    Ok(options)
}

/// A JSON document that a method answered with.
async fn document<T: serde::de::DeserializeOwned>(
    session: &Session,
    answer: Result<zbus::OwnedFd, migperf_dbus::error::Error>,
    what: &str,
) -> anyhow::Result<T> {
    let bytes = read_document(session, answer, what)?;
    match serde_json::from_slice(&bytes) {
        Ok(value) => Ok(value),
        Err(error) => {
            let daemon = session.manager.version().await.unwrap_or_else(|_| "unknown".to_owned());
            Err(error).with_context(|| {
                let client = env!("CARGO_PKG_VERSION");
                format!(
                    "can't understand {what} (migperfctl is version {client}, the daemon {daemon}; install the same)"
                )
            })
        }
    }
}

/// The bytes of a document that a method answered with.
fn read_document(
    session: &Session,
    answer: Result<zbus::OwnedFd, migperf_dbus::error::Error>,
    what: &str,
) -> anyhow::Result<Vec<u8>> {
    let document = session.answered(answer)?;
    migperf_dbus::document::read(document.into(), migperf_dbus::document::LONGEST_REPORT)
        .with_context(|| format!("can't read {what} from the daemon"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_told_once() {
        let error = anyhow::anyhow!("the disk is full").context("can't write x: the disk is full").context("no report");
        assert_eq!(told(&error), "no report: can't write x: the disk is full");
    }
}
