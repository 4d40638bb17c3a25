//! The clock of a run: all processes of a machine read the same.

use rustix::time::{ClockId, clock_gettime};

/// µs since the machine started, the time it slept included: what belief is counted in, too.
pub(super) fn now_us() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    // Neither is negative.
    now.tv_sec.unsigned_abs() * 1_000_000 + now.tv_nsec.unsigned_abs() / 1_000
}
