//! Many rounds: cancelled, killed, released at random moments, on real servers. Nothing is left.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod support;

use lockwarden::Settings;
use lockwarden_testkit::{
    conformance::{names, until, waiters},
    process::poll_until,
    proxy::Direction,
    raw::Value,
    servers::{META_KEY, Server, ServerKind},
    taker::Options,
};
use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};
use support::{
    Dice, MS, TAKER, at_once_on_every_server, connect, connect_through, is_held_by, join,
    nothing_is_left, on_every_server, on_every_site, size, started,
};

/// C09: killed at any moment around an acquire: never a key without an expiry, and all is gone when
/// the lease is over.
#[test]
fn c09_killed_around_an_acquire() {
    for kind in ServerKind::default_set() {
        let server = started(kind);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| watch_expiries(&server, &done));
            let mut dice = Dice(9);
            let rounds = size(300, 40);
            for round in 0..rounds {
                let options = Options::new(TAKER, &server.url()).unwatched();
                let mut taker = options.spawn();
                taker.tell(&format!("acquire k x{round} lease=1000"));
                // Half of them while they start and connect, half around the acquire itself.
                if round % 2 == 0 {
                    taker.hear("connected");
                }
                let below_us = if round % 2 == 0 { 2_000 } else { 20_000 };
                spin(Duration::from_micros(dice.below(below_us)));
                taker.process().kill9();
            }
            // The last was granted when it was killed, at the latest: a lease, and a little.
            let mut raw = server.raw();
            let locks = |raw: &mut lockwarden_testkit::raw::Raw| {
                let found = support::keys(raw);
                found.into_iter().filter(|key| key.starts_with('x')).count()
            };
            let left = poll_until(MS(1_300), || (locks(&mut raw) == 0).then_some(()));
            assert!(left.is_some(), "{} locks are left", locks(&mut raw));
            done.store(true, Ordering::Relaxed);
        });
        nothing_is_left(&server);
    }
}

/// Busy: the moments of a timer would be none at random.
fn spin(time: Duration) {
    let until = Instant::now() + time;
    while Instant::now() < until {
        std::hint::spin_loop();
    }
}

/// Looks again and again for a key without an expiry, at one moment of the server's life each time.
fn watch_expiries(server: &Server, done: &AtomicBool) {
    let script = "local found = {} for _, key in ipairs(redis.call('KEYS', '*')) do \
                  if redis.call('PTTL', key) == -1 then found[#found + 1] = key end end \
                  return found";
    let mut raw = server.raw();
    while !done.load(Ordering::Relaxed) {
        let found = raw.cmd(&["EVAL", script, "0"]);
        let endless: Vec<String> = found.items().iter().filter_map(Value::text).collect();
        assert_eq!(endless, [META_KEY]);
        std::thread::sleep(MS(1));
    }
}

/// C18: a renewal under way when its lock is released puts nothing back, and nothing is renewed after.
#[test]
fn c18_no_renewal_outlives_its_release() {
    at_once_on_every_server(|server, protocol| async move {
        let warden = connect(&server, protocol).await;
        let tasks: Vec<_> = (0..8)
            .map(|task| {
                let (warden, mut raw) = (warden.clone(), server.raw());
                tokio::spawn(async move {
                    let (mut dice, mut released) = (Dice(task), 0);
                    for _ in 0..size(625, 15) {
                        let name = format!("x{}", dice.below(8));
                        let lock = warden.lock(&name).lease(MS(300));
                        let guard = lock.acquire().await.unwrap();
                        tokio::time::sleep(MS(dice.below(200))).await;
                        let token = guard.token().clone();
                        // A machine that stands still for longer than the lease loses the lock.
                        match guard.release().await {
                            Ok(()) => released += 1,
                            Err(error) => assert_eq!(error.code(), "lost", "{error}"),
                        }
                        assert!(!is_held_by(&raw.cmd(&["GET", &name]), &token));
                    }
                    released
                })
            })
            .collect();
        let mut released = 0;
        for task in tasks {
            released += task.await.unwrap();
        }
        assert!(released > 8 * size(625, 15) / 2, "only {released}");
        // Connected still, and with nothing to renew: the last of it is gone at once.
        until("nothing is left", || async { names(&warden).await.is_empty() }).await;
        nothing_is_left(&server);
    });
}

/// C39: an acquire is cancelled at any moment of its round trip: the lock is free at once, or was
/// never taken.
#[test]
fn c39_cancelled_at_any_moment() {
    on_every_server(|server, protocol| async move {
        let (a, proxy) = connect_through(&server, protocol).await;
        let b = connect(&server, protocol).await;
        for direction in Direction::BOTH {
            proxy.delay(direction, MS(2));
        }
        let mut dice = Dice(39);
        for _ in 0..size(500, 60) {
            let lock = a.lock("x").lease(MS(20_000));
            let acquiring = tokio::spawn(async move { lock.acquire().await.map(drop) });
            tokio::time::sleep(Duration::from_micros(dice.below(6_000))).await;
            acquiring.abort();
            let cancelled = Instant::now();
            let next = b.lock("x").wait_for(MS(5_000)).acquire().await.unwrap();
            assert!(cancelled.elapsed() < MS(1_000), "{:?}", cancelled.elapsed());
            next.release().await.unwrap();
        }
        until("nothing is left", || async { names(&b).await.is_empty() }).await;
        nothing_is_left(&server);
    });
}

/// C48: one releases at about the moment at which another begins to wait: nobody sleeps on.
#[test]
fn c48_no_wake_up_is_missed() {
    on_every_site(|site| async move {
        let (a, b) = (join(&site).await, join(&site).await);
        let mut dice = Dice(48);
        let (rounds, mut late, mut worst) = (size(2_000, 200), 0, Duration::ZERO);
        for _ in 0..rounds {
            let held = a.lock("x").lease(MS(8_000)).acquire().await.unwrap();
            let lock = b.lock("x").wait_for(MS(10_000));
            let waiting = tokio::spawn(async move {
                let guard = lock.acquire().await.unwrap();
                (guard, Instant::now())
            });
            tokio::time::sleep(Duration::from_micros(dice.below(5_000))).await;
            let released = Instant::now();
            held.release().await.unwrap();
            let (guard, granted) = waiting.await.unwrap();
            let took = granted.saturating_duration_since(released);
            worst = worst.max(took);
            late += u64::from(took > MS(300));
            guard.release().await.unwrap();
        }
        eprintln!("worst {worst:?}, {late} of {rounds} over 0.3 s");
        assert!(worst < MS(1_500) && late <= rounds.div_ceil(1_000), "{worst:?}, {late} late");
        assert_eq!(names(&a).await, [""; 0]);
    });
}

/// C48: the connections that carry the wake-ups are killed while someone waits, and the lock is
/// released at about that moment.
#[test]
fn c48_wake_ups_whose_connection_is_killed() {
    on_every_server(|server, protocol| async move {
        let (a, b) = (connect(&server, protocol).await, connect(&server, protocol).await);
        let mut raw = server.raw();
        for round in 0..size(50, 6) {
            let held = a.lock("x").lease(MS(8_000)).acquire().await.unwrap();
            let lock = b.lock("x").wait_for(MS(10_000));
            let waiting = tokio::spawn(async move { lock.acquire().await });
            until("queued", || async { waiters(&a, "x").await == 1 }).await;
            raw.cmd(&["CLIENT", "KILL", "TYPE", "pubsub"]);
            if round % 2 == 1 {
                // Its link is gone, and it may not be back yet.
                tokio::time::sleep(MS(round)).await;
            }
            let released = Instant::now();
            held.release().await.unwrap();
            let guard = waiting.await.unwrap().unwrap();
            assert!(released.elapsed() < MS(1_500), "{:?}", released.elapsed());
            guard.release().await.unwrap();
        }
    });
}

/// C51: as many names as one likes: nothing is left of any, however it ended.
#[test]
fn c51_nothing_is_left_of_many_names() {
    for kind in ServerKind::default_set() {
        let server = started(kind);
        let (count, expired, killed, awaited) =
            (size(20_000, 1_000), size(1_000, 50), size(500, 25), size(500, 25));
        let mut taker = Options::new(TAKER, &server.url()).unwatched().start();
        for i in 0..killed {
            taker.tell(&format!("acquire k{i} killed{i} lease=1000"));
        }
        for i in 0..killed {
            taker.acquired(&format!("k{i}"));
        }
        taker.process().kill9();
        support::runtime().block_on(async {
            let (a, b) = (connect(&server, "").await, connect(&server, "").await);
            for i in 0..expired {
                let lock = a.lock(&format!("expired{i}")).lease(MS(100)).without_renewal();
                std::mem::forget(lock.acquire().await.unwrap());
            }
            for i in 0..awaited {
                let name = format!("awaited{i}");
                let held = a.lock(&name).acquire().await.unwrap();
                let lock = b.lock(&name);
                let waiting = tokio::spawn(async move { lock.acquire().await });
                until("queued", || async { waiters(&a, &name).await == 1 }).await;
                held.release().await.unwrap();
                waiting.await.unwrap().unwrap().release().await.unwrap();
            }
            let mut tasks = Vec::new();
            for task in 0..50 {
                let a = a.clone();
                tasks.push(tokio::spawn(async move {
                    for i in 0..count / 50 {
                        let lock = a.lock(&format!("name{task}-{i}"));
                        lock.acquire().await.unwrap().release().await.unwrap();
                    }
                }));
            }
            for task in tasks {
                task.await.unwrap();
            }
        });
        nothing_is_left(&server);
    }
}

/// C52: looking for locks among very many other keys is done in small steps, without a command that
/// keeps the server from everybody else; and finds each of them.
#[test]
fn c52_looking_does_not_stop_the_server() {
    on_every_server(|server, protocol| async move {
        let mut raw = server.raw();
        let fill = "for i = ARGV[1], ARGV[1] + 9999 do \
                    redis.call('SET', 'app:' .. string.format('%.0f', i), 'x') end";
        for i in 0..size(200, 3) {
            raw.cmd(&["EVAL", fill, "0", &(i * 10_000).to_string()]);
        }
        let warden = connect(&server, protocol).await;
        let mut held = Vec::new();
        for i in 0..500 {
            held.push(warden.lock(&format!("job{i:03}")).acquire().await.unwrap());
        }
        assert!(raw.cmd(&["CONFIG", "RESETSTAT"]).is_ok());
        let expected: Vec<String> = (0..500).map(|i| format!("job{i:03}")).collect();
        assert_eq!(names(&warden).await, expected);
        let (mut foreign, mut cursor) = (0, 0);
        loop {
            let page = warden.page(cursor, true).await.unwrap();
            (foreign, cursor) = (foreign + page.foreign, page.cursor);
            if cursor == 0 {
                break;
            }
        }
        assert!(foreign >= size(2_000_000, 30_000), "{foreign}");
        warden.show("job000").await.unwrap();
        warden.revoke("job000", held[0].token(), false).await.unwrap();
        // On average, for on a loaded machine any single command may be interrupted. The case allows
        // 50 ms.
        let info = raw.cmd(&["INFO", "commandstats"]).text().unwrap();
        let scan = info.lines().find(|line| line.starts_with("cmdstat_scan:")).unwrap();
        let (_, average) = scan.split_once("usec_per_call=").unwrap();
        let average_us: f64 = average.split(',').next().unwrap().parse().unwrap();
        assert!(average_us < 5_000.0, "{scan}");
        for command in ["keys", "smembers", "hgetall", "flushall", "config|get", "sort"] {
            assert_eq!(support::calls(&mut raw, command), 0, "{command}");
        }
    });
}

/// C66: of fifty locks ten are expired, ten released, ten of a killed process, ten revoked, ten held:
/// every view shows the ten, as the store has them.
#[test]
fn c66_all_views_agree() {
    on_every_site(|site| async move {
        let a = Settings::new().label("living").connect(site.url()).await.unwrap();
        let b = join(&site).await;
        let mut taker = Options::new(TAKER, site.url()).unwatched().start();
        let (mut live, mut revoked) = (Vec::new(), Vec::new());
        for i in 0..10 {
            taker.acquire(&format!("k{i}"), &format!("killed{i}"), "lease=1000");
            let expiring = a.lock(&format!("expired{i}")).lease(MS(100)).without_renewal();
            std::mem::forget(expiring.acquire().await.unwrap());
            a.lock(&format!("released{i}")).acquire().await.unwrap().release().await.unwrap();
            let guard = a.lock(&format!("revoked{i}")).acquire().await.unwrap();
            b.revoke(guard.name().as_str(), guard.token(), false).await.unwrap();
            revoked.push(guard);
            let guard = a.lock(&format!("live{i}")).acquire().await.unwrap();
            live.push((guard, Instant::now()));
        }
        taker.process().kill9();
        let expected: Vec<String> = (0..10).map(|i| format!("live{i}")).collect();
        let killed = Instant::now();
        for warden in [&a, &b] {
            until("the ten", || async {
                let mut held = Vec::new();
                for name in names(warden).await {
                    if warden.show(&name).await.unwrap().holder.is_some() {
                        held.push(name);
                    }
                }
                held == expected
            })
            .await;
        }
        assert!(killed.elapsed() < MS(2_500), "{:?}", killed.elapsed());
        let mut raw = site.server.as_ref().map(Server::raw);
        let mut ttls = BTreeMap::new();
        if let Some(raw) = &mut raw {
            let mut found = support::keys(raw);
            found.retain(|key| !key.starts_with("lockwarden:"));
            assert_eq!(found, expected);
            for name in &found {
                ttls.insert(name.clone(), raw.cmd(&["PTTL", name]).int().unwrap());
            }
        }
        for (guard, since) in &live {
            assert!(guard.check());
            let view = b.show(guard.name().as_str()).await.unwrap();
            let (holder, age_ms) = (view.holder.unwrap(), since.elapsed().as_millis() as u64);
            let record = holder.record.unwrap();
            assert_eq!((&holder.token, record.fence), (guard.token(), guard.fence()));
            assert_eq!((&*record.party.label, record.party.pid()), ("living", Some(own_pid())));
            assert!(record.held_ms.abs_diff(age_ms) < 200, "{} for {age_ms}", record.held_ms);
            assert_eq!((view.holder_alive, view.queue.len()), (Some(true), 0));
            if let Some(ttl_ms) = ttls.get(guard.name().as_str()) {
                let shown_ms = i64::try_from(holder.ttl_ms.unwrap()).unwrap();
                // A renewal may lie between the two looks, every 10 s.
                assert!(shown_ms.abs_diff(*ttl_ms) < 200 || shown_ms > *ttl_ms, "{shown_ms}");
            }
        }
        for guard in revoked {
            // What is local says so at once; the store was asked above.
            assert!(!guard.check());
        }
        drop(live);
        until("nothing is left", || async { names(&b).await.is_empty() }).await;
    });
}

fn own_pid() -> u32 {
    std::process::id()
}
