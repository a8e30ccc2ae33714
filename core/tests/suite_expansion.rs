//! In which order lists expand, where values come from that a suite leaves out, and which trials a plan makes of it.

use migperf_core::plan::{Origin, Plan, render_text};
use migperf_core::suite::{Metric, Suite, Target};
use migperf_core::trial::{Purpose, TrialSpec};
use migperf_core::units::Span;
use migperf_core::workload::{MemoryFormat, Precision};

fn suite(body: &str) -> Suite {
    let text = format!("version = 1\nname = \"x\"\n{body}");
    Suite::parse(&text).unwrap_or_else(|errors| panic!("{text}\n{errors}"))
}

fn cells(suite: &Suite) -> Vec<String> {
    suite.trials.iter().flat_map(|trial| &trial.cells).map(TrialSpec::to_string).collect()
}

#[test]
fn sharing_is_outermost_then_workers_then_the_workload() {
    let suite = suite(
        r#"
        [[trial]]
        sharing = ["time-slice", { mode = "mps", active-thread-percentage = [14, 50] }]
        workers = [1, 4]
        workload = { batch-size = [1, 8], task = "infer", model = ["resnet18", "vit-b-16"] }"#,
    );
    let mut expected = Vec::new();
    for sharing in ["time-slice", "mps@14%", "mps@50%"] {
        for workers in [1, 4] {
            for model in ["resnet18", "vit-b-16"] {
                for batch in [1, 8] {
                    expected.push(format!("{sharing}: {workers}x {model} infer b{batch} fp32"));
                }
            }
        }
    }
    assert_eq!(cells(&suite), expected);
}

#[test]
fn workload_keys_expand_in_their_documented_order() {
    let suite = suite(
        r#"
        [[trial]]
        sharing = "exclusive"
        workload = { cudnn = ["heuristic", "tuned"], wait = ["spin", "block"], input = ["device", "host"],
            sequence-length = [32, 64], batch-size = [1, 2], precision = ["fp32", "bf16"], task = ["train", "infer"],
            model = ["distilbert", "bert-base"] }"#,
    );
    let mut expected = Vec::new();
    for model in ["distilbert", "bert-base"] {
        for task in ["train", "infer"] {
            for precision in ["fp32", "bf16"] {
                for batch in ["b1", "b2"] {
                    for length in ["s32", "s64"] {
                        for input in ["", " host-input"] {
                            for wait in ["", " block-wait"] {
                                for cudnn in ["", " cudnn-tuned"] {
                                    expected.push(format!(
                                        "exclusive: 1x {model} {task} {batch} {length} {precision}{input}{wait}{cudnn}"
                                    ));
                                }
                            }
                        }
                    }
                }
            }
        }
    }
    assert_eq!(cells(&suite), expected);
}

#[test]
fn lists_of_members_expand_the_last_one_fastest() {
    let suite = suite(
        r#"
        [[trial]]
        sharing = "time-slice"
        members = [
            { workload = { model = "resnet18", task = "infer", batch-size = [1, 8] } },
            { count = 2, workload = { model = "resnet18", task = "train", batch-size = [16, 32] } },
        ]"#,
    );
    let expected = [(1, 16), (1, 32), (8, 16), (8, 32)]
        .map(|(infer, train)| format!("time-slice: 1x resnet18 infer b{infer} fp32 + 2x resnet18 train b{train} fp32"));
    assert_eq!(cells(&suite), expected);
}

#[test]
fn what_is_left_out_has_its_documented_default() {
    let suite = suite(
        r#"
        [[trial]]
        sharing = "exclusive"
        workload = { model = ["resnet18", "bert-base"], task = "infer", batch-size = 1, precision = ["fp32", "bf16"] }"#,
    );
    assert_eq!((suite.repeats, suite.seed), (1, 1));
    let cells = &suite.trials[0].cells;
    let timing = cells[0].timing;
    let spans = [timing.warmup, timing.settle, timing.window, timing.longest_window, timing.ready_limit];
    assert_eq!(spans.map(|span| span.to_string()), ["3s", "3s", "45s", "2m15s", "2m"]);
    assert_eq!((timing.warmup_batches, timing.minimum_batches), (20, 30));
    let formats: Vec<MemoryFormat> = cells.iter().map(|cell| cell.members[0].memory_format).collect();
    use MemoryFormat::{ChannelsLast, Contiguous};
    assert_eq!(formats, [Contiguous, ChannelsLast, Contiguous, Contiguous]);
    let lengths: Vec<Option<u32>> = cells.iter().map(|cell| cell.members[0].sequence_length).collect();
    assert_eq!(lengths, [None, None, Some(128), Some(128)]);
}

#[test]
fn a_trial_goes_before_defaults_and_a_workload_before_both() {
    let suite = suite(
        r#"
        [defaults]
        precision = "bf16"
        sequence-length = 64
        memory-format = "contiguous"
        window = "30s"
        longest-window = "40s"
        [[trial]]
        sharing = "exclusive"
        workload = { model = ["resnet18", "bert-base"], task = "infer", batch-size = 1 }
        [[trial]]
        sharing = "exclusive"
        precision = "fp16"
        window = "35s"
        sequence-length = 32
        workload = { model = "bert-base", task = "infer", batch-size = 1 }
        [[trial]]
        sharing = "exclusive"
        precision = "fp16"
        workload = { model = "bert-base", task = "infer", batch-size = 1, precision = "tf32", sequence-length = 16 }"#,
    );
    assert_eq!(
        cells(&suite),
        [
            "exclusive: 1x resnet18 infer b1 bf16 contiguous",
            "exclusive: 1x bert-base infer b1 s64 bf16",
            "exclusive: 1x bert-base infer b1 s32 fp16",
            "exclusive: 1x bert-base infer b1 s16 tf32",
        ]
    );
    let windows = |trial: usize| {
        let timing = suite.trials[trial].cells[0].timing;
        (timing.window.to_string(), timing.longest_window.to_string())
    };
    assert_eq!(windows(0), ("30s".into(), "40s".into()));
    assert_eq!(windows(1), ("35s".into(), "40s".into()));
    assert_eq!(suite.trials[2].cells[0].members[0].precision, Precision::Tf32);
}

#[test]
fn a_layout_of_one_profile_gives_each_worker_an_instance() {
    let suite = suite(
        r#"
        [[trial]]
        sharing = { mode = "mig", layout = ["1g", "3g+2g+1g+1g"] }
        workers = [1, 4]
        workload = { model = "resnet18", task = "infer", batch-size = 1 }"#,
    );
    let sharings: Vec<String> = suite.trials[0].cells.iter().map(|cell| cell.sharing.to_string()).collect();
    assert_eq!(sharings, ["mig 1g", "mig 4x1g", "mig 3g+2g+2x1g", "mig 3g+2g+2x1g"]);
}

#[test]
fn an_objective_is_read_in_its_unit() {
    let body = r#"
        [objective]
        metric = "p99"
        at-most = "0.02s"
        of = { model = "resnet18", task = "infer" }
        [[trial]]
        sharing = "exclusive"
        workload = { model = "resnet18", task = "infer", batch-size = 1 }"#;
    let objective = suite(body).objective.unwrap();
    assert_eq!((objective.metric, objective.bound), (Metric::P99, Some(20.0)));
    assert_eq!(objective.to_string(), "p99 of resnet18 infer at most 20ms");
}

/// What a plan does, a line a trial: where from, then what.
fn planned(plan: &Plan) -> Vec<String> {
    let line = |trial: &migperf_core::trial::PlannedTrial| {
        let purpose = match trial.purpose {
            Purpose::Requested => "asked",
            Purpose::Baseline => "added",
            Purpose::Drift => "again",
        };
        format!("{} {purpose} {}", trial.repeat, trial.spec)
    };
    plan.trials.iter().map(line).collect()
}

fn check(body: &str, target: Target, expected: &[&str]) -> Plan {
    let plan = Plan::expand(&suite(body), target).unwrap();
    assert_eq!(planned(&plan), expected);
    plan
}

#[test]
fn exclusive_is_first_and_last_and_missing_baselines_are_added() {
    let plan = check(
        r#"
        [defaults]
        repeats = 2
        [[trial]]
        sharing = "mps"
        workers = 4
        workload = { model = "resnet18", task = "train", batch-size = 1 }
        [[trial]]
        sharing = "exclusive"
        workload = { model = "resnet18", task = "infer", batch-size = 1 }
        [[trial]]
        sharing = "time-slice"
        workers = [1, 4]
        workload = { model = "resnet18", task = "infer", batch-size = 1 }"#,
        Target::Gpu,
        &[
            "0 asked exclusive: 1x resnet18 infer b1 fp32",
            "0 added exclusive: 1x resnet18 train b1 fp32",
            "0 added mps: 1x resnet18 train b1 fp32",
            "0 asked mps: 4x resnet18 train b1 fp32",
            "0 asked time-slice: 1x resnet18 infer b1 fp32",
            "0 asked time-slice: 4x resnet18 infer b1 fp32",
            "1 asked exclusive: 1x resnet18 infer b1 fp32",
            "1 added exclusive: 1x resnet18 train b1 fp32",
            "1 added mps: 1x resnet18 train b1 fp32",
            "1 asked mps: 4x resnet18 train b1 fp32",
            "1 asked time-slice: 1x resnet18 infer b1 fp32",
            "1 asked time-slice: 4x resnet18 infer b1 fp32",
            "2 again exclusive: 1x resnet18 infer b1 fp32",
            "2 again exclusive: 1x resnet18 train b1 fp32",
        ],
    );
    assert_eq!(plan.layout_changes(), 0);
    assert_eq!(plan.origins[1], Origin::Baseline { of: 3 });
    assert_eq!(plan.origins[0], Origin::Suite { line: 10 });
}

#[test]
fn on_the_cpu_single_workers_are_the_baselines() {
    check(
        r#"
        [[trial]]
        sharing = "cpu"
        members = [
            { workload = { model = "resnet18", task = "infer", batch-size = 1 } },
            { workload = { model = "resnet18", task = "train", batch-size = 1 } },
        ]
        [[trial]]
        sharing = "cpu"
        workload = { model = "resnet18", task = "train", batch-size = 1 }"#,
        Target::Cpu,
        &[
            "0 asked cpu: 1x resnet18 train b1 fp32",
            "0 added cpu: 1x resnet18 infer b1 fp32",
            "0 asked cpu: 1x resnet18 infer b1 fp32 + 1x resnet18 train b1 fp32",
            "1 again cpu: 1x resnet18 train b1 fp32",
            "1 again cpu: 1x resnet18 infer b1 fp32",
        ],
    );
}

#[test]
fn mig_baselines_are_alone_on_the_same_profile_and_layouts_stay_together() {
    let plan = check(
        r#"
        [[trial]]
        sharing = { mode = "mig", layout = "3g+1g" }
        members = [
            { workload = { model = "resnet18", task = "train", batch-size = 1 } },
            { workload = { model = "resnet18", task = "infer", batch-size = 1 } },
        ]
        [[trial]]
        sharing = "time-slice"
        workload = { model = "resnet18", task = "infer", batch-size = 1 }
        [[trial]]
        sharing = { mode = "mig", layout = ["2x2g", "1g+3g"] }
        workload = { model = "resnet18", task = "infer", batch-size = 1 }
        [[trial]]
        sharing = { mode = "mig", layout = "2g" }
        workload = { model = "resnet18", task = "train", batch-size = 1 }"#,
        Target::Gpu,
        &[
            "0 added exclusive: 1x resnet18 train b1 fp32",
            "0 added exclusive: 1x resnet18 infer b1 fp32",
            "0 asked time-slice: 1x resnet18 infer b1 fp32",
            "0 added mig 3g: 1x resnet18 train b1 fp32",
            "0 asked mig 3g+1g: 1x resnet18 train b1 fp32 + 1x resnet18 infer b1 fp32",
            "0 asked mig 1g+3g: 1x resnet18 infer b1 fp32",
            "0 asked mig 2x2g: 1x resnet18 infer b1 fp32",
            "0 asked mig 2g: 1x resnet18 train b1 fp32",
            "1 again exclusive: 1x resnet18 train b1 fp32",
            "1 again exclusive: 1x resnet18 infer b1 fp32",
        ],
    );
    let layouts: Vec<(u32, u32, Option<String>)> = plan
        .layouts()
        .into_iter()
        .map(|stretch| (stretch.first, stretch.trials, stretch.layout.map(|layout| layout.to_string())))
        .collect();
    assert_eq!(layouts, [(0, 3, None), (3, 3, Some("3g+1g".into())), (6, 2, Some("2x2g".into())), (8, 2, None)]);
    assert_eq!(plan.layout_changes(), 3);
}

#[test]
fn cells_asked_for_twice_are_measured_once() {
    let plan = Plan::expand(
        &suite(
            r#"
        [[trial]]
        sharing = "exclusive"
        workload = { model = "resnet18", task = "infer", batch-size = [1, 1, 2] }
        [[trial]]
        sharing = "exclusive"
        settle = "500ms"
        workload = { model = "resnet18", task = "infer", batch-size = 1 }
        [[trial]]
        sharing = "exclusive"
        workload = { model = "resnet18", task = "infer", batch-size = [2, 4] }"#,
        ),
        Target::Gpu,
    )
    .unwrap();
    assert_eq!(plan.cells.len(), 4);
    assert_eq!(
        plan.warnings,
        [
            "line 4: 1 of its trials are already asked for by line 4 and measured once",
            "line 7: a settle phase under 3s may end before the device's clocks are steady",
            "line 11: 1 of its trials are already asked for by line 4 and measured once",
        ]
    );
}

#[test]
fn trials_for_the_other_target_are_left_out_or_refused() {
    let body = r#"
        [[trial]]
        only-on = "cpu"
        sharing = "cpu"
        workload = { model = "resnet18", task = "infer", batch-size = [1, 2] }
        [[trial]]
        sharing = "exclusive"
        workload = { model = "resnet18", task = "infer", batch-size = 1 }"#;
    let plan = Plan::expand(&suite(body), Target::Gpu).unwrap();
    assert_eq!(plan.cells.len(), 1);
    let left = &plan.left_out[0];
    assert_eq!(
        (left.what.as_str(), left.why.as_str()),
        ("line 4: cpu: 1x resnet18 infer b1 fp32 and 1 more", "it is for the CPU only")
    );
    assert_eq!(
        Plan::expand(&suite(body), Target::Cpu).unwrap_err().to_string(),
        "the [[trial]] of line 8 needs the GPU, and this run is on the CPU; add `only-on = \"gpu\"` to leave them out here"
    );
    let body = body.replace("sharing = \"exclusive\"", "only-on = \"cpu\"\nsharing = \"cpu\"");
    assert_eq!(
        Plan::expand(&suite(&body), Target::Gpu).unwrap_err().to_string(),
        "nothing of this suite can be measured on the GPU: it is for the CPU only"
    );
}

#[test]
fn what_a_device_can_t_do_is_left_out_with_its_baselines() {
    let suite = suite(
        r#"
        [[trial]]
        sharing = ["exclusive"]
        workload = { model = "resnet18", task = "train", batch-size = 1 }
        [[trial]]
        sharing = { mode = "mig", layout = "2x1g" }
        workers = 2
        workload = { model = "resnet18", task = "infer", batch-size = 1 }"#,
    );
    let divided = |spec: &TrialSpec| (spec.sharing.to_string() == "exclusive").then(|| "MIG is on".to_owned());
    let plan = Plan::expand_where(&suite, Target::Gpu, divided).unwrap();
    assert_eq!(
        planned(&plan),
        ["0 added mig 1g: 1x resnet18 infer b1 fp32", "0 asked mig 2x1g: 2x resnet18 infer b1 fp32"]
    );
    let left: Vec<&str> = plan.left_out.iter().map(|left| left.what.as_str()).collect();
    assert_eq!(left, ["line 4: exclusive: 1x resnet18 train b1 fp32", "baseline exclusive: 1x resnet18 infer b1 fp32"]);
}

#[test]
fn repeats_that_come_to_too_much_are_refused() {
    let suite = suite(
        r#"
        [defaults]
        repeats = 1000
        [[trial]]
        sharing = "exclusive"
        workload = { model = "resnet18", task = "infer", batch-size = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10] }"#,
    );
    assert_eq!(
        Plan::expand(&suite, Target::Gpu).unwrap_err().to_string(),
        "the plan comes to 10010 trials, over the limit of 10000; take fewer repeats or split the suite"
    );
}

#[test]
fn a_dry_run_shows_the_whole_plan() {
    let suite = suite(
        r#"description = "two at once"
        [objective]
        metric = "throughput"
        [[trial]]
        sharing = { mode = "mps", active-thread-percentage = 50 }
        workers = 2
        window = "10s"
        workload = { model = "resnet18", task = "infer", batch-size = 1 }
        [[trial]]
        only-on = "cpu"
        sharing = "cpu"
        workload = { model = "resnet18", task = "infer", batch-size = 1 }
        [[trial]]
        sharing = { mode = "mig", layout = "1g" }
        settle = "1s"
        workload = { model = "resnet18", task = "infer", batch-size = 1 }"#,
    );
    let plan = Plan::expand(&suite, Target::Gpu).unwrap();
    assert_eq!(plan.estimate().layout_changes, "10s".parse::<Span>().unwrap());
    assert_eq!(plan.estimate().total, "2m43s".parse::<Span>().unwrap());
    assert_eq!(
        render_text(&plan),
        "\
x on the GPU: 5 trials (4 cells, 1 repeat), at least 2m43s
two at once
judged by throughput of all work, the highest

#  repeat  lasts  trial                                 why
0  1/1       24s  exclusive: 1x resnet18 infer b1 fp32  added: trial 2 is compared with it
1  1/1       24s  mps@50%: 1x resnet18 infer b1 fp32    added: trial 2 is compared with it
2  1/1       24s  mps@50%: 2x resnet18 infer b1 fp32    asked for in line 6
3  1/1       57s  mig 1g: 1x resnet18 infer b1 fp32     asked for in line 15
4  again     24s  exclusive: 1x resnet18 infer b1 fp32  measured again, to see whether the device drifted

Layouts:
  it changes 2 times, 5s each; each MIG layout comes once, with all its repeats
  trials 0 to 2: the whole GPU, for exclusive, mps@50%
  trial 3: MIG 1g, for mig 1g
  trial 4: the whole GPU, for exclusive again

What others would notice:
  for at least 2m43s the GPU is busy with up to 2 workers: other work on it would be slowed, and would spoil the measurement
  during 2 trials a private MPS control daemon serves the GPU or each of its instances
  during 1 trial the GPU is divided into MIG instances: no program can use it as a whole

Left out:
  line 11: cpu: 1x resnet18 infer b1 fp32: it is for the CPU only

Warnings:
  line 15: a settle phase under 3s may end before the device's clocks are steady
"
    );
}

#[test]
fn a_baseline_names_the_trial_of_its_own_repeat() {
    let suite = suite(
        r#"[defaults]
        repeats = 2
        [[trial]]
        sharing = { mode = "mig", layout = "2x1g" }
        workers = 2
        workload = { model = "resnet18", task = "infer", batch-size = 1 }"#,
    );
    let plan = Plan::expand(&suite, Target::Gpu).unwrap();
    // The whole GPU with both repeats, then the layout with both, then the whole GPU again.
    let order: Vec<(u32, u32)> = plan.trials.iter().map(|trial| (trial.cell, trial.repeat)).collect();
    assert_eq!(order, [(0, 0), (0, 1), (1, 0), (2, 0), (1, 1), (2, 1), (0, 2)]);
    let text = render_text(&plan);
    let named: Vec<&str> = text.lines().filter_map(|line| Some(line.split_once("added: trial ")?.1)).collect();
    let of = ["3", "5", "3", "5"].map(|trial| format!("{trial} is compared with it"));
    assert_eq!(named, of, "{text}");
    let written = serde_json::to_value(plan.layouts()).unwrap();
    assert_eq!(
        written[1],
        serde_json::json!({
            "first": 2, "trials": 4, "layout": "2x1g", "needed-by": ["mig 1g", "mig 2x1g"], "again": false, "change": "5s"
        })
    );
    assert_eq!(written[0].get("change"), None);
    assert_eq!(written[2]["again"], true);
}
