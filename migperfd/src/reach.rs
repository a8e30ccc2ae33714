//! Which of a plan's layouts a GPU can have, from what is there now, and what that changes. Said before anything runs.

use std::collections::BTreeSet;
use std::path::Path;

use migperf_core::device::{Gpu, MigInstance, MigMode};
use migperf_core::job::Refusal;
use migperf_core::mig::layout::Layout;
use migperf_core::plan::Plan;
use migperf_core::preflight::LayoutMeans;
use migperf_core::suite::Target;

use crate::layout::instances;
use crate::survey::{self, Survey};

/// What a plan does to its GPU's layout, and undoes at the end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LayoutChanges {
    /// For people; empty: nothing.
    pub lines: Vec<String>,
    /// UUIDs of MIG devices that will be others afterwards.
    pub replaced: Vec<String>,
}

/// What must be done for a plan.
///
/// # Errors
/// Layouts that can't be there, each with what to do about it.
pub fn changes(
    plan: &Plan,
    gpu: &Gpu,
    means: LayoutMeans<'_>,
    nvml: Option<&Path>,
) -> Result<LayoutChanges, Vec<Refusal>> {
    if plan.target == Target::Cpu {
        return Ok(LayoutChanges::default());
    }
    let stretches: Vec<Option<Layout>> = plan.layouts().into_iter().map(|stretch| stretch.layout).collect();
    if let LayoutMeans::None { why, remedy } = means {
        let missing: Vec<Refusal> =
            stretches.iter().filter_map(|layout| missing(layout.as_ref()?, gpu, why, remedy)).collect();
        return if missing.is_empty() { Ok(LayoutChanges::default()) } else { Err(missing) };
    }
    let found = gpu.mig.value() == Some(&MigMode::Enabled);
    let (mut there, mut steps) = (Present { divided: found, made: None }, Vec::new());
    for layout in &stretches {
        if there.serves(layout.as_ref(), gpu) {
            continue;
        }
        steps.push(layout.as_ref().unwrap_or(&Layout::Off).to_string());
        there = Present { divided: layout.is_some(), made: Some(layout.clone()) };
    }
    if steps.is_empty() {
        return Ok(LayoutChanges::default());
    }
    let replaced = replaced(&stretches, gpu, means, nvml)?;
    let mode = |on: bool| if on { "on" } else { "off" };
    let there: &[MigInstance] = gpu.instances.value().map_or(&[], Vec::as_slice);
    let found_as = match there {
        _ if !found => "off".to_owned(),
        [] => "empty".to_owned(),
        instances => {
            let names = instances.iter().map(|instance| instance.profile.value().map_or("unknown", String::as_str));
            names.collect::<Vec<_>>().join("+")
        }
    };
    let mut lines = vec![format!("the layout becomes {} and then {found_as} again, as it was found", steps.join(", "))];
    if stretches.iter().any(|layout| layout.is_some() != found) {
        lines.push(format!(
            "MIG is switched {} and {} again: no other trial runs on this host meanwhile",
            mode(!found),
            mode(found)
        ));
    }
    Ok(LayoutChanges { lines, replaced })
}

/// MIG devices that are there and are destroyed for some stretch.
///
/// # Errors
/// Layouts that the GPU can't have.
fn replaced(
    stretches: &[Option<Layout>],
    gpu: &Gpu,
    means: LayoutMeans<'_>,
    nvml: Option<&Path>,
) -> Result<Vec<String>, Vec<Refusal>> {
    let unread = |problem: String| {
        let problem = format!("GPU {} does not tell how it can be divided: {problem}", gpu.index);
        vec![Refusal { problem, remedy: "see `dmesg` and `nvidia-smi mig -lgip`".to_owned() }]
    };
    let survey = Survey::of(nvml, &gpu.uuid).map_err(unread)?;
    let (mut replaced, mut refusals): (BTreeSet<String>, Vec<Refusal>) = Default::default();
    for layout in stretches {
        match survey.reach(layout.as_ref().unwrap_or(&Layout::Off), means == LayoutMeans::ReplaceInstances) {
            Ok(change) => replaced.extend(survey.removed(&change)),
            Err(error) => refusals.push(Refusal {
                problem: format!("GPU {}: {error}", gpu.index),
                remedy: survey::remedy(&error).to_owned(),
            }),
        }
    }
    if refusals.is_empty() { Ok(replaced.into_iter().collect()) } else { Err(refusals) }
}

/// What is on the GPU at some point of a plan.
struct Present {
    divided: bool,
    /// The layout that was made last; none: what was found is still there.
    made: Option<Option<Layout>>,
}

impl Present {
    fn serves(&self, wanted: Option<&Layout>, gpu: &Gpu) -> bool {
        match (wanted, &self.made) {
            (None, _) => !self.divided,
            (Some(wanted), Some(made)) => made.as_ref() == Some(wanted),
            (Some(wanted), None) => self.divided && instances(wanted, gpu).is_ok(),
        }
    }
}

fn missing(layout: &Layout, gpu: &Gpu, why: &str, remedy: &str) -> Option<Refusal> {
    let problem = instances(layout, gpu).err()?;
    Some(Refusal {
        problem: format!("GPU {} has not the instances of `{layout}`: {problem}; {why}", gpu.index),
        remedy: format!(
            "create them first (`nvidia-smi mig -cgi ... -C`), as migperf measures instances that exist; {remedy}"
        ),
    })
}
