//! What a followed job looks like: a bar on a terminal, a line for each finished trial elsewhere, or JSON lines.

use std::env;
use std::io::{self, IsTerminal as _};
use std::time::{Duration, SystemTime};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use migperf_core::job::JobState;
use migperf_core::units::Span;
use serde_json::Value;

use crate::follow::Moment;
use crate::job::Standing;
use crate::output::{self, harmless};

/// Shows a job as it changes.
#[derive(Debug)]
pub(crate) enum View {
    /// A bar on standard error; only what went wrong stays above it.
    Bar { bar: ProgressBar, news: News },
    /// Lines on standard error.
    Lines(News),
    /// Each change as a line of JSON on standard output.
    Json { last: Option<Value> },
}

/// Something that happened, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    /// What a bar shows by itself.
    Progress(String),
    /// What should be seen even beside a bar.
    Notice(String),
}

/// Turns successive standings of one job into events.
#[derive(Debug, Default)]
pub(crate) struct News {
    last: Option<Standing>,
}

impl View {
    /// A bar if standard error is a terminal that can show one, else lines.
    pub(crate) fn of_terminal() -> Self {
        let dumb = env::var_os("TERM").is_some_and(|term| term == "dumb");
        if dumb || !io::stderr().is_terminal() {
            return Self::Lines(News::default());
        }
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{bar:20.cyan} {pos}/{len} {wide_msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self::Bar { bar, news: News::default() }
    }

    /// JSON lines.
    pub(crate) fn json() -> Self {
        Self::Json { last: None }
    }

    /// Shows the job as it is now.
    pub(crate) fn show(&mut self, moment: &Moment) -> anyhow::Result<()> {
        let standing = &moment.standing;
        match self {
            Self::Bar { bar, news } => {
                bar.set_length(standing.trials_total.unwrap_or(0).into());
                bar.set_position(standing.trials_done.unwrap_or(0).into());
                bar.set_message(now(standing, SystemTime::now()));
                for event in news.of(standing, SystemTime::now()) {
                    if let Event::Notice(text) = event {
                        bar.println(format!("migperf: {text}"));
                    }
                }
                if standing.is_final() {
                    bar.finish_and_clear();
                }
            }
            Self::Lines(news) => {
                for event in news.of(standing, SystemTime::now()) {
                    let (Event::Progress(text) | Event::Notice(text)) = event;
                    output::note(&text);
                }
            }
            Self::Json { last } => {
                if last.as_ref() != Some(&moment.json) {
                    output::line(&moment.json.to_string())?;
                    *last = Some(moment.json.clone());
                }
            }
        }
        Ok(())
    }

    /// Says something beside the job.
    pub(crate) fn note(&self, text: &str) {
        match self {
            Self::Bar { bar, .. } => bar.println(format!("migperf: {text}")),
            Self::Lines(_) | Self::Json { .. } => output::note(text),
        }
    }
}

impl Drop for View {
    /// A bar that is left behind would be mistaken for a job that goes on.
    fn drop(&mut self) {
        if let Self::Bar { bar, .. } = self {
            bar.finish_and_clear();
        }
    }
}

/// What goes on now, for a bar's message: the trial, its phase and the time left.
fn now(standing: &Standing, at: SystemTime) -> String {
    let mut parts: Vec<String> = Vec::new();
    match (standing.state, &standing.trial) {
        (Some(JobState::Running), Some(trial)) => parts.push(harmless(trial)),
        _ => parts.push(standing.state_name().to_owned()),
    }
    parts.extend(standing.phase.as_deref().map(harmless));
    parts.extend(standing.time_left(at).map(|left| format!("{} left", Span(left))));
    parts.join(", ")
}

fn counted(count: u32, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}

impl News {
    /// What happened since the last call.
    pub(crate) fn of(&mut self, standing: &Standing, at: SystemTime) -> Vec<Event> {
        let mut events = Vec::new();
        let last = self.last.replace(standing.clone());
        let job = standing.id.map_or("the job".to_owned(), |id| format!("job {id}"));
        if last.is_none() && !standing.is_final() {
            events.extend(beginning(&job, standing, at).map(Event::Progress));
        }
        let before = last.unwrap_or_else(|| Standing { state: None, ..standing.clone() });
        events.extend(ended_trials(&before, standing));
        if before.state != standing.state {
            events.extend(arrived(&job, standing));
        }
        events
    }
}

fn beginning(job: &str, standing: &Standing, at: SystemTime) -> Option<String> {
    let trials = counted(standing.trials_total?, "trial");
    let left = standing.time_left(at).filter(|left| *left > Duration::ZERO);
    let left = left.map(|left| format!(", about {}", Span(left))).unwrap_or_default();
    Some(format!("{job}: {trials}{left}"))
}

/// Changes come coalesced: of several trials that ended meanwhile, only the last shown one has a name.
fn ended_trials(before: &Standing, standing: &Standing) -> Option<Event> {
    let since = |now: Option<u32>, then: Option<u32>| now.unwrap_or(0).saturating_sub(then.unwrap_or(0));
    let ended = since(standing.trials_done, before.trials_done);
    let failed = since(standing.trials_failed, before.trials_failed);
    let place = standing.trials();
    match (ended, failed) {
        (0, _) => None,
        (1, 0) => Some(Event::Progress(format!("[{place}] {}: ended", trial_of(before)))),
        (1, _) => Some(Event::Notice(format!("[{place}] {}: no valid result", trial_of(before)))),
        (_, 0) => Some(Event::Progress(format!("[{place}] {} ended", counted(ended, "trial")))),
        _ => {
            let ended = counted(ended, "trial");
            Some(Event::Notice(format!("[{place}] {ended} ended, {failed} without a valid result")))
        }
    }
}

fn trial_of(standing: &Standing) -> String {
    standing.trial.as_deref().map_or_else(|| "a trial".to_owned(), harmless)
}

fn arrived(job: &str, standing: &Standing) -> Option<Event> {
    let reason = standing.reason.as_deref().map(|reason| format!(": {}", harmless(reason))).unwrap_or_default();
    Some(match standing.state? {
        // Every job is queued for a moment.
        JobState::Queued if reason.is_empty() => return None,
        JobState::Queued => Event::Notice(format!("{job} waits behind other jobs{reason}")),
        JobState::WaitingForGpu => Event::Notice(format!("{job} waits for its device{reason}")),
        JobState::Running => return None,
        JobState::Restoring => Event::Notice(format!("{job} brings its GPU's layout back{reason}")),
        JobState::Done => {
            let trials = counted(standing.trials_done.unwrap_or(0), "trial");
            let failed = match standing.trials_failed.unwrap_or(0) {
                0 => String::new(),
                failed => format!(", {failed} without a valid result"),
            };
            Event::Progress(format!("{job} is done: {trials}{failed}"))
        }
        JobState::Failed => Event::Notice(format!("{job} failed{reason}")),
        JobState::Cancelled => Event::Notice(format!("{job} was cancelled{reason}")),
        JobState::Interrupted => Event::Notice(format!("{job} was interrupted: the daemon ended while it ran{reason}")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::UNIX_EPOCH;

    fn running(done: u32, failed: u32, trial: &str) -> Standing {
        Standing {
            id: Some(7),
            state: Some(JobState::Running),
            trials_total: Some(4),
            trials_done: Some(done),
            trials_failed: Some(failed),
            trial: Some(trial.to_owned()),
            phase: Some("measuring".to_owned()),
            estimated_end: Some(150_000_000),
            ..Standing::default()
        }
    }

    /// All that is said about these standings, one a line; what stands beside a bar too is marked.
    fn check(standings: &[Standing], expected: &str) {
        let mut news = News::default();
        let said: Vec<String> = standings
            .iter()
            .flat_map(|standing| news.of(standing, UNIX_EPOCH))
            .map(|event| match event {
                Event::Progress(text) => text,
                Event::Notice(text) => format!("! {text}"),
            })
            .collect();
        assert_eq!(said.join("\n"), expected);
    }

    #[test]
    fn a_run_is_told_trial_by_trial() {
        let done = Standing { state: Some(JobState::Done), trial: None, ..running(4, 2, "") };
        check(
            &[
                Standing { state: Some(JobState::Queued), trial: None, ..running(0, 0, "") },
                running(0, 0, "exclusive: a"),
                running(1, 0, "mps: b"),
                running(2, 1, "mps: c"),
                done,
            ],
            "job 7: 4 trials, about 2m30s\n\
             [1/4] exclusive: a: ended\n\
             ! [2/4] mps: b: no valid result\n\
             ! [4/4] 2 trials ended, 1 without a valid result\n\
             job 7 is done: 4 trials, 2 without a valid result",
        );
    }

    #[test]
    fn reasons_are_told() {
        let with = |state, reason: &str| Standing {
            state: Some(state),
            reason: Some(reason.to_owned()),
            estimated_end: None,
            ..running(0, 0, "a")
        };
        check(
            &[
                with(JobState::Queued, "job 6 is first"),
                with(JobState::WaitingForGpu, "user ada measures on it"),
                with(JobState::Failed, "the GPU fell\noff"),
            ],
            "job 7: 4 trials\n\
             ! job 7 waits behind other jobs: job 6 is first\n\
             ! job 7 waits for its device: user ada measures on it\n\
             ! job 7 failed: the GPU fell\u{fffd}off",
        );
    }

    #[test]
    fn a_job_that_ended_before_is_told_once() {
        let ended = Standing { state: Some(JobState::Interrupted), ..running(1, 0, "a") };
        check(&[ended.clone(), ended], "! job 7 was interrupted: the daemon ended while it ran");
    }

    #[test]
    fn the_bar_says_what_goes_on_and_how_long() {
        assert_eq!(now(&running(1, 0, "mps: 4x resnet18"), UNIX_EPOCH), "mps: 4x resnet18, measuring, 2m30s left");
        let waiting = Standing { state: Some(JobState::WaitingForGpu), trial: None, phase: None, ..running(0, 0, "") };
        assert_eq!(now(&waiting, UNIX_EPOCH), "waiting-for-gpu, 2m30s left");
    }
}
