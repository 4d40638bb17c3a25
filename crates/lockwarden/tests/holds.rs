//! Holds whose commands, answers or callers are lost on the way, and servers that forget what became of them.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use lockwarden::{Effect, HandOver, HoldState, Mode, State, Warden};
use lockwarden_testkit::{
    proxy::{Cut, Direction, NewConnections, Proxy},
    servers::{Restart, Server, ServerKind},
};
use std::time::{Duration, Instant};

const MS: fn(u64) -> Duration = Duration::from_millis;

fn server() -> Server {
    let kind = ServerKind::default_set().into_iter().last().unwrap();
    let server = Server::start(kind);
    server.without_guard();
    server
}

async fn until<F: Future<Output = bool>>(mut condition: impl FnMut() -> F) {
    let began = Instant::now();
    while !condition().await {
        assert!(began.elapsed() < MS(20_000), "not within 20 s");
        tokio::time::sleep(MS(10)).await;
    }
}

/// Whose link can be held back and cut.
async fn through_proxy(server: &Server) -> (Proxy, Warden) {
    let proxy = Proxy::start(server.address()).unwrap();
    let warden = Warden::connect(&server.url_at(proxy.address())).await.unwrap();
    (proxy, warden)
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Runtime::new().unwrap()
}

/// G1 through a restart with older data.
#[test]
fn g1_an_old_snapshot_has_no_reader_beside_the_writer() {
    let mut server = server();
    let rt = runtime();
    let url = server.url();
    let (a, b) = rt.block_on(async {
        (Warden::connect(&url).await.unwrap(), Warden::connect(&url).await.unwrap())
    });
    let mut writer = rt.block_on(a.lock("x").shared().acquire()).unwrap();
    let snapshot = server.snapshot();
    rt.block_on(writer.try_upgrade()).unwrap();
    assert!(writer.check());
    server.kill9();
    server.restart(Restart::From(&snapshot));
    rt.block_on(async {
        let reader = b.lock("x").shared().wait_for(MS(15_000)).acquire().await;
        let Ok(reader) = reader else { panic!("fine: {:?}", reader.err()) };
        let began = Instant::now();
        let mut both = 0;
        while began.elapsed() < MS(3_000) {
            if writer.check() && reader.check() {
                both += 1;
            }
            tokio::time::sleep(MS(5)).await;
        }
        assert_eq!(both, 0, "the writer ({:?}) and a reader both believed", writer.state());
    });
}

/// An acquire whose future is dropped when the grant is in its hands.
#[test]
fn r33_an_acquire_that_is_dropped_has_no_minimum() {
    runtime().block_on(async {
        let server = server();
        let a = Warden::connect(&server.url()).await.unwrap();
        {
            let nightly = a.lock("nightly").hold_at_least(MS(3_600_000));
            let acquire = nightly.acquire();
            tokio::pin!(acquire);
            tokio::select! { biased; _ = &mut acquire => panic!("at once"), () = std::future::ready(()) => {} }
            until(|| async { a.show("nightly").await.unwrap().holder.is_some() }).await;
        }
        // Nobody has ever had it.
        until(|| async { a.show("nightly").await.unwrap().holder.is_none() }).await;
    });
}

/// Hand_over whose future is dropped.
#[test]
fn a_hand_over_that_is_dropped_is_taken_back() {
    runtime().block_on(async {
        let server = server();
        let a = Warden::connect(&server.url()).await.unwrap();
        let guard = a.lock("x3").acquire().await.unwrap();
        {
            let giving = guard.hand_over(MS(3_600_000));
            tokio::pin!(giving);
            tokio::select! { biased; _ = &mut giving => panic!("at once"), () = std::future::ready(()) => {} }
        }
        // Nobody can adopt it.
        until(|| async { a.show("x3").await.unwrap().holder.is_none() }).await;
    });
}

/// A lock that is lost by its deadline, and given up before the driver has looked: the delay.
#[test]
fn r43_a_late_release_waits_for_the_delay() {
    let rt = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    rt.block_on(async {
        let a = Warden::connect("memory:").await.unwrap();
        let guard = a.lock("x5").lease(MS(200)).lock_delay(MS(10_000)).acquire().await.unwrap();
        std::thread::sleep(MS(400));
        let state = guard.state();
        let released = guard.release().await;
        let holder = a.show("x5").await.unwrap().holder;
        assert!(holder.is_some(), "{state:?}, {released:?}, and no delay");
    });
}

/// The store says that it is lost, and the guard goes on believing.
#[test]
fn g8_a_conversion_that_finds_nothing_is_a_loss() {
    let server = server();
    runtime().block_on(async {
        let a = Warden::connect(&server.url()).await.unwrap();
        let mut guard = a.lock("x").acquire().await.unwrap();
        server.cmd(&["DEL", "x"]);
        let error = guard.downgrade().await.unwrap_err();
        assert!(!guard.check(), "{error}; and state {:?}, check {}", guard.state(), guard.check());
    });
}

/// A hand-over whose command never arrived, and whose lock was lost: Ok.
#[test]
fn a_hand_over_after_a_loss_is_none() {
    let server = server();
    runtime().block_on(async {
        let (proxy, a) = through_proxy(&server).await;
        let b = Warden::connect(&server.url()).await.unwrap();
        let guard = a.lock("x").acquire().await.unwrap();
        let token = guard.token().clone();
        proxy.swallow(Direction::ToServer);
        let giving = tokio::spawn(guard.hand_over(MS(60_000)));
        tokio::time::sleep(MS(300)).await;
        b.revoke("x", &token, false).await.unwrap();
        let other = b.lock("x").no_wait().acquire().await.unwrap();
        proxy.heal();
        proxy.cut(Cut::Reset);
        let given = giving.await.unwrap();
        assert!(given.is_err(), "{given:?}, while {other:?} is another's ({})", other.check());
    });
}

/// A failed hand-over of several.
#[test]
fn of_several_that_cannot_be_handed_over_none_stays() {
    let server = server();
    runtime().block_on(async {
        let (a, b) = (
            Warden::connect(&server.url()).await.unwrap(),
            Warden::connect(&server.url()).await.unwrap(),
        );
        let guard = a.lock_all(["x", "y"]).acquire().await.unwrap();
        server.cmd(&["DEL", "x"]);
        assert_eq!(guard.hand_over(MS(60_000)).await.unwrap_err().code(), "lost");
        until(|| async { b.show("y").await.unwrap().holder.is_none() }).await;
    });
}

/// Hand-over outcome unknown until the lease is over: told Lost, effect NotApplied, lock stuck for keep.
#[test]
fn a_hand_over_without_an_answer_is_taken_back() {
    let server = server();
    runtime().block_on(async {
        let (proxy, a) = through_proxy(&server).await;
        let b = Warden::connect(&server.url()).await.unwrap();
        let guard = a.lock("x").lease(MS(3_000)).acquire().await.unwrap();
        proxy.half_open(NewConnections::Refuse);
        proxy.heal();
        proxy.swallow(Direction::ToClient);
        let error = guard.hand_over(MS(3_600_000)).await.unwrap_err();
        assert_eq!(error.effect(), Effect::Unknown, "{error}");
        proxy.cut(Cut::Reset);
        proxy.heal();
        until(|| async { b.show("x").await.unwrap().holder.is_none() }).await;
    });
}

/// R16/R33: an acquire that lands after its cancel, with a minimum.
#[test]
fn r16_what_nobody_wants_has_no_minimum() {
    let server = server();
    runtime().block_on(async {
        let (proxy, a) = through_proxy(&server).await;
        let b = Warden::connect(&server.url()).await.unwrap();
        a.lock("warm").acquire().await.unwrap().release().await.unwrap();
        // It lands when its caller has given up, and the connection is gone for the client.
        proxy.hold(Direction::ToServer);
        let nightly = a.lock("x").hold_at_least(MS(3_600_000));
        assert!(tokio::time::timeout(MS(50), nightly.acquire()).await.is_err());
        proxy.release(Direction::ToServer);
        until(|| async { b.lock("x").no_wait().acquire().await.is_ok() }).await;
    });
}

/// G1, R16: an upgrade that was carried out, though its caller never heard of it, is not given back while the guard is
/// believed in as a reader's; then it is, and nothing stays.
#[test]
fn g1_an_upgrade_that_is_dropped_is_kept_while_it_is_believed_in() {
    let server = server();
    runtime().block_on(async {
        let (proxy, a) = through_proxy(&server).await;
        let b = Warden::connect(&server.url()).await.unwrap();
        let mut guard = a.lock("x").shared().lease(MS(3_000)).acquire().await.unwrap();
        proxy.hold(Direction::ToClient);
        let upgraded = || async {
            let holder = b.show("x").await.unwrap().holder.unwrap();
            holder.record.unwrap().mode == Mode::Exclusive
        };
        tokio::select! {
            biased;
            _ = guard.try_upgrade() => panic!("its answer is held back"),
            () = until(upgraded) => {}
        }
        proxy.release(Direction::ToClient);
        until(|| async {
            let writes = b.lock("x").no_wait().acquire().await.is_ok();
            assert!(!(writes && guard.check()), "both believe");
            writes
        })
        .await;
        assert_eq!(guard.release().await.unwrap_err().code(), "lost");
    });
}

/// G8: a renewal that crosses an upgrade, with the token from before, is no loss.
#[test]
fn g8_a_renewal_that_crosses_an_upgrade_is_no_loss() {
    let server = server();
    runtime().block_on(async {
        let (proxy, a) = through_proxy(&server).await;
        let mut guard = a.lock("x").shared().lease(MS(2_000)).acquire().await.unwrap();
        proxy.hold(Direction::ToServer);
        let upgrading = tokio::spawn(async move {
            guard.try_upgrade().await.unwrap();
            guard
        });
        // Longer than a third of the lease: behind the upgrade stands a renewal.
        tokio::time::sleep(MS(900)).await;
        proxy.release(Direction::ToServer);
        let guard = upgrading.await.unwrap();
        let until = Instant::now() + MS(2_500);
        while Instant::now() < until {
            assert!(!matches!(guard.state(), State::Lost(_)), "{:?}", guard.state());
            tokio::time::sleep(MS(5)).await;
        }
        assert!(guard.check(), "renewed by its new token");
        guard.release().await.unwrap();
    });
}

fn is_send<T: Send>(_: &T) {}

#[test]
fn futures_are_send() {
    runtime().block_on(async {
        let a = Warden::connect("memory:").await.unwrap();
        let mut guard = a.lock("x").acquire().await.unwrap();
        {
            let f = guard.downgrade();
            is_send(&f);
        }
        {
            let f = guard.try_upgrade();
            is_send(&f);
        }
        let f = guard.hand_over(MS(1_000));
        is_send(&f);
    });
}

/// A hostile text: how long is the error?
#[test]
fn a_hostile_text_is_told_in_short() {
    let text = format!(r#"{{"v":1,"token":"t","locks":[{{"{}":1}}]}}"#, "x".repeat(5_000_000));
    let error = text.parse::<HandOver>().unwrap_err().to_string();
    assert!(error.len() < 10_000, "an error of {} bytes", error.len());
}

/// An adoption that was begun, and given up before it was sent: in the giver's warden, and in another.
#[test]
fn an_adoption_that_is_dropped_takes_nothing() {
    // The driver does not run before the future is gone.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let server = server();
        let url = server.url();
        let (a, b) = (Warden::connect(&url).await.unwrap(), Warden::connect(&url).await.unwrap());
        let given = a.lock("x").acquire().await.unwrap().hand_over(MS(60_000)).await.unwrap();
        for warden in [&b, &a] {
            {
                let lock = warden.adopt(&given);
                let adopting = lock.acquire();
                tokio::pin!(adopting);
                tokio::select! {
                    biased;
                    _ = &mut adopting => panic!("at once"),
                    () = std::future::ready(()) => {}
                }
            }
            // Behind whatever was sent for it.
            let holder = warden.show("x").await.unwrap().holder.unwrap();
            assert_eq!(holder.record.unwrap().state, HoldState::HandedOver);
        }
        assert!(b.adopt(&given).acquire().await.is_ok());
    });
}

/// C36: out of memory nothing is adopted, and it stays handed over.
#[test]
fn c36_an_adoption_without_memory_takes_nothing() {
    let kind = ServerKind::default_set().into_iter().last().unwrap();
    let server = Server::builder(kind).config("maxmemory-policy", "noeviction").start();
    server.without_guard();
    runtime().block_on(async {
        let url = server.url();
        let a = Warden::connect(&url).await.unwrap();
        let given = a.lock("x").acquire().await.unwrap().hand_over(MS(60_000)).await.unwrap();
        server.cmd(&["CONFIG", "SET", "maxmemory", "1"]);
        let error = a.adopt(&given).acquire().await.unwrap_err();
        server.cmd(&["CONFIG", "SET", "maxmemory", "0"]);
        let holder = a.show("x").await.unwrap().holder.and_then(|it| it.record).map(|it| it.state);
        assert!(holder.is_some(), "{error} ({:?}), and the lock is free", error.effect());
    });
}

/// Whoever looks at a crowd.
#[test]
fn ten_thousand_readers_are_shown() {
    let server = server();
    runtime().block_on(async {
        let a = Warden::connect(&server.url()).await.unwrap();
        let mut guards = Vec::new();
        for count in [7_000, 9_000] {
            while guards.len() < count {
                let lock = a.lock("x").shared().lease(MS(600_000));
                let some: Vec<_> = (0..500)
                    .map(|_| {
                        let lock = lock.clone();
                        tokio::spawn(async move { lock.acquire().await })
                    })
                    .collect();
                for one in some {
                    guards.push(one.await.unwrap().unwrap());
                }
            }
            let shown = a.show("x").await;
            assert!(
                shown.is_ok(),
                "of {count} readers: {:?}",
                shown.err().map(|it| it.to_string())
            );
        }
    });
}
