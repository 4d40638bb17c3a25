//! 100,000 locks held by one warden, renewed for several leases.

use crate::{
    baseline::connection,
    child::{Child, say},
    ground::{Ground, Outcome, connect, runtime},
    measure::{own_cpu_us, resident_bytes},
    report::{Report, Row},
};
use lockwarden::{Guard, Warden};
use std::time::{Duration, Instant};

const LOCKS: usize = 100_000;
const LEASES: u32 = 3;
/// The default lease, which the target for the server's load is about.
const DEFAULT_LEASE_S: f64 = 30.0;
/// How many acquires are under way at once.
const AT_ONCE: usize = 256;

pub(crate) fn run(ground: &Ground, long: bool, report: &mut Report) -> Outcome<()> {
    let lease = Duration::from_secs(if long { 30 } else { 6 });
    let plain_us = ground.block_on(plain_extension_us(ground))?;
    ground.cmd(&["FLUSHALL"]);
    ground.server.without_guard();

    let lease_ms = lease.as_millis().to_string();
    let mut child = Child::start("held", &[&ground.url(), &LOCKS.to_string(), &lease_ms])?;
    let bytes = child.hear("holding")?[0];
    let (began, server_us) = (Instant::now(), ground.server_cpu_us());
    let calls = ground.calls("evalsha");
    let numbers = child.hear("held")?;
    let [lost, unsure, client_us] = numbers[..] else { return Err("held: three numbers".into()) };
    let seconds = began.elapsed().as_secs_f64();
    let server_us = ground.server_cpu_us() - server_us;
    let calls = ground.calls("evalsha") - calls;
    let gone = LOCKS as f64 - ground.block_on(existing(ground))?;
    child.tell("release")?;
    let failed = child.hear("released")?[0];

    // Each lock is renewed every third of its lease.
    let renewals = LOCKS as f64 * seconds / (lease.as_secs_f64() / 3.0);
    let share_of_core = server_us / 1_000_000.0 / seconds * 100.0;
    let scaled = share_of_core * lease.as_secs_f64() / DEFAULT_LEASE_S;
    let what =
        |figure: &str| format!("100,000 for {LEASES} leases of {} s: {figure}", lease.as_secs());
    let row = |figure: &str, value: f64, unit| Row::new("held", what(figure), value, unit);
    report.push(row("lost", lost as f64 + gone, "locks").value_at_most(0.0));
    report.push(row("lost until they were released", failed as f64, "locks").value_at_most(0.0));
    report.push(row("check() false while held", unsure as f64, "times").value_at_most(0.0));
    let share = if long { "server" } else { "server, scaled to leases of 30 s" };
    report.push(row(share, scaled, "% of a core").value_at_most(3.0));
    report.push(
        row("server, per renewal", server_us / renewals, "µs").beside("pipelined extend", plain_us),
    );
    report.push(row("client, per renewal", client_us as f64 / renewals, "µs"));
    report.push(row("renewals per command", renewals / calls, ""));
    report.push(
        row("client memory per lock", bytes as f64 / LOCKS as f64, "B").value_at_most(1024.0),
    );
    Ok(())
}

/// The server's time for one renewal as rslock does it, by a script each, all sent in long pipelines.
async fn plain_extension_us(ground: &Ground) -> Outcome<f64> {
    let mut connection = connection(&ground.url()).await?;
    let names: Vec<String> = (0..LOCKS).map(|number| format!("plain:{number}")).collect();
    let script = "if redis.call('get', KEYS[1]) ~= ARGV[1] then return 0 end \
                  return redis.call('set', KEYS[1], ARGV[1], 'PX', ARGV[2])";
    let hash: String =
        redis::cmd("SCRIPT").arg("LOAD").arg(script).query_async(&mut connection).await?;
    for chunk in names.chunks(1_000) {
        let mut sets = redis::pipe();
        for name in chunk {
            sets.cmd("SET").arg(name).arg("token").arg("PX").arg(30_000).ignore();
        }
        sets.query_async::<()>(&mut connection).await?;
    }
    let server_us = ground.server_cpu_us();
    for chunk in names.chunks(1_000) {
        let mut extends = redis::pipe();
        for name in chunk {
            extends.cmd("EVALSHA").arg(&hash).arg(1).arg(name).arg("token").arg(30_000).ignore();
        }
        extends.query_async::<()>(&mut connection).await?;
    }
    Ok((ground.server_cpu_us() - server_us) / LOCKS as f64)
}

/// How many of the locks the server has.
async fn existing(ground: &Ground) -> Outcome<f64> {
    let mut connection = connection(&ground.url()).await?;
    let names: Vec<String> = (0..LOCKS).map(name).collect();
    let mut count = 0;
    for chunk in names.chunks(1_000) {
        count += redis::cmd("EXISTS").arg(chunk).query_async::<u64>(&mut connection).await?;
    }
    Ok(count as f64)
}

fn name(number: usize) -> String {
    format!("held:{number}")
}

/// The process that holds them.
pub(crate) fn child(url: &str, count: usize, lease: Duration) -> Outcome<()> {
    let runtime = runtime()?;
    let warden = runtime.block_on(connect(url))?;
    // What any first use allocates, once, is not part of the price of a lock.
    let few = runtime.block_on(acquire(&warden, "warm", 100, lease))?;
    runtime.block_on(release(few))?;
    say("ready")?;
    let before = resident_bytes();
    let guards = runtime.block_on(acquire(&warden, "held", count, lease))?;
    say(&format!("holding {}", resident_bytes().saturating_sub(before)))?;
    let (cpu_us, mut unsure) = (own_cpu_us(), 0);
    let end = Instant::now() + lease * LEASES;
    while Instant::now() < end {
        std::thread::sleep(lease / 12);
        unsure += guards.iter().filter(|guard| !guard.check()).count();
    }
    let lost = |guard: &&Guard| matches!(guard.state(), lockwarden::State::Lost(_));
    let lost = guards.iter().filter(lost).count();
    say(&format!("held {lost} {unsure} {}", (own_cpu_us() - cpu_us) as u64))?;
    std::io::stdin().read_line(&mut String::new())?;
    let failed = runtime.block_on(release(guards))?;
    say(&format!("released {failed}"))?;
    runtime.block_on(warden.close());
    Ok(())
}

async fn acquire(
    warden: &Warden,
    prefix: &str,
    count: usize,
    lease: Duration,
) -> Outcome<Vec<Guard>> {
    let tasks: Vec<_> = (0..AT_ONCE)
        .map(|task| {
            let (warden, prefix) = (warden.clone(), prefix.to_owned());
            tokio::spawn(async move {
                let mut guards = Vec::new();
                for number in (task..count).step_by(AT_ONCE) {
                    let lock = warden.lock(&format!("{prefix}:{number}")).lease(lease);
                    guards.push(lock.acquire().await?);
                }
                Outcome::Ok(guards)
            })
        })
        .collect();
    let mut guards = Vec::with_capacity(count);
    for task in tasks {
        guards.append(&mut task.await??);
    }
    Ok(guards)
}

/// How many releases failed. As many at once as acquires: those that wait for their turn are renewed
/// until then, whereas a release that waits is not.
async fn release(guards: Vec<Guard>) -> Outcome<usize> {
    let mut shares: Vec<Vec<Guard>> = (0..AT_ONCE).map(|_| Vec::new()).collect();
    for (number, guard) in guards.into_iter().enumerate() {
        shares[number % AT_ONCE].push(guard);
    }
    let task = |share: Vec<Guard>| async move {
        let mut failed = 0;
        for guard in share {
            failed += usize::from(guard.release().await.is_err());
        }
        failed
    };
    let tasks: Vec<_> = shares.into_iter().map(|share| tokio::spawn(task(share))).collect();
    let mut failed = 0;
    for task in tasks {
        failed += task.await?;
    }
    Ok(failed)
}
