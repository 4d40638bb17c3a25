//! The style `lockwarden`: all locks of an order at once.

use super::{Proof, Refusal, refusal::persistently};
use crate::stress::{order::Holding, scenario::Wanted};
use lockwarden::{Error, Guard, Warden};
use std::time::Duration;
use tokio::time::Instant;

pub(super) async fn acquire(
    warden: &Warden,
    wanted: &[Wanted],
    holding: &mut Holding,
    give_up_at: Instant,
) -> Result<(), Refusal> {
    let label = holding.label();
    let names: Vec<&str> = wanted.iter().map(|it| it.name.as_str()).collect();
    let guards = persistently(give_up_at, |wait| acquire_all(warden, &names, &label, wait)).await?;
    for guard in guards {
        // It is one of them, for it was asked for.
        let place =
            wanted.iter().find(|it| it.name == guard.name().as_str()).map_or(0, |it| it.place);
        holding.keep(place, Proof::Guard(guard));
    }
    Ok(())
}

/// Acquires all of them, or none.
async fn acquire_all(
    warden: &Warden,
    names: &[&str],
    label: &str,
    wait: Duration,
) -> Result<Vec<Guard>, Error> {
    // Until several names can be asked for at once.
    let give_up_at = Instant::now() + wait;
    let mut sorted = names.to_vec();
    sorted.sort_unstable();
    let mut guards = Vec::with_capacity(names.len());
    for name in sorted {
        let left = give_up_at - Instant::now();
        guards.push(warden.lock(name).label(label).wait_for(left).acquire().await?);
    }
    Ok(guards)
}
