//! A comparison for terminals.

use super::{Comparison, Row, Verdict, percent};
use crate::report::table::{Column, MISSING, Style, Table, wrap};
use crate::report::text::number;
use crate::report::{Finding, WATERMARK};

/// The comparison as text of at most `width` columns, with terminal colours if wanted.
#[must_use]
pub fn render(comparison: &Comparison, width: usize, colour: bool) -> String {
    let width = width.max(60);
    let mut text = String::new();
    if comparison.simulated {
        text.push_str(&format!("{}\n", Style::Bad.paint(WATERMARK, colour)));
    }
    text.push_str(&format!("{}\n", Style::Bold.paint(&comparison.summary(), colour)));
    let least = comparison.least_effect * 100.0;
    let rule = format!(
        "A change is told where it is beyond chance among all of these (Holm, 5 %) and at least {least:.1} %. Brackets: 95 % \
         interval of one change alone, between cohorts."
    );
    text.push_str(&wrap(&rule, width, "", ""));
    let mut cells: Vec<&str> = comparison.rows.iter().map(|row| row.cell.as_str()).collect();
    cells.dedup();
    for cell in cells {
        text.push_str(&format!("\n{}\n", Style::Bold.paint(cell, colour)));
        let left = |head| Column { head, left: true, give_up: 0 };
        let right = |head, give_up| Column { head, left: false, give_up };
        let mut table = Table::new(&[
            left("verdict"),
            Column { head: "work", left: true, give_up: 1 },
            left("metric"),
            right("before", 2),
            right("after", 2),
            left("change"),
        ]);
        for row in comparison.rows.iter().filter(|row| row.cell == cell) {
            table.push(line(row));
        }
        text.push_str(&table.render(width, colour).0);
    }
    reasons(comparison, width, &mut text);
    let list = |title: &str, lines: Vec<String>, text: &mut String| {
        if !lines.is_empty() {
            text.push_str(&format!("\n{}\n", Style::Bold.paint(title, colour)));
            lines.iter().for_each(|line| text.push_str(&wrap(line, width, "  ", "    ")));
        }
    };
    let differences = comparison.differences.iter();
    let differences = differences.map(|d| format!("{}: {} -> {}", d.what, d.before, d.after)).collect();
    list("What differs besides", differences, &mut text);
    list("Only in the first", comparison.only_before.clone(), &mut text);
    list("Only in the second", comparison.only_after.clone(), &mut text);
    text
}

fn line(row: &Row) -> Vec<(String, Style)> {
    let style = match row.verdict {
        Verdict::Same => Style::Plain,
        Verdict::Better => Style::Good,
        Verdict::Worse => Style::Bad,
        Verdict::CantTell => Style::Careful,
    };
    let shown = |finding: &Finding<_>| finding.number().map_or_else(|| MISSING.to_owned(), number);
    let change = row.ratio.value().map_or_else(|| MISSING.to_owned(), percent);
    vec![
        (row.verdict.name().to_owned(), style),
        (row.workload.clone(), Style::Plain),
        (format!("{} {}", row.metric, row.unit), Style::Plain),
        (shown(&row.before), Style::Plain),
        (shown(&row.after), Style::Plain),
        (change, Style::Plain),
    ]
}

/// Why ratios are missing, each reason once.
fn reasons(comparison: &Comparison, width: usize, text: &mut String) {
    let mut reasons: Vec<&str> = comparison.rows.iter().filter_map(|row| row.ratio.reason()).collect();
    reasons.sort_unstable();
    reasons.dedup();
    for reason in reasons {
        text.push('\n');
        text.push_str(&wrap(&format!("{MISSING}: {reason}"), width, "", "  "));
    }
}
