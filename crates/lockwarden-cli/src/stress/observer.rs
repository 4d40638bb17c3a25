//! Looks at the store of a run from outside: does it grant, what does its server count, and what is left behind?

use super::{
    StressError, redis_client,
    server_counts::{self, Watch},
    server_link::ServerLink,
};
use crate::{failure::Failure, listing};
use lockwarden::{Name, Warden, store::url::StoreUrl};
use redis::{RedisResult, cmd};
use std::time::Duration;
use tokio::time::Instant;

/// How long keys that go by themselves may take to be gone, and how often is looked.
const SETTLE: Duration = Duration::from_secs(2);
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long the guard of a store that began anew may take, and a holder that died.
const PATIENCE: Duration = Duration::from_secs(30);

/// What sees the store of a run.
pub(super) struct Observer {
    url: String,
    /// Where it is, without its password.
    pub(super) place: String,
    server: Option<ServerLink>,
}

impl Observer {
    /// Connects.
    pub(super) async fn new(url: &str) -> Result<Observer, Failure> {
        let warden = Warden::connect(url).await?;
        let place = warden.place();
        warden.close().await;
        let server = match url.parse()? {
            StoreUrl::Redis(_) => Some(ServerLink::new(redis_client::of_url(url)?)),
            _ => None,
        };
        let observer = Observer { url: url.to_owned(), place, server };
        if let Some(server) = &observer.server {
            server_counts::info(server).await.map_err(|error| observer.refused("INFO", error))?;
        }
        Ok(observer)
    }

    /// Waits until the store grants locks: one that began anew does not for its first seconds.
    pub(super) async fn await_grants(&self, prefix: &str) -> Result<(), Failure> {
        let warden = Warden::connect(&self.url).await?;
        let lock = warden.lock(&format!("{prefix}first")).wait_for(PATIENCE);
        let granted = async { lock.acquire().await?.release().await }.await;
        warden.close().await;
        Ok(granted?)
    }

    /// Begins to count; nothing, where there is no server.
    pub(super) async fn watch(&self) -> Result<Option<Watch>, Failure> {
        let Some(server) = self.server.clone() else { return Ok(None) };
        let watch = Watch::begin(server).await;
        Ok(Some(watch.map_err(|error| self.refused("INFO", error))?))
    }

    /// How many keys with the prefix are left, once what goes by itself in a moment has gone: the mark that a holder
    /// was asked about its lock lives for a second.
    pub(super) async fn left(&self, prefix: &str) -> Result<usize, Failure> {
        let until = Instant::now() + SETTLE;
        loop {
            let left = match &self.server {
                Some(_) => self.keys(prefix).await?.len(),
                None => self.names(prefix).await?.len(),
            };
            if left == 0 || Instant::now() > until {
                return Ok(left);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Removes them.
    pub(super) async fn remove(&self, prefix: &str) -> Result<(), Failure> {
        let Some(server) = &self.server else { return self.remove_names(prefix).await };
        for keys in self.keys(prefix).await?.chunks(500) {
            let answer: RedisResult<()> = server.ask(cmd("DEL").arg(keys)).await;
            answer.map_err(|error| self.refused("DEL", error))?;
        }
        Ok(())
    }

    /// The keys of locks with the prefix, and what stands about them.
    async fn keys(&self, prefix: &str) -> Result<Vec<Vec<u8>>, Failure> {
        let Some(server) = &self.server else { return Ok(Vec::new()) };
        let (mut keys, mut cursor) = (Vec::new(), 0_u64);
        loop {
            // The prefix has letters, digits, `:`, `-` and `_` only, and nobody else's names contain it.
            let mut scan = cmd("SCAN");
            scan.arg(cursor).arg("MATCH").arg(format!("*{prefix}*")).arg("COUNT").arg(1_000);
            let page: RedisResult<(u64, Vec<Vec<u8>>)> = server.ask(&scan).await;
            let page = page.map_err(|error| self.refused("SCAN", error))?;
            keys.extend(page.1);
            cursor = page.0;
            if cursor == 0 {
                keys.sort_unstable();
                keys.dedup();
                return Ok(keys);
            }
        }
    }

    async fn names(&self, prefix: &str) -> Result<Vec<Name>, Failure> {
        let warden = Warden::connect(&self.url).await?;
        let names = listing::names(&warden, Some(&format!("{prefix}*")), false).await;
        warden.close().await;
        Ok(names?.0.into_iter().collect())
    }

    /// Acquires and releases what is left: the store forgets it with that.
    async fn remove_names(&self, prefix: &str) -> Result<(), Failure> {
        let names = self.names(prefix).await?;
        if names.is_empty() {
            return Ok(());
        }
        let warden = Warden::connect(&self.url).await?;
        for name in names {
            warden.lock(name.as_str()).wait_for(PATIENCE).acquire().await?.release().await?;
        }
        warden.close().await;
        Ok(())
    }

    fn refused(&self, what: &'static str, source: redis::RedisError) -> Failure {
        StressError::Redis { store: self.place.clone(), what, source }.into()
    }
}
