//! Many waiters for one lock: 1,000 in one process, and 100 in each of four processes.

use crate::{
    baseline::{Rslock, connection},
    child::Child,
    ground::{Ground, Outcome},
    measure::{hold, now_ns},
    report::{Report, Row},
    turn::{Line, Turn, Turns},
};
use redis::{AsyncConnectionConfig, ProtocolVersion, PushKind, Script, aio::MultiplexedConnection};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::sync::{mpsc, oneshot};

pub(crate) const ONE_PROCESS: usize = 1_000;
pub(crate) const HOLD: Duration = Duration::from_millis(1);
const PROCESSES: usize = 4;
const EACH: usize = 100;

pub(crate) fn run(ground: &Ground, report: &mut Report) -> Outcome<()> {
    let bare = ground.block_on(bare_queue(ground, ONE_PROCESS))?;
    let rslock = ground.block_on(rslock(ground, ONE_PROCESS))?;
    let turns = ground.block_on(async {
        let warden = ground.warden().await?;
        let line = Line::form(&warden, "waiters", ONE_PROCESS, HOLD).await?;
        let turns = line.run().await?;
        warden.close().await;
        Outcome::Ok(turns)
    })?;
    describe("1,000 in one process", &turns, &bare, report);
    let figure = "1,000 in one process: wall over nominal hold time";
    report.push(
        Row::new("waiters", figure, turns.wall_ratio(HOLD), "")
            .beside("rslock", rslock.wall_ratio(HOLD)),
    );
    let bare = ground.block_on(bare_queue(ground, PROCESSES * EACH))?;
    let turns = several_processes(ground)?;
    describe("100 in each of four", &turns, &bare, report);
    Ok(())
}

fn describe(what: &str, turns: &Turns, bare: &Turns, report: &mut Report) {
    let row = |figure: &str, value: f64, unit| {
        Row::new("waiters", format!("{what}: {figure}"), value, unit)
    };
    let queue = "bare queue";
    report.push(
        row("wall over nominal hold time", turns.wall_ratio(HOLD), "")
            .beside(queue, bare.wall_ratio(HOLD))
            .value_at_most(1.35),
    );
    for (percent, figure) in [(50.0, "gap, median"), (99.0, "gap, p99")] {
        let gap = row(figure, turns.gap_us(percent), "µs").beside(queue, bare.gap_us(percent));
        report.push(if percent == 99.0 { gap.value_at_most(1_000.0) } else { gap });
    }
    report.push(row("served out of order", turns.out_of_order(), "").value_at_most(0.0));
}

fn several_processes(ground: &Ground) -> Outcome<Turns> {
    let mut children = Vec::new();
    for _ in 0..PROCESSES {
        children.push(Child::start("line", &[&ground.url()])?);
    }
    let name = "waiters:processes";
    let warden = ground.block_on(ground.warden())?;
    let first = ground.block_on(async { warden.lock(name).acquire().await })?;
    for number in 0..PROCESSES * EACH {
        children[number % PROCESSES].queue(name, HOLD)?;
    }
    let began_ns = now_ns();
    ground.block_on(first.release())?;
    let mut of_each = Vec::new();
    for child in &mut children {
        of_each.push(child.drain()?.into_iter());
    }
    let turn = |number: usize| of_each[number % PROCESSES].next().ok_or("a turn is missing");
    let turns = (0..PROCESSES * EACH).map(turn).collect::<Result<Vec<Turn>, _>>()?;
    ground.block_on(warden.close());
    Ok(Turns { began_ns, turns })
}

/// The least that a fair queue can cost: a list, a script that takes its head and publishes it, and one
/// subscription. No lease, no fence, nobody may die.
async fn bare_queue(ground: &Ground, count: usize) -> Outcome<Turns> {
    const QUEUE: &str = "bare:queue";
    const CHANNEL: &str = "bare:turns";
    let release = Arc::new(Script::new(
        "local next = redis.call('LPOP', KEYS[1]) \
         if next then redis.call('PUBLISH', ARGV[1], next) end return 0",
    ));
    let (sender, mut pushes) = mpsc::unbounded_channel();
    let address = ground.server.address();
    let client = redis::Client::open(format!("redis://{address}/?protocol=resp3"))?;
    debug_assert_eq!(
        client.get_connection_info().redis_settings().protocol(),
        ProtocolVersion::RESP3
    );
    let config = AsyncConnectionConfig::new().set_push_sender(sender);
    let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
    connection.subscribe(CHANNEL).await?;
    let waiting: Arc<Mutex<HashMap<String, oneshot::Sender<()>>>> = Arc::default();
    let waiters = waiting.clone();
    let listener = tokio::spawn(async move {
        while let Some(push) = pushes.recv().await {
            if push.kind != PushKind::Message {
                continue;
            }
            let Some(redis::Value::BulkString(bytes)) = push.data.get(1) else { continue };
            let key = String::from_utf8_lossy(bytes).into_owned();
            let turn = waiters.lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
            if let Some(turn) = turn {
                let _ = turn.send(());
            }
        }
    });
    let call = |mut connection: MultiplexedConnection, release: Arc<Script>| async move {
        release.key(QUEUE).arg(CHANNEL).invoke_async::<i64>(&mut connection).await
    };
    let mut turns = Vec::new();
    for number in 0..count {
        let (turn, comes) = oneshot::channel();
        waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(number.to_string(), turn);
        let place: i64 =
            redis::cmd("RPUSH").arg(QUEUE).arg(number).query_async(&mut connection).await?;
        debug_assert!(place > 0);
        let (connection, release) = (connection.clone(), release.clone());
        turns.push(tokio::spawn(async move {
            comes.await?;
            let acquired_ns = now_ns();
            hold(HOLD);
            let released_ns = now_ns();
            call(connection, release).await?;
            Outcome::Ok(Turn { acquired_ns, released_ns, fence: number as u64 })
        }));
    }
    let began_ns = now_ns();
    call(connection.clone(), release).await?;
    let mut taken = Vec::new();
    for turn in turns {
        taken.push(turn.await??);
    }
    listener.abort();
    Ok(Turns { began_ns, turns: taken })
}

/// As many tasks, each with rslock's own waiting: tries after random pauses.
pub(crate) async fn rslock(ground: &Ground, count: usize) -> Outcome<Turns> {
    const NAME: &str = "waiters:rslock";
    let lease = Duration::from_secs(30);
    let Rslock(manager) = Rslock::connect(&ground.url());
    let first = manager.acquire(NAME, lease).await?;
    let turns: Vec<_> = (0..count)
        .map(|_| {
            let manager = manager.clone();
            tokio::spawn(async move {
                let guard = manager.acquire(NAME, lease).await?;
                let acquired_ns = now_ns();
                hold(HOLD);
                let released_ns = now_ns();
                guard.release().await;
                Outcome::Ok(Turn { acquired_ns, released_ns, fence: 0 })
            })
        })
        .collect();
    // Until all of them have tried and wait.
    let mut connection = connection(&ground.url()).await?;
    tokio::time::sleep(Duration::from_millis(300)).await;
    redis::cmd("PING").query_async::<String>(&mut connection).await?;
    let began_ns = now_ns();
    first.release().await;
    let mut taken = Vec::new();
    for turn in turns {
        taken.push(turn.await??);
    }
    Ok(Turns { began_ns, turns: taken })
}
