//! Figures and tables of the page, and how numbers stand in them.

use std::fmt::Write as _;

use super::Page;
use super::svg::{Drawing, escape};
use crate::report::finding::{Estimated, Finding};
use crate::report::text::number;
use crate::stats::{Bounds, Kind};

pub(super) const GIB: f64 = 1_073_741_824.0;

/// A missing number; the reason is there for a pointer and for a screen reader.
pub(super) fn missing(reason: &str) -> String {
    format!("<abbr title=\"{}\">–</abbr>", escape(reason))
}

/// The interval, where there is one. One within a window is in parentheses: it says nothing of another run.
fn interval(found: &Estimated, factor: f64) -> String {
    let Some(Bounds { low, high }) = found.interval else { return String::new() };
    let (low, high) = (number(low * factor), number(high * factor));
    match found.kind {
        Kind::BetweenCohorts => format!(" <span class=\"iv\">[{low}, {high}]</span>"),
        Kind::WithinWindow => format!(" <span class=\"iv\">({low}, {high})</span>"),
    }
}

/// An estimate with its interval, as HTML.
pub(super) fn estimate(finding: &Finding<Estimated>, factor: f64) -> String {
    match finding {
        Finding::Value(found) => format!("{}{}", number(found.value * factor), interval(found, factor)),
        Finding::Absent(absent) => missing(&absent.reason),
    }
}

/// How many times slower, as HTML.
pub(super) fn slowdown(finding: &Finding<Estimated>) -> String {
    match finding {
        Finding::Value(found) => format!("{:.2}×{}", found.value, interval(found, 1.0)),
        Finding::Absent(absent) => missing(&absent.reason),
    }
}

/// An id made of a name.
pub(super) fn heading_id(name: &str) -> String {
    let kept = name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' });
    format!("mix-{}", kept.collect::<String>())
}

/// A table whose first column heads its rows. Cells are HTML.
pub(super) struct Table {
    caption: String,
    class: &'static str,
    heads: Vec<String>,
    left: Vec<usize>,
    rows: Vec<(Option<&'static str>, Vec<String>)>,
    shades: Vec<(usize, usize, String)>,
}

impl Table {
    /// Headings, and which columns are text.
    pub(super) fn new(caption: &str, heads: &[&str], left: &[usize]) -> Self {
        Self {
            caption: caption.to_owned(),
            class: "",
            heads: heads.iter().map(|head| (*head).to_owned()).collect(),
            left: left.to_vec(),
            rows: Vec::new(),
            shades: Vec::new(),
        }
    }

    pub(super) fn with_class(mut self, class: &'static str) -> Self {
        self.class = class;
        self
    }

    /// Colours a cell of the row that comes next.
    pub(super) fn shade(&mut self, column: usize, class: Option<String>) {
        if let Some(class) = class {
            self.shades.push((self.rows.len(), column, class));
        }
    }

    pub(super) fn push(&mut self, row: Vec<String>) {
        self.rows.push((None, row));
    }

    /// A row that stands out.
    pub(super) fn push_winner(&mut self, row: Vec<String>) {
        self.rows.push((Some("win"), row));
    }

    pub(super) fn finish(&self) -> String {
        let class = if self.class.is_empty() { String::new() } else { format!(" class=\"{}\"", self.class) };
        let caption = escape(&self.caption);
        // What is wider than the screen scrolls by itself, by keyboard too.
        let mut text =
            format!("<div class=\"wide\" tabindex=\"0\"><table{class}><caption>{caption}</caption><thead><tr>");
        for (at, head) in self.heads.iter().enumerate() {
            let class = if self.left.contains(&at) { " class=\"t\"" } else { "" };
            let _ = write!(text, "<th scope=\"col\"{class}>{}</th>", escape(head));
        }
        text.push_str("</tr></thead><tbody>");
        for (number, (class, row)) in self.rows.iter().enumerate() {
            let _ = match class {
                Some(class) => write!(text, "<tr class=\"{class}\">"),
                None => write!(text, "<tr>"),
            };
            for (at, cell) in row.iter().enumerate() {
                let shade = self.shades.iter().find(|(row, column, _)| (*row, *column) == (number, at));
                let _ = match (at, shade) {
                    (0, _) => write!(text, "<th scope=\"row\">{cell}</th>"),
                    (_, Some((.., shade))) => write!(text, "<td class=\"{shade}\">{cell}</td>"),
                    (_, None) if self.left.contains(&at) => write!(text, "<td class=\"t\">{cell}</td>"),
                    (_, None) => write!(text, "<td>{cell}</td>"),
                };
            }
            text.push_str("</tr>\n");
        }
        text.push_str("</tbody></table></div>\n");
        text
    }
}

/// What a figure says beside its drawing.
pub(super) struct About<'a> {
    pub(super) title: &'a str,
    /// What is to be seen, for those who can't.
    pub(super) description: &'a str,
    /// How it was made.
    pub(super) caption: &'a str,
    /// Over the whole width of the page.
    pub(super) whole: bool,
}

impl Page<'_> {
    /// A drawing with its caption, and its numbers where the page does not have them elsewhere.
    pub(super) fn figure(&mut self, about: &About<'_>, drawing: Drawing, numbers: Option<&Table>) {
        self.figures += 1;
        let id = format!("f{}", self.figures);
        let class = if about.whole { " class=\"whole\"" } else { "" };
        let _ = write!(
            self.text,
            "<figure{class}><figcaption><b>{}.</b> {}</figcaption>{}",
            escape(about.title),
            escape(about.caption),
            drawing.finish(&id, about.title, about.description)
        );
        if let Some(table) = numbers {
            let _ = write!(
                self.text,
                "<details class=\"alt\"><summary>Numbers of this plot</summary>{}</details>",
                table.finish()
            );
        }
        self.text.push_str("</figure>\n");
    }
}
