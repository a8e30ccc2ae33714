//! The report as one HTML file: nothing is loaded, no script, everything can be read without seeing colours or plots.
//!
//! The answer comes first, then what it rests on. Plots are drawn here ([`svg`]) from the report's numbers and its
//! thinned series; each has its numbers beside it as a table. Detail is given to mixes of work in the order of the
//! answers until a budget of bytes is spent, so that a report of hundreds of trials stays small; what is left out is
//! said.

mod answer;
mod background;
mod course;
mod figure;
mod latency;
mod rates;
mod svg;

use std::fmt::Write as _;

use self::figure::{estimate, heading_id};
use self::svg::escape;
use super::cell::CellReport;
use super::choice::{Choices, mix};
use super::trial::TrialReport;
use super::{Report, SharingView};
use crate::trial::Purpose;

const STYLE: &str = include_str!("html/style.css");
/// Bytes that plots of mixes may take; a mix that is begun is finished.
const BUDGET: usize = 300_000;

/// The report as HTML.
#[must_use]
pub fn render(report: &Report) -> String {
    let mut page = Page::of(report);
    page.head();
    page.text.push_str("<main id=\"main\">\n");
    answer::write(&mut page);
    mixes(&mut page);
    rates::sweeps(&mut page);
    interference(&mut page);
    background::write(&mut page);
    page.text.push_str("</main>\n");
    page.foot();
    page.text
}

/// A page that grows.
struct Page<'a> {
    report: &'a Report,
    choices: Choices,
    /// Ways of sharing in the order of their first cell: the place gives the colour.
    modes: Vec<&'a str>,
    /// Figures so far, for ids.
    figures: usize,
    text: String,
}

/// Cells whose cohorts run the same.
struct Mix<'a> {
    name: String,
    cells: Vec<&'a CellReport>,
}

impl<'a> Page<'a> {
    fn of(report: &'a Report) -> Self {
        let mut modes: Vec<&str> = Vec::new();
        for cell in &report.cells {
            if !modes.contains(&cell.sharing.name.as_str()) {
                modes.push(&cell.sharing.name);
            }
        }
        Self { report, choices: Choices::of(report), modes, figures: 0, text: String::new() }
    }

    /// The place of a way of sharing, which gives its colour and mark.
    fn mode(&self, sharing: &SharingView) -> usize {
        self.modes.iter().position(|known| *known == sharing.name).unwrap_or(0)
    }

    fn cell(&self, cell: u32) -> Option<&'a CellReport> {
        self.report.cells.iter().find(|known| known.cell == cell)
    }

    /// A cell's repeats that have numbers.
    fn usable(&self, cell: &CellReport) -> impl Iterator<Item = &'a TrialReport> + use<'a> {
        let cell = cell.cell;
        self.report
            .trials
            .iter()
            .filter(move |trial| trial.cell == cell && trial.purpose != Purpose::Drift && trial.outcome.is_usable())
    }

    fn head(&mut self) {
        let report = self.report;
        let name = escape(&report.job.name);
        let short = escape(&report.job.name.chars().take(50).collect::<String>());
        let _ = write!(
            self.text,
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n<title>migperf: {short}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
             <a class=\"skip\" href=\"#main\">Skip to the answer</a>\n"
        );
        self.watermark();
        let _ = write!(
            self.text,
            "<header>\n<h1>{name}</h1>\n<p class=\"soft small\">Measured by migperf {} on {} ({}), {}. {}</p>\n",
            escape(&report.context.migperf),
            escape(&device(report)),
            escape(&report.context.host),
            escape(report.job.submitted.get(..16).unwrap_or(&report.job.submitted).replace('T', " ").as_str()),
            escape(&format!("{}.", report.summary))
        );
        if let Some(problem) = report.layout.as_ref().and_then(|layout| layout.problem.as_deref()) {
            self.paragraph("bad", problem);
        }
        self.text.push_str("<nav aria-label=\"Sections\"><ul>");
        for (id, name) in [
            ("answer", "Answer"),
            ("comparison", "Comparison"),
            ("sweeps", "Batch size and workers"),
            ("interference", "Interference"),
            ("context", "Context"),
            ("flags", "Flags"),
            ("raw", "Numbers"),
            ("reproduce", "Reproduce"),
            ("reading", "How to read this"),
        ] {
            let _ = write!(self.text, "<li><a href=\"#{id}\">{name}</a></li>");
        }
        self.text.push_str("</ul></nav>\n</header>\n");
    }

    fn watermark(&mut self) {
        if let Some(watermark) = &self.report.watermark {
            let _ = writeln!(self.text, "<div class=\"sim\" role=\"note\">{}</div>", escape(watermark));
        }
    }

    fn foot(&mut self) {
        let _ = writeln!(
            self.text,
            "<footer class=\"soft small\"><p>Job {}. This file loads nothing and has no script.</p></footer>",
            escape(&self.report.job.uid)
        );
        self.watermark();
        self.text.push_str("</body>\n</html>\n");
    }

    fn section(&mut self, id: &str, title: &str) {
        let _ = writeln!(self.text, "<section aria-labelledby=\"{id}\">\n<h2 id=\"{id}\">{title}</h2>");
    }

    fn end_section(&mut self) {
        self.text.push_str("</section>\n");
    }

    fn paragraph(&mut self, class: &str, text: &str) {
        let _ = writeln!(self.text, "<p class=\"{class}\">{}</p>", escape(text));
    }
}

/// What was measured on, in a few words.
fn device(report: &Report) -> String {
    let mut names: Vec<&str> =
        report.context.gpus.iter().filter_map(|gpu| Some(gpu.name.value()?.value.as_str())).collect();
    names.dedup();
    match (names.as_slice(), report.context.processor.value()) {
        ([], Some(processor)) if report.job.target == "cpu" => format!("the processors ({})", processor.value),
        ([], _) if report.job.target == "cpu" => "the processors".to_owned(),
        ([], _) => "the GPU".to_owned(),
        (names, _) => names.join(", "),
    }
}

/// A way of sharing as a sentence has it.
fn in_words(sharing: &SharingView) -> String {
    match (sharing.mode.as_str(), sharing.active_thread_percentage, &sharing.layout) {
        ("mps", Some(cap), _) => format!("MPS, each capped to {cap} %"),
        ("mps", None, _) => "MPS".to_owned(),
        ("time-slice", ..) => "time-slicing".to_owned(),
        ("mig", _, Some(layout)) => format!("MIG {layout}"),
        ("cpu", ..) => "the processors".to_owned(),
        _ => sharing.name.clone(),
    }
}

fn mixes(page: &mut Page<'_>) {
    let mut mixes: Vec<Mix<'_>> = Vec::new();
    for cell in &page.report.cells {
        let name = mix(cell);
        match mixes.iter_mut().find(|known| known.name == name) {
            Some(known) => known.cells.push(cell),
            None => mixes.push(Mix { name, cells: vec![cell] }),
        }
    }
    mixes.sort_by_key(|mix| {
        let members = mix.cells.first().map_or(0, |cell| cell.members);
        (!mix.name.contains(" + "), std::cmp::Reverse(members))
    });
    page.section("comparison", "Comparison");
    if page.report.cells.iter().any(|cell| !cell.requested) {
        page.paragraph("small soft", "*: not in the suite; added because a comparison needs it.");
    }
    let begin = page.text.len();
    let mut plain: Vec<String> = Vec::new();
    for mix in &mixes {
        let _ = writeln!(page.text, "<h3 id=\"{}\">{}</h3>", heading_id(&mix.name), escape(&mix.name));
        table(page, mix);
        if page.text.len() - begin > BUDGET {
            plain.push(mix.name.clone());
            continue;
        }
        if mix.cells.iter().any(|cell| !cell.groups.is_empty()) {
            key(page, mix);
            page.text.push_str("<div class=\"plots\">\n");
            latency::plots(page, mix);
            rates::plots(page, mix);
            course::plots(page, mix);
            page.text.push_str("</div>\n");
        }
    }
    if !plain.is_empty() {
        let text = format!(
            "To keep this file small, {} of {} mixes have their table only and no plots. The JSON report has the series of all.",
            plain.len(),
            mixes.len()
        );
        page.paragraph("small soft", &text);
    }
    page.end_section();
}

/// Which mark is which way of sharing.
fn key(page: &mut Page<'_>, mix: &Mix<'_>) {
    page.text.push_str("<ul class=\"key\">");
    for cell in &mix.cells {
        let mode = page.mode(&cell.sharing);
        let mut drawing = svg::Drawing::new(34.0, 14.0);
        drawing.line((0.0, 7.0), (34.0, 7.0), &format!("l s{}", mode % svg::COLOURS));
        drawing.mark((17.0, 7.0), mode);
        page.figures += 1;
        let name = in_words(&cell.sharing);
        let mark = drawing.finish(&format!("k{}", page.figures), &name, "line and mark of this way of sharing");
        let _ = write!(page.text, "<li>{mark}{}</li>", escape(&name));
    }
    page.text.push_str("</ul>\n");
}

/// The numbers of a mix, one row for each group of each cell.
fn table(page: &mut Page<'_>, mix: &Mix<'_>) {
    let mut table = figure::Table::new(
        &format!("{}: every way of sharing that was measured", mix.name),
        &[
            "sharing",
            "work",
            "samples/s",
            "mean ms",
            "p50 ms",
            "p99 ms",
            "slower than alone",
            "W",
            "J/sample",
            "GRACT",
            "frame buffer GiB",
            "verdict",
        ],
        &[0, 1, 11],
    );
    for cell in &mix.cells {
        let mut name = in_words(&cell.sharing);
        if !cell.requested {
            name.push_str(" *");
        }
        let verdict = verdict(cell);
        if cell.groups.is_empty() {
            let mut row = vec![escape(&name)];
            row.resize(11, String::new());
            row.push(verdict);
            table.push(row);
            continue;
        }
        for (place, group) in cell.groups.iter().enumerate() {
            let of_cell = |text: String| if place == 0 { text } else { String::new() };
            table.push(vec![
                escape(&name),
                escape(&format!("{}x {}", group.members.len(), group.workload.name)),
                estimate(&group.throughput_samples_per_s, 1.0),
                estimate(&group.latency_ms.mean, 1.0),
                estimate(&group.latency_ms.nearest_rank.p50, 1.0),
                estimate(&group.latency_ms.nearest_rank.p99, 1.0),
                figure::slowdown(&group.against_exclusive.throughput),
                of_cell(estimate(&cell.power_w, 1.0)),
                of_cell(estimate(&cell.energy_per_sample_j, 1.0)),
                of_cell(estimate(&cell.gract, 1.0)),
                of_cell(estimate(&cell.frame_buffer_mean_bytes, 1.0 / figure::GIB)),
                of_cell(verdict.clone()),
            ]);
        }
    }
    page.text.push_str(&table.finish());
}

/// What became of a cell, with its flags.
fn verdict(cell: &CellReport) -> String {
    let class = match cell.outcome.name() {
        "valid" => "good",
        "flagged" | "partial" | "not-run" => "care",
        _ => "bad",
    };
    let flags: Vec<&str> = cell.flags.iter().map(|flag| flag.code()).collect();
    let more = match (&cell.reason, flags.is_empty()) {
        (Some(reason), _) => format!(": {}", escape(reason)),
        (None, false) => format!(": {}", flags.join(", ")),
        (None, true) => String::new(),
    };
    format!("<span class=\"{class}\">{}</span>{more}", cell.outcome.name())
}

/// How much slower each kind of work gets in company, as a table whose cells are coloured.
fn interference(page: &mut Page<'_>) {
    page.section("interference", "Interference");
    let report = page.report;
    let together: Vec<&CellReport> =
        report.cells.iter().filter(|cell| cell.members > 1 && !cell.groups.is_empty()).collect();
    if together.is_empty() {
        page.paragraph("", "No cohort with more than one member has numbers.");
        page.end_section();
        return;
    }
    let modes: Vec<&str> =
        page.modes.iter().copied().filter(|mode| together.iter().any(|cell| cell.sharing.name == *mode)).collect();
    let mut rows: Vec<(String, String)> = Vec::new();
    for cell in &together {
        for group in &cell.groups {
            let row = (group.workload.name.clone(), mix(cell));
            if !rows.contains(&row) {
                rows.push(row);
            }
        }
    }
    let words = |mode: &str| {
        together
            .iter()
            .find(|cell| cell.sharing.name == mode)
            .map_or_else(|| mode.to_owned(), |cell| in_words(&cell.sharing))
    };
    let mut heads = vec!["work".to_owned(), "in the cohort".to_owned()];
    heads.extend(modes.iter().map(|mode| words(mode)));
    let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
    let caption = "How many times slower a member is than the same work alone on the whole device (throughput alone over throughput \
                   here, mean over the members of the same work): 1 is as fast. Darker is slower; the steps are 1.05, 1.5, 2.5, 4 and 8 times.";
    let mut table = figure::Table::new(caption, &heads, &[0, 1]).with_class("heat");
    for (workload, name) in &rows {
        let mut row = vec![escape(workload), escape(name)];
        for mode in &modes {
            let group = together
                .iter()
                .filter(|cell| cell.sharing.name == *mode && mix(cell) == *name)
                .flat_map(|cell| &cell.groups)
                .find(|group| group.workload.name == *workload);
            row.push(match group.map(|group| &group.against_exclusive.throughput) {
                None => figure::missing("this was not measured, or has no numbers"),
                Some(slowdown) => figure::slowdown(slowdown),
            });
            let shade = group
                .and_then(|group| group.against_exclusive.throughput.number())
                .map(|times| [1.05, 1.5, 2.5, 4.0, 8.0].iter().filter(|step| times >= **step).count());
            table.shade(row.len() - 1, shade.map(|shade| format!("x{shade}")));
        }
        table.push(row);
    }
    page.text.push_str(&table.finish());
    page.end_section();
}
