//! `migperfctl` as a person runs it, with a daemon of its own.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use migperf_core::report::WATERMARK;
use migperf_tests::layout::Seen;
use migperf_tests::paced::Stage;
use migperf_tests::processes::{all_end, descendants, eventually, marked};
use migperf_tests::simulation::Simulation;
use migperf_tests::{Environment, MARK, programs};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

const GONE: Duration = Duration::from_secs(15);

/// A person's surroundings: a state directory, and variables.
struct Person {
    folder: tempfile::TempDir,
    environment: Environment,
}

impl Person {
    fn new(environment: Environment) -> Self {
        Self { folder: tempfile::tempdir().unwrap(), environment }
    }

    fn mark(&self) -> String {
        self.folder.path().display().to_string()
    }

    fn command(&self, line: &[&str]) -> Command {
        let mut command = Command::new(programs().join("migperfctl"));
        command
            .args(line)
            .current_dir(self.folder.path())
            .env("MIGPERF_BIN_DIR", programs())
            .env("MIGPERF_STATE_DIRECTORY", self.folder.path().join("state"))
            .env(MARK, self.mark())
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null());
        command
    }

    fn runs(&self, line: &[&str]) -> Output {
        self.command(line).output().unwrap()
    }

    /// Checks the exit code and returns what was written to standard output and to standard error.
    fn check(&self, line: &[&str], code: i32) -> (String, String) {
        let output = self.runs(line);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.code(), Some(code), "{line:?}\n{out}\n{err}");
        (out, err)
    }

    fn suite(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

const ENDLESS: &str = r#"
version = 1
name = "endless"
[defaults]
warmup-batches = 1
warmup = "0ms"
settle = "500ms"
window = "10m"
longest-window = "10m"
[[trial]]
sharing = "exclusive"
workload = { model = "empty", task = "infer", batch-size = 1 }
"#;

/// The real worker on the CPU.
#[tokio::test]
async fn a_one_off_on_the_cpu_is_measured_and_kept() {
    let person = Person::new(Vec::new());
    let quick = [
        "run", "--local", "--device", "cpu", "--model", "resnet18", "--task", "infer", "--batch", "1", "--window", "5s",
    ];
    let (plan, _) = person.check(&[&quick[..], &["--plan"]].concat(), 0);
    assert!(plan.contains("Nothing stands in the way") && plan.contains("1x resnet18 infer b1 fp32"), "{plan}");
    let (out, err) = person.check(&[&quick[..], &["--output", "result"]].concat(), 0);
    assert!(out.contains("resnet18 infer b1 fp32") && out.contains("valid"), "{out}\n{err}");
    for file in ["report.html", "report.txt", "report.json", "report.csv"] {
        assert!(person.folder.path().join("result").join(file).metadata().unwrap().len() > 0, "{file}");
    }

    let (list, _) = person.check(&["--local", "list", "--json"], 0);
    let list: Value = serde_json::from_str(&list).unwrap();
    assert_eq!((list.as_array().unwrap().len(), &list[0]["state"]), (1, &json!("done")), "{list}");
    let job = list[0]["id"].to_string();
    let (show, _) = person.check(&["--local", "show", &job], 0);
    assert!(show.contains("done"), "{show}");
    let (table, _) = person.check(&["--local", "report", &job, "--format", "csv"], 0);
    assert!(table.starts_with("row,trial,cell,") && table.contains("resnet18"), "{table}");
    assert_eq!(table, std::fs::read_to_string(person.folder.path().join("result/report.csv")).unwrap());
    person.check(&["--local", "report", "99"], 7);
    let (check, _) = person.check(&["--local", "check"], 0);
    assert!(check.contains("libtorch") && check.contains("2.11.0"), "{check}");
    eventually(GONE, || marked(MARK, &person.mark()).is_empty(), || format!("{:?}", marked(MARK, &person.mark())))
        .await;
}

#[test]
fn what_is_wrong_has_its_exit_code() {
    let simulation = Simulation::new(json!({ "virtualization": 2 }));
    let person = Person::new(simulation.environment());
    let suite = person.suite("bad.toml", &ENDLESS.replace("batch-size", "batch-sise"));
    let bad = ["run", "--local", suite.to_str().unwrap()];
    let (_, err) = person.check(&bad, 3);
    assert!(err.contains("bad.toml:12:47: a workload has no key `batch-sise`; did you mean `batch-size`?"), "{err}");
    let suite = person.suite("endless.toml", ENDLESS);
    let good = ["run", "--local", suite.to_str().unwrap()];
    let (_, err) = person.check(&good, 5);
    assert!(err.contains("is a virtual GPU") && err.contains("measure on the host"), "{err}");
    let (out, _) = person.check(&[&good[..], &["--plan"]].concat(), 5);
    assert!(out.contains("It would be refused now"), "{out}");
    person.check(&[&good[..], &["--device", "3"]].concat(), 4);
    person.check(&["run", "--local"], 2);
    person.check(&["--local", "show", "1"], 7);
}

/// A trial without a valid result is told by the exit code.
#[test]
fn an_invalid_trial_has_its_exit_code() {
    let stage = Stage::new(env!("CARGO_BIN_EXE_paced-worker"));
    stage.workers_do("garbage");
    let person = Person::new(stage.environment());
    let suite = person.suite("suite.toml", ENDLESS);
    let (out, _) = person.check(&["run", "--local", suite.to_str().unwrap()], 6);
    assert!(out.contains("SIMULATED") && out.contains("its connection holds no protocol"), "{out}");
}

/// Waits for the line that a program writes when its job runs.
fn started(state: &Path, pid: u32) -> Vec<migperf_tests::processes::Running> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let running = descendants(pid);
        if state.exists() && running.iter().any(|running| running.program == "paced-worker") {
            return running;
        }
        assert!(Instant::now() < deadline, "{running:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[tokio::test]
async fn an_interrupt_cancels_and_leaves_nothing() {
    let stage = Stage::new(env!("CARGO_BIN_EXE_paced-worker"));
    let person = Person::new(stage.environment());
    let suite = person.suite("suite.toml", ENDLESS);
    let mut child = person
        .command(&["run", "--local", suite.to_str().unwrap()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let running = started(&person.folder.path().join("state"), child.id());
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), Signal::SIGINT).unwrap();
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(130), "{status}");
    all_end(&running, GONE).await;
    eventually(GONE, || marked(MARK, &person.mark()).is_empty(), || format!("{:?}", marked(MARK, &person.mark())))
        .await;
    let (list, _) = person.check(&["--local", "list", "--json"], 0);
    assert!(list.contains("\"cancelled\""), "{list}");
}

/// A client that is killed has cancelled its job just the same.
#[tokio::test]
async fn a_client_that_is_killed_leaves_nothing() {
    let stage = Stage::new(env!("CARGO_BIN_EXE_paced-worker"));
    let person = Person::new(stage.environment());
    let suite = person.suite("suite.toml", ENDLESS);
    let mut child = person.command(&["run", "--local", suite.to_str().unwrap()]).stderr(Stdio::null()).spawn().unwrap();
    let running = started(&person.folder.path().join("state"), child.id());
    child.kill().unwrap();
    child.wait().unwrap();
    all_end(&running, GONE).await;
    eventually(GONE, || marked(MARK, &person.mark()).is_empty(), || format!("{:?}", marked(MARK, &person.mark())))
        .await;
}

/// Each command has a daemon and a helper of its own; the layout outlasts them until it is restored.
#[tokio::test]
async fn a_layout_is_shown_planned_applied_and_restored() {
    let simulation = Simulation::new(json!({}));
    let person = Person::new(simulation.environment());
    let now = || Seen::on(&simulation.machine());
    let before = now();
    let (out, _) = person.check(&["layout", "show", "--local"], 0);
    for part in
        [WATERMARK, "MIG     off", "layout  off", "1g.18gb        7 more of 7, beginning at 0, 1, 2, 3, 4, 5, 6"]
    {
        assert!(out.contains(part), "{part}: {out}");
    }
    let (out, _) = person.check(&["layout", "plan", "0", "3g+2x1g", "--local"], 0);
    assert!(out.contains("from off to 3g+2x1g") && out.contains("create GPU instance 3g.71gb@"), "{out}");
    let (out, _) = person.check(&["layout", "plan", &simulation.uuid, "3x3g", "--local", "--json"], 5);
    let plan: Value = serde_json::from_str(&out).unwrap();
    assert!(plan["refusals"][0]["problem"].as_str().unwrap().contains("what fits of it: 2x3g.71gb"), "{plan}");
    let (_, err) = person.check(&["layout", "apply", "0", "3x3g", "--local"], 5);
    assert!(err.contains("3x3g"), "{err}");
    let (_, err) = person.check(&["layout", "apply", "0", "3h", "--local"], 2);
    assert!(err.contains("is no MIG profile"), "{err}");
    person.check(&["layout", "plan", "7", "3g", "--local"], 4);
    assert_eq!(now(), before, "nothing was changed");

    let (out, _) = person.check(&["layout", "apply", "0", "3g+2x1g", "--local", "--json"], 0);
    let change: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&change["mode-changed"], &change["as-found"]), (&json!(true), &json!(false)));
    let during = now();
    assert_eq!((during.mode, during.instances.len()), (Some((true, true)), 3), "{during}");
    assert_eq!(change["created-uuids"].as_array().unwrap().len(), 3);
    let (out, _) = person.check(&["layout", "show", "--local"], 0);
    assert!(out.contains("kept: found as off, wanted as 3g+2x1g"), "{out}");
    assert!(during.uuids.iter().all(|uuid| out.contains(uuid)), "{out}");

    let (out, _) = person.check(&["layout", "restore", "0", "--local"], 0);
    assert!(out.contains("It is as it was found."), "{out}");
    assert!(now().is_as(&before), "{}", now());
    let (out, _) = person.check(&["layout", "show", "--local"], 0);
    assert!(!out.contains("kept"), "{out}");
}
