//! `list`, `show`, `watch` and `cancel`: jobs that are there already.

use std::fmt::Write as _;
use std::time::SystemTime;

use anyhow::Context as _;
use comfy_table::{ContentArrangement, Table, presets};
use migperf_core::report::rfc3339;
use migperf_core::units::{RealtimeNanos, Span};
use migperf_dbus::Keyed;
use migperf_dbus::names::filter;
use nix::unistd::{Uid, User};

use crate::args::ListArgs;
use crate::commands::owned;
use crate::connect::Session;
use crate::exit::Exit;
use crate::follow::{Followed, Interrupts, Moment, OnInterrupt, find, follow};
use crate::job::{Standing, to_json};
use crate::output::{self, harmless};
use crate::view::View;

/// Rows that are asked for at once.
const PAGE: u32 = 100;

/// Lists stored jobs, newest first.
pub(crate) async fn list(session: &Session, args: ListArgs, json: bool) -> anyhow::Result<Exit> {
    let mut filter = Keyed::new();
    if let Some(state) = args.state {
        filter.insert(filter::STATE.to_owned(), owned(state.name())?);
    }
    if args.mine {
        filter.insert(filter::OWNER.to_owned(), owned(Uid::effective().as_raw())?);
    }
    let wanted = args.limit as usize;
    let (mut rows, mut cursor) = (Vec::new(), String::new());
    let more = loop {
        let limit = u32::try_from(wanted - rows.len()).unwrap_or(PAGE).min(PAGE);
        let answer = session.manager.list_jobs(&filter, &cursor, limit).await;
        let (page, next) = session.answered(answer)?;
        rows.extend(page);
        rows.truncate(wanted);
        if next.is_empty() || next == cursor {
            break false;
        }
        if rows.len() == wanted {
            break true;
        }
        cursor = next;
    };
    if json {
        let rows: Vec<serde_json::Value> = rows.iter().map(to_json).collect();
        output::line(&serde_json::to_string_pretty(&rows).context("can't write the jobs as JSON")?)?;
        return Ok(Exit::Valid);
    }
    let rows: Vec<Standing> = rows.iter().map(Standing::from).collect();
    if rows.is_empty() {
        output::note("no jobs");
    } else {
        output::put(&table(&rows, output::display().width))?;
    }
    if more {
        output::note(&format!("there are more than {wanted}; --limit lists them"));
    }
    Ok(Exit::Valid)
}

fn table(rows: &[Standing], width: usize) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_width(u16::try_from(width).unwrap_or(u16::MAX));
    table.set_header(["JOB", "STATE", "TRIALS", "FAILED", "OWNER", "SUBMITTED", "NAME"]);
    for row in rows {
        table.add_row([
            row.id.map(|id| id.to_string()).unwrap_or_default(),
            row.state_name().to_owned(),
            row.trials(),
            row.trials_failed.map(|failed| failed.to_string()).unwrap_or_default(),
            row.owner.map(user).unwrap_or_default(),
            row.submitted.map(time).unwrap_or_default(),
            row.name.as_deref().map(harmless).unwrap_or_default(),
        ]);
    }
    let text = table.to_string();
    let mut lines: String = text.lines().map(|line| format!("{}\n", line.trim_end())).collect();
    // Every line begins with the padding of its first cell.
    if lines.lines().all(|line| line.starts_with(' ')) {
        lines = lines.lines().map(|line| format!("{}\n", &line[1..])).collect();
    }
    lines
}

/// A user's name, or id where this host knows no name.
fn user(uid: u32) -> String {
    User::from_uid(Uid::from_raw(uid)).ok().flatten().map_or_else(|| uid.to_string(), |user| user.name)
}

/// A point in time, in UTC.
fn time(microseconds: u64) -> String {
    rfc3339(RealtimeNanos(microseconds.saturating_mul(1_000)))
}

/// Shows where a job stands.
pub(crate) async fn show(session: &Session, job: u32, json: bool) -> anyhow::Result<Exit> {
    let found = find(session, job).await?;
    if json {
        output::line(&serde_json::to_string_pretty(&found.json).context("can't write the job as JSON")?)?;
    } else {
        output::put(&describe(&found.standing, SystemTime::now()))?;
    }
    Ok(Exit::Valid)
}

fn describe(job: &Standing, now: SystemTime) -> String {
    let failed = match job.trials_failed {
        Some(failed) if failed > 0 => format!(", {failed} without a valid result"),
        _ => String::new(),
    };
    let left = job.time_left(now).filter(|_| !job.is_final()).map(|left| Span(left).to_string());
    let fields = [
        ("job", job.id.map(|id| id.to_string())),
        ("name", job.name.as_deref().map(harmless)),
        ("state", Some(job.state_name().to_owned())),
        ("reason", job.reason.as_deref().map(harmless)),
        ("trials", Some(format!("{}{failed}", job.trials()))),
        ("trial", job.trial.as_deref().map(harmless)),
        ("phase", job.phase.as_deref().map(harmless)),
        ("time left", left),
        ("owner", job.owner.map(user)),
        ("submitted", job.submitted.map(time)),
        ("ended", job.ended.map(time)),
        ("uid", job.uid.as_deref().map(harmless)),
    ];
    let mut text = String::new();
    for (name, value) in fields {
        if let Some(value) = value {
            let _ = writeln!(text, "{name:<10} {value}");
        }
    }
    text
}

/// Follows a job to its end.
pub(crate) async fn watch(session: &Session, job: u32, json: bool) -> anyhow::Result<Exit> {
    let mut interrupts = Interrupts::listen()?;
    let mut view = if json { View::json() } else { View::of_terminal() };
    let followed = follow(session, job, OnInterrupt::Leave, &mut interrupts, &mut view).await?;
    drop(view);
    match followed {
        Followed::Ended(standing) => Ok(standing.exit()),
        Followed::Left => {
            output::note(&format!("stopped watching; job {job} is left alone"));
            Ok(Exit::Cancelled)
        }
    }
}

/// Cancels a job.
pub(crate) async fn cancel(session: &Session, job: u32, json: bool) -> anyhow::Result<Exit> {
    session.answered(session.manager.cancel_job(job, &Keyed::new()).await)?;
    let Moment { standing, json: row } = find(session, job).await?;
    if json {
        output::line(&serde_json::to_string_pretty(&row).context("can't write the job as JSON")?)?;
    } else if standing.is_final() {
        output::line(&format!("job {job} is {}", standing.state_name()))?;
    } else {
        output::line(&format!("job {job} is being cancelled"))?;
    }
    Ok(Exit::Valid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use migperf_core::job::JobState;
    use std::time::{Duration, UNIX_EPOCH};

    fn job() -> Standing {
        Standing {
            id: Some(12),
            name: Some("night".to_owned()),
            owner: Some(0),
            state: Some(JobState::Running),
            submitted: Some(1_767_225_600_000_000),
            trials_total: Some(10),
            trials_done: Some(3),
            trials_failed: Some(1),
            trial: Some("mps: 4x resnet18 infer b1 fp32".to_owned()),
            phase: Some("measuring".to_owned()),
            estimated_end: Some(1_767_225_720_000_000),
            ..Standing::default()
        }
    }

    #[test]
    fn a_list_has_a_line_for_each_job() {
        let other = Standing { id: Some(7), state: None, trials_failed: None, ..job() };
        let text = table(&[job(), other], 120);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert!(lines[0].starts_with("JOB"), "{text}");
        let words: Vec<&str> = lines[1].split_whitespace().collect();
        assert_eq!(words[..5], ["12", "running", "3/10", "1", "root"], "{text}");
        assert!(words[5].starts_with("2026-01-01T00:00:00"), "{text}");
        assert!(lines[2].contains("unknown"), "{text}");
    }

    #[test]
    fn a_job_is_described_by_what_is_known() {
        let now = UNIX_EPOCH + Duration::from_secs(1_767_225_600);
        let text = describe(&job(), now);
        assert!(text.contains("trials     3/10, 1 without a valid result\n"), "{text}");
        assert!(text.contains("time left  2m\n"), "{text}");
        assert!(!text.contains("reason") && !text.contains("ended"), "{text}");
        let ended = Standing { state: Some(JobState::Done), ended: Some(1_767_225_700_000_000), ..job() };
        let text = describe(&ended, now);
        assert!(!text.contains("time left") && text.contains("ended      2026-01-01T00:01:40"), "{text}");
    }
}
