//! What a device offers to divide itself into, and which placed instances can exist together.
//!
//! The rules (slots may not overlap, engines may not run out) are a model: NVIDIA does not document them, but they agree
//! with every published capacity and creation trace that the tests hold against them.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::mig::compute::ComputeOffer;
use crate::mig::profile::Profile;

/// Where a GPU instance lies: memory slots, as NVML counts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Placement {
    /// The first slot.
    pub start: u32,
    /// How many slots.
    pub size: u32,
}

impl Placement {
    /// A bit for each slot. No device has 128: a placement beyond them takes all, so that nothing goes beside it.
    pub(super) fn slots(self) -> u128 {
        let upto = |slot: u32| 1_u128.checked_shl(slot).map(|bit| bit - 1);
        match (upto(self.start), self.start.checked_add(self.size).and_then(upto)) {
            (Some(before), Some(within)) => within & !before,
            _ => u128::MAX,
        }
    }
}

/// Engines that are handed out whole: copy, decoder, encoder, JPEG, optical flow, in this order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Engines(pub [u32; 5]);

impl Engines {
    fn minus(self, other: Self) -> Self {
        Self(std::array::from_fn(|kind| self.0[kind].saturating_sub(other.0[kind])))
    }

    fn plus(self, other: Self) -> Self {
        Self(std::array::from_fn(|kind| self.0[kind].saturating_add(other.0[kind])))
    }

    fn fits(self, pool: Self) -> bool {
        self.0.iter().zip(pool.0).all(|(wanted, there)| *wanted <= there)
    }

    fn at_least(self, other: Self) -> Self {
        Self(std::array::from_fn(|kind| self.0[kind].max(other.0[kind])))
    }
}

/// A GPU instance profile, as the device describes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Offer {
    /// Its name, with its size.
    pub profile: Profile,
    /// Instances of it that can exist at most.
    pub most: u32,
    /// Where an instance may lie on an otherwise empty GPU.
    pub placements: Vec<Placement>,
    /// Engines that one instance takes.
    pub engines: Engines,
    /// What such a GPU instance offers in its turn; empty: not known, since no such instance exists that could be asked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub compute: Vec<ComputeOffer>,
}

/// A GPU instance at its place.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Placed {
    /// Where it lies.
    pub placement: Placement,
    /// Its profile, as the device names it.
    pub profile: Profile,
}

impl fmt::Display for Placed {
    /// NVIDIA's notation: `2g.35gb@4:2`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}:{}", self.profile, self.placement.start, self.placement.size)
    }
}

/// All that a device offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offers {
    offers: Vec<Offer>,
    pool: Engines,
}

/// Why a profile is not what a device has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("this GPU has no profile {wanted}; it offers {}", .offered.iter().map(Profile::to_string).collect::<Vec<_>>().join(", "))]
pub struct NotOffered {
    /// The profile as it was written.
    pub wanted: Profile,
    /// What there is.
    pub offered: Vec<Profile>,
}

impl Offers {
    /// Takes what the device listed. Its engines are those of its largest profile: an instance of the whole GPU has all.
    #[must_use]
    pub fn new(offers: Vec<Offer>) -> Self {
        let pool = offers.iter().fold(Engines::default(), |pool, offer| pool.at_least(offer.engines));
        Self { offers, pool }
    }

    /// All profiles, in the device's order.
    #[must_use]
    pub fn as_slice(&self) -> &[Offer] {
        &self.offers
    }

    /// Engines of the whole device.
    #[must_use]
    pub fn pool(&self) -> Engines {
        self.pool
    }

    /// What the device calls a profile that may be written without its size: of several sizes the smallest, which is the
    /// share of the memory that belongs to so many slices (`1g` is `1g.18gb` where there is a `1g.35gb` too).
    ///
    /// # Errors
    /// If the device has no such profile.
    pub fn named(&self, wanted: &Profile) -> Result<&Offer, NotOffered> {
        self.offers
            .iter()
            .filter(|offer| wanted.matches(&offer.profile))
            .min_by_key(|offer| offer.profile.memory_gb())
            .ok_or_else(|| NotOffered {
                wanted: wanted.clone(),
                offered: self.offers.iter().map(|offer| offer.profile.clone()).collect(),
            })
    }

    pub(super) fn offer_at(&self, placed: &Placed) -> Option<usize> {
        self.offers
            .iter()
            .position(|offer| offer.profile == placed.profile && offer.placements.contains(&placed.placement))
    }

    pub(super) fn occupancy(&self, there: &[Placed]) -> Occupancy {
        let mut occupancy = Occupancy { slots: 0, engines: Engines::default(), of_offer: vec![0; self.offers.len()] };
        for placed in there {
            match self.offer_at(placed) {
                Some(at) => occupancy.add(at, &self.offers[at], placed.placement),
                None => occupancy.slots |= placed.placement.slots(),
            }
        }
        occupancy
    }

    pub(super) fn fits(&self, occupancy: &Occupancy, at: usize, placement: Placement) -> bool {
        let offer = &self.offers[at];
        occupancy.slots & placement.slots() == 0
            && occupancy.of_offer[at] < offer.most
            && occupancy.engines.plus(offer.engines).fits(self.pool)
    }

    /// Whether instances can exist together.
    #[must_use]
    pub fn allows(&self, instances: &[Placed]) -> bool {
        instances.iter().enumerate().all(|(at, placed)| self.allows_also(&instances[..at], placed))
    }

    /// Whether an instance can be created where others, allowed together, are.
    #[must_use]
    pub fn allows_also(&self, there: &[Placed], placed: &Placed) -> bool {
        self.offer_at(placed).is_some_and(|at| self.fits(&self.occupancy(there), at, placed.placement))
    }

    /// Whether the sums of slots and engines leave room for more instances: where they don't, no search is needed.
    pub(super) fn may_hold(&self, occupancy: &Occupancy, more: impl Iterator<Item = usize>) -> bool {
        let ends = self.offers.iter().flat_map(|offer| &offer.placements);
        let total = ends.map(|placement| placement.start.saturating_add(placement.size)).max().unwrap_or(0);
        let (mut taken, mut engines) = (occupancy.slots.count_ones(), occupancy.engines);
        for offer in more.map(|at| &self.offers[at]) {
            taken += offer.placements.first().map_or(0, |placement| placement.size);
            engines = engines.plus(offer.engines);
        }
        taken <= total && engines.fits(self.pool)
    }

    /// Where an instance can be created beside others, the kindest place first: the one that leaves the most
    /// possibilities, and the lowest of several. Drivers choose so where nobody says (inferred from published traces).
    #[must_use]
    pub fn places(&self, there: &[Placed], offer: &Offer) -> Vec<Placed> {
        let Some(at) = self.offers.iter().position(|known| known == offer) else { return Vec::new() };
        let places = self.kindest(&mut self.occupancy(there), at);
        places.into_iter().map(|placement| Placed { placement, profile: offer.profile.clone() }).collect()
    }

    pub(super) fn kindest(&self, occupancy: &mut Occupancy, at: usize) -> Vec<Placement> {
        let mut places: Vec<(usize, Placement)> = Vec::with_capacity(self.offers[at].placements.len());
        for placement in &self.offers[at].placements {
            if self.fits(occupancy, at, *placement) {
                occupancy.add(at, &self.offers[at], *placement);
                places.push((self.possibilities(occupancy), *placement));
                occupancy.remove(at, &self.offers[at], *placement);
            }
        }
        places.sort_by_key(|(possibilities, placement)| (std::cmp::Reverse(*possibilities), placement.start));
        places.into_iter().map(|(_, placement)| placement).collect()
    }

    /// Instances, each by itself, that could still be created.
    fn possibilities(&self, occupancy: &Occupancy) -> usize {
        let fitting = |at: usize| {
            self.offers[at].placements.iter().filter(move |placement| self.fits(occupancy, at, **placement)).count()
        };
        (0..self.offers.len()).map(fitting).sum()
    }
}

/// What instances take, added up.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Occupancy {
    /// A bit for each memory slot.
    slots: u128,
    engines: Engines,
    /// Instances of each offer, in the offers' order.
    of_offer: Vec<u32>,
}

impl Occupancy {
    pub(super) fn add(&mut self, at: usize, offer: &Offer, placement: Placement) {
        self.slots |= placement.slots();
        self.engines = self.engines.plus(offer.engines);
        self.of_offer[at] += 1;
    }

    /// Takes the room of an instance of which only its place is known, or gives it back.
    pub(super) fn block(&mut self, placement: Placement, takes: bool) {
        if takes { self.slots |= placement.slots() } else { self.slots &= !placement.slots() }
    }

    pub(super) fn slots(&self) -> u128 {
        self.slots
    }

    /// Takes back what was added.
    pub(super) fn remove(&mut self, at: usize, offer: &Offer, placement: Placement) {
        self.slots &= !placement.slots();
        self.engines = self.engines.minus(offer.engines);
        self.of_offer[at] -= 1;
    }
}
