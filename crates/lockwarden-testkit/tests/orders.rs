//! Orders that take four locks each, one inside the other, from several processes (G7): in random order every cycle is
//! told at once and everyone gets through; in one order there never is any. And cycles that nobody saw come about.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "helpers of tests are tests")]

use lockwarden::{Error, Warden};
use lockwarden_testkit::{
    conformance::{until, waiters},
    process::eventually,
    proxy::{Cut, NewConnections},
    recorder::Verdict,
    site::Site,
    taker::{Options, Taker},
};
use std::{
    collections::BTreeSet,
    path::Path,
    time::{Duration, Instant},
};

mod support;
use support::{
    MS, TAKER, at_once_on_every_server, connect, connect_through, every_site, nothing_is_left, size,
};

/// Under load, on a machine that does other things as well.
const LONG: Duration = Duration::from_secs(240);
const PROCESSES: usize = 4;

struct Done {
    orders: u64,
    deadlocks: u64,
    slowest_us: u64,
}

/// How many acquisitions stand in a record that others still write: the last line may not be whole.
fn acquisitions(record: &Path) -> usize {
    let text = std::fs::read_to_string(record).unwrap();
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let tokens: BTreeSet<_> = whole.lines().filter_map(|line| line.split('\t').nth(1)).collect();
    tokens.len()
}

/// Takes the orders `0..count` through, in several processes; the first is killed on the way if `kill`.
fn take_through(site: &Site, count: usize, order: &str, kill: bool) -> Done {
    let record = tempfile::NamedTempFile::new().unwrap();
    let each = count / PROCESSES;
    let work_us = size(20_000, 5_000);
    let options = Options::new(TAKER, site.url()).record(record.path());
    let mut takers: Vec<Taker> =
        (0..PROCESSES).map(|i| options.clone().label(&format!("p{i}")).start()).collect();
    for (i, taker) in takers.iter_mut().enumerate() {
        taker.tell(&format!("orders o {} {each} {work_us} {order}", i * each));
    }
    if kill {
        // On the way: its own orders alone are 4 × `each` acquisitions.
        eventually(LONG, || acquisitions(record.path()) >= each / 2);
        takers.remove(0).process().kill9();
    }
    let mut done = Done { orders: 0, deadlocks: 0, slowest_us: 0 };
    for taker in &mut takers {
        let words = taker
            .hear_within("ordered o", LONG)
            .unwrap_or_else(|| panic!("not all orders get through"));
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        done.orders += number(2);
        done.deadlocks += number(3);
        done.slowest_us = done.slowest_us.max(number(4));
    }
    println!(
        "{} {order}: {} orders, {} deadlocks, the slowest told within {} ms",
        site.url(),
        done.orders,
        done.deadlocks,
        done.slowest_us / 1_000
    );
    let verdict = Verdict::read(record.path());
    assert!(verdict.violations.is_empty(), "{:#?}", verdict.violations);
    for taker in &mut takers {
        taker.tell("close");
        taker.hear("closed");
    }
    done
}

#[test]
fn in_random_order_every_cycle_is_told_at_once() {
    for site in every_site() {
        let count = size(1_000, 200) as usize;
        let done = take_through(&site, count, "random", false);
        assert_eq!(done.orders, count as u64);
        assert!(done.deadlocks > 0, "a test without a deadlock shows nothing");
        // By the answer itself. A recheck, which finds what it missed, comes after a second at the earliest.
        assert!(done.slowest_us < 1_000_000, "{} µs", done.slowest_us);
        if site.url().starts_with("redis") {
            nothing_is_left(site.server());
        }
    }
}

#[test]
fn in_one_order_there_is_none() {
    for site in every_site() {
        let count = size(1_000, 200) as usize;
        let done = take_through(&site, count, "sorted", false);
        assert_eq!((done.orders, done.deadlocks), (count as u64, 0));
    }
}

/// A process that is killed holds nobody up, and is part of no cycle.
#[test]
fn the_survivors_get_through() {
    for site in every_site() {
        let count = size(1_000, 200) as usize;
        let done = take_through(&site, count, "random", true);
        assert_eq!(done.orders as usize, count / PROCESSES * (PROCESSES - 1));
    }
}

/// R37: a cycle that came about while one of its holders was cut off is found by the rechecks: also where the youngest
/// stands behind others of its own process, who look after the lock for it.
#[test]
fn r37_a_cycle_that_nobody_saw_is_found() {
    at_once_on_every_server(|server, query| async move {
        let (h, proxy) = connect_through(&server, query).await;
        let w = connect(&server, query).await;
        let _x = h.lock("x").owner("h").grace(MS(20_000)).acquire().await.unwrap();
        let _y = w.lock("y").owner("t2").acquire().await.unwrap();
        let wait = |warden: &Warden, name: &'static str, owner: &'static str| {
            let lock = warden.lock(name).owner(owner).wait_for(MS(60_000));
            tokio::spawn(async move { lock.acquire().await.map(drop) })
        };
        let queued = async |name: &str, count: usize| {
            until("it waits", || async { waiters(&w, name).await == count }).await;
        };
        let _h = wait(&h, "y", "h");
        queued("y", 1).await;
        let _others = [wait(&w, "x", "t0"), wait(&w, "x", "t1")];
        queued("x", 2).await;
        proxy.new_connections(NewConnections::Refuse);
        proxy.cut(Cut::Reset);
        let began = Instant::now();
        let youngest = loop {
            // The store must have seen the link closed, or it finds the cycle at once.
            let waiting = wait(&w, "x", "t2");
            until("it is told, or waits", || async {
                waiting.is_finished() || waiters(&w, "x").await == 3
            })
            .await;
            if !waiting.is_finished() {
                break waiting;
            }
            assert!(began.elapsed() < MS(10_000), "its link is still up");
        };
        proxy.heal();
        assert!(matches!(youngest.await.unwrap(), Err(Error::Deadlock { .. })));
        assert!(began.elapsed() < MS(30_000), "{:?}", began.elapsed());
    });
}
