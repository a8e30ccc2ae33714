//! What the answer rests on: where it was measured, what to be careful about, every number, and how to do it again.

use std::fmt::Write as _;

use super::Page;
use super::figure::{Table, estimate, missing};
use super::svg::escape;
use crate::report::finding::{Central, Finding, Plain};
use crate::report::text::{Explained, number};
use crate::report::{Text, TrialReport};

/// Everything after the comparisons.
pub(super) fn write(page: &mut Page<'_>) {
    controls(page);
    context(page);
    flags(page);
    raw(page);
    reproduce(page);
    reading(page);
}

/// The job's own controls: the same thing twice, and the beginning against the end.
fn controls(page: &mut Page<'_>) {
    let report = page.report;
    if report.a_a.is_empty() && report.drift.is_empty() {
        return;
    }
    page.section("controls", "Controls");
    if !report.a_a.is_empty() {
        let caption = "A/A: time-slicing with one worker against exclusive, which is the same thing: distrust any difference that is not larger";
        let heads = ["work", "throughput ratio", "mean latency ratio", "same?"];
        let mut table = Table::new(caption, &heads, &[0, 3]);
        for a_a in &report.a_a {
            let same = match a_a.same {
                Some(true) => "yes: the interval contains 1",
                Some(false) => "<span class=\"bad\">no: they differ</span>",
                None => "can't tell: one repeat",
            };
            table.push(vec![
                escape(&a_a.workload),
                estimate(&a_a.throughput_ratio, 1.0),
                estimate(&a_a.mean_latency_ratio, 1.0),
                same.to_owned(),
            ]);
        }
        page.text.push_str(&table.finish());
    }
    if !report.drift.is_empty() {
        let heads = ["cell", "throughput ratio", "mean latency ratio", "notable?"];
        let mut table =
            Table::new("Drift: a cell measured again at the end of the job over its first time", &heads, &[0, 3]);
        for drift in &report.drift {
            let notable = match drift.notable {
                Some(true) => "<span class=\"care\">yes: the device or the host changed</span>",
                Some(false) => "no",
                None => "can't tell",
            };
            table.push(vec![
                escape(&drift.name),
                plain(&drift.throughput_ratio, 1.0),
                plain(&drift.mean_latency_ratio, 1.0),
                notable.to_owned(),
            ]);
        }
        page.text.push_str(&table.finish());
    }
    page.end_section();
}

fn plain<T: Central>(finding: &Finding<T>, factor: f64) -> String {
    match finding {
        Finding::Value(found) => number(found.central() * factor),
        Finding::Absent(absent) => missing(&absent.reason),
    }
}

fn context(page: &mut Page<'_>) {
    page.section("context", "Context");
    let report = page.report;
    let context = &report.context;
    let text = |finding: &Finding<Text>| match finding {
        Finding::Value(found) => found.value.clone(),
        Finding::Absent(absent) => format!("unknown ({})", absent.reason),
    };
    let amount = |finding: &Finding<Plain>, factor: f64, unit: &str| match finding {
        Finding::Value(found) => format!("{:.0} {unit}", found.value * factor),
        Finding::Absent(absent) => format!("unknown {unit} ({})", absent.reason),
    };
    let mut facts: Vec<(&str, String)> = Vec::new();
    if let Some(description) = &report.job.description {
        facts.push(("suite", description.clone()));
    }
    for gpu in &context.gpus {
        facts.push((
            "GPU",
            format!(
                "{} ({}): compute capability {}, {}, {}, power limit {}, clocks up to {} and {} (memory), MIG {}",
                text(&gpu.name),
                gpu.uuid,
                text(&gpu.compute_capability),
                amount(&gpu.memory_total_bytes, 1.0 / super::figure::GIB, "GiB"),
                amount(&gpu.multiprocessors, 1.0, "SMs"),
                amount(&gpu.power_limit_w, 1.0, "W"),
                amount(&gpu.clock_sm_max_mhz, 1.0, "MHz"),
                amount(&gpu.clock_memory_max_mhz, 1.0, "MHz"),
                text(&gpu.mig)
            ),
        ));
    }
    if let Some(layout) = &report.layout {
        let end = match layout.as_found {
            Some(true) => "it is as it was found",
            Some(false) => "it is NOT as it was found",
            None => "whether it is as it was found is not known",
        };
        let mode = if layout.mode_changed { ", MIG mode switched" } else { "" };
        facts.push(("layout", format!("changed {} times{mode}; {end}", layout.changes)));
    }
    if !context.gpus.is_empty() {
        facts.push(("driver", format!("{}, CUDA up to {}", text(&context.driver), text(&context.cuda))));
    }
    let memory = amount(&context.memory_bytes, 1.0 / super::figure::GIB, "GiB");
    facts.push(("host", context.host.clone()));
    facts.push(("processors", format!("{} ({}), {memory}", context.processors, text(&context.processor))));
    facts.push(("kernel", context.kernel.clone()));
    facts.push(("migperf", context.migperf.clone()));
    facts.push(("libtorch", text(&context.libtorch)));
    facts.push(("job", format!("{}, submitted {} by {}", report.job.uid, report.job.submitted, report.job.owner)));
    page.text.push_str("<dl>");
    for (name, fact) in facts {
        let _ = write!(page.text, "<dt>{name}</dt><dd>{}</dd>", escape(&fact));
    }
    page.text.push_str("</dl>\n");
    page.end_section();
}

fn flags(page: &mut Page<'_>) {
    page.section("flags", "Flags and faults");
    let report = page.report;
    if report.explanations.is_empty() {
        page.paragraph("", "No trial raised any.");
    } else {
        let heads = ["code", "trials", "what it means", "what was found", "what to do"];
        let mut table =
            Table::new("What to be careful about, and why trials have no numbers", &heads, &[0, 1, 2, 3, 4]);
        for explanation in &report.explanations {
            let Explained { remarks, trials } = Explained::of(report, &explanation.code);
            let found = match remarks.as_slice() {
                [] => String::new(),
                [only] => (*only).to_owned(),
                [first, rest @ ..] => format!("{first} (and {} more)", rest.len()),
            };
            let trials: Vec<String> = trials.iter().map(u32::to_string).collect();
            table.push(vec![
                format!("<code>{}</code>", escape(&explanation.code)),
                trials.join(", "),
                escape(&explanation.cause),
                escape(&found),
                escape(&explanation.remedy),
            ]);
        }
        page.text.push_str(&table.finish());
    }
    if !report.left_out.is_empty() {
        let mut table = Table::new("In the suite, and not measured", &["what", "why"], &[0, 1]);
        for omission in &report.left_out {
            table.push(vec![escape(&omission.what), escape(&omission.why)]);
        }
        page.text.push_str(&table.finish());
    }
    for warning in &report.warnings {
        page.paragraph("care", warning);
    }
    page.end_section();
}

/// Every trial, one row for each group of its members.
fn raw(page: &mut Page<'_>) {
    page.section("raw", "Numbers of every trial");
    let heads = [
        "trial",
        "cell",
        "repeat",
        "name",
        "work",
        "samples/s",
        "mean ms",
        "p50 ms",
        "p99 ms",
        "longest ms",
        "common s",
        "W",
        "J",
        "GRACT",
        "verdict",
    ];
    let mut table = Table::new("One row for each group of members with the same work", &heads, &[0, 3, 4, 14]);
    for trial in &page.report.trials {
        let verdict = || {
            let mut flags: Vec<&str> = trial.flags.iter().map(|flag| flag.code.code()).collect();
            flags.dedup();
            let reason = trial.outcome.reason().unwrap_or_else(|| flags.join(", "));
            let colon = if reason.is_empty() { "" } else { ": " };
            format!("{}{colon}{}", trial.outcome.name(), escape(&reason))
        };
        let begin = |trial: &TrialReport| {
            vec![
                trial.trial.to_string(),
                trial.cell.to_string(),
                if trial.purpose == crate::trial::Purpose::Drift {
                    "again".to_owned()
                } else {
                    trial.repeat.to_string()
                },
                escape(&trial.name),
            ]
        };
        if trial.groups.is_empty() {
            let mut row = begin(trial);
            row.resize(14, String::new());
            row.push(verdict());
            table.push(row);
        }
        for group in &trial.groups {
            let latency = &group.latency_ms;
            let mut row = begin(trial);
            row.extend([
                escape(&format!("{}x {}", group.members.len(), group.workload.name)),
                plain(&group.throughput_samples_per_s, 1.0),
                plain(&latency.mean, 1.0),
                plain(&latency.nearest_rank.p50, 1.0),
                plain(&latency.nearest_rank.p99, 1.0),
                plain(&latency.max, 1.0),
                trial.window.as_ref().map_or_else(|| missing("no window"), |window| plain(&window.common_s, 1.0)),
                plain(&trial.device.power_w, 1.0),
                plain(&trial.device.energy_j, 1.0),
                plain(&trial.device.gract, 1.0),
                verdict(),
            ]);
            table.push(row);
        }
    }
    page.text.push_str(&table.finish());
    page.paragraph("small soft", "Intervals, members and all else are in the JSON and CSV reports.");
    page.end_section();
}

fn reproduce(page: &mut Page<'_>) {
    page.section("reproduce", "How to measure this again");
    let report = page.report;
    let device = match report.context.gpus.as_slice() {
        [only] => only.uuid.clone(),
        _ => report.job.target.clone(),
    };
    let device = if device == "gpu" { "auto".to_owned() } else { device };
    let _ = writeln!(
        page.text,
        "<p>Save the suite below as <code>suite.toml</code> and, with migperf {} and libtorch {}, run</p>\n<pre tabindex=\"0\"><code>migperfctl run suite.toml --device {} --seed {} --output result</code></pre>",
        escape(&report.context.migperf),
        escape(report.context.libtorch.value().map_or("(unknown)", |found| &found.value)),
        escape(&device),
        report.job.seed
    );
    let again = "Two reports are compared by <code>migperfctl compare report.json result/report.json</code>.";
    let _ = writeln!(page.text, "<p>{again}</p>");
    match &report.job.suite {
        Some(suite) if !suite.trim().is_empty() => {
            let digest = escape(&report.job.suite_digest);
            let _ = writeln!(
                page.text,
                "<p class=\"small soft\">The suite as it was submitted, SHA-256 {digest}:</p>\n<pre tabindex=\"0\"><code>{}</code></pre>",
                escape(suite)
            );
        }
        _ => {
            let digest = &report.job.suite_digest;
            page.paragraph("small", &format!("This report does not have the suite's text; its SHA-256 is {digest}."));
        }
    }
    page.end_section();
}

fn reading(page: &mut Page<'_>) {
    page.section("reading", "How to read this");
    page.text.push_str("<ul class=\"small\">\n");
    for line in [
        "Intervals are at 95 %. In brackets: between fresh cohorts, which is what another run would show. In parentheses: within \
         one window only, which says nothing of another run and decides nothing.",
        "An answer is given only where a comparison, repeat by repeat, is beyond chance among all comparisons of this report \
         (Holm's method at 5 %) and the difference is larger than what matters: 2 %, or what the A/A control shows if that is more.",
        "samples/s is of all members with the same work together; a sample is an image, a sequence or a latent. Unlike work is \
         never added up.",
        "Latency is of one batch, ended by a device synchronisation. Quantiles are batches that occurred (nearest rank), pooled \
         over the members with the same work.",
        "All numbers are of the common interval, in which every member had whole batches. Power, energy, GRACT and frame buffer \
         are of the whole device, whoever used it.",
        "– is a number that is missing; it has its reason. Nothing is filled with zero.",
        "Series in plots are thinned by equal steps of time, of which each keeps its extremes.",
    ] {
        let _ = writeln!(page.text, "<li>{}</li>", escape(line));
    }
    page.text.push_str("</ul>\n");
    page.end_section();
}
