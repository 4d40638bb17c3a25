//! R4 to R6 on every server: after a restart, a flush or a promotion nothing is granted while a
//! holder from before may still believe; and nobody waits where nobody can.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use lockwarden::{Error, Warden};
use lockwarden_testkit::{
    process::eventually,
    proxy::{NewConnections, Proxy},
    recorder::{Verdict, now_us},
    servers::{META_KEY, Restart, Server, ServerKind},
    taker::{Options, SOON, Taker},
};
use std::time::Duration;

const TAKER: &str = env!("CARGO_BIN_EXE_taker");
/// W less its margins: for how long a belief may last (R20).
const BELIEF_US: u64 = 2_960_000;

fn started(kind: ServerKind) -> Server {
    let server = Server::start(kind);
    server.without_guard();
    server
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Runtime::new().unwrap()
}

/// What the data of the restarted server are.
enum Data {
    /// The default snapshots: none was taken yet, or an old one.
    AsLeft,
    None,
    /// From before the lock was granted, `meta` included.
    Older,
    /// With the lock in it.
    Newest,
}

/// A holder is cut off, the server dies and comes back; a newcomer and a waiter from before ask.
fn nobody_overlaps(kind: ServerKind, data: &Data) {
    let mut server = started(kind);
    let record = tempfile::NamedTempFile::new().unwrap();
    let proxy = Proxy::start(server.address()).unwrap();
    let behind = Options::new(TAKER, &server.url_at(proxy.address())).record(record.path());
    let direct = Options::new(TAKER, &server.url()).record(record.path());
    let older = server.snapshot();
    let mut holder = behind.label("holder").start();
    holder.acquire("k", "x", "lease=6000");
    let mut waiter = direct.clone().label("waiter").start();
    waiter.tell("acquire k x");
    let newest = server.snapshot();
    assert!(holder.check("k"));
    proxy.half_open(NewConnections::Refuse);
    let cut_us = now_us();
    server.kill9();
    server.restart(match data {
        Data::AsLeft => Restart::AsLeft,
        Data::None => Restart::Empty,
        Data::Older => Restart::From(&older),
        Data::Newest => Restart::From(&newest),
    });
    let mut newcomer = direct.label("newcomer").start();
    newcomer.tell("acquire k x");
    // The waiter came first, and is back in time or not; one gets it, then the other.
    let mut granted = Vec::new();
    for _ in 0..2 {
        eventually(SOON, || {
            let both: [&mut Taker; 2] = [&mut waiter, &mut newcomer];
            for taker in both {
                if let Some(words) = taker.hear_within("acquired k", Duration::from_millis(20)) {
                    granted.push(words[3].parse::<u64>().unwrap());
                    // Kept for a moment, so that the recorder sees it.
                    eventually(SOON, || taker.check("k"));
                    taker.release("k").unwrap();
                    return true;
                }
            }
            false
        });
    }
    let verdict = Verdict::read(record.path());
    assert!(verdict.violations.is_empty(), "{kind}: {:?}", verdict.violations);
    assert_eq!(verdict.acquisitions, 3, "{kind}");
    // The belief of the holder rests on beats from before the cut.
    assert!(granted[0] > cut_us, "{kind}");
    let waited_us = granted[0] - cut_us;
    assert!(waited_us >= BELIEF_US, "{kind}: granted after {waited_us} µs");
}

#[test]
fn restart_as_left() {
    ServerKind::default_set().into_iter().for_each(|kind| nobody_overlaps(kind, &Data::AsLeft));
}

#[test]
fn restart_without_data() {
    ServerKind::default_set().into_iter().for_each(|kind| nobody_overlaps(kind, &Data::None));
}

#[test]
fn restart_with_older_data() {
    ServerKind::default_set().into_iter().for_each(|kind| nobody_overlaps(kind, &Data::Older));
}

#[test]
fn restart_with_the_newest_data() {
    ServerKind::default_set().into_iter().for_each(|kind| nobody_overlaps(kind, &Data::Newest));
}

/// R6: a release during the guard only deletes; the waiter is granted when the guard ends.
#[test]
fn no_hand_off_during_the_guard() {
    for kind in ServerKind::default_set() {
        let mut server = started(kind);
        let options = Options::new(TAKER, &server.url());
        let (mut holder, mut waiter) = (options.start(), options.start());
        holder.acquire("k", "x", "lease=20000");
        waiter.tell("acquire k x");
        let snapshot = server.snapshot();
        server.kill9();
        server.restart(Restart::From(&snapshot));
        // Both come back by themselves; the first of them begins the epoch.
        let guard = || server.cmd(&["HGET", "lockwarden:meta", "guard"]).text();
        eventually(SOON, || guard().is_some_and(|text| text != "0"));
        let began_us = now_us();
        holder.release("k").unwrap();
        let (_, granted_us) = waiter.acquired("k");
        let waited_us = granted_us - began_us;
        assert!(waited_us > 1_500_000, "{kind}: handed on after {waited_us} µs of the guard");
        waiter.release("k").unwrap();
    }
}

/// R5: where nobody else can hold anything, there is no wait: a fresh server that has been up for
/// 4 s, and the same flushed.
#[test]
fn alone_on_a_server_there_is_no_wait() {
    for kind in ServerKind::default_set() {
        let server = Server::start(kind);
        let up = || server.info("server", "uptime_in_seconds").unwrap().parse::<i64>().unwrap();
        eventually(SOON, || up() >= 4);
        runtime().block_on(async {
            let warden = Warden::connect(&server.url()).await.unwrap();
            let once = async || warden.lock("x").no_wait().acquire().await;
            once().await.unwrap().release().await.unwrap();
            for command in [["FLUSHALL"], ["FLUSHDB"]] {
                server.cmd(&command);
                let guard = once().await.unwrap();
                guard.release().await.unwrap();
            }
        });
    }
}

/// R5: a holder that is the only one there says that it may hold something: the epoch that it begins after a
/// flush has its guard, and who comes then waits until the holder cannot believe any more.
#[test]
fn a_lone_holder_s_flush_means_the_guard() {
    for kind in ServerKind::default_set() {
        let server = Server::start(kind);
        let up = || server.info("server", "uptime_in_seconds").unwrap().parse::<i64>().unwrap();
        eventually(SOON, || up() >= 4);
        runtime().block_on(async {
            let a = Warden::connect(&server.url()).await.unwrap();
            let held = a.lock("x").no_wait().acquire().await.unwrap();
            server.cmd(&["FLUSHALL"]);
            eventually(SOON, || server.cmd(&["HEXISTS", META_KEY, "epoch"]).int() == Some(1));
            let b = Warden::connect(&server.url()).await.unwrap();
            let error = b.lock("x").no_wait().acquire().await.unwrap_err();
            assert!(matches!(error, Error::Guarded { .. }), "{kind}: {error}");
            held.lost().await;
            let next = b.lock("x").wait_for(Duration::from_secs(6)).acquire().await.unwrap();
            assert!(next.fence() > held.fence(), "G2");
            next.release().await.unwrap();
        });
    }
}

/// R5, R6: with another session connected, a flush begins the guard, and the caller is told so; so
/// does a server that has just started.
#[test]
fn with_others_a_flush_means_the_guard() {
    for kind in ServerKind::default_set() {
        let server = started(kind);
        runtime().block_on(async {
            let a = Warden::connect(&server.url()).await.unwrap();
            let b = Warden::connect(&server.url()).await.unwrap();
            let held = a.lock("x").acquire().await.unwrap();
            server.cmd(&["FLUSHALL"]);
            let error = b.lock("x").no_wait().acquire().await.unwrap_err();
            let Error::Guarded { left, .. } = &error else { panic!("{error}") };
            assert!(*left > Duration::from_millis(1_500), "{left:?}");
            assert!(error.to_string().contains("began anew"), "{error}");
            // C34: the holder is told, once, and soon; and it does not take the lock again.
            held.lost().await;
            assert!(!held.check());
            let next = b.lock("x").wait_for(Duration::from_secs(6)).acquire().await.unwrap();
            assert!(next.fence() > held.fence(), "G2: the clients know the fence");
            next.release().await.unwrap();
            assert!(held.release().await.is_err());
        });
        let fresh = Server::start(kind);
        runtime().block_on(async {
            let warden = Warden::connect(&fresh.url()).await.unwrap();
            let error = warden.lock("x").no_wait().acquire().await.unwrap_err();
            assert!(matches!(error, Error::Guarded { .. }), "{error}");
        });
    }
}
