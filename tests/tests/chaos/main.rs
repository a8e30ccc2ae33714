//! Chaos: short MIG jobs during which something is killed, or the machine restarted, at a random instant. Afterwards the
//! layout must be as before, read by somebody else; finished trials must be in the store; instances that are not ours
//! must not have been touched.
//!
//! `cargo xtask chaos --runs 500` runs many; as a test it runs a few. `MIGPERF_CHAOS_RUNS`, `MIGPERF_CHAOS_SEED` and
//! `MIGPERF_CHAOS_ONLY` (the number of one run) say which. The same seed gives the same runs.

mod case;
mod run;

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Instant;

use case::Case;
use tokio::sync::Semaphore;

/// Runs of the test, and runs at a time: most of a run is waiting.
const FEW: u64 = 12;
const AT_ONCE: usize = 6;

fn variable(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name}={value} is no number")))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[expect(clippy::print_stdout, reason = "the count is the result")]
async fn whatever_dies_the_layout_is_restored() {
    let runs = variable("MIGPERF_CHAOS_RUNS").unwrap_or(FEW);
    let seed = variable("MIGPERF_CHAOS_SEED").unwrap_or(1);
    let only = variable("MIGPERF_CHAOS_ONLY");
    assert!(nix::unistd::geteuid().is_root(), "only root can run the helper; run this as root");
    let (turns, start) = (Arc::new(Semaphore::new(AT_ONCE)), Instant::now());
    let wanted = (0..runs).filter(|number| only.is_none_or(|only| only == *number));
    let started: Vec<_> = wanted
        .map(|number| {
            let (case, turns) = (Case::of(seed, number), Arc::clone(&turns));
            tokio::spawn(async move {
                let _turn = turns.acquire_owned().await.expect("the semaphore stays open");
                let told = case.to_string();
                (told, tokio::spawn(run::run(case)).await)
            })
        })
        .collect();
    let (mut restored, mut lost) = (0, String::new());
    for run in started {
        let (case, outcome) = run.await.expect("a run's keeper does not fail");
        match outcome {
            Ok(Ok(())) => restored += 1,
            Ok(Err(reason)) => _ = writeln!(lost, "{case}: {reason}"),
            Err(error) => _ = writeln!(lost, "{case}: {error}"),
        }
    }
    print!("{lost}");
    println!(
        "{restored} restored, {} lost (seed {seed}, {:.0} s)",
        lost.lines().count(),
        start.elapsed().as_secs_f64()
    );
    assert!(lost.is_empty(), "layouts or trials were lost:\n{lost}");
}
