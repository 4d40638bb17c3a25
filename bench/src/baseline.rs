//! What Lockwarden is measured beside, all through redis-rs on one multiplexed connection.

use crate::ground::Outcome;
use lockwarden::Warden;
use rand::RngExt;
use redis::{Script, aio::MultiplexedConnection};
use rslock::LockManager;
use std::{future::Future, sync::Arc, time::Duration};

/// As long as Lockwarden's default.
const LEASE_MS: u64 = 30_000;

/// One who can acquire a lock that nobody wants, and release it.
pub(crate) trait Contender: Clone + Send + Sync + 'static {
    /// Its prefix of names, so that no two share a lock.
    const NAME: &'static str;

    fn cycle(&self, name: &str) -> impl Future<Output = Outcome<()>> + Send;
}

/// Ours.
#[derive(Clone)]
pub(crate) struct Ours(pub(crate) Warden);

impl Contender for Ours {
    const NAME: &'static str = "ours";

    async fn cycle(&self, name: &str) -> Outcome<()> {
        let guard = self.0.lock(name).acquire().await?;
        guard.release().await?;
        Ok(())
    }
}

/// SET NX PX with a random token, and a script that compares and deletes: no fence, no queue, no safety.
#[derive(Clone)]
pub(crate) struct Plain {
    connection: MultiplexedConnection,
    release: Arc<Script>,
}

impl Plain {
    pub(crate) async fn connect(url: &str) -> Outcome<Plain> {
        let release = Script::new(
            "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end \
             return 0",
        );
        Ok(Plain { connection: connection(url).await?, release: Arc::new(release) })
    }
}

impl Contender for Plain {
    const NAME: &'static str = "plain";

    async fn cycle(&self, name: &str) -> Outcome<()> {
        let mut connection = self.connection.clone();
        let token: [u8; 16] = rand::rng().random();
        let mut set = redis::cmd("SET");
        set.arg(name).arg(&token).arg("NX").arg("PX").arg(LEASE_MS);
        let set: Option<String> = set.query_async(&mut connection).await?;
        set.ok_or("plain: a lock of its own is taken")?;
        let deleted: i64 = self.release.key(name).arg(&token).invoke_async(&mut connection).await?;
        if deleted == 1 { Ok(()) } else { Err("plain: a lock of its own was lost".into()) }
    }
}

/// The crate rslock.
#[derive(Clone)]
pub(crate) struct Rslock(pub(crate) LockManager);

impl Rslock {
    pub(crate) fn connect(url: &str) -> Rslock {
        Rslock(LockManager::new(vec![url]))
    }
}

impl Contender for Rslock {
    const NAME: &'static str = "rslock";

    async fn cycle(&self, name: &str) -> Outcome<()> {
        let guard = self.0.acquire(name, Duration::from_millis(LEASE_MS)).await?;
        guard.release().await;
        Ok(())
    }
}

/// One multiplexed connection.
pub(crate) async fn connection(url: &str) -> Outcome<MultiplexedConnection> {
    Ok(redis::Client::open(url)?.get_multiplexed_async_connection().await?)
}
