//! Two reports against each other: what changed is found, and what did not change is not.

use migperf_core::compare::{Comparison, Row, Verdict, decide, markdown, text};
use migperf_core::record::JobResults;
use migperf_core::report::Report;
use migperf_core::sample::{Sample, Samples};
use migperf_core::stats::Change;
use migperf_core::suite::Target;
use migperf_core::trial::Sharing;
use migperf_core::units::MonotonicNanos;

use crate::page::MIXED;
use crate::synthetic::{job, troubled};

/// Every batch of the trials that are chosen takes longer, by a factor in thousandths.
fn slowed(mut results: JobResults, choose: impl Fn(&Sharing) -> bool, per_mille: u64) -> JobResults {
    for record in results.trials.iter_mut().filter(|record| choose(&record.trial.spec.sharing)) {
        let origin = record.start.unwrap().0 - 1_000_000_000;
        let later = |at: MonotonicNanos| MonotonicNanos(origin + (at.0 - origin) * per_mille / 1_000);
        for member in &mut record.members {
            let samples: Vec<Sample> = member
                .samples
                .as_slice()
                .iter()
                .map(|sample| Sample { start: later(sample.start), end: later(sample.end), ..*sample })
                .collect();
            member.samples = Samples::new(samples).unwrap();
        }
    }
    results
}

fn report(results: &JobResults) -> Report {
    Report::from_results(results)
}

fn of_mps(row: &Row) -> bool {
    row.cell.starts_with("mps")
}

#[test]
fn a_report_is_the_same_as_itself() {
    let report = report(&job(MIXED, Target::Gpu));
    let comparison = Comparison::of(&report, &report, 0.02);
    assert!(comparison.rows.len() > 10);
    let strays: Vec<&Row> = comparison.rows.iter().filter(|row| row.verdict != Verdict::Same).collect();
    assert!(strays.is_empty(), "{strays:#?}");
    assert!(comparison.differences.is_empty() && comparison.only_before.is_empty());
}

#[test]
fn what_got_slower_is_found_and_nothing_else() {
    let before = job(MIXED, Target::Gpu);
    let after = slowed(before.clone(), |sharing| matches!(sharing, Sharing::Mps { .. }), 1_200);
    let (before, after) = (report(&before), report(&after));
    let comparison = Comparison::of(&before, &after, 0.02);
    for row in &comparison.rows {
        let wanted = match (of_mps(row), row.metric.as_str()) {
            (false, _) => Verdict::Same,
            (true, _) => Verdict::Worse,
        };
        assert_eq!(row.verdict, wanted, "{row:?}");
    }
    assert!(comparison.is_regression());
    let back = Comparison::of(&after, &before, 0.02);
    assert!(back.rows.iter().filter(|row| of_mps(row)).all(|row| row.verdict == Verdict::Better));
    assert!(!back.is_regression());
    let shown = text::render(&comparison, 110, false);
    assert!(shown.contains("worse") && shown.lines().all(|line| line.chars().count() <= 110), "{shown}");
    let shown = markdown::render(&comparison);
    assert!(shown.starts_with("### migperf: worse\n") && shown.contains("| worse | mps: 1x resnet18"), "{shown}");
}

#[test]
fn less_than_matters_is_no_change() {
    let before = job(MIXED, Target::Gpu);
    let after = slowed(before.clone(), |_| true, 1_010);
    let comparison = Comparison::of(&report(&before), &report(&after), 0.02);
    assert!(!comparison.is_regression(), "{comparison:#?}");
    let strict = Comparison::of(&report(&before), &report(&after), 0.001);
    assert!(strict.count(Verdict::Same) == 0);
}

#[test]
fn one_cohort_a_side_decides_nothing() {
    let once = MIXED.replace("repeats = 4", "repeats = 1");
    let before = job(&once, Target::Gpu);
    let after = slowed(before.clone(), |_| true, 2_000);
    let comparison = Comparison::of(&report(&before), &report(&after), 0.02);
    assert_eq!(comparison.count(Verdict::CantTell), comparison.rows.len());
    assert!(text::render(&comparison, 100, false).contains("needs 2 cohorts on each side"));
}

#[test]
fn the_context_is_named() {
    let before = report(&job(MIXED, Target::Gpu));
    let mut results = job(&MIXED.replace("window = \"30s\"", "window = \"15s\""), Target::Gpu);
    results.job.host.kernel = "6.13.0".to_owned();
    results.job.suite_digest = "0".repeat(64);
    let comparison = Comparison::of(&before, &report(&results), 0.02);
    let named: Vec<&str> = comparison.differences.iter().map(|difference| difference.what.as_str()).collect();
    assert!(named.contains(&"kernel") && named.contains(&"suite's digest"), "{named:?}");
    assert!(named.iter().any(|what| what.starts_with("windows of")), "{named:?}");
    let strange = Comparison::of(&before, &report(&troubled()), 0.02);
    assert!(strange.simulated && !strange.only_before.is_empty() && !strange.only_after.is_empty());
    assert!(
        markdown::render(&strange).contains("SIMULATED") && text::render(&strange, 90, false).contains("SIMULATED")
    );
}

/// Numbers without a pattern that matters, normally distributed (SplitMix64 and Box-Muller).
struct Noise(u64);

impl Noise {
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn normal(&mut self) -> f64 {
        let (a, b) = (1.0 - self.uniform(), self.uniform());
        (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos()
    }
}

/// Comparisons of whole reports of the same thing in which something "changed": at most 5 %, whatever the noise, the
/// number of repeats, and how numbers of one cohort hang together. The bound is three standard errors above that.
#[test]
fn the_same_thing_twice_raises_at_most_5_percent_false_alarms_per_report() {
    let mut noise = Noise(7);
    for (repeats, spread, least) in [(3, 0.03, 0.02), (3, 0.03, 0.0), (5, 0.01, 0.0), (10, 0.002, 0.0), (2, 0.05, 0.0)]
    {
        let (reports, cells) = (1_000, 12);
        let mut alarms = 0_u32;
        for _ in 0..reports {
            let mut sides = Vec::new();
            for _ in 0..cells {
                // Throughput and latency of one cohort vary together, and apart.
                let mut side = || -> Vec<[f64; 3]> {
                    (0..repeats)
                        .map(|_| {
                            let common = spread * noise.normal();
                            [1.0, -1.0, -1.0].map(|sign| 100.0 * (sign * common + 0.3 * spread * noise.normal()).exp())
                        })
                        .collect()
                };
                let (before, after) = (side(), side());
                for metric in 0..3 {
                    let of = |side: &[[f64; 3]]| side.iter().map(|cohort| cohort[metric]).collect::<Vec<_>>();
                    sides.push((of(&before), of(&after)));
                }
            }
            let alarm = decide(&sides, least).iter().any(|(_, change)| matches!(change, Change::More | Change::Less));
            alarms += u32::from(alarm);
        }
        let share = f64::from(alarms) / f64::from(reports);
        assert!(
            share <= 0.05 + 3.0 * (0.05 * 0.95 / f64::from(reports)).sqrt(),
            "{repeats} repeats, {spread}: {share}"
        );
    }
}

/// The other side of it: a real change is found among many numbers that did not change.
#[test]
fn a_change_of_ten_percent_is_found_in_four_of_five_reports() {
    let mut noise = Noise(11);
    let (reports, mut found) = (300_u32, 0);
    for _ in 0..reports {
        let sides: Vec<(Vec<f64>, Vec<f64>)> = (0..40)
            .map(|cell| {
                let mut side = |mean: f64| (0..5).map(|_| mean * (0.01 * noise.normal()).exp()).collect::<Vec<f64>>();
                (side(100.0), side(if cell == 17 { 110.0 } else { 100.0 }))
            })
            .collect();
        found += u32::from(decide(&sides, 0.02)[17].1 == Change::More);
    }
    assert!(found * 5 >= reports * 4, "{found} of {reports}");
}
