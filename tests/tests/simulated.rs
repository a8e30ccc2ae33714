//! Measuring on a simulated GPU: the real daemon, launcher, worker and libtorch, over NVML, CUDA and MPS that are not.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use migperf_core::report::{Report, WATERMARK, csv, text};
use migperf_dbus::error::Error;
use migperf_tests::layout::Seen;
use migperf_tests::processes::{all_end, descendants, eventually};
use migperf_tests::simulation::Simulation;
use migperf_tests::{Daemon, Environment};
use serde_json::{Value, json};
use tokio::sync::Mutex;

const LIMIT: Duration = Duration::from_secs(150);
/// Real work is measured by one test at a time.
static WORK: Mutex<()> = Mutex::const_new(());

const OPTIONS: &str = r#"
version = 1
name = "simulated"
[defaults]
warmup-batches = 1
warmup = "0ms"
settle = "500ms"
window = "2s"
longest-window = "4s"
minimum-batches = 4
"#;
const RESNET: &str = r#"workload = { model = "resnet18", task = "infer", batch-size = 1 }"#;
/// For cohorts that end before they measure.
const EMPTY: &str = r#"workload = { model = "empty", task = "infer", batch-size = 1 }"#;

fn suite(trials: &[&str], workload: &str) -> String {
    let sections = trials.iter().map(|trial| format!("[[trial]]\n{trial}\n{workload}\n"));
    std::iter::once(OPTIONS.to_owned()).chain(sections).collect()
}

async fn start(simulation: &Simulation, more: &[(&str, PathBuf)]) -> (tempfile::TempDir, Daemon) {
    let state = tempfile::tempdir().unwrap();
    let mut environment: Environment = simulation.environment();
    environment.extend(more.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
    let daemon = Daemon::start(state.path(), &environment).await;
    (state, daemon)
}

/// Runs a suite to its end.
async fn measure(daemon: &Daemon, suite: &str) -> Value {
    let job = daemon.submit(suite, "auto", true).await.unwrap();
    assert_eq!(daemon.wait_for(job, &["done", "failed"], LIMIT).await, "done", "{}", daemon.reason(job).await);
    daemon.report(job).await
}

fn value(finding: &Value) -> f64 {
    finding["value"].as_f64().unwrap_or_else(|| panic!("{finding}"))
}

/// A trial that went as it should: numbers for every member and for the device. A short window leaves the energy uncertain,
/// and no other flag is fine.
fn check_trial(trial: &Value, uuids: &[String]) {
    let name = &trial["name"];
    assert!(
        ["valid", "flagged"].contains(&trial["outcome"]["verdict"].as_str().unwrap()),
        "{name}: {}",
        trial["outcome"]
    );
    for flag in trial["flags"].as_array().unwrap() {
        let fine = ["coarse-energy", "window-extended", "shared-processors"];
        assert!(fine.contains(&flag["code"].as_str().unwrap()), "{name}: {flag}");
    }
    assert_eq!(trial["simulated"], true);
    let members = trial["members"].as_array().unwrap();
    assert_eq!(members.len() as u64, trial["cohort_members"].as_u64().unwrap());
    for member in members {
        assert!(uuids.iter().any(|uuid| member["device"] == **uuid), "{name}: {}", member["device"]);
        assert!(value(&member["throughput_samples_per_s"]) > 0.0);
    }
    let device = &trial["device"];
    // Between idle and full load, as the description of the machine has them.
    assert!((80.0..=500.0).contains(&value(&device["power_w"])), "{name}: {}", device["power_w"]);
    let seconds = value(&trial["window"]["common_s"]);
    let watts = value(&device["energy_j"]) / seconds;
    assert!((80.0..=500.0).contains(&watts), "{name}: {watts} W by the energy counter");
    assert!(value(&device["energy_per_sample_j"]) > 0.0);
    // Each process holds a context in the frame buffer.
    assert!(value(&device["frame_buffer_bytes"]) > 0.0, "{name}");
    let peak = device["frame_buffer_bytes"]["peak"].as_f64().unwrap();
    assert!(peak > value(&device["frame_buffer_bytes"]) * 0.999, "{name}: {}", device["frame_buffer_bytes"]);
}

#[tokio::test]
async fn every_way_to_share_a_whole_gpu_is_measured() {
    let _work = WORK.lock().await;
    let simulation = Simulation::new(json!({}));
    let temporary = tempfile::tempdir().unwrap();
    let (_state, daemon) = start(&simulation, &[("TMPDIR", temporary.path().to_owned())]).await;
    let trials = [
        "sharing = \"exclusive\"\nwindow = \"5s\"\nlongest-window = \"5s\"",
        "sharing = [\"time-slice\", \"mps\"]\nworkers = 2",
        "sharing = { mode = \"mps\", active-thread-percentage = 14 }",
    ];
    let report = measure(&daemon, &suite(&trials, RESNET)).await;
    let names: Vec<&str> =
        report["trials"].as_array().unwrap().iter().map(|trial| trial["name"].as_str().unwrap()).collect();
    let work = "resnet18 infer b1 fp32";
    assert_eq!(
        names,
        [
            format!("exclusive: 1x {work}"),
            format!("time-slice: 1x {work}"),
            format!("time-slice: 2x {work}"),
            format!("mps: 1x {work}"),
            format!("mps: 2x {work}"),
            format!("mps@14%: 1x {work}"),
            format!("exclusive: 1x {work}"),
        ]
    );
    for trial in report["trials"].as_array().unwrap() {
        check_trial(trial, std::slice::from_ref(&simulation.uuid));
        // H200s count activity. One worker leaves a tenth of the time, two a tenth of that.
        let gract = value(&trial["device"]["gract"]);
        // The counter is read a moment beside the window's edges, which a busy host makes longer.
        let expected = if trial["cohort_members"] == 1 { 0.8..0.945 } else { 0.945..1.0 };
        assert!(expected.contains(&gract), "{}: {gract}", trial["name"]);
    }
    assert_eq!(report["trials"][0]["outcome"]["verdict"], "valid", "{}", report["trials"][0]["flags"]);
    assert_eq!(report["a_a"].as_array().unwrap().len(), 1);
    assert_eq!(report["drift"].as_array().unwrap().len(), 1);

    assert_eq!((&report["simulated"], &report["watermark"]), (&json!(true), &json!(WATERMARK)));
    let report: Report = serde_json::from_value(report).unwrap();
    assert!(text::render(&report, 100, false).contains(WATERMARK));
    let table = csv::render(&report);
    let rows: Vec<&str> = table.lines().skip(1).collect();
    assert!(!rows.is_empty() && rows.iter().all(|row| row.contains("SIMULATED: no hardware was measured")), "{table}");
    daemon.leave(LIMIT).await;
    assert_eq!(std::fs::read_dir(temporary.path()).unwrap().count(), 0, "directories of MPS daemons are left");
}

/// Every mode in one job: the whole GPU, three layouts, and MPS on an instance. Each has a watermark wherever it is shown.
#[tokio::test]
async fn a_job_goes_through_every_mode_and_layout() {
    let _work = WORK.lock().await;
    for model in ["A100-80", "H200-141"] {
        let simulation = Simulation::new(json!({ "model": model }));
        let before = Seen::on(&simulation.machine());
        let temporary = tempfile::tempdir().unwrap();
        let (_state, daemon) = start(&simulation, &[("TMPDIR", temporary.path().to_owned())]).await;
        let trials = [
            "sharing = [\"exclusive\", \"time-slice\", \"mps\"]\nworkers = 1",
            "sharing = { mode = \"mig\", layout = [\"1g\", \"2g\", \"3g+1g\"] }\nworkers = 1",
            "sharing = { mode = \"mig\", layout = \"2g\", clients = 2 }\nworkers = 2",
        ];
        let report = measure(&daemon, &suite(&trials, RESNET)).await;
        let trials = report["trials"].as_array().unwrap();
        for trial in trials {
            let on_instances = trial["sharing"]["mode"] == "mig";
            let instances = trial["layout"]["instances"].as_array().unwrap();
            let uuids = instances.iter().map(|instance| instance["uuid"].as_str().unwrap().to_owned()).collect();
            check_trial(trial, &if on_instances { uuids } else { vec![simulation.uuid.clone()] });
            assert_eq!(trial["layout"]["mig"], on_instances, "{model}: {}", trial["name"]);
        }
        let layouts: BTreeSet<&str> = trials.iter().filter_map(|trial| trial["sharing"]["layout"].as_str()).collect();
        assert!(["1g", "2g", "3g+1g"].iter().all(|layout| layouts.contains(layout)), "{layouts:?}");
        assert!(trials.iter().any(|trial| trial["name"].as_str().unwrap().contains("with 2 mps each")));
        assert_eq!(report["layout"]["as_found"], true, "{}", report["layout"]);
        assert!(Seen::on(&simulation.machine()).is_as(&before));

        assert_eq!(report["watermark"], json!(WATERMARK));
        let report: Report = serde_json::from_value(report).unwrap();
        assert!(text::render(&report, 100, false).contains(WATERMARK));
        assert!(csv::render(&report).lines().skip(1).all(|row| row.contains("SIMULATED: no hardware was measured")));
        daemon.leave(LIMIT).await;
        assert_eq!(std::fs::read_dir(temporary.path()).unwrap().count(), 0, "directories of MPS daemons are left");
    }
}

#[tokio::test]
async fn instances_that_exist_are_measured() {
    let _work = WORK.lock().await;
    let simulation = Simulation::new(json!({ "mig": "enabled", "instances": [
        { "profile": "1g.18gb", "start": 0 }, { "profile": "1g.18gb", "start": 1 }, { "profile": "3g.71gb", "start": 4 } ] }));
    let (_state, daemon) = start(&simulation, &[]).await;
    let report =
        measure(&daemon, &suite(&["sharing = { mode = \"mig\", layout = \"1g+1g\" }\nworkers = 2"], RESNET)).await;
    let uuids = simulation
        .machine()
        .read(|_, state| state.gpus[0].mig_devices().map(|(_, instance)| instance.uuid.clone()).collect::<Vec<_>>());
    let uuids = uuids.unwrap();
    assert_eq!(uuids.len(), 3);
    // The whole GPU is out of reach, and that is told.
    let left_out = report["left_out"].as_array().unwrap();
    assert_eq!(left_out.len(), 1, "{left_out:?}");
    assert_eq!(left_out[0]["what"], "baseline exclusive: 1x resnet18 infer b1 fp32");
    let trials = report["trials"].as_array().unwrap();
    assert_eq!(trials.len(), 2);
    let pair = trials.iter().find(|trial| trial["cohort_members"] == 2).unwrap();
    check_trial(pair, &uuids);
    assert_ne!(pair["members"][0]["device"], pair["members"][1]["device"]);
    for trial in trials {
        check_trial(trial, &uuids);
    }
}

/// CUDA that is wrong about the device: the worker proves it, and the cohort fails with what contradicts.
#[tokio::test]
async fn a_cohort_that_can_not_prove_its_allocation_fails() {
    let cases = [
        (
            json!({ "uuid": "GPU-00000000-1111-4222-8333-444444444444" }),
            "exclusive",
            vec![
                "member 0 can't prove its allocation: the process runs on GPU-00000000-1111-4222-8333-444444444444 where GPU-",
            ],
        ),
        (
            json!({ "multiprocessors": 131 }),
            "exclusive",
            vec![
                "member 0 can't prove its allocation: the process may use 131 multiprocessors where 132 to 132 were expected",
            ],
        ),
        (json!({ "mps": 0 }), "mps", vec!["can't prove its allocation: the process is not an MPS client"]),
        (json!({ "mps": 1 }), "exclusive", vec!["can't prove its allocation: the process is an MPS client"]),
    ];
    for (lies, sharing, words) in cases {
        let simulation = Simulation::new(json!({ "lies": lies }));
        let temporary = tempfile::tempdir().unwrap();
        let (_state, daemon) = start(&simulation, &[("TMPDIR", temporary.path().to_owned())]).await;
        let report = measure(&daemon, &suite(&[&format!("sharing = \"{sharing}\"")], EMPTY)).await;
        let trials = report["trials"].as_array().unwrap();
        let trial = trials.iter().find(|trial| trial["sharing"]["mode"] == *sharing).unwrap();
        assert_eq!(trial["outcome"]["verdict"], "failed", "{lies}");
        let reason = trial["outcome"]["reason"].as_str().unwrap();
        assert!(words.iter().all(|words| reason.contains(words)), "{lies}: {reason}");
        assert_eq!(trial["members"], json!([]), "no numbers of a cohort that failed");
        assert_eq!(std::fs::read_dir(temporary.path()).unwrap().count(), 0, "{lies}: an MPS directory is left");
    }
}

/// What is in the way is told before anything runs, with what to do about it. There is no helper here.
#[tokio::test]
async fn what_can_not_be_measured_is_refused_with_a_remedy() {
    let programs = tempfile::tempdir().unwrap();
    migperf_tests::link_programs(programs.path(), &migperf_tests::programs().join("migperf-worker-torch"));
    std::fs::remove_file(programs.path().join("migperf-helper")).unwrap();
    let programs = ("MIGPERF_BIN_DIR", programs.path().to_owned());
    let process = |program: &str, graphics: bool| json!({ "processes": [ { "pid": 4_000_001, "program": program, "graphics": graphics, "memory-mb": 10 } ] });
    let several = "sharing = \"time-slice\"\nworkers = 2";
    let exclusive = "sharing = \"exclusive\"";
    let mig = "sharing = { mode = \"mig\", layout = \"1g\" }";
    let cases = [
        (
            json!({ "compute-mode": "exclusive-process" }),
            several,
            "compute mode Exclusive_Process",
            "nvidia-smi -c DEFAULT",
        ),
        (json!({ "compute-mode": "prohibited" }), exclusive, "compute mode Prohibited", "nvidia-smi -c DEFAULT"),
        (process("/usr/bin/python3", false), exclusive, "is in use: pid 4000001", "wait until they end"),
        (
            process("/usr/lib/xorg/Xorg", true),
            exclusive,
            "pid 4000001 /usr/lib/xorg/Xorg, graphics",
            "wait until they end",
        ),
        (
            process("nvidia-cuda-mps-server", false),
            exclusive,
            "somebody else's MPS daemon (server pid 4000001)",
            "quit",
        ),
        (json!({ "mig": "pending" }), exclusive, "MIG is disabled and will be enabled after a reset", "--gpu-reset"),
        (json!({ "virtualization": 2 }), exclusive, "is a virtual GPU", "measure on the host"),
        (json!({ "mig": "enabled" }), exclusive, "has MIG enabled", "disable MIG"),
        (json!({}), mig, "has MIG disabled", "nvidia-smi mig -cgi"),
        (json!({ "mig": "enabled" }), mig, "has not the instances of `1g`", "create them first"),
    ];
    for (machine, trial, problem, remedy) in cases {
        let simulation = Simulation::new(machine.clone());
        let (_state, daemon) = start(&simulation, std::slice::from_ref(&programs)).await;
        check_refusal(&daemon, &suite(&[trial], EMPTY), problem, remedy).await;
    }
    let simulation = Simulation::new(json!({}));
    let environment: Environment =
        simulation.environment().into_iter().filter(|(name, _)| name != "MIGPERF_MPS_CONTROL").collect();
    let environment = [environment, vec![("PATH".to_owned(), PathBuf::from("/nonexistent"))]].concat();
    let state = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(state.path(), &environment).await;
    let suite = suite(&["sharing = \"mps\""], EMPTY);
    check_refusal(&daemon, &suite, "nvidia-cuda-mps-control is not installed", "install the driver's").await;
}

async fn check_refusal(daemon: &Daemon, suite: &str, problem: &str, remedy: &str) {
    let Err(Error::Refused(text)) = daemon.submit(suite, "auto", true).await else { panic!("not refused: {problem}") };
    assert!(text.contains(problem) && text.contains(remedy), "{problem}: {text}");
    let (rows, _) = daemon.manager().await.list_jobs(&migperf_dbus::Keyed::new(), "", 10).await.unwrap();
    assert!(rows.is_empty(), "a refused suite is no job");
}

/// While one job has the GPU, others wait for it, whoever's daemon runs them, and then go on.
#[tokio::test]
async fn a_gpu_is_measured_by_one_daemon_at_a_time() {
    let _work = WORK.lock().await;
    let simulation = Simulation::new(json!({}));
    let (_state, first) = start(&simulation, &[]).await;
    let endless = suite(&["sharing = \"exclusive\"\nwindow = \"10m\"\nlongest-window = \"10m\""], RESNET);
    let running = first.submit(&endless, "auto", true).await.unwrap();
    first.wait_for_phase(running, "measuring", LIMIT).await;

    // Its own workers are no strangers to the daemon: the next job queues up.
    let short = suite(&["sharing = \"exclusive\"\nwindow = \"500ms\"\nlongest-window = \"500ms\""], RESNET);
    let queued = first.submit(&short, &simulation.uuid, true).await.unwrap();
    assert_eq!(first.job(queued).await.state().await.unwrap(), "queued");
    first.manager().await.cancel_job(queued, &migperf_dbus::Keyed::new()).await.unwrap();

    let (_other_state, second) = start(&simulation, &[]).await;
    let waiting = second.submit(&short, "0", true).await.unwrap();
    let given_up = second.submit(&short, "0", true).await.unwrap();
    second.wait_for(waiting, &["waiting-for-gpu"], LIMIT).await;
    let reason = second.reason(waiting).await;
    let user = nix::unistd::User::from_uid(nix::unistd::geteuid()).unwrap().unwrap().name;
    let holder = format!("{} is being measured by pid {} of user {user}", simulation.uuid, first.pid());
    assert!(reason.starts_with(&holder), "{reason}");
    second.manager().await.cancel_job(given_up, &migperf_dbus::Keyed::new()).await.unwrap();

    first.manager().await.cancel_job(running, &migperf_dbus::Keyed::new()).await.unwrap();
    second.wait_for(waiting, &["running"], LIMIT).await;
    assert_eq!(second.wait_for(waiting, &["done", "failed"], LIMIT).await, "done", "{}", second.reason(waiting).await);
    assert_eq!(second.report(waiting).await["summary"]["failed"], 0);
}

/// An open NVML blocks an administrator's work on the GPU.
#[tokio::test]
async fn a_daemon_without_work_holds_no_nvml() {
    let simulation = Simulation::new(json!({}));
    let (_state, daemon) = start(&simulation, &[]).await;
    let held = format!("/proc/{}/fd", daemon.pid());
    // The simulated NVML holds this file while it is open, as the real one holds device files.
    let is_open = || {
        let links = std::fs::read_dir(&held).unwrap().filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
        links.into_iter().any(|file| file.ends_with("machine.json"))
    };
    // It looks once for each connection, and on request.
    let plan = migperf_dbus::document::seal(suite(&["sharing = \"exclusive\""], EMPTY).as_bytes()).unwrap();
    daemon.manager().await.plan_job(plan.into(), &migperf_dbus::Keyed::new()).await.unwrap();
    eventually(Duration::from_secs(15), || !is_open(), || "NVML stays open".to_owned()).await;
    // And has it open while a trial is sampled, so that this test can see it.
    let endless = suite(&["sharing = \"exclusive\"\nwindow = \"10m\"\nlongest-window = \"10m\""], RESNET);
    let job = daemon.submit(&endless, "auto", true).await.unwrap();
    daemon.wait_for_phase(job, "measuring", LIMIT).await;
    assert!(is_open());
    daemon.manager().await.cancel_job(job, &migperf_dbus::Keyed::new()).await.unwrap();
    daemon.wait_for(job, &["cancelled"], LIMIT).await;
    eventually(Duration::from_secs(15), || !is_open(), || "NVML stays open after a trial".to_owned()).await;
}

#[tokio::test]
async fn an_mps_daemon_is_stopped_when_its_job_is_cancelled() {
    let _work = WORK.lock().await;
    let simulation = Simulation::new(json!({}));
    let temporary = tempfile::tempdir().unwrap();
    let (_state, daemon) = start(&simulation, &[("TMPDIR", temporary.path().to_owned())]).await;
    let cells = [
        "sharing = [\"exclusive\"]\nwindow = \"100ms\"\nlongest-window = \"100ms\"",
        "sharing = \"mps\"\nwindow = \"10m\"\nlongest-window = \"10m\"",
    ];
    let job = daemon.submit(&suite(&cells, RESNET), "auto", true).await.unwrap();
    let has_mps =
        || descendants(daemon.pid()).iter().filter(|p| p.program == "nvidia-cuda-mps-control-sim").count() == 2;
    eventually(LIMIT, has_mps, || format!("no MPS: {:?}", descendants(daemon.pid()))).await;
    daemon.wait_for_phase(job, "measuring", LIMIT).await;
    assert_eq!(std::fs::read_dir(temporary.path()).unwrap().count(), 1);
    let running = descendants(daemon.pid());
    daemon.manager().await.cancel_job(job, &migperf_dbus::Keyed::new()).await.unwrap();
    daemon.wait_for(job, &["cancelled"], LIMIT).await;
    assert_eq!(std::fs::read_dir(temporary.path()).unwrap().count(), 0, "the MPS daemon's directory is left");
    all_end(&running, Duration::from_secs(5)).await;
}

/// Its clients would go on without it, or hang: the cohort fails at once, and with that reason.
#[tokio::test]
async fn an_mps_daemon_that_dies_fails_its_cohort() {
    let _work = WORK.lock().await;
    let simulation = Simulation::new(json!({}));
    let (_state, daemon) = start(&simulation, &[]).await;
    let cells = [
        "sharing = [\"exclusive\"]\nwindow = \"100ms\"\nlongest-window = \"100ms\"",
        "sharing = \"mps\"\nwindow = \"10m\"\nlongest-window = \"10m\"",
    ];
    let job = daemon.submit(&suite(&cells, RESNET), "auto", true).await.unwrap();
    let control = || descendants(daemon.pid()).into_iter().find(|p| p.program == "nvidia-cuda-mps-control-sim");
    eventually(LIMIT, || control().is_some(), || format!("no MPS: {:?}", descendants(daemon.pid()))).await;
    daemon.wait_for_phase(job, "measuring", LIMIT).await;
    let running = descendants(daemon.pid());
    let pid = i32::try_from(control().unwrap().process.pid).unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).unwrap();
    daemon.wait_for(job, &["done"], LIMIT).await;
    let report = daemon.report(job).await;
    let trials = report["trials"].as_array().unwrap();
    let trial = trials.iter().find(|trial| trial["sharing"]["mode"] == "mps").unwrap();
    assert_eq!(trial["outcome"]["verdict"], "failed");
    let reason = trial["outcome"]["reason"].as_str().unwrap();
    let expected = format!("the MPS control daemon of {} died: killed by SIGKILL", simulation.uuid);
    assert!(reason.starts_with(&expected), "{reason}");
    assert!(trial["lasted_s"].as_f64().unwrap() < 60.0, "{}", trial["lasted_s"]);
    all_end(&running, Duration::from_secs(5)).await;
}
