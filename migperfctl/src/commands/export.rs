//! `export`: what a job measured, every batch of it, as one file or as folders.

use std::fs;

use anyhow::{Context as _, bail};
use migperf_core::archive::{Archive, co_load};
use migperf_dbus::Keyed;

use crate::args::{ExportArgs, ExportFormat, ReportOf};
use crate::commands::read_document;
use crate::commands::report::{make_directory, write};
use crate::connect::Session;
use crate::exit::Exit;
use crate::output;

/// Writes a job's records.
pub(crate) async fn export<F>(args: ExportArgs, session: impl FnOnce() -> F) -> anyhow::Result<Exit>
where
    F: Future<Output = anyhow::Result<Session>>,
{
    let bytes = match &args.of {
        ReportOf::File(path) => fs::read(path).with_context(|| format!("can't read {}", path.display()))?,
        ReportOf::Job(job) => {
            let session = session().await?;
            let answer = session.manager.open_report(*job, "archive", &Keyed::new()).await;
            read_document(&session, answer, "the job's archive")?
        }
    };
    let mut archive = Archive::open(&bytes).with_context(|| format!("can't read {}", args.of))?;
    match args.format {
        ExportFormat::Archive => {
            // Read to its end first: a file that can't be read again is no export.
            while archive.next_trial()?.is_some() {}
            fs::write(&args.output, &bytes).with_context(|| format!("can't write {}", args.output.display()))?;
            output::note(&format!("wrote {} ({} bytes)", args.output.display(), bytes.len()));
        }
        ExportFormat::CoLoad => {
            let mut workers = 0;
            while let Some(trial) = archive.next_trial()? {
                for file in co_load::files(archive.job(), &trial) {
                    let path = args.output.join(&file.path);
                    make_directory(path.parent().unwrap_or(&args.output))?;
                    write(&path, &file.text)?;
                    workers += 1;
                }
            }
            if workers == 0 {
                bail!("no cohort of {} ran through: there is nothing to write", args.of);
            }
            output::note(&format!("wrote {} workers' folders into {}", workers / 2, args.output.display()));
        }
    }
    Ok(Exit::Valid)
}
