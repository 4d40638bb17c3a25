//! Waiters in a line: each queues once the one before it is seen queued, waits for its turn, holds,
//! and releases.

use crate::{
    ground::Outcome,
    measure::{hold, now_ns, percentile},
};
use lockwarden::{Guard, Waiting, Warden};
use std::time::Duration;
use tokio::{
    sync::{oneshot, watch},
    task::JoinHandle,
};

/// One waiter's turn, in ns of the machine's clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Turn {
    pub(crate) acquired_ns: u64,
    /// When release was called.
    pub(crate) released_ns: u64,
    pub(crate) fence: u64,
}

/// Waits for the turn and takes it; `queued` is called once the store has said that we wait.
pub(crate) async fn take(
    warden: &Warden,
    name: &str,
    length: Duration,
    queued: impl FnOnce(),
) -> Outcome<Turn> {
    let (report, mut seen) = watch::channel(Waiting::default());
    let lock = warden.lock(name).report_to(report);
    let mut acquire = Box::pin(lock.acquire());
    let in_queue = |it: &Waiting| it.told.as_ref().is_some_and(|told| told.position.is_some());
    let seen = async move { drop(seen.wait_for(in_queue).await) };
    let guard = tokio::select! {
        biased;
        guard = &mut acquire => guard?,
        () = seen => {
            queued();
            acquire.await?
        }
    };
    let acquired_ns = now_ns();
    if !length.is_zero() {
        hold(length);
    }
    let fence = guard.fence();
    let released_ns = now_ns();
    guard.release().await?;
    Ok(Turn { acquired_ns, released_ns, fence })
}

/// A line behind a first holder.
pub(crate) struct Line {
    first: Guard,
    turns: Vec<JoinHandle<Outcome<Turn>>>,
}

impl Line {
    /// Queues so many waiters, one after the other.
    pub(crate) async fn form(
        warden: &Warden,
        name: &str,
        count: usize,
        length: Duration,
    ) -> Outcome<Line> {
        let first = warden.lock(name).acquire().await?;
        let mut turns = Vec::new();
        for _ in 0..count {
            let (queued, seen) = oneshot::channel();
            let (warden, name) = (warden.clone(), name.to_owned());
            turns.push(tokio::spawn(async move {
                take(&warden, &name, length, || queued.send(()).unwrap_or(())).await
            }));
            seen.await?;
        }
        Ok(Line { first, turns })
    }

    /// Lets them all have their turns.
    pub(crate) async fn run(self) -> Outcome<Turns> {
        let began_ns = now_ns();
        self.first.release().await?;
        let mut turns = Vec::new();
        for turn in self.turns {
            turns.push(turn.await??);
        }
        Ok(Turns { began_ns, turns })
    }
}

/// All turns of a line, in the order in which the waiters came.
pub(crate) struct Turns {
    /// When the first holder's release was called.
    pub(crate) began_ns: u64,
    pub(crate) turns: Vec<Turn>,
}

impl Turns {
    /// From the first release to the last, over the sum of all holds.
    pub(crate) fn wall_ratio(&self, length: Duration) -> f64 {
        let end_ns = self.turns.iter().map(|turn| turn.released_ns).max().unwrap_or(0);
        let nominal_ns = length.as_nanos() as f64 * self.turns.len() as f64;
        end_ns.saturating_sub(self.began_ns) as f64 / nominal_ns
    }

    /// The gaps between release called and the next acquire returned, in µs: one percentile.
    pub(crate) fn gap_us(&self, percent: f64) -> f64 {
        let mut in_time: Vec<&Turn> = self.turns.iter().collect();
        in_time.sort_by_key(|turn| turn.acquired_ns);
        let mut before_ns = self.began_ns;
        let mut gaps = Vec::new();
        for turn in in_time {
            gaps.push(turn.acquired_ns.saturating_sub(before_ns) as f64 / 1_000.0);
            before_ns = turn.released_ns;
        }
        percentile(&gaps, percent)
    }

    /// How many were served before one who came earlier, by their fences and by the clock.
    pub(crate) fn out_of_order(&self) -> f64 {
        let before = |a: &Turn, b: &Turn| {
            a.fence < b.fence && a.acquired_ns < b.acquired_ns && a.released_ns <= b.acquired_ns
        };
        self.turns.windows(2).filter(|pair| !before(&pair[0], &pair[1])).count() as f64
    }
}
