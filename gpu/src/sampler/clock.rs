//! The clocks a sample is stamped with, and sleeping until an instant.

use std::time::Duration;

use migperf_core::units::{MonotonicNanos, RealtimeNanos, nanos};
use nix::errno::Errno;
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, ClockNanosleepFlags, clock_gettime, clock_nanosleep};

fn read(clock: ClockId) -> u64 {
    let now = clock_gettime(clock).expect("Linux has had these clocks since 2.6");
    nanos(Duration::from(now))
}

/// CLOCK_MONOTONIC now.
pub(super) fn monotonic() -> MonotonicNanos {
    MonotonicNanos(read(ClockId::CLOCK_MONOTONIC))
}

/// CLOCK_REALTIME now.
pub(super) fn realtime() -> RealtimeNanos {
    RealtimeNanos(read(ClockId::CLOCK_REALTIME))
}

/// Processor time that the calling thread has used.
pub(super) fn thread_cpu() -> Duration {
    Duration::from_nanos(read(ClockId::CLOCK_THREAD_CPUTIME_ID))
}

/// Sleeps until an instant; returns at once if it has passed.
pub(super) fn sleep_until(instant: MonotonicNanos) {
    let wake = TimeSpec::from_duration(Duration::from_nanos(instant.0));
    while clock_nanosleep(ClockId::CLOCK_MONOTONIC, ClockNanosleepFlags::TIMER_ABSTIME, &wake) == Err(Errno::EINTR) {}
}
