//! Time: limits of waits, wall clocks that are set, runtimes that stand still.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod support;

use lockwarden::{Error, Loss, State, Warden, blocking};
use lockwarden_testkit::{
    clock::ClockShim,
    conformance::{until, waiters},
    process::eventually,
    proxy::{Cut, NewConnections, Proxy},
    servers::ServerKind,
    site::Site,
    taker::{Options, SOON, Taker},
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use support::{MS, TAKER, at_once_on_every_site, every_site, join, on_every_site, size, started};

const HOUR_MS: i64 = 3_600_000;

fn await_queue(observer: &blocking::Warden, name: &str, length: usize) {
    eventually(SOON, || observer.show(name).unwrap().queue.len() == length);
}

/// What the taker's wall clock shows, against ours, in ms.
fn offset_ms(taker: &mut Taker) -> i64 {
    taker.tell("clock k");
    let shown: i64 = taker.hear("clock k")[2].parse().unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    shown - i64::try_from(now.as_millis()).unwrap()
}

/// C24: a wait ends in time; who waits for ever outlasts leases that are renewed.
#[test]
fn c24_limits_are_kept() {
    at_once_on_every_site(|site| async move {
        let (a, b) = (join(&site).await, join(&site).await);
        let held = a.lock("x").lease(MS(1_000)).acquire().await.unwrap();
        let lock = b.lock("x");
        let for_ever = tokio::spawn({
            let lock = lock.clone();
            async move { lock.acquire().await }
        });
        until("queued", || async { waiters(&a, "x").await == 1 }).await;
        // Set when the lock is described, and again: the last one counts.
        for lock in [lock.clone().wait_for(MS(700)), lock.wait_for(MS(9_000)).wait_for(MS(700))] {
            let began = Instant::now();
            let error = lock.acquire().await.unwrap_err();
            let took = began.elapsed();
            assert!(matches!(error, Error::TimedOut { .. }), "{error}");
            assert!((MS(700)..MS(950)).contains(&took), "{took:?}");
        }
        tokio::time::sleep(MS(size(4_000, 1_500))).await;
        assert!(!for_ever.is_finished() && held.check());
        held.release().await.unwrap();
        let released = Instant::now();
        for_ever.await.unwrap().unwrap().release().await.unwrap();
        assert!(released.elapsed() < MS(300), "{:?}", released.elapsed());
    });
}

/// C24: the wall clock of the client is set, while it waits.
#[test]
fn c24_the_wall_clock_is_set_during_a_wait() {
    for site in every_site() {
        let dir = tempfile::tempdir().unwrap();
        let clock = ClockShim::new(dir.path()).unwrap();
        let observer = blocking::Warden::connect(site.url()).unwrap();
        let _held = observer.lock("x").acquire().unwrap();
        let mut taker = Options::new(TAKER, site.url()).clock(&clock).start();
        for step_ms in [HOUR_MS, -2 * HOUR_MS] {
            let began = Instant::now();
            taker.tell("acquire k x wait=1500");
            await_queue(&observer, "x", 1);
            clock.step(step_ms);
            assert_eq!(taker.hear("failed k")[2], "timed_out");
            let took = began.elapsed();
            assert!((MS(1_500)..MS(1_900)).contains(&took), "{took:?}");
        }
        let offset_ms = offset_ms(&mut taker);
        assert!((offset_ms + HOUR_MS).abs() < 10_000, "the clock was really set: {offset_ms}");
    }
}

/// C60: clients whose wall clocks are four hours apart exclude each other, wait as long as they are
/// told, and see the same ages; and jumps of an hour change nothing for holder or waiter.
#[test]
fn c60_clients_wall_clocks_do_not_matter() {
    std::thread::scope(|scope| {
        for site in every_site() {
            scope.spawn(move || wall_clocks_do_not_matter(&site));
        }
    });
}

fn wall_clocks_do_not_matter(site: &Site) {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let clocks = dirs.each_ref().map(|dir| ClockShim::new(dir.path()).unwrap());
    clocks[0].step(2 * HOUR_MS);
    clocks[1].step(-2 * HOUR_MS);
    let options = Options::new(TAKER, site.url());
    let mut a = options.clone().label("a").clock(&clocks[0]).start();
    let mut b = options.label("b").clock(&clocks[1]).start();
    assert!(offset_ms(&mut a) - offset_ms(&mut b) > 3 * HOUR_MS);
    let observer = blocking::Warden::connect(site.url()).unwrap();
    let (mut fence, _) = a.acquire("k", "x", "lease=1000");
    b.tell("acquire no x wait=no");
    assert_eq!(b.hear("failed no")[2], "busy");
    b.tell("acquire k x wait=60000");
    await_queue(&observer, "x", 1);
    let began = Instant::now();
    for step_ms in [HOUR_MS, -2 * HOUR_MS, HOUR_MS] {
        clocks[0].step(step_ms);
        clocks[1].step(-step_ms);
        // More than a lease after each jump: it must be renewed meanwhile.
        let jumped = Instant::now();
        while jumped.elapsed() < MS(1_200) {
            assert!(a.check("k"), "not renewed");
            let view = observer.show("x").unwrap();
            let holder = view.holder.unwrap();
            assert!(holder.ttl_ms.unwrap() <= 1_000);
            assert!(holder.record.unwrap().held_ms < 60_000);
            assert!(view.queue[0].waited_ms < 60_000 && view.queue[0].left_ms.unwrap() > 30_000);
            std::thread::sleep(MS(50));
        }
    }
    assert!(began.elapsed() > MS(3_000));
    assert!(b.hear_within("acquired k", MS(1)).is_none());
    a.release("k").unwrap();
    let (next, _) = b.acquired("k");
    assert!(next > fence);
    fence = next;
    b.release("k").unwrap();
    assert!(a.acquire("k", "x", "").0 > fence, "fences do not follow clients' clocks");
}

/// C15: code that blocks its runtime stops the renewal. `check()` says so in time: it is never true
/// while another holds the lock. With a lease that outlasts the blocking the lock is held again.
#[test]
fn c15_a_runtime_that_is_blocked() {
    std::thread::scope(|scope| {
        for site in every_site() {
            for lease_ms in [2_000, 30_000] {
                let site = Arc::new(site_of(&site));
                scope.spawn(move || a_blocked_runtime(&site, lease_ms));
            }
        }
    });
}

/// Another store of the same kind.
fn site_of(site: &Site) -> Site {
    site.server.as_ref().map_or_else(Site::file, |server| Site::redis(server.kind()))
}

fn a_blocked_runtime(site: &Site, lease_ms: u64) {
    let blocked = MS(size(6_000, 4_500));
    let loops = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let guard = loops.block_on(async {
        let warden = Warden::connect(site.url()).await.unwrap();
        Arc::new(warden.lock("x").lease(MS(lease_ms)).acquire().await.unwrap())
    });
    assert!(guard.check());
    let (done, last_true_us) = (AtomicBool::new(false), AtomicU64::new(0));
    let began = Instant::now();
    std::thread::scope(|scope| {
        // The check needs no runtime: anyone may ask, at any time.
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let before_us = began.elapsed().as_micros() as u64;
                if guard.check() {
                    last_true_us.store(before_us, Ordering::Relaxed);
                }
                std::thread::sleep(MS(2));
            }
        });
        let other = scope.spawn(|| {
            let warden = blocking::Warden::connect(site.url()).unwrap();
            while began.elapsed() < blocked - MS(200) {
                match warden.lock("x").no_wait().acquire() {
                    Ok(guard) => {
                        let granted_us = began.elapsed().as_micros() as u64;
                        // Kept beyond the end of the blocking.
                        std::thread::sleep((blocked + MS(300)).saturating_sub(began.elapsed()));
                        assert!(guard.check());
                        guard.release().unwrap();
                        return Some(granted_us);
                    }
                    Err(error) => assert_eq!(error.code(), "busy", "{error}"),
                }
                std::thread::sleep(MS(50));
            }
            None
        });
        loops.block_on(async { std::thread::sleep(blocked) });
        let end = loops.block_on(async {
            until("held or lost", || async {
                matches!(guard.state(), State::Lost(_)) || guard.check()
            })
            .await;
            guard.state()
        });
        let granted_us = other.join().unwrap();
        done.store(true, Ordering::Relaxed);
        if lease_ms < 4_000 {
            let granted_us = granted_us.unwrap();
            assert!(last_true_us.load(Ordering::Relaxed) < granted_us, "G1");
            assert!(matches!(end, State::Lost(Loss::LeaseEnded | Loss::NotHeld(_))), "{end:?}");
        } else {
            assert!(granted_us.is_none(), "the lease is not over");
            assert_eq!(end, State::Held);
        }
    });
    drop(guard);
}

/// C15: the blocking interface renews, whatever the caller's thread does.
#[test]
fn c15_the_blocking_interface_renews() {
    std::thread::scope(|scope| {
        for site in every_site() {
            scope.spawn(move || {
                let a = blocking::Warden::connect(site.url()).unwrap();
                let b = blocking::Warden::connect(site.url()).unwrap();
                let guard = a.lock("x").lease(MS(1_000)).acquire().unwrap();
                let began = Instant::now();
                let mut asked = Instant::now();
                // Busy, without ever giving the processor away; now and then another asks.
                while began.elapsed() < MS(size(6_000, 3_000)) {
                    if asked.elapsed() > MS(200) {
                        assert!(guard.check(), "{:?}", guard.state());
                        assert!(b.lock("x").no_wait().acquire().is_err());
                        asked = Instant::now();
                    }
                    std::hint::spin_loop();
                }
                assert!(guard.check());
                guard.release().unwrap();
            });
        }
    });
}

/// The longest pause of a task that wants to run every 10 ms, until told to stop.
async fn ticker(stop: Arc<AtomicBool>) -> Duration {
    let (mut longest, mut last) = (Duration::ZERO, Instant::now());
    while !stop.load(Ordering::Relaxed) {
        tokio::time::sleep(MS(10)).await;
        longest = longest.max(last.elapsed());
        last = Instant::now();
    }
    longest
}

/// The same beside a runtime that has nothing to do: what the machine itself costs at the moment.
fn machine(stop: Arc<AtomicBool>) -> std::thread::JoinHandle<Duration> {
    std::thread::spawn(move || {
        let idle = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        idle.block_on(ticker(stop))
    })
}

/// C40: fifty waiters in a runtime of one thread do not keep it from anything else, also while the
/// store is away; a guard that is dropped does not; holder and waiter may share the thread.
#[test]
fn c40_waiting_blocks_no_loop() {
    for kind in ServerKind::default_set() {
        let server = started(kind);
        let holder = blocking::Warden::connect(&server.url()).unwrap();
        let held = holder.lock("x").acquire().unwrap();
        let proxy = Proxy::start(server.address()).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let machine = machine(stop.clone());
        let loops = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let longest = loops.block_on(async {
            let warden = Warden::connect(&server.url_at(proxy.address())).await.unwrap();
            let ticker = tokio::spawn(ticker(stop.clone()));
            let mut waiting = Vec::new();
            for _ in 0..50 {
                let lock = warden.lock("x");
                waiting.push(tokio::spawn(async move { lock.acquire().await }));
            }
            until("queued", || async { waiters(&warden, "x").await == 50 }).await;
            // Away without a word, then refusing.
            proxy.half_open(NewConnections::Ignore);
            tokio::time::sleep(MS(size(4_000, 1_000))).await;
            proxy.new_connections(NewConnections::Refuse);
            proxy.cut(Cut::Reset);
            tokio::time::sleep(MS(size(2_000, 700))).await;
            // Names that nobody knows, asked for in the same loop.
            let nowhere = Warden::connect("redis://no.such.host.invalid");
            let _ = tokio::time::timeout(MS(1_000), nowhere).await;
            proxy.heal();
            until("back", || async { warden.show("x").await.is_ok() }).await;
            // Holder and waiter in one loop; and one is dropped.
            let own = warden.lock("y").acquire().await.unwrap();
            let lock = warden.lock("y");
            let waiter = tokio::spawn(async move { lock.acquire().await });
            until("queued", || async { waiters(&warden, "y").await == 1 }).await;
            let released = Instant::now();
            drop(own);
            waiter.await.unwrap().unwrap().release().await.unwrap();
            assert!(released.elapsed() < MS(500), "{:?}", released.elapsed());
            waiting.iter().for_each(tokio::task::JoinHandle::abort);
            warden.close().await;
            stop.store(true, Ordering::Relaxed);
            ticker.await.unwrap()
        });
        let of_machine = machine.join().unwrap();
        assert!(longest < MS(150) + of_machine, "{longest:?}, the machine {of_machine:?}");
        held.release().unwrap();
    }
}

/// C17, second part: after a real loss the same name is acquired again in the same process, and is
/// renewed as ever.
#[test]
fn c17_renewed_again_after_a_loss() {
    on_every_site(|site| async move {
        let (a, b) = (join(&site).await, join(&site).await);
        let lock = a.lock("x").lease(MS(500));
        for _ in 0..2 {
            let lost = lock.acquire().await.unwrap();
            match &site.server {
                Some(server) => drop(server.cmd(&["DEL", "x"])),
                None => drop(b.revoke("x", lost.token(), false).await.unwrap()),
            }
            lost.lost().await;
            let held = lock.acquire().await.unwrap();
            assert!(held.fence() > lost.fence());
            let began = Instant::now();
            while began.elapsed() < MS(1_600) {
                assert!(held.check(), "{:?} after {:?}", held.state(), began.elapsed());
                tokio::time::sleep(MS(10)).await;
            }
            assert!(lost.release().await.is_err(), "and the lost one hurts nobody");
            assert!(held.check());
            held.release().await.unwrap();
        }
    });
}
