//! `compare`: two reports, of jobs or from files, against each other.

use anyhow::Context as _;
use migperf_core::compare::{Comparison, markdown, text};

use crate::args::{CompareArgs, CompareFormat, ReportOf};
use crate::commands::report::{FILE_WIDTH, Stored, write};
use crate::connect::Session;
use crate::exit::Exit;
use crate::output::{self, Display};

/// Prints or writes the comparison; something that got worse is told by the exit code too.
pub(crate) async fn compare<F>(args: CompareArgs, json: bool, session: impl FnOnce() -> F) -> anyhow::Result<Exit>
where
    F: Future<Output = anyhow::Result<Session>>,
{
    let files = [&args.before, &args.after].iter().all(|of| matches!(of, ReportOf::File(_)));
    // A daemon is asked only where a job is named.
    let session = if files { None } else { Some(session().await?) };
    let before = open(session.as_ref(), &args.before).await?;
    let after = open(session.as_ref(), &args.after).await?;
    let comparison = Comparison::of(before.report(), after.report(), args.least_effect / 100.0);
    let display = match &args.output {
        Some(_) => Display { width: FILE_WIDTH, colour: false },
        None => output::display(),
    };
    let format = args.format.unwrap_or(if json { CompareFormat::Json } else { CompareFormat::Text });
    let shown = match format {
        CompareFormat::Text => text::render(&comparison, display.width, display.colour),
        CompareFormat::Markdown => markdown::render(&comparison),
        CompareFormat::Json => {
            let json = serde_json::to_string_pretty(&comparison).context("can't write the comparison as JSON")?;
            format!("{json}\n")
        }
    };
    match &args.output {
        Some(path) => write(path, &shown)?,
        None => output::put(&shown)?,
    }
    Ok(if comparison.is_regression() { Exit::Worse } else { Exit::Valid })
}

async fn open(session: Option<&Session>, of: &ReportOf) -> anyhow::Result<Stored> {
    match (of, session) {
        (ReportOf::File(path), _) => Stored::read(path),
        (ReportOf::Job(job), Some(session)) => Stored::open(session, *job).await,
        (ReportOf::Job(job), None) => anyhow::bail!("no daemon was asked for job {job}"),
    }
}
