//! Each rule of measuring, by a record that keeps it and records that break it.

use migperf_core::device::Reading;
use migperf_core::record::TrialRecord;
use migperf_core::report::{Fault, Finding, Flag, TrialReport, Verdict};
use migperf_core::sample::{Sample, Samples};
use migperf_core::telemetry::{Column, ThrottleReasons};
use migperf_core::trial::{Sharing, TrialSpec};
use migperf_core::units::{Bytes, MonotonicNanos};
use migperf_core::worker_wire::Allocation;
use migperf_core::workload::Task;

use crate::synthetic::{MS, OTHER_GPU, batch, foreign, planned, record, resnet18, steady, timing};

fn near(found: Option<f64>, wanted: f64) {
    let found = found.expect("there is a number");
    assert!((found - wanted).abs() <= 1e-9 * wanted.abs(), "{found} is not {wanted}");
}

/// Two members over the window from 1000 to 2000 ms. Member 0 runs 100 ms batches without a pause from 950 ms on,
/// member 1 runs 90 ms batches every 100 ms from 1030 ms on.
fn small(minimum_batches: u32) -> TrialRecord {
    let spec = TrialSpec {
        sharing: Sharing::TimeSlice,
        members: vec![resnet18(Task::Infer); 2],
        timing: timing(1_000, minimum_batches),
    };
    let every = |from: u64, length: u64| {
        (0..11).map(|i| batch((from + 100 * i) * MS, (from + 100 * i + length) * MS)).collect::<Vec<_>>()
    };
    record(planned(spec), (1_000, 2_000), vec![every(950, 100), every(1_030, 90)])
}

#[test]
fn a_small_cohort_by_hand() {
    let report = TrialReport::of(&small(9));
    // Whole in the window: member 0 from 1050 to 1950, member 1 from 1030 to 1920. In common: 1050 to 1920.
    let window = report.window.unwrap();
    near(Some(window.window_s), 1.0);
    near(window.common_s.number(), 0.87);
    near(window.common_share.number(), 0.87);
    near(window.start_skew_us.number(), 80_000.0);

    // Member 0 counts the eight batches from 1050 to 1850. Cut: 950-1050 and 1950-2050 by the window, 1850-1950 by the
    // common interval. Member 1 counts the eight from 1130 to 1920. Cut: 1030-1120 and 1930-2020.
    let [first, second] = report.members.as_slice() else { panic!("two members") };
    let batches = first.batches.unwrap();
    assert_eq!((batches.counted, batches.in_window, batches.outside_common, batches.censored), (8, 9, 0, 3));
    let batches = second.batches.unwrap();
    assert_eq!((batches.counted, batches.in_window, batches.outside_common, batches.censored), (8, 9, 0, 2));

    // 8 x 32 items in 800 ms, and in 1130 to 1920 = 790 ms; the article divides by the common 870 ms.
    near(first.throughput_samples_per_s.number(), 320.0);
    near(second.throughput_samples_per_s.number(), 256.0 / 0.79);
    near(first.article_samples_per_s.number(), 256.0 / 0.87);
    near(first.requests_per_min.number(), 19_200.0);
    near(first.latency_ms.mean.number(), 100.0);
    near(second.latency_ms.mean.number(), 90.0);
    near(second.gap_share.number(), 1.0 - 720.0 / 790.0);
    assert_eq!(first.gap_share.number(), Some(0.0));

    let [group] = report.groups.as_slice() else { panic!("one group") };
    let sum = 320.0 + 256.0 / 0.79;
    near(group.throughput_samples_per_s.number(), sum);
    near(group.latency_ms.mean.number(), 95.0);
    near(group.latency_ms.nearest_rank.p50.number(), 90.0);
    near(group.latency_ms.nearest_rank.p90.number(), 100.0);
    near(group.latency_ms.linear.p50.number(), 95.0);
    assert_eq!(group.latency_ms.nearest_rank.p99.reason(), Some("p99 needs 100 samples, there are 16"));
    assert_eq!(group.slowest.member, 0);
    near(group.fairness.number(), sum * sum / (2.0 * (320.0_f64.powi(2) + (256.0_f64 / 0.79).powi(2))));

    // 400 W over 0.87 s, known to two steps of 40 J; per item over the sum of the rates.
    let energy = report.device.energy_j.value().unwrap();
    near(Some(energy.value), 348.0);
    near(Some(energy.uncertainty), 80.0);
    near(report.device.energy_per_sample_j.number(), 348.0 / (sum * 0.87));
    near(report.device.power_w.number(), 400.0);
    near(report.device.frame_buffer_bytes.number(), 2.0 * f64::from(1_u32 << 31));
    near(report.device.gract.number(), 0.875);

    let flags: Vec<Flag> = report.flags.iter().map(|flag| flag.code).collect();
    assert_eq!(flags, [Flag::CoarseEnergy, Flag::BatchGaps], "{:?}", report.flags);
    assert_eq!(report.outcome, Verdict::Flagged);
}

/// Seven aligned members over a window of 45 s.
fn seven() -> TrialRecord {
    let spec = TrialSpec {
        sharing: Sharing::Mps { active_thread_percentage: None },
        members: vec![resnet18(Task::Train); 7],
        timing: timing(45_000, 30),
    };
    record(planned(spec), (60_000, 105_000), vec![steady(57_000, 106_000, 100); 7])
}

fn set_samples(record: &mut TrialRecord, member: usize, samples: Vec<Sample>) {
    record.members[member].done.samples = samples.len() as u64;
    record.members[member].samples = Samples::new(samples).unwrap();
}

#[test]
fn seven_aligned_members_are_valid() {
    let report = TrialReport::of(&seven());
    assert_eq!(report.outcome, Verdict::Valid, "{:?}", report.flags);
    assert!(report.flags.is_empty());
    let [group] = report.groups.as_slice() else { panic!("one group") };
    near(group.throughput_samples_per_s.number(), 7.0 * 320.0);
    near(group.fairness.number(), 1.0);
    assert_eq!(group.requests_per_min.reason(), Some("training serves no requests"));
    assert_eq!(report.members[0].batches.unwrap().counted, 450);
    assert!(group.latency_ms.nearest_rank.p99_9.number().is_some(), "3150 pooled batches are enough");
    assert!(report.members[0].latency_ms.nearest_rank.p99_9.reason().unwrap().contains("1000"), "450 are not");
}

/// Breaks seven aligned members and expects exactly these faults, and no numbers.
fn check_fault(name: &str, break_it: impl FnOnce(&mut TrialRecord), wanted: &[Fault]) {
    let mut record = seven();
    break_it(&mut record);
    let report = TrialReport::of(&record);
    let Verdict::Invalid { faults } = &report.outcome else { panic!("{name}: {:?}", report.outcome) };
    let mut codes: Vec<Fault> = faults.iter().map(|fault| fault.code).collect();
    codes.dedup();
    assert_eq!(codes, wanted, "{name}: {faults:?}");
    assert!(report.groups.is_empty(), "{name}");
    for member in &report.members {
        assert_eq!(member.throughput_samples_per_s.reason(), Some("the trial is invalid"), "{name}");
        assert_eq!(member.latency_ms.mean.reason(), Some("the trial is invalid"), "{name}");
        assert_eq!(member.article_samples_per_s.reason(), Some("the trial is invalid"), "{name}");
        assert_eq!(member.items.reason(), Some("the trial is invalid"), "{name}");
    }
    assert_eq!(report.device.energy_j.reason(), Some("the trial is invalid"), "{name}");
}

#[test]
fn each_broken_rule_fails_the_cohort_with_its_reason() {
    check_fault("a missing member", |record| drop(record.members.pop()), &[Fault::MissingMember]);
    check_fault("one process twice", |record| record.members[3].pid = record.members[2].pid, &[Fault::DuplicateMember]);
    check_fault(
        "one member with batches of 16",
        |record| {
            let other = |sample: &Sample| Sample { items: 16, ..*sample };
            let samples = record.members[5].samples.as_slice().iter().map(other).collect();
            set_samples(record, 5, samples);
        },
        &[Fault::Configuration],
    );
    check_fault(
        "a disagreement about the configuration",
        |record| record.members[1].ready.digest.0 = "another".into(),
        &[Fault::Configuration],
    );
    check_fault(
        "35.9 s of 45 s in common",
        |record| set_samples(record, 6, steady(69_100, 106_000, 100)),
        &[Fault::ThinOverlap],
    );
    check_fault("an early end", |record| set_samples(record, 0, steady(57_000, 95_900, 100)), &[Fault::ThinOverlap]);
    check_fault("no batch at all", |record| set_samples(record, 4, Vec::new()), &[Fault::NoBatches]);
    check_fault(
        "one batch longer than the window",
        |record| set_samples(record, 4, vec![batch(57_000 * MS, 107_000 * MS)]),
        &[Fault::NoBatches],
    );
    check_fault(
        "members on two GPUs",
        |record| {
            let uuid = OTHER_GPU.parse().ok();
            if let Allocation::Cuda { uuid: assigned, .. } = &mut record.members[2].allocation {
                *assigned = uuid.clone().unwrap();
            }
            record.members[2].built.proof.uuid = uuid;
        },
        &[Fault::OtherDevice],
    );
    check_fault(
        "another GPU than assigned",
        |record| record.members[2].built.proof.uuid = OTHER_GPU.parse().ok(),
        &[Fault::OtherDevice],
    );
    check_fault("not a number", |record| record.members[0].done.finite = Some(false), &[Fault::NotFinite]);
    check_fault("lost samples", |record| record.members[0].done.lost = 1, &[Fault::LostSamples]);
    check_fault("samples that never came", |record| record.members[0].done.samples += 1, &[Fault::LostSamples]);
    check_fault("no window", |record| record.window = None, &[Fault::NoWindow]);
}

#[test]
fn an_overlap_of_exactly_80_percent_is_enough() {
    let mut record = seven();
    set_samples(&mut record, 6, steady(69_000, 106_000, 100));
    let report = TrialReport::of(&record);
    assert_eq!(report.outcome, Verdict::Valid);
    near(report.window.unwrap().common_share.number(), 0.8);
    let batches = report.members[0].batches.unwrap();
    assert_eq!((batches.counted, batches.outside_common, batches.in_window), (360, 90, 450));
}

#[test]
fn members_on_one_mig_device_are_a_duplicate_and_on_two_are_not() {
    let mut record = seven();
    record.trial.spec.sharing = Sharing::mig("7x1g");
    let mig = |member: usize| format!("MIG-5ebe9c2f-a33f-4a4c-bb17-00000000000{member}").parse().unwrap();
    let assign = |record: &mut TrialRecord, member: usize, device: usize| {
        if let Allocation::Cuda { uuid, .. } = &mut record.members[member].allocation {
            *uuid = mig(device);
        }
        record.members[member].built.proof.uuid = Some(mig(device));
    };
    for member in 0..7 {
        assign(&mut record, member, member);
    }
    assert_eq!(TrialReport::of(&record).outcome, Verdict::Valid);
    assign(&mut record, 6, 2);
    let Verdict::Invalid { faults } = TrialReport::of(&record).outcome else { panic!("invalid") };
    assert_eq!(faults[0].code, Fault::DuplicateMember);
}

#[test]
fn others_on_the_device_contaminate_even_a_complete_trial() {
    let mut record = seven();
    record.foreign.push(foreign());
    let report = TrialReport::of(&record);
    let Verdict::Contaminated { reason } = &report.outcome else { panic!("{:?}", report.outcome) };
    assert_eq!(reason, "others used the device: /usr/bin/python3 (4711)");
    assert!(report.groups.is_empty() && report.device.energy_j.reason().is_some());
}

/// Changes seven aligned members and expects exactly these flags, with numbers.
fn check_flag(name: &str, change: impl FnOnce(&mut TrialRecord), wanted: &[Flag], verdict: Verdict) {
    let mut record = seven();
    change(&mut record);
    let report = TrialReport::of(&record);
    let mut codes: Vec<Flag> = report.flags.iter().map(|flag| flag.code).collect();
    codes.dedup();
    assert_eq!(codes, wanted, "{name}: {:?}", report.flags);
    assert_eq!(report.outcome, verdict, "{name}");
    assert!(report.groups[0].throughput_samples_per_s.number().is_some(), "{name}");
}

fn series(record: &mut TrialRecord, change: impl FnOnce(&mut migperf_core::telemetry::TelemetrySeries)) {
    match &mut record.telemetry {
        Reading::Value(series) => change(series),
        Reading::Absent(reason) => panic!("{reason}"),
    }
}

#[test]
fn each_flag_is_raised_by_its_cause() {
    let flagged = || Verdict::Flagged;
    check_flag("few batches", |record| record.trial.spec.timing.minimum_batches = 451, &[Flag::FewBatches], flagged());
    check_flag("just enough", |record| record.trial.spec.timing.minimum_batches = 450, &[], Verdict::Valid);
    check_flag(
        "pauses between batches",
        |record| {
            let samples = (0..490).map(|i| batch((57_000 + 100 * i) * MS, (57_000 + 100 * i + 94) * MS)).collect();
            set_samples(record, 3, samples);
        },
        &[Flag::BatchGaps],
        flagged(),
    );
    let throttled = |record: &mut TrialRecord, slowed: usize| {
        series(record, |series| {
            let rows = series.monotonic.len();
            let reasons = (0..rows).map(|row| Some(ThrottleReasons(if row % 100 < slowed { 0x20 } else { 0 })));
            series.throttle = Column::Values(reasons.collect());
        });
    };
    check_flag("thermal slowdown", |record| throttled(record, 5), &[Flag::Throttled], flagged());
    check_flag("none", |record| throttled(record, 0), &[], Verdict::Valid);
    check_flag(
        "missing samples of the device",
        |record| {
            series(record, |series| {
                let gone = |at: &MonotonicNanos| at.0 > 70_000 * MS && at.0 < 76_000 * MS;
                let keep: Vec<bool> = series.monotonic.iter().map(|at| !gone(at)).collect();
                let Column::Values(power) = &mut series.power_instant else { panic!("a column") };
                for (row, keep) in keep.iter().enumerate() {
                    if !keep {
                        power[row] = None;
                    }
                }
            });
        },
        &[Flag::TelemetryGaps],
        flagged(),
    );
    check_flag(
        "an energy counter that moves every three seconds",
        |record| {
            series(record, |series| {
                let Reading::Value(edges) = &mut series.energy else { panic!("edges") };
                let mut row = 0;
                edges.retain(|_| {
                    row += 1;
                    (row - 1) % 30 == 0
                });
                let last = *edges.last().unwrap();
                edges.push(migperf_core::telemetry::EnergyEdge {
                    at: MonotonicNanos(last.at.0 + 3_000 * MS),
                    value: migperf_core::units::Millijoules(last.value.0 + 1_200_000),
                });
            });
        },
        &[Flag::CoarseEnergy],
        flagged(),
    );
    check_flag(
        "activity above 1",
        |record| {
            series(record, |series| {
                let Reading::Value(strides) = &mut series.gract else { panic!("strides") };
                strides.iter_mut().for_each(|stride| stride.value = Some(1.2));
            });
        },
        &[Flag::GractRange],
        flagged(),
    );
    check_flag("an extended window", |record| record.extended = true, &[Flag::WindowExtended], Verdict::Valid);
    check_flag(
        "processors in common",
        |record| record.members[0].processors_disjoint = false,
        &[Flag::SharedProcessors],
        Verdict::Valid,
    );
}

#[test]
fn what_the_device_does_not_say_is_missing_and_not_zero() {
    let mut record = seven();
    record.telemetry = Reading::absent("NVML is not installed");
    let report = TrialReport::of(&record);
    assert_eq!(report.outcome, Verdict::Valid);
    assert_eq!(report.device.energy_j.reason(), Some("NVML is not installed"));
    assert_eq!(report.device.energy_per_sample_j.reason(), Some("NVML is not installed"));
    assert_eq!(report.device.frame_buffer_bytes.reason(), Some("NVML is not installed"));
    record.members[0].done.allocated_peak = None;
    record.members[1].done.allocated_peak = Some(Bytes(7));
    let report = TrialReport::of(&record);
    assert!(report.members[0].allocated_peak_bytes.reason().is_some());
    near(report.members[1].allocated_peak_bytes.number(), 7.0);
}

#[test]
fn unlike_work_is_never_added_up() {
    let mut record = seven();
    record.trial.spec.members[0] = resnet18(Task::Infer);
    let report = TrialReport::of(&record);
    let [one, six] = report.groups.as_slice() else { panic!("two groups") };
    near(one.throughput_samples_per_s.number(), 320.0);
    near(six.throughput_samples_per_s.number(), 6.0 * 320.0);
    assert_eq!((one.members.as_slice(), six.members.as_slice()), (&[0][..], &[1, 2, 3, 4, 5, 6][..]));
    assert!(report.device.energy_j.number().is_some());
    let Finding::Absent(absent) = &report.device.energy_per_sample_j else { panic!("no energy for an unlike item") };
    assert!(absent.reason.contains("unlike"));
}
