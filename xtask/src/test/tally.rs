//! The tally of a run: which parts failed, which were left out, and how many tests passed, failed and were skipped.

use std::time::{Duration, Instant};

use anyhow::Result;

/// Tests by outcome, as cargo's test runner counts them.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    /// Tests marked `#[ignore]`.
    pub(crate) skipped: u64,
}

/// What happened so far.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    counts: Counts,
    /// Parts that failed, with the reason.
    failures: Vec<String>,
    /// What was not run, with the reason.
    left_out: Vec<String>,
    /// How long each part took.
    times: Vec<(&'static str, Duration)>,
}

impl Counts {
    /// Adds the counts of a line if it is the closing line of one test program:
    /// `test result: ok. 7 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s`.
    pub(crate) fn add_line(&mut self, line: &str) {
        let Some((_, counts)) = line.strip_prefix("test result: ").and_then(|rest| rest.split_once(". ")) else {
            return;
        };
        for count in counts.split("; ") {
            let Some((number, name)) = count.split_once(' ') else { continue };
            let Ok(number) = number.parse::<u64>() else { continue };
            match name {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                "ignored" => self.skipped += number,
                _ => {}
            }
        }
    }
}

impl Tally {
    /// Runs a part that either holds or doesn't.
    pub(crate) fn check(&mut self, name: &'static str, part: impl FnOnce() -> Result<()>) {
        if let Err(error) = self.timed(name, part) {
            self.fail(name, &format!("{error:#}"));
        }
    }

    /// Runs a part that counts tests.
    pub(crate) fn tests(&mut self, name: &'static str, part: impl FnOnce() -> Result<Counts>) {
        match self.timed(name, part) {
            Ok(counts) => {
                self.counts.passed += counts.passed;
                self.counts.skipped += counts.skipped;
                if counts.failed > 0 {
                    self.counts.failed += counts.failed;
                    self.failures.push(format!("{name}: {} failed", counts.failed));
                }
            }
            Err(error) => self.fail(name, &format!("{error:#}")),
        }
    }

    /// Says that something was not run.
    pub(crate) fn leave_out(&mut self, what_and_why: &str) {
        self.left_out.push(what_and_why.to_owned());
    }

    fn fail(&mut self, name: &str, reason: &str) {
        eprintln!("test: {name} failed: {reason}");
        self.counts.failed += 1;
        self.failures.push(format!("{name}: {reason}"));
    }

    fn timed<T>(&mut self, name: &'static str, part: impl FnOnce() -> T) -> T {
        eprintln!("test: {name}");
        let start = Instant::now();
        let result = part();
        self.times.push((name, start.elapsed()));
        result
    }

    /// For people: how long the parts took, what was not run, what failed.
    pub(crate) fn explanations(&self) -> Vec<String> {
        let times = self.times.iter().map(|(name, time)| format!("{name} took {:.0} s", time.as_secs_f64()));
        let left_out = self.left_out.iter().map(|what| format!("not run: {what}"));
        let failures = self.failures.iter().map(|failure| format!("FAILED: {failure}"));
        times.chain(left_out).chain(failures).collect()
    }

    pub(crate) fn is_success(&self) -> bool {
        self.failures.is_empty()
    }

    /// `7 passed, 0 failed`, and how many were skipped if any were.
    pub(crate) fn closing_line(&self) -> String {
        let Counts { passed, failed, skipped } = self.counts;
        let skipped = if skipped > 0 { format!(", {skipped} skipped") } else { String::new() };
        format!("{passed} passed, {failed} failed{skipped}")
    }
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    #[test]
    fn only_closing_lines_are_counted() {
        let mut counts = Counts::default();
        for line in [
            "running 9 tests",
            "test result: ok. 7 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.01s",
            "test ids::tests::a ... ok",
            "a test said: test result: ok. 100 passed; 100 failed; 0 ignored",
            "test result: FAILED. 3 passed; 1 failed; 0 ignored; 0 measured; 5 filtered out; finished in 12.30s",
        ] {
            counts.add_line(line);
        }
        assert_eq!(counts, Counts { passed: 10, failed: 1, skipped: 2 });
    }

    fn check(tally: &Tally, closing_line: &str, success: bool) {
        assert_eq!(tally.closing_line(), closing_line);
        assert_eq!(tally.is_success(), success);
    }

    #[test]
    fn the_closing_line_sums_all_parts() {
        let mut tally = Tally::default();
        tally.check("lints", || Ok(()));
        tally.tests("core", || Ok(Counts { passed: 5, failed: 0, skipped: 0 }));
        check(&tally, "5 passed, 0 failed", true);
        tally.tests("gpu", || Ok(Counts { passed: 2, failed: 0, skipped: 3 }));
        check(&tally, "7 passed, 0 failed, 3 skipped", true);
        tally.tests("worker", || Ok(Counts { passed: 1, failed: 2, skipped: 0 }));
        check(&tally, "8 passed, 2 failed, 3 skipped", false);
    }

    #[test]
    fn a_part_that_fails_without_a_test_counts_as_one() {
        let mut tally = Tally::default();
        tally.check("lints", || bail!("a warning"));
        check(&tally, "0 passed, 1 failed", false);
        tally.tests("core", || bail!("does not compile"));
        check(&tally, "0 passed, 2 failed", false);
        assert!(tally.explanations().contains(&"FAILED: lints: a warning".to_owned()), "{:?}", tally.explanations());
    }

    #[test]
    fn what_was_left_out_is_said() {
        let mut tally = Tally::default();
        tally.leave_out("the worker (--quick)");
        assert_eq!(tally.explanations(), ["not run: the worker (--quick)"]);
        check(&tally, "0 passed, 0 failed", true);
    }
}
