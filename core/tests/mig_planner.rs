//! The planner against published facts about real devices: creation traces, capacities, numbers of layouts; and against
//! exhaustive search.

use std::collections::{BTreeMap, BTreeSet};

use migperf_core::mig::offer::{Engines, Offer, Offers, Placed, Placement};
use migperf_core::mig::planner::{Change, Existing, Source, reach, restore};
use migperf_core::mig::profile::{Profile, ProfileList};
use proptest::prelude::*;
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Facts {
    golden_traces: Vec<Trace>,
    golden_remaining_capacity: Capacity,
    gpus: BTreeMap<String, Gpu>,
}

#[derive(Deserialize)]
struct Trace {
    gpu: String,
    create: Vec<Profile>,
    expect: Vec<String>,
}

#[derive(Deserialize)]
struct Capacity {
    gpu: String,
    steps: Vec<CapacityStep>,
}

#[derive(Deserialize)]
struct CapacityStep {
    after: Option<(Profile, u32)>,
    remaining: BTreeMap<Profile, usize>,
}

#[derive(Deserialize)]
struct Gpu {
    pool: Engines,
    layouts: BTreeMap<String, [usize; 4]>,
    profiles: Vec<ProfileFacts>,
}

#[derive(Deserialize)]
struct ProfileFacts {
    name: Profile,
    most: u32,
    starts: Vec<u32>,
    size: u32,
    engines: Engines,
}

fn facts() -> Facts {
    serde_json::from_str(include_str!("data/mig_offers.json")).unwrap()
}

fn offers(gpu: &Gpu) -> Offers {
    let offer = |facts: &ProfileFacts| Offer {
        profile: facts.name.clone(),
        most: facts.most,
        placements: facts.starts.iter().map(|start| Placement { start: *start, size: facts.size }).collect(),
        engines: facts.engines,
    };
    Offers::new(gpu.profiles.iter().map(offer).collect())
}

fn device(name: &str) -> Offers {
    offers(&facts().gpus[name])
}

fn placed(offers: &Offers, profile: &Profile, start: u32) -> Placed {
    let offer = offers.named(profile).unwrap();
    let placement = *offer.placements.iter().find(|placement| placement.start == start).unwrap();
    Placed { placement, profile: offer.profile.clone() }
}

#[test]
fn the_largest_profile_has_all_engines() {
    for (name, gpu) in facts().gpus {
        assert_eq!(offers(&gpu).pool(), gpu.pool, "{name}");
    }
}

#[test]
fn published_creations_lie_where_we_would_have_chosen() {
    for trace in facts().golden_traces {
        let offers = device(&trace.gpu);
        let mut there: Vec<Placed> = Vec::new();
        for (profile, expected) in trace.create.iter().zip(&trace.expect) {
            match offers.places(&there, offers.named(profile).unwrap()).into_iter().next() {
                None => assert_eq!(expected, "INSUFFICIENT_RESOURCES"),
                Some(chosen) => {
                    let Placement { start, size } = chosen.placement;
                    assert!(expected.starts_with(&format!("{start}:{size}#")), "{} {chosen} {expected}", trace.gpu);
                    there.push(chosen);
                }
            }
        }
    }
}

/// How many instances of a profile can still be created, one after the other.
fn remaining(offers: &Offers, there: &[Placed], profile: &Profile) -> usize {
    let mut there = there.to_vec();
    let offer = offers.named(profile).unwrap();
    let mut count = 0;
    while let Some(chosen) = offers.places(&there, offer).into_iter().next() {
        there.push(chosen);
        count += 1;
    }
    count
}

#[test]
fn published_capacities_remain() {
    let capacity = facts().golden_remaining_capacity;
    let offers = device(&capacity.gpu);
    let mut there: Vec<Placed> = Vec::new();
    for step in capacity.steps {
        there.extend(step.after.map(|(profile, start)| placed(&offers, &profile, start)));
        for (profile, expected) in step.remaining {
            assert_eq!(remaining(&offers, &there, &profile), expected, "{profile} beside {there:?}");
        }
    }
}

/// Every set of instances that can exist together, of profiles that `wanted` accepts, the empty one included.
fn states(offers: &Offers, wanted: impl Fn(&Offer) -> bool) -> BTreeSet<Vec<Placed>> {
    let candidates: Vec<Placed> = offers
        .as_slice()
        .iter()
        .filter(|offer| wanted(offer))
        .flat_map(|offer| {
            offer.placements.iter().map(|placement| Placed { placement: *placement, profile: offer.profile.clone() })
        })
        .collect();
    let mut states = BTreeSet::new();
    let mut open = vec![Vec::new()];
    while let Some(state) = open.pop() {
        for candidate in &candidates {
            let later = state.last().is_none_or(|last| last < candidate);
            if later && offers.allows_also(&state, candidate) {
                let mut longer = state.clone();
                longer.push(candidate.clone());
                open.push(longer);
            }
        }
        states.insert(state);
    }
    states
}

fn is_base(offers: &Offers, offer: &Offer) -> bool {
    let portable: Profile = format!("{}g", offer.profile.slices()).parse().unwrap();
    offers.named(&portable).is_ok_and(|base| base.profile == offer.profile)
}

fn is_plain(offer: &Offer) -> bool {
    !offer.profile.to_string().contains(['+', '-'])
}

fn profiles(state: &[Placed]) -> Vec<Profile> {
    let mut profiles: Vec<Profile> = state.iter().map(|placed| placed.profile.clone()).collect();
    profiles.sort();
    profiles
}

/// Layouts but for the empty one, sets of profiles, layouts to which nothing of the same kind can be added, and sets of profiles of those.
fn counts(offers: &Offers, wanted: impl Fn(&Offer) -> bool) -> [usize; 4] {
    let mut states = states(offers, &wanted);
    states.remove(&Vec::new());
    let full = |state: &&Vec<Placed>| {
        let places = |offer: &Offer| offers.places(state, offer).is_empty();
        offers.as_slice().iter().filter(|offer| wanted(offer)).all(places)
    };
    let maximal: Vec<&Vec<Placed>> = states.iter().filter(full).collect();
    let kinds = |states: &mut dyn Iterator<Item = &Vec<Placed>>| {
        states.map(|state| profiles(state)).collect::<BTreeSet<_>>().len()
    };
    [states.len(), kinds(&mut states.iter()), maximal.len(), kinds(&mut maximal.iter().copied())]
}

#[test]
fn devices_have_as_many_layouts_as_published() {
    for (name, gpu) in facts().gpus {
        let offers = offers(&gpu);
        assert_eq!(counts(&offers, |offer| is_base(&offers, offer)), gpu.layouts["base"], "{name}");
        assert_eq!(counts(&offers, is_plain), gpu.layouts["base_plus_double_mem"], "{name}");
    }
    let all = facts();
    for name in ["A100-40", "A30-24", "RTXPRO6000-96"] {
        assert_eq!(counts(&offers(&all.gpus[name]), |_| true), all.gpus[name].layouts["all_variants"], "{name}");
    }
}

fn existing(state: &[Placed], must_stay: impl Fn(usize) -> bool) -> Vec<Existing> {
    let one = |(at, placed): (usize, &Placed)| Existing {
        id: 10 + u32::try_from(at).unwrap(),
        placed: placed.clone(),
        must_stay: must_stay(at),
    };
    state.iter().enumerate().map(one).collect()
}

fn list(profiles: &[Profile]) -> ProfileList {
    profiles.iter().map(Profile::to_string).collect::<Vec<_>>().join("+").parse().unwrap()
}

/// Carries a change out, asking for each step whether the device would allow it; returns what is there then.
fn carry_out(offers: &Offers, existing: &[Existing], change: &Change) -> Vec<Placed> {
    let mut there: Vec<Placed> = Vec::new();
    for instance in existing {
        if change.destroy.contains(&instance.id) {
            assert!(!instance.must_stay, "{} must stay", instance.placed);
        } else {
            there.push(instance.placed.clone());
        }
    }
    for placed in &change.create {
        assert!(offers.allows_also(&there, placed), "{placed} beside {there:?}");
        there.push(placed.clone());
    }
    there
}

fn check_sources(existing: &[Existing], wanted: &ProfileList, change: &Change) {
    let mut used = BTreeSet::new();
    for (profile, source) in wanted.as_slice().iter().zip(&change.sources) {
        let (place, found) = match source {
            Source::Kept(id) => {
                assert!(!change.destroy.contains(id));
                let kept = existing.iter().find(|instance| instance.id == *id).unwrap();
                (format!("kept {id}"), kept.placed.profile.clone())
            }
            Source::Created(at) => (format!("created {at}"), change.create[*at].profile.clone()),
        };
        assert!(profile.matches(&found), "{profile} is served by {found}");
        assert!(used.insert(place), "an instance serves one wish");
    }
    assert_eq!(change.sources.len(), wanted.as_slice().len());
}

fn check(gpu: &str, there: &[(&str, u32, bool)], wanted: &str, expected: Result<(&[u32], &[&str]), &str>) {
    let offers = device(gpu);
    let state: Vec<Placed> =
        there.iter().map(|(profile, start, _)| placed(&offers, &profile.parse().unwrap(), *start)).collect();
    assert!(offers.allows(&state), "the test itself is wrong");
    let existing = existing(&state, |at| there[at].2);
    let wanted: ProfileList = wanted.parse().unwrap();
    let answer = reach(&offers, &existing, &wanted).map_err(|error| error.to_string());
    if let Ok(change) = &answer {
        carry_out(&offers, &existing, change);
        check_sources(&existing, &wanted, change);
    }
    let answer = answer.map(|change| (change.destroy, change.create.iter().map(Placed::to_string).collect::<Vec<_>>()));
    let expected = expected
        .map(|(destroy, create)| (destroy.to_vec(), create.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>()))
        .map_err(str::to_owned);
    assert_eq!(answer, expected, "{there:?} -> {wanted}");
}

#[test]
fn what_fits_is_kept_and_what_is_in_the_way_goes() {
    check("H200-141", &[], "1g", Ok((&[], &["1g.18gb@6:1"])));
    check("H200-141", &[("1g", 0, false)], "1g", Ok((&[], &[])));
    check("H200-141", &[("1g", 0, false), ("3g", 4, false)], "3g+2x1g", Ok((&[], &["1g.18gb@1:1"])));
    check("H200-141", &[("7g", 0, false)], "3g+1g", Ok((&[10], &["3g.71gb@4:4", "1g.18gb@0:1"])));
    // One in the middle blocks the only place of a 4g; the one at the end may stay.
    check("H200-141", &[("1g", 2, false), ("1g", 6, false)], "4g", Ok((&[10], &["4g.71gb@0:4"])));
    // A wish for what was destroyed for another wish is met elsewhere.
    check("A100-40", &[("1g", 0, false)], "4g+1g", Ok((&[10], &["4g.20gb@0:4", "1g.5gb@6:1"])));
    // After two 2g the driver's own choice would leave no room for a 3g; ours does.
    check("A100-40", &[], "2x2g+3g", Ok((&[], &["3g.20gb@4:4", "2g.10gb@0:2", "2g.10gb@2:2"])));
    // The double-memory profile is named by its size.
    check("H200-141", &[("1g", 6, false)], "1g.35gb", Ok((&[], &["1g.35gb@4:2"])));
}

#[test]
fn what_can_t_be_done_names_the_conflict_and_what_can() {
    check(
        "H200-141",
        &[],
        "8x1g",
        Err("8x1g.18gb does not fit on this GPU, even when it is empty; what fits of it: 7x1g.18gb"),
    );
    check(
        "H200-141",
        &[],
        "4g+3g+1g",
        Err("4g.71gb+3g.71gb+1g.18gb does not fit on this GPU, even when it is empty; what fits of it: \
             3g.71gb+1g.18gb or 4g.71gb+1g.18gb or 4g.71gb+3g.71gb"),
    );
    check(
        "H200-141",
        &[("1g", 2, true)],
        "4g+1g",
        Err("4g.71gb+1g.18gb fits only where 1g.18gb@2:1 must stay; what fits beside it: 1g.18gb"),
    );
    check(
        "H200-141",
        &[("3g", 0, true), ("3g", 4, true)],
        "1g",
        Err("1g.18gb fits only where 3g.71gb@0:4 must stay; what fits beside it: nothing"),
    );
    check(
        "A30-24",
        &[],
        "3g",
        Err("this GPU has no profile 3g; it offers 1g.6gb, 1g.6gb+me, 2g.12gb, 2g.12gb+me, 4g.24gb"),
    );
    check(
        "A30-24",
        &[],
        "1c.2g",
        Err("1c.2g is a part of a GPU instance; only whole GPU instances can be created here"),
    );
}

#[test]
fn impossible_wishes_are_refused_at_once() {
    let offers = device("H200-141");
    let started = std::time::Instant::now();
    for wanted in ["48x1g", "7x1g+7x1g.35gb+7x2g+7x3g+7x4g+7x7g", "2x7g", "40x1g.18gb+me"] {
        let state: Vec<Placed> = (0..7).map(|start| placed(&offers, &"1g".parse().unwrap(), start)).collect();
        assert!(reach(&offers, &existing(&state, |_| false), &wanted.parse().unwrap()).is_err());
    }
    assert!(started.elapsed() < std::time::Duration::from_secs(20), "{:?}", started.elapsed());
}

#[test]
#[ignore = "measures time: cargo test --release -p migperf-core --test mig_planner -- --ignored"]
fn the_slowest_change_is_planned_within_a_millisecond() {
    for (name, gpu) in facts().gpus {
        let offers = offers(&gpu);
        let all = states(&offers, is_plain);
        let wishes: BTreeSet<Vec<Profile>> =
            all.iter().map(|state| profiles(state)).filter(|wish| !wish.is_empty()).collect();
        let mut slowest = (std::time::Duration::ZERO, String::new());
        for from in all.iter().step_by(3) {
            let existing = existing(from, |_| false);
            for wish in &wishes {
                let wanted = list(wish);
                // The quickest of three: what the planner takes, not what the machine does beside it.
                let times = [(); 3].map(|()| {
                    let started = std::time::Instant::now();
                    reach(&offers, &existing, &wanted).unwrap();
                    started.elapsed()
                });
                let quickest = times.into_iter().min().unwrap();
                if quickest > slowest.0 {
                    slowest = (quickest, format!("{from:?} -> {wanted}"));
                }
            }
        }
        assert!(slowest.0 < std::time::Duration::from_millis(1), "{name}: {slowest:?}");
    }
}

/// The fewest steps by looking at every layout.
fn fewest(all: &BTreeSet<Vec<Placed>>, from: &[Placed], wanted: &[Profile]) -> Option<usize> {
    let holds = |state: &&Vec<Placed>| {
        let mut rest = profiles(state);
        wanted.iter().all(|profile| rest.iter().position(|there| there == profile).map(|at| rest.remove(at)).is_some())
    };
    let steps = |state: &Vec<Placed>| {
        let gone = from.iter().filter(|placed| !state.contains(placed)).count();
        gone + state.iter().filter(|placed| !from.contains(placed)).count()
    };
    all.iter().filter(holds).map(steps).min()
}

#[test]
fn every_layout_is_reached_from_every_other_in_the_fewest_steps() {
    for (name, gpu) in facts().gpus {
        let offers = offers(&gpu);
        let all = states(&offers, |offer| is_base(&offers, offer));
        let wishes: BTreeSet<Vec<Profile>> =
            all.iter().map(|state| profiles(state)).filter(|wish| !wish.is_empty()).collect();
        // Devices of one shape have the same layouts under other names: one of them is looked at more closely.
        let stride = match name.as_str() {
            "H200-141" => 5,
            _ if gpu.layouts["base"][0] < 100 => 1,
            _ => 37,
        };
        for (at, from) in all.iter().enumerate() {
            for wish in wishes.iter().skip(at % stride).step_by(stride) {
                let existing = existing(from, |_| false);
                let change = reach(&offers, &existing, &list(wish)).unwrap();
                let after = carry_out(&offers, &existing, &change);
                check_sources(&existing, &list(wish), &change);
                let steps = change.destroy.len() + change.create.len();
                assert_eq!(Some(steps), fewest(&all, from, wish), "{name}: {from:?} -> {wish:?}");
                let mut back: Vec<Existing> = existing.clone();
                for (placed, id) in after.iter().zip(50..) {
                    if !back.iter().any(|instance| instance.placed == *placed) {
                        back.push(Existing { id, placed: placed.clone(), must_stay: false });
                    }
                }
                back.retain(|instance| after.contains(&instance.placed));
                let (destroy, create) = restore(&back, from);
                let change = Change { destroy, create, sources: Vec::new() };
                let mut restored = carry_out(&offers, &back, &change);
                restored.sort();
                let mut original = from.clone();
                original.sort();
                assert_eq!(restored, original);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any profiles of any device, from any layout, with some instances that must stay: a change is legal and leaves
    /// them, a refusal is right.
    #[test]
    fn changes_are_legal_and_refusals_are_right(
        gpu in any::<prop::sample::Index>(),
        from in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<bool>()), 0..6),
        wish in prop::collection::vec(any::<prop::sample::Index>(), 1..5),
    ) {
        let all = facts().gpus;
        let offers = offers(all.values().nth(gpu.index(all.len())).unwrap());
        let mut there: Vec<Existing> = Vec::new();
        for (profile, place, must_stay) in from {
            let state: Vec<Placed> = there.iter().map(|instance| instance.placed.clone()).collect();
            let places = offers.places(&state, profile.get(offers.as_slice()));
            if !places.is_empty() {
                let id = u32::try_from(there.len()).unwrap();
                there.push(Existing { id, placed: place.get(&places).clone(), must_stay });
            }
        }
        let wished: Vec<Profile> = wish.iter().map(|at| at.get(offers.as_slice()).profile.clone()).collect();
        let wanted = list(&wished);
        match reach(&offers, &there, &wanted) {
            Ok(change) => {
                carry_out(&offers, &there, &change);
                check_sources(&there, &wanted, &change);
            }
            Err(_) => {
                // Whatever is left when all that may go is gone can't hold the wish, in any order or place.
                let staying: Vec<Placed> =
                    there.iter().filter(|instance| instance.must_stay).map(|instance| instance.placed.clone()).collect();
                prop_assert!(!fits_somehow(&offers, &staying, &wished));
            }
        }
    }
}

/// Whether there is any place for all of the wishes, kept instances that must stay included.
fn fits_somehow(offers: &Offers, there: &[Placed], wished: &[Profile]) -> bool {
    let mut rest = wished.to_vec();
    for placed in there {
        if let Some(at) = rest.iter().position(|profile| *profile == placed.profile) {
            rest.remove(at);
        }
    }
    fn place(offers: &Offers, there: &mut Vec<Placed>, rest: &[Profile]) -> bool {
        let Some((first, others)) = rest.split_first() else { return true };
        let offer = offers.named(first).unwrap();
        offer.placements.iter().any(|placement| {
            let placed = Placed { placement: *placement, profile: offer.profile.clone() };
            if !offers.allows_also(there, &placed) {
                return false;
            }
            there.push(placed);
            let fits = place(offers, there, others);
            there.pop();
            fits
        })
    }
    place(offers, &mut there.to_vec(), &rest)
}
