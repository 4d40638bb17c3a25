//! From release called to the other process's acquire returned, beside a PING.

use crate::{
    baseline,
    child::Child,
    ground::{Ground, Outcome, connect},
    measure::{median, median_ratio, now_ns, percentile},
    report::{Report, Row},
};
use redis::aio::MultiplexedConnection;
use std::time::{Duration, Instant};

const NAME: &str = "handoff";
/// Before each measurement, so that the one before is over and all is as idle as for the other.
const PAUSE: Duration = Duration::from_millis(2);
const WARM_UP: usize = 20;

pub(crate) fn run(ground: &Ground, report: &mut Report) -> Outcome<()> {
    let ping = ground.block_on(baseline::connection(&ground.url()))?;
    let (gaps, pings) = measure(ground, &ground.url(), &ping)?;
    let row = |percent: f64| {
        let figure = format!("Redis, {}", if percent == 50.0 { "median" } else { "p99" });
        let (gap, ping) = (percentile(&gaps, percent), percentile(&pings, percent));
        let ratio = if percent == 50.0 { median_ratio(&gaps, &pings) } else { gap / ping };
        Row::new("handoff", figure, gap, "µs").beside_paired("PING", ping, ratio)
    };
    report.push(row(50.0).ratio_at_most(2.0));
    report.push(row(50.0).ratio_at_most(1.5).aim());
    report.push(row(99.0));
    let dir = tempfile::tempdir()?;
    let (gaps, pings) = measure(ground, &format!("file:{}", dir.path().display()), &ping)?;
    report.push(Row::new("handoff", "embedded, median", median(&gaps), "µs").beside_paired(
        "PING",
        median(&pings),
        median_ratio(&gaps, &pings),
    ));
    Ok(())
}

/// Gaps and PINGs, in µs, one after the other.
fn measure(
    ground: &Ground,
    url: &str,
    ping: &MultiplexedConnection,
) -> Outcome<(Vec<f64>, Vec<f64>)> {
    let warden = ground.block_on(connect(url))?;
    let mut other = Child::start("line", &[url])?;
    let (mut gaps, mut pings) = (Vec::new(), Vec::new());
    let end = Instant::now() + ground.length / 2;
    while Instant::now() < end || gaps.len() < 2 * WARM_UP {
        let guard = ground.block_on(async { warden.lock(NAME).acquire().await })?;
        other.queue(NAME, Duration::ZERO)?;
        std::thread::sleep(PAUSE);
        // In a task, as a program would.
        let release = async move {
            let called_ns = now_ns();
            guard.release().await.map(|()| called_ns)
        };
        let called_ns = ground.block_on(async { tokio::spawn(release).await })??;
        let turns = other.drain()?;
        let turn = turns.first().ok_or("no turn")?;
        gaps.push(turn.acquired_ns.saturating_sub(called_ns) as f64 / 1_000.0);
        std::thread::sleep(PAUSE);
        let mut connection = ping.clone();
        let ping = async move {
            let sent_ns = now_ns();
            redis::cmd("PING").query_async::<String>(&mut connection).await.map(|_| sent_ns)
        };
        let ping = async move {
            let sent_ns = ping.await?;
            Ok::<_, redis::RedisError>(now_ns() - sent_ns)
        };
        let took_ns = ground.block_on(async { tokio::spawn(ping).await })??;
        pings.push(took_ns as f64 / 1_000.0);
    }
    ground.block_on(warden.close());
    Ok((gaps.split_off(WARM_UP), pings.split_off(WARM_UP)))
}
