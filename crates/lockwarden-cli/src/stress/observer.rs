//! Looks at the store of a run from outside: what its server counts, and what the run leaves behind.

use super::{StressError, clock::now_us, redis_client};
use crate::{failure::Failure, listing};
use lockwarden::{Warden, store::url::StoreUrl};
use redis::{Client, FromRedisValue, RedisResult, aio::MultiplexedConnection, cmd};
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// How often the server is asked while orders run.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long connections that were closed, and keys that go by themselves, may take to be gone.
const SETTLE: Duration = Duration::from_secs(2);
/// How long the guard of a store that began anew may take, and a holder that died.
const PATIENCE: Duration = Duration::from_secs(30);

/// What sees the store of a run.
pub(super) struct Observer {
    url: String,
    /// Where it is, without its password.
    pub(super) place: String,
    server: Option<Server>,
}

/// How many connections there were at a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub(super) at_us: u64,
    pub(super) connections: u64,
}

/// What a server has counted.
#[derive(Clone, Debug, Default)]
pub(super) struct Counted {
    pub(super) samples: Vec<Sample>,
    pub(super) commands: u64,
}

/// Counts while a style runs.
pub(super) struct Watch {
    task: tokio::task::JoinHandle<()>,
    shared: Arc<Mutex<Watched>>,
    server: Server,
}

#[derive(Clone)]
struct Server {
    client: Client,
    /// None after an error: it is made anew.
    connection: Arc<tokio::sync::Mutex<Option<MultiplexedConnection>>>,
}

#[derive(Default)]
struct Watched {
    counted: Counted,
    /// Connections that were there before.
    others: u64,
    last: Option<Info>,
}

/// What `INFO` says.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Info {
    run: String,
    connections: u64,
    commands: u64,
}

impl Observer {
    /// Connects.
    pub(super) async fn new(url: &str) -> Result<Observer, Failure> {
        let warden = Warden::connect(url).await?;
        let place = warden.place();
        warden.close().await;
        let server = match url.parse()? {
            StoreUrl::Redis(_) => {
                Some(Server { client: redis_client::of_url(url)?, connection: Arc::default() })
            }
            _ => None,
        };
        let observer = Observer { url: url.to_owned(), place, server };
        if let Some(server) = &observer.server {
            server.info().await.map_err(|error| observer.refused("INFO", error))?;
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
        let refused = |error| self.refused("INFO", error);
        // What was closed a moment ago is still counted: wait until the number stands still.
        let until = Instant::now() + SETTLE;
        let mut info = server.info().await.map_err(refused)?;
        let mut still = 0;
        while still < 3 && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(20)).await;
            let next = server.info().await.map_err(refused)?;
            still = if next.connections == info.connections { still + 1 } else { 0 };
            info = next;
        }
        let others = info.connections;
        let watched = Watched { counted: Counted::default(), others, last: Some(info) };
        let shared = Arc::new(Mutex::new(watched));
        let task = tokio::spawn({
            let (server, shared) = (server.clone(), shared.clone());
            async move {
                let mut ticks = tokio::time::interval(LOOK_EVERY);
                ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
                loop {
                    ticks.tick().await;
                    look(&server, &shared).await;
                }
            }
        });
        Ok(Some(Watch { task, shared, server }))
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

    async fn names(&self, prefix: &str) -> Result<Vec<lockwarden::Name>, Failure> {
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

impl Watch {
    /// Looks once more at once: what a server has counted is lost with it.
    pub(super) async fn look(&self) {
        look(&self.server, &self.shared).await;
    }

    /// How many connections there are, as far as known.
    pub(super) fn connections(&self) -> u64 {
        locked(&self.shared).counted.samples.last().map_or(0, |it| it.connections)
    }

    /// Ends, and says what was counted.
    pub(super) async fn end(self) -> Counted {
        self.task.abort();
        // Or its last look is counted twice.
        let _ = self.task.await;
        look(&self.server, &self.shared).await;
        locked(&self.shared).counted.clone()
    }
}

/// Takes down what the server counts. A server that is away counts nothing.
async fn look(server: &Server, shared: &Mutex<Watched>) {
    let Ok(info) = server.info().await else { return };
    let mut watched = locked(shared);
    watched.counted.commands += match &watched.last {
        // The last question itself was counted after it had been answered.
        Some(last) if last.run == info.run => info.commands.saturating_sub(last.commands + 1),
        // Another run has counted from zero.
        _ => info.commands,
    };
    let connections = info.connections.saturating_sub(watched.others);
    watched.counted.samples.push(Sample { at_us: now_us(), connections });
    watched.last = Some(info);
}

fn locked(shared: &Mutex<Watched>) -> MutexGuard<'_, Watched> {
    // Numbers only: what a panicking task left is whole.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Server {
    async fn info(&self) -> RedisResult<Info> {
        let text: String = self.ask(&cmd("INFO")).await?;
        Info::read(&text).ok_or_else(|| (redis::ErrorKind::UnexpectedReturnType, "INFO").into())
    }

    async fn ask<T: FromRedisValue>(&self, command: &redis::Cmd) -> RedisResult<T> {
        let mut place = self.connection.lock().await;
        let mut connection = match place.take() {
            Some(connection) => connection,
            None => redis_client::connect(&self.client).await?,
        };
        let answer = command.query_async(&mut connection).await;
        if answer.as_ref().err().is_none_or(|error| !error.is_unrecoverable_error()) {
            *place = Some(connection);
        }
        answer
    }
}

impl Info {
    fn read(text: &str) -> Option<Info> {
        let field = |name: &str| {
            let value = |line: &str| line.strip_prefix(name)?.strip_prefix(':').map(str::to_owned);
            text.lines().find_map(value)
        };
        Some(Info {
            run: field("run_id")?,
            connections: field("connected_clients")?.parse().ok()?,
            commands: field("total_commands_processed")?.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn info_is_read() {
        let text = "# Server\r\nrun_id:ab12\r\n# Clients\r\nconnected_clients:3\r\n# Stats\r\n\
                    total_commands_processed:17\r\n";
        let info = Info { run: "ab12".into(), connections: 3, commands: 17 };
        assert_eq!(Info::read(text), Some(info));
        assert_eq!(Info::read("run_id:x\r\n"), None);
    }
}
