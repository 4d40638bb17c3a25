//! The timelines behind the rules, each on real servers: what was tried once by hand and found to
//! go wrong without the rule.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use lockwarden::{Error, Loss, State, Warden};
use lockwarden_testkit::{
    conformance::{names, until, waiters},
    proxy::{Cut, Direction, NewConnections, Proxy},
    servers::{META_KEY, Server, ServerKind},
};
use std::{
    future::Future,
    time::{Duration, Instant},
};

const MS: fn(u64) -> Duration = Duration::from_millis;

fn started(kind: ServerKind) -> Server {
    let server = Server::start(kind);
    server.without_guard();
    server
}

/// Runs a timeline on every server, with one connection per session and with two where both are
/// spoken.
fn on_every_server<F: Future<Output = ()>>(timeline: impl Fn(Server, &'static str) -> F) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for kind in ServerKind::default_set() {
        runtime.block_on(timeline(started(kind), "?protocol=2"));
        if kind.has_resp3() {
            runtime.block_on(timeline(started(kind), "?protocol=3"));
        }
    }
}

async fn connect(server: &Server, protocol: &str) -> Warden {
    Warden::connect(&format!("{}{protocol}", server.url())).await.unwrap()
}

async fn connect_through(server: &Server, protocol: &str) -> (Warden, Proxy) {
    let proxy = Proxy::start(server.address()).unwrap();
    let url = format!("{}{protocol}", server.url_at(proxy.address()));
    (Warden::connect(&url).await.unwrap(), proxy)
}

/// R11, R19: the subscription is killed while the command connection lives: the link is mended,
/// and neither a lock nor a wake-up is lost.
#[test]
fn r11_subscription_killed_alone() {
    on_every_server(|server, protocol| async move {
        let (a, b) = (connect(&server, protocol).await, connect(&server, protocol).await);
        let held = a.lock("x").acquire().await.unwrap();
        let waiting = tokio::spawn({
            let b = b.clone();
            async move { b.lock("x").wait_for(MS(10_000)).acquire().await }
        });
        until("queued", || async { waiters(&a, "x").await == 1 }).await;
        server.cmd(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        // A question that was on its way is not answered.
        until("both are back", || async {
            let view = a.show("x").await.unwrap_or_default();
            view.queue.len() == 1 && view.queue[0].alive
        })
        .await;
        until("believed again", || async { held.check() }).await;
        let released = Instant::now();
        held.release().await.unwrap();
        let next = waiting.await.unwrap().unwrap();
        assert!(released.elapsed() < MS(1_500), "{:?}", released.elapsed());
        next.release().await.unwrap();
    });
}

/// G6, R16, C38: an acquire whose packets were held back lands after its caller has given up and
/// the connection is gone for the client. Whoever asks next has it disowned.
#[test]
fn r16_an_acquire_that_lands_after_its_cancel() {
    on_every_server(|server, protocol| async move {
        let (a, proxy) = connect_through(&server, protocol).await;
        let b = connect(&server, protocol).await;
        a.lock("warm").acquire().await.unwrap().release().await.unwrap();
        proxy.hold(Direction::ToServer);
        let gave_up = tokio::time::timeout(MS(50), a.lock("x").lease(MS(20_000)).acquire()).await;
        assert!(gave_up.is_err());
        proxy.release(Direction::ToServer);
        let began = Instant::now();
        let next = b.lock("x").wait_for(MS(10_000)).acquire().await.unwrap();
        assert!(began.elapsed() < MS(2_000), "{:?}", began.elapsed());
        next.release().await.unwrap();
        until("nothing is left", || async { names(&b).await.is_empty() }).await;
    });
}

/// R23: an owner that enters again while its grant is at risk, and loses it, waits no longer in all than it said.
#[test]
fn r23_what_is_lost_while_waiting_is_acquired_anew_in_one_wait() {
    on_every_server(|server, protocol| async move {
        let a = connect(&server, protocol).await;
        let brief = a.lock("x").owner("o").lease(MS(1_000)).without_renewal();
        let held = brief.acquire().await.unwrap();
        // A new epoch: nothing confirms the old grant, and for W there is no other.
        server.cmd(&["DEL", META_KEY]);
        a.show("x").await.unwrap();
        until("at risk", || async { !held.check() }).await;
        assert!(matches!(held.state(), State::AtRisk(_)), "{:?}", held.state());
        let began = Instant::now();
        let error = brief.wait_for(MS(1_500)).acquire().await.unwrap_err();
        let took = began.elapsed();
        assert!(matches!(held.state(), State::Lost(Loss::LeaseEnded)), "{:?}", held.state());
        let Error::TimedOut { waited, told: Some(_), .. } = error else { panic!("{error}") };
        assert!(waited >= MS(1_499) && took < MS(2_000), "{waited:?} of {took:?}");
    });
}

/// G6: the reply to an acquire is cut off. The retry gets the same grant; and if the caller gives
/// up instead, the lock is free afterwards.
#[test]
fn g6_the_reply_is_cut_off() {
    on_every_server(|server, protocol| async move {
        let b = connect(&server, protocol).await;
        for give_up in [false, true] {
            let (a, proxy) = connect_through(&server, protocol).await;
            a.lock("warm").acquire().await.unwrap().release().await.unwrap();
            proxy.swallow(Direction::ToClient);
            let lock = a.lock("x").lease(MS(20_000));
            let acquiring = tokio::spawn(async move { lock.acquire().await });
            until("taken", || async { b.show("x").await.unwrap().holder.is_some() }).await;
            let before = b.show("x").await.unwrap().holder.unwrap();
            if give_up {
                acquiring.abort();
                proxy.heal();
                proxy.cut(Cut::Reset);
                let next = b.lock("x").wait_for(MS(10_000)).acquire().await.unwrap();
                next.release().await.unwrap();
            } else {
                proxy.heal();
                proxy.cut(Cut::Reset);
                let guard = acquiring.await.unwrap().unwrap();
                assert_eq!(*guard.token(), before.token);
                assert_eq!(guard.fence(), before.record.unwrap().fence);
                assert!(guard.check());
                guard.release().await.unwrap();
            }
            until("nothing is left", || async { names(&b).await.is_empty() }).await;
        }
    });
}

/// C04, R31: the reply to a release is cut off; sent again it finds nothing, and is still a release.
#[test]
fn r31_the_reply_to_a_release_is_cut_off() {
    on_every_server(|server, protocol| async move {
        let (a, proxy) = connect_through(&server, protocol).await;
        let b = connect(&server, protocol).await;
        let held = a.lock("x").acquire().await.unwrap();
        assert!(held.check());
        proxy.swallow(Direction::ToClient);
        let releasing = tokio::spawn(held.release());
        until("released", || async { b.show("x").await.unwrap().holder.is_none() }).await;
        proxy.heal();
        proxy.cut(Cut::Reset);
        releasing.await.unwrap().unwrap();
    });
}

/// R13: a bystander that listens to everything keeps nobody alive.
#[test]
fn r13_a_bystander_listens_to_all_patterns() {
    on_every_server(|server, protocol| async move {
        let mut bystander = server.raw();
        bystander.cmd(&["PSUBSCRIBE", "*"]);
        let b = connect(&server, protocol).await;
        let (a, proxy) = connect_through(&server, protocol).await;
        let held = a.lock("x").lease(MS(60_000)).acquire().await.unwrap();
        proxy.new_connections(NewConnections::Refuse);
        proxy.cut(Cut::Reset);
        let began = Instant::now();
        let next = b.lock("x").wait_for(MS(10_000)).acquire().await.unwrap();
        let took = began.elapsed();
        assert!(took >= MS(2_900) && took < MS(4_500), "grace, and no more: {took:?}");
        assert!(!held.check());
        next.release().await.unwrap();
    });
}

/// R26: a dead ticket in front of a caller that does not wait.
#[test]
fn r26_a_dead_ticket_is_in_nobodys_way() {
    on_every_server(|server, protocol| async move {
        let b = connect(&server, protocol).await;
        let (a, proxy) = connect_through(&server, protocol).await;
        let mut raw = server.raw();
        raw.cmd(&["SET", "x", "foreign"]);
        let waiting = tokio::spawn(async move { a.lock("x").acquire().await });
        until("queued", || async { waiters(&b, "x").await == 1 }).await;
        proxy.new_connections(NewConnections::Refuse);
        proxy.cut(Cut::Reset);
        until("dead", || async { !b.show("x").await.unwrap().queue[0].alive }).await;
        raw.cmd(&["DEL", "x"]);
        let guard = b.lock("x").no_wait().acquire().await.unwrap();
        guard.release().await.unwrap();
        waiting.abort();
    });
}

/// C16, C20, C28: a foreign client deletes the key, or overwrites it: the holder is told within a
/// renewal, does not put it back, and hurts nobody.
#[test]
fn c16_a_foreign_client_deletes_or_overwrites_the_key() {
    on_every_server(|server, protocol| async move {
        let a = connect(&server, protocol).await;
        let mut raw = server.raw();
        let held = a.lock("x").lease(MS(1_500)).acquire().await.unwrap();
        raw.cmd(&["DEL", "x"]);
        assert!(matches!(held.lost().await, Loss::NotHeld(_)));
        assert!(!held.check());
        assert!(matches!(held.release().await, Err(Error::Lost { .. })));
        assert_eq!(raw.cmd(&["EXISTS", "x"]).int(), Some(0));

        let held = a.lock("x").lease(MS(1_500)).acquire().await.unwrap();
        raw.cmd(&["SET", "x", "mine now", "PX", "20000"]);
        assert!(matches!(held.lost().await, Loss::NotHeld(_)));
        assert!(matches!(held.release().await, Err(Error::Lost { .. })));
        assert_eq!(raw.cmd(&["GET", "x"]).text().as_deref(), Some("mine now"));
        assert!(raw.cmd(&["PTTL", "x"]).int().unwrap() > 15_000);
        let busy = a.lock("x").no_wait().acquire().await.unwrap_err();
        assert!(busy.to_string().contains("another kind of client"), "{busy}");
    });
}

/// R15: a foreign client takes the expiry away; the next refused acquire puts the lease back.
#[test]
fn r15_an_expiry_that_was_taken_away() {
    on_every_server(|server, protocol| async move {
        let (a, b) = (connect(&server, protocol).await, connect(&server, protocol).await);
        let _held = a.lock("x").lease(MS(20_000)).acquire().await.unwrap();
        let mut raw = server.raw();
        raw.cmd(&["PERSIST", "x"]);
        b.lock("x").no_wait().acquire().await.unwrap_err();
        let ttl_ms = raw.cmd(&["PTTL", "x"]).int().unwrap();
        assert!((15_000..=20_000).contains(&ttl_ms), "{ttl_ms}");
    });
}

/// R17: a foreign lock ends without a word, with and without an expiry.
#[test]
fn r17_foreign_locks_are_looked_at_again() {
    on_every_server(|server, protocol| async move {
        let a = connect(&server, protocol).await;
        let mut raw = server.raw();
        raw.cmd(&["SET", "x", "foreign", "PX", "700"]);
        let began = Instant::now();
        a.lock("x").wait_for(MS(5_000)).acquire().await.unwrap().release().await.unwrap();
        let took = began.elapsed();
        assert!(took >= MS(600) && took < MS(1_300), "C48: {took:?}");
        raw.cmd(&["SET", "x", "for ever"]);
        let waiting = tokio::spawn(async move { a.lock("x").wait_for(MS(9_000)).acquire().await });
        tokio::time::sleep(MS(300)).await;
        raw.cmd(&["DEL", "x"]);
        let deleted = Instant::now();
        waiting.await.unwrap().unwrap().release().await.unwrap();
        assert!(deleted.elapsed() < MS(1_500), "{:?}", deleted.elapsed());
    });
}

/// C60: the server's clock jumps. Backwards, locks live longer and fences still grow; forwards,
/// they end, the holder is told, and there is no silent double hold after that.
#[test]
fn c60_the_servers_clock_is_stepped() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for kind in ServerKind::default_set() {
        let server = Server::builder(kind).clock_shim().start();
        server.without_guard();
        runtime.block_on(async {
            let (a, b) = (connect(&server, "").await, connect(&server, "").await);
            let held = a.lock("x").lease(MS(10_000)).acquire().await.unwrap();
            server.step_clock(-3_600_000);
            until("believed", || async { held.check() }).await;
            b.lock("x").no_wait().acquire().await.unwrap_err();
            let fence = held.fence();
            held.release().await.unwrap();
            let held = b.lock("x").lease(MS(10_000)).acquire().await.unwrap();
            assert!(held.fence() > fence, "G2 while the clock is behind the last fence");
            server.step_clock(3_600_000);
            held.lost().await;
            assert!(!held.check());
            let next = a.lock("x").wait_for(MS(5_000)).acquire().await.unwrap();
            assert!(next.fence() > held.fence());
            assert!(held.release().await.is_err());
            assert!(next.check());
            next.release().await.unwrap();
        });
    }
}

/// C17, C67: the store is away for a while, shorter than the lease: at risk, then held again, with
/// the same token; nobody is told that it was lost.
#[test]
fn c17_an_outage_shorter_than_the_lease() {
    on_every_server(|server, protocol| async move {
        let (a, proxy) = connect_through(&server, protocol).await;
        let held = a.lock("x").lease(MS(10_000)).acquire().await.unwrap();
        let token = held.token().clone();
        proxy.half_open(NewConnections::Refuse);
        until("at risk", || async { matches!(held.state(), State::AtRisk(_)) }).await;
        until("not believed for want of a beat", || async { !held.check() }).await;
        assert!(held.remaining() > Duration::ZERO);
        proxy.heal();
        proxy.cut(Cut::Reset);
        until("held again", || async { held.check() }).await;
        assert_eq!(held.state(), State::Held);
        assert_eq!(*held.token(), token);
        held.release().await.unwrap();
    });
}

/// C16, G8: cut off for longer than the lease: lost, no later than the lease allows.
#[test]
fn c16_an_outage_longer_than_the_lease() {
    on_every_server(|server, protocol| async move {
        let (a, proxy) = connect_through(&server, protocol).await;
        let b = connect(&server, protocol).await;
        let held = a.lock("x").lease(MS(4_000)).acquire().await.unwrap();
        proxy.half_open(NewConnections::Refuse);
        let began = Instant::now();
        assert_eq!(held.lost().await, Loss::LeaseEnded);
        // The event is due 50 ms before the lease ends; a loaded machine may tell it late.
        assert!(began.elapsed() <= MS(4_500), "{:?}", began.elapsed());
        assert!(!held.check());
        let next = b.lock("x").wait_for(MS(6_000)).acquire().await.unwrap();
        proxy.heal();
        proxy.cut(Cut::Reset);
        assert!(held.release().await.is_err());
        assert!(next.check());
        next.release().await.unwrap();
    });
}
