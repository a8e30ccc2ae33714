//! The promise: from every starting state, whatever fails and wherever it ends, the GPU is as it was found.

mod stage;

use std::collections::BTreeMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use migperf_core::mig::layout::Layout;
use migperf_helper::engine::{Engine, EngineError};
use migperf_helper::hand::{Answer, Hand, HandError, Hands, ProcessHands, Request};
use migperf_helper::ledger::{Disk, Hold, Storage};
use migperf_helper::service::own;
use sim_machine::faults::{Effect, Fault, write};
use sim_machine::files::{Start, devices};
use stage::{LocalHands, Quick, Stage, on_machine, order, replacing};

const H200: &str = r#"{ "gpus": [ { "model": "H200-141" } ] }"#;
const A100: &str = r#"{ "gpus": [ { "model": "A100-40" } ] }"#;

fn layout(text: &str) -> Layout {
    text.parse().unwrap()
}

/// A starting state, and the layout that is asked for from it.
#[derive(Debug, Clone, Copy)]
struct Case {
    on: bool,
    foreign: bool,
    replace: bool,
    wanted: &'static str,
}

const CASES: [Case; 4] = [
    Case { on: false, foreign: false, replace: false, wanted: "3g(1c+2c)+1g" },
    Case { on: true, foreign: false, replace: false, wanted: "2g+1g" },
    Case { on: true, foreign: true, replace: false, wanted: "2x1g" },
    Case { on: true, foreign: true, replace: true, wanted: "4g+2g+1g" },
];

impl Case {
    fn set(self, stage: &Stage) {
        stage.clear(self.on);
        if self.foreign {
            stage.create("3g.71gb", 4, &[2, 1]);
            stage.create("1g.18gb", 0, &[1]);
        }
    }

    fn order(self) -> migperf_helper::engine::Order {
        if self.replace { replacing() } else { order() }
    }

    /// What must be there at the end: the same layout, and the same instances unless they might be replaced.
    fn check(self, stage: &Stage, found: &(String, Vec<String>), context: &str) {
        assert_eq!(stage.layout(), found.0, "{self:?}, {context}");
        if !self.replace {
            assert_eq!(stage.uuids(), found.1, "{self:?}, {context}");
        }
        let report = stage.engine().report().unwrap();
        assert!(report.is_empty(), "{self:?}, {context}: {report:?}");
        let nodes = std::fs::read_dir(devices(&stage.state).join("nvidia-caps")).map_or(0, Iterator::count);
        assert_eq!(nodes, 0, "{self:?}, {context}: device files are left");
    }
}

fn found(stage: &Stage) -> (String, Vec<String>) {
    (stage.layout(), stage.uuids())
}

/// Stops a helper dead at its n-th moment: before or after a call or a write.
struct Moments {
    left: AtomicUsize,
}

struct Crash;

impl Moments {
    fn at(n: usize) -> Arc<Self> {
        Arc::new(Self { left: AtomicUsize::new(n) })
    }

    fn pass(&self) {
        // It stays at 0 for what is dropped on the way out: only one crash a life.
        if self.left.load(Ordering::Relaxed) == 0 {
            return;
        }
        if self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            panic_any(Crash);
        }
    }
}

struct CrashingHands(LocalHands, Arc<Moments>);

struct CrashingHand(Box<dyn Hand>, Arc<Moments>);

impl Hands for CrashingHands {
    fn start(&self) -> Result<Box<dyn Hand>, HandError> {
        Ok(Box::new(CrashingHand(self.0.start()?, Arc::clone(&self.1))))
    }
}

impl Hand for CrashingHand {
    fn ask(&mut self, request: &Request) -> Result<Answer, HandError> {
        self.1.pass();
        let answer = self.0.ask(request);
        self.1.pass();
        answer
    }
}

struct CrashingDisk(Arc<Moments>);

impl Storage for CrashingDisk {
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.0.pass();
        // A crash in the middle of it leaves a new file that nobody looks at.
        std::fs::write(path.with_extension("new"), &bytes[..bytes.len() / 2])?;
        self.0.pass();
        Quick.write(path, bytes)?;
        self.0.pass();
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.0.pass();
        Quick.remove(path)?;
        self.0.pass();
        Ok(())
    }
}

/// What happens between the crash and the next helper.
type Meanwhile = fn(&Stage);

/// Crashes at every moment of an apply and a restore. Says how many there were.
fn crash_everywhere(
    stage: &Stage,
    case: Case,
    meanwhile: Option<Meanwhile>,
    check: impl Fn(&(String, Vec<String>), &str),
) -> usize {
    for n in 1.. {
        case.set(stage);
        let found = found(stage);
        let moments = Moments::at(n);
        let hands = CrashingHands(LocalHands(stage.library.clone()), Arc::clone(&moments));
        let engine = stage.engine_with(Arc::new(hands), Arc::new(CrashingDisk(Arc::clone(&moments))));
        let life = catch_unwind(AssertUnwindSafe(|| {
            engine.apply(&stage.gpu, &layout(case.wanted), &case.order()).unwrap();
            engine.restore(&stage.gpu, &own("a test")).unwrap();
        }));
        drop(engine);
        let crashed = match life {
            Ok(()) => false,
            Err(panic) if panic.is::<Crash>() => true,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        if crashed && let Some(meanwhile) = meanwhile {
            meanwhile(stage);
        }
        for (gpu, result) in stage.engine().reconcile(&own("a test")).unwrap() {
            assert!(result.is_ok(), "{case:?}, moment {n}, {gpu}: {result:?}");
        }
        check(&found, &format!("crash at moment {n}"));
        if !crashed {
            return n - 1;
        }
    }
    unreachable!()
}

fn quiet_crashes() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !info.payload().is::<Crash>() {
            usual(info);
        }
    }));
}

#[test]
fn a_crash_at_any_moment_is_followed_by_the_way_back() {
    on_machine("a_crash_at_any_moment_is_followed_by_the_way_back", H200, |stage| {
        quiet_crashes();
        for case in CASES {
            let moments = crash_everywhere(stage, case, None, |found, context| case.check(stage, found, context));
            assert!(moments > 50, "{case:?}: only {moments} moments");
        }
    });
}

/// After a restart of the machine nothing that was made is there; what somebody else made since is not touched.
fn restarts(stage: &Stage, kept: bool) {
    quiet_crashes();
    for case in [CASES[0], CASES[1], CASES[3]] {
        // Nobody made anything since: only the mode may be left of us. A mode that does not outlive the driver is off.
        let expected = if case.on && kept { "Some((true, true)) " } else { "Some((false, false)) " };
        let restart: Meanwhile = |stage| stage.shared.restart(Start::Boot).unwrap();
        let check = |found: &(String, Vec<String>), context: &str| {
            let now = stage.layout();
            assert!(now == expected || now == found.0, "{case:?}, {context}: {now}");
            assert!(stage.engine().report().unwrap().is_empty(), "{case:?}, {context}");
        };
        assert!(crash_everywhere(stage, case, Some(restart), check) > 20);
        // Another manager restored at boot: the very places that we used.
        let manager: Meanwhile = |stage| {
            stage.shared.restart(Start::Boot).unwrap();
            stage.shared.update(|_, state| state.gpus[0].mig = Some((true, true))).unwrap();
            let one = stage.shared.machine().gpus[0].model().profiles.iter().find(|p| p.compute_slices == 1).unwrap();
            stage.create(&one.name, 0, &[1]);
            std::fs::write(stage.folder.join("manager"), stage.uuids().join("\n")).unwrap();
        };
        let check = |found: &(String, Vec<String>), context: &str| {
            let restored = std::fs::read_to_string(stage.folder.join("manager")).unwrap_or_default();
            assert!(stage.uuids().join("\n") == restored || stage.layout() == found.0, "{case:?}, {context}");
            assert!(stage.engine().report().unwrap().is_empty(), "{case:?}, {context}");
        };
        crash_everywhere(stage, case, Some(manager), check);
    }
}

#[test]
fn a_restart_leaves_a_stale_ledger_that_harms_nobody() {
    on_machine("a_restart_leaves_a_stale_ledger_that_harms_nobody", H200, |stage| restarts(stage, false));
}

#[test]
fn a_mode_that_outlives_a_restart_is_put_back() {
    on_machine("a_mode_that_outlives_a_restart_is_put_back", A100, |stage| {
        quiet_crashes();
        let case = Case { wanted: "3g+1g", ..CASES[0] };
        let restart: Meanwhile = |stage| stage.shared.restart(Start::Boot).unwrap();
        crash_everywhere(stage, case, Some(restart), |found, context| case.check(stage, found, context));
        // The other way round: it was on, and we switched it off.
        let case = Case { on: true, foreign: false, replace: false, wanted: "off" };
        crash_everywhere(stage, case, Some(restart), |found, context| case.check(stage, found, context));
    });
}

const CODES: [u32; 17] = [1, 2, 3, 4, 6, 7, 10, 13, 15, 16, 17, 19, 21, 23, 25, 29, 999];

fn plan(stage: &Stage, faults: &[Fault]) {
    write(&stage.folder.join("faults.json"), faults).unwrap();
}

fn counts(stage: &Stage) -> BTreeMap<String, u64> {
    serde_json::from_slice(&std::fs::read(stage.folder.join("faults.counts")).unwrap()).unwrap()
}

fn is_change(function: &str) -> bool {
    ["Create", "Destroy", "SetMig"].iter().any(|word| function.contains(word))
}

/// Applies and restores under a fault; in each case the GPU is as it was, or it is said that it isn't and then put back.
fn survive(stage: &Stage, engine: &Engine, case: Case, fault: &Fault) -> bool {
    case.set(stage);
    let found = found(stage);
    plan(stage, std::slice::from_ref(fault));
    let context = format!("{fault:?}");
    let said = |error: &EngineError| match error {
        EngineError::RollbackFailed { left, commands, .. } => {
            assert!(!left.is_empty() && !commands.is_empty(), "{context}");
            let report = engine.report().unwrap();
            assert_eq!((report[0].state, report[0].left.is_empty()), ("rollback-failed", false), "{context}");
        }
        _ => assert_eq!(stage.layout(), found.0, "{context}: {error}"),
    };
    let applied = engine.apply(&stage.gpu, &layout(case.wanted), &case.order());
    if let Err(error) = &applied {
        said(error);
    }
    let restored = engine.restore(&stage.gpu, &own("a test"));
    let first = restored.is_ok();
    if let Err(error) = restored
        && matches!(error, EngineError::RollbackFailed { .. })
    {
        said(&error);
    }
    plan(stage, &[]);
    if !first {
        engine.restore(&stage.gpu, &own("a test")).unwrap_or_else(|error| panic!("{context}: {error}"));
    }
    case.check(stage, &found, &context);
    applied.is_ok()
}

fn fail_everywhere(stage: &Stage, case: Case) {
    let engine = stage.engine();
    case.set(stage);
    plan(stage, &[]);
    engine.apply(&stage.gpu, &layout(case.wanted), &case.order()).unwrap();
    engine.restore(&stage.gpu, &own("a test")).unwrap();
    let (mut outcomes, mut changes) = ([0, 0], 0_usize);
    for (function, count) in counts(stage) {
        if function == "*" || function == "nvmlShutdown" {
            continue;
        }
        let all = std::env::var_os("MIGPERF_FUZZ").is_some();
        let change = is_change(&function);
        changes += usize::from(change);
        for nth in 1..=count {
            let codes: &[u32] = match (change, nth) {
                _ if all => &CODES,
                (true, 1) => &CODES,
                (true, _) => &[19, 999],
                (false, _) if nth == count / 2 + 1 => &[2, 6, 999],
                (false, _) => continue,
            };
            for code in codes {
                let fault = Fault { function: function.clone(), nth: Some(nth), effect: Effect::Code(*code) };
                outcomes[usize::from(survive(stage, &engine, case, &fault))] += 1;
            }
        }
    }
    assert!(changes >= 4, "only {changes} functions that change something were called");
    assert!(outcomes[0] > 20 && outcomes[1] > 20, "{case:?}: {outcomes:?} failed and went on");
}

#[test]
fn every_call_may_fail_from_off() {
    on_machine("every_call_may_fail_from_off", H200, |stage| fail_everywhere(stage, CASES[0]));
}

#[test]
fn every_call_may_fail_beside_others() {
    on_machine("every_call_may_fail_beside_others", H200, |stage| fail_everywhere(stage, CASES[2]));
}

#[test]
fn every_call_may_fail_while_others_are_replaced() {
    on_machine("every_call_may_fail_while_others_are_replaced", H200, |stage| fail_everywhere(stage, CASES[3]));
}

#[test]
fn calls_that_succeed_and_do_nothing_are_noticed() {
    on_machine("calls_that_succeed_and_do_nothing_are_noticed", H200, |stage| {
        let engine = stage.engine();
        for case in CASES {
            for function in [
                "nvmlDeviceSetMigMode",
                "nvmlDeviceCreateGpuInstanceWithPlacement",
                "nvmlGpuInstanceCreateComputeInstance",
                "nvmlGpuInstanceDestroy",
                "nvmlComputeInstanceDestroy",
            ] {
                for nth in 1..=3 {
                    let fault = Fault { function: function.to_owned(), nth: Some(nth), effect: Effect::Nothing };
                    survive(stage, &engine, case, &fault);
                }
            }
        }
        // For good: it is tried a few times, and then said with what to type.
        CASES[0].set(stage);
        engine.apply(&stage.gpu, &layout("1g@4+1g@6"), &order()).unwrap();
        plan(stage, &[Fault { function: "nvmlGpuInstanceDestroy".to_owned(), nth: None, effect: Effect::Nothing }]);
        let error = engine.restore(&stage.gpu, &own("a test")).unwrap_err();
        let EngineError::RollbackFailed { cause, left, commands } = &error else { panic!("{error}") };
        assert!(cause.contains("did nothing"), "{cause}");
        assert_eq!(left, &["the GPU is `1g.18gb@4:1()+1g.18gb@6:1` and was `off`"]);
        assert_eq!(
            commands,
            &[
                "nvidia-smi mig -i 0 -dgi -gi 11",
                "nvidia-smi mig -i 0 -dci -gi 13 -ci 0",
                "nvidia-smi mig -i 0 -dgi -gi 13",
                "nvidia-smi -i 0 -mig 0"
            ]
        );
        plan(stage, &[]);
        assert!(!engine.tend(&own("a test")));
        assert_eq!(stage.layout(), "Some((false, false)) ");
    });
}

#[test]
fn calls_that_hang_end_in_time() {
    on_machine("calls_that_hang_end_in_time", H200, |stage| {
        let limit = Duration::from_millis(700);
        let hands = ProcessHands {
            program: env!("CARGO_BIN_EXE_migperf-helper").into(),
            library: Some(stage.library.clone()),
            limit,
        };
        let engine = stage.engine_with(Arc::new(hands), Arc::new(Disk));
        for (case, function) in [
            (CASES[0], "nvmlDeviceSetMigMode"),
            (CASES[0], "nvmlDeviceCreateGpuInstanceWithPlacement"),
            (CASES[2], "nvmlGpuInstanceCreateComputeInstance"),
            (CASES[3], "nvmlGpuInstanceDestroy"),
            (CASES[1], "nvmlDeviceGetMigMode"),
        ] {
            for effect in [Effect::HangMs(0), Effect::KillBefore, Effect::KillAfter] {
                let fault = Fault { function: function.to_owned(), nth: Some(1), effect };
                survive(stage, &engine, case, &fault);
            }
        }
    });
}

#[test]
fn a_call_that_never_returns_quarantines_the_gpu() {
    struct StuckHands(LocalHands, Arc<AtomicUsize>);
    struct StuckHand(Box<dyn Hand>, Arc<AtomicUsize>);
    impl Hands for StuckHands {
        fn start(&self) -> Result<Box<dyn Hand>, HandError> {
            Ok(Box::new(StuckHand(self.0.start()?, Arc::clone(&self.1))))
        }
    }
    impl Hand for StuckHand {
        fn ask(&mut self, request: &Request) -> Result<Answer, HandError> {
            match (request, self.1.load(Ordering::Relaxed)) {
                (Request::CreateComputeInstance(..), pid @ 1..) => Err(HandError::Stuck(u32::try_from(pid).unwrap())),
                _ => self.0.ask(request),
            }
        }
    }
    on_machine("a_call_that_never_returns_quarantines_the_gpu", H200, |stage| {
        let mut hanging = Command::new("sleep").arg("600").spawn().unwrap();
        let pid = Arc::new(AtomicUsize::new(hanging.id() as usize));
        let hands = StuckHands(LocalHands(stage.library.clone()), Arc::clone(&pid));
        let engine = stage.engine_with(Arc::new(hands), Arc::new(Disk));
        let found = found(stage);
        let error = engine.apply(&stage.gpu, &layout("2x1g"), &order()).unwrap_err();
        assert!(matches!(error, EngineError::Quarantined(_, of) if of == hanging.id()), "{error}");
        assert_eq!(engine.report().unwrap()[0].state, "quarantined");
        assert!(matches!(engine.restore(&stage.gpu, &order()), Err(EngineError::Quarantined(..))));
        assert!(engine.apply(&stage.gpu, &layout("1g"), &order()).is_err());
        assert!(engine.tend(&own("a test")), "a helper that ends now would leave it");
        // Another helper knows it from the ledger.
        drop(engine);
        let engine = stage.engine();
        assert!(engine.reconcile(&own("a test")).unwrap()[0].1.is_err());
        hanging.kill().unwrap();
        hanging.wait().unwrap();
        assert!(!engine.tend(&own("a test")));
        CASES[0].check(stage, &found, "after the quarantine");
    });
}

#[test]
fn instances_from_before_go_only_where_that_is_allowed() {
    on_machine("instances_from_before_go_only_where_that_is_allowed", H200, |stage| {
        let engine = stage.engine();
        CASES[2].set(stage);
        let found = found(stage);
        for wanted in ["7x1g", "7g", "off", "empty", "2g@0", "3g@4(3c)"] {
            let error = engine.apply(&stage.gpu, &layout(wanted), &order()).unwrap_err();
            assert!(
                matches!(&error, EngineError::Infeasible(text) if text.contains("replace-existing")),
                "{wanted}: {error}"
            );
        }
        assert_eq!(self::found(stage), found);
        // What fits as it is serves, and nothing is written down.
        let outcome = engine.apply(&stage.gpu, &layout("1g+3g(1c+2c)"), &order()).unwrap();
        assert_eq!((outcome.steps, engine.report().unwrap().len()), (0, 0));
        let outcome = engine.apply(&stage.gpu, &layout("2g@2"), &order()).unwrap();
        assert_eq!(outcome.steps, 2);
        for (wanted, there) in [("7g(4c+3c)", 1), ("7x1g", 7), ("off", 0)] {
            let outcome = engine.apply(&stage.gpu, &layout(wanted), &replacing()).unwrap();
            assert_eq!(outcome.now.instances.len(), there, "{wanted}");
        }
        let outcome = engine.restore(&stage.gpu, &order()).unwrap();
        assert!(outcome.as_found && outcome.left.is_empty(), "{outcome:?}");
        assert_eq!(stage.layout(), found.0);
    });
}

/// A driver's "insufficient resources" names no layer. What a GPU instance can't hold is known once it exists: the device's
/// list decides, not a table.
#[test]
fn no_room_is_told_with_its_layer_and_numbers() {
    on_machine("no_room_is_told_with_its_layer_and_numbers", H200, |stage| {
        let engine = stage.engine();
        let refused = |function: &str| Fault { function: function.to_owned(), nth: None, effect: Effect::Code(23) };
        for (function, words) in [
            ("nvmlGpuInstanceCreateComputeInstance", "1 free of 1 in the GPU instance"),
            ("nvmlDeviceCreateGpuInstanceWithPlacement", "2 free of 2 in the GPU"),
        ] {
            CASES[0].set(stage);
            let found = stage.layout();
            plan(stage, &[refused(function)]);
            let error = engine.apply(&stage.gpu, &layout("3g"), &order()).unwrap_err().to_string();
            assert!(error.contains("no room for") && error.contains(words), "{error}");
            plan(stage, &[]);
            assert_eq!(stage.layout(), found);
        }
        // A 4g offers no compute instance of three slices.
        let error = engine.apply(&stage.gpu, &layout("4g(3c+1c)"), &order()).unwrap_err();
        assert!(matches!(error, EngineError::RolledBack(_)), "{error}");
        assert_eq!(stage.layout(), "Some((false, false)) ");
    });
}

#[test]
fn what_others_changed_meanwhile_stays_theirs() {
    on_machine("what_others_changed_meanwhile_stays_theirs", H200, |stage| {
        let engine = stage.engine();
        engine.apply(&stage.gpu, &layout("1g@0"), &order()).unwrap();
        let ours = stage.uuids();
        stage.create("2g.35gb", 2, &[2]);
        let theirs: Vec<String> = stage.uuids().into_iter().filter(|uuid| !ours.contains(uuid)).collect();
        let outcome = engine.restore(&stage.gpu, &order()).unwrap();
        assert_eq!(outcome.left, ["MIG stays on: somebody else made 2g.35gb@2:2"]);
        assert_eq!(stage.layout(), "Some((true, true)) 2g.35gb@2:2(2c@0)");
        assert!(engine.report().unwrap().is_empty());
        // An instance of ours that an administrator replaced by one of the same place and number.
        let engine = stage.engine();
        engine.apply(&stage.gpu, &layout("2g+1g@0"), &order()).unwrap();
        stage
            .shared
            .update(|machine, state| {
                let id = state.gpus[0].instances.iter().find(|one| one.start == 0).unwrap().id;
                state.gpus[0].destroy_compute(id, 0).unwrap();
                state.gpus[0].create_compute(&machine.gpus[0], id, 0, None, "somebody else").unwrap();
            })
            .unwrap();
        let before = stage.uuids();
        engine.restore(&stage.gpu, &order()).unwrap();
        assert_eq!(stage.uuids(), before);
        assert!(before.iter().any(|uuid| theirs.contains(uuid)));
        assert!(engine.report().unwrap().is_empty());
    });
}

#[test]
fn a_layout_that_is_kept_is_kept_by_later_helpers_too() {
    on_machine("a_layout_that_is_kept_is_kept_by_later_helpers_too", H200, |stage| {
        let found = found(stage);
        let engine = stage.engine();
        let kept = migperf_helper::engine::Order { hold: Hold::UntilRestored, ..order() };
        engine.apply(&stage.gpu, &layout("2x3g"), &kept).unwrap();
        assert!(!engine.is_holding());
        let rival = stage.engine();
        assert!(matches!(rival.apply(&stage.gpu, &layout("7x1g"), &kept), Err(EngineError::Ledger(_))));
        drop(engine);
        let later = stage.engine();
        assert!(later.reconcile(&own("a test")).unwrap().is_empty());
        assert_eq!(later.report().unwrap()[0].state, "kept");
        later.apply(&stage.gpu, &layout("7x1g"), &kept).unwrap();
        drop(later);
        stage.engine().restore(&stage.gpu, &order()).unwrap();
        CASES[0].check(stage, &found, "after it was kept");
    });
}

#[test]
fn a_mode_that_waits_for_a_reset_is_left_alone() {
    let pending = r#"{ "gpus": [ { "model": "A100-40", "mig": "pending" } ] }"#;
    on_machine("a_mode_that_waits_for_a_reset_is_left_alone", pending, |stage| {
        let error = stage.engine().apply(&stage.gpu, &layout("7x1g"), &order()).unwrap_err();
        assert!(matches!(&error, EngineError::Refused(text) if text.contains("reset")), "{error}");
        assert_eq!(stage.layout(), "Some((false, true)) ");
    });
}

#[test]
fn a_mode_that_does_not_become_active_is_taken_back() {
    let passed_through = r#"{ "gpus": [ { "model": "A100-40", "virtualization": 1 } ] }"#;
    on_machine("a_mode_that_does_not_become_active_is_taken_back", passed_through, |stage| {
        let error = stage.engine().apply(&stage.gpu, &layout("7x1g"), &order()).unwrap_err();
        assert!(matches!(&error, EngineError::RolledBack(text) if text.contains("reset is required")), "{error}");
        assert_eq!(stage.layout(), "Some((false, false)) ");
    });
}

#[test]
fn hooks_run_around_a_change() {
    on_machine("hooks_run_around_a_change", H200, |stage| {
        let log = stage.folder.join("hooks.log");
        let script = |name: &str, end: &str| {
            let path = stage.folder.join(name);
            let text = format!(
                "#!/bin/sh\necho \"$1 $MIGPERF_GPU_INDEX $MIGPERF_GPU_UUID ${{NVML_SIM_STATE-clean}}\" >>{}\n{end}\n",
                log.display()
            );
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
            path
        };
        let said = || std::fs::read_to_string(&log).unwrap_or_default().replace(stage.gpu.as_str(), "UUID");
        let engine = |acquire: &str| {
            let mut config = stage.config();
            config.hooks.acquire = Some(script("acquire", acquire));
            config.hooks.release = Some(script("release", "exit 0"));
            config.hooks.limit_seconds = 1;
            let directory = migperf_helper::engine::ledger_directory(&config);
            let ledger = migperf_helper::ledger::Ledger::open(directory, Arc::new(Disk)).unwrap();
            Engine::new(config, Arc::new(LocalHands(stage.library.clone())), ledger)
        };
        let found = found(stage);
        let good = engine("exit 0");
        good.apply(&stage.gpu, &layout("1g"), &order()).unwrap();
        assert_eq!(said(), "acquire 0 UUID clean\n");
        good.apply(&stage.gpu, &layout("2x1g"), &order()).unwrap();
        good.restore(&stage.gpu, &order()).unwrap();
        assert_eq!(said(), "acquire 0 UUID clean\nrelease 0 UUID clean\n");
        for bad in ["exit 3", "sleep 60"] {
            let error = engine(bad).apply(&stage.gpu, &layout("1g"), &order()).unwrap_err();
            assert!(matches!(&error, EngineError::Refused(text) if text.contains("handed over")), "{error}");
            CASES[0].check(stage, &found, bad);
        }
        assert!(said().ends_with("acquire 0 UUID clean\nrelease 0 UUID clean\n"), "{}", said());
    });
}

#[test]
fn instances_get_their_device_files() {
    on_machine("instances_get_their_device_files", H200, |stage| {
        use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
        let engine = stage.engine();
        engine.apply(&stage.gpu, &layout("3g(1c+2c)"), &order()).unwrap();
        let nodes: Vec<_> =
            std::fs::read_dir(devices(&stage.state).join("nvidia-caps")).unwrap().map(Result::unwrap).collect();
        assert_eq!(nodes.len(), 3);
        for node in nodes {
            let found = node.metadata().unwrap();
            assert!(found.file_type().is_char_device() && found.mode() & 0o777 == 0o444, "{found:?}");
            assert_eq!(nix::sys::stat::major(found.rdev()), 511);
        }
        engine.restore(&stage.gpu, &order()).unwrap();
        assert_eq!(std::fs::read_dir(devices(&stage.state).join("nvidia-caps")).unwrap().count(), 0);
    });
}
