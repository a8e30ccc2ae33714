//! `run`, `run --plan` and `submit`: from a suite to a job, and from a job to its report.

use std::path::Path;

use anyhow::Context as _;
use migperf_core::job::{JobState, PlanAnswer};
use migperf_core::plan::render_text;
use migperf_core::suite;
use migperf_dbus::document;
use migperf_dbus::error::Error;
use migperf_dbus::names::job_of_path;

use crate::args::{Device, Format, RunArgs, RunSource, SubmitArgs, Target};
use crate::commands::report::{self, Stored};
use crate::commands::{misuse, submit_options};
use crate::connect::Session;
use crate::exit::{Exit, Refusal};
use crate::follow::{Followed, Interrupts, OnInterrupt, follow};
use crate::job::Standing;
use crate::output;
use crate::suite::Source;
use crate::view::View;

/// Measures a suite and prints its report.
pub(crate) async fn run<F>(args: RunArgs, json: bool, session: impl FnOnce() -> F) -> anyhow::Result<Exit>
where
    F: Future<Output = anyhow::Result<Session>>,
{
    let (source, one_off) = match args.source()? {
        RunSource::Suite(source) => (source, false),
        RunSource::Options(source) => (source, true),
        RunSource::Misused(error) => return Ok(misuse(&error)),
    };
    if let Some(directory) = &args.output {
        // Found out now rather than after an hour of measuring.
        report::make_directory(directory)?;
    }
    let session = session().await?;
    let source = match one_off {
        true => Source::of_options(&args.quick, Some(one_off_target(&session, &args, &source).await?))?,
        false => source,
    };
    if args.plan {
        return plan(&session, &source, &args.target, json).await;
    }
    let mut interrupts = Interrupts::listen()?;
    let job = send(&session, &source, &args.target, true).await?;
    let mut view = View::of_terminal();
    let followed = follow(&session, job, OnInterrupt::Cancel, &mut interrupts, &mut view).await?;
    drop(view);
    let Followed::Ended(standing) = followed else {
        output::note(&format!("left job {job}; it is cancelled as this connection closes"));
        return Ok(Exit::Cancelled);
    };
    let format = Format::asked(args.format, json);
    conclude(&session, job, &standing, format, args.output.as_deref()).await
}

/// Prints what a job that has ended measured, and decides how the program ends.
async fn conclude(
    session: &Session,
    job: u32,
    standing: &Standing,
    format: Format,
    directory: Option<&Path>,
) -> anyhow::Result<Exit> {
    let stored = match Stored::open(session, job).await {
        Ok(stored) => stored,
        Err(error) if Exit::of(&error) == Exit::Nothing && standing.state != Some(JobState::Done) => {
            output::note(&format!("job {job} measured nothing before it ended"));
            return Ok(standing.exit());
        }
        Err(error) => return Err(error.context(format!("job {job} has ended, but its report can't be had"))),
    };
    if let Some(directory) = directory {
        stored.write_all(directory)?;
    }
    output::put(&stored.render(format, output::display()))?;
    Ok(match standing.exit() {
        Exit::Valid => stored.exit(),
        other => other,
    })
}

/// What a one-off is measured on: what its options say, else what the daemon finds.
async fn one_off_target(session: &Session, args: &RunArgs, source: &Source) -> anyhow::Result<suite::Target> {
    let said = args.quick.target().or(match args.target.device {
        Device::Auto => None,
        Device::Cpu => Some(suite::Target::Cpu),
        Device::Index(_) | Device::Uuid(_) => Some(suite::Target::Gpu),
    });
    match said {
        Some(target) => Ok(target),
        None => Ok(ask(session, source, &args.target).await?.plan.target),
    }
}

async fn ask(session: &Session, source: &Source, target: &Target) -> anyhow::Result<PlanAnswer> {
    let suite = document::seal(source.text.as_bytes())?;
    let answer = session.manager.plan_job(suite.into(), &submit_options(target, false)?).await;
    super::document(session, placed(source, answer)?, "the plan").await
}

/// Shows what a suite would come to. Nothing is measured.
async fn plan(session: &Session, source: &Source, target: &Target, json: bool) -> anyhow::Result<Exit> {
    let answer = ask(session, source, target).await?;
    if json {
        let text = serde_json::to_string_pretty(&answer).context("can't write the plan as JSON")?;
        output::line(&text)?;
    } else {
        output::put(&plan_text(&answer))?;
    }
    Ok(if answer.refusals.is_empty() { Exit::Valid } else { Exit::Refused })
}

/// A plan for people, with the reasons why it would be refused.
fn plan_text(answer: &PlanAnswer) -> String {
    let mut text = format!("Device: {}\n{}", answer.device, render_text(&answer.plan));
    if !answer.layout_changes.is_empty() {
        text.push_str("\nWhat would be done to the GPU:\n");
        answer.layout_changes.iter().for_each(|line| text.push_str(&format!("  {line}\n")));
    }
    if !answer.replaced_uuids.is_empty() {
        text.push_str("\nThese MIG devices would be replaced; what uses them by UUID must be told the new ones:\n");
        answer.replaced_uuids.iter().for_each(|uuid| text.push_str(&format!("  {uuid}\n")));
    }
    if answer.refusals.is_empty() {
        text.push_str("\nNothing stands in the way of running it now.\n");
        return text;
    }
    text.push_str("\nIt would be refused now:\n");
    for refusal in &answer.refusals {
        text.push_str(&format!("  {}\n    what to do: {}\n", refusal.problem, refusal.remedy));
    }
    text
}

/// Queues a suite and returns.
pub(crate) async fn submit<F>(args: SubmitArgs, json: bool, session: impl FnOnce() -> F) -> anyhow::Result<Exit>
where
    F: Future<Output = anyhow::Result<Session>>,
{
    let source = Source::read(&args.suite)?;
    let session = session().await?;
    let job = send(&session, &source, &args.target, false).await?;
    if json {
        output::line(&serde_json::json!({ "id": job }).to_string())?;
    } else {
        output::line(&format!("job {job}"))?;
    }
    Ok(Exit::Valid)
}

async fn send(session: &Session, source: &Source, target: &Target, attached: bool) -> anyhow::Result<u32> {
    let suite = document::seal(source.text.as_bytes())?;
    let path = session.manager.submit_job(suite.into(), &submit_options(target, attached)?).await;
    let path = session.answered(placed(source, path)?)?;
    job_of_path(&path)
        .ok_or_else(|| Refusal::new(Exit::Failure, format!("the daemon answered with {path}, which is no job")).into())
}

/// What the daemon finds wrong with a suite is told with the suite's name.
fn placed<T>(source: &Source, answer: Result<T, Error>) -> anyhow::Result<Result<T, Error>> {
    match answer {
        Err(Error::InvalidSuite(text)) => Err(source.unplannable(text).into()),
        other => Ok(other),
    }
}
