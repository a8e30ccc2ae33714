//! What a report says of cells: repeats, slowdowns, A/A, drift, the objective.

use migperf_core::record::{JobResults, Outcome};
use migperf_core::report::{Answer, CellOutcome, CellReport, Report};
use migperf_core::sample::{Sample, Samples};
use migperf_core::stats::Kind;
use migperf_core::suite::{Suite, Target};
use migperf_core::trial::Purpose;
use migperf_core::units::MonotonicNanos;

use crate::synthetic::{REPEATED, TROUBLED, job, run, troubled};

fn cell<'a>(report: &'a Report, name: &str) -> &'a CellReport {
    report.cells.iter().find(|cell| cell.name == name).unwrap_or_else(|| panic!("{name} is a cell"))
}

/// Makes every member of a trial take `factor` times as long, from the common start on.
fn stretch(results: &mut JobResults, wanted: impl Fn(&migperf_core::trial::PlannedTrial) -> bool, factor: f64) {
    for record in results.trials.iter_mut().filter(|record| wanted(&record.trial)) {
        let zero = record.members[0].samples.as_slice()[0].start.0;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few seconds")]
        let at = |stamp: MonotonicNanos| MonotonicNanos(zero + ((stamp.0 - zero) as f64 * factor) as u64);
        for member in &mut record.members {
            let longer = |sample: &Sample| Sample { start: at(sample.start), end: at(sample.end), ..*sample };
            member.samples = Samples::new(member.samples.as_slice().iter().map(longer).collect()).unwrap();
        }
    }
}

#[test]
fn repeats_give_intervals_between_cohorts() {
    let report = Report::from_results(&job(REPEATED, Target::Gpu));
    assert_eq!(report.summary.planned, report.summary.valid);
    let four = cell(&report, "mps: 4x resnet18 infer b32 fp32");
    assert_eq!((four.outcome, four.usable, four.planned, four.trials.len()), (CellOutcome::Valid, 3, 3, 3));
    let [group] = four.groups.as_slice() else { panic!("one group") };
    let rate = group.throughput_samples_per_s.value().unwrap();
    assert_eq!((rate.kind, rate.n), (Kind::BetweenCohorts, 3));
    let of_trials: Vec<f64> = report
        .trials
        .iter()
        .filter(|trial| trial.cell == four.cell)
        .map(|trial| trial.groups[0].throughput_samples_per_s.number().unwrap())
        .collect();
    let mean = of_trials.iter().sum::<f64>() / 3.0;
    assert!((rate.value - mean).abs() < 1e-9 * mean);
    let deviation = (of_trials.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 2.0).sqrt();
    let half = 4.302_652_73 * deviation / 3.0_f64.sqrt();
    assert!((rate.interval.unwrap().high - mean - half).abs() < 1e-6 * half);
    let spread = of_trials.iter().copied().fold(0.0, f64::max) - of_trials.iter().copied().fold(f64::MAX, f64::min);
    assert!((group.spread.number().unwrap() - spread / mean).abs() < 1e-12);
}

#[test]
fn a_single_repeat_is_labelled_as_one_window() {
    let report = Report::from_results(&job(TROUBLED, Target::Gpu));
    let exclusive = cell(&report, "exclusive: 1x resnet18 infer b32 fp32");
    let rate = exclusive.groups[0].throughput_samples_per_s.value().unwrap();
    assert_eq!(rate.kind, Kind::WithinWindow);
    assert!(rate.interval.is_some() && exclusive.groups[0].spread.reason().is_some());
}

#[test]
fn slowdowns_are_against_the_same_work_alone() {
    let report = Report::from_results(&job(REPEATED, Target::Gpu));
    let sliced = &cell(&report, "time-slice: 4x resnet18 infer b32 fp32").groups[0];
    let solo = cell(&report, "time-slice: 1x resnet18 infer b32 fp32").cell;
    let exclusive = cell(&report, "exclusive: 1x resnet18 infer b32 fp32").cell;
    assert_eq!((&sliced.against_solo.baselines, &sliced.against_exclusive.baselines), (&vec![solo], &vec![exclusive]));
    // Four that take turns take four times as long, by the rule these records are made of; paces differ by 1 %.
    for slowdown in [&sliced.against_solo, &sliced.against_exclusive] {
        for finding in [&slowdown.throughput, &slowdown.mean_latency, &slowdown.worst_throughput] {
            assert!((finding.number().unwrap() - 4.0).abs() < 0.08, "{finding:?}");
            assert_eq!(finding.value().unwrap().n, 3, "one ratio for each repeat");
        }
    }
    assert!((sliced.gain.number().unwrap() - 1.0).abs() < 0.02);
    let shared = &cell(&report, "mps: 4x resnet18 infer b32 fp32").groups[0];
    assert!((shared.against_exclusive.throughput.number().unwrap() - 3.1).abs() < 0.06);
    assert!((shared.gain.number().unwrap() - 4.0 / 3.1).abs() < 0.03);
    let alone = &cell(&report, "exclusive: 1x resnet18 infer b32 fp32").groups[0];
    assert_eq!(alone.against_exclusive.throughput.reason(), Some("this cell is the baseline"));
}

#[test]
fn a_mixed_cohort_keeps_its_work_apart() {
    let report = Report::from_results(&job(REPEATED, Target::Gpu));
    let mixed = cell(&report, "time-slice: 1x resnet18 infer b32 fp32 + 2x resnet18 train b32 fp32");
    let [infer, train] = mixed.groups.as_slice() else { panic!("two groups") };
    for group in [infer, train] {
        assert!((group.against_solo.throughput.number().unwrap() - 3.0).abs() < 0.06, "{:?}", group.against_solo);
        assert!(group.gain.reason().unwrap().contains("unlike"));
    }
    assert!(mixed.energy_per_sample_j.reason().unwrap().contains("unlike"));
    assert!(mixed.energy_j.number().is_some());
    assert!((mixed.progress_fairness.number().unwrap() - 1.0).abs() < 1e-3);
    let added = cell(&report, "time-slice: 1x resnet18 train b32 fp32");
    assert!(!added.requested && mixed.requested);
}

#[test]
fn instances_are_compared_with_their_own_profile_alone() {
    let suite = r#"
        version = 1
        name = "mig"
        [defaults]
        precision = "fp32"
        window = "10s"
        repeats = 1
        [[trial]]
        sharing = [{ mode = "mig", layout = "3g+1g" }]
        members = [{ count = 2, workload = { model = "resnet18", task = "infer", batch-size = 32 } }]
    "#;
    let mut results = job(suite, Target::Gpu);
    let mig = |member: usize| format!("MIG-5ebe9c2f-a33f-4a4c-bb17-00000000000{member}").parse().unwrap();
    for record in &mut results.trials {
        for (index, member) in record.members.iter_mut().enumerate() {
            if let migperf_core::worker_wire::Allocation::Cuda { uuid, .. } = &mut member.allocation {
                *uuid = mig(index);
            }
            member.built.proof.uuid = None;
        }
    }
    let report = Report::from_results(&results);
    let pair = cell(&report, "mig 3g+1g: 2x resnet18 infer b32 fp32");
    let alone = |profile: &str| cell(&report, &format!("mig {profile}: 1x resnet18 infer b32 fp32")).cell;
    let mut wanted = vec![alone("3g"), alone("1g")];
    wanted.sort_unstable();
    assert_eq!(pair.groups[0].against_solo.baselines, wanted);
    assert!((pair.groups[0].against_solo.throughput.number().unwrap() - 2.0).abs() < 0.04);
}

#[test]
fn the_same_thing_twice_is_compared() {
    let mut results = job(REPEATED, Target::Gpu);
    let report = Report::from_results(&results);
    let a_a = report.a_a.iter().find(|a_a| a_a.workload.contains("infer")).unwrap();
    assert!((a_a.throughput_ratio.number().unwrap() - 1.0).abs() < 0.01);
    assert_eq!(a_a.same, Some(true));
    stretch(&mut results, |trial| trial.cell == a_a.cell, 1.2);
    let report = Report::from_results(&results);
    let a_a = report.a_a.iter().find(|other| other.cell == a_a.cell).unwrap();
    assert!((a_a.throughput_ratio.number().unwrap() - 1.0 / 1.2).abs() < 0.01);
    assert_eq!(a_a.same, Some(false));
}

#[test]
fn drift_is_the_last_against_the_first_and_in_no_mean() {
    let mut results = job(REPEATED, Target::Gpu);
    let before = Report::from_results(&results);
    stretch(&mut results, |trial| trial.purpose == Purpose::Drift, 1.1);
    let after = Report::from_results(&results);
    assert_eq!(before.cells, after.cells, "a measurement for drift is in no cell's numbers");
    assert_eq!(before.drift.len(), 2, "one for each exclusive cell");
    for drift in &before.drift {
        assert_eq!(drift.notable, Some(false), "{drift:?}");
    }
    for drift in &after.drift {
        assert!((drift.throughput_ratio.number().unwrap() - 1.0 / 1.1).abs() < 0.01, "{drift:?}");
        assert!((drift.mean_latency_ratio.number().unwrap() - 1.1).abs() < 0.012, "{drift:?}");
        assert_eq!(drift.notable, Some(true));
    }
}

#[test]
fn only_intervals_between_cohorts_answer_the_objective() {
    let answers = |report: &Report| {
        let objective = report.objective.as_ref().unwrap();
        let of = |judgement: &migperf_core::report::Judgement| (judgement.name.clone(), judgement.answer);
        objective.judgements.iter().map(of).collect::<Vec<_>>()
    };
    let results = job(REPEATED, Target::Gpu);
    let report = Report::from_results(&results);
    // By rule the 99th percentile is 1.03 times 8, 32 and 24.8 ms, and 24 ms in the mixed cohort; the bound is 30 ms.
    let work = "resnet18 infer b32 fp32";
    assert_eq!(
        answers(&report),
        [
            (format!("exclusive: 1x {work}"), Answer::Meets),
            (format!("time-slice: 1x {work}"), Answer::Meets),
            (format!("time-slice: 4x {work}"), Answer::Misses),
            (format!("mps: 1x {work}"), Answer::Meets),
            (format!("mps: 4x {work}"), Answer::Meets),
            (format!("time-slice: 1x {work} + 2x resnet18 train b32 fp32"), Answer::Meets),
        ]
    );
    let once = Report::from_results(&job(&REPEATED.replace("repeats = 3", "repeats = 1"), Target::Gpu));
    assert!(answers(&once).iter().all(|(_, answer)| *answer == Answer::CantTell), "{:?}", answers(&once));
    let near = Report::from_results(&job(&REPEATED.replace("30ms", "25.6ms"), Target::Gpu));
    let (_, answer) = answers(&near).into_iter().find(|(name, _)| name.starts_with("mps: 4x")).unwrap();
    assert_eq!(answer, Answer::CantTell, "the bound lies inside the interval");
    let best = Report::from_results(&job(&REPEATED.replace("at-most = \"30ms\"\n", ""), Target::Gpu));
    let answers = answers(&best);
    assert!(answers.iter().all(|(_, answer)| matches!(answer, Answer::NotBest | Answer::CantTell)), "{answers:?}");
    assert_eq!(answers[2].1, Answer::NotBest);
}

#[test]
fn trouble_is_counted_and_never_averaged() {
    let report = Report::from_results(&troubled());
    let summary = report.summary;
    assert!(summary.recorded < summary.planned);
    assert_eq!(
        (
            summary.flagged,
            summary.failed,
            summary.does_not_fit,
            summary.invalid,
            summary.contaminated,
            summary.cancelled
        ),
        (1, 1, 1, 1, 1, 1)
    );
    for cell in &report.cells {
        assert_eq!(cell.groups.is_empty(), cell.usable == 0, "{}", cell.name);
    }
    let outcomes: Vec<_> = report.cells.iter().map(|cell| cell.outcome).collect();
    for outcome in [
        CellOutcome::Flagged,
        CellOutcome::Failed,
        CellOutcome::DoesNotFit,
        CellOutcome::Invalid,
        CellOutcome::Contaminated,
        CellOutcome::Cancelled,
    ] {
        assert!(outcomes.contains(&outcome), "{outcome:?} in {outcomes:?}");
    }
    let shared = report.cells.iter().find(|cell| cell.outcome == CellOutcome::Contaminated).unwrap();
    assert!(shared.energy_j.reason().is_some() && shared.reason.as_ref().unwrap().contains("python3"));
}

#[test]
fn a_failed_repeat_leaves_the_others_and_shows() {
    let mut results = job(REPEATED, Target::Gpu);
    let at = results.trials.iter().position(|record| record.trial.spec.to_string().starts_with("mps: 4x")).unwrap();
    let wanted = results.trials[at].trial.cell;
    results.trials[at].outcome = Outcome::Failed { reason: "member 2 ended early".into() };
    results.trials[at].members.clear();
    let report = Report::from_results(&results);
    let cell = &report.cells[wanted as usize];
    assert_eq!((cell.outcome, cell.usable, cell.planned), (CellOutcome::Partial, 2, 3));
    assert_eq!(cell.groups[0].throughput_samples_per_s.value().unwrap().n, 2);
    assert_eq!(cell.reason.as_deref(), Some("member 2 ended early"));
}

#[test]
fn a_groups_numbers_are_of_all_one_and_the_slowest() {
    let mut results = job(REPEATED, Target::Gpu);
    // Member 2 of each MPS cohort of four is slowed by a pause after each of its batches.
    for record in results.trials.iter_mut().filter(|record| record.trial.spec.to_string().starts_with("mps: 4x")) {
        let kept = record.members[2].samples.as_slice().iter().step_by(2).copied().collect::<Vec<_>>();
        record.members[2].done.samples = kept.len() as u64;
        record.members[2].samples = Samples::new(kept).unwrap();
    }
    let report = Report::from_results(&results);
    let group = &cell(&report, "mps: 4x resnet18 infer b32 fp32").groups[0];
    let [all, one, slowest] =
        [&group.throughput_samples_per_s, &group.member_samples_per_s, &group.slowest_samples_per_s]
            .map(|finding| finding.number().unwrap());
    assert!((one - all / 4.0).abs() < 1e-9 * all);
    assert!((slowest / one - 0.5 / 0.875).abs() < 0.01, "{slowest} of {one}");
    assert!((group.requests_per_min.number().unwrap() - 60.0 * all).abs() < 1e-9 * all);
    assert!((group.fairness.number().unwrap() - 3.5 * 3.5 / (4.0 * 3.25)).abs() < 0.01);
    let worst = group.against_solo.worst_throughput.number().unwrap();
    assert!((worst / group.against_solo.throughput.number().unwrap() - 2.0 / 1.25).abs() < 0.01);
    // The slow member has numbers that contradict nothing but its pauses.
    let trial = report.trials.iter().find(|trial| trial.name.starts_with("mps: 4x")).unwrap();
    assert_eq!(trial.groups[0].slowest.member, 2);
    assert_eq!(trial.flags.len(), 1, "{:?}", trial.flags);
}

#[test]
fn a_repeat_without_its_baseline_is_compared_with_the_others() {
    let mut results = job(REPEATED, Target::Gpu);
    let before = Report::from_results(&results);
    let baseline = cell(&before, "exclusive: 1x resnet18 infer b32 fp32").cell;
    let lost =
        results.trials.iter().position(|record| record.trial.cell == baseline && record.trial.repeat == 1).unwrap();
    results.trials[lost].outcome = Outcome::Failed { reason: "it ended".into() };
    results.trials[lost].members.clear();
    let after = Report::from_results(&results);
    let group = &cell(&after, "mps: 4x resnet18 infer b32 fp32").groups[0];
    let rate = |repeat: u32, cell: u32| {
        let found = after.trials.iter().find(|trial| trial.cell == cell && trial.repeat == repeat).unwrap();
        found.members[0].throughput_samples_per_s.number()
    };
    let mean = f64::midpoint(rate(0, baseline).unwrap(), rate(2, baseline).unwrap());
    let own = cell(&after, "mps: 4x resnet18 infer b32 fp32").cell;
    let slowdown = |repeat: u32, base: f64| {
        let trial = after.trials.iter().find(|trial| trial.cell == own && trial.repeat == repeat).unwrap();
        trial.members.iter().map(|member| base / member.throughput_samples_per_s.number().unwrap()).sum::<f64>() / 4.0
    };
    let wanted =
        (slowdown(0, rate(0, baseline).unwrap()) + slowdown(1, mean) + slowdown(2, rate(2, baseline).unwrap())) / 3.0;
    assert!((group.against_exclusive.throughput.number().unwrap() - wanted).abs() < 1e-9 * wanted);
}

#[test]
fn a_report_is_the_same_whenever_it_is_made() {
    let results = job(REPEATED, Target::Gpu);
    assert_eq!(Report::from_results(&results), Report::from_results(&results));
    assert_eq!(run(&results.trials[0].trial), results.trials[0], "the generator is deterministic");
    assert!(Suite::parse(REPEATED).is_ok());
}
