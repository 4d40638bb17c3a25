//! From the account of a style's run to its figures.

use super::{book::Ending, plan::Plan, run::Outcome};
use crate::wire::StressResultJson;
use std::time::Duration;

/// The figures of one style.
pub(super) fn of(plan: &Plan, outcome: &Outcome) -> StressResultJson {
    let Outcome { style, book, counted, best, .. } = outcome;
    let locks = plan.orders.locks.number();
    let total = total(outcome);
    let responses = responses(outcome);
    let count = |ending| book.count(ending) as u64;
    let (done, orders) = (count(Ending::Done), book.entries().len() as u64);
    let connections = counted.samples.iter().map(|it| it.connections).max().unwrap_or(0);
    let acquired = responses.len() as f64 * f64::from(locks);
    let mean = responses.iter().sum::<f64>() / responses.len() as f64;
    let ms = |value: Option<f64>| value.map(rounded);
    StressResultJson {
        style: style.name(),
        orders,
        locks,
        success_rate: rounded(done as f64 / orders as f64),
        done,
        gave_up: count(Ending::GaveUp),
        failed: count(Ending::Failed),
        total_s: rounded(total.as_secs_f64()),
        best_s: rounded(best.as_secs_f64()),
        ratio: rounded(total.as_secs_f64() / best.as_secs_f64()),
        mean_ms: ms((!responses.is_empty()).then_some(mean)),
        p50_ms: ms(percentile(&responses, 50.0)),
        p99_ms: ms(percentile(&responses, 99.0)),
        max_ms: ms(responses.last().copied()),
        throughput_per_s: rounded(done as f64 / total.as_secs_f64()),
        deadlocks: book.deadlocks,
        deadlock_told_max_ms: (book.told_us > 0).then(|| rounded(book.told_us as f64 / 1_000.0)),
        connections,
        connections_per_process: connections.div_ceil(u64::from(plan.processes)),
        commands: counted.commands,
        commands_per_acquisition: (acquired > 0.0)
            .then(|| rounded(counted.commands as f64 / acquired)),
        keys_left: outcome.keys_left as u64,
        violations: book.exclusion.violations().len() as u64,
        lost: book.lost,
        processes: plan.processes,
        killed: outcome.killed,
        redone: book.redone,
        restarts: outcome.restarts,
        refusals: book.refusals.clone(),
    }
}

/// From the start to the end of the last order.
pub(super) fn total(outcome: &Outcome) -> Duration {
    let ends = outcome.book.entries().iter().filter_map(|it| it.ended);
    let last_us = ends.map(|(at_us, _)| at_us).max().unwrap_or(outcome.began_us);
    // Never 0, so that ratios are numbers.
    Duration::from_micros(last_us.saturating_sub(outcome.began_us).max(1))
}

/// In ms, ascending: how long the orders that got their locks waited for them.
pub(super) fn responses(outcome: &Outcome) -> Vec<f64> {
    let entries = outcome.book.entries().iter();
    let mut responses: Vec<f64> = entries
        .filter_map(|it| Some(it.had_us?.saturating_sub(it.asked_us) as f64 / 1_000.0))
        .collect();
    responses.sort_unstable_by(f64::total_cmp);
    responses
}

/// The least value that so many percent do not exceed.
fn percentile(sorted: &[f64], percent: f64) -> Option<f64> {
    let rank = (percent / 100.0 * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}

/// To three places: more is noise.
fn rounded(value: f64) -> f64 {
    (value * 1_000.0).round() / 1_000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(percentile(&hundred, 50.0), Some(50.0));
        assert_eq!(percentile(&hundred, 99.0), Some(99.0));
        assert_eq!(percentile(&[7.0], 99.0), Some(7.0));
        assert_eq!(percentile(&[1.0, 2.0], 50.0), Some(1.0));
        assert_eq!(percentile(&[], 50.0), None);
    }
}
