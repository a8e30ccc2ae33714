//! The report for terminals: what was found first, then what to be careful about, then where it was measured.

use std::fmt::Write as _;

use super::baseline::IS_BASELINE;
use super::cell::{CellGroup, CellOutcome, CellReport};
use super::finding::{Estimated, Finding};
use super::table::{Column, MISSING, Style, Table, clean, wrap};
use super::verdict::Verdict;
use super::{Answer, Report};
use crate::stats::Kind;

const GIB: f64 = 1_073_741_824.0;
/// Reasons for missing numbers that are listed.
const MOST_REASONS: usize = 10;

/// The report as text of at most `width` columns (at least 60 are taken), with terminal colours if wanted.
#[must_use]
pub fn render(report: &Report, width: usize, colour: bool) -> String {
    let width = width.max(60);
    let mut text = String::new();
    watermark(report, colour, &mut text);
    head(report, width, colour, &mut text);
    objective(report, width, colour, &mut text);
    cells(report, width, colour, &mut text);
    comparisons(report, width, colour, &mut text);
    unmeasured(report, width, colour, &mut text);
    flags(report, width, colour, &mut text);
    context(report, width, colour, &mut text);
    notes(report, width, colour, &mut text);
    watermark(report, colour, &mut text);
    text
}

fn watermark(report: &Report, colour: bool, text: &mut String) {
    if let Some(watermark) = &report.watermark {
        let _ = writeln!(text, "{}", Style::Bad.paint(watermark, colour));
    }
}

fn title(text: &mut String, title: &str, colour: bool) {
    let _ = writeln!(text, "\n{}", Style::Bold.paint(&clean(title), colour));
}

fn head(report: &Report, width: usize, colour: bool, text: &mut String) {
    let name = format!("migperf report: {}", clean(&report.job.name));
    let _ = writeln!(text, "{}", Style::Bold.paint(&name, colour));
    if let Some(description) = &report.job.description {
        text.push_str(&wrap(description, width, "", ""));
    }
    text.push_str(&wrap(&report.summary.to_string(), width, "", ""));
}

fn answer_style(answer: Answer) -> Style {
    match answer {
        Answer::Meets | Answer::Best => Style::Good,
        Answer::Misses | Answer::NoNumber | Answer::NotBest => Style::Bad,
        Answer::CantTell => Style::Careful,
    }
}

fn objective(report: &Report, width: usize, colour: bool, text: &mut String) {
    let Some(objective) = &report.objective else { return };
    title(text, &format!("Objective: {}", objective.text), colour);
    let column = |head, left| Column { head, left, give_up: 0 };
    let mut table = Table::new(&[
        column("answer", true),
        Column { head: "found", left: false, give_up: 2 },
        column("cell", true),
        Column { head: "work judged", left: true, give_up: 3 },
    ]);
    for judgement in &objective.judgements {
        let found = judgement.found.value().map_or_else(
            || MISSING.to_owned(),
            |found| format!("{}{} {}", number(found.value), half_width(found, " "), objective.unit),
        );
        table.push(vec![
            (judgement.answer.name().to_owned(), answer_style(judgement.answer)),
            plain(found),
            plain(judgement.name.clone()),
            plain(judgement.workload.clone()),
        ]);
    }
    text.push_str(&table.render(width, colour).0);
    let mut whys: Vec<(Answer, &str)> = Vec::new();
    for judgement in &objective.judgements {
        let why = (judgement.answer, judgement.why.as_str());
        if !whys.contains(&why) {
            whys.push(why);
        }
    }
    for (answer, why) in whys {
        text.push_str(&wrap(&format!("{}: {why}", answer.name()), width, "  ", "    "));
    }
}

fn plain(text: impl Into<String>) -> (String, Style) {
    (text.into(), Style::Plain)
}

/// Four significant digits, without an exponent.
pub(crate) fn number(value: f64) -> String {
    let size = value.abs();
    let decimals = match size {
        _ if size >= 1_000.0 => 0,
        _ if size >= 100.0 => 1,
        _ if size >= 10.0 => 2,
        _ if size >= 1.0 || size == 0.0 => 3,
        _ if size >= 0.1 => 4,
        _ => 5,
    };
    format!("{value:.decimals$}")
}

/// Half the interval's width in percent of the value: bare between cohorts, in parentheses within a window.
fn half_width(found: &Estimated, before: &str) -> String {
    let Some(bounds) = found.interval.filter(|_| found.value != 0.0) else { return String::new() };
    let half = (bounds.high - found.value).max(found.value - bounds.low) / found.value.abs() * 100.0;
    let half = if half < 9.95 { format!("±{half:.1}%") } else { format!("±{half:.0}%") };
    match found.kind {
        Kind::BetweenCohorts => format!("{before}{half}"),
        Kind::WithinWindow => format!("{before}({half})"),
    }
}

/// The numbers of one table, and why some are missing.
struct Missing(Vec<(String, Vec<String>)>);

impl Missing {
    fn show(&mut self, what: &str, finding: &Finding<Estimated>, factor: f64) -> (String, Style) {
        match finding {
            Finding::Value(found) => plain(number(found.value * factor)),
            Finding::Absent(absent) => {
                self.note(what, &absent.reason);
                plain(MISSING)
            }
        }
    }

    fn note(&mut self, what: &str, reason: &str) {
        match self.0.iter_mut().find(|(known, _)| known == reason) {
            Some((_, whats)) if whats.iter().any(|known| known == what) => {}
            Some((_, whats)) => whats.push(what.to_owned()),
            None => self.0.push((reason.to_owned(), vec![what.to_owned()])),
        }
    }
}

fn outcome_style(outcome: CellOutcome) -> Style {
    match outcome {
        CellOutcome::Valid => Style::Good,
        CellOutcome::Flagged | CellOutcome::Partial | CellOutcome::NotRun => Style::Careful,
        _ => Style::Bad,
    }
}

const COLUMNS: [Column; 15] = {
    const fn right(head: &'static str, give_up: u8) -> Column {
        Column { head, left: false, give_up }
    }
    const fn left(head: &'static str, give_up: u8) -> Column {
        Column { head, left: true, give_up }
    }
    [
        left("sharing", 0),
        right("n", 0),
        left("work", 0),
        right("samples/s", 0),
        right("±", 3),
        right("mean ms", 4),
        right("p50 ms", 10),
        right("p99 ms", 0),
        right("solo", 6),
        right("excl", 1),
        right("FB GiB", 5),
        right("W", 9),
        right("J/sample", 2),
        right("GRACT", 8),
        left("verdict", 0),
    ]
};

/// Cells with the same work, in the order of their first.
fn sections(report: &Report) -> Vec<(String, Vec<&CellReport>)> {
    let mut sections: Vec<(String, Vec<&CellReport>)> = Vec::new();
    for cell in &report.cells {
        let work = cell.name.split_once(": ").map_or(cell.name.as_str(), |(_, work)| work);
        let alike = !work.contains(" + ");
        let name = if alike { work.split_once("x ").map_or(work, |(_, name)| name) } else { work };
        match sections.iter_mut().find(|(known, _)| known == name) {
            Some((_, cells)) => cells.push(cell),
            None => sections.push((name.to_owned(), vec![cell])),
        }
    }
    sections
}

fn cells(report: &Report, width: usize, colour: bool, text: &mut String) {
    let mut missing = Missing(Vec::new());
    let mut left_out: Vec<&str> = Vec::new();
    for (name, cells) in sections(report) {
        title(text, &name, colour);
        let mut table = Table::new(&COLUMNS);
        for cell in cells {
            rows(cell, &mut table, &mut missing);
        }
        let (rendered, dropped) = table.render(width, colour);
        text.push_str(&rendered);
        left_out.extend(dropped.into_iter().filter(|head| !left_out.contains(head)).collect::<Vec<_>>());
    }
    if !left_out.is_empty() {
        let line = format!("No room at {width} columns for: {}. JSON and CSV have everything.", left_out.join(", "));
        text.push('\n');
        text.push_str(&wrap(&line, width, "", ""));
    }
    if !missing.0.is_empty() {
        title(text, "Missing numbers (-)", colour);
        for (reason, whats) in missing.0.iter().take(MOST_REASONS) {
            text.push_str(&wrap(&format!("{}: {reason}", whats.join(", ")), width, "  ", "    "));
        }
        if missing.0.len() > MOST_REASONS {
            let more = missing.0.len() - MOST_REASONS;
            let _ = writeln!(text, "  and {more} more reasons in the JSON report");
        }
    }
}

fn rows(cell: &CellReport, table: &mut Table, missing: &mut Missing) {
    let sharing = if cell.requested { cell.sharing.name.clone() } else { format!("{} *", cell.sharing.name) };
    let mut verdict = cell.outcome.name().to_owned();
    if cell.outcome == CellOutcome::Partial {
        let _ = write!(verdict, " {}/{}", cell.usable, cell.planned);
    }
    let verdict = (verdict, outcome_style(cell.outcome));
    if cell.groups.is_empty() {
        let mut row = vec![plain(sharing), plain(cell.members.to_string())];
        row.resize(COLUMNS.len() - 1, plain(""));
        row.push(verdict);
        table.push(row);
        return;
    }
    let works = works(cell);
    for (place, group) in cell.groups.iter().enumerate() {
        let first = place == 0;
        let of_cell = |shown: (String, Style)| if first { shown } else { plain("") };
        let frame_buffer = missing.show("FB", &cell.frame_buffer_mean_bytes, 1.0 / GIB);
        let power = missing.show("W", &cell.power_w, 1.0);
        let energy = missing.show("J/sample", &cell.energy_per_sample_j, 1.0);
        let gract = match missing.show("GRACT", &cell.gract, 1.0) {
            (text, style) if text == MISSING => (text, style),
            (_, style) => (format!("{:.3}", cell.gract.number().unwrap_or(f64::NAN)), style),
        };
        table.push(vec![
            of_cell(plain(sharing.clone())),
            plain(group.members.len().to_string()),
            plain(works[place].clone()),
            missing.show("samples/s", &group.throughput_samples_per_s, 1.0),
            plain(group.throughput_samples_per_s.value().map_or_else(String::new, |found| half_width(found, ""))),
            missing.show("mean", &group.latency_ms.mean, 1.0),
            missing.show("p50", &group.latency_ms.nearest_rank.p50, 1.0),
            missing.show("p99", &group.latency_ms.nearest_rank.p99, 1.0),
            slowdown("solo", group, missing),
            slowdown("excl", group, missing),
            of_cell(frame_buffer),
            of_cell(power),
            of_cell(energy),
            of_cell(gract),
            of_cell(verdict.clone()),
        ]);
    }
}

/// What tells the groups of a cell apart: the words of their names that they have not in common; nothing for one group.
fn works(cell: &CellReport) -> Vec<String> {
    let names: Vec<Vec<&str>> = cell.groups.iter().map(|group| group.workload.name.split(' ').collect()).collect();
    let common = |at: usize, word: &str| names.iter().all(|words| words.get(at) == Some(&word));
    let own = |words: &Vec<&str>| {
        let own = words.iter().enumerate().filter(|(at, word)| !common(*at, word)).map(|(_, word)| *word);
        own.collect::<Vec<_>>().join(" ")
    };
    names.iter().map(own).collect()
}

fn slowdown(what: &str, group: &CellGroup, missing: &mut Missing) -> (String, Style) {
    let slowdown = if what == "solo" { &group.against_solo } else { &group.against_exclusive };
    match &slowdown.throughput {
        Finding::Value(found) => plain(format!("{:.2}x", found.value)),
        Finding::Absent(absent) if absent.reason == IS_BASELINE => plain("base"),
        Finding::Absent(absent) => {
            missing.note(what, &absent.reason);
            plain(MISSING)
        }
    }
}

fn comparisons(report: &Report, width: usize, colour: bool, text: &mut String) {
    if !report.a_a.is_empty() {
        title(text, "A/A: time-slicing with one worker against exclusive, which is the same thing", colour);
        for a_a in &report.a_a {
            let line = match (&a_a.throughput_ratio, &a_a.mean_latency_ratio) {
                (Finding::Value(rate), Finding::Value(latency)) => {
                    let difference = a_a.throughput_difference_samples_per_s.number().unwrap_or(f64::NAN);
                    let judged = match a_a.same {
                        Some(true) => "the interval contains no difference",
                        Some(false) => "they DIFFER: distrust smaller differences than this one",
                        None => "one repeat only: no interval",
                    };
                    format!(
                        "{}: throughput x{:.4}{} ({difference:+.1} samples/s), mean latency x{:.4}; {judged}",
                        a_a.workload,
                        rate.value,
                        half_width(rate, " "),
                        latency.value
                    )
                }
                (Finding::Absent(absent), _) | (_, Finding::Absent(absent)) => {
                    format!("{}: {}", a_a.workload, absent.reason)
                }
            };
            text.push_str(&wrap(&line, width, "  ", "    "));
        }
    }
    if !report.drift.is_empty() {
        title(text, "Drift: the first trial of a cell measured again at the end", colour);
        for drift in &report.drift {
            let line = match (drift.throughput_ratio.number(), drift.mean_latency_ratio.number()) {
                (Some(rate), Some(latency)) => {
                    let judged = match drift.notable {
                        Some(true) => "; NOTABLE: the device or the host changed during the job",
                        _ => "",
                    };
                    format!("{}: throughput {}, mean latency {}{judged}", drift.name, change(rate), change(latency))
                }
                _ => format!("{}: one of the two has no numbers", drift.name),
            };
            text.push_str(&wrap(&line, width, "  ", "    "));
        }
    }
}

fn change(ratio: f64) -> String {
    format!("{:+.2} %", (ratio - 1.0) * 100.0)
}

fn unmeasured(report: &Report, width: usize, colour: bool, text: &mut String) {
    let without = report.trials.iter().filter(|trial| !trial.outcome.is_usable());
    let mut lines: Vec<String> = without
        .map(|trial| {
            let reason = trial.outcome.reason().unwrap_or_default();
            format!("trial {} ({}) {}: {reason}", trial.trial, trial.name, trial.outcome.name())
        })
        .collect();
    lines.extend(report.left_out.iter().map(|omission| format!("{}: {}", omission.what, omission.why)));
    if lines.is_empty() {
        return;
    }
    title(text, "Without numbers", colour);
    for line in lines {
        text.push_str(&wrap(&line, width, "  ", "    "));
    }
}

fn flags(report: &Report, width: usize, colour: bool, text: &mut String) {
    if report.explanations.is_empty() && report.warnings.is_empty() {
        return;
    }
    title(text, "Flags and faults", colour);
    for explanation in &report.explanations {
        let Explained { remarks, trials } = Explained::of(report, &explanation.code);
        let trials: Vec<String> = trials.iter().map(u32::to_string).collect();
        let plural = if trials.len() == 1 { "trial" } else { "trials" };
        let line = format!("{} ({plural} {}): {}", explanation.code, trials.join(", "), explanation.cause);
        text.push_str(&wrap(&line, width, "  ", "    "));
        if let Some(first) = remarks.first() {
            let more = match remarks.len() - 1 {
                0 => String::new(),
                more => format!(" (and {more} more)"),
            };
            text.push_str(&wrap(&format!("found: {first}{more}"), width, "    ", "      "));
        }
        text.push_str(&wrap(&format!("remedy: {}", explanation.remedy), width, "    ", "      "));
    }
    for warning in &report.warnings {
        text.push_str(&wrap(&format!("suite: {warning}"), width, "  ", "    "));
    }
}

/// Where a flag or fault was raised.
pub(super) struct Explained<'a> {
    pub(super) remarks: Vec<&'a str>,
    pub(super) trials: Vec<u32>,
}

impl<'a> Explained<'a> {
    pub(super) fn of(report: &'a Report, code: &str) -> Self {
        let (mut remarks, mut trials) = (Vec::new(), Vec::new());
        for trial in &report.trials {
            let before = remarks.len();
            if let Verdict::Invalid { faults } = &trial.outcome {
                remarks
                    .extend(faults.iter().filter(|fault| fault.code.code() == code).map(|fault| fault.text.as_str()));
            }
            remarks.extend(trial.flags.iter().filter(|flag| flag.code.code() == code).map(|flag| flag.text.as_str()));
            if remarks.len() > before {
                trials.push(trial.trial);
            }
        }
        Self { remarks, trials }
    }
}

fn context(report: &Report, width: usize, colour: bool, text: &mut String) {
    title(text, "Context", colour);
    let context = &report.context;
    let or = |finding: &Finding<super::Text>| match finding {
        Finding::Value(found) => found.value.clone(),
        Finding::Absent(absent) => format!("unknown ({})", absent.reason),
    };
    let mut lines = vec![
        format!(
            "job {}, submitted {} by {}; suite sha256 {}; seed {}",
            report.job.uid, report.job.submitted, report.job.owner, report.job.suite_digest, report.job.seed
        ),
        format!(
            "host {}: {} processors ({}), kernel {}",
            context.host,
            context.processors,
            or(&context.processor),
            context.kernel
        ),
    ];
    for gpu in &context.gpus {
        let plain = |finding: &Finding<super::Plain>, factor: f64, unit: &str| {
            finding.number().map_or_else(|| format!("unknown {unit}"), |value| format!("{:.0} {unit}", value * factor))
        };
        lines.push(format!(
            "GPU {} ({}): {}, {} SMs, power limit {}, clocks up to {} and {} (memory), MIG {}",
            or(&gpu.name),
            gpu.uuid,
            plain(&gpu.memory_total_bytes, 1.0 / GIB, "GiB"),
            gpu.multiprocessors.number().map_or_else(|| "unknown".to_owned(), |count| format!("{count:.0}")),
            plain(&gpu.power_limit_w, 1.0, "W"),
            plain(&gpu.clock_sm_max_mhz, 1.0, "MHz"),
            plain(&gpu.clock_memory_max_mhz, 1.0, "MHz"),
            or(&gpu.mig)
        ));
    }
    if !context.gpus.is_empty() {
        lines.push(format!("driver {}, CUDA {}", or(&context.driver), or(&context.cuda)));
    }
    lines.push(format!("migperf {}, libtorch {}", context.migperf, or(&context.libtorch)));
    for line in lines {
        text.push_str(&wrap(&line, width, "  ", "    "));
    }
}

fn notes(report: &Report, width: usize, colour: bool, text: &mut String) {
    title(text, "How to read this", colour);
    let mut lines = vec![
        "n: members of a cohort; samples/s: of all of them together (a sample is an image, a sequence or a latent). Unlike \
         work is never added up.",
        "±: half the 95 % interval. Bare: between fresh cohorts. In parentheses: within one window only, which says nothing \
         of another run.",
        "Latency is of one batch, ended by a device synchronisation; quantiles by nearest rank, pooled over the members.",
        "solo, excl: how many times slower a member is than the same work alone in the same mode, and alone on the \
         whole device.",
        "All numbers are of the common interval, in which every member had whole batches; FB, W, J and GRACT are of the \
         whole device.",
    ];
    if report.cells.iter().any(|cell| !cell.requested) {
        lines.push("*: not in the suite; added because a comparison needs it.");
    }
    for line in lines {
        text.push_str(&wrap(line, width, "  ", "    "));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::{Bounds, LEVEL};

    #[test]
    fn numbers_have_four_digits() {
        for (value, text) in [
            (12_345.6, "12346"),
            (1_234.56, "1235"),
            (123.456, "123.5"),
            (12.3456, "12.35"),
            (1.23456, "1.235"),
            (0.123_456, "0.1235"),
            (0.012_345, "0.01235"),
            (0.0, "0.000"),
        ] {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn only_intervals_between_cohorts_are_bare() {
        let mut found = Estimated {
            value: 100.0,
            interval: Some(Bounds { low: 98.0, high: 103.0 }),
            no_interval: None,
            level: LEVEL,
            n: 3,
            effective_n: 3.0,
            kind: Kind::BetweenCohorts,
        };
        assert_eq!(half_width(&found, " "), " ±3.0%");
        found.kind = Kind::WithinWindow;
        assert_eq!(half_width(&found, " "), " (±3.0%)");
        found.interval = None;
        assert_eq!(half_width(&found, " "), "");
    }
}
