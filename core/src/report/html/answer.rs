//! The first screen: what was asked, by which criterion, and the answer, or that nobody can tell.

use std::fmt::Write as _;

use super::figure::{Table, estimate, missing};
use super::svg::escape;
use super::{Page, device, in_words};
use crate::report::choice::{Choice, Decision, Pair};
use crate::report::finding::Finding;
use crate::report::text::number;
use crate::stats::{Bounds, Change, Kind};

/// Answers that are written out; all are in the table below them.
const WRITTEN_OUT: usize = 2;

/// The answers.
pub(super) fn write(page: &mut Page<'_>) {
    page.section("answer", "Answer");
    let criterion = &page.choices.criterion;
    let origin = if page.choices.from_suite { "the suite's objective" } else { "the suite names no objective" };
    let _ = writeln!(
        page.text,
        "<p>Better means: <strong>{}</strong> ({origin}), by intervals between fresh cohorts, and by more than {:.1} %.</p>",
        escape(criterion),
        page.choices.least_effect * 100.0
    );
    let choices = page.choices.choices.clone();
    let open: Vec<&Choice> = choices.iter().filter(|choice| !matches!(choice.outcome, Decision::NoChoice(_))).collect();
    if open.is_empty() {
        let why = choices.iter().find_map(|choice| match &choice.outcome {
            Decision::NoChoice(why) => Some(why.as_str()),
            _ => None,
        });
        let text =
            format!("There is nothing to choose between: {}.", why.unwrap_or("nothing that is judged has numbers"));
        let _ = writeln!(page.text, "<div class=\"answer cant\"><p class=\"a\">{}</p></div>", escape(&text));
    }
    // Where work is mixed, that is the question; how many of one kind fit together is asked beside it.
    let mixed = open.iter().filter(|choice| choice.mixed).count();
    let written = if mixed > 0 { mixed.min(WRITTEN_OUT) } else { open.len().min(1) };
    for choice in &open[..written] {
        written_out(page, choice);
    }
    if open.len() > written {
        overview(page, &open);
    }
    page.end_section();
}

/// One question with its answer and the numbers it rests on.
fn written_out(page: &mut Page<'_>, choice: &Choice) {
    let question = format!("How should {} be shared for {}?", device(page.report), choice.mix);
    let class = match choice.outcome {
        Decision::Best(_) | Decision::Among(_) => "answer",
        _ => "answer cant",
    };
    let (answer, because) = in_sentence(page, choice);
    let _ = writeln!(
        page.text,
        "<div class=\"{class}\"><h3 class=\"q\">{}</h3>\n<p class=\"a\">{}</p>\n<p>{}</p>",
        escape(&question),
        escape(&answer),
        escape(&because)
    );
    options(page, choice);
    page.text.push_str("</div>\n");
}

fn name(page: &Page<'_>, choice: &Choice, at: usize) -> String {
    let option = &choice.options[at];
    page.cell(option.cell).map_or_else(|| option.sharing.clone(), |cell| in_words(&cell.sharing))
}

/// The answer, and what it rests on.
fn in_sentence(page: &Page<'_>, choice: &Choice) -> (String, String) {
    let metric = page.choices.metric;
    let of = |at: usize| {
        let found = choice.options[at].found.number().map_or_else(|| "–".to_owned(), number);
        format!("{} {}", found, metric.unit())
    };
    let with: Vec<usize> =
        (0..choice.options.len()).filter(|at| choice.options[*at].found.number().is_some()).collect();
    let what = format!("{} of {}", metric.name(), choice.judged);
    let found: Vec<String> = with.iter().map(|at| format!("{}: {}", name(page, choice, *at), of(*at))).collect();
    match &choice.outcome {
        Decision::Best(best) => {
            let differences: Vec<String> = with
                .iter()
                .filter(|at| *at != best)
                .map(|at| {
                    let difference = difference(choice, *best, *at).unwrap_or_default();
                    format!("{difference} than under {} ({})", name(page, choice, *at), of(*at))
                })
                .collect();
            let answer = format!("{}.", capital(&name(page, choice, *best)));
            (answer, format!("The {what} is {}: {}.", of(*best), differences.join("; ")))
        }
        Decision::Among(best) => {
            let names: Vec<String> = best.iter().map(|at| name(page, choice, *at)).collect();
            let rest: Vec<String> =
                with.iter().filter(|at| !best.contains(at)).map(|at| name(page, choice, *at)).collect();
            let answer = format!("{}: can't tell these apart.", capital(&names.join(" or ")));
            (answer, format!("Each is better than {}. The {what} is, with {}.", rest.join("; "), found.join("; ")))
        }
        Decision::CantTell(why) => {
            ("Can't tell.".to_owned(), format!("The {what} is, with {}. But {why}.", found.join("; ")))
        }
        Decision::NoChoice(why) => ("There is nothing to choose.".to_owned(), format!("{}.", capital(why))),
    }
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// The first option's number against the second's, in percent with its interval.
fn difference(choice: &Choice, a: usize, b: usize) -> Option<String> {
    let pair: &Pair = choice.pairs.iter().find(|pair| pair.options == (a, b) || pair.options == (b, a))?;
    let ratio = pair.ratio.as_ref().ok()?;
    let Bounds { low, high } = ratio.interval;
    let (value, low, high) =
        if pair.options == (a, b) { (ratio.value, low, high) } else { (1.0 / ratio.value, 1.0 / high, 1.0 / low) };
    Some(percent(value, low, high))
}

/// A ratio as people say it: in percent up to twice, beyond that in times.
fn percent(value: f64, low: f64, high: f64) -> String {
    if value > 2.0 {
        return format!("{value:.2} times [{low:.2}, {high:.2}] higher");
    }
    if value < 0.5 {
        return format!("{:.2} times [{:.2}, {:.2}] lower", 1.0 / value, 1.0 / high, 1.0 / low);
    }
    let of = |ratio: f64| (ratio - 1.0) * 100.0;
    if value >= 1.0 {
        format!("{:.1} % [{:.1}, {:.1}] higher", of(value), of(low), of(high))
    } else {
        format!("{:.1} % [{:.1}, {:.1}] lower", -of(value), -of(high), -of(low))
    }
}

/// Every option with what decides and what comes with it.
fn options(page: &mut Page<'_>, choice: &Choice) {
    let metric = page.choices.metric;
    let bound = page.report.objective.as_ref().and_then(|objective| objective.bound);
    let groups: Vec<(usize, String)> = choice
        .options
        .iter()
        .filter_map(|option| page.cell(option.cell))
        .find(|cell| !cell.groups.is_empty())
        .map(|cell| {
            let named = |(place, group): (usize, &crate::report::CellGroup)| {
                (place, format!("{}x {} samples/s", group.members.len(), group.workload.name))
            };
            cell.groups.iter().enumerate().map(named).collect()
        })
        .unwrap_or_default();
    let mut heads = vec!["sharing".to_owned(), format!("{} of {}, {}", metric.name(), choice.judged, metric.unit())];
    if let Some(bound) = bound {
        let side = if metric.more_is_better() { "at least" } else { "at most" };
        heads.push(format!("{side} {bound} {}", metric.unit()));
    }
    heads.extend(groups.iter().map(|(_, name)| name.clone()));
    heads.push("W".to_owned());
    let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
    let cohorts = choice.options.iter().filter_map(|option| page.cell(option.cell)).map(|cell| cell.usable).min();
    let caption = match cohorts {
        Some(1) => {
            "One cohort each; intervals in parentheses are within one window only, and say nothing of another run"
        }
        _ => "In brackets the 95 % interval between fresh cohorts",
    };
    let mut table = Table::new(caption, &heads, &[0, if bound.is_some() { 2 } else { 0 }]);
    for (at, option) in choice.options.iter().enumerate() {
        let Some(cell) = page.cell(option.cell) else { continue };
        let mut row = vec![escape(&in_words(&cell.sharing)), estimate(&option.found, 1.0)];
        if bound.is_some() {
            row.push(option.bound.map_or_else(|| missing("not judged"), |answer| escape(answer.name())));
        }
        for (place, _) in &groups {
            row.push(match cell.groups.get(*place) {
                Some(group) => estimate(&group.throughput_samples_per_s, 1.0),
                None => missing(cell.reason.as_deref().unwrap_or("no repeat has numbers")),
            });
        }
        row.push(estimate(&cell.power_w, 1.0));
        match &choice.outcome {
            Decision::Best(best) if *best == at => table.push_winner(row),
            Decision::Among(best) if best.contains(&at) => table.push_winner(row),
            _ => table.push(row),
        }
    }
    page.text.push_str(&table.finish());
}

/// Every question in one line.
fn overview(page: &mut Page<'_>, open: &[&Choice]) {
    let heads = ["mix", "judged", "answer", "found"];
    let mut table = Table::new("Every mix for which more than one way of sharing was measured", &heads, &[0, 1, 2, 3]);
    for choice in open {
        let answer = match &choice.outcome {
            Decision::Best(best) => format!("<strong>{}</strong>", escape(&name(page, choice, *best))),
            Decision::Among(best) => {
                let names: Vec<String> = best.iter().map(|at| name(page, choice, *at)).collect();
                format!("<strong>{}</strong>", escape(&names.join(" or ")))
            }
            Decision::CantTell(why) | Decision::NoChoice(why) => {
                let same = !choice.pairs.is_empty() && choice.pairs.iter().all(|pair| pair.change == Change::Same);
                let short = if same { "can't tell: no difference that matters" } else { "can't tell" };
                format!("<abbr title=\"{}\">{short}</abbr>", escape(why))
            }
        };
        let found: Vec<String> = choice
            .options
            .iter()
            .enumerate()
            .map(|(at, option)| {
                let value = match &option.found {
                    Finding::Value(found) if found.kind == Kind::BetweenCohorts => estimate(&option.found, 1.0),
                    Finding::Value(found) => number(found.value),
                    Finding::Absent(absent) => missing(&absent.reason),
                };
                format!("{}: {value}", escape(&name(page, choice, at)))
            })
            .collect();
        let mix = format!("<a href=\"#{}\">{}</a>", super::heading_id(&choice.mix), escape(&choice.mix));
        let unit = page.choices.metric.unit();
        let found = format!("{}; in {unit}", found.join("; "));
        table.push(vec![mix, escape(&choice.judged), answer, found]);
    }
    page.text.push_str("<h3>All answers</h3>\n");
    page.text.push_str(&table.finish());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_said_as_people_do() {
        for (ratio, said) in [
            ((1.25, 1.2, 1.3), "25.0 % [20.0, 30.0] higher"),
            ((0.8, 0.75, 0.85), "20.0 % [15.0, 25.0] lower"),
            ((4.0, 3.0, 5.0), "4.00 times [3.00, 5.00] higher"),
            ((0.25, 0.2, 0.4), "4.00 times [2.50, 5.00] lower"),
        ] {
            assert_eq!(percent(ratio.0, ratio.1, ratio.2), said);
        }
    }
}
