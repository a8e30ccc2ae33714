//! Layouts: a suite's are brought about by the helper and undone, whatever ends the job; what can't be is said before.

use std::process::Command;
use std::time::Duration;

use migperf_core::job::PlanAnswer;
use migperf_core::report::WATERMARK;
use migperf_dbus::document::{self, LONGEST_REPORT};
use migperf_dbus::error::Error;
use migperf_dbus::names::{job as key, submit};
use migperf_dbus::{Keyed, names};
use migperf_tests::layout::Seen;
use migperf_tests::paced::Stage;
use migperf_tests::processes::{Running, descendants, eventually, helpers, marked};
use migperf_tests::simulation::Simulation;
use migperf_tests::{Daemon, MARK, number};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(90);

const OPTIONS: &str = r#"
version = 1
name = "layouts"
[defaults]
warmup-batches = 1
warmup = "0ms"
settle = "500ms"
window = "500ms"
longest-window = "500ms"
minimum-batches = 5
"#;
const WORK: &str = r#"workload = { model = "empty", task = "infer", batch-size = 1 }"#;

fn suite(trials: &[&str]) -> String {
    let sections = trials.iter().map(|trial| format!("[[trial]]\n{trial}\n{WORK}\n"));
    std::iter::once(OPTIONS.to_owned()).chain(sections).collect()
}

fn stage(gpu: Value) -> Stage {
    Stage::on(Simulation::new(gpu), env!("CARGO_BIN_EXE_paced-worker"))
}

fn options(replace: bool) -> Keyed {
    Keyed::from([
        (submit::DEVICE.to_owned(), zbus::Str::from("0").into()),
        (submit::ATTACHED.to_owned(), true.into()),
        (submit::REPLACE_EXISTING.to_owned(), replace.into()),
    ])
}

async fn submit(daemon: &Daemon, suite: &str, replace: bool) -> Result<u32, Error> {
    let document = document::seal(suite.as_bytes()).unwrap();
    let path = daemon.manager().await.submit_job(document.into(), &options(replace)).await?;
    Ok(names::job_of_path(path.as_str()).unwrap())
}

async fn plan(daemon: &Daemon, suite: &str, replace: bool) -> PlanAnswer {
    let document = document::seal(suite.as_bytes()).unwrap();
    let answer = daemon.manager().await.plan_job(document.into(), &options(replace)).await.unwrap();
    serde_json::from_slice(&document::read(answer.into(), LONGEST_REPORT).unwrap()).unwrap()
}

/// Runs a suite to its end.
async fn measure(daemon: &Daemon, suite: &str, replace: bool) -> Value {
    let job = submit(daemon, suite, replace).await.unwrap();
    assert_eq!(daemon.wait_for(job, &["done", "failed"], LIMIT).await, "done", "{}", daemon.reason(job).await);
    daemon.report(job).await
}

/// The profiles that were there during a trial.
fn profiles(trial: &Value) -> Vec<&str> {
    let instances = trial["layout"]["instances"].as_array().unwrap();
    instances.iter().map(|instance| instance["profile"].as_str().unwrap()).collect()
}

fn check_valid(report: &Value) {
    assert_eq!((&report["simulated"], &report["watermark"]), (&json!(true), &json!(WATERMARK)));
    for trial in report["trials"].as_array().unwrap() {
        let verdict = trial["outcome"]["verdict"].as_str().unwrap();
        assert!(["valid", "flagged"].contains(&verdict), "{}: {}", trial["name"], trial["outcome"]);
        assert_eq!(trial["simulated"], true);
        let there: Vec<&Value> =
            trial["layout"]["instances"].as_array().unwrap().iter().map(|instance| &instance["uuid"]).collect();
        let mig = trial["sharing"]["mode"] == "mig";
        assert_eq!(trial["layout"]["mig"], mig, "{}", trial["name"]);
        let mut used: Vec<&Value> =
            trial["members"].as_array().unwrap().iter().map(|member| &member["device"]).collect();
        assert!(used.iter().all(|device| there.contains(device) == mig), "{}: {used:?} of {there:?}", trial["name"]);
        if mig {
            used.sort_by_key(ToString::to_string);
            used.dedup();
            assert_eq!(used.len(), trial["members"].as_array().unwrap().len(), "one worker for each instance");
        }
    }
}

/// Whole-GPU modes and three layouts, from each state in which a GPU may be found, on two generations.
#[tokio::test]
async fn a_suite_changes_the_layout_and_leaves_it_as_it_was() {
    let whole = ["sharing = \"exclusive\"", "sharing = \"time-slice\"\nworkers = 2"];
    let layouts = "sharing = { mode = \"mig\", layout = [\"2x1g\", \"2g+1g\", \"3g+2g\"] }\nworkers = 2";
    let all = [whole[0], whole[1], layouts];
    for (model, small, large) in [("H200-141", "1g.18gb", "3g.71gb"), ("A100-80", "1g.10gb", "3g.40gb")] {
        for (gpu, trials, replace) in [
            (json!({ "mig": "disabled" }), &all[..], false),
            (json!({ "mig": "enabled" }), &all[..], false),
            (json!({ "mig": "enabled", "instances": [{ "profile": small, "start": 6 }] }), &all[2..], false),
            (json!({ "mig": "enabled", "instances": [{ "profile": large, "start": 4 }] }), &all[..], true),
        ] {
            let mut gpu = gpu;
            gpu["model"] = json!(model);
            let stage = stage(gpu.clone());
            let before = Seen::on(&stage.simulation.machine());
            let daemon = stage.daemon().await;
            let report = measure(&daemon, &suite(trials), replace).await;
            check_valid(&report);
            let after = Seen::on(&stage.simulation.machine());
            assert!(after.is_as(&before), "{gpu}: before {before}, after {after}");
            assert_eq!(report["layout"]["as_found"], true, "{gpu}: {}", report["layout"]);
            assert!(report["layout"]["changes"].as_u64().unwrap() >= 3, "{gpu}: {}", report["layout"]);
            // Only with leave to replace them do instances that were there get other identities, and that is told.
            let fresh: Vec<Value> = after.uuids.difference(&before.uuids).map(|uuid| json!(uuid)).collect();
            assert_eq!(report["layout"]["new_uuids"], json!(fresh), "{gpu}");
            assert_eq!(fresh.is_empty(), !replace, "{gpu}");
            let trials = report["trials"].as_array().unwrap();
            let mixed = trials.iter().find(|trial| trial["sharing"]["layout"] == "3g+2g").unwrap();
            assert!(profiles(mixed).contains(&large), "{gpu}: {mixed}");
            daemon.leave(LIMIT).await;
        }
    }
}

/// What is there already is measured without the helper.
#[tokio::test]
async fn a_suite_that_needs_no_change_changes_nothing() {
    let instances = json!([{ "profile": "1g.18gb", "start": 0 }, { "profile": "1g.18gb", "start": 1 }]);
    let stage = stage(json!({ "mig": "enabled", "instances": instances }));
    let before = Seen::on(&stage.simulation.machine());
    let daemon = stage.daemon().await;
    let report = measure(&daemon, &suite(&["sharing = { mode = \"mig\", layout = \"1g\" }\nworkers = 2"]), false).await;
    check_valid(&report);
    assert_eq!(report["layout"], Value::Null);
    assert_eq!(Seen::on(&stage.simulation.machine()), before);
    let left_out = report["left_out"].as_array().unwrap();
    assert_eq!(left_out.len(), 1);
    assert!(left_out[0]["why"].as_str().unwrap().contains("--replace-existing"), "{left_out:?}");
    daemon.leave(LIMIT).await;
}

#[tokio::test]
async fn what_a_layout_needs_is_told_before_anything_is_done() {
    let foreign = json!({ "mig": "enabled", "instances": [{ "profile": "3g.71gb", "start": 4 }] });
    let seven = "sharing = { mode = \"mig\", layout = \"7g\" }";
    for (gpu, trial, words) in [
        (foreign.clone(), "sharing = \"exclusive\"", "--replace-existing"),
        (foreign.clone(), seven, "3g.71gb@4:4 must stay"),
        (json!({}), "sharing = { mode = \"mig\", layout = \"3g+3g+3g\" }", "what fits of it: 2x3g.71gb"),
        (json!({}), "sharing = { mode = \"mig\", layout = \"5g\" }", "this GPU has no profile 5g"),
        (json!({ "mig": "unsupported" }), seven, "has no MIG"),
    ] {
        let stage = stage(gpu.clone());
        let before = Seen::on(&stage.simulation.machine());
        let daemon = stage.daemon().await;
        let Err(Error::Refused(text)) = submit(&daemon, &suite(&[trial]), false).await else {
            panic!("{gpu}, {trial}: not refused")
        };
        assert!(text.contains(words), "{gpu}, {trial}: {text}");
        let refusals = plan(&daemon, &suite(&[trial]), false).await.refusals;
        assert!(refusals.iter().any(|refusal| text.contains(&refusal.problem)), "{refusals:?}");
        assert_eq!(Seen::on(&stage.simulation.machine()), before, "{gpu}");
        daemon.leave(LIMIT).await;
    }
    // With leave, it says which identities are lost, and still does nothing.
    let stage = stage(foreign);
    let before = Seen::on(&stage.simulation.machine());
    let daemon = stage.daemon().await;
    let answer = plan(&daemon, &suite(&[seven]), true).await;
    assert!(answer.refusals.is_empty(), "{:?}", answer.refusals);
    assert_eq!(answer.replaced_uuids, before.uuids.iter().cloned().collect::<Vec<_>>());
    assert!(answer.layout_changes[0].contains("7g"), "{:?}", answer.layout_changes);
    assert_eq!(Seen::on(&stage.simulation.machine()), before);
    daemon.leave(LIMIT).await;
}

/// Two layouts, the second of which lasts until something happens.
fn endless() -> String {
    let trials = [
        "sharing = { mode = \"mig\", layout = \"2g\" }",
        "sharing = { mode = \"mig\", layout = \"3g+1g\" }\nwindow = \"10m\"\nlongest-window = \"10m\"",
    ];
    suite(&trials)
}

/// Waits until the second trial measures.
async fn second(daemon: &Daemon, job: u32) {
    while number(&daemon.listed(job).await, key::TRIALS_DONE) != Some(1) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    daemon.wait_for_phase(job, "measuring", LIMIT).await;
}

fn of(daemon: &Daemon, program: &str) -> Vec<Running> {
    descendants(daemon.pid()).into_iter().filter(|running| running.program == program).collect()
}

fn kill_one(process: &Running) {
    kill(Pid::from_raw(i32::try_from(process.process.pid).unwrap()), Signal::SIGKILL).unwrap();
}

#[tokio::test]
async fn a_cancelled_job_gives_the_gpu_back() {
    let stage = stage(json!({}));
    let before = Seen::on(&stage.simulation.machine());
    let daemon = stage.daemon().await;
    let job = submit(&daemon, &endless(), false).await.unwrap();
    second(&daemon, job).await;
    let during = Seen::on(&stage.simulation.machine());
    assert_eq!(during.mode, Some((true, true)));
    assert_eq!(during.instances.len(), 2, "{during}");
    daemon.manager().await.cancel_job(job, &Keyed::new()).await.unwrap();
    daemon.wait_for(job, &["cancelled"], LIMIT).await;
    assert!(Seen::on(&stage.simulation.machine()).is_as(&before));
    let report = daemon.report(job).await;
    assert_eq!((&report["layout"]["as_found"], &report["summary"]["recorded"]), (&json!(true), &json!(2)));
    daemon.leave(LIMIT).await;
}

#[tokio::test]
async fn a_client_that_leaves_gives_the_gpu_back() {
    let stage = stage(json!({}));
    let before = Seen::on(&stage.simulation.machine());
    let daemon = stage.daemon().await;
    let job = submit(&daemon, &endless(), false).await.unwrap();
    second(&daemon, job).await;
    let mark = daemon.mark.clone();
    daemon.leave(LIMIT).await;
    eventually(LIMIT, || marked(MARK, &mark).is_empty(), || format!("{:?}", marked(MARK, &mark))).await;
    assert!(Seen::on(&stage.simulation.machine()).is_as(&before));
}

/// The helper outlives the daemon for as long as the way back takes.
#[tokio::test]
async fn a_daemon_that_dies_leaves_the_gpu_as_it_was() {
    let stage = stage(json!({ "mig": "enabled" }));
    let before = Seen::on(&stage.simulation.machine());
    let mut daemon = stage.daemon().await;
    let job = submit(&daemon, &endless(), false).await.unwrap();
    second(&daemon, job).await;
    daemon.kill();
    let mark = daemon.mark.clone();
    eventually(LIMIT, || marked(MARK, &mark).is_empty(), || format!("{:?}", marked(MARK, &mark))).await;
    let after = Seen::on(&stage.simulation.machine());
    assert!(after.is_as(&before), "before {before}, after {after}");
    let next = stage.daemon().await;
    assert_eq!(number(&next.listed(job).await, key::TRIALS_DONE), Some(1));
    assert_eq!(next.report(job).await["layout"]["as_found"], Value::Null, "nobody wrote it down");
    next.leave(LIMIT).await;
}

/// The trial under the layout that the helper kept fails, and the next one has its layout again.
#[tokio::test]
async fn a_helper_that_dies_costs_one_trial() {
    let stage = stage(json!({}));
    let before = Seen::on(&stage.simulation.machine());
    let daemon = stage.daemon().await;
    let trials = [
        "sharing = { mode = \"mig\", layout = \"2g\" }\nwindow = \"10m\"\nlongest-window = \"10m\"",
        "sharing = { mode = \"mig\", layout = \"2g\" }",
    ];
    let job = submit(&daemon, &suite(&trials), false).await.unwrap();
    daemon.wait_for_phase(job, "measuring", LIMIT).await;
    kill_one(&helpers(daemon.pid())[0]);
    assert_eq!(daemon.wait_for(job, &["done", "failed"], LIMIT).await, "done", "{}", daemon.reason(job).await);
    let report = daemon.report(job).await;
    let trials = report["trials"].as_array().unwrap();
    assert_eq!(trials[0]["outcome"]["verdict"], "failed");
    assert_eq!(trials[0]["outcome"]["reason"], "the helper that keeps the GPU's layout died");
    assert_ne!(trials[1]["outcome"]["verdict"], "failed", "{}", trials[1]["outcome"]);
    assert_eq!(report["layout"]["as_found"], true);
    assert!(Seen::on(&stage.simulation.machine()).is_as(&before));
    daemon.leave(LIMIT).await;
}

#[tokio::test]
async fn a_worker_that_dies_on_an_instance_costs_one_trial() {
    let stage = stage(json!({}));
    let before = Seen::on(&stage.simulation.machine());
    let daemon = stage.daemon().await;
    let job = submit(&daemon, &endless(), false).await.unwrap();
    second(&daemon, job).await;
    kill_one(&of(&daemon, "paced-worker")[0]);
    daemon.wait_for(job, &["done"], LIMIT).await;
    let report = daemon.report(job).await;
    assert_eq!(report["trials"][1]["outcome"]["reason"], "member 0 ended early: killed by SIGKILL");
    assert_eq!(report["layout"]["as_found"], true);
    assert!(Seen::on(&stage.simulation.machine()).is_as(&before));
    daemon.leave(LIMIT).await;
}

/// What the helper could not put back is told in the job's state, its reason and its report, in the helper's words.
#[tokio::test]
async fn a_layout_that_was_not_restored_is_told() {
    let stage = stage(json!({}));
    stage.helper_is(Some(env!("CARGO_BIN_EXE_scripted-helper")));
    let words = "destroying GPU instance 2 answered 19 (in use); left: 2g.35gb@0:2; type: nvidia-smi mig -dgi -i 0";
    stage.helper_does(&format!("RollbackFailed {words}"));
    let daemon = stage.daemon().await;
    let job = submit(&daemon, &suite(&["sharing = { mode = \"mig\", layout = \"2g\" }"]), false).await.unwrap();
    daemon.wait_for(job, &["failed"], LIMIT).await;
    let reason = daemon.reason(job).await;
    assert_eq!(reason, format!("the GPU's layout was not restored: {words}"));
    let report = daemon.report(job).await;
    assert_eq!((&report["layout"]["as_found"], &report["layout"]["problem"]), (&json!(false), &json!(reason)));
    assert_eq!(report["warnings"][0], json!(reason));
    assert_ne!(report["trials"][0]["outcome"]["verdict"], "failed", "what was measured before is kept");
    daemon.leave(LIMIT).await;
}

/// A change "succeeded" and did nothing: the device is asked, not the helper.
#[tokio::test]
async fn a_layout_that_is_not_there_is_not_measured() {
    let stage = stage(json!({}));
    stage.helper_is(Some(env!("CARGO_BIN_EXE_scripted-helper")));
    stage.helper_does("Idle");
    let before = Seen::on(&stage.simulation.machine());
    let daemon = stage.daemon().await;
    let trials = ["sharing = \"exclusive\"", "sharing = { mode = \"mig\", layout = \"2g\" }"];
    let job = submit(&daemon, &suite(&trials), false).await.unwrap();
    daemon.wait_for(job, &["failed"], LIMIT).await;
    let reason = daemon.reason(job).await;
    assert!(reason.contains("brought about `2g`") && reason.contains("shows other instances: none"), "{reason}");
    let report = daemon.report(job).await;
    assert_eq!(report["summary"]["recorded"], 1, "what was measured before is kept");
    assert!(Seen::on(&stage.simulation.machine()).is_as(&before));
    daemon.leave(LIMIT).await;
}

#[tokio::test]
async fn without_a_helper_what_it_would_do_is_refused() {
    let stage = stage(json!({}));
    stage.helper_is(None);
    let daemon = stage.daemon().await;
    let mig = suite(&["sharing = { mode = \"mig\", layout = \"2g\" }"]);
    let Err(Error::Refused(text)) = submit(&daemon, &mig, false).await else { panic!("not refused") };
    assert!(text.contains("is not installed") && text.contains("install migperf-helper"), "{text}");
    let error = daemon.manager().await.apply_layout("0", "2g", &Keyed::new()).await.unwrap_err();
    assert!(matches!(&error, Error::Refused(text) if text.contains("is not installed")), "{error}");
    daemon.leave(LIMIT).await;
}

/// What an administrator keeps is no job's to change; what is there can be measured.
#[tokio::test]
async fn a_layout_that_is_kept_is_left_alone() {
    let stage = stage(json!({}));
    let before = Seen::on(&stage.simulation.machine());
    let daemon = stage.daemon().await;
    let manager = daemon.manager().await;
    manager.apply_layout("0", "3g+2g", &Keyed::new()).await.unwrap();
    let kept = Seen::on(&stage.simulation.machine());
    assert_eq!(kept.instances.len(), 2);
    let Err(Error::Refused(text)) = submit(&daemon, &suite(&["sharing = \"exclusive\""]), true).await else {
        panic!("not refused")
    };
    assert!(text.contains("kept at `3g+2g`") && text.contains("migperfctl layout restore 0"), "{text}");
    let report = measure(&daemon, &suite(&["sharing = { mode = \"mig\", layout = \"3g+2g\" }"]), false).await;
    check_valid(&report);
    assert_eq!(report["layout"], Value::Null);
    assert_eq!(Seen::on(&stage.simulation.machine()), kept);
    manager.restore_layout("0", &Keyed::new()).await.unwrap();
    assert!(Seen::on(&stage.simulation.machine()).is_as(&before));
    daemon.leave(LIMIT).await;
}

/// Whoever holds the GPU is named, and waited for; nobody is ended.
#[tokio::test]
async fn a_gpu_that_somebody_holds_is_not_changed() {
    let stage = stage(json!({}));
    let device = std::fs::File::open(stage.simulation.device()).unwrap();
    let mut holder = Command::new("sleep").arg("600").stdin(device).spawn().unwrap();
    let daemon = stage.daemon().await;
    let job = submit(&daemon, &suite(&["sharing = { mode = \"mig\", layout = \"2g\" }"]), false).await.unwrap();
    daemon.wait_for(job, &["waiting-for-gpu"], LIMIT).await;
    let reason = daemon.reason(job).await;
    assert!(reason.contains(&format!("{}", holder.id())) && reason.contains("sleep"), "{reason}");
    assert_eq!(Seen::on(&stage.simulation.machine()).mode, Some((false, false)));
    assert!(holder.try_wait().unwrap().is_none(), "it was ended");
    holder.kill().unwrap();
    holder.wait().unwrap();
    assert_eq!(daemon.wait_for(job, &["done", "failed"], LIMIT).await, "done", "{}", daemon.reason(job).await);
    check_valid(&daemon.report(job).await);
    daemon.leave(LIMIT).await;
}
