//! Clocks, processor time, memory, and what is made of many numbers.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// ns on a clock that all processes of the machine share.
pub(crate) fn now_ns() -> u64 {
    ns(ClockId::Monotonic)
}

/// The processor time that this process has used so far, all its threads together, in µs.
pub(crate) fn own_cpu_us() -> f64 {
    ns(ClockId::ProcessCPUTime) as f64 / 1_000.0
}

fn ns(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// The memory of this process that is in RAM, in bytes.
pub(crate) fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0);
    pages * rustix::param::page_size() as u64
}

/// A hold of a precise length that blocks this thread: no runtime's timer, which would be late by up
/// to 1 ms. Sleeps for most of it, and spins for the rest.
pub(crate) fn hold(length: Duration) {
    let until_ns = now_ns() + length.as_nanos() as u64;
    // Within the kernel's own slack (50 µs) and the time to wake up.
    if let Some(sleep) = length.checked_sub(Duration::from_micros(200)) {
        std::thread::sleep(sleep);
    }
    while now_ns() < until_ns {
        std::hint::spin_loop();
    }
}

/// The middle one; NaN of none.
pub(crate) fn median(values: &[f64]) -> f64 {
    percentile(values, 50.0)
}

/// The value below which so many percent of the values are; NaN of none.
pub(crate) fn percentile(values: &[f64], percent: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    if sorted.is_empty() {
        return f64::NAN;
    }
    let at = (percent / 100.0 * (sorted.len() - 1) as f64).round() as usize;
    sorted[at]
}

/// The median of the ratios of pairs.
pub(crate) fn median_ratio(values: &[f64], baselines: &[f64]) -> f64 {
    let ratios: Vec<f64> = values.iter().zip(baselines).map(|(a, b)| a / b).collect();
    median(&ratios)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_percentiles() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(percentile(&(0..=100).map(f64::from).collect::<Vec<_>>(), 99.0), 99.0);
        assert!(median(&[]).is_nan());
        assert_eq!(median_ratio(&[2.0, 6.0, 9.0], &[1.0, 2.0, 3.0]), 3.0);
    }

    #[test]
    fn a_hold_is_as_long_as_it_says() {
        let before_ns = now_ns();
        hold(Duration::from_millis(1));
        assert!(now_ns() - before_ns >= 1_000_000);
    }
}
