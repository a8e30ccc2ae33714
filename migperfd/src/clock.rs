//! The host's clocks.

use migperf_core::record::ClockPair;
use migperf_core::units::{MonotonicNanos, RealtimeNanos};
use nix::time::{ClockId, clock_gettime};

fn nanos(clock: ClockId) -> u64 {
    let time = clock_gettime(clock).expect("both clocks exist on every Linux");
    u64::try_from(time.tv_sec()).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec()).unwrap_or(0)
}

/// CLOCK_MONOTONIC, the clock that workers stamp with.
#[must_use]
pub fn now() -> MonotonicNanos {
    MonotonicNanos(nanos(ClockId::CLOCK_MONOTONIC))
}

/// CLOCK_REALTIME.
#[must_use]
pub fn wall() -> RealtimeNanos {
    RealtimeNanos(nanos(ClockId::CLOCK_REALTIME))
}

/// Both clocks at one moment: of several tries the one in which the readings lay closest together.
#[must_use]
pub fn pair() -> ClockPair {
    (0..5)
        .map(|_| {
            let (before, realtime, after) = (now(), wall(), now());
            (after.0 - before.0, ClockPair { realtime, monotonic: MonotonicNanos(u64::midpoint(before.0, after.0)) })
        })
        .min_by_key(|(spread, _)| *spread)
        .map(|(_, pair)| pair)
        .expect("five tries were made")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clocks_run_together() {
        let (first, second) = (pair(), pair());
        let monotonic = second.monotonic.0 - first.monotonic.0;
        let realtime = second.realtime.0.abs_diff(first.realtime.0);
        assert!(monotonic.abs_diff(realtime) < 1_000_000, "{monotonic} ns and {realtime} ns");
    }
}
