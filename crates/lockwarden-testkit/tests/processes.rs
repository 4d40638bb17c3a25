//! Real processes, really killed and stopped, on the embedded store and on Redis.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "helpers of tests are tests")]

use lockwarden::{Warden, blocking};
use lockwarden_testkit::{
    process::eventually,
    recorder::now_us,
    servers::ServerKind,
    site::Site,
    taker::{Options, SOON, Taker},
};
use std::time::{Duration, Instant};

const TAKER: &str = env!("CARGO_BIN_EXE_taker");

/// The sizes that the project promises with `LOCKWARDEN_TEST_LONG`, and smaller ones otherwise.
fn size(long: usize, short: usize) -> usize {
    if std::env::var_os("LOCKWARDEN_TEST_LONG").is_some() { long } else { short }
}

fn observer(site: &Site) -> blocking::Warden {
    blocking::Warden::connect(site.url()).unwrap()
}

fn await_queue(observer: &blocking::Warden, name: &str, length: usize) {
    eventually(SOON, || observer.show(name).unwrap().queue.len() == length);
}

/// G1, G2, G4: through one name, in order of arrival, with a counter that nothing else protects.
fn counts_in_order(site: &Site, processes: usize) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "0").unwrap();
    let observer = observer(site);
    let first = observer.lock("counter").acquire().unwrap();
    let mut takers = Vec::new();
    for i in 0..processes {
        let mut taker = Options::new(TAKER, site.url()).label(&format!("p{i}")).start();
        taker.tell("acquire k counter");
        await_queue(&observer, "counter", i + 1);
        takers.push(taker);
    }
    let mut fence = first.fence();
    first.release().unwrap();
    for (i, taker) in takers.iter_mut().enumerate() {
        let (granted, _) = taker.acquired("k");
        assert!(granted > fence, "fence {granted} after {fence}");
        fence = granted;
        taker.tell(&format!("add k {}", file.path().display()));
        let words = taker.hear("added k");
        assert_eq!(words[2..], [(i + 1).to_string(), "true".to_owned()], "order of arrival");
        taker.release("k").unwrap();
    }
    assert_eq!(std::fs::read_to_string(file.path()).unwrap(), processes.to_string());
}

#[test]
fn processes_count_in_order_file() {
    counts_in_order(&Site::file(), size(200, 40));
}

#[test]
fn processes_count_in_order_redis() {
    counts_in_order(&Site::redis(ServerKind::any()), size(200, 40));
}

/// G3 in every mode: of many who hold it together each one's death is seen at once, whichever it is, with somebody who
/// waits for all of them, and with somebody who asks once.
fn each_of_many_is_followed_at_once(site: &Site, holders: usize) {
    let observer = observer(site);
    let held = || {
        let view = observer.show("x").unwrap();
        view.beside.len() + usize::from(view.holder.is_some())
    };
    for (each, all) in
        [("shared", "wait=20000".to_owned()), ("permits=1/40", "permits=40/40".into())]
    {
        for waits in [true, false] {
            let start = |number| {
                let mut taker =
                    Options::new(TAKER, site.url()).label(&format!("h{number}")).start();
                taker.acquire("k", "x", each);
                taker
            };
            let mut takers: Vec<Taker> = (0..holders).map(start).collect();
            let mut last = Options::new(TAKER, site.url()).label("last").start();
            if waits {
                last.tell(&format!("acquire k x {all}"));
                await_queue(&observer, "x", 1);
            }
            // Neither the first nor the last by lease.
            for _ in 1..holders {
                takers.swap_remove(takers.len() / 2).process().kill9();
            }
            if waits {
                let began = Instant::now();
                eventually(SOON, || held() == 1);
                // Not by their grace of 3 s.
                assert!(began.elapsed() < Duration::from_secs(2), "{each}: {:?}", began.elapsed());
            }
            takers.pop().unwrap().process().kill9();
            if !waits {
                last.tell(&format!("acquire k x {all} wait=no"));
            }
            last.acquired("k");
            last.release("k").unwrap();
            assert_eq!(held(), 0);
        }
    }
}

#[test]
fn each_of_many_is_followed_at_once_file() {
    each_of_many_is_followed_at_once(&Site::file(), size(40, 20));
}

#[test]
fn each_of_many_is_followed_at_once_redis() {
    each_of_many_is_followed_at_once(&Site::redis(ServerKind::any()), size(40, 20));
}

/// R32: from hand to hand, each giver killed as soon as it has given; nobody who waits gets it in between.
fn goes_from_hand_to_hand(site: &Site, processes: usize) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "0").unwrap();
    let options = Options::new(TAKER, site.url());
    let mut holder = options.start();
    holder.tell("acquire k x");
    let (mut fence, _) = holder.acquired("k");
    let mut waiter = options.start();
    waiter.tell("acquire k x");
    await_queue(&observer(site), "x", 1);
    for number in 1..=processes {
        holder.tell(&format!("add k {}", file.path().display()));
        assert_eq!(holder.hear("added k")[2..], [number.to_string(), "true".to_owned()]);
        // Longer than any grace: its time does not depend on the giver's link.
        holder.tell("hand_over k 60000");
        let given = holder.hear("handed k")[2].clone();
        holder.tell("check k");
        assert_eq!(holder.hear("check k")[2], "false");
        let mut next = options.start();
        holder.process().kill9();
        next.tell(&format!("acquire k {given}"));
        let (granted, _) = next.acquired("k");
        assert!(granted > fence, "G2");
        // Once only.
        next.tell(&format!("acquire again {given}"));
        assert_eq!(next.hear("failed again")[2], "not_handed_over");
        (holder, fence) = (next, granted);
    }
    assert_eq!(observer(site).show("x").unwrap().queue.len(), 1, "it waits still");
    holder.release("k").unwrap();
    let (granted, _) = waiter.acquired("k");
    assert!(granted > fence);
    assert_eq!(std::fs::read_to_string(file.path()).unwrap(), processes.to_string());
}

#[test]
fn goes_from_hand_to_hand_file() {
    goes_from_hand_to_hand(&Site::file(), size(100, 10));
}

#[test]
fn goes_from_hand_to_hand_redis() {
    goes_from_hand_to_hand(&Site::redis(ServerKind::any()), size(100, 10));
}

/// G3 on one machine: from the kill of the holder to the next one's grant.
fn takeover_times_us(site: &Site, rounds: usize, options: &Options) -> Vec<u64> {
    let observer = observer(site);
    let mut waiter: Option<Taker> = None;
    let mut times = Vec::new();
    for i in 0..=rounds {
        let mut next = options.start();
        next.tell("acquire k x");
        if let Some(mut holder) = waiter.take() {
            await_queue(&observer, "x", 1);
            let killed_us = now_us();
            holder.process().kill9();
            let (_, granted_us) = next.acquired("k");
            times.push(granted_us - killed_us);
        } else {
            assert_eq!(i, 0);
            next.acquired("k");
        }
        waiter = Some(next);
    }
    times.sort_unstable();
    times
}

/// G3: SIGKILL of a holder, same machine: the next waiter holds it within 50 ms (p99 of 200).
fn a_killed_holder_is_followed_at_once(site: &Site) {
    let times_us = takeover_times_us(site, size(200, 30), &Options::new(TAKER, site.url()));
    let p99_us = times_us[times_us.len() * 99 / 100];
    println!("takeover: median {} µs, p99 {p99_us} µs", times_us[times_us.len() / 2]);
    assert!(p99_us <= 50_000, "{times_us:?}");
}

#[test]
fn a_killed_holder_is_followed_at_once_file() {
    a_killed_holder_is_followed_at_once(&Site::file());
}

#[test]
fn a_killed_holder_is_followed_at_once_redis() {
    a_killed_holder_is_followed_at_once(&Site::redis(ServerKind::any()));
}

/// G3 from another machine (the process watch is off): within grace + 1.5 s.
fn a_killed_holder_is_followed_after_grace(site: &Site) {
    let options = Options::new(TAKER, site.url()).unwatched();
    let times_us = takeover_times_us(site, size(10, 2), &options);
    assert!(times_us.iter().all(|&us| us <= 4_500_000), "{times_us:?}");
    // Not before grace: the holder's link may have been cut only, and it may still believe.
    assert!(times_us.iter().all(|&us| us >= 2_900_000), "{times_us:?}");
}

#[test]
fn a_killed_holder_is_followed_after_grace_file() {
    a_killed_holder_is_followed_after_grace(&Site::file());
}

#[test]
fn a_killed_holder_is_followed_after_grace_redis() {
    a_killed_holder_is_followed_after_grace(&Site::redis(ServerKind::any()));
}

/// C50: a dead head waiter, and one that is frozen, never delay the others by more than grace or W
/// and 1.5 s; and the frozen one does not believe when it continues.
fn dead_waiters_are_passed(site: &Site) {
    let observer = observer(site);
    let options = Options::new(TAKER, site.url());
    let held = observer.lock("x").acquire().unwrap();
    let mut waiters = Vec::new();
    for i in 0..3 {
        let mut waiter = options.clone().label(&format!("w{i}")).start();
        waiter.tell("acquire k x");
        await_queue(&observer, "x", i + 1);
        waiters.push(waiter);
    }
    waiters[0].process().kill9();
    // The store sees the closed link as soon as the kernel tells it.
    eventually(SOON, || !observer.show("x").unwrap().queue[0].alive);
    waiters[1].process().stop();
    let released_us = now_us();
    held.release().unwrap();
    let (_, granted_us) = waiters[2].acquired("k");
    let took_us = granted_us - released_us;
    assert!(took_us <= 4_500_000, "{took_us} µs");
    assert!(waiters[2].check("k"));
    waiters[1].process().cont();
    assert!(!waiters[1].check("k"), "a frozen waiter believes in a grant that is over");
    assert!(waiters[2].check("k"));
    waiters[2].release("k").unwrap();
    // It is still in line, or has queued anew, and gets its turn.
    waiters[1].acquired("k");
    waiters[1].release("k").unwrap();
}

#[test]
fn c50_dead_waiters_are_passed_file() {
    dead_waiters_are_passed(&Site::file());
}

#[test]
fn c50_dead_waiters_are_passed_redis() {
    dead_waiters_are_passed(&Site::redis(ServerKind::any()));
}

/// C61, C20: a holder that is stopped beyond its lease: another gets the lock; continued, the
/// first one's check is false at once, it is told, and its release hurts nobody.
fn a_stopped_holder_has_lost(site: &Site) {
    let options = Options::new(TAKER, site.url());
    let (mut a, mut b) = (options.clone().label("a").start(), options.label("b").start());
    let (first, _) = a.acquire("k", "x", "lease=1000");
    assert!(a.check("k"));
    a.process().stop();
    let (second, _) = b.acquire("k", "x", "lease=5000");
    assert!(second > first, "G2");
    assert!(b.check("k"));
    a.tell("check k");
    a.process().cont();
    assert_eq!(a.hear("check k")[2], "false");
    let told = a.hear("lost k");
    assert!(["LeaseEnded", "NotHeld(Taken)"].contains(&told[2].as_str()), "{told:?}");
    assert_eq!(a.release("k"), Err("lost".to_owned()));
    assert!(b.check("k"));
    b.release("k").unwrap();
}

#[test]
fn c61_a_stopped_holder_has_lost_file() {
    a_stopped_holder_has_lost(&Site::file());
}

#[test]
fn c61_a_stopped_holder_has_lost_redis() {
    a_stopped_holder_has_lost(&Site::redis(ServerKind::any()));
}

/// C12, G9: a process that closes its warden leaves nothing, waiting or holding.
fn closing_leaves_nothing(site: &Site) {
    let observer = observer(site);
    let options = Options::new(TAKER, site.url());
    let (mut a, mut b) = (options.start(), options.start());
    a.acquire("k", "x", "");
    b.tell("acquire k x");
    await_queue(&observer, "x", 1);
    b.tell("close");
    b.hear("closed");
    await_queue(&observer, "x", 0);
    a.tell("close");
    a.hear("closed");
    assert!(observer.show("x").unwrap().holder.is_none());
}

#[test]
fn c12_closing_leaves_nothing_file() {
    closing_leaves_nothing(&Site::file());
}

#[test]
fn c12_closing_leaves_nothing_redis() {
    closing_leaves_nothing(&Site::redis(ServerKind::any()));
}

/// R29, G3: a process that holds several locks at once is killed: whoever waits for one of them, or for all of them,
/// on this machine, has them at once, also where they are more than it is told the holders of.
fn a_killed_holder_of_several(site: &Site, count: usize, bound_us: u64) {
    let names: Vec<String> = (0..count).map(|number| format!("n{number:03}")).collect();
    let all = names.join(",");
    let observer = observer(site);
    let options = Options::new(TAKER, site.url());
    let mut times_us = Vec::new();
    for _ in 0..size(30, 8) {
        let [mut holder, mut one, mut rest] = [options.start(), options.start(), options.start()];
        holder.acquire("k", &all, "");
        one.tell(&format!("acquire k {}", names[1]));
        await_queue(&observer, &names[1], 1);
        rest.tell(&format!("acquire k {all}"));
        await_queue(&observer, &names[count - 1], 1);
        let killed_us = now_us();
        holder.process().kill9();
        let (fence, one_us) = one.acquired("k");
        assert_eq!(
            observer.show(&names[1]).unwrap().queue.len(),
            1,
            "the other waits for the first"
        );
        one.release("k").unwrap();
        let (next, rest_us) = rest.acquired("k");
        assert!(next > fence);
        assert!(rest.check("k"));
        rest.release("k").unwrap();
        times_us.push((one_us - killed_us, rest_us - killed_us));
        // One who does not wait takes over as well.
        let mut dead = options.start();
        dead.acquire("k", &all, "");
        dead.process().kill9();
        assert!(observer.lock_all(&names).no_wait().acquire().is_ok());
    }
    times_us.sort_unstable();
    println!("takeover of {count}: {times_us:?} µs");
    let worst_us = times_us.iter().map(|(one, rest)| *one.max(rest)).max().unwrap();
    assert!(worst_us <= bound_us, "{times_us:?}");
}

#[test]
fn a_killed_holder_of_several_file() {
    a_killed_holder_of_several(&Site::file(), 4, 300_000);
}

#[test]
fn a_killed_holder_of_several_redis() {
    a_killed_holder_of_several(&Site::redis(ServerKind::any()), 4, 300_000);
}

#[test]
fn a_killed_holder_of_many_file() {
    // A transaction for each of them: on a busy disk the end of the grace may come first.
    a_killed_holder_of_several(&Site::file(), 100, 4_500_000);
}

#[test]
fn a_killed_holder_of_many_redis() {
    a_killed_holder_of_several(&Site::redis(ServerKind::any()), 100, 1_000_000);
}

/// R29, C61: a holder of several that is stopped beyond its lease has lost all of them, and its release hurts nobody.
fn a_stopped_holder_of_several(site: &Site) {
    let options = Options::new(TAKER, site.url());
    let (mut a, mut b) = (options.clone().label("a").start(), options.label("b").start());
    let (first, _) = a.acquire("k", "p,q,r,s", "lease=1000");
    assert!(a.check("k"));
    a.process().stop();
    let (second, _) = b.acquire("k", "q,s,t", "lease=5000");
    let (third, _) = b.acquire("l", "p,r", "lease=5000");
    assert!(second > first && third > first, "G2");
    a.tell("check k");
    a.process().cont();
    assert_eq!(a.hear("check k")[2], "false");
    assert_eq!(a.release("k"), Err("lost".to_owned()));
    assert!(b.check("k") && b.check("l"));
    b.release("k").unwrap();
    b.release("l").unwrap();
    for name in ["p", "q", "r", "s", "t"] {
        assert!(observer(site).show(name).unwrap().holder.is_none());
    }
}

#[test]
fn c61_a_stopped_holder_of_several_file() {
    a_stopped_holder_of_several(&Site::file());
}

#[test]
fn c61_a_stopped_holder_of_several_redis() {
    a_stopped_holder_of_several(&Site::redis(ServerKind::any()));
}

/// The type is shared between threads and tasks as users do.
#[test]
fn handles_are_send_and_sync() {
    fn shared<T: Send + Sync + 'static>() {}
    shared::<Warden>();
    shared::<lockwarden::Guard>();
    shared::<lockwarden::Lock>();
    shared::<blocking::Guard>();
}
