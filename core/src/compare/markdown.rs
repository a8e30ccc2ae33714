//! A comparison for a pull request: the verdict, what changed, and the rest folded away.

use std::fmt::Write as _;

use super::{Comparison, Row, Verdict, percent};
use crate::report::markdown::escape;
use crate::report::text::number;
use crate::report::{Finding, WATERMARK};

/// The comparison as Markdown (GitHub's, with tables).
#[must_use]
pub fn render(comparison: &Comparison) -> String {
    let mut text = String::new();
    if comparison.simulated {
        let _ = writeln!(text, "**{WATERMARK}**\n");
    }
    let title = match (comparison.is_regression(), comparison.count(Verdict::Better) > 0, comparison.rows.len()) {
        (_, _, 0) => "nothing to compare",
        (true, ..) => "worse",
        (false, true, _) => "better",
        (false, false, all) if comparison.count(Verdict::Same) == all => "the same",
        (false, false, _) => "no change that can be told",
    };
    let _ = writeln!(text, "### migperf: {title}\n\n{}", comparison.summary());
    let changed = |row: &&Row| matches!(row.verdict, Verdict::Better | Verdict::Worse);
    table(&mut text, comparison.rows.iter().filter(changed));
    if !comparison.differences.is_empty() {
        text.push_str("\n| what differs besides | before | after |\n|---|---|---|\n");
        for difference in &comparison.differences {
            let (what, before, after) = (&difference.what, &difference.before, &difference.after);
            let _ = writeln!(text, "| {} | {} | {} |", escape(what), escape(before), escape(after));
        }
    }
    let rest: Vec<&Row> = comparison.rows.iter().filter(|row| !changed(row)).collect();
    if !rest.is_empty() {
        let _ = writeln!(
            text,
            "\n<details><summary>{} numbers that did not change, or can't be told</summary>",
            rest.len()
        );
        table(&mut text, rest.into_iter());
        text.push_str("\n</details>\n");
    }
    for (title, cells) in [("first", &comparison.only_before), ("second", &comparison.only_after)] {
        if !cells.is_empty() {
            let cells: Vec<String> = cells.iter().map(|cell| escape(cell)).collect();
            let _ = writeln!(text, "\nOnly in the {title} report: {}.", cells.join("; "));
        }
    }
    let least = comparison.least_effect * 100.0;
    let _ = writeln!(
        text,
        "\nA change is told where it is beyond chance among all numbers (Holm, 5 %) and at least {least:.1} %; brackets are 95 % \
         intervals between cohorts."
    );
    text
}

fn table<'a>(text: &mut String, rows: impl Iterator<Item = &'a Row>) {
    let mut rows = rows.peekable();
    if rows.peek().is_none() {
        return;
    }
    text.push_str("\n| | cell | work | metric | before | after | change |\n|---|---|---|---|---:|---:|---|\n");
    for row in rows {
        let shown = |finding: &Finding<_>| finding.number().map_or_else(|| "–".to_owned(), number);
        let change = row.ratio.value().map_or_else(|| format!("– ({})", row.ratio.reason().unwrap_or("")), percent);
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} {} | {} | {} | {} |",
            row.verdict.name(),
            escape(&row.cell),
            escape(&row.workload),
            row.metric,
            row.unit,
            shown(&row.before),
            shown(&row.after),
            escape(&change)
        );
    }
}
