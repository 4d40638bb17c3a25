//! The style `lockwarden-nested`: one lock inside the other, in the order given. A request that would close a cycle of
//! waits is told so.

use super::{Proof, Refusal, refusal::persistently};
use crate::stress::{order::Holding, pipe::Setup, scenario::Wanted};
use lockwarden::Warden;
use std::sync::Arc;
use tokio::time::Instant;

pub(in crate::stress) struct Nested {
    warden: Warden,
    /// What the owners of this process begin with.
    owner: String,
}

impl Nested {
    pub(super) fn new(warden: Warden, setup: &Setup) -> Nested {
        // An order that is dealt again, because its process was killed, is another owner: it waits for the dead one
        // like anybody else.
        let owner = format!("{}p{}:", setup.orders.prefix, setup.process);
        Nested { warden, owner }
    }

    pub(super) async fn acquire(
        &self,
        wanted: &[Wanted],
        holding: &mut Holding,
        give_up_at: Instant,
    ) -> Result<(), Refusal> {
        let label = holding.label();
        let owner = format!("{}{label}", self.owner);
        for Wanted { place, name } in wanted {
            let lock = self.warden.lock(name).owner(&owner).label(&label);
            let acquiring = persistently(give_up_at, |wait| {
                let lock = lock.clone().wait_for(wait);
                async move { lock.acquire().await }
            });
            let guard = holding.looking_after(acquiring).await?;
            holding.keep(*place, Proof::Guard(Arc::new(guard)));
        }
        Ok(())
    }

    pub(super) async fn close(&self) {
        self.warden.clone().close().await;
    }
}
