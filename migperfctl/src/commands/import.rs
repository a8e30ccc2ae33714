//! `import`: measured tables of others, held against what their latencies allow. No daemon is asked.

use std::fs;
use std::path::Path;

use anyhow::Context as _;
use migperf_core::imported::{ImportedRow, ImportedTable};
use migperf_core::report::Flag;
use serde::Serialize;

use crate::args::ImportArgs;
use crate::exit::Exit;
use crate::output;

/// A file and its table.
#[derive(Debug, Serialize)]
struct Imported {
    file: String,
    #[serde(flatten)]
    table: ImportedTable,
}

/// Prints what the tables hold; one that contradicts itself is told by the exit code too.
pub(crate) fn import(args: &ImportArgs, json: bool) -> anyhow::Result<Exit> {
    let tables = args.files.iter().map(|path| read(path)).collect::<anyhow::Result<Vec<_>>>()?;
    if json {
        let json = serde_json::to_string_pretty(&tables).context("can't write the tables as JSON")?;
        output::line(&json)?;
    } else {
        for imported in &tables {
            output::put(&shown(imported))?;
        }
    }
    let contradicts = tables.iter().any(|imported| imported.table.flagged > 0);
    Ok(if contradicts { Exit::Invalid } else { Exit::Valid })
}

fn read(path: &Path) -> anyhow::Result<Imported> {
    let text = fs::read_to_string(path).with_context(|| format!("can't read {}", path.display()))?;
    let table = ImportedTable::read(&text).with_context(|| format!("can't import {}", path.display()))?;
    Ok(Imported { file: path.display().to_string(), table })
}

fn shown(Imported { file, table }: &Imported) -> String {
    let (rows, measured, flagged) = (table.rows.len(), table.measured, table.flagged);
    let mut text = format!("{file}: {rows} rows, {measured} measured, {flagged} contradict themselves\n");
    for row in table.rows.iter().filter(|row| !row.flags.is_empty()) {
        text.push_str(&contradiction(row));
    }
    if let Some(items) = table.items_in_flight {
        text.push_str(&format!(
            "  throughput x latency is {items:.2} items in every row, as if that were the batch size\n"
        ));
    }
    if flagged > 0 {
        let flag = Flag::ThroughputLatency;
        text.push_str(&format!("  {flag}: {}\n", flag.cause()));
    }
    text
}

fn contradiction(row: &ImportedRow) -> String {
    let (Some(latency), Some(rate), Some(off)) = (row.latency_ms, row.throughput_samples_per_s, row.disagreement)
    else {
        return String::new();
    };
    let (line, batch) = (row.line, row.batch_size);
    let (model, profile) = (output::harmless(&row.model), output::harmless(&row.profile));
    let sequence = row.sequence_length.map_or_else(String::new, |length| format!(" x {length} tokens"));
    let allowed = f64::from(batch) / (latency / 1e3);
    format!(
        "  line {line}: {model} on {profile}, batches of {batch}{sequence}: {latency} ms allow {allowed:.2}/s, the table has {rate}/s ({:+.1} %)\n",
        off * 100.0
    )
}
