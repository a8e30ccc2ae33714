//! Aligned columns and wrapped lines for terminals of any width, with colour only where it is asked for.

use std::fmt::Write as _;

/// How a piece of text stands out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Style {
    #[default]
    Plain,
    Bold,
    Good,
    Careful,
    Bad,
}

impl Style {
    /// The text with terminal escapes around it, if colour is wanted.
    pub(crate) fn paint(self, text: &str, colour: bool) -> String {
        let code = match self {
            Self::Plain => return text.to_owned(),
            _ if !colour => return text.to_owned(),
            Self::Bold => "1",
            Self::Good => "32",
            Self::Careful => "33",
            Self::Bad => "31",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}

/// Text from outside without anything that a terminal would act on.
pub(crate) fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// A column's heading, and what it is worth when room is short: the lowest go first, 0 never.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Column {
    pub(crate) head: &'static str,
    pub(crate) left: bool,
    pub(crate) give_up: u8,
}

/// Rows under headings.
#[derive(Debug)]
pub(crate) struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<(String, Style)>>,
}

/// Blanks before each column where there is room, and where there is not.
const GAPS: [usize; 2] = [2, 1];
/// A cell of a number that is missing.
pub(crate) const MISSING: &str = "-";

fn width_of(text: &str) -> usize {
    text.chars().count()
}

impl Table {
    pub(crate) fn new(columns: &[Column]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// A row with a cell for each column.
    pub(crate) fn push(&mut self, cells: Vec<(String, Style)>) {
        debug_assert_eq!(cells.len(), self.columns.len(), "a cell for each column");
        self.rows.push(cells.into_iter().map(|(text, style)| (clean(&text), style)).collect());
    }

    /// The table; columns that are empty or missing everywhere, or for which there is no room, are left out. The headings
    /// of the latter come back.
    pub(crate) fn render(&self, width: usize, colour: bool) -> (String, Vec<&'static str>) {
        let widths: Vec<usize> = (0..self.columns.len())
            .map(|at| self.rows.iter().map(|row| width_of(&row[at].0)).max().unwrap_or(0))
            .collect();
        let speaks = |at: &usize| self.rows.iter().any(|row| !row[*at].0.is_empty() && row[*at].0 != MISSING);
        let mut shown: Vec<usize> = (0..self.columns.len()).filter(speaks).collect();
        let room = |at: usize| widths[at].max(width_of(self.columns[at].head));
        let mut dropped = Vec::new();
        let taken = |shown: &[usize], gap: usize| shown.iter().map(|at| gap + room(*at)).sum::<usize>();
        while taken(&shown, GAPS[1]) > width {
            let candidate = shown.iter().copied().filter(|at| self.columns[*at].give_up > 0);
            let Some(first) = candidate.max_by_key(|at| self.columns[*at].give_up) else { break };
            shown.retain(|at| *at != first);
            dropped.push(first);
        }
        dropped.sort_unstable();
        let gap = if taken(&shown, GAPS[0]) > width { GAPS[1] } else { GAPS[0] };
        let mut text = String::new();
        let heads: Vec<(String, Style)> =
            self.columns.iter().map(|column| (column.head.to_owned(), Style::Bold)).collect();
        for row in std::iter::once(&heads).chain(&self.rows) {
            let mut line = String::new();
            for at in &shown {
                let (cell, style) = &row[*at];
                let pad = " ".repeat(room(*at) - width_of(cell));
                let cell = style.paint(cell, colour && !cell.is_empty());
                let gap = " ".repeat(gap);
                let _ = if self.columns[*at].left {
                    write!(line, "{gap}{cell}{pad}")
                } else {
                    write!(line, "{gap}{pad}{cell}")
                };
            }
            let _ = writeln!(text, "{}", line.trim_end());
        }
        (text, dropped.into_iter().map(|at| self.columns[at].head).collect())
    }
}

/// Words filled into lines of at most `width`, the first with one indent, the others with another.
pub(crate) fn wrap(text: &str, width: usize, first: &str, rest: &str) -> String {
    let mut lines = String::new();
    let (mut line, mut empty) = (first.to_owned(), true);
    for word in clean(text).split_whitespace() {
        if !empty && width_of(&line) + 1 + width_of(word) > width {
            lines.push_str(line.trim_end());
            lines.push('\n');
            line = rest.to_owned();
            empty = true;
        }
        if !empty {
            line.push(' ');
        }
        line.push_str(word);
        empty = false;
    }
    lines.push_str(line.trim_end());
    lines.push('\n');
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(cells: &[&str]) -> Vec<(String, Style)> {
        cells.iter().map(|cell| ((*cell).to_owned(), Style::Plain)).collect()
    }

    fn table() -> Table {
        let column = |head, left, give_up| Column { head, left, give_up };
        let mut table = Table::new(&[
            column("name", true, 0),
            column("size", false, 2),
            column("why", true, 1),
            column("none", true, 0),
        ]);
        table.push(plain(&["a", "1", "because", MISSING]));
        table.push(plain(&["longer", "1234567", "", ""]));
        table
    }

    #[test]
    fn columns_align_and_give_way() {
        assert_eq!(
            table().render(80, false),
            ("  name       size  why\n  a             1  because\n  longer  1234567\n".to_owned(), vec![])
        );
        assert_eq!(
            table().render(24, false),
            (" name      size why\n a            1 because\n longer 1234567\n".to_owned(), vec![])
        );
        assert_eq!(
            table().render(22, false),
            ("  name    why\n  a       because\n  longer\n".to_owned(), vec!["size"])
        );
        assert_eq!(table().render(10, false).1, ["size", "why"]);
    }

    #[test]
    fn words_fill_lines() {
        assert_eq!(wrap("one two three four", 12, "- ", "  "), "- one two\n  three four\n");
        assert_eq!(wrap("unbreakable", 4, "", ""), "unbreakable\n");
    }

    #[test]
    fn nothing_from_outside_reaches_the_terminal_as_a_command() {
        assert_eq!(clean("a\x1b[31mb\nc"), "a\u{fffd}[31mb\u{fffd}c");
        assert_eq!(Style::Bad.paint("x", false), "x");
        assert_eq!(Style::Bad.paint("x", true), "\x1b[31mx\x1b[0m");
    }
}
