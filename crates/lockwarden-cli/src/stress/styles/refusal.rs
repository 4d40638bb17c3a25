//! Why an order did not get its locks.

use lockwarden::Error;
use std::{future::Future, time::Duration};
use tokio::time::Instant;

/// Why an order did not get its locks.
#[derive(Debug)]
pub(in crate::stress) enum Refusal {
    /// The wait is over.
    TimedOut,
    /// It would have waited for itself; told so long after it had asked.
    Deadlock { told: Duration },
    /// The store refused it.
    Failed(String),
}

/// The pause before a store that was away is asked again.
const PAUSE: Duration = Duration::from_millis(50);

/// Asks a warden, and again while the store is away: its restart must not fail an order that has time.
pub(super) async fn persistently<T, A>(
    give_up_at: Instant,
    mut ask: impl FnMut(Duration) -> A,
) -> Result<T, Refusal>
where
    A: Future<Output = Result<T, Error>>,
{
    loop {
        let asked = Instant::now();
        match ask(give_up_at - asked).await {
            Ok(held) => return Ok(held),
            Err(Error::Busy { .. } | Error::TimedOut { .. } | Error::Guarded { .. }) => {
                return Err(Refusal::TimedOut);
            }
            Err(Error::Deadlock { .. }) => {
                return Err(Refusal::Deadlock { told: asked.elapsed() });
            }
            Err(error) if error.retry_helps() && asked + PAUSE < give_up_at => {
                tokio::time::sleep(PAUSE).await;
            }
            Err(error) => return Err(Refusal::Failed(error.to_string())),
        }
    }
}
