//! `lockwarden wait`: until nobody holds a lock.

use crate::{args::WaitArgs, failure::Failure, output, settings, wire::WaitedJson};
use lockwarden::{HoldState, LockView, Warden, process::Watcher};
use std::{
    ffi::OsStr,
    time::{Duration, Instant},
};

/// As for the first of a queue (R17): a little after the lease should have ended, and every second.
const MARGIN: Duration = Duration::from_millis(5);
const RECHECK: Duration = Duration::from_secs(1);

/// Runs the command.
pub(crate) async fn wait(store: Option<&OsStr>, args: WaitArgs) -> Result<(), Failure> {
    let name = settings::name(&args.name)?;
    let url = settings::store_url(store)?;
    let began = Instant::now();
    let warden = Warden::connect(&url).await?;
    let watcher = Watcher::new();
    let (free, view) = loop {
        let view = warden.show(name.as_str()).await?;
        let waited = began.elapsed();
        if is_free(&view) {
            break (true, view);
        }
        let left = args.wait.map_or(RECHECK, |wait| wait.saturating_sub(waited));
        if left.is_zero() {
            break (false, view);
        }
        let holder = view.holder.as_ref();
        let ttl = holder.and_then(|it| it.ttl_ms).map_or(RECHECK, Duration::from_millis);
        let pause = (ttl + MARGIN).min(RECHECK).min(left);
        // A minimum or a delay keeps it beyond its holder's death, and what cools or was handed over is nobody's.
        let ends_with_its_holder = |it: &&lockwarden::RecordView| {
            it.state == HoldState::Held && it.delay_ms == 0 && it.least_left_ms == 0
        };
        let record = holder.and_then(|it| it.record.as_ref()).filter(ends_with_its_holder);
        let watch = record.and_then(|it| watcher.watch(&it.party.processes));
        let ended = async {
            match &watch {
                Some(watch) => watch.ended().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // The holder is dead: whoever acquires now takes over, so the lock is as good as free.
            () = ended => break (true, view),
            () = tokio::time::sleep(pause) => {}
        }
    };
    warden.close().await;
    let waited = began.elapsed();
    if args.json {
        let waited_ms = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
        let name = name.as_str().to_owned();
        output::write_json(&WaitedJson { name, free, waited_ms })?;
    }
    if free {
        return Ok(());
    }
    let holder = view.holder.map(Box::new);
    Err(Failure::NotFree { name, waited_ms: waited.as_millis(), holder })
}

/// Nobody holds it, and nobody is about to.
fn is_free(view: &LockView) -> bool {
    view.holder.is_none() && !view.queue.iter().any(|ticket| ticket.alive)
}
