//! The built client against a daemon that serves the interface peer-to-peer, from the command line to the exit code.

mod fake;

use std::env;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use migperf_core::job::JobState;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use fake::{Conduct, Daemon, Shared};

/// Longer than anything here takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);
/// Tells this program that it is to be a daemon on its standard input.
const SERVE: &str = "MIGPERF_TEST_SERVE";

/// A state directory, and the daemon that listens there.
struct Bench {
    state: TempDir,
    daemon: Daemon,
    runtime: Runtime,
}

impl Bench {
    /// With a daemon that listens.
    fn new(conduct: Conduct) -> Self {
        let bench = Self::silent(conduct);
        bench.listen();
        bench
    }

    /// With a daemon that does not listen yet.
    fn silent(conduct: Conduct) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        Self { state: tempfile::tempdir().unwrap(), daemon: Daemon::new(conduct), runtime }
    }

    fn listen(&self) {
        self.runtime.block_on(self.daemon.clone().listen(&self.state.path().join("migperfd.sock")));
    }

    /// The client, to be run locally in this state directory.
    fn client(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_migperfctl"));
        command
            .args(line.split_whitespace())
            .arg("--local")
            .current_dir(self.state.path())
            .env("MIGPERF_STATE_DIRECTORY", self.state.path())
            .env("MIGPERF_BIN_DIR", self.state.path().join("bin"))
            .stdin(Stdio::null());
        command
    }

    fn run(&self, line: &str) -> Ran {
        Ran::of(line, &self.client(line).output().unwrap())
    }

    /// Starts the client; its outputs are read when it is waited for.
    fn start(&self, line: &str) -> Child {
        self.client(line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Waits until the daemon is in a state.
    fn until(&self, what: &str, reached: impl Fn(&Shared) -> bool) {
        let give_up = Instant::now() + LIMIT;
        while !reached(&self.daemon.lock()) {
            assert!(Instant::now() < give_up, "the daemon never saw that {what}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Makes the program `migperfd` that the client may start.
    fn program(&self, script: &str) {
        let path = self.state.path().join("bin/migperfd");
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.state.path().join(name), text).unwrap();
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.state.path().join(name)).unwrap()
    }
}

/// What a client did.
#[derive(Debug)]
struct Ran {
    line: String,
    code: Option<i32>,
    out: String,
    err: String,
}

impl Ran {
    fn of(line: &str, output: &Output) -> Self {
        Self {
            line: line.to_owned(),
            code: output.status.code(),
            out: String::from_utf8(output.stdout.clone()).unwrap(),
            err: String::from_utf8(output.stderr.clone()).unwrap(),
        }
    }

    /// Holds the exit code, and texts that must be in the output or in the messages.
    #[track_caller]
    fn check(&self, code: i32, texts: &[&str]) {
        let Self { line, out, err, .. } = self;
        assert_eq!(self.code, Some(code), "{line}\n{out}\n{err}");
        for text in texts {
            assert!(out.contains(text) || err.contains(text), "`{text}` is missing from {line}\n{out}\n{err}");
        }
    }

    fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:#?}"))
    }
}

/// Two trials: one worker, and two with the solo baseline already there.
const TWO_TRIALS: &str = "run --model resnet18 --sharing cpu --workers 1,2";
const SUITE: &str = "version = 1\nname = \"night\"\n[[trial]]\nsharing = \"cpu\"\n\
                     workload = { model = \"resnet18\", task = \"infer\", batch-size = 1 }\n";

#[test]
fn a_run_shows_its_trials_and_prints_the_report() {
    let bench = Bench::new(Conduct::Ends { failed: 0 });
    let ran = bench.run(TWO_TRIALS);
    ran.check(0, &["migperf report: one-off", "job 1 is done"]);
    assert!(ran.err.contains("ended"), "{ran:#?}");
    assert!(!ran.err.contains('\r') && !ran.err.contains('\u{1b}'), "no bar without a terminal: {ran:#?}");
    let options = &bench.daemon.lock().jobs[0].options;
    let expected = [("attached", "true"), ("device", "auto")].map(|(key, value)| (key.to_owned(), value.to_owned()));
    assert_eq!(*options, expected);
}

#[test]
fn a_one_off_is_measured_on_what_there_is() {
    let bench = Bench::new(Conduct::Ends { failed: 0 });
    bench.run("run --model resnet18 --workers 1,2").check(0, &["migperf report: one-off"]);
    let suite = bench.daemon.lock().jobs[0].suite.clone();
    assert!(suite.contains("sharing = \"cpu\"") && !suite.contains("exclusive"), "the daemon has no GPU: {suite}");
}

#[test]
fn a_trial_without_a_valid_result_decides_the_exit_code() {
    let bench = Bench::new(Conduct::Ends { failed: 1 });
    bench.run(TWO_TRIALS).check(6, &["no valid result", "member 0 died"]);
}

#[test]
fn a_run_as_json_has_nothing_else_on_its_output() {
    let bench = Bench::new(Conduct::Ends { failed: 0 });
    bench.write("night.toml", SUITE);
    let ran = bench.run("run night.toml --json --device cpu --seed 7");
    ran.check(0, &[]);
    assert_eq!(ran.json()["job"]["name"], "night");
    let options = bench.daemon.lock().jobs[0].options.clone();
    assert!(options.contains(&("seed".to_owned(), "7".to_owned())), "{options:?}");
    assert!(options.contains(&("device".to_owned(), "cpu".to_owned())), "{options:?}");
    assert_eq!(bench.daemon.lock().jobs[0].suite, SUITE);
}

#[test]
fn a_run_writes_every_form_of_the_report() {
    let bench = Bench::new(Conduct::Ends { failed: 0 });
    let ran = bench.run(&format!("{TWO_TRIALS} --output result/deep --format csv"));
    ran.check(0, &["result/deep"]);
    assert_eq!(ran.out, bench.read("result/deep/report.csv"));
    assert!(bench.read("result/deep/report.txt").starts_with("migperf report: one-off\n"));
    assert!(serde_json::from_str::<serde_json::Value>(&bench.read("result/deep/report.json")).is_ok());
    let again = bench.run("report 1 --json");
    assert_eq!(again.out, bench.read("result/deep/report.json"));
}

#[test]
fn an_interrupt_cancels_and_waits_for_the_end() {
    let bench = Bench::new(Conduct::Endless);
    let child = bench.start(TWO_TRIALS);
    bench.until("the job runs", |daemon| daemon.jobs.first().is_some_and(|job| job.state == JobState::Running));
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).unwrap();
    let ran = Ran::of(TWO_TRIALS, &child.wait_with_output().unwrap());
    ran.check(130, &["cancelling", "job 1 was cancelled", "measured nothing"]);
    assert_eq!(bench.daemon.lock().jobs[0].state, JobState::Cancelled);
}

#[test]
fn a_second_interrupt_leaves_at_once_and_the_job_ends_with_the_connection() {
    let bench = Bench::new(Conduct::Stubborn);
    let mut child = bench.start(TWO_TRIALS);
    bench.until("the job runs", |daemon| daemon.jobs.first().is_some_and(|job| job.state == JobState::Running));
    let pid = Pid::from_raw(child.id().cast_signed());
    kill(pid, Signal::SIGINT).unwrap();
    let mut told = String::new();
    let mut messages = BufReader::new(child.stderr.take().unwrap());
    while !told.contains("press Ctrl-C again") {
        assert_ne!(messages.read_line(&mut told).unwrap(), 0, "{told}");
    }
    kill(pid, Signal::SIGTERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{told}");
    bench.until("the client left", |daemon| daemon.jobs[0].state == JobState::Cancelled);
}

#[test]
fn a_daemon_that_goes_away_is_told() {
    let bench = Bench::new(Conduct::Vanishes);
    bench.run(TWO_TRIALS).check(1, &["the daemon ended"]);
}

#[test]
fn a_job_that_fails_is_no_success() {
    let bench = Bench::new(Conduct::Fails);
    bench.run(TWO_TRIALS).check(1, &["job 1 failed: the GPU fell off the bus", "measured nothing"]);
}

#[test]
fn refusals_have_codes_of_their_own() {
    let refusing = Bench::new(Conduct::Refuses);
    refusing.run(TWO_TRIALS).check(5, &["error: GPU 0 serves virtual GPUs to guests"]);
    refusing.run(&format!("{TWO_TRIALS} --plan --device 9")).check(4, &["there is no GPU 9"]);
    let picky = Bench::new(Conduct::FindsFault);
    picky.write("night.toml", SUITE);
    picky.run("submit night.toml").check(3, &["night.toml: nothing of it fits this device"]);
}

#[test]
fn a_bad_suite_is_found_before_anything_is_started() {
    let bench = Bench::silent(Conduct::Endless);
    bench.write("night.toml", &SUITE.replace("sharing", "shraing"));
    for command in ["run", "submit"] {
        bench.run(&format!("{command} night.toml")).check(3, &["night.toml:4:1: ", "sharing"]);
        bench.run(&format!("{command} missing.toml")).check(3, &["can't read the suite missing.toml", "No such file"]);
    }
    bench.run("run").check(2, &["name a suite file, or a model"]);
    bench.run("run --model resnet18 --batch none").check(2, &["--batch"]);
    assert!(!bench.state.path().join("migperfd.log").exists(), "no daemon was needed");
}

#[test]
fn a_suite_comes_from_standard_input_too() {
    let bench = Bench::new(Conduct::Ends { failed: 0 });
    let mut child = bench.client("submit - --json").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(SUITE.as_bytes()).unwrap();
    let ran = Ran::of("submit -", &child.wait_with_output().unwrap());
    ran.check(0, &[]);
    assert_eq!(ran.json()["id"], 1);
    let options = bench.daemon.lock().jobs[0].options.clone();
    assert_eq!(options, [("device".to_owned(), "auto".to_owned())], "a submitted job is its own");
}

#[test]
fn a_plan_is_shown_and_judged() {
    let willing = Bench::new(Conduct::Endless);
    let ran = willing.run(&format!("{TWO_TRIALS} --plan"));
    ran.check(0, &["Device: two processors", "cpu: 2x resnet18 infer b1 fp32", "Nothing stands in the way"]);
    assert!(willing.daemon.lock().jobs.is_empty(), "nothing is submitted");
    let refusing = Bench::new(Conduct::Refuses);
    refusing.run(&format!("{TWO_TRIALS} --plan")).check(5, &["the GPU is lent out", "ask for it back"]);
    let json = refusing.run(&format!("{TWO_TRIALS} --plan --json"));
    json.check(5, &[]);
    assert_eq!(json.json()["refusals"][0]["remedy"], "ask for it back");
}

#[test]
fn stored_jobs_are_listed_shown_and_reported() {
    let bench = Bench::new(Conduct::Ends { failed: 1 });
    bench.write("night.toml", SUITE);
    bench.run("list").check(0, &["no jobs"]);
    for _ in 0..3 {
        bench.run("submit night.toml").check(0, &["job "]);
    }
    bench.until("all jobs end", |daemon| daemon.jobs.iter().all(|job| job.state == JobState::Done));

    let ran = bench.run("list");
    ran.check(0, &["JOB", "night", "done"]);
    let numbers: Vec<&str> = ran.out.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(numbers, ["3", "2", "1"], "newest first: {ran:#?}");
    bench.run("list --limit 2").check(0, &["there are more than 2"]);
    bench.run("list --state running").check(0, &["no jobs"]);
    let json = bench.run("list --json --mine");
    assert_eq!(json.json().as_array().unwrap().len(), 3);
    assert_eq!(json.json()[0]["trials-failed"], 1);

    bench.run("show 2").check(0, &["state      done", "2/2, 1 without a valid result"]);
    assert_eq!(bench.run("show 2 --json").json()["id"], 2);
    bench.run("report 2").check(0, &["migperf report: night"]);
    bench.run("report 2 --format csv --output night.csv").check(0, &[]);
    assert_eq!(bench.read("night.csv"), bench.run("report 2 --format csv").out);
    bench.run("watch 2").check(6, &["job 2 is done: 2 trials, 1 without a valid result"]);
    for line in ["show 9", "watch 9", "report 9", "cancel 9"] {
        bench.run(line).check(7, &["there is no job 9"]);
    }
}

#[test]
fn a_job_is_watched_and_cancelled_from_elsewhere() {
    let bench = Bench::new(Conduct::Endless);
    bench.write("night.toml", SUITE);
    bench.run("submit night.toml").check(0, &["job 1"]);
    bench.until("the job runs", |daemon| daemon.jobs[0].state == JobState::Running);
    bench.run("report 1").check(7, &["no trial of job 1 has ended"]);

    let mut left = bench.start("watch 1");
    let mut watching = bench.start("watch 1 --json");
    let mut seen = [0; 1];
    watching.stdout.as_mut().unwrap().read_exact(&mut seen).unwrap();
    // The other watcher has its signal handler as soon as it says anything.
    left.stderr.as_mut().unwrap().read_exact(&mut seen).unwrap();
    kill(Pid::from_raw(left.id().cast_signed()), Signal::SIGINT).unwrap();
    Ran::of("watch 1", &left.wait_with_output().unwrap()).check(130, &["job 1 is left alone"]);
    assert_eq!(bench.daemon.lock().jobs[0].state, JobState::Running);

    bench.run("cancel 1").check(0, &["job 1 is cancelled"]);
    let ran = Ran::of("watch 1 --json", &watching.wait_with_output().unwrap());
    ran.check(130, &[]);
    let last: serde_json::Value = serde_json::from_str(ran.out.lines().last().unwrap()).unwrap();
    assert_eq!(last["state"], "cancelled");
}

#[test]
fn a_check_tells_both_sides_and_what_is_missing() {
    let limited = Bench::new(Conduct::Endless);
    limited.run("check").check(0, &["migperfctl", "daemon", "/fake/state", "NVIDIA driver", "install the driver"]);
    let missing = Bench::new(Conduct::Refuses);
    let ran = missing.run("check --json");
    ran.check(5, &[]);
    assert_eq!(ran.json()["items"][2]["state"], "missing");
    let without = Bench::silent(Conduct::Endless);
    without.run("check").check(1, &["migperfctl", "can't find the program migperfd", "MIGPERF_BIN_DIR"]);
}

/// In the role of the daemon's program, this test serves whoever holds the other end of its standard input.
#[test]
fn a_daemon_is_started_where_none_listens() {
    if env::var_os(SERVE).is_some() {
        let stream = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
        let daemon = Daemon::new(Conduct::Ends { failed: 0 });
        tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(daemon.serve(stream));
        return;
    }
    let bench = Bench::silent(Conduct::Endless);
    let own = env::current_exe().unwrap();
    bench.program(&format!(
        "echo \"started with $*\" >&2\n{SERVE}=1 exec {} --exact a_daemon_is_started_where_none_listens",
        own.display()
    ));
    bench.run(TWO_TRIALS).check(0, &["migperf report: one-off"]);
    let started = format!("started with --peer --state-directory {}", bench.state.path().display());
    assert!(bench.read("migperfd.log").contains(&started), "{}", bench.read("migperfd.log"));
}

#[test]
fn a_daemon_that_can_not_start_is_quoted() {
    let bench = Bench::silent(Conduct::Endless);
    bench.program("echo 'the store is of a newer version' >&2; exit 1");
    bench.run(TWO_TRIALS).check(1, &["ended at once", "the store is of a newer version"]);
}

#[test]
fn whoever_loses_the_race_for_the_state_directory_joins_the_winner() {
    let bench = Bench::silent(Conduct::Ends { failed: 0 });
    bench.program("touch started; exit 75");
    let child = bench.start("list");
    let give_up = Instant::now() + LIMIT;
    while !bench.state.path().join("started").exists() {
        assert!(Instant::now() < give_up, "the program was never started");
        std::thread::sleep(Duration::from_millis(10));
    }
    bench.listen();
    Ran::of("list", &child.wait_with_output().unwrap()).check(0, &["no jobs"]);
}

#[test]
fn completions_need_no_daemon() {
    let bench = Bench::silent(Conduct::Endless);
    for shell in ["bash", "zsh", "fish"] {
        bench.run(&format!("completions {shell}")).check(0, &["migperfctl"]);
    }
    assert!(!Path::new(&bench.state.path().join("migperfd.log")).exists());
}

const H200: &str = "../docs/results/h200-co-load-resnet18/first/report.json";

/// The committed report with three repeats of each trial, whose throughputs differ by a tenth of a percent, all of them
/// times `factor`.
fn repeated(factor: f64) -> String {
    let mut report: serde_json::Value = serde_json::from_str(&fs::read_to_string(H200).unwrap()).unwrap();
    let trials = report["trials"].as_array_mut().unwrap();
    let once = trials.clone();
    for (repeat, noise) in [(1, 1.001), (2, 0.999)] {
        for mut trial in once.clone() {
            trial["repeat"] = repeat.into();
            for group in trial["groups"].as_array_mut().unwrap() {
                let rate = &mut group["throughput_samples_per_s"]["value"];
                *rate = (rate.as_f64().unwrap() * noise).into();
            }
            trials.push(trial);
        }
    }
    for group in trials.iter_mut().flat_map(|trial| trial["groups"].as_array_mut().unwrap()) {
        let rate = &mut group["throughput_samples_per_s"]["value"];
        *rate = (rate.as_f64().unwrap() * factor).into();
    }
    report.to_string()
}

#[test]
fn reports_in_files_are_shown_and_compared_without_a_daemon() {
    let bench = Bench::silent(Conduct::Ends { failed: 0 });
    bench.write("once.json", &fs::read_to_string(H200).unwrap());
    bench.write("before.json", &repeated(1.0));
    bench.write("slower.json", &repeated(0.8));
    bench.run("report once.json").check(0, &["co-load-resnet18-short"]);
    bench.run("report once.json --format html -o once.html").check(0, &[]);
    assert!(bench.read("once.html").starts_with("<!DOCTYPE html>"));
    bench.run("report once.json --format markdown").check(0, &["| sharing | work |", "NVIDIA H200"]);
    bench.run("compare once.json once.json").check(0, &["can't tell", "needs 2 cohorts on each side"]);
    bench.run("compare before.json before.json").check(0, &["same"]);
    bench.run("compare before.json slower.json").check(8, &["worse", "-20.0 %"]);
    bench.run("compare slower.json before.json --format markdown").check(0, &["### migperf: better"]);
    let ran = bench.run("compare before.json slower.json --json");
    ran.check(8, &[]);
    assert_eq!((&ran.json()["schema"], &ran.json()["rows"][0]["verdict"]), (&1.into(), &"worse".into()));
    bench.run("report missing.json").check(1, &["can't read missing.json"]);
    bench.write("other.json", "{}");
    bench.run("report other.json").check(1, &["is no JSON report"]);
}

#[test]
fn a_job_is_exported_and_reported_from_its_archive() {
    let bench = Bench::new(Conduct::Ends { failed: 0 });
    bench.run(TWO_TRIALS).check(0, &[]);
    bench.run("export 1 -o job.migperf").check(0, &["wrote job.migperf"]);
    let stored = bench.run("report 1 --format csv");
    let archived = bench.run("report job.migperf --format csv");
    assert_eq!(stored.out, archived.out);
    bench.run("report job.migperf --format migperf-eval").check(0, &["\"avg_latency\""]);
    bench.run("compare job.migperf job.migperf").check(0, &[]);
    let cut = fs::read(bench.state.path().join("job.migperf")).unwrap();
    fs::write(bench.state.path().join("cut.migperf"), &cut[..cut.len() - 1]).unwrap();
    bench.run("report cut.migperf").check(1, &["cut short"]);
}

#[test]
fn imported_tables_that_contradict_themselves_are_told_by_the_exit_code() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../core/tests/data/a100-80g");
    let import = |table: &str| {
        let mut client = Command::new(env!("CARGO_BIN_EXE_migperfctl"));
        client.arg("import").arg(data.join(table)).output().unwrap()
    };
    let vision = import("train-cv-integrated_result.csv");
    let told = String::from_utf8(vision.stdout).unwrap();
    assert_eq!(vision.status.code(), Some(0), "{told}");
    assert!(told.ends_with("24 rows, 21 measured, 0 contradict themselves\n"), "{told}");
    let language = import("infer-nlp-integrated_result_bsz.csv");
    let told = String::from_utf8(language.stdout).unwrap();
    assert_eq!(language.status.code(), Some(6), "{told}");
    assert!(
        told.contains("batches of 2 x 64 tokens: 6.83 ms allow 292.83/s, the table has 439.19/s (+50.0 %)"),
        "{told}"
    );
    assert!(told.contains("throughput x latency is 3.00 items in every row"), "{told}");
    let absent = import("no-such-table.csv");
    assert_eq!(absent.status.code(), Some(1));
}
