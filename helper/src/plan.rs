//! From a layout as it was asked for to instances at their places, with as few changes as possible.

use std::collections::BTreeSet;

use migperf_core::chain::chain;
use migperf_core::device::MigMode;
use migperf_core::mig::layout::{Instance, Layout};
use migperf_core::mig::offer::{Offers, Placed, Placement};
use migperf_core::mig::planner::{ChangeError, Existing, Source, reach};
use migperf_core::mig::profile::ProfileList;
use migperf_gpu::layout::{Division, GpuInstance, ProfileOffer, offers};

use crate::bring::{Target, TargetGpu, TargetPart};

/// What to bring about, and what goes for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The wanted instances. Others stay beside them where they may and are not in the way.
    pub target: Target,
    /// Numbers of the instances that go.
    pub destroy: BTreeSet<u32>,
}

/// Plans a layout. `may_go` says which instances may be destroyed.
///
/// # Errors
/// Says for people what can't be, and what can.
pub fn plan(
    now: &Division,
    profiles: &[ProfileOffer],
    layout: &Layout,
    may_go: &dyn Fn(&GpuInstance) -> bool,
) -> Result<Plan, String> {
    let Layout::On(wanted) = layout else { return all_go(now, false, may_go) };
    if wanted.is_empty() {
        return all_go(now, true, may_go);
    }
    if now.mode == MigMode::Unsupported {
        return Err("this GPU, or its driver, has no MIG".to_owned());
    }
    let offers = offers(profiles);
    let existing: Vec<Existing> = now
        .instances
        .iter()
        .map(|gpu| Existing {
            id: gpu.id,
            placed: Placed { placement: gpu.placement, profile: gpu.profile.clone() },
            must_stay: !may_go(gpu),
        })
        .collect();
    let (placed, destroy) = places(&offers, &existing, wanted)?;
    let mut instances = Vec::new();
    for (instance, placed) in wanted.iter().zip(placed) {
        let profile = profiles.iter().find(|profile| profile.offer.profile == placed.profile);
        let profile = profile.ok_or_else(|| format!("this GPU has no profile {}", placed.profile))?;
        let compute: Vec<TargetPart> = instance
            .compute
            .iter()
            .map(|part| TargetPart {
                profile: placed.profile.part(part.slices).unwrap_or_else(|| placed.profile.clone()),
                profile_id: None,
                placement: part
                    .place
                    .map(|place| Placement { start: place.start, size: place.size.unwrap_or(part.slices) }),
            })
            .collect();
        instances.push(TargetGpu {
            profile_id: profile.id,
            profile: placed.profile,
            placement: placed.placement,
            compute,
        });
    }
    let plan = Plan { target: Target { on: true, instances }, destroy };
    divided_otherwise(now, &plan, may_go)?;
    Ok(plan)
}

/// An instance that may not be touched serves only if it is divided as wanted.
fn divided_otherwise(now: &Division, plan: &Plan, may_go: &dyn Fn(&GpuInstance) -> bool) -> Result<(), String> {
    for gpu in now.instances.iter().filter(|gpu| !may_go(gpu)) {
        if plan.target.instances.iter().any(|wanted| wanted.is(gpu) && !wanted.is_reached(gpu)) {
            return Err(format!(
                "{} was there before and is divided otherwise; `replace-existing` would change it",
                gpu.as_written()
            ));
        }
    }
    Ok(())
}

fn all_go(now: &Division, on: bool, may_go: &dyn Fn(&GpuInstance) -> bool) -> Result<Plan, String> {
    let staying: Vec<String> =
        now.instances.iter().filter(|gpu| !may_go(gpu)).map(|gpu| gpu.as_written().to_string()).collect();
    if !staying.is_empty() {
        return Err(format!("{} was there before; `replace-existing` would destroy it", staying.join(", ")));
    }
    if on && now.mode == MigMode::Unsupported {
        return Err("this GPU, or its driver, has no MIG".to_owned());
    }
    let destroy = now.instances.iter().map(|gpu| gpu.id).collect();
    Ok(Plan { target: Target { on, instances: Vec::new() }, destroy })
}

/// A place for each wanted instance, and the numbers of those that go for them. Instances that are wanted at a place come
/// first; the planner finds places for the others.
fn places(offers: &Offers, existing: &[Existing], wanted: &[Instance]) -> Result<(Vec<Placed>, BTreeSet<u32>), String> {
    let mut destroy = BTreeSet::new();
    let mut pinned: Vec<Option<Placed>> = Vec::with_capacity(wanted.len());
    for instance in wanted {
        let Some(place) = instance.place else {
            pinned.push(None);
            continue;
        };
        let offer = offers.named(&instance.profile).map_err(|error| error.to_string())?;
        let at = offer.placements.iter().find(|at| at.start == place.start && place.size.is_none_or(|s| s == at.size));
        let placement = *at.ok_or_else(|| {
            let places: Vec<String> = offer.placements.iter().map(|at| format!("@{}:{}", at.start, at.size)).collect();
            format!("{} can't be at {place}; its places are {}", offer.profile, places.join(", "))
        })?;
        pinned.push(Some(Placed { placement, profile: offer.profile.clone() }));
    }
    let fixed: Vec<Placed> = pinned.iter().flatten().cloned().collect();
    if !offers.allows(&fixed) {
        return Err("instances can't be at these places together".to_owned());
    }
    // What serves a place stays; what lies across one goes.
    let mut rest: Vec<Existing> = Vec::new();
    for instance in existing {
        let other: Vec<Placed> = fixed.iter().filter(|placed| **placed != instance.placed).cloned().collect();
        let fits = fixed.contains(&instance.placed) || {
            let mut all = other.clone();
            all.push(instance.placed.clone());
            offers.allows(&all)
        };
        match (fits, instance.must_stay) {
            (true, _) => rest.push(instance.clone()),
            (false, false) => drop(destroy.insert(instance.id)),
            (false, true) => {
                return Err(format!(
                    "{} was there before and is in the way; `replace-existing` would destroy it",
                    instance.placed
                ));
            }
        }
    }
    let open: Vec<&Instance> = wanted.iter().zip(&pinned).filter(|(_, at)| at.is_none()).map(|(one, _)| one).collect();
    if open.is_empty() {
        return Ok((fixed, destroy));
    }
    // To the planner the fixed ones are there already and stay.
    for (number, placed) in fixed.iter().enumerate() {
        rest.retain(|instance| instance.placed != *placed);
        let id = u32::MAX - u32::try_from(number).unwrap_or(0);
        rest.push(Existing { id, placed: placed.clone(), must_stay: true });
    }
    let names: Vec<String> = open.iter().map(|instance| instance.profile.to_string()).collect();
    let list: ProfileList = names.join("+").parse().map_err(|error| chain(&error))?;
    // A fixed one must not serve for another wish of its profile: it is taken out of the planner's sight by its number.
    let wishes: Vec<String> = fixed.iter().map(|placed| placed.profile.to_string()).chain(names).collect();
    let all: ProfileList =
        if fixed.is_empty() { list } else { wishes.join("+").parse().map_err(|error| chain(&error))? };
    let mut ordered: Vec<Existing> = rest.iter().filter(|one| one.id > u32::MAX - 1_000).cloned().collect();
    ordered.sort_by_key(|one| std::cmp::Reverse(one.id));
    ordered.extend(rest.iter().filter(|one| one.id <= u32::MAX - 1_000).cloned());
    let change = reach(offers, &ordered, &all).map_err(|error| match error {
        ChangeError::InTheWay { .. } => format!("{error}; `replace-existing` would destroy them"),
        other => other.to_string(),
    })?;
    destroy.extend(change.destroy.iter().copied());
    let mut sources = change.sources[fixed.len()..].iter().map(|source| match source {
        Source::Created(at) => change.create[*at].clone(),
        Source::Kept(id) => {
            let kept = ordered.iter().find(|one| one.id == *id);
            kept.map(|one| one.placed.clone()).expect("the planner keeps what exists")
        }
    });
    let placed = pinned.into_iter().map(|at| at.or_else(|| sources.next()).expect("a place for each wish")).collect();
    Ok((placed, destroy))
}
