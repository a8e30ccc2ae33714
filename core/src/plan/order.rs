//! Which baselines a plan needs, and the order of its cells: baselines before what is compared with them, and as few
//! changes of the GPU's layout as that allows.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::mig::layout::{Instance, Layout};
use crate::mig::profile::Profile;
use crate::plan::{LAYOUT_CHANGE, LeftOut, Origin};
use crate::suite::Target;
use crate::trial::{InstanceMps, PlannedTrial, Purpose, Sharing, TrialSpec};
use crate::units::Span;
use crate::workload::Workload;

/// Trials after each other under one layout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct LayoutStretch {
    /// Index of the first trial.
    pub first: u32,
    /// How many trials.
    pub trials: u32,
    /// The instances that must exist; none: the GPU is whole.
    pub layout: Option<Layout>,
    /// The ways of sharing that need it, each once, in the order of the trials.
    pub needed_by: Vec<String>,
    /// Whether all its trials measure again what was measured before, so that drift can be seen.
    pub again: bool,
    /// What the change before it is taken to last ([`LAYOUT_CHANGE`]); none before the first, as that depends on what is
    /// found on the GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<Span>,
}

/// Whether a cell is one worker alone on the whole target: measured first in each repeat, and again at the end.
pub(super) fn is_anchor(cell: &TrialSpec, target: Target) -> bool {
    match target {
        Target::Gpu => cell.sharing == Sharing::Exclusive,
        Target::Cpu => cell.members.len() == 1,
    }
}

fn instances(sharing: &Sharing) -> Option<Layout> {
    match sharing {
        Sharing::Mig { layout, .. } => layout.parse().ok(),
        _ => None,
    }
}

/// One worker alone: the sharing, with MIG reduced to the instance that the worker has, and its workload.
type Solo = (Sharing, Workload);

/// One worker alone on an instance, under MPS where the cohort is.
fn alone_on(profile: &Profile, sharing: &Sharing) -> Sharing {
    let mps = match sharing {
        Sharing::Mig { mps, .. } => mps.map(|mps| InstanceMps { clients: 1, ..mps }),
        _ => None,
    };
    Sharing::Mig { layout: profile.to_string(), mps }
}

fn as_solo(cell: &TrialSpec) -> Option<Solo> {
    let [workload] = cell.members.as_slice() else { return None };
    let sharing = match instances(&cell.sharing) {
        Some(layout) => alone_on(layout.members().first()?, &cell.sharing),
        None => cell.sharing.clone(),
    };
    Some((sharing, workload.clone()))
}

/// What a cohort is compared with: each distinct workload alone on the whole target, and alone in the cohort's mode.
fn baselines(cell: &TrialSpec, target: Target) -> Vec<Solo> {
    if cell.members.len() < 2 {
        return Vec::new();
    }
    let whole = if target == Target::Gpu { Sharing::Exclusive } else { Sharing::Cpu };
    let layout = instances(&cell.sharing);
    let mut wanted: Vec<Solo> = Vec::new();
    for (workload, members) in cell.groups() {
        let same_mode: Vec<Sharing> = match &layout {
            Some(layout) => {
                let profiles = layout.members();
                let of = |member: &usize| profiles.get(cell.sharing.instance_of(*member));
                members.iter().filter_map(of).map(|profile| alone_on(profile, &cell.sharing)).collect()
            }
            None => vec![cell.sharing.clone()],
        };
        for sharing in std::iter::once(whole.clone()).chain(same_mode) {
            let solo = (sharing, workload.clone());
            if !wanted.contains(&solo) {
                wanted.push(solo);
            }
        }
    }
    wanted
}

/// Where a cell comes from, before cells have their places: a baseline names its cohort by its place in the suite's order.
#[derive(Debug, Clone, Copy)]
enum Source {
    Suite { line: u32, asked: usize },
    Baseline { of_asked: usize },
}

/// Adds the missing baselines and puts everything into the order of one repeat.
pub(super) fn arrange(
    asked: Vec<(TrialSpec, u32)>,
    target: Target,
    unfit: &impl Fn(&TrialSpec) -> Option<String>,
    left_out: &mut Vec<LeftOut>,
) -> (Vec<TrialSpec>, Vec<Origin>) {
    let mut known: HashSet<Solo> = asked.iter().filter_map(|(cell, _)| as_solo(cell)).collect();
    let (mut anchors, mut added_anchors, mut rest) = (Vec::new(), Vec::new(), Vec::new());
    for (place, (cell, line)) in asked.into_iter().enumerate() {
        for (sharing, workload) in baselines(&cell, target) {
            if !known.insert((sharing.clone(), workload.clone())) {
                continue;
            }
            let solo = TrialSpec { sharing, members: vec![workload], timing: cell.timing };
            if let Some(why) = unfit(&solo) {
                left_out.push(LeftOut { what: format!("baseline {solo}"), why });
                continue;
            }
            let to = if is_anchor(&solo, target) { &mut added_anchors } else { &mut rest };
            to.push((solo, Source::Baseline { of_asked: place }));
        }
        let to = if is_anchor(&cell, target) { &mut anchors } else { &mut rest };
        to.push((cell, Source::Suite { line, asked: place }));
    }
    anchors.append(&mut added_anchors);
    let specs: Vec<TrialSpec> = rest.iter().map(|(cell, _)| cell.clone()).collect();
    let places = by_layout(&divisions(&specs), !anchors.is_empty());
    let mut rest: Vec<Option<(TrialSpec, Source)>> = rest.into_iter().map(Some).collect();
    anchors.extend(places.into_iter().filter_map(|place| rest[place].take()));

    let place_of: HashMap<usize, u32> = anchors
        .iter()
        .zip(0..)
        .filter_map(|((_, source), at)| match source {
            Source::Suite { asked, .. } => Some((*asked, at)),
            Source::Baseline { .. } => None,
        })
        .collect();
    anchors
        .into_iter()
        .map(|(cell, source)| {
            let origin = match source {
                Source::Suite { line, .. } => Origin::Suite { line },
                Source::Baseline { of_asked } => Origin::Baseline { of: place_of[&of_asked] },
            };
            (cell, origin)
        })
        .unzip()
}

/// The layout under which each cell is measured. A cell that needs like instances and nothing else, anywhere, is measured
/// under the layout that has the most of them, so that `1g` needs no change from `7x1g` or `3g+1g`.
fn divisions(cells: &[TrialSpec]) -> Vec<Option<Layout>> {
    let wanted: Vec<Option<Layout>> =
        cells.iter().map(|cell| instances(&cell.sharing).map(|layout| layout.sorted())).collect();
    let mut roomiest: HashMap<&Instance, (usize, &Layout)> = HashMap::new();
    for layout in wanted.iter().flatten() {
        for run in layout.instances().chunk_by(|a, b| a == b) {
            let best = roomiest.entry(&run[0]).or_insert((run.len(), layout));
            // The names decide last: the answer may not depend on the order of the cells.
            if (run.len(), layout.instances().len(), layout) > (best.0, best.1.instances().len(), best.1) {
                *best = (run.len(), layout);
            }
        }
    }
    let measured_under = |layout: &Layout| {
        let [first, rest @ ..] = layout.instances() else { return layout.clone() };
        let uniform = first.place.is_none() && rest.iter().all(|instance| instance == first);
        roomiest.get(first).filter(|_| uniform).map_or_else(|| layout.clone(), |(_, best)| (*best).clone())
    };
    wanted.iter().map(|layout| layout.as_ref().map(measured_under)).collect()
}

/// Cells in their order, cut where the layout changes.
pub(super) fn groups(cells: &[TrialSpec]) -> Vec<Range<usize>> {
    let divisions = divisions(cells);
    let mut groups: Vec<Range<usize>> = Vec::new();
    for at in 0..cells.len() {
        match groups.last_mut() {
            Some(group) if divisions[group.start] == divisions[at] => group.end = at + 1,
            _ => groups.push(at..at + 1),
        }
    }
    groups
}

/// Places of the cells so that those under one layout follow each other, layouts in the order of their first cell; the
/// whole GPU comes first where it is whole already.
fn by_layout(divisions: &[Option<Layout>], whole_first: bool) -> Vec<usize> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut group_of: HashMap<&Option<Layout>, usize> = HashMap::new();
    if whole_first {
        groups.push(Vec::new());
        group_of.insert(&None, 0);
    }
    for (place, division) in divisions.iter().enumerate() {
        let group = *group_of.entry(division).or_insert_with(|| {
            groups.push(Vec::new());
            groups.len() - 1
        });
        groups[group].push(place);
    }
    groups.concat()
}

pub(super) fn stretches(cells: &[TrialSpec], trials: &[PlannedTrial]) -> Vec<LayoutStretch> {
    let divisions = divisions(cells);
    let mut stretches: Vec<LayoutStretch> = Vec::new();
    for trial in trials {
        let layout = divisions.get(trial.cell as usize).cloned().flatten();
        if stretches.last().is_none_or(|last| last.layout != layout) {
            let change = (!stretches.is_empty()).then_some(LAYOUT_CHANGE);
            let first = trial.index;
            stretches.push(LayoutStretch { first, trials: 0, layout, needed_by: Vec::new(), again: true, change });
        }
        let sharing = trial.spec.sharing.to_string();
        if let Some(last) = stretches.last_mut() {
            last.trials += 1;
            last.again &= trial.purpose == Purpose::Drift;
            if !last.needed_by.contains(&sharing) {
                last.needed_by.push(sharing);
            }
        }
    }
    stretches
}
