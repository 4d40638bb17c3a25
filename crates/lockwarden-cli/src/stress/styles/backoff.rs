//! The style `backoff`: what the field report built to repair it. Locks are acquired in sorted order, and those at the
//! beginning are held while the next is waited for; SET NX PX in a script, looking ever more seldom; the release checks
//! the owner. Nothing is renewed.

use super::{Key, Proof, Refusal, pool::Pool};
use crate::stress::{clock, dice::Dice, order::Holding, pipe::Setup, scenario::Wanted};
use redis::{Client, RedisResult, Script};
use std::time::Duration;
use tokio::time::Instant;

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
const EXPIRY_MS: u64 = 10_000;
/// The report counted 80 to 120. All processes share them.
const MOST_CONNECTIONS: u32 = 120;

const ACQUIRE: &str = "\
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 1 end
return 0";
const RELEASE: &str = "\
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0";

pub(in crate::stress) struct Backoff {
    pool: Pool,
    prefix: String,
    seed: u64,
    acquire: Script,
    release: Script,
}

impl Backoff {
    pub(super) fn new(client: Client, prefix: String, setup: &Setup) -> Backoff {
        Backoff {
            pool: Pool::new(client, MOST_CONNECTIONS, setup.processes),
            prefix,
            seed: setup.orders.seed,
            acquire: Script::new(ACQUIRE),
            release: Script::new(RELEASE),
        }
    }

    pub(super) async fn acquire(
        &self,
        wanted: &[Wanted],
        holding: &mut Holding,
        give_up_at: Instant,
    ) -> Result<(), Refusal> {
        let mut sorted: Vec<&Wanted> = wanted.iter().collect();
        sorted.sort_unstable_by_key(|it| &it.name);
        let mut dice = Dice::new(self.seed, u64::from(holding.order()));
        for Wanted { place, name } in sorted {
            // Nobody else's: the value proves who holds the key.
            let value = format!("{}:{}", holding.label(), clock::now_us());
            let key = Key { name: format!("{}{name}", self.prefix), value };
            holding.waits(*place);
            holding.looking_after(self.acquire_one(&key, &mut dice, give_up_at)).await?;
            holding.keep(*place, Proof::Key(key));
        }
        Ok(())
    }

    async fn acquire_one(
        &self,
        key: &Key,
        dice: &mut Dice,
        give_up_at: Instant,
    ) -> Result<(), Refusal> {
        let mut pause = FIRST_PAUSE;
        loop {
            let looked: RedisResult<bool> = self
                .pool
                .lend(async |mut it| {
                    let mut script = self.acquire.prepare_invoke();
                    script.key(&key.name).arg(&key.value).arg(EXPIRY_MS);
                    script.invoke_async(&mut it).await
                })
                .await;
            if matches!(looked, Ok(true)) {
                return Ok(());
            }
            // From half of it to all of it, so that those who came together do not look together.
            let half_us = u64::try_from(pause.as_micros() / 2).unwrap_or(0);
            let jittered = Duration::from_micros(half_us + dice.below(half_us + 1));
            if Instant::now() + jittered > give_up_at {
                return Err(looked
                    .err()
                    .map_or(Refusal::TimedOut, |it| Refusal::Failed(it.to_string())));
            }
            tokio::time::sleep(jittered).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    pub(super) async fn release(&self, key: Key) -> bool {
        let released: RedisResult<bool> = self
            .pool
            .lend(async |mut it| {
                let mut script = self.release.prepare_invoke();
                script.key(&key.name).arg(&key.value);
                script.invoke_async(&mut it).await
            })
            .await;
        // Unknown is not lost.
        released.unwrap_or(true)
    }
}
