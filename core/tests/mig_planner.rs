//! The planner against published facts about real devices: creation traces, capacities, numbers of layouts; and against
//! exhaustive search.

use std::collections::{BTreeMap, BTreeSet};

use migperf_core::mig::compute::ComputeOffer;
use migperf_core::mig::layout::Layout;
use migperf_core::mig::offer::{Engines, Offer, Offers, Placed, Placement};
use migperf_core::mig::planner::{
    Change, Existing, ExistingCompute, Found, Rest, Source, Step, Within, reach, replace, resolve,
};
use migperf_core::mig::profile::Profile;
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

/// What a GPU instance of so many slices offers, as devices list it.
fn compute_offers(whole: u32) -> Vec<ComputeOffer> {
    let offer = |(slices, step): (u32, usize)| {
        let starts = (0..whole).step_by(step).filter(|start| start + slices <= whole);
        let placements: Vec<Placement> = starts.map(|start| Placement { start, size: slices }).collect();
        ComputeOffer { slices, most: u32::try_from(placements.len()).unwrap(), placements }
    };
    let is_offered = |(slices, _): &(u32, usize)| *slices <= whole && (*slices, whole) != (3, 4);
    [(1, 1), (2, 2), (3, 4), (4, 8), (7, 8)].into_iter().filter(is_offered).map(offer).collect()
}

fn offers(gpu: &Gpu) -> Offers {
    let offer = |facts: &ProfileFacts| Offer {
        profile: facts.name.clone(),
        most: facts.most,
        placements: facts.starts.iter().map(|start| Placement { start: *start, size: facts.size }).collect(),
        engines: facts.engines,
        compute: compute_offers(facts.name.slices()),
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

/// A GPU instance with one compute instance of all its slices.
fn whole(id: u32, placed: &Placed, must_stay: bool) -> Existing {
    let slices = placed.profile.slices();
    let compute =
        vec![ExistingCompute { id: 0, slices, placement: Placement { start: 0, size: slices }, must_stay: false }];
    Existing { id, placed: placed.clone(), must_stay, compute }
}

fn found(state: &[Placed], must_stay: impl Fn(usize) -> bool) -> Found {
    let instances = (10..).zip(state).enumerate().map(|(at, (id, placed))| whole(id, placed, must_stay(at))).collect();
    Found { enabled: true, instances }
}

fn layout(profiles: &[Profile]) -> Layout {
    let text: Vec<String> = profiles.iter().map(Profile::to_string).collect();
    if text.is_empty() { Layout::empty() } else { text.join("+").parse().unwrap() }
}

fn overlap(a: Placement, b: Placement) -> bool {
    a.start < b.start + b.size && b.start < a.start + a.size
}

/// Carries a change out as a device would, asking for each step whether it would be allowed; returns what is there then
/// and, for each step, the compute instance that it made: ids of its GPU instance and of itself.
fn carry_out(offers: &Offers, found: &Found, change: &Change) -> (Found, Vec<Option<(u32, u32)>>) {
    let mut now = found.clone();
    let mut made: Vec<Option<(u32, u32)>> = Vec::new();
    let mut fresh = 100;
    let mut of_step: BTreeMap<usize, u32> = BTreeMap::new();
    for (number, step) in change.steps.iter().enumerate() {
        let at = |now: &Found, id: u32| now.instances.iter().position(|existing| existing.id == id).unwrap();
        made.push(None);
        match step {
            Step::EnableMig => {
                assert!(!now.enabled && number == 0);
                now.enabled = true;
            }
            Step::DisableMig => {
                assert!(now.enabled && now.instances.is_empty() && number + 1 == change.steps.len());
                now.enabled = false;
            }
            Step::DestroyCompute { gpu_instance, id, profile } => {
                let instance = at(&now, *gpu_instance);
                let instance = &mut now.instances[instance];
                let compute = instance.compute.iter().position(|compute| compute.id == *id).unwrap();
                let gone = instance.compute.remove(compute);
                assert!(!instance.must_stay && !gone.must_stay, "{step}");
                assert_eq!(gone.slices, profile.compute_slices());
            }
            Step::DestroyGpuInstance { id, placed } => {
                let instance = at(&now, *id);
                let gone = now.instances.remove(instance);
                assert!(!gone.must_stay && gone.compute.is_empty(), "{step}");
                assert_eq!(gone.placed, *placed);
            }
            Step::CreateGpuInstance(placed) => {
                let there: Vec<Placed> = now.instances.iter().map(|existing| existing.placed.clone()).collect();
                assert!(now.enabled && offers.allows_also(&there, placed), "{placed} beside {there:?}");
                fresh += 1;
                of_step.insert(number, fresh);
                now.instances.push(Existing {
                    id: fresh,
                    placed: placed.clone(),
                    must_stay: false,
                    compute: Vec::new(),
                });
            }
            Step::CreateCompute { within, profile, placement } => {
                let id = match within {
                    Within::Existing(id) => *id,
                    Within::Created(step) => of_step[step],
                };
                let instance = at(&now, id);
                let instance = &mut now.instances[instance];
                assert!(!instance.must_stay, "{step}");
                let slices = profile.compute_slices();
                let offered = compute_offers(instance.placed.profile.slices());
                let offer = offered.iter().find(|offer| offer.slices == slices).unwrap();
                let is_free =
                    |place: &&Placement| instance.compute.iter().all(|other| !overlap(other.placement, **place));
                let place = match placement {
                    Some(place) => offer.placements.iter().find(|offered| *offered == place).filter(is_free),
                    None => offer.placements.iter().find(is_free),
                };
                let placement = *place.unwrap_or_else(|| panic!("no room for {step} in {instance:?}"));
                let own = (0..).find(|id| instance.compute.iter().all(|other| other.id != *id)).unwrap();
                instance.compute.push(ExistingCompute { id: own, slices, placement, must_stay: false });
                made[number] = Some((id, own));
            }
        }
    }
    (now, made)
}

/// What was there or stays is as the change says; each wanted compute instance has one of its own, of its profile.
fn check_change(offers: &Offers, found: &Found, wanted: &Layout, rest: Rest, change: &Change) -> Found {
    let (after, made) = carry_out(offers, found, change);
    assert_eq!(after.layout(), change.after, "{found:?} -> {wanted}");
    let wanted = resolve(offers, wanted).unwrap();
    let members = wanted.members();
    assert_eq!(change.members.len(), members.len());
    let mut used = BTreeSet::new();
    for (profile, source) in members.iter().zip(&change.members) {
        let (gpu_instance, id) = match source {
            Source::Kept { gpu_instance, id } => (*gpu_instance, *id),
            Source::Created(step) => made[*step].unwrap(),
        };
        let instance = after.instances.iter().find(|existing| existing.id == gpu_instance).unwrap();
        let compute = instance.compute.iter().find(|compute| compute.id == id).unwrap();
        let name = instance.placed.profile.part(compute.slices).unwrap();
        assert_eq!(name, *profile, "{found:?} -> {wanted}");
        assert!(used.insert((gpu_instance, id)), "an instance serves one wish");
    }
    if rest == Rest::Goes {
        let beside: usize = after
            .instances
            .iter()
            .filter(|instance| change.beside.contains(&instance.placed))
            .map(|instance| instance.compute.len())
            .sum();
        let all: usize = after.instances.iter().map(|instance| instance.compute.len()).sum();
        let idle = after.instances.iter().flat_map(|existing| &existing.compute).filter(|compute| compute.must_stay);
        assert!(all <= used.len() + beside + idle.count(), "{found:?} -> {wanted} leaves more: {after:?}");
    }
    after
}

fn check(gpu: &str, there: &[(&str, u32, bool)], wanted: &str, rest: Rest, expected: Result<&[&str], &str>) {
    let offers = device(gpu);
    let state: Vec<Placed> =
        there.iter().map(|(profile, start, _)| placed(&offers, &profile.parse().unwrap(), *start)).collect();
    assert!(offers.allows(&state), "the test itself is wrong");
    let found = found(&state, |at| there[at].2);
    check_found(&offers, &found, wanted, rest, expected);
}

fn check_found(offers: &Offers, found: &Found, wanted: &str, rest: Rest, expected: Result<&[&str], &str>) {
    let wanted: Layout = wanted.parse().unwrap();
    let answer = reach(offers, found, &wanted, rest).map_err(|error| error.to_string());
    if let Ok(change) = &answer {
        check_change(offers, found, &wanted, rest, change);
    }
    let answer = answer.map(|change| change.steps.iter().map(Step::to_string).collect::<Vec<_>>());
    let expected =
        expected.map(|steps| steps.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>()).map_err(str::to_owned);
    assert_eq!(answer, expected, "{found:?} -> {wanted}");
}

#[test]
fn what_fits_is_kept_and_what_is_in_the_way_goes() {
    use Rest::{Goes, Stays};
    let one_g = ["create GPU instance 1g.18gb@6:1", "create compute instance 1g.18gb in it"];
    check("H200-141", &[], "1g", Stays, Ok(&one_g));
    check("H200-141", &[("1g", 0, false)], "1g", Goes, Ok(&[]));
    check("H200-141", &[("1g", 0, false)], "1g@6", Stays, Ok(&one_g));
    check(
        "H200-141",
        &[("1g", 0, false), ("3g", 4, false)],
        "3g+2x1g",
        Goes,
        Ok(&["create GPU instance 1g.18gb@1:1", "create compute instance 1g.18gb in it"]),
    );
    check(
        "H200-141",
        &[("7g", 0, false)],
        "3g",
        Goes,
        Ok(&[
            "destroy compute instance 7g.141gb (number 0 in GPU instance 10)",
            "destroy GPU instance 7g.141gb@0:8 (number 10)",
            "create GPU instance 3g.71gb@4:4",
            "create compute instance 3g.71gb in it",
        ]),
    );
    // One in the middle blocks the only place of a 4g; the one at the end may stay.
    let four_g = [
        "destroy compute instance 1g.18gb (number 0 in GPU instance 10)",
        "destroy GPU instance 1g.18gb@2:1 (number 10)",
        "create GPU instance 4g.71gb@0:4",
        "create compute instance 4g.71gb in it",
    ];
    check("H200-141", &[("1g", 2, false), ("1g", 6, false)], "4g", Stays, Ok(&four_g));
    check("H200-141", &[("1g", 2, false), ("1g", 6, false)], "4g+1g", Goes, Ok(&four_g));
    // What must stay serves a wish that it fits, and else stays beside.
    check("H200-141", &[("1g", 6, true)], "1g", Goes, Ok(&[]));
    check(
        "H200-141",
        &[("1g", 6, true)],
        "4g",
        Goes,
        Ok(&["create GPU instance 4g.71gb@0:4", "create compute instance 4g.71gb in it"]),
    );
    // After two 2g the driver's own choice would leave no room for a 3g; ours does.
    check(
        "A100-40",
        &[],
        "2x2g+3g",
        Goes,
        Ok(&[
            "create GPU instance 3g.20gb@4:4",
            "create compute instance 3g.20gb in it",
            "create GPU instance 2g.10gb@0:2",
            "create compute instance 2g.10gb in it",
            "create GPU instance 2g.10gb@2:2",
            "create compute instance 2g.10gb in it",
        ]),
    );
    // The double-memory profile is named by its size.
    check(
        "H200-141",
        &[("1g", 6, false)],
        "1g.35gb",
        Stays,
        Ok(&["create GPU instance 1g.35gb@4:2", "create compute instance 1g.35gb in it"]),
    );
}

#[test]
fn the_mode_is_switched_around_everything_else() {
    let offers = device("A30-24");
    let off = Found { enabled: false, instances: Vec::new() };
    check_found(&offers, &off, "off", Rest::Goes, Ok(&[]));
    check_found(&offers, &off, "empty", Rest::Goes, Ok(&["enable MIG"]));
    check_found(
        &offers,
        &off,
        "4g",
        Rest::Goes,
        Ok(&["enable MIG", "create GPU instance 4g.24gb@0:4", "create compute instance 4g.24gb in it"]),
    );
    check(
        "A30-24",
        &[("4g", 0, false)],
        "off",
        Rest::Goes,
        Ok(&[
            "destroy compute instance 4g.24gb (number 0 in GPU instance 10)",
            "destroy GPU instance 4g.24gb@0:4 (number 10)",
            "disable MIG",
        ]),
    );
    check("A30-24", &[("4g", 0, true)], "off", Rest::Goes, Err("MIG can't be disabled while 4g.24gb@0:4 must stay"));
    check("A30-24", &[("4g", 0, true)], "empty", Rest::Goes, Err("the GPU can't be empty while 4g.24gb@0:4 must stay"));
}

#[test]
fn compute_instances_change_inside_an_instance_that_stays() {
    let offers = device("H200-141");
    let placed = placed(&offers, &"3g".parse().unwrap(), 4);
    let compute = |id, slices, start, must_stay| ExistingCompute {
        id,
        slices,
        placement: Placement { start, size: slices },
        must_stay,
    };
    let with = |compute: Vec<ExistingCompute>| Found {
        enabled: true,
        instances: vec![Existing { id: 2, placed: placed.clone(), must_stay: false, compute }],
    };
    // A half-made instance is finished, not made again.
    check_found(
        &offers,
        &with(Vec::new()),
        "3g",
        Rest::Goes,
        Ok(&["create compute instance 3g.71gb in GPU instance 2"]),
    );
    check_found(
        &offers,
        &with(vec![compute(0, 3, 0, false)]),
        "3g(1c+2c)",
        Rest::Goes,
        Ok(&[
            "destroy compute instance 3g.71gb (number 0 in GPU instance 2)",
            "create compute instance 2c.3g.71gb@0:2 in GPU instance 2",
            "create compute instance 1c.3g.71gb@2:1 in GPU instance 2",
        ]),
    );
    // One that is in use stays where it is.
    check_found(
        &offers,
        &with(vec![compute(0, 1, 2, true), compute(1, 1, 0, false)]),
        "3g(1c+2c)",
        Rest::Goes,
        Ok(&[
            "destroy compute instance 1c.3g.71gb (number 1 in GPU instance 2)",
            "create compute instance 2c.3g.71gb@0:2 in GPU instance 2",
        ]),
    );
}

#[test]
fn what_can_t_be_done_names_the_conflict_and_what_can() {
    let check = |gpu: &str, there: &[(&str, u32, bool)], wanted: &str, message: &str| {
        check(gpu, there, wanted, Rest::Stays, Err(message));
    };
    check(
        "H200-141",
        &[],
        "8x1g",
        "8x1g.18gb does not fit on this GPU, even when it is empty; what fits of it: 7x1g.18gb",
    );
    check(
        "H200-141",
        &[],
        "4g+3g+1g",
        "4g.71gb+3g.71gb+1g.18gb does not fit on this GPU, even when it is empty; what fits of it: \
         4g.71gb+3g.71gb or 4g.71gb+1g.18gb or 3g.71gb+1g.18gb",
    );
    check(
        "H200-141",
        &[("1g", 2, true)],
        "4g+1g",
        "4g.71gb+1g.18gb fits only where 1g.18gb@2:1 must stay; what fits beside it: 1g.18gb",
    );
    check(
        "H200-141",
        &[("3g", 0, true), ("3g", 4, true)],
        "1g",
        "1g.18gb fits only where 3g.71gb@4:4 must stay; what fits beside it: nothing",
    );
    check("A30-24", &[], "3g", "this GPU has no profile 3g; it offers 1g.6gb, 1g.6gb+me, 2g.12gb, 2g.12gb+me, 4g.24gb");
    check("H200-141", &[], "2g@1", "a 2g.35gb can't be at @1; its places on this GPU are @0:2, @2:2, @4:2");
    check(
        "H200-141",
        &[],
        "4g(3c+1c)",
        "a 4g.71gb can't hold 3c+1c; it offers 1c (at most 4), 2c (at most 2), 4c (at most 1)",
    );
}

#[test]
fn only_what_is_in_the_way_is_replaced() {
    let offers = device("H200-141");
    let check = |wanted: &str, gone: &[u32]| {
        let there = [("1g", 2), ("1g", 6)].map(|(profile, at)| placed(&offers, &profile.parse().unwrap(), at));
        let found = found(&there, |_| true);
        let change = replace(&offers, &found, &wanted.parse().unwrap(), Rest::Goes).unwrap();
        let destroyed: Vec<u32> = change
            .steps
            .iter()
            .filter_map(|step| if let Step::DestroyGpuInstance { id, .. } = step { Some(*id) } else { None })
            .collect();
        assert_eq!(destroyed, gone, "{wanted}");
    };
    check("1g", &[]);
    check("4g", &[10]);
    check("4g+1g", &[10]);
    check("7g", &[10, 11]);
    check("off", &[10, 11]);
    check("empty", &[10, 11]);
    let error = replace(&offers, &found(&[], |_| true), &"8x1g".parse().unwrap(), Rest::Goes);
    assert!(matches!(error, Err(migperf_core::mig::planner::ChangeError::TooMuch { .. })));
}

#[test]
fn impossible_wishes_are_refused_at_once() {
    let offers = device("H200-141");
    let started = std::time::Instant::now();
    for wanted in ["48x1g", "7x1g+7x1g.35gb+7x2g+7x3g+7x4g+7x7g", "2x7g", "40x1g.18gb+me"] {
        let state: Vec<Placed> = (0..7).map(|start| placed(&offers, &"1g".parse().unwrap(), start)).collect();
        assert!(reach(&offers, &found(&state, |_| false), &wanted.parse().unwrap(), Rest::Stays).is_err());
    }
    assert!(started.elapsed() < std::time::Duration::from_secs(20), "{:?}", started.elapsed());
}

#[test]
#[ignore = "measures time: cargo test --release -p migperf-core --test mig_planner -- --ignored"]
fn the_slowest_change_is_planned_within_a_millisecond() {
    for (name, gpu) in facts().gpus {
        let offers = offers(&gpu);
        let all = states(&offers, is_plain);
        let wishes: BTreeSet<Vec<Profile>> = all.iter().map(|state| profiles(state)).collect();
        let mut slowest = (std::time::Duration::ZERO, String::new());
        for from in all.iter().step_by(3) {
            let found = found(from, |_| false);
            for wish in &wishes {
                let wanted = layout(wish);
                for rest in [Rest::Goes, Rest::Stays] {
                    // The quickest of three: what the planner takes, not what the machine does beside it.
                    let times = [(); 3].map(|()| {
                        let started = std::time::Instant::now();
                        reach(&offers, &found, &wanted, rest).unwrap();
                        started.elapsed()
                    });
                    let quickest = times.into_iter().min().unwrap();
                    if quickest > slowest.0 {
                        slowest = (quickest, format!("{from:?} -> {wanted} ({rest:?})"));
                    }
                }
            }
        }
        eprintln!("{name}: at most {:?} for {}", slowest.0, slowest.1);
        assert!(slowest.0 < std::time::Duration::from_millis(1), "{name}: {slowest:?}");
    }
}

/// The fewest steps by looking at every layout: two for an instance that comes or goes, with its compute instance.
fn fewest(all: &BTreeSet<Vec<Placed>>, from: &[Placed], wanted: &[Profile], rest: Rest) -> Option<usize> {
    let holds = |state: &&Vec<Placed>| {
        let mut left = profiles(state);
        let has =
            |profile: &Profile| left.iter().position(|there| there == profile).map(|at| left.remove(at)).is_some();
        wanted.iter().all(has) && (rest == Rest::Stays || left.is_empty())
    };
    let steps = |state: &Vec<Placed>| {
        let gone = from.iter().filter(|placed| !state.contains(placed)).count();
        2 * (gone + state.iter().filter(|placed| !from.contains(placed)).count())
    };
    all.iter().filter(holds).map(steps).min()
}

#[test]
fn every_layout_is_reached_from_every_other_in_the_fewest_steps() {
    for (name, gpu) in facts().gpus {
        let offers = offers(&gpu);
        let all = states(&offers, |offer| is_base(&offers, offer));
        let wishes: BTreeSet<Vec<Profile>> = all.iter().map(|state| profiles(state)).collect();
        // Devices of one shape have the same layouts under other names: one of them is looked at more closely.
        let stride = match name.as_str() {
            "H200-141" => 5,
            _ if gpu.layouts["base"][0] < 100 => 1,
            _ => 37,
        };
        for (at, from) in all.iter().enumerate() {
            for wish in wishes.iter().skip(at % stride).step_by(stride) {
                for rest in [Rest::Goes, Rest::Stays] {
                    let found = found(from, |_| false);
                    let wanted = layout(wish);
                    let change = reach(&offers, &found, &wanted, rest).unwrap();
                    let after = check_change(&offers, &found, &wanted, rest, &change);
                    let fewest = fewest(&all, from, wish, rest);
                    assert_eq!(Some(change.steps.len()), fewest, "{name}: {from:?} -> {wish:?} ({rest:?})");
                    // Back to exactly what was found, every place included.
                    let back = reach(&offers, &after, &found.layout(), Rest::Goes).unwrap();
                    let (restored, _) = carry_out(&offers, &after, &back);
                    assert_eq!(restored.layout(), found.layout());
                }
            }
        }
    }
}

/// A device's compute offers are not known before such an instance exists: the places inside are then its own choice.
#[test]
fn what_is_not_known_inside_is_left_to_the_device() {
    let known = device("H200-141");
    let offers =
        Offers::new(known.as_slice().iter().cloned().map(|offer| Offer { compute: Vec::new(), ..offer }).collect());
    let off = Found { enabled: false, instances: Vec::new() };
    let change = reach(&offers, &off, &"3g(1c+2c)+7x1g".parse().unwrap(), Rest::Goes);
    assert!(change.is_err());
    let change = reach(&offers, &off, &"3g(1c+2c)+1g".parse().unwrap(), Rest::Goes).unwrap();
    let creates: Vec<String> = change.steps.iter().map(Step::to_string).collect();
    assert_eq!(
        creates,
        [
            "enable MIG",
            "create GPU instance 3g.71gb@4:4",
            "create compute instance 2c.3g.71gb in it",
            "create compute instance 1c.3g.71gb in it",
            "create GPU instance 1g.18gb@0:1",
            "create compute instance 1g.18gb in it",
        ]
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any profiles of any device, from any layout, with some instances that must stay, some half-made and some divided: a
    /// change is legal and leaves what must stay, a refusal is right.
    #[test]
    fn changes_are_legal_and_refusals_are_right(
        gpu in any::<prop::sample::Index>(),
        from in prop::collection::vec(
            (any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<bool>(), 0_u32..3),
            0..6,
        ),
        wish in prop::collection::vec(any::<prop::sample::Index>(), 1..5),
        goes in any::<bool>(),
    ) {
        let all = facts().gpus;
        let offers = offers(all.values().nth(gpu.index(all.len())).unwrap());
        let mut found = Found { enabled: true, instances: Vec::new() };
        for (profile, place, must_stay, inside) in from {
            let state: Vec<Placed> = found.instances.iter().map(|existing| existing.placed.clone()).collect();
            let places = offers.places(&state, profile.get(offers.as_slice()));
            if places.is_empty() {
                continue;
            }
            let id = u32::try_from(found.instances.len()).unwrap();
            let mut existing = whole(id, place.get(&places), must_stay);
            match inside {
                0 => {}
                1 => existing.compute.clear(),
                _ => existing.compute[0] = ExistingCompute {
                    slices: 1,
                    placement: Placement { start: 0, size: 1 },
                    ..existing.compute[0]
                },
            }
            found.instances.push(existing);
        }
        let wished: Vec<Profile> = wish.iter().map(|at| at.get(offers.as_slice()).profile.clone()).collect();
        let wanted = layout(&wished);
        let rest = if goes { Rest::Goes } else { Rest::Stays };
        match reach(&offers, &found, &wanted, rest) {
            Ok(change) => {
                check_change(&offers, &found, &wanted, rest, &change);
            }
            Err(_) => {
                // Whatever is left when all that may go is gone can't hold the wish, in any order or place. Of what must
                // stay only an instance that is whole serves.
                let staying: Vec<&Existing> = found.instances.iter().filter(|existing| existing.stays()).collect();
                prop_assert!(!fits_somehow(&offers, &staying, &wished));
            }
        }
    }
}

/// Whether there is any place for all of the wishes, kept instances that must stay included.
fn fits_somehow(offers: &Offers, staying: &[&Existing], wished: &[Profile]) -> bool {
    let mut rest = wished.to_vec();
    for existing in staying {
        let slices = existing.placed.profile.slices();
        let serves = matches!(existing.compute.as_slice(), [compute] if compute.slices == slices);
        if let Some(at) = rest.iter().position(|profile| serves && *profile == existing.placed.profile) {
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
    place(offers, &mut staying.iter().map(|existing| existing.placed.clone()).collect(), &rest)
}
