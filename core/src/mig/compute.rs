//! Compute instances inside one GPU instance: what it offers, and the fewest changes from those there to those wanted.
//!
//! A device tells what a GPU instance offers only once that exists. Before, only the sum of slices is known here; the
//! executor asks after it created the GPU instance, and uses [`place`].

use serde::{Deserialize, Serialize};

use crate::mig::layout::Part;
use crate::mig::offer::Placement;
use crate::mig::planner::{Existing, ExistingCompute, Rest};

/// A compute instance profile that a GPU instance offers, as the device describes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ComputeOffer {
    /// Compute slices: the 2 of `2c`.
    pub slices: u32,
    /// Instances of it that the GPU instance can hold.
    pub most: u32,
    /// Where one may lie, in compute slices of the GPU instance; empty where the device does not tell.
    pub placements: Vec<Placement>,
}

/// What to do inside a GPU instance that stays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Inside {
    /// Indices of compute instances to destroy.
    pub destroy: Vec<usize>,
    /// For each wanted part the index of the compute instance that serves it; none: it is created.
    pub served: Vec<Option<usize>>,
    /// For each wanted part its place, if it is created and the place is known.
    pub places: Vec<Option<Placement>>,
}

impl Inside {
    /// Of a GPU instance that is created, of which is known that it can hold the parts.
    pub(super) fn new(offers: &[ComputeOffer], slices: u32, parts: &[Part]) -> Self {
        let places = place(offers, slices, parts).unwrap_or_else(|| vec![None; parts.len()]);
        Self { destroy: Vec::new(), served: vec![None; parts.len()], places }
    }

    pub(super) fn steps(&self) -> usize {
        self.destroy.len() + self.served.iter().filter(|served| served.is_none()).count()
    }
}

fn is_at(part: &Part, placement: Placement) -> bool {
    part.place
        .is_none_or(|place| place.start == placement.start && place.size.is_none_or(|size| size == placement.size))
}

/// Where the parts of an empty GPU instance of so many slices go, in their order; none if it can't hold them. A part that
/// is the whole has no place to ask for, nor has one of whose places nothing is known.
#[must_use]
pub fn place(offers: &[ComputeOffer], slices: u32, parts: &[Part]) -> Option<Vec<Option<Placement>>> {
    place_beside(offers, slices, &[], parts)
}

fn place_beside(
    offers: &[ComputeOffer],
    slices: u32,
    there: &[&ExistingCompute],
    parts: &[Part],
) -> Option<Vec<Option<Placement>>> {
    let taken: u32 = there.iter().map(|compute| compute.slices).sum();
    if taken + parts.iter().map(|part| part.slices).sum::<u32>() > slices {
        return None;
    }
    // Large ones have the fewest places: they choose first, after those that have no choice.
    let mut order: Vec<usize> = (0..parts.len()).collect();
    order.sort_by_key(|at| std::cmp::Reverse((parts[*at].place.is_some(), parts[*at].slices)));
    let mut places = vec![None; parts.len()];
    let mut slots = there.iter().fold(0, |slots, compute| slots | compute.placement.slots());
    choose(offers, slices, parts, &order, &mut slots, &mut places).then_some(places)
}

fn choose(
    offers: &[ComputeOffer],
    slices: u32,
    parts: &[Part],
    order: &[usize],
    slots: &mut u128,
    places: &mut [Option<Placement>],
) -> bool {
    let Some((at, rest)) = order.split_first() else { return true };
    let part = &parts[*at];
    if offers.is_empty() || part.slices == slices && part.place.is_none() {
        places[*at] = part.place.map(|place| Placement { start: place.start, size: place.size.unwrap_or(part.slices) });
        return choose(offers, slices, parts, rest, slots, places);
    }
    let Some(offer) = offers.iter().find(|offer| offer.slices == part.slices) else { return false };
    if parts.iter().filter(|other| other.slices == part.slices).count() > offer.most as usize {
        return false;
    }
    if offer.placements.is_empty() {
        places[*at] = None;
        return choose(offers, slices, parts, rest, slots, places);
    }
    for placement in offer.placements.iter().filter(|placement| is_at(part, **placement)) {
        if *slots & placement.slots() == 0 {
            *slots |= placement.slots();
            places[*at] = Some(*placement);
            if choose(offers, slices, parts, rest, slots, places) {
                return true;
            }
            *slots &= !placement.slots();
        }
    }
    false
}

/// The fewest changes after which a GPU instance serves the parts; none if it can't.
pub(super) fn inside(offers: &[ComputeOffer], existing: &Existing, parts: &[Part], rest: Rest) -> Option<Inside> {
    let there = existing.compute.as_slice();
    let stays = |compute: &ExistingCompute| existing.must_stay || compute.must_stay;
    let movable: Vec<usize> = (0..there.len()).filter(|at| !stays(&there[*at])).collect();
    let mut best: Option<Inside> = None;
    for mask in 0..1_u32 << movable.len().min(MOST_MOVABLE) {
        let is_gone =
            |at: usize| movable.iter().position(|movable| *movable == at).is_some_and(|bit| mask >> bit & 1 == 1);
        let destroy: Vec<usize> = (0..there.len()).filter(|at| is_gone(*at)).collect();
        let served = serve(there, &destroy, parts);
        let idle = |at: usize| !stays(&there[at]) && !is_gone(at) && !served.contains(&Some(at));
        if rest == Rest::Goes && (0..there.len()).any(idle) {
            continue;
        }
        let mut inside = Inside { destroy, places: vec![None; parts.len()], served };
        let missing: Vec<usize> = (0..parts.len()).filter(|at| inside.served[*at].is_none()).collect();
        let is_better = best.as_ref().is_none_or(|best| inside.steps() < best.steps());
        if !is_better || existing.must_stay && !missing.is_empty() {
            continue;
        }
        let staying: Vec<&ExistingCompute> = (0..there.len()).filter(|at| !is_gone(*at)).map(|at| &there[at]).collect();
        let wanted: Vec<Part> = missing.iter().map(|at| parts[*at]).collect();
        if let Some(places) = place_beside(offers, existing.placed.profile.slices(), &staying, &wanted) {
            missing.iter().zip(places).for_each(|(at, place)| inside.places[*at] = place);
            best = Some(inside);
        }
    }
    best
}

/// Compute instances that are considered for destruction at most; no GPU instance has more.
const MOST_MOVABLE: usize = 8;

/// For each part a compute instance that stays, each taken once; parts with a place choose first.
fn serve(there: &[ExistingCompute], gone: &[usize], parts: &[Part]) -> Vec<Option<usize>> {
    let mut served = vec![None; parts.len()];
    let (placed, free): (Vec<usize>, Vec<usize>) = (0..parts.len()).partition(|at| parts[*at].place.is_some());
    for at in placed.into_iter().chain(free) {
        let fits =
            |compute: &ExistingCompute| compute.slices == parts[at].slices && is_at(&parts[at], compute.placement);
        let free = (0..there.len()).find(|i| !gone.contains(i) && !served.contains(&Some(*i)) && fits(&there[*i]));
        served[at] = free;
    }
    served
}
