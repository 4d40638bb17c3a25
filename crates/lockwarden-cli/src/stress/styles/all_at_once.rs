//! The style `lockwarden`: all locks of an order at once.

use super::{Proof, Refusal, refusal::persistently};
use crate::stress::{order::Holding, scenario::Wanted};
use lockwarden::Warden;
use std::sync::Arc;
use tokio::time::Instant;

pub(super) async fn acquire(
    warden: &Warden,
    wanted: &[Wanted],
    holding: &mut Holding,
    give_up_at: Instant,
) -> Result<(), Refusal> {
    let label = holding.label();
    let order = warden.lock_all(wanted.iter().map(|it| &it.name)).label(&label);
    let guard = persistently(give_up_at, |wait| {
        let order = order.clone().wait_for(wait);
        async move { order.acquire().await }
    })
    .await?;
    let guard = Arc::new(guard);
    for it in wanted {
        holding.keep(it.place, Proof::Guard(guard.clone()));
    }
    Ok(())
}
