//! What the drop-ins for other libraries need, on a real server, with processes that are really killed: locks without an
//! end, and locks that are extended, released or left by their value.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use lockwarden::{Absence, Extension, HoldState, Loss, Settings, blocking::Warden};
use lockwarden_testkit::{
    process::eventually,
    recorder::now_us,
    servers::{Restart, Server, ServerKind},
    taker::{Options, SOON, Taker},
};
use std::{thread, time::Duration};

const TAKER: &str = env!("CARGO_BIN_EXE_taker");
const MS: fn(u64) -> Duration = Duration::from_millis;

fn server() -> Server {
    let server = Server::start(ServerKind::any());
    server.without_guard();
    server
}

/// As from another machine: nobody watches processes.
fn taker(server: &Server) -> Taker {
    Options::new(TAKER, &server.url()).unwatched().start()
}

fn warden(server: &Server) -> Warden {
    Warden::with(Settings::new().without_process_watch(), &server.url()).unwrap()
}

fn pttl(server: &Server) -> i64 {
    server.cmd(&["PTTL", "x"]).int().unwrap()
}

fn record_exists(server: &Server) -> bool {
    server.cmd(&["EXISTS", "lockwarden:record:{x}"]).int() == Some(1)
}

/// G3: the key has no expiry, and yet the lock is free after the grace of a holder that was killed.
#[test]
fn g3_an_endless_lock_of_a_killed_holder_is_free_after_grace() {
    let server = server();
    let mut holder = taker(&server);
    holder.acquire("k", "x", "value=theirs endless");
    assert_eq!((pttl(&server), server.cmd(&["GET", "x"]).text().unwrap()), (-1, "theirs".into()));
    assert_eq!(server.cmd(&["PTTL", "lockwarden:record:{x}"]).int(), Some(-1));
    let mut waiter = taker(&server);
    waiter.tell("acquire k x value=next endless");
    let observer = warden(&server);
    eventually(SOON, || observer.show("x").unwrap().queue.len() == 1);
    thread::sleep(MS(1_500));
    assert_eq!(pttl(&server), -1, "who asks gives it no end");
    let killed_us = now_us();
    holder.process().kill9();
    let (_, granted_us) = waiter.acquired("k");
    let took_us = granted_us - killed_us;
    assert!((2_900_000..=4_500_000).contains(&took_us), "{took_us} µs");
    // R27: W at most until it is renewed.
    eventually(SOON, || pttl(&server) == -1 && server.cmd(&["GET", "x"]).text().unwrap() == "next");
    assert!(waiter.check("k"));
    waiter.release("k").unwrap();
    assert!(!record_exists(&server), "G9");
}

/// R15: after a restart its holder must show itself, or it ends 30 s after somebody asked for it.
#[test]
fn r15_an_endless_lock_after_a_restart() {
    let mut server = server();
    let mut holder = taker(&server);
    holder.acquire("k", "x", "value=theirs endless");
    let newest = server.snapshot();
    server.kill9();
    server.restart(Restart::From(&newest));
    // The holder lives.
    eventually(SOON, || holder.check("k"));
    let observer = warden(&server);
    let one_try = observer.lock("x").no_wait();
    // After the guard.
    eventually(SOON, || one_try.acquire().unwrap_err().code() == "busy");
    eventually(SOON, || pttl(&server) == -1);
    // It does not.
    server.kill9();
    holder.process().kill9();
    server.restart(Restart::From(&newest));
    let observer = warden(&server);
    let one_try = observer.lock("x").no_wait();
    eventually(SOON, || one_try.acquire().unwrap_err().code() == "busy");
    assert!((25_000..=30_000).contains(&pttl(&server)), "{}", pttl(&server));
    // One without data knows nothing of it: it is lost, and anybody's after the guard.
    server.kill9();
    server.restart(Restart::Empty);
    observer.lock("x").wait_for(MS(15_000)).acquire().unwrap().release().unwrap();
    assert!(!record_exists(&server));
}

/// A restart without data, and the holder lives: it hears that it has lost the lock.
#[test]
fn g8_an_endless_lock_that_a_server_forgot() {
    let mut server = server();
    let mut holder = taker(&server);
    holder.acquire("k", "x", "value=theirs endless");
    server.kill9();
    server.restart(Restart::Empty);
    holder.hear("lost k");
    assert!(!holder.check("k"));
    let observer = warden(&server);
    observer.lock("x").wait_for(MS(15_000)).acquire().unwrap().release().unwrap();
}

/// G9: a client that deletes the key by hand leaves no record behind that would stay for ever.
#[test]
fn g9_an_endless_lock_that_was_deleted_by_hand() {
    let server = server();
    let observer = warden(&server);
    let guard = observer
        .lock("x")
        .with(|lock| lock.drop_in_value(b"theirs").endless())
        .lease(MS(1_500))
        .acquire()
        .unwrap();
    server.cmd(&["DEL", "x"]);
    assert!(record_exists(&server));
    // Its holder finds out at its next renewal.
    assert_eq!(guard.lost(), Loss::NotHeld(Absence::Free));
    assert!(!record_exists(&server));
    drop(guard);
    // So does whoever finds another client's lock in its place.
    let guard =
        observer.lock("x").with(|lock| lock.drop_in_value(b"theirs").endless()).acquire().unwrap();
    server.cmd(&["SET", "x", "foreign"]);
    observer.lock("x").no_wait().acquire().unwrap_err();
    assert!(!record_exists(&server));
    assert!(guard.release().is_err());
}

/// What is left keeps value and TTL when its process has ended, and a waiter has it at its end.
#[test]
fn a_left_lock_outlives_its_process() {
    let server = server();
    let observer = warden(&server);
    let mut holder = taker(&server);
    let began_us = now_us();
    holder.acquire("k", "x", "value=theirs lease=7000 unrenewed");
    holder.tell("leave k");
    holder.hear("left k");
    holder.process().kill9();
    let mut waiter = taker(&server);
    waiter.tell("acquire k x");
    eventually(SOON, || observer.show("x").unwrap().queue.len() == 1);
    // Longer than the grace: nobody shortens it.
    thread::sleep(MS(3_500));
    assert_eq!(server.cmd(&["GET", "x"]).text().unwrap(), "theirs");
    let (_, granted_us) = waiter.acquired("k");
    let took_us = granted_us - began_us;
    assert!((6_900_000..=8_500_000).contains(&took_us), "{took_us} µs");
}

/// As redis-py's `extend` and `reacquire` from any process: on a lock of ours, a foreign one, and one that was left.
#[test]
fn extended_by_value_whoever_holds_it() {
    let server = server();
    let (other, observer) = (taker(&server), warden(&server));
    let mut holder = other;
    let extend = |value: &[u8], ms, how| {
        let left = observer.extend_by_value("x", value, MS(ms), how).unwrap();
        let (left, ttl) = (i64::try_from(left.as_millis()).unwrap(), pttl(&server));
        assert!((left - 500..=left).contains(&ttl), "{left} and {ttl}");
        left
    };
    holder.acquire("k", "x", "value=theirs lease=5000 unrenewed");
    assert!((14_000..=15_000).contains(&extend(b"theirs", 10_000, Extension::Add)));
    assert_eq!(extend(b"theirs", 20_000, Extension::Replace), 20_000);
    let ttl = server.cmd(&["PTTL", "lockwarden:record:{x}"]).int().unwrap();
    assert!(ttl > 19_000, "{ttl}");
    // Beyond what its holder believes; asked for it, the holder does not give back what others count on (R16).
    holder.hear("lost k");
    observer.lock("x").wait_for(MS(1_500)).acquire().unwrap_err();
    assert_eq!(server.cmd(&["GET", "x"]).text().unwrap(), "theirs");
    holder.tell("leave k");
    holder.hear("failed k lost");
    let record = observer.show("x").unwrap().holder.unwrap().record.unwrap();
    assert_eq!(record.state, HoldState::Cooling);
    holder.process().kill9();
    assert_eq!(extend(b"theirs", 9_000, Extension::Set), 9_000);
    observer.release_by_value("x", b"theirs").unwrap();
    // A foreign client's.
    server.cmd(&["SET", "x", "foreign", "PX", "5000"]);
    assert!((8_000..=9_000).contains(&extend(b"foreign", 4_000, Extension::Add)));
    assert_eq!(extend(b"foreign", 2_000, Extension::Replace), 2_000);
    server.cmd(&["PERSIST", "x"]);
    let error = observer.extend_by_value("x", b"foreign", MS(4_000), Extension::Replace);
    assert_eq!(error.unwrap_err().code(), "endless");
    assert_eq!(pttl(&server), -1);
    assert_eq!(extend(b"foreign", 4_000, Extension::Set), 4_000);
    let error = observer.extend_by_value("x", b"another", MS(4_000), Extension::Set);
    assert_eq!(error.unwrap_err().code(), "lost");
}

/// As redis-py's `release` from any process; a waiter of ours has it at once.
#[test]
fn released_by_value_whoever_holds_it() {
    let server = server();
    let observer = warden(&server);
    for foreign in [false, true] {
        let mut holder = taker(&server);
        if foreign {
            server.cmd(&["SET", "x", "theirs"]);
        } else {
            holder.acquire("k", "x", "value=theirs endless");
        }
        let mut waiter = taker(&server);
        waiter.tell("acquire k x");
        eventually(SOON, || observer.show("x").unwrap().queue.len() == 1);
        let error = observer.release_by_value("x", b"another").unwrap_err();
        assert_eq!(error.code(), "lost");
        let released_us = now_us();
        observer.release_by_value("x", b"theirs").unwrap();
        let (_, granted_us) = waiter.acquired("k");
        assert!(granted_us - released_us < 500_000, "{} µs", granted_us - released_us);
        if !foreign {
            holder.hear("lost k Revoked");
        }
        waiter.release("k").unwrap();
        assert_eq!(server.cmd(&["EXISTS", "x", "lockwarden:record:{x}"]).int(), Some(0));
    }
}
