//! The clock that belief is measured by: it counts the time a machine sleeps (R20).

use rustix::time::{ClockId, clock_gettime};

/// µs on `CLOCK_BOOTTIME`. A monotonic clock that stops during suspend would let a holder wake up
/// and believe in a lease that ended hours ago.
pub(crate) fn now_us() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    // Time since boot is never negative, and fits u64 for half a million years.
    now.tv_sec.unsigned_abs() * 1_000_000 + now.tv_nsec.unsigned_abs() / 1_000
}
