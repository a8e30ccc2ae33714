//! The report as Markdown, for issues, wikis and pull requests: the answers, then a table for each mix.

use std::fmt::Write as _;

use super::cell::CellReport;
use super::choice::{Choices, Decision, mix};
use super::finding::{Estimated, Finding};
use super::text::number;
use super::{Report, Text};
use crate::stats::Kind;

/// Text from outside without what Markdown or HTML would act on.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '|' | '*' | '_' | '`' | '[' | ']' | '\\' | '#' | '~' => {
                escaped.push('\\');
                escaped.push(c);
            }
            c if c.is_control() => escaped.push(' '),
            c => escaped.push(c),
        }
    }
    escaped
}

/// The report as Markdown.
#[must_use]
pub fn render(report: &Report) -> String {
    let mut text = String::new();
    if let Some(watermark) = &report.watermark {
        let _ = writeln!(text, "**{watermark}**\n");
    }
    let _ = writeln!(text, "# migperf report: {}\n", escape(&report.job.name));
    answers(report, &mut text);
    let mut mixes: Vec<(String, Vec<&CellReport>)> = Vec::new();
    for cell in &report.cells {
        let name = mix(cell);
        match mixes.iter_mut().find(|(known, _)| *known == name) {
            Some((_, cells)) => cells.push(cell),
            None => mixes.push((name, vec![cell])),
        }
    }
    for (name, cells) in &mixes {
        let _ = writeln!(text, "\n## {}\n", escape(name));
        text.push_str(
            "| sharing | work | samples/s | mean ms | p99 ms | slower than alone | W | J/sample | GRACT | verdict |\n",
        );
        text.push_str("|---|---|---:|---:|---:|---:|---:|---:|---:|---|\n");
        cells.iter().for_each(|cell| rows(cell, &mut text));
    }
    text.push_str("\n± is half a 95 % interval: bare between cohorts, in parentheses within one window only. *: added for comparison.\n");
    if !report.explanations.is_empty() {
        text.push_str("\n## Flags and faults\n\n");
        for explanation in &report.explanations {
            let (cause, remedy) = (escape(&explanation.cause), escape(&explanation.remedy));
            let _ = writeln!(text, "- `{}`: {cause}. Remedy: {remedy}.", explanation.code);
        }
    }
    context(report, &mut text);
    text
}

fn answers(report: &Report, text: &mut String) {
    let choices = Choices::of(report);
    let _ = writeln!(text, "Better means: **{}**.\n", escape(&choices.criterion));
    for choice in &choices.choices {
        let name = |at: &usize| escape(&choice.options[*at].sharing);
        let answer = match &choice.outcome {
            Decision::NoChoice(_) => continue,
            Decision::Best(best) => format!("**{}**", name(best)),
            Decision::Among(best) => {
                let names: Vec<String> = best.iter().map(name).collect();
                format!("**{}**, which can't be told apart", names.join(" or "))
            }
            Decision::CantTell(why) => format!("can't tell: {}", escape(why)),
        };
        let found: Vec<String> = (0..choice.options.len())
            .map(|at| format!("{} {}", name(&at), estimate(&choice.options[at].found, 1.0)))
            .collect();
        let unit = choices.metric.unit();
        let _ = writeln!(text, "- {}: {answer} ({}; {unit})", escape(&choice.mix), found.join(", "));
    }
}

/// A number with half its interval in percent.
fn estimate(finding: &Finding<Estimated>, factor: f64) -> String {
    let Finding::Value(found) = finding else { return "–".to_owned() };
    let half = found
        .interval
        .filter(|_| found.value != 0.0)
        .map(|bounds| (bounds.high - found.value).max(found.value - bounds.low) / found.value.abs() * 100.0);
    let half = half.map_or_else(String::new, |half| match found.kind {
        Kind::BetweenCohorts => format!(" ±{half:.1}%"),
        Kind::WithinWindow => format!(" (±{half:.1}%)"),
    });
    format!("{}{half}", number(found.value * factor))
}

fn rows(cell: &CellReport, text: &mut String) {
    let star = if cell.requested { "" } else { " \\*" };
    let sharing = format!("{}{star}", escape(&cell.sharing.name));
    if cell.groups.is_empty() {
        let reason = cell.reason.as_deref().map(|reason| format!(": {}", escape(reason))).unwrap_or_default();
        let _ = writeln!(text, "| {sharing} | | – | – | – | – | – | – | – | {}{reason} |", cell.outcome.name());
    }
    let flags: Vec<&str> = cell.flags.iter().map(|flag| flag.code()).collect();
    for (place, group) in cell.groups.iter().enumerate() {
        let of_cell = |text: String| if place == 0 { text } else { String::new() };
        let _ = writeln!(
            text,
            "| {sharing} | {}x {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            group.members.len(),
            escape(&group.workload.name),
            estimate(&group.throughput_samples_per_s, 1.0),
            estimate(&group.latency_ms.mean, 1.0),
            estimate(&group.latency_ms.nearest_rank.p99, 1.0),
            estimate(&group.against_exclusive.throughput, 1.0),
            of_cell(estimate(&cell.power_w, 1.0)),
            of_cell(estimate(&cell.energy_per_sample_j, 1.0)),
            of_cell(estimate(&cell.gract, 1.0)),
            of_cell(format!("{} {}", cell.outcome.name(), flags.join(", ")).trim_end().to_owned()),
        );
    }
}

fn context(report: &Report, text: &mut String) {
    let context = &report.context;
    let or = |finding: &Finding<Text>| escape(finding.value().map_or("unknown", |found| &found.value));
    let gpus: Vec<String> =
        context.gpus.iter().map(|gpu| format!("{} ({})", or(&gpu.name), escape(&gpu.uuid))).collect();
    let gpus = if gpus.is_empty() { "no GPU".to_owned() } else { gpus.join(", ") };
    let _ = writeln!(
        text,
        "\n## Context\n\n{gpus}, driver {}, CUDA {}; host {}, {} processors ({}), kernel {}; migperf {}, libtorch {}; job {}, {}.",
        or(&context.driver),
        or(&context.cuda),
        escape(&context.host),
        context.processors,
        or(&context.processor),
        escape(&context.kernel),
        escape(&context.migperf),
        or(&context.libtorch),
        escape(&report.job.uid),
        escape(&report.job.submitted)
    );
}

#[cfg(test)]
mod tests {
    #[test]
    fn nothing_from_outside_becomes_markup() {
        assert_eq!(super::escape("a|b<i>*c*\n`d`"), "a\\|b&lt;i&gt;\\*c\\* \\`d\\`");
    }
}
