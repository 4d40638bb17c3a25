//! Several free names at once: what each of them costs the server, beside an acquire of one name.

use crate::{
    ground::{Ground, Outcome},
    measure::{median, median_ratio},
    report::{Report, Row},
};
use lockwarden::Warden;

/// How many at once.
const COUNTS: [usize; 3] = [4, 100, 1_000];
/// Names that are acquired in a round, however many at once.
const NAMES: usize = 1_000;
const ROUNDS: usize = 21;

/// Acquires all names, so many at once: the server's time for each name in µs, and the script calls for each acquire.
async fn acquire_all(ground: &Ground, warden: &Warden, at_once: usize) -> Outcome<(f64, f64)> {
    let before = (ground.spent_us("evalsha"), ground.calls("evalsha"));
    let mut guards = Vec::new();
    for first in (0..NAMES).step_by(at_once) {
        let lock = warden.lock_all((first..first + at_once).map(|it| format!("several:{it}")));
        guards.push(lock.no_wait().acquire().await?);
    }
    let after = (ground.spent_us("evalsha"), ground.calls("evalsha"));
    let acquires = guards.len() as f64;
    for guard in guards {
        guard.release().await?;
    }
    Ok(((after.0 - before.0) / NAMES as f64, (after.1 - before.1) / acquires))
}

pub(crate) fn run(ground: &Ground, report: &mut Report) -> Outcome<()> {
    let row = |figure: String, value, unit| Row::new("several", figure, value, unit);
    ground.block_on(async {
        let warden = ground.warden().await?;
        acquire_all(ground, &warden, 1).await?;
        for at_once in COUNTS {
            let (mut several, mut single, mut calls) = (Vec::new(), Vec::new(), f64::INFINITY);
            for _ in 0..ROUNDS {
                let (us, each) = acquire_all(ground, &warden, at_once).await?;
                several.push(us);
                // The least: a heartbeat may be among them, one a second.
                calls = calls.min(each);
                single.push(acquire_all(ground, &warden, 1).await?.0);
            }
            let figure = format!("{at_once} free names at once: script calls per acquire");
            report.push(row(figure, calls, "").value_at_most(1.0));
            let figure = format!("{at_once} free names at once: server, per name");
            let ratio = median_ratio(&several, &single);
            report.push(
                row(figure, median(&several), "µs")
                    .beside_paired("one at a time", median(&single), ratio)
                    .ratio_at_most(1.0),
            );
        }
        warden.close().await;
        Ok(())
    })
}
