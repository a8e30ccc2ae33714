//! `layout`: how GPUs are divided, and changing that for longer than a job.

use std::fmt::Write as _;

use anyhow::Context as _;
use migperf_core::device::MigMode;
use migperf_core::layouts::{GpuLayout, Instance, LayoutChange, LayoutPlan, Layouts, Offer, Standing};
use migperf_core::report::WATERMARK;
use migperf_dbus::Keyed;
use migperf_dbus::names::layout as key;
use serde::Serialize;

use crate::args::{ChangeArgs, LayoutCommand};
use crate::commands::{document, owned};
use crate::connect::Session;
use crate::exit::Exit;
use crate::output::{self, harmless};

pub(crate) async fn layout(session: &Session, command: LayoutCommand, json: bool) -> anyhow::Result<Exit> {
    let none = Keyed::new();
    match command {
        LayoutCommand::Show => {
            let layouts: Layouts = document(session, session.manager.open_layouts(&none).await, "the layouts").await?;
            print(&layouts, json, shown)?;
            Ok(Exit::Valid)
        }
        LayoutCommand::Plan(args) => {
            let answer = session.manager.plan_layout(&args.gpu.to_string(), &args.layout, &options(&args)?).await;
            let plan: LayoutPlan = document(session, answer, "the plan").await?;
            print(&plan, json, planned)?;
            Ok(if plan.refusals.is_empty() { Exit::Valid } else { Exit::Refused })
        }
        LayoutCommand::Apply(args) => {
            let answer = session.manager.apply_layout(&args.gpu.to_string(), &args.layout, &options(&args)?).await;
            let change: LayoutChange = document(session, answer, "what was done").await?;
            print(&change, json, changed)?;
            Ok(Exit::Valid)
        }
        LayoutCommand::Restore { gpu } => {
            let answer = session.manager.restore_layout(&gpu.to_string(), &none).await;
            let change: LayoutChange = document(session, answer, "what was done").await?;
            print(&change, json, changed)?;
            Ok(if change.as_found { Exit::Valid } else { Exit::Failure })
        }
    }
}

fn options(args: &ChangeArgs) -> anyhow::Result<Keyed> {
    let mut options = Keyed::new();
    if args.replace_existing {
        options.insert(key::REPLACE_EXISTING.to_owned(), owned(true)?);
    }
    Ok(options)
}

fn print<T: Serialize>(answer: &T, json: bool, text: impl FnOnce(&T) -> String) -> anyhow::Result<()> {
    if json {
        output::line(&serde_json::to_string_pretty(answer).context("can't write the answer as JSON")?)
    } else {
        output::put(&text(answer))
    }
}

fn shown(layouts: &Layouts) -> String {
    let mut text = String::new();
    if layouts.simulated {
        let _ = writeln!(text, "{WATERMARK}\n");
    }
    if layouts.gpus.is_empty() {
        text.push_str("There is no GPU.\n");
    }
    for gpu in &layouts.gpus {
        gpu_text(gpu, &mut text);
    }
    if let Some(obstacle) = &layouts.obstacle {
        let _ = writeln!(text, "Nothing can be changed here: {}\n  what to do: {}", obstacle.problem, obstacle.remedy);
    }
    text
}

fn gpu_text(gpu: &GpuLayout, text: &mut String) {
    let name = gpu.name.as_deref().map_or_else(|| "unnamed".to_owned(), harmless);
    let _ = writeln!(text, "GPU {} {name} ({})", gpu.index, harmless(&gpu.uuid));
    let word = |on: bool| if on { "on" } else { "off" };
    let mode = match gpu.mode {
        MigMode::Unsupported => "none: this GPU can't be divided".to_owned(),
        MigMode::Disabled => "off".to_owned(),
        MigMode::Enabled => "on".to_owned(),
        MigMode::Pending { current, pending } => format!("{}, and {} after a reset", word(current), word(pending)),
    };
    let _ = writeln!(text, "  MIG     {mode}");
    if let Some(problem) = &gpu.problem {
        let _ = writeln!(text, "  not read: {}", harmless(problem));
    }
    let _ = writeln!(text, "  layout  {}", harmless(&gpu.layout));
    gpu.instances.iter().for_each(|instance| instance_text(instance, text));
    if !gpu.offers.is_empty() {
        text.push_str("  offers\n");
        gpu.offers.iter().for_each(|offer| offer_text(offer, text));
    }
    if let Some(standing) = &gpu.standing {
        standing_text(standing, text);
    }
    text.push('\n');
}

fn instance_text(instance: &Instance, text: &mut String) {
    let Instance { id, profile, start, size, compute } = instance;
    let _ = write!(text, "    {}@{start}:{size}  GPU instance {id}", harmless(profile));
    if compute.is_empty() {
        text.push_str(", half-made: no compute instance\n");
        return;
    }
    text.push('\n');
    for part in compute {
        let (profile, uuid) = (harmless(&part.profile), harmless(&part.uuid));
        let _ = writeln!(text, "      {profile}  compute instance {}  {uuid}", part.id);
    }
}

fn offer_text(offer: &Offer, text: &mut String) {
    let Offer { profile, most, left, starts } = offer;
    let starts: Vec<String> = starts.iter().map(u32::to_string).collect();
    let profile = harmless(profile);
    let _ = writeln!(text, "    {profile:<14} {left} more of {most}, beginning at {}", starts.join(", "));
}

fn standing_text(standing: &Standing, text: &mut String) {
    let (state, found, wanted) = (harmless(&standing.state), harmless(&standing.found), harmless(&standing.wanted));
    let _ = writeln!(text, "  {state}: found as {found}, wanted as {wanted}");
    for left in &standing.left {
        let _ = writeln!(text, "    not as it was found: {}", harmless(left));
    }
    if !standing.commands.is_empty() {
        text.push_str("    what puts it right:\n");
    }
    for command in &standing.commands {
        let _ = writeln!(text, "      {}", harmless(command));
    }
}

fn listed(title: &str, items: &[String], text: &mut String) {
    if items.is_empty() {
        return;
    }
    let _ = writeln!(text, "{title}");
    for item in items {
        let _ = writeln!(text, "  {}", harmless(item));
    }
}

fn planned(plan: &LayoutPlan) -> String {
    let simulated = if plan.simulated { "SIMULATED " } else { "" };
    let (gpu, found, wanted) = (harmless(&plan.gpu), harmless(&plan.found), harmless(&plan.wanted));
    let mut text = format!("{simulated}GPU {gpu}: from {found} to {wanted}\n");
    if plan.steps.is_empty() && plan.refusals.is_empty() {
        text.push_str("Nothing needs to be done.\n");
    }
    listed("Steps:", &plan.steps, &mut text);
    if let Some(after) = &plan.after {
        let _ = writeln!(text, "Then there is {}", harmless(after));
    }
    listed("MIG devices that would be gone:", &plan.removed_uuids, &mut text);
    if !plan.refusals.is_empty() {
        text.push_str("It would be refused:\n");
    }
    for refusal in &plan.refusals {
        let _ = writeln!(text, "  {}\n    what to do: {}", harmless(&refusal.problem), harmless(&refusal.remedy));
    }
    text
}

fn changed(change: &LayoutChange) -> String {
    let switched = if change.mode_changed { ", the MIG mode was switched" } else { "" };
    let mut text = format!("GPU {}: {} steps{switched}\n", harmless(&change.gpu), change.steps);
    change.instances.iter().for_each(|instance| instance_text(instance, &mut text));
    listed("MIG devices that are gone:", &change.removed_uuids, &mut text);
    listed("MIG devices that are new:", &change.created_uuids, &mut text);
    listed("Not as it was found:", &change.left, &mut text);
    if change.as_found {
        text.push_str("It is as it was found.\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use migperf_core::job::Refusal;
    use migperf_core::layouts::Compute;

    fn gpu() -> GpuLayout {
        let compute = Compute { id: 0, profile: "3g.71gb".to_owned(), uuid: "MIG-1".to_owned() };
        let instance = |id, start, compute: &[Compute]| Instance {
            id,
            profile: "3g.71gb".to_owned(),
            start,
            size: 4,
            compute: compute.to_vec(),
        };
        GpuLayout {
            index: 0,
            uuid: "GPU-1".to_owned(),
            name: Some("NVIDIA H200".to_owned()),
            mode: MigMode::Pending { current: true, pending: false },
            layout: "3g.71gb@0:4+3g.71gb@4:4()".to_owned(),
            instances: vec![instance(1, 0, &[compute]), instance(2, 4, &[])],
            offers: vec![Offer { profile: "1g.18gb".to_owned(), most: 7, left: 0, starts: vec![0, 1] }],
            standing: Some(Standing {
                state: "quarantined".to_owned(),
                found: "off".to_owned(),
                wanted: "2x3g".to_owned(),
                left: vec!["MIG is on".to_owned()],
                commands: vec!["nvidia-smi -i 0 -mig 0".to_owned()],
            }),
            problem: None,
        }
    }

    #[test]
    fn a_gpu_is_shown_with_what_is_wrong_with_it() {
        let text = shown(&Layouts { simulated: true, obstacle: None, gpus: vec![gpu()] });
        for part in [
            WATERMARK,
            "GPU 0 NVIDIA H200 (GPU-1)",
            "MIG     on, and off after a reset",
            "3g.71gb@0:4  GPU instance 1\n      3g.71gb  compute instance 0  MIG-1",
            "3g.71gb@4:4  GPU instance 2, half-made",
            "1g.18gb        0 more of 7, beginning at 0, 1",
            "quarantined: found as off, wanted as 2x3g",
            "      nvidia-smi -i 0 -mig 0",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn a_plan_says_what_goes_and_why_not() {
        let plan = LayoutPlan {
            simulated: false,
            gpu: "GPU-1".to_owned(),
            found: "off".to_owned(),
            wanted: "9x1g".to_owned(),
            after: None,
            steps: Vec::new(),
            removed_uuids: vec!["MIG-1".to_owned()],
            refusals: vec![Refusal { problem: "it does not fit".to_owned(), remedy: "7x1g fits".to_owned() }],
        };
        let text = planned(&plan);
        assert!(text.contains("would be gone:\n  MIG-1\n") && text.contains("what to do: 7x1g fits"), "{text}");
        assert!(!text.contains("Nothing needs"), "{text}");
    }
}
