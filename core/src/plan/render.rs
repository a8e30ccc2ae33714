//! A plan for people: what would be done, in order, and what others would notice. Nothing is done for it.

use std::fmt::Write as _;

use crate::plan::{LAYOUT_CHANGE, LayoutStretch, Origin, Plan};
use crate::suite::Target;
use crate::trial::{PlannedTrial, Purpose, Sharing};
use crate::units::Span;

/// The plan as text, for a dry run.
#[must_use]
pub fn render_text(plan: &Plan) -> String {
    let mut text = String::new();
    let estimate = plan.estimate();
    let _ = writeln!(
        text,
        "{} on the {}: {} ({}, {}), at least {}",
        plan.name,
        plan.target.in_words(),
        counted(plan.trials.len(), "trial"),
        counted(plan.cells.len(), "cell"),
        counted(plan.repeats as usize, "repeat"),
        estimate.total
    );
    if let Some(description) = &plan.description {
        let _ = writeln!(text, "{}", description.trim_end());
    }
    if let Some(objective) = &plan.objective {
        let _ = writeln!(text, "judged by {objective}");
    }
    text.push('\n');
    trials(&mut text, plan, &estimate.trials);
    section(&mut text, "Layouts", layouts(plan));
    section(&mut text, "What others would notice", noticed(plan, estimate.total));
    let left_out = plan.left_out.iter().map(|left| format!("{}: {}", left.what, left.why));
    section(&mut text, "Left out", left_out.collect());
    section(&mut text, "Warnings", plan.warnings.clone());
    text
}

fn counted(count: usize, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}

fn section(text: &mut String, title: &str, lines: Vec<String>) {
    if lines.is_empty() {
        return;
    }
    let _ = writeln!(text, "\n{title}:");
    for line in lines {
        let _ = writeln!(text, "  {line}");
    }
}

fn trials(text: &mut String, plan: &Plan, lasts: &[Span]) {
    let heads = ["#", "repeat", "lasts", "trial", "why"].map(str::to_owned);
    let rows = plan.trials.iter().zip(lasts).map(|(trial, lasts)| {
        let repeat = match trial.purpose {
            Purpose::Drift => "again".to_owned(),
            Purpose::Requested | Purpose::Baseline => format!("{}/{}", trial.repeat + 1, plan.repeats),
        };
        [trial.index.to_string(), repeat, lasts.to_string(), trial.spec.to_string(), why(plan, trial)]
    });
    let rows: Vec<[String; 5]> = std::iter::once(heads).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths = [width(0), width(1), width(2), width(3)];
    for [index, repeat, lasts, trial, why] in &rows {
        let [a, b, c, d] = widths;
        let _ = writeln!(text, "{index:>a$}  {repeat:<b$}  {lasts:>c$}  {trial:<d$}  {why}");
    }
}

fn why(plan: &Plan, trial: &PlannedTrial) -> String {
    if trial.purpose == Purpose::Drift {
        return "measured again, to see whether the device drifted".to_owned();
    }
    match plan.origins.get(trial.cell as usize) {
        Some(Origin::Suite { line }) => format!("asked for in line {line}"),
        Some(Origin::Baseline { of }) => {
            let is_compared = |other: &&PlannedTrial| other.cell == *of && other.repeat == trial.repeat;
            match plan.trials.iter().find(is_compared) {
                Some(cohort) => format!("added: trial {} is compared with it", cohort.index),
                None => "added as a baseline".to_owned(),
            }
        }
        None => "of unknown origin".to_owned(),
    }
}

fn layouts(plan: &Plan) -> Vec<String> {
    let stretches = plan.layouts();
    if stretches.iter().all(|stretch| stretch.layout.is_none()) {
        return Vec::new();
    }
    let changes = match stretches.len() - 1 {
        0 => "it stays the same from the first trial to the last".to_owned(),
        1 => format!("it changes once, {LAYOUT_CHANGE}; each MIG layout comes once, with all its repeats"),
        more => {
            format!("it changes {more} times, {LAYOUT_CHANGE} each; each MIG layout comes once, with all its repeats")
        }
    };
    let stretch = |LayoutStretch { first, trials, layout, needed_by, again, .. }: LayoutStretch| {
        let layout = layout.map_or_else(|| "the whole GPU".to_owned(), |layout| format!("MIG {layout}"));
        let again = if again { " again" } else { "" };
        let needed_by = needed_by.join(", ");
        match trials {
            1 => format!("trial {first}: {layout}, for {needed_by}{again}"),
            _ => format!("trials {first} to {}: {layout}, for {needed_by}{again}", first + trials - 1),
        }
    };
    std::iter::once(changes).chain(stretches.into_iter().map(stretch)).collect()
}

fn noticed(plan: &Plan, total: Span) -> Vec<String> {
    let most = plan.cells.iter().map(|cell| cell.members.len()).max().unwrap_or(0);
    let workers = counted(most, "worker");
    if plan.target == Target::Cpu {
        return vec![format!("for at least {total} the processors are busy with up to {workers}")];
    }
    let mut lines = vec![format!(
        "for at least {total} the GPU is busy with up to {workers}: other work on it would be slowed, and would spoil the \
         measurement"
    )];
    let count = |wanted: fn(&Sharing) -> bool| plan.trials.iter().filter(|trial| wanted(&trial.spec.sharing)).count();
    let mps = count(|sharing| matches!(sharing, Sharing::Mps { .. } | Sharing::Mig { mps: Some(_), .. }));
    if mps > 0 {
        lines.push(format!(
            "during {} a private MPS control daemon serves the GPU or each of its instances",
            counted(mps, "trial")
        ));
    }
    let mig = count(|sharing| matches!(sharing, Sharing::Mig { .. }));
    if mig > 0 {
        lines.push(format!(
            "during {} the GPU is divided into MIG instances: no program can use it as a whole",
            counted(mig, "trial")
        ));
    }
    lines
}
