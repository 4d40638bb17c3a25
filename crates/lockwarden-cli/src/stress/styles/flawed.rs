//! The style `flawed`: what the code of the field report did, flaw by flaw. Not to be imitated.
//!
//! SETNX and EXPIRE are two commands, so that a crash between them leaves the key for ever. It looks every 0.1 s. The
//! release compares bytes with text, which are never equal, so it never releases. Locks are acquired in whatever order the
//! code happens to name them, and nobody notices a deadlock.

use super::{Key, Proof, Refusal, pool::Pool};
use crate::stress::{order::Holding, pipe::Setup, scenario::Wanted};
use redis::{Client, RedisResult, cmd};
use std::time::Duration;
use tokio::time::Instant;

const LOOK_EVERY: Duration = Duration::from_millis(100);
const EXPIRY_S: u64 = 10;
/// The report counted over 300. All processes share them.
const MOST_CONNECTIONS: u32 = 300;

pub(in crate::stress) struct Flawed {
    pool: Pool,
    prefix: String,
}

/// Values as Python tells them apart.
#[derive(PartialEq)]
enum Python {
    Bytes(Vec<u8>),
    Text(String),
}

impl Flawed {
    pub(super) fn new(client: Client, prefix: String, setup: &Setup) -> Flawed {
        Flawed { pool: Pool::new(client, MOST_CONNECTIONS, setup.processes), prefix }
    }

    pub(super) async fn acquire(
        &self,
        wanted: &[Wanted],
        holding: &mut Holding,
        give_up_at: Instant,
    ) -> Result<(), Refusal> {
        for Wanted { place, name } in wanted {
            let key = Key { name: format!("{}{name}", self.prefix), value: holding.label() };
            holding.waits(*place);
            holding.looking_after(self.acquire_one(&key, give_up_at)).await?;
            holding.keep(*place, Proof::Key(key));
        }
        Ok(())
    }

    async fn acquire_one(&self, key: &Key, give_up_at: Instant) -> Result<(), Refusal> {
        loop {
            let looked = self.set(key).await;
            if matches!(looked, Ok(true)) {
                return Ok(());
            }
            if Instant::now() + LOOK_EVERY > give_up_at {
                return Err(looked
                    .err()
                    .map_or(Refusal::TimedOut, |it| Refusal::Failed(it.to_string())));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    async fn set(&self, key: &Key) -> RedisResult<bool> {
        let setnx = cmd("SETNX").arg(&key.name).arg(&key.value).take();
        let is_set = self.pool.lend(async |mut it| setnx.query_async(&mut it).await).await?;
        if is_set {
            let expire = cmd("EXPIRE").arg(&key.name).arg(EXPIRY_S).take();
            self.pool.lend(async |mut it| expire.query_async::<()>(&mut it).await).await?;
        }
        Ok(is_set)
    }

    /// It never is ours, it says; that goes unnoticed.
    pub(super) async fn release(&self, key: Key) -> bool {
        let get = cmd("GET").arg(&key.name).take();
        let value = self.pool.lend(async |mut it| get.query_async(&mut it).await).await;
        if value.is_ok_and(|value| Python::Bytes(value) == Python::Text(key.value)) {
            let del = cmd("DEL").arg(&key.name).take();
            let _ = self.pool.lend(async |mut it| del.query_async::<()>(&mut it).await).await;
        }
        true
    }
}
