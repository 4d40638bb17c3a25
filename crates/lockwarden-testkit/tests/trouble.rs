//! Redis in trouble: rights taken away, read-only, failed over, out of memory, down, frozen.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod support;

use lockwarden::{Absence, Error, Loss, State, StoreError, Trouble, Warden};
use lockwarden_testkit::{
    conformance::{until, waiters},
    process::eventually,
    proxy::{Cut, Direction, NewConnections, Proxy},
    servers::{Server, ServerKind},
    taker::SOON,
};
use std::time::{Duration, Instant};
use support::{
    MS, at_once_on_every_server, connect, connect_through, is_held_by, nothing_is_left, runtime,
    trouble,
};

const RSS: &str = "2000000000";

fn memory(server: &Server, most: &str, policy: &str) {
    let mut raw = server.raw();
    assert!(raw.cmd(&["CONFIG", "SET", "maxmemory-policy", policy]).is_ok());
    assert!(raw.cmd(&["CONFIG", "SET", "maxmemory", most]).is_ok());
}

/// C32: the server becomes a replica for two seconds, and a primary again: who does not wait hears
/// that it is read-only; who waits gets the lock; the holder keeps it.
#[test]
fn c32_read_only_for_a_while() {
    at_once_on_every_server(|server, protocol| async move {
        let (a, b) = (connect(&server, protocol).await, connect(&server, protocol).await);
        let held = a.lock("x").lease(MS(10_000)).acquire().await.unwrap();
        let token = held.token().clone();
        assert!(server.cmd(&["REPLICAOF", "127.0.0.1", "1"]).is_ok());
        for name in ["x", "free"] {
            let error = b.lock(name).no_wait().acquire().await.unwrap_err();
            assert_eq!(trouble(&error), Some(Trouble::ReadOnly), "{error}");
            assert!(error.to_string().contains("read-only"), "{error}");
            assert!(error.retry_helps());
        }
        let lock = b.lock("free").wait_for(MS(5_000));
        let waiting = tokio::spawn(async move { lock.acquire().await });
        // The outage itself.
        tokio::time::sleep(MS(2_000)).await;
        assert!(!waiting.is_finished());
        assert!(server.cmd(&["REPLICAOF", "NO", "ONE"]).is_ok());
        let writable = Instant::now();
        waiting.await.unwrap().unwrap().release().await.unwrap();
        assert!(writable.elapsed() < MS(1_500), "{:?}", writable.elapsed());
        until("held", || async { held.check() && held.state() == State::Held }).await;
        assert_eq!(held.token(), &token);
        held.release().await.unwrap();
        nothing_is_left(&server);
    });
}

/// C33: the primary dies right after a grant of which the replica knows nothing, and the replica is
/// promoted: the first holder does not believe any more when the second is granted, is told, and
/// hurts nobody; fences grow. What no primary can promise is in the README.
#[test]
fn c33_a_failover_loses_a_lock() {
    let runtime = runtime();
    for kind in ServerKind::default_set() {
        let mut primary = support::started(kind);
        let replication = Proxy::start(primary.address()).unwrap();
        let of = format!("127.0.0.1 {}", replication.address().port());
        let replica = Server::builder(kind).config("replicaof", &of).start();
        eventually(SOON, || {
            replica.info("replication", "master_link_status").as_deref() == Some("up")
        });
        runtime.block_on(async {
            let (a, proxy) = connect_through(&primary, "").await;
            let b = Warden::connect(&primary.url_at(proxy.address())).await.unwrap();
            let known = a.lock("known").acquire().await.unwrap();
            let offset = |server: &Server| server.info("replication", "master_repl_offset");
            eventually(SOON, || offset(&primary) == offset(&replica));
            replication.hold(Direction::ToClient);
            let held = a.lock("x").lease(MS(20_000)).acquire().await.unwrap();
            assert!(held.check());
            primary.kill9();
            replication.cut(Cut::Reset);
            assert!(replica.cmd(&["REPLICAOF", "NO", "ONE"]).is_ok());
            proxy.set_upstream(replica.address());
            proxy.cut(Cut::Reset);
            let next = b.lock("x").wait_for(MS(15_000)).acquire().await.unwrap();
            // The holder may have renewed nothing: its record went with the primary.
            assert!(!held.check());
            assert!(next.fence() > held.fence(), "G2");
            assert!(matches!(held.lost().await, Loss::NotHeld(_)));
            let token = next.token().clone();
            assert!(held.extend(MS(30_000)).await.is_err());
            assert!(matches!(held.release().await, Err(Error::Lost { .. })));
            assert!(is_held_by(&replica.cmd(&["GET", "x"]), &token));
            assert!(next.check());
            // What the replica knew is held on.
            until("renewed in the new epoch", || async { known.check() }).await;
            known.release().await.unwrap();
            next.release().await.unwrap();
        });
        nothing_is_left(&replica);
    }
}

/// C35: a lock's key is evicted: its holder is told with the next renewal.
#[test]
fn c35_evicted() {
    at_once_on_every_server(|server, protocol| async move {
        let warden = connect(&server, protocol).await;
        let held = warden.lock("x").lease(MS(3_000)).acquire().await.unwrap();
        let mut raw = server.raw();
        let used = server.info("memory", "used_memory").unwrap().parse::<u64>().unwrap();
        memory(&server, &(used + 1_000_000).to_string(), "volatile-ttl");
        // Junk without an expiry is not evicted: what has one goes.
        let junk = "x".repeat(10_000);
        for i in 0.. {
            if raw.cmd(&["EXISTS", "x"]).int() == Some(0) {
                break;
            }
            raw.cmd(&["SET", &format!("junk{i}"), &junk]);
            assert!(i < 1_000, "nothing is evicted");
        }
        let evicted = Instant::now();
        let loss = held.lost().await;
        assert!(evicted.elapsed() < MS(1_900), "{:?}: {loss:?}", evicted.elapsed());
        assert_eq!(loss, Loss::NotHeld(Absence::Free));
        assert!(!held.check());
        memory(&server, RSS, "noeviction");
        let next = warden.lock("x").wait_for(MS(5_000)).acquire().await.unwrap();
        assert!(next.fence() > held.fence());
        next.release().await.unwrap();
    });
}

/// C36: out of memory is what an acquire says; renewal, release and new links go on, and so does the
/// hand-off of what is released.
#[test]
fn c36_out_of_memory() {
    at_once_on_every_server(|server, protocol| async move {
        let (a, b) = (connect(&server, protocol).await, connect(&server, protocol).await);
        let held = a.lock("x").lease(MS(900)).acquire().await.unwrap();
        let lock = b.lock("x");
        let waiting = tokio::spawn(async move { lock.acquire().await });
        until("queued", || async { waiters(&a, "x").await == 1 }).await;
        // Less than any server uses.
        memory(&server, "1", "noeviction");
        let began = Instant::now();
        for warden in [&a, &b] {
            let error = warden.lock("y").no_wait().acquire().await.unwrap_err();
            assert_eq!(trouble(&error), Some(Trouble::OutOfMemory), "{error}");
            assert!(error.to_string().contains("out of memory"), "{error}");
        }
        let late = connect(&server, protocol).await;
        let error = late.lock("y").wait_for(MS(300)).acquire().await.unwrap_err();
        assert_eq!(trouble(&error), Some(Trouble::OutOfMemory), "{error}");
        while began.elapsed() < MS(1_900) {
            assert!(held.check(), "{:?} after {:?}", held.state(), began.elapsed());
            assert_eq!(held.state(), State::Held);
            tokio::time::sleep(MS(20)).await;
        }
        held.release().await.unwrap();
        let next = waiting.await.unwrap().unwrap();
        until("renewed", || async { next.remaining() > MS(3_000) }).await;
        memory(&server, RSS, "noeviction");
        next.release().await.unwrap();
        late.lock("y").no_wait().acquire().await.unwrap().release().await.unwrap();
        nothing_is_left(&server);
    });
}

/// C37: down, unreachable, wrong host, wrong password: each an error of its own, in time; never busy.
#[test]
fn c37_down_is_not_busy() {
    at_once_on_every_server(|mut server, protocol| async move {
        let url = format!("{}{protocol}", server.url());
        let warden = Warden::connect(&url).await.unwrap();
        let held = warden.lock("x").lease(MS(2_000)).acquire().await.unwrap();
        server.kill9();
        let down = [Some(Trouble::Unreachable), Some(Trouble::Disconnected)];
        // Who does not wait for the lock waits for an answer, 5 s at most.
        for (wait_ms, most_ms) in [(0, 7_000), (300, 1_000)] {
            let began = Instant::now();
            let lock = warden.lock("y").wait_for(MS(wait_ms));
            let error = lock.acquire().await.unwrap_err();
            assert!(down.contains(&trouble(&error)), "{error}");
            assert!(began.elapsed() < MS(most_ms), "{:?}", began.elapsed());
            assert!(error.retry_helps());
        }
        assert!(down.contains(&trouble(&warden.show("x").await.unwrap_err())));
        held.lost().await;
        assert!(!held.check());
        let error = Warden::connect(&url).await.unwrap_err();
        assert_eq!(trouble(&error), Some(Trouble::Unreachable), "{error}");
        assert!(error.to_string().contains(&server.port().to_string()), "{error}");
    });
}

/// C37: connected to nothing, or as nobody.
#[test]
fn c37_no_such_host_and_wrong_password() {
    let runtime = runtime();
    let fails = |url: &str| {
        let began = Instant::now();
        let error = runtime.block_on(Warden::connect(url)).unwrap_err();
        assert!(began.elapsed() < Duration::from_secs(8), "{url}: {:?}", began.elapsed());
        error
    };
    let error = fails("redis://no.such.host.invalid");
    assert_eq!(trouble(&error), Some(Trouble::Unreachable), "{error}");
    assert!(error.to_string().contains("no.such.host.invalid"), "{error}");
    for kind in ServerKind::default_set() {
        let server = Server::builder(kind).password("right").start();
        for (login, what) in [(":wrong@", "password"), ("", "password"), ("u:wrong@", "user")] {
            for query in ["?protocol=2", ""] {
                if login.starts_with('u') && !kind.has_acl() {
                    continue;
                }
                let error = fails(&format!("redis://{login}{}{query}", server.address()));
                let denied = matches!(error, Error::Store(StoreError::Denied { .. }));
                assert!(denied && error.to_string().contains(what), "{error}");
                assert!(!error.to_string().contains("wrong@") && !error.retry_helps(), "{error}");
            }
        }
        runtime.block_on(Warden::connect(&server.url())).unwrap();
        // Connections are accepted, and nothing is ever heard.
        let proxy = Proxy::start(server.address()).unwrap();
        proxy.new_connections(NewConnections::Ignore);
        let error = fails(&format!("redis://:right@{}", proxy.address()));
        assert_eq!(trouble(&error), Some(Trouble::Unreachable), "{error}");
    }
}

/// C38, first: the server is frozen while someone asks, who gives up; the command runs afterwards.
/// Nothing is left of it.
#[test]
fn c38_frozen_during_an_acquire() {
    at_once_on_every_server(|mut server, protocol| async move {
        let (a, b) = (connect(&server, protocol).await, connect(&server, protocol).await);
        let lock = a.lock("x").lease(MS(20_000));
        lock.acquire().await.unwrap().release().await.unwrap();
        for wait in [lock.clone().wait_for(MS(300)), lock.wait_for(MS(5_000))] {
            server.stop();
            let frozen = Instant::now();
            let asking = tokio::spawn(async move { wait.acquire().await });
            // The time that it is frozen.
            tokio::time::sleep(MS(1_000)).await;
            server.cont();
            match asking.await.unwrap() {
                Err(error) => {
                    let known = ["timed_out", "unavailable"].contains(&error.code());
                    assert!(known && frozen.elapsed() < MS(2_000), "{error}");
                }
                // It waited longer than the server was frozen: then it has all of it.
                Ok(guard) => {
                    assert!(guard.check() && guard.remaining() > MS(15_000));
                    guard.release().await.unwrap();
                }
            }
            let began = Instant::now();
            let next = b.lock("x").wait_for(MS(3_000)).acquire().await.unwrap();
            assert!(began.elapsed() < MS(2_000), "{:?}", began.elapsed());
            next.release().await.unwrap();
        }
        nothing_is_left(&server);
    });
}

/// C38, second: the command arrives, and no answer comes back.
#[test]
fn c38_the_answer_is_lost_and_the_caller_gives_up() {
    at_once_on_every_server(|server, protocol| async move {
        let (a, proxy) = connect_through(&server, protocol).await;
        let b = connect(&server, protocol).await;
        a.lock("warm").acquire().await.unwrap().release().await.unwrap();
        proxy.swallow(Direction::ToClient);
        let lock = a.lock("x").lease(MS(20_000));
        let error = lock.wait_for(MS(300)).acquire().await.unwrap_err();
        assert!(["timed_out", "unavailable"].contains(&error.code()), "{error}");
        let began = Instant::now();
        let next = b.lock("x").wait_for(MS(3_000)).acquire().await.unwrap();
        assert!(began.elapsed() < MS(2_000), "{:?}", began.elapsed());
        proxy.heal();
        next.release().await.unwrap();
        drop(a);
        nothing_is_left(&server);
    });
}

/// C38, third: another has the lock before the command and its clean-up arrive: it keeps it.
#[test]
fn c38_the_clean_up_hurts_nobody() {
    at_once_on_every_server(|server, protocol| async move {
        let (a, proxy) = connect_through(&server, protocol).await;
        let b = connect(&server, protocol).await;
        a.lock("warm").acquire().await.unwrap().release().await.unwrap();
        proxy.hold(Direction::ToServer);
        let lock = a.lock("x").lease(MS(20_000)).wait_for(MS(200));
        lock.acquire().await.unwrap_err();
        let next = b.lock("x").acquire().await.unwrap();
        proxy.release(Direction::ToServer);
        // Whatever was held back has been answered when this is.
        a.show("x").await.unwrap();
        assert!(next.check());
        let holder = b.show("x").await.unwrap();
        assert_eq!(holder.holder.unwrap().token, *next.token());
        assert_eq!(holder.queue.len(), 0, "no ticket of a caller that has gone");
        next.release().await.unwrap();
        nothing_is_left(&server);
    });
}

/// C46: a server that closes connections which stay idle for a second closes none of ours.
#[test]
fn a_server_that_closes_idle_connections() {
    at_once_on_every_server(|server, protocol| async move {
        assert!(server.cmd(&["CONFIG", "SET", "timeout", "1"]).is_ok());
        let (a, b) = (connect(&server, protocol).await, connect(&server, protocol).await);
        let held = a.lock("x").lease(MS(20_000)).acquire().await.unwrap();
        let lock = b.lock("x");
        let waiting = tokio::spawn(async move { lock.acquire().await });
        until("queued", || async { waiters(&a, "x").await == 1 }).await;
        let began = Instant::now();
        while began.elapsed() < MS(4_000) {
            assert!(held.check(), "{:?}", held.state());
            tokio::time::sleep(MS(50)).await;
        }
        let released = Instant::now();
        held.release().await.unwrap();
        waiting.await.unwrap().unwrap().release().await.unwrap();
        assert!(released.elapsed() < MS(300), "{:?}", released.elapsed());
    });
}
