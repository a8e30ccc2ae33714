//! From the instances that exist to those that are wanted: the fewest destroys and creates, every create with its place.
//!
//! Placement is ours and explicit, because the order of creation otherwise decides what still fits.

use std::collections::HashSet;

use crate::mig::offer::{NotOffered, Offer, Offers, Placed};
use crate::mig::profile::{Profile, ProfileList};

/// A GPU instance that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Existing {
    /// The device's number for it: opaque, and used again after it is destroyed.
    pub id: u32,
    /// What and where it is.
    pub placed: Placed,
    /// Whether it must stay: it is in use, or not ours to destroy.
    pub must_stay: bool,
}

/// Where a wanted instance comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The existing instance of this id.
    Kept(u32),
    /// The entry of [`Change::create`] with this index.
    Created(usize),
}

/// What to do, in this order: all destroys, then all creates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Ids of instances to destroy, ascending.
    pub destroy: Vec<u32>,
    /// Instances to create, each at its place.
    pub create: Vec<Placed>,
    /// Where each wanted instance comes from, in the order of the wish.
    pub sources: Vec<Source>,
}

/// Why a wish can't be met.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// The device has no such profile.
    #[error(transparent)]
    NotOffered(#[from] NotOffered),
    /// A compute instance that is a part of its GPU instance is not planned.
    #[error("{0} is a part of a GPU instance; only whole GPU instances can be created here")]
    PartOfInstance(Profile),
    /// Not even an empty GPU can hold these instances.
    #[error("{wanted} does not fit on this GPU, even when it is empty; what fits of it: {}", listed(.nearest))]
    TooMuch {
        /// What was wanted, as the device names it.
        wanted: ProfileList,
        /// Parts of the wish that fit, as large as possible.
        nearest: Vec<ProfileList>,
    },
    /// Instances that must stay are in the way.
    #[error("{wanted} fits only where {} must stay; what fits beside it: {}", placed_list(.in_the_way), listed(.nearest))]
    InTheWay {
        /// What was wanted, as the device names it.
        wanted: ProfileList,
        /// A smallest set of instances that must stay but would have to go.
        in_the_way: Vec<Placed>,
        /// Parts of the wish that fit, as large as possible.
        nearest: Vec<ProfileList>,
    },
}

fn listed(lists: &[ProfileList]) -> String {
    match lists {
        [] => "nothing".to_owned(),
        _ => lists.iter().map(ProfileList::to_string).collect::<Vec<_>>().join(" or "),
    }
}

fn placed_list(placed: &[Placed]) -> String {
    placed.iter().map(Placed::to_string).collect::<Vec<_>>().join(", ")
}

/// Nearest layouts that an error names at most.
const MOST_NEAREST: usize = 3;

/// The smallest change after which every wanted instance exists. Others stay unless they are in the way.
///
/// # Errors
/// If the device has no such profile, or what is wanted can't exist, at all or beside what must stay.
pub fn reach(offers: &Offers, existing: &[Existing], wanted: &ProfileList) -> Result<Change, ChangeError> {
    let mut wishes: Vec<&Offer> = Vec::with_capacity(wanted.as_slice().len());
    for profile in wanted.as_slice() {
        if profile.compute_slices() != profile.slices() {
            return Err(ChangeError::PartOfInstance(profile.clone()));
        }
        wishes.push(offers.named(profile)?);
    }
    if let Some(change) = smallest(offers, existing, &wishes, |instance| !instance.must_stay) {
        return Ok(change);
    }
    let wanted = names(&wishes);
    let nearest = nearest(offers, existing, &wishes);
    match smallest(offers, existing, &wishes, |_| true) {
        None => Err(ChangeError::TooMuch { wanted, nearest }),
        Some(change) => {
            let goes = |instance: &&Existing| instance.must_stay && change.destroy.contains(&instance.id);
            let in_the_way = existing.iter().filter(goes).map(|instance| instance.placed.clone()).collect();
            Err(ChangeError::InTheWay { wanted, in_the_way, nearest })
        }
    }
}

fn names(wishes: &[&Offer]) -> ProfileList {
    let text: Vec<String> = wishes.iter().map(|offer| offer.profile.to_string()).collect();
    text.join("+").parse().expect("the list was a list before its names were completed")
}

/// Instances that are considered for destruction at most; no device has more.
const MOST_MOVABLE: usize = 14;

/// Subsets of `0..count` as bit masks, those of fewest elements first.
fn subsets(count: usize) -> Vec<u32> {
    let mut masks: Vec<u32> = (0..1_u32 << count).collect();
    masks.sort_by_key(|mask| mask.count_ones());
    masks
}

fn members(mask: u32, count: usize) -> impl Iterator<Item = usize> {
    (0..count).filter(move |at| mask & (1 << at) != 0)
}

/// The change with the fewest steps, of these the one that destroys least, among those that destroy only what may go.
fn smallest(
    offers: &Offers,
    existing: &[Existing],
    wishes: &[&Offer],
    may_go: impl Fn(&Existing) -> bool,
) -> Option<Change> {
    let movable: Vec<usize> = (0..existing.len()).filter(|at| may_go(&existing[*at])).take(MOST_MOVABLE).collect();
    let mut choices: Vec<(usize, Vec<usize>, Vec<Option<usize>>)> = subsets(movable.len())
        .into_iter()
        .map(|mask| {
            let gone: Vec<usize> = members(mask, movable.len()).map(|at| movable[at]).collect();
            let kept = serve(existing, &gone, wishes);
            let steps = gone.len() + kept.iter().filter(|source| source.is_none()).count();
            (steps, gone, kept)
        })
        .collect();
    // Stable: subsets already come with the fewest destroys first.
    choices.sort_by_key(|(steps, ..)| *steps);
    choices.into_iter().find_map(|(_, gone, kept)| {
        let mut there: Vec<Placed> =
            (0..existing.len()).filter(|at| !gone.contains(at)).map(|at| existing[at].placed.clone()).collect();
        let staying = there.len();
        let missing: Vec<usize> = (0..wishes.len()).filter(|at| kept[*at].is_none()).collect();
        // Large instances have the fewest places: they choose first.
        let mut order = missing.clone();
        order.sort_by_key(|at| (wishes[*at].placements.len(), &wishes[*at].profile));
        let ordered: Vec<&Offer> = order.iter().map(|at| wishes[*at]).collect();
        if !offers.may_hold(&there, &ordered) || !place_all(offers, &mut there, &ordered, &mut HashSet::new()) {
            return None;
        }
        let create = there.split_off(staying);
        let mut sources: Vec<Source> = Vec::with_capacity(wishes.len());
        for (wish, kept) in kept.iter().enumerate() {
            sources.push(match kept {
                Some(at) => Source::Kept(existing[*at].id),
                None => Source::Created(order.iter().position(|missing| *missing == wish)?),
            });
        }
        let mut destroy: Vec<u32> = gone.iter().map(|at| existing[*at].id).collect();
        destroy.sort_unstable();
        Some(Change { destroy, create, sources })
    })
}

/// For each wish an existing instance of its profile that is not destroyed, each taken once.
fn serve(existing: &[Existing], gone: &[usize], wishes: &[&Offer]) -> Vec<Option<usize>> {
    let mut taken: Vec<bool> = (0..existing.len()).map(|at| gone.contains(&at)).collect();
    wishes
        .iter()
        .map(|offer| {
            let free = (0..existing.len()).find(|at| !taken[*at] && existing[*at].placed.profile == offer.profile)?;
            taken[free] = true;
            Some(free)
        })
        .collect()
}

/// Adds an instance of each of `wishes` to those that are there, or leaves them as they were. `dead` holds what is known
/// to lead nowhere: instances in order, and how many wishes were left.
fn place_all(
    offers: &Offers,
    there: &mut Vec<Placed>,
    wishes: &[&Offer],
    dead: &mut HashSet<(Vec<Placed>, usize)>,
) -> bool {
    let Some((first, rest)) = wishes.split_first() else { return true };
    let mut state = (there.clone(), wishes.len());
    state.0.sort();
    if dead.contains(&state) {
        return false;
    }
    for placed in offers.places(there, first) {
        there.push(placed);
        if place_all(offers, there, rest, dead) {
            return true;
        }
        there.pop();
    }
    dead.insert(state);
    false
}

/// The largest parts of a wish that can be met beside what must stay, each set of profiles once.
fn nearest(offers: &Offers, existing: &[Existing], wishes: &[&Offer]) -> Vec<ProfileList> {
    let mut kinds: Vec<(&Offer, usize)> = Vec::new();
    for offer in wishes {
        match kinds.iter_mut().find(|(known, _)| known.profile == offer.profile) {
            Some((_, count)) => *count += 1,
            None => kinds.push((offer, 1)),
        }
    }
    // How many of each profile: every combination, each once.
    let mut parts: Vec<Vec<&Offer>> = vec![Vec::new()];
    for (offer, count) in kinds {
        let most = count.min(offer.most as usize);
        let mut longer = Vec::new();
        for part in parts {
            for more in 0..=most {
                longer.push(part.iter().copied().chain(std::iter::repeat_n(offer, more)).collect());
            }
        }
        parts = longer;
    }
    parts.retain(|part| !part.is_empty() && part.len() < wishes.len());
    parts.sort_by_key(|part| std::cmp::Reverse(part.len()));
    let mut found: Vec<Vec<&Offer>> = Vec::new();
    for part in parts {
        if found.len() == MOST_NEAREST || found.first().is_some_and(|best| best.len() > part.len()) {
            break;
        }
        if smallest(offers, existing, &part, |instance| !instance.must_stay).is_some() {
            found.push(part);
        }
    }
    found.iter().map(|part| names(part)).collect()
}

/// What gives back exactly the instances that were there: nothing else stays, and each has its old place.
#[must_use]
pub fn restore(existing: &[Existing], original: &[Placed]) -> (Vec<u32>, Vec<Placed>) {
    let destroy = existing.iter().filter(|instance| !original.contains(&instance.placed)).map(|instance| instance.id);
    let there = |placed: &&Placed| existing.iter().any(|instance| instance.placed == **placed);
    (destroy.collect(), original.iter().filter(|placed| !there(placed)).cloned().collect())
}
