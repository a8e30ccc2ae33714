//! From what is on a GPU to a wanted layout: the fewest destroys and creates, every GPU instance with its place.
//!
//! Placement is ours and explicit, because the order of creation otherwise decides what still fits. What must stay (in
//! use, or somebody else's) serves a wish that it fits, and else stays beside the layout where it is not in the way.
//! Nothing is asked of a device here.

use std::fmt;

use crate::mig::compute::{self, Inside};
use crate::mig::layout::{Instance, Layout, Part, Place};
use crate::mig::offer::{NotOffered, Offers, Placed, Placement};
use crate::mig::profile::Profile;
use crate::mig::search::{self, Choice, Solution};

/// What is on a GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Found {
    /// Whether MIG is enabled.
    pub enabled: bool,
    /// Its GPU instances, half-made ones too.
    pub instances: Vec<Existing>,
}

/// A GPU instance that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Existing {
    /// The device's number for it: opaque, and used again after it is destroyed.
    pub id: u32,
    /// What and where it is.
    pub placed: Placed,
    /// Whether it is not ours to change: neither it nor anything in it changes.
    pub must_stay: bool,
    /// Its compute instances; none: it is half-made, and nothing can run on it.
    pub compute: Vec<ExistingCompute>,
}

/// A compute instance that exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExistingCompute {
    /// The device's number for it within its GPU instance.
    pub id: u32,
    /// Its compute slices.
    pub slices: u32,
    /// Where it lies, in compute slices of the GPU instance.
    pub placement: Placement,
    /// Whether it is in use: it and its GPU instance stay, others in that may go.
    pub must_stay: bool,
}

/// What happens to instances that the wish does not ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rest {
    /// They go, but for those that must stay: the layout is exactly as wished among what is ours to change. Beside nothing
    /// (`empty`) nothing may stay.
    Goes,
    /// They stay where they are not in the way: the layout has at least what is wished.
    Stays,
}

/// The GPU instance in which a compute instance is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Within {
    /// One that was there, by the device's number.
    Existing(u32),
    /// One that this change creates, by the index of its step.
    Created(usize),
}

/// One thing to do. What is destroyed is also described, to be told from another that has its number by now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Switch MIG on.
    EnableMig,
    /// Destroy a compute instance.
    DestroyCompute {
        /// The number of its GPU instance.
        gpu_instance: u32,
        /// Its number.
        id: u32,
        /// Its profile: `1c.3g.71gb` for a part.
        profile: Profile,
    },
    /// Destroy a GPU instance, which has no compute instances by then.
    DestroyGpuInstance {
        /// Its number.
        id: u32,
        /// What and where it is.
        placed: Placed,
    },
    /// Create a GPU instance.
    CreateGpuInstance(Placed),
    /// Create a compute instance.
    CreateCompute {
        /// In which GPU instance.
        within: Within,
        /// Its profile; [`Profile::compute_slices`] are what is looked for in the list of the GPU instance.
        profile: Profile,
        /// Its place in compute slices; none: it is all of its GPU instance, or nothing is known of places in it. Then
        /// [`compute::place`] knows when the GPU instance could be asked.
        placement: Option<Placement>,
    },
    /// Switch MIG off.
    DisableMig,
}

/// Where a wanted compute instance comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// It exists.
    Kept {
        /// The number of its GPU instance.
        gpu_instance: u32,
        /// Its number.
        id: u32,
    },
    /// The step of this index creates it.
    Created(usize),
}

/// What to do, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Destroys before creates; the MIG mode is enabled first and disabled last.
    pub steps: Vec<Step>,
    /// Where each wanted compute instance comes from, in the order of [`Layout::members`].
    pub members: Vec<Source>,
    /// What will be on the GPU then, as it would be found (see [`Layout::agrees_with`]).
    pub after: Layout,
    /// GPU instances that stay though the wish does not ask for them.
    pub beside: Vec<Placed>,
}

/// Why a wish can't be met.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// The device has no such profile.
    #[error(transparent)]
    NotOffered(#[from] NotOffered),
    /// The profile can't be there.
    #[error("a {profile} can't be at {}; its places on this GPU are {}", place_text(.place), places_text(.offered))]
    NoSuchPlace {
        /// The profile, as the device names it.
        profile: Profile,
        /// The place as it was written.
        place: Place,
        /// Where it can be.
        offered: Vec<Placement>,
    },
    /// A GPU instance can't be divided so.
    #[error("a {profile} can't hold {}; it offers {}", parts_text(.parts), offers_text(.offered))]
    Parts {
        /// The GPU instance, as the device names it.
        profile: Profile,
        /// The compute instances that it should hold.
        parts: Vec<Part>,
        /// Compute slices of each profile that it offers, with how many it can hold; empty: not known.
        offered: Vec<(u32, u32)>,
    },
    /// Not even an empty GPU can hold these instances.
    #[error("{wanted} does not fit on this GPU, even when it is empty; what fits of it: {}", listed(.nearest))]
    TooMuch {
        /// What was wanted, as the device names it.
        wanted: Layout,
        /// Parts of the wish that fit, as large as possible.
        nearest: Vec<Layout>,
    },
    /// Instances that must stay are in the way.
    #[error("{wanted} fits only where {} must stay; what fits beside it: {}", placed_list(.in_the_way), listed(.nearest))]
    InTheWay {
        /// What was wanted, as the device names it.
        wanted: Layout,
        /// A smallest set of instances that must stay but would have to go.
        in_the_way: Vec<Placed>,
        /// Parts of the wish that fit, as large as possible.
        nearest: Vec<Layout>,
    },
    /// Nothing is to be there, and something must stay.
    #[error("the GPU can't be empty while {} must stay", placed_list(.in_the_way))]
    NotEmpty {
        /// Instances that must stay.
        in_the_way: Vec<Placed>,
    },
    /// MIG can't be switched off.
    #[error("MIG can't be disabled while {} must stay", placed_list(.in_the_way))]
    NotOff {
        /// Instances that must stay.
        in_the_way: Vec<Placed>,
    },
}

fn listed(layouts: &[Layout]) -> String {
    match layouts {
        [] => "nothing".to_owned(),
        _ => joined(layouts, " or "),
    }
}

fn joined<T: ToString>(items: &[T], by: &str) -> String {
    items.iter().map(T::to_string).collect::<Vec<_>>().join(by)
}

fn placed_list(placed: &[Placed]) -> String {
    joined(placed, ", ")
}

fn place_text(place: &Place) -> String {
    place.to_string()
}

fn places_text(placements: &[Placement]) -> String {
    let places: Vec<String> = placements.iter().map(|place| format!("@{}:{}", place.start, place.size)).collect();
    places.join(", ")
}

fn parts_text(parts: &[Part]) -> String {
    joined(parts, "+")
}

fn offers_text(offered: &[(u32, u32)]) -> String {
    match offered {
        [] => "not so many compute slices".to_owned(),
        _ => offered.iter().map(|(slices, most)| format!("{slices}c (at most {most})")).collect::<Vec<_>>().join(", "),
    }
}

impl Found {
    /// What is there as a layout, with every place; instances in the order of their places.
    #[must_use]
    pub fn layout(&self) -> Layout {
        if !self.enabled {
            return Layout::Off;
        }
        let part = |compute: &ExistingCompute| (compute.slices, Some(compute.placement));
        let of = |existing: &Existing| described(&existing.placed, existing.compute.iter().map(part).collect());
        let mut instances: Vec<Instance> = self.instances.iter().map(of).collect();
        instances.sort_by_key(|instance| instance.place.map(|place| place.start));
        Layout::On(instances)
    }
}

impl Existing {
    /// Whether it must stay, for its own or for a compute instance's sake.
    #[must_use]
    pub fn stays(&self) -> bool {
        self.must_stay || self.compute.iter().any(|compute| compute.must_stay)
    }

    /// The profile of one of its compute instances: `1c.3g.71gb` for a part.
    fn compute_profile(&self, slices: u32) -> Profile {
        self.placed.profile.part(slices).unwrap_or_else(|| self.placed.profile.clone())
    }
}

/// An instance as it is found: a compute instance that is the whole needs no place.
fn described(placed: &Placed, mut parts: Vec<(u32, Option<Placement>)>) -> Instance {
    parts.sort_by_key(|(slices, placement)| (placement.map(|placement| placement.start), *slices));
    let whole = placed.profile.slices();
    let part = |(slices, placement): (u32, Option<Placement>)| Part {
        slices,
        place: placement.filter(|_| slices != whole).map(Place::from),
    };
    Instance {
        profile: placed.profile.clone(),
        place: Some(placed.placement.into()),
        compute: parts.into_iter().map(part).collect(),
    }
}

impl From<Placement> for Place {
    fn from(placement: Placement) -> Self {
        Self { start: placement.start, size: Some(placement.size) }
    }
}

impl Change {
    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }
}

impl fmt::Display for Step {
    /// For an administrator and the audit line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EnableMig => f.write_str("enable MIG"),
            Self::DisableMig => f.write_str("disable MIG"),
            Self::DestroyCompute { gpu_instance, id, profile } => {
                write!(f, "destroy compute instance {profile} (number {id} in GPU instance {gpu_instance})")
            }
            Self::DestroyGpuInstance { id, placed } => write!(f, "destroy GPU instance {placed} (number {id})"),
            Self::CreateGpuInstance(placed) => write!(f, "create GPU instance {placed}"),
            Self::CreateCompute { within, profile, placement } => {
                write!(f, "create compute instance {profile}")?;
                if let Some(Placement { start, size }) = placement {
                    write!(f, "@{start}:{size}")?;
                }
                match within {
                    Within::Existing(id) => write!(f, " in GPU instance {id}"),
                    Within::Created(_) => f.write_str(" in it"),
                }
            }
        }
    }
}

/// A wanted GPU instance, resolved on the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wish<'a> {
    /// Index of its offer.
    pub offer: usize,
    /// Its place, if it is said.
    pub placement: Option<Placement>,
    /// Its compute instances.
    pub parts: &'a [Part],
}

fn wish<'a>(offers: &Offers, instance: &'a Instance) -> Result<Wish<'a>, ChangeError> {
    let offer = offers.named(&instance.profile)?;
    let profile = offer.profile.clone();
    let is_at = |placement: &&Placement, place: Place| {
        placement.start == place.start && place.size.is_none_or(|size| size == placement.size)
    };
    let placement = match instance.place {
        None => None,
        Some(place) => match offer.placements.iter().find(|placement| is_at(placement, place)) {
            Some(placement) => Some(*placement),
            None => return Err(ChangeError::NoSuchPlace { profile, place, offered: offer.placements.clone() }),
        },
    };
    if compute::place(&offer.compute, profile.slices(), &instance.compute).is_none() {
        let offered = offer.compute.iter().map(|offer| (offer.slices, offer.most)).collect();
        return Err(ChangeError::Parts { profile, parts: instance.compute.clone(), offered });
    }
    let at = offers.as_slice().iter().position(|known| known == offer).unwrap_or_default();
    Ok(Wish { offer: at, placement, parts: &instance.compute })
}

/// A layout as the device names it: with sizes, and with its places where they are said.
///
/// # Errors
/// If the device has no such profile or place, or can't divide an instance so.
pub fn resolve(offers: &Offers, wanted: &Layout) -> Result<Layout, ChangeError> {
    let Layout::On(instances) = wanted else { return Ok(Layout::Off) };
    let wishes = instances.iter().map(|instance| wish(offers, instance)).collect::<Result<Vec<_>, _>>()?;
    Ok(names(offers, &wishes))
}

fn names(offers: &Offers, wishes: &[Wish<'_>]) -> Layout {
    let name = |wish: &Wish<'_>| Instance {
        profile: offers.as_slice()[wish.offer].profile.clone(),
        place: wish.placement.map(Place::from),
        compute: wish.parts.to_vec(),
    };
    Layout::On(wishes.iter().map(name).collect())
}

/// The smallest change after which a GPU has a layout.
///
/// # Errors
/// If the device has no such profile or place, or what is wanted can't exist, at all or beside what must stay.
pub fn reach(offers: &Offers, found: &Found, wanted: &Layout, rest: Rest) -> Result<Change, ChangeError> {
    let Layout::On(instances) = wanted else { return off(found) };
    let wishes = instances.iter().map(|instance| wish(offers, instance)).collect::<Result<Vec<_>, _>>()?;
    if instances.is_empty() && rest == Rest::Goes && found.instances.iter().any(Existing::stays) {
        return Err(ChangeError::NotEmpty { in_the_way: staying(found) });
    }
    let existing: Vec<&Existing> = found.instances.iter().collect();
    match search::smallest(offers, &existing, &wishes, rest, false) {
        Some(solution) => Ok(change(offers, found, &wishes, solution)),
        None => Err(refusal(offers, &existing, &wishes, rest)),
    }
}

/// As [`reach`], where what must stay may be replaced too: only instances that are in the way go, as few as possible. The
/// caller has made sure that nobody uses them.
///
/// # Errors
/// If the device has no such profile or place, or what is wanted can't exist at all.
pub fn replace(offers: &Offers, found: &Found, wanted: &Layout, rest: Rest) -> Result<Change, ChangeError> {
    let mut found = found.clone();
    loop {
        match reach(offers, &found, wanted, rest) {
            Err(
                ChangeError::InTheWay { in_the_way, .. }
                | ChangeError::NotEmpty { in_the_way }
                | ChangeError::NotOff { in_the_way },
            ) if !in_the_way.is_empty() => {
                for existing in found.instances.iter_mut().filter(|one| in_the_way.contains(&one.placed)) {
                    existing.must_stay = false;
                    existing.compute.iter_mut().for_each(|compute| compute.must_stay = false);
                }
            }
            answer => return answer,
        }
    }
}

fn refusal(offers: &Offers, existing: &[&Existing], wishes: &[Wish<'_>], rest: Rest) -> ChangeError {
    let part = |part: Vec<usize>| {
        let wishes: Vec<Wish<'_>> = part.into_iter().map(|at| wishes[at].clone()).collect();
        names(offers, &wishes)
    };
    let nearest = search::nearest(offers, existing, wishes, rest).into_iter().map(part).collect();
    let wanted = names(offers, wishes);
    match search::smallest(offers, existing, wishes, rest, true) {
        None => ChangeError::TooMuch { wanted, nearest },
        Some(solution) => {
            let gone = existing.iter().zip(&solution.choices);
            let in_the_way = gone.filter(|(existing, choice)| existing.stays() && **choice == Choice::Goes);
            let in_the_way = in_the_way.map(|(existing, _)| existing.placed.clone()).collect();
            ChangeError::InTheWay { wanted, in_the_way, nearest }
        }
    }
}

fn staying(found: &Found) -> Vec<Placed> {
    found.instances.iter().filter(|existing| existing.stays()).map(|existing| existing.placed.clone()).collect()
}

fn off(found: &Found) -> Result<Change, ChangeError> {
    let in_the_way = staying(found);
    if found.enabled && !in_the_way.is_empty() {
        return Err(ChangeError::NotOff { in_the_way });
    }
    let mut steps: Vec<Step> = Vec::new();
    if found.enabled {
        found.instances.iter().for_each(|existing| destroy(&mut steps, existing));
        steps.push(Step::DisableMig);
    }
    Ok(Change { steps, members: Vec::new(), after: Layout::Off, beside: Vec::new() })
}

pub(super) fn destroy(steps: &mut Vec<Step>, existing: &Existing) {
    for at in 0..existing.compute.len() {
        destroy_compute(steps, existing, at);
    }
    steps.push(Step::DestroyGpuInstance { id: existing.id, placed: existing.placed.clone() });
}

fn destroy_compute(steps: &mut Vec<Step>, existing: &Existing, at: usize) {
    let ExistingCompute { id, slices, .. } = existing.compute[at];
    steps.push(Step::DestroyCompute { gpu_instance: existing.id, id, profile: existing.compute_profile(slices) });
}

/// The steps of a solution, and what is there then.
fn change(offers: &Offers, found: &Found, wishes: &[Wish<'_>], solution: Solution) -> Change {
    let Solution { choices, created } = solution;
    let mut steps: Vec<Step> = if found.enabled { Vec::new() } else { vec![Step::EnableMig] };
    let mut sources: Vec<Vec<Source>> = vec![Vec::new(); wishes.len()];
    let (mut after, mut beside) = (Vec::new(), Vec::new());
    for (existing, choice) in found.instances.iter().zip(&choices) {
        match choice {
            Choice::Goes => destroy(&mut steps, existing),
            Choice::Stays => {
                let there = existing.compute.iter().map(|compute| (compute.slices, Some(compute.placement)));
                after.push(described(&existing.placed, there.collect()));
                beside.push(existing.placed.clone());
            }
            Choice::Serves { inside, .. } => {
                inside.destroy.iter().for_each(|at| destroy_compute(&mut steps, existing, *at));
            }
        }
    }
    for (existing, choice) in found.instances.iter().zip(&choices) {
        if let Choice::Serves { wish, inside } = choice {
            let stay = (0..existing.compute.len()).filter(|at| !inside.destroy.contains(at));
            let stay = stay.map(|at| (existing.compute[at].slices, Some(existing.compute[at].placement)));
            let within = Within::Existing(existing.id);
            let parts = wishes[*wish].parts;
            let created = create(&mut steps, within, &existing.placed.profile, parts, inside);
            after.push(described(&existing.placed, stay.chain(new_parts(parts, inside)).collect()));
            let source = |(served, created): (&Option<usize>, Option<usize>)| match (served, created) {
                (Some(at), _) => Some(Source::Kept { gpu_instance: existing.id, id: existing.compute[*at].id }),
                (None, created) => created.map(Source::Created),
            };
            sources[*wish] = inside.served.iter().zip(created).filter_map(source).collect();
        }
    }
    for (wish, placement) in created {
        let offer = &offers.as_slice()[wishes[wish].offer];
        let placed = Placed { placement, profile: offer.profile.clone() };
        let within = Within::Created(steps.len());
        steps.push(Step::CreateGpuInstance(placed.clone()));
        let parts = wishes[wish].parts;
        let inside = Inside::new(&offer.compute, offer.profile.slices(), parts);
        let created = create(&mut steps, within, &offer.profile, parts, &inside);
        after.push(described(&placed, new_parts(parts, &inside).collect()));
        sources[wish] = created.into_iter().flatten().map(Source::Created).collect();
    }
    after.sort_by_key(|instance| instance.place.map(|place| place.start));
    Change { steps, members: sources.concat(), after: Layout::On(after), beside }
}

/// Parts that nothing serves, with their places.
fn new_parts<'a>(parts: &'a [Part], inside: &'a Inside) -> impl Iterator<Item = (u32, Option<Placement>)> + 'a {
    let is_new = |at: &usize| inside.served[*at].is_none();
    (0..parts.len()).filter(is_new).map(|at| (parts[at].slices, inside.places[at]))
}

/// Steps for the parts that nothing serves, large ones first, as they have the fewest places where the device chooses.
/// Returns the step of each part.
fn create(
    steps: &mut Vec<Step>,
    within: Within,
    profile: &Profile,
    parts: &[Part],
    inside: &Inside,
) -> Vec<Option<usize>> {
    let mut order: Vec<usize> = (0..parts.len()).filter(|at| inside.served[*at].is_none()).collect();
    order.sort_by_key(|at| std::cmp::Reverse(parts[*at].slices));
    let mut created = vec![None; parts.len()];
    for at in order {
        created[at] = Some(steps.len());
        let profile = profile.part(parts[at].slices).unwrap_or_else(|| profile.clone());
        steps.push(Step::CreateCompute { within, profile, placement: inside.places[at] });
    }
    created
}
