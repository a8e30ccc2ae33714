//! The search behind the planner: which instances stay, which serve a wish, and where the others are created.
//!
//! Branch and bound over the existing instances, with the places of what is missing decided at each leaf. The answer is
//! exact: no cheaper one exists under the rules of `offer`.

use std::collections::HashSet;

use crate::mig::compute::{Inside, inside};
use crate::mig::offer::{Occupancy, Offers, Placement};
use crate::mig::planner::{Existing, Rest, Wish};

/// What becomes of a GPU instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Choice {
    Goes,
    Stays,
    Serves { wish: usize, inside: Inside },
}

/// The cheapest way to meet all wishes.
#[derive(Debug, Clone)]
pub(super) struct Solution {
    /// For each existing instance, in order.
    pub choices: Vec<Choice>,
    /// Wishes that are created, and where, in the order in which they are.
    pub created: Vec<(usize, Placement)>,
}

/// Steps, and GPU instances among them that are destroyed.
type Cost = (usize, usize);

/// What destroying an instance that must stay costs, where that is asked at all: more than everything else together.
const FORCED: usize = 1_000_000;

/// Wishes that are alike: any of them may take the place of another.
struct Class {
    wishes: Vec<usize>,
    /// Steps that one costs where it is created.
    steps: usize,
}

/// What an existing instance does.
#[derive(Debug, Clone, Copy)]
enum Decision {
    Goes,
    Stays,
    Serves(usize),
}

/// A decision and what it costs.
#[derive(Debug, Clone, Copy)]
struct Way {
    decision: Decision,
    cost: Cost,
}

struct Search<'a> {
    offers: &'a Offers,
    existing: &'a [&'a Existing],
    wishes: &'a [Wish<'a>],
    classes: Vec<Class>,
    /// For each existing instance what it may do, the cheapest first.
    ways: Vec<Vec<Way>>,
    /// The least that the instances from each on can add to the cost, less what they save by serving.
    least: Vec<isize>,
    decisions: Vec<Decision>,
    left: Vec<usize>,
    occupancy: Occupancy,
    hopeless: HashSet<(Occupancy, Vec<usize>)>,
    best: Option<(Cost, Vec<Decision>)>,
}

/// The change with the fewest steps, of these the one that destroys least. With `force` what must stay may go too, and as
/// few of it as possible does.
pub(super) fn smallest(
    offers: &Offers,
    existing: &[&Existing],
    wishes: &[Wish<'_>],
    rest: Rest,
    force: bool,
) -> Option<Solution> {
    let classes = classes(wishes);
    let mut insides: Vec<Vec<Option<Inside>>> = Vec::with_capacity(existing.len());
    for existing in existing {
        let offer = offers.offer_at(&existing.placed);
        let serve = |class: &Class| {
            let wish = &wishes[class.wishes[0]];
            let fits = offer == Some(wish.offer)
                && wish.placement.is_none_or(|placement| placement == existing.placed.placement);
            if fits { inside(&offers.as_slice()[wish.offer].compute, existing, wish.parts, rest) } else { None }
        };
        insides.push(classes.iter().map(serve).collect());
    }
    let ways: Vec<Vec<Way>> =
        existing.iter().zip(&insides).map(|(existing, insides)| options(existing, insides, rest, force)).collect();
    let mut least = vec![0_isize; existing.len() + 1];
    for at in (0..existing.len()).rev() {
        let value = |option: &Way| match option.decision {
            Decision::Serves(class) => option.cost.0.cast_signed() - classes[class].steps.cast_signed(),
            Decision::Goes | Decision::Stays => option.cost.0.cast_signed(),
        };
        least[at] = least[at + 1] + ways[at].iter().map(value).min().unwrap_or(0);
    }
    let left = classes.iter().map(|class| class.wishes.len()).collect();
    let mut search = Search {
        offers,
        existing,
        wishes,
        classes,
        ways,
        least,
        decisions: Vec::with_capacity(existing.len()),
        left,
        occupancy: offers.occupancy(&[]),
        hopeless: HashSet::new(),
        best: None,
    };
    search.decide((0, 0));
    let (_, decisions) = search.best.take()?;
    Some(search.solution(&decisions, &insides))
}

fn classes(wishes: &[Wish<'_>]) -> Vec<Class> {
    let mut classes: Vec<Class> = Vec::new();
    for (at, wish) in wishes.iter().enumerate() {
        match classes.iter_mut().find(|class| wishes[class.wishes[0]] == *wish) {
            Some(class) => class.wishes.push(at),
            None => classes.push(Class { wishes: vec![at], steps: 1 + wish.parts.len() }),
        }
    }
    classes
}

fn options(existing: &Existing, insides: &[Option<Inside>], rest: Rest, force: bool) -> Vec<Way> {
    let mut options: Vec<Way> = Vec::new();
    for (class, inside) in insides.iter().enumerate() {
        if let Some(inside) = inside {
            options.push(Way { decision: Decision::Serves(class), cost: (inside.steps(), 0) });
        }
    }
    if existing.stays() || rest == Rest::Stays {
        options.push(Way { decision: Decision::Stays, cost: (0, 0) });
    }
    if !existing.stays() || force {
        let forced = if existing.stays() { FORCED } else { 0 };
        options.push(Way { decision: Decision::Goes, cost: (forced + 1 + existing.compute.len(), 1) });
    }
    options
}

impl Search<'_> {
    fn decide(&mut self, cost: Cost) {
        let at = self.decisions.len();
        if let Some((best, _)) = &self.best {
            let missing: usize = self.left.iter().zip(&self.classes).map(|(left, class)| left * class.steps).sum();
            let bound = (cost.0 + missing).saturating_add_signed(self.least[at]);
            if (bound, cost.1) >= *best {
                return;
            }
        }
        if at == self.existing.len() {
            self.finish(cost);
            return;
        }
        for option in 0..self.ways[at].len() {
            let Way { decision, cost: (steps, destroys) } = self.ways[at][option];
            if let Decision::Serves(class) = decision {
                if self.left[class] == 0 {
                    continue;
                }
                self.left[class] -= 1;
            }
            self.stay(at, decision, true);
            self.decisions.push(decision);
            self.decide((cost.0 + steps, cost.1 + destroys));
            self.decisions.pop();
            self.stay(at, decision, false);
            if let Decision::Serves(class) = decision {
                self.left[class] += 1;
            }
        }
    }

    /// Lets an instance that does not go take its room, or give it back.
    fn stay(&mut self, at: usize, decision: Decision, takes: bool) {
        if matches!(decision, Decision::Goes) {
            return;
        }
        let placed = &self.existing[at].placed;
        match (self.offers.offer_at(placed), takes) {
            (Some(offer), true) => self.occupancy.add(offer, &self.offers.as_slice()[offer], placed.placement),
            (Some(offer), false) => self.occupancy.remove(offer, &self.offers.as_slice()[offer], placed.placement),
            (None, takes) => self.occupancy.block(placed.placement, takes),
        }
    }

    fn finish(&mut self, cost: Cost) {
        let missing: usize = self.left.iter().zip(&self.classes).map(|(left, class)| left * class.steps).sum();
        let cost = (cost.0 + missing, cost.1);
        let state = (self.occupancy.clone(), self.left.clone());
        if self.hopeless.contains(&state) {
            return;
        }
        let order = self.missing();
        if self.offers.may_hold(&self.occupancy, order.iter().map(|wish| self.wishes[*wish].offer))
            && self.arrange(&mut self.occupancy.clone(), &order, false).is_some()
        {
            self.best = Some((cost, self.decisions.clone()));
        } else {
            self.hopeless.insert(state);
        }
    }

    /// Wishes that nothing serves yet, those with the fewest places first.
    fn missing(&self) -> Vec<usize> {
        let mut missing: Vec<usize> = Vec::new();
        for (class, left) in self.classes.iter().zip(&self.left) {
            missing.extend(&class.wishes[class.wishes.len() - left..]);
        }
        let offer = |wish: usize| &self.offers.as_slice()[self.wishes[wish].offer];
        missing.sort_by_key(|at| {
            (self.wishes[*at].placement.is_none(), offer(*at).placements.len(), self.wishes[*at].offer)
        });
        missing
    }

    /// Places for all of `order`; the kindest ones where `kind`.
    fn arrange(&self, occupancy: &mut Occupancy, order: &[usize], kind: bool) -> Option<Vec<Placement>> {
        let mut places = Vec::with_capacity(order.len());
        self.place(occupancy, order, kind, &mut places, &mut HashSet::new()).then_some(places)
    }

    /// `dead` holds what is known to lead nowhere: occupied slots, with how many wishes were left. The rest follows, since
    /// the order is fixed.
    fn place(
        &self,
        occupancy: &mut Occupancy,
        order: &[usize],
        kind: bool,
        places: &mut Vec<Placement>,
        dead: &mut HashSet<(u128, usize)>,
    ) -> bool {
        let Some((first, rest)) = order.split_first() else { return true };
        let state = (occupancy.slots(), order.len());
        if dead.contains(&state) {
            return false;
        }
        let wish = &self.wishes[*first];
        let offer = &self.offers.as_slice()[wish.offer];
        let kindest =
            if kind && wish.placement.is_none() { self.offers.kindest(occupancy, wish.offer) } else { Vec::new() };
        let candidates: &[Placement] = match &wish.placement {
            Some(placement) => std::slice::from_ref(placement),
            None if kind => &kindest,
            None => &offer.placements,
        };
        for placement in candidates {
            if !self.offers.fits(occupancy, wish.offer, *placement) {
                continue;
            }
            occupancy.add(wish.offer, offer, *placement);
            places.push(*placement);
            let done = self.place(occupancy, rest, kind, places, dead);
            occupancy.remove(wish.offer, offer, *placement);
            if done {
                return true;
            }
            places.pop();
        }
        dead.insert(state);
        false
    }

    fn solution(&mut self, decisions: &[Decision], insides: &[Vec<Option<Inside>>]) -> Solution {
        let mut next = vec![0; self.classes.len()];
        let mut choices = Vec::with_capacity(decisions.len());
        for (at, decision) in decisions.iter().enumerate() {
            self.stay(at, *decision, true);
            choices.push(match decision {
                Decision::Goes => Choice::Goes,
                Decision::Stays => Choice::Stays,
                Decision::Serves(class) => {
                    let wish = self.classes[*class].wishes[next[*class]];
                    next[*class] += 1;
                    self.left[*class] -= 1;
                    let inside = insides[at][*class].clone();
                    inside.map_or(Choice::Stays, |inside| Choice::Serves { wish, inside })
                }
            });
        }
        let order = self.missing();
        let places = self.arrange(&mut self.occupancy.clone(), &order, true).unwrap_or_default();
        Solution { choices, created: order.into_iter().zip(places).collect() }
    }
}

/// Nearest layouts that an error names at most.
const MOST_NEAREST: usize = 3;
/// Parts of a wish that are looked at for an error at most. No wish that a person writes comes near.
const MOST_PARTS: usize = 4_000;

/// The largest parts of a wish that can be met beside what must stay, as indices of wishes; each set of like ones once.
pub(super) fn nearest(offers: &Offers, existing: &[&Existing], wishes: &[Wish<'_>], rest: Rest) -> Vec<Vec<usize>> {
    let staying: Vec<&Existing> = existing.iter().copied().filter(|existing| existing.stays()).collect();
    let classes = classes(wishes);
    // A part that can't be met can't be a part of one that can: grown from nothing, one wish at a time.
    let mut longest: Vec<Vec<usize>> = Vec::new();
    let mut open: Vec<Vec<usize>> = vec![Vec::new()];
    let mut looked = 0;
    while !open.is_empty() && looked < MOST_PARTS {
        let mut longer = Vec::new();
        for counts in &open {
            let last = counts.len().saturating_sub(1);
            for (class, alike) in classes.iter().enumerate().skip(last) {
                let mut counts = counts.clone();
                counts.resize(class + 1, 0);
                counts[class] += 1;
                let size: usize = counts.iter().sum();
                if counts[class] > alike.wishes.len() || size == wishes.len() {
                    continue;
                }
                looked += 1;
                let part: Vec<Wish<'_>> = members(&classes, &counts).into_iter().map(|at| wishes[at].clone()).collect();
                if smallest(offers, &staying, &part, rest, false).is_some() {
                    longer.push(counts);
                }
            }
        }
        open = longer;
        if !open.is_empty() {
            longest = open.iter().take(MOST_NEAREST).map(|counts| members(&classes, counts)).collect();
        }
    }
    longest
}

/// The first so many wishes of each class, in the order of the wish.
fn members(classes: &[Class], counts: &[usize]) -> Vec<usize> {
    let of = |(class, count): (&Class, &usize)| class.wishes[..*count].to_vec();
    let mut members: Vec<usize> = classes.iter().zip(counts).flat_map(of).collect();
    members.sort_unstable();
    members
}
