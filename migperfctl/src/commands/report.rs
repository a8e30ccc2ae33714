//! `report`: a job's report, read as JSON from the daemon or a file, and shown in the form that was asked for. Nothing is
//! measured or computed here but what is shown.

use std::fs;
use std::path::Path;

use anyhow::Context as _;
use migperf_core::archive::Archive;
use migperf_core::report::{Report, Summary, csv, eval, html, markdown, text};
use migperf_dbus::Keyed;

use crate::args::{Format, ReportArgs, ReportOf};
use crate::commands::read_document;
use crate::connect::Session;
use crate::exit::Exit;
use crate::output::{self, Display};

/// Columns of a text report in a file.
pub(crate) const FILE_WIDTH: usize = 120;

/// A report as the daemon gave it, and as it was understood.
#[derive(Debug)]
pub(crate) struct Stored {
    json: String,
    report: Report,
}

impl Stored {
    /// Asks for a job's report.
    pub(crate) async fn open(session: &Session, job: u32) -> anyhow::Result<Self> {
        let json = bytes(session, job).await?;
        let report = serde_json::from_str(&json).with_context(|| {
            format!(
                "can't understand the report of job {job}: the daemon's version may be newer; `migperfctl report {job} --json` gives it as it is"
            )
        })?;
        Ok(Self { json, report })
    }

    /// Reads a JSON report, or computes that of an archive.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        let bytes = fs::read(path).with_context(|| format!("can't read {}", path.display()))?;
        if Archive::is_one(&bytes) {
            let report = Archive::open(&bytes).and_then(Archive::report);
            let report = report.with_context(|| format!("can't read {}", path.display()))?;
            return Ok(Self { json: report.to_json(), report });
        }
        let json = String::from_utf8(bytes).with_context(|| format!("{} is no JSON report", path.display()))?;
        let report = serde_json::from_str(&json).with_context(|| {
            format!("{} is no JSON report, or one of a newer version than this program", path.display())
        })?;
        Ok(Self { json, report })
    }

    /// The report.
    pub(crate) fn report(&self) -> &Report {
        &self.report
    }

    /// The report in a form.
    pub(crate) fn render(&self, format: Format, display: Display) -> String {
        match format {
            Format::Text => text::render(&self.report, display.width, display.colour),
            Format::Json => self.json.clone(),
            Format::Csv => csv::render(&self.report),
            Format::Html => html::render(&self.report),
            Format::Markdown => markdown::render(&self.report),
            Format::MigperfEval => eval::render(&self.report),
        }
    }

    /// Writes the report in every form into a directory.
    pub(crate) fn write_all(&self, directory: &Path) -> anyhow::Result<()> {
        make_directory(directory)?;
        let display = Display { width: FILE_WIDTH, colour: false };
        for (name, format) in [
            ("report.html", Format::Html),
            ("report.txt", Format::Text),
            ("report.json", Format::Json),
            ("report.csv", Format::Csv),
        ] {
            write(&directory.join(name), &self.render(format, display))?;
        }
        output::note(&format!("wrote report.html, .txt, .json and .csv into {}", directory.display()));
        Ok(())
    }

    /// How a command ends that measured this.
    pub(crate) fn exit(&self) -> Exit {
        if without_result(&self.report.summary) > 0 { Exit::Invalid } else { Exit::Valid }
    }
}

/// Planned trials that gave no valid result. That a workload does not fit is one.
fn without_result(summary: &Summary) -> u32 {
    let with = summary.valid + summary.flagged + summary.does_not_fit;
    summary.planned.max(summary.recorded).saturating_sub(with)
}

/// The report's JSON as the daemon wrote it.
async fn bytes(session: &Session, job: u32) -> anyhow::Result<String> {
    let answer = session.manager.open_report(job, "json", &Keyed::new()).await;
    let bytes = read_document(session, answer, "the report")?;
    String::from_utf8(bytes).context("the report is not UTF-8 text")
}

/// Makes the directory for a report's files.
pub(crate) fn make_directory(directory: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(directory).with_context(|| format!("can't make the directory {}", directory.display()))
}

pub(crate) fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(path, text).with_context(|| format!("can't write {}", path.display()))
}

/// Prints or writes a report.
pub(crate) async fn report<F>(args: ReportArgs, json: bool, session: impl FnOnce() -> F) -> anyhow::Result<Exit>
where
    F: Future<Output = anyhow::Result<Session>>,
{
    let format = Format::asked(args.format, json);
    let display = match &args.output {
        Some(_) => Display { width: FILE_WIDTH, colour: false },
        None => output::display(),
    };
    let text = match (&args.of, format) {
        (ReportOf::File(path), _) => Stored::read(path)?.render(format, display),
        // As it is: a program may understand what this one does not.
        (ReportOf::Job(job), Format::Json) => bytes(&session().await?, *job).await?,
        (ReportOf::Job(job), _) => Stored::open(&session().await?, *job).await?.render(format, display),
    };
    match &args.output {
        Some(path) => write(path, &text)?,
        None => output::put(&text)?,
    }
    Ok(Exit::Valid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_results_count_as_results() {
        let summary = |change: fn(&mut Summary)| {
            let mut summary = Summary { planned: 4, recorded: 4, valid: 2, flagged: 1, ..Summary::default() };
            change(&mut summary);
            without_result(&summary)
        };
        assert_eq!(summary(|s| s.does_not_fit = 1), 0);
        assert_eq!(summary(|s| s.invalid = 1), 1);
        assert_eq!(summary(|s| s.failed = 1), 1);
        assert_eq!(summary(|s| s.contaminated = 1), 1);
        assert_eq!(summary(|s| s.recorded = 3), 1);
    }
}
