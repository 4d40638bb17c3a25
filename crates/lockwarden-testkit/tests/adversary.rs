//! Histories that an adversarial reader found, each of which once broke a guarantee.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use lockwarden::{Error, Loss, Settings, State, StoreError, Waiting, Warden, blocking};
use lockwarden_testkit::{
    conformance::{until, waiters},
    proxy::{Connection, Cut, Direction, NewConnections, Proxy},
    raw::Value,
    servers::{Server, ServerKind},
};
use std::time::{Duration, Instant};

const MS: fn(u64) -> Duration = Duration::from_millis;

fn started() -> Server {
    let server = Server::start(ServerKind::any());
    server.without_guard();
    server
}

/// A server with a user who may not ask INFO, and so does not know the server's run (R5).
fn with_blind_user() -> (Server, Proxy, String) {
    let user = Server::builder(ServerKind::Redis70);
    let server = user.acl_user("app", "on >pw ~* &* +@all -info").start();
    server.without_guard();
    let proxy = Proxy::start(server.address()).unwrap();
    let url = format!("redis://app:pw@{}", proxy.address());
    (server, proxy, url)
}

async fn through(server: &Server, query: &str) -> (Warden, Proxy) {
    let proxy = Proxy::start(server.address()).unwrap();
    let url = format!("{}{query}", server.url_at(proxy.address()));
    (Warden::connect(&url).await.unwrap(), proxy)
}

/// Its link is closed, and it does not come back.
fn vanish(proxy: &Proxy) {
    proxy.new_connections(NewConnections::Refuse);
    proxy.cut(Cut::Reset);
}

/// G1: `extend` with a shorter lease is carried out, and its answer does not come.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g1_a_shorter_lease_without_its_answer() {
    let server = started();
    let (a, proxy) = through(&server, "").await;
    let b = Warden::connect(&server.url()).await.unwrap();
    let held = a.lock("x").acquire().await.unwrap();
    until("believed", || async { held.check() }).await;
    proxy.hold(Direction::ToClient);
    let extending = tokio::time::timeout(MS(100), held.extend(MS(500)));
    let lock = b.lock("x");
    let (_, next) = tokio::join!(extending, lock.acquire());
    let next = next.unwrap();
    assert!(next.check() && !held.check(), "two hold at once");
}

/// R5, G1: a caller whose subscription is gone takes another's for its own, and a flush would
/// begin an epoch without a guard.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r5_another_is_not_alone() {
    let server = started();
    let b = Warden::connect(&server.url()).await.unwrap();
    let held = b.lock("x").acquire().await.unwrap();
    let subscribed = || -> Vec<String> {
        let clients = server.cmd(&["CLIENT", "LIST"]).text().unwrap();
        let lines = clients.lines().filter(|line| line.contains("sub=2"));
        let id =
            |line: &str| Some(line.split_whitespace().next()?.trim_start_matches("id=").to_owned());
        lines.filter_map(id).collect()
    };
    let bs = subscribed();
    let (a, proxy) = through(&server, "?protocol=2").await;
    let up = || server.info("server", "uptime_in_seconds").unwrap().parse::<i64>().unwrap();
    until("up for long enough", || async { up() >= 5 }).await;
    let open = |subscribed: bool| {
        let wanted = |it: &Connection| it.is_open() && it.has_subscribed() == subscribed;
        proxy.connections().into_iter().find(wanted).unwrap()
    };
    let (main, ear) = (open(false), open(true));
    ear.hold(Direction::ToClient);
    main.hold(Direction::ToServer);
    let asking = tokio::spawn(async move { a.lock("y").no_wait().acquire().await });
    until("on its way", || async { main.waiting(Direction::ToServer) > 0 }).await;
    let id = subscribed().into_iter().find(|id| !bs.contains(id)).unwrap();
    server.cmd(&["CLIENT", "KILL", "ID", &id]);
    let common = "lockwarden:common:0:";
    let listening = || server.cmd(&["PUBSUB", "NUMSUB", common]).items()[1].int();
    until("only b listens", || async { listening() == Some(1) }).await;
    server.cmd(&["FLUSHALL"]);
    main.release(Direction::ToServer);
    until("a new epoch", || async {
        server.cmd(&["HGET", "lockwarden:meta", "guard"]).text().is_some()
    })
    .await;
    let c = Warden::connect(&server.url()).await.unwrap();
    let got = c.lock("x").no_wait().acquire().await;
    assert!(matches!(got, Err(Error::Guarded { .. })), "{got:?}, b's check {}", held.check());
    drop(asking);
}

/// R27: a lock without renewal that is handed over has the lease that it asked for.
#[tokio::test]
async fn r27_a_lock_without_renewal_is_handed_over_whole() {
    let server = started();
    let a = Warden::connect(&server.url()).await.unwrap();
    let b = Warden::connect(&server.url()).await.unwrap();
    let held = a.lock("x").acquire().await.unwrap();
    let lock = b.lock("x").lease(MS(20_000)).without_renewal();
    let waiting = tokio::spawn(async move { lock.acquire().await });
    until("queued", || async { waiters(&a, "x").await == 1 }).await;
    held.release().await.unwrap();
    let next = waiting.await.unwrap().unwrap();
    assert!(next.remaining() > MS(15_000), "{:?}", next.remaining());
}

/// What is dropped last is released, also where warden and thread go with it.
#[test]
fn dropping_the_blocking_warden_releases() {
    let server = started();
    for url in ["memory:", &server.url()] {
        for i in 0..20 {
            let name = format!("dropped-{i}");
            let warden = blocking::Warden::connect(url).unwrap();
            let guard = warden.lock(&name).acquire().unwrap();
            drop(guard);
            drop(warden);
            let warden = blocking::Warden::connect(url).unwrap();
            warden.lock(&name).no_wait().acquire().unwrap().release().unwrap();
        }
    }
}

/// R6: the server's clock is set back while a guard stands in meta: it is not armed anew for the
/// size of the step, and what is held is renewed on.
#[tokio::test]
async fn r6_a_guard_and_a_clock_that_is_set_back() {
    let server = Server::builder(ServerKind::any()).clock_shim().start();
    let warden = Warden::connect(&server.url()).await.unwrap();
    let held = warden.lock("held").lease(MS(3_000)).acquire().await.unwrap();
    server.step_clock(-3_600_000);
    let other = warden.lock("y").wait_for(MS(8_000)).acquire().await.unwrap();
    until("believed", || async { held.check() && other.check() }).await;
    assert_eq!(held.state(), State::Held);
}

/// R34: the clock is set back by days: whoever knows a fence still gets locks, and larger fences.
#[tokio::test]
async fn r34_a_known_fence_and_a_clock_that_is_set_back() {
    let server = Server::builder(ServerKind::any()).clock_shim().start();
    server.without_guard();
    let warden = Warden::connect(&server.url()).await.unwrap();
    let first = warden.lock("x").acquire().await.unwrap();
    let fence = first.fence();
    first.release().await.unwrap();
    server.step_clock(-2 * 24 * 3_600_000);
    let next = warden.lock("x").wait_for(MS(8_000)).acquire().await.unwrap();
    assert!(next.fence() > fence);
}

/// R12: one key that the user may not touch does not deny the others of its call.
#[tokio::test]
async fn r12_a_forbidden_key_among_others() {
    let rules = "on >pw ~lockwarden:* ~ok:* &lockwarden:* +@all";
    let server = Server::builder(ServerKind::Redis70).acl_user("app", rules).start();
    server.without_guard();
    let url = format!("redis://app:pw@{}", server.address());
    let warden = Warden::connect(&url).await.unwrap();
    let held = warden.lock("ok:a").acquire().await.unwrap();
    let (bad, good) = (warden.lock("bad").no_wait(), warden.lock("ok:b"));
    let (released, bad, good) = tokio::join!(held.release(), bad.acquire(), good.acquire());
    released.unwrap();
    assert!(matches!(bad, Err(Error::Store(StoreError::Denied { .. }))), "{bad:?}");
    good.unwrap().release().await.unwrap();
    assert_eq!(server.cmd(&["EXISTS", "ok:a"]).int(), Some(0));
}

/// G10: the password changes while someone waits: it is told, and does not wait for ever.
#[tokio::test]
async fn g10_refused_while_waiting() {
    let server = started();
    let warden = Warden::connect(&server.url()).await.unwrap();
    let mut raw = server.raw();
    raw.cmd(&["SET", "x", "foreign"]);
    let (report, told) = tokio::sync::watch::channel(Waiting::default());
    let lock = warden.lock("x").report_to(report);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    until("queued", || async { waiters(&warden, "x").await == 1 }).await;
    raw.cmd(&["CONFIG", "SET", "requirepass", "new"]);
    raw.cmd(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    raw.cmd(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    let error = waiting.await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Store(StoreError::Denied { .. })), "{error}");
    assert!(told.borrow().trouble.is_some());
}

/// R14: the record of a client that may not ask for the server's run carries it all the same, so
/// that a crash costs its grace and not its lease.
#[tokio::test]
async fn r14_the_record_of_a_blind_client() {
    let (server, proxy, url) = with_blind_user();
    let seeing = Settings::new().without_process_watch().connect(&server.url()).await.unwrap();
    let blind = Warden::connect(&url).await.unwrap();
    let _held = blind.lock("x").wait_for(MS(8_000)).acquire().await.unwrap();
    let run = server.info("server", "run_id").unwrap();
    let Value::Bulk(record) = server.cmd(&["GET", "x"]) else { panic!() };
    assert!(String::from_utf8_lossy(&record).contains(&run[..16]));
    vanish(&proxy);
    let began = Instant::now();
    seeing.lock("x").wait_for(MS(8_000)).acquire().await.unwrap();
    assert!(began.elapsed() < MS(4_500), "{:?}", began.elapsed());
}

/// R5: such a client counts nothing for W after each connect.
#[tokio::test]
async fn r5_a_blind_client_counts_nothing_for_w() {
    let (_server, proxy, url) = with_blind_user();
    let blind = Warden::connect(&url).await.unwrap();
    let held = blind.lock("x").wait_for(MS(8_000)).acquire().await.unwrap();
    proxy.half_open(NewConnections::Refuse);
    until("not believed", || async { !held.check() }).await;
    let links = proxy.accepted();
    // Cut first: what the old link held back, a beat of a second ago, would be believed when it is healed.
    proxy.cut(Cut::Reset);
    proxy.heal();
    until("a new link", || async { proxy.accepted() > links }).await;
    let began = Instant::now();
    until("believed again", || async { held.check() }).await;
    // It is from when the link is ready, a moment after it was accepted.
    assert!(began.elapsed() >= MS(2_900), "{:?}", began.elapsed());
}

/// G6: a revocation that was given up for want of a link is not made up for later.
#[tokio::test]
async fn g6_a_revocation_that_was_given_up() {
    let server = started();
    let (operator, proxy) = through(&server, "").await;
    let warden = Warden::connect(&server.url()).await.unwrap();
    let held = warden.lock("x").acquire().await.unwrap();
    vanish(&proxy);
    operator.revoke("x", held.token(), false).await.unwrap_err();
    proxy.heal();
    until("a link again", || async { operator.show("x").await.is_ok() }).await;
    assert!(held.check());
    assert_eq!(held.state(), State::Held);
}

/// C28, G8: someone puts a value of another type in the key's place.
#[tokio::test]
async fn c28_a_key_of_another_type_means_lost() {
    let server = started();
    let warden = Warden::connect(&server.url()).await.unwrap();
    let held = warden.lock("x").lease(MS(6_000)).acquire().await.unwrap();
    server.cmd(&["DEL", "x"]);
    server.cmd(&["LPUSH", "x", "1"]);
    let began = Instant::now();
    assert!(matches!(held.lost().await, Loss::NotHeld(_)));
    assert!(began.elapsed() < MS(3_000), "within a renewal: {:?}", began.elapsed());
    assert!(matches!(held.release().await, Err(Error::Lost { .. })));
    assert_eq!(server.cmd(&["LLEN", "x"]).int(), Some(1));
}

/// An abandoned warden whose store is away ends when there is nothing left to release.
#[tokio::test]
async fn an_abandoned_warden_ends() {
    let server = started();
    let (warden, proxy) = through(&server, "").await;
    let held = warden.lock("x").lease(MS(1_000)).acquire().await.unwrap();
    let metrics = tokio::runtime::Handle::current().metrics();
    vanish(&proxy);
    until("the link is down", || async { matches!(held.state(), State::AtRisk(_)) }).await;
    drop(held);
    drop(warden);
    until("its task has ended", || async { metrics.num_alive_tasks() == 0 }).await;
}
