//! What holds for every suite: it survives being written and read, and its plan keeps the rules.

use std::collections::HashSet;

use migperf_core::mig::layout::Layout;
use migperf_core::plan::{Origin, Plan};
use migperf_core::suite::{Judged, Metric, Objective, Suite, SuiteTrial, Target};
use migperf_core::trial::{InstanceMps, Purpose, Sharing, Timing, TrialSpec};
use migperf_core::units::Span;
use migperf_core::workload::{Cudnn, Family, Input, MemoryFormat, Model, Precision, Task, Wait, Workload};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

prop_compose! {
    fn workload()(
        model in select(Model::ALL),
        task in select(Task::ALL),
        batch_size in 1..=Workload::LARGEST_BATCH,
        length in 1_u32..=512,
        precision in select(Precision::ALL),
        input in select(Input::ALL),
        memory_format in select(MemoryFormat::ALL),
        wait in select(Wait::ALL),
        cudnn in select(Cudnn::ALL),
    ) -> Workload {
        let mut workload = Workload::new(model, task, batch_size, precision);
        workload.sequence_length = model.longest_sequence().map(|_| length);
        if matches!(model.family(), Family::Resnet | Family::Unet | Family::Vit) {
            workload.memory_format = memory_format;
        }
        Workload { input, wait, cudnn, ..workload }
    }
}

fn span(low: u64, high: u64) -> impl Strategy<Value = Span> {
    (low..=high).prop_map(|milliseconds| Span(std::time::Duration::from_millis(milliseconds)))
}

prop_compose! {
    fn timing()(
        warmup_batches in 1_u32..=100_000,
        warmup in span(0, 3_600_000),
        settle in span(500, 3_600_000),
        windows in (span(100, 86_400_000), span(100, 86_400_000)),
        minimum_batches in 1_u32..=1_000_000,
        ready_limit in span(1_000, 3_600_000),
    ) -> Timing {
        let (window, longest_window) = (windows.0.min(windows.1), windows.0.max(windows.1));
        Timing { warmup_batches, warmup, settle, window, longest_window, minimum_batches, ready_limit }
    }
}

/// Workers that share, each of one of few workloads so that some are alike.
fn members(most: usize) -> impl Strategy<Value = Vec<Workload>> {
    (prop::collection::vec(workload(), 1..=3), prop::collection::vec(any::<prop::sample::Index>(), 1..=most))
        .prop_map(|(kinds, picks)| picks.into_iter().map(|pick| pick.get(&kinds).clone()).collect())
}

fn mig_layout() -> impl Strategy<Value = (String, usize)> {
    let instance = select(vec!["1g", "1g.18gb", "2g", "3g", "1g+me", "1c.3g", "7g.141gb", "3g@4", "3g(1c+2c)"]);
    prop::collection::vec(instance, 1..=7).prop_map(|instances| {
        // Only one can be at a place.
        let mut placed = false;
        let once = |instance: &str| {
            if instance != "3g@4" || !std::mem::replace(&mut placed, true) { instance } else { "3g" }.to_owned()
        };
        let instances: Vec<String> = instances.into_iter().map(once).collect();
        let layout: Layout = instances.join("+").parse().unwrap();
        (layout.to_string(), layout.members().len())
    })
}

fn cell(target: Target) -> BoxedStrategy<TrialSpec> {
    let cohort = |sharing: Sharing, most: usize| (Just(sharing), members(most), timing());
    let built = match target {
        Target::Cpu => cohort(Sharing::Cpu, 4).boxed(),
        Target::Gpu => prop_oneof![
            cohort(Sharing::Exclusive, 1),
            cohort(Sharing::TimeSlice, 9),
            option::of(1_u32..=100).prop_flat_map(move |cap| cohort(Sharing::Mps { active_thread_percentage: cap }, 9)),
            (mig_layout(), option::of((1_u32..=4, option::of(1_u32..=100)))).prop_flat_map(
                move |((layout, most), mps)| {
                    let mps = mps
                        .map(|(clients, active_thread_percentage)| InstanceMps { clients, active_thread_percentage });
                    let each = mps.map_or(1, |mps| mps.clients as usize);
                    cohort(Sharing::Mig { layout, mps }, most * each)
                }
            ),
        ]
        .boxed(),
    };
    built.prop_map(|(sharing, members, timing)| TrialSpec { sharing, members, timing }).boxed()
}

/// A [[trial]] of one cell, as a suite that was written out has them.
fn trial() -> impl Strategy<Value = SuiteTrial> {
    (select(Target::ALL), any::<bool>()).prop_flat_map(|(target, kept)| {
        let only_on = kept.then_some(target);
        cell(target).prop_map(move |cell| SuiteTrial { line: 0, only_on, cells: vec![cell] })
    })
}

prop_compose! {
    fn suite()(
        name in "[a-zA-Z0-9][a-zA-Z0-9._-]{0,63}",
        description in option::of("([ -~]|\\PC|\n){0,40}"),
        repeats in 1_u32..=5,
        seed in 0..=(i64::MAX as u64),
        metric in select(Metric::ALL),
        bound in option::of(1e-9_f64..1e15),
        judged in (any::<bool>(), any::<bool>()),
        with_objective in any::<bool>(),
        trials in prop::collection::vec(trial(), 1..12),
    ) -> Suite {
        let work = &trials[0].cells[0].members[0];
        let of = Judged { model: judged.0.then_some(work.model), task: judged.1.then_some(work.task) };
        let objective = with_objective.then_some(Objective { metric, bound, of });
        Suite { name, description, repeats, seed, objective, trials }
    }
}

/// The suite with lines forgotten: they are the one thing that writing changes.
fn without_lines(mut suite: Suite) -> Suite {
    for trial in &mut suite.trials {
        trial.line = 0;
    }
    suite
}

fn is_alone(cell: &TrialSpec, sharing: &Sharing, workload: &Workload) -> bool {
    let same_sharing = match (&cell.sharing, sharing) {
        // Of a layout with one member only its first instance matters.
        (Sharing::Mig { layout, mps }, Sharing::Mig { layout: profile, mps: other }) => {
            let cap = |mps: &InstanceMps| mps.active_thread_percentage;
            let layout: Layout = layout.parse().unwrap();
            layout.members()[0].to_string() == *profile && mps.as_ref().map(cap) == other.as_ref().map(cap)
        }
        (one, other) => one == other,
    };
    same_sharing && cell.members == [workload.clone()]
}

fn check_plan(plan: &Plan) {
    let cells = plan.cells.len();
    let mut once = HashSet::new();
    for (trial, index) in plan.trials.iter().zip(0_u32..) {
        assert_eq!(trial.index, index);
        assert_eq!(trial.spec, plan.cells[trial.cell as usize]);
        let at = index as usize;
        if at < cells * plan.repeats as usize {
            assert!(once.insert((trial.repeat, trial.cell)), "each cell is measured once in each repeat");
            let from_suite = matches!(plan.origins[trial.cell as usize], Origin::Suite { .. });
            assert_eq!(trial.purpose, if from_suite { Purpose::Requested } else { Purpose::Baseline });
        } else {
            assert_eq!((trial.repeat, trial.purpose), (plan.repeats, Purpose::Drift));
        }
    }
    let whole = if plan.target == Target::Gpu { Sharing::Exclusive } else { Sharing::Cpu };
    let solo = |cell: &TrialSpec| cell.sharing == whole && cell.members.len() == 1;
    let solos = plan.cells.iter().filter(|cell| solo(cell)).count();
    assert!(plan.cells[..solos].iter().all(solo), "solos of the whole target come first");
    assert_eq!(plan.trials.len(), cells * plan.repeats as usize + solos, "and once more at the end");

    for (at, cell) in plan.cells.iter().enumerate() {
        assert!(!plan.cells[..at].contains(cell), "a cell is measured once a repeat");
        if cell.members.len() == 1 {
            continue;
        }
        for (member, workload) in cell.members.iter().enumerate() {
            let same = match &cell.sharing {
                Sharing::Mig { layout, mps } => {
                    let layout: Layout = layout.parse().unwrap();
                    let layout = layout.members()[cell.sharing.instance_of(member)].to_string();
                    Sharing::Mig { layout, mps: mps.map(|mps| InstanceMps { clients: 1, ..mps }) }
                }
                other => other.clone(),
            };
            for sharing in [&whole, &same] {
                let baseline = plan.cells.iter().any(|other| is_alone(other, sharing, workload));
                assert!(baseline, "{cell} has no baseline {sharing} of {workload}");
            }
        }
    }
    for origin in &plan.origins {
        if let Origin::Baseline { of } = origin {
            assert!(plan.cells[*of as usize].members.len() > 1);
        }
    }
    let mut seen = Vec::new();
    let stretches = plan.layouts();
    let measured = cells * plan.repeats as usize;
    for stretch in stretches.iter().take_while(|stretch| (stretch.first as usize) < measured) {
        assert!(!seen.contains(&stretch.layout), "a layout comes once, with all its repeats");
        seen.push(stretch.layout.clone());
        let trials = &plan.trials[stretch.first as usize..measured.min((stretch.first + stretch.trials) as usize)];
        assert!(trials.is_sorted_by_key(|trial| trial.repeat), "under one layout repeats are the outer loop");
    }
    for stretch in &stretches {
        for trial in &plan.trials[stretch.first as usize..(stretch.first + stretch.trials) as usize] {
            match (&stretch.layout, &trial.spec.sharing) {
                (Some(layout), Sharing::Mig { layout: wanted, .. }) => {
                    let wanted: Layout = wanted.parse().unwrap();
                    let mut there = layout.instances().to_vec();
                    for instance in wanted.sorted().instances() {
                        let at = there.iter().position(|other| other == instance);
                        there.remove(at.unwrap_or_else(|| panic!("{wanted} under {layout}")));
                    }
                }
                (layout, sharing) => {
                    assert!(layout.is_none() && !matches!(sharing, Sharing::Mig { .. }), "{layout:?} {sharing}");
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_suite_survives_being_written_and_read(suite in suite()) {
        let text = suite.to_toml();
        let read = Suite::parse(&text).map_err(|errors| TestCaseError::fail(format!("{errors}\n{text}")))?;
        prop_assert_eq!(without_lines(read), suite);
    }

    #[test]
    fn a_plan_keeps_the_rules(suite in suite(), target in select(Target::ALL)) {
        let mut suite = suite;
        suite.trials.retain(|trial| trial.target() == target || trial.only_on.is_some());
        match Plan::expand(&suite, target) {
            Ok(plan) => {
                check_plan(&plan);
                let json = serde_json::to_string(&plan).unwrap();
                prop_assert_eq!(serde_json::from_str::<Plan>(&json).unwrap(), plan);
            }
            Err(error) => prop_assert!(suite.trials.iter().all(|trial| trial.target() != target), "{}", error),
        }
    }
}
