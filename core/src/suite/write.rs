//! A suite written back as TOML, every key of every cell spelled out.

use std::fmt::Write as _;

use crate::suite::objective::Objective;
use crate::suite::{Suite, Target, VERSION};
use crate::trial::{InstanceMps, Sharing, Timing, TrialSpec};
use crate::workload::Workload;

fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

fn sharing(sharing: &Sharing) -> String {
    match sharing {
        Sharing::Exclusive => quoted("exclusive"),
        Sharing::TimeSlice => quoted("time-slice"),
        Sharing::Cpu => quoted("cpu"),
        Sharing::Mps { active_thread_percentage: None } => quoted("mps"),
        Sharing::Mps { active_thread_percentage: Some(percent) } => {
            format!("{{ mode = \"mps\", active-thread-percentage = {percent} }}")
        }
        Sharing::Mig { layout, mps } => {
            let mut text = format!("{{ mode = \"mig\", layout = {}", quoted(layout));
            if let Some(InstanceMps { clients, active_thread_percentage }) = mps {
                let _ = write!(text, ", clients = {clients}");
                if let Some(percent) = active_thread_percentage {
                    let _ = write!(text, ", active-thread-percentage = {percent}");
                }
            }
            text + " }"
        }
    }
}

fn workload(workload: &Workload) -> String {
    let Workload { model, task, batch_size, sequence_length, precision, input, memory_format, wait, cudnn } = workload;
    let mut text = format!("{{ model = \"{model}\", task = \"{task}\", batch-size = {batch_size}");
    if let Some(length) = sequence_length {
        let _ = write!(text, ", sequence-length = {length}");
    }
    let _ = write!(text, ", precision = \"{precision}\", input = \"{input}\"");
    if super::problem::has_convolutions(model.family()) {
        let _ = write!(text, ", memory-format = \"{memory_format}\"");
    }
    let _ = write!(text, ", wait = \"{wait}\", cudnn = \"{cudnn}\" }}");
    text
}

fn objective(text: &mut String, Objective { metric, bound, of }: &Objective) {
    let _ = write!(text, "\n[objective]\nmetric = \"{metric}\"\n");
    if let Some(bound) = bound {
        let side = if metric.more_is_better() { "at-least" } else { "at-most" };
        let _ = writeln!(text, "{side} = \"{bound}{}\"", metric.unit());
    }
    let model = of.model.map(|model| format!("model = \"{model}\""));
    let task = of.task.map(|task| format!("task = \"{task}\""));
    let parts: Vec<String> = model.into_iter().chain(task).collect();
    if !parts.is_empty() {
        let _ = writeln!(text, "of = {{ {} }}", parts.join(", "));
    }
}

fn cell(text: &mut String, cell: &TrialSpec, only_on: Option<&str>) {
    let _ = write!(text, "\n[[trial]]\nsharing = {}\n", sharing(&cell.sharing));
    if let Some(target) = only_on {
        let _ = writeln!(text, "only-on = \"{target}\"");
    }
    let Timing { warmup_batches, warmup, settle, window, longest_window, minimum_batches, ready_limit } = cell.timing;
    let _ = write!(
        text,
        "warmup-batches = {warmup_batches}\nwarmup = \"{warmup}\"\nsettle = \"{settle}\"\nwindow = \"{window}\"\n\
         longest-window = \"{longest_window}\"\nminimum-batches = {minimum_batches}\nready-limit = \"{ready_limit}\"\n\
         members = [\n"
    );
    for run in cell.members.chunk_by(|a, b| a == b) {
        let _ = writeln!(text, "  {{ count = {}, workload = {} }},", run.len(), workload(&run[0]));
    }
    text.push_str("]\n");
}

pub(super) fn suite(suite: &Suite) -> String {
    let mut text = format!("version = {VERSION}\nname = {}\n", quoted(&suite.name));
    if let Some(description) = &suite.description {
        let _ = writeln!(text, "description = {}", quoted(description));
    }
    let _ = write!(text, "\n[defaults]\nrepeats = {}\nseed = {}\n", suite.repeats, suite.seed);
    if let Some(written) = &suite.objective {
        objective(&mut text, written);
    }
    for trial in &suite.trials {
        for spec in &trial.cells {
            cell(&mut text, spec, trial.only_on.map(Target::name));
        }
    }
    text
}
