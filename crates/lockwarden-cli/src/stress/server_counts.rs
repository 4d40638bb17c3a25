//! What the server of a run counts while a style runs: connections and commands.

use super::{clock::now_us, server_link::ServerLink};
use redis::{RedisResult, cmd};
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{task::JoinSet, time::Instant};

/// How often the server is asked while orders run.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long connections that were closed may take to be gone.
const SETTLE: Duration = Duration::from_secs(2);

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
    /// The one that looks; it ends with this.
    task: JoinSet<()>,
    shared: Arc<Mutex<Watched>>,
    server: ServerLink,
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
pub(super) struct Info {
    run: String,
    connections: u64,
    commands: u64,
}

impl Watch {
    /// Begins to count.
    pub(super) async fn begin(server: ServerLink) -> RedisResult<Watch> {
        // What was closed a moment ago is still counted: wait until the number stands still.
        let until = Instant::now() + SETTLE;
        let mut now = info(&server).await?;
        let mut still = 0;
        while still < 3 && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(20)).await;
            let next = info(&server).await?;
            still = if next.connections == now.connections { still + 1 } else { 0 };
            now = next;
        }
        let others = now.connections;
        let watched = Watched { counted: Counted::default(), others, last: Some(now) };
        let shared = Arc::new(Mutex::new(watched));
        let mut task = JoinSet::new();
        task.spawn({
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
        Ok(Watch { task, shared, server })
    }

    /// Looks once more at once: what a server has counted is lost with it.
    pub(super) async fn look(&self) {
        look(&self.server, &self.shared).await;
    }

    /// How many connections there are, as far as known.
    pub(super) fn connections(&self) -> u64 {
        locked(&self.shared).counted.samples.last().map_or(0, |it| it.connections)
    }

    /// Ends, and says what was counted.
    pub(super) async fn end(mut self) -> Counted {
        // First, or its last look is counted twice.
        self.task.shutdown().await;
        look(&self.server, &self.shared).await;
        locked(&self.shared).counted.clone()
    }
}

/// Takes down what the server counts. A server that is away counts nothing.
async fn look(server: &ServerLink, shared: &Mutex<Watched>) {
    let Ok(info) = info(server).await else { return };
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

/// Asks the server.
pub(super) async fn info(server: &ServerLink) -> RedisResult<Info> {
    let text: String = server.ask(&cmd("INFO")).await?;
    Info::read(&text).ok_or_else(|| (redis::ErrorKind::UnexpectedReturnType, "INFO").into())
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
