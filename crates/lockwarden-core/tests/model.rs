//! The model: three sessions and one name or two, every order of everything up to a depth.
//!
//! Time goes in steps of W/3. Any of the actions below may happen at any moment: asking, releasing,
//! cancelling, reading the next thing at either end of a link, a session doing what is due (or not:
//! a pause), cuts at either end, crashes, lost messages, repeated commands, copies of the data,
//! restarts with the copy or without data, the failover to a replica that has the copy, FLUSHALL.
//!
//! By default it takes seconds; with `LOCKWARDEN_TEST_LONG=1` minutes and over ten million states.
//! `docs/decisions/0003-model.md` says what is modelled and what is not.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "tests, though not in functions of one; the sizes that were reached are a result"
)]

mod world;

use lockwarden_core::{Rules, command::Mode};
use world::{
    Action, Faults, Menu, SECOND_US, Scope, Wanted,
    search::{Bounds, explain, search, walk},
    session::Patience,
};

/// Each fault may strike once.
fn all_faults() -> Faults {
    Faults {
        client_cuts: 1,
        server_cuts: 1,
        unsubscribes: 1,
        crashes: 1,
        lost_messages: 1,
        repeats: 1,
        copies: 1,
        restarts: 1,
        empty_restarts: 1,
        failovers: 1,
        flushes: 1,
    }
}

fn long() -> bool {
    std::env::var_os("LOCKWARDEN_TEST_LONG").is_some_and(|value| value != "0")
}

/// Searches to `depth`, in the long run until a level ends with over `states`; prints the size.
fn holds(what: &str, scope: &Scope, depth: usize, states: u64) {
    let bounds = if long() {
        Bounds { depth: 64, states, futures: 256 }
    } else {
        let depth = if cfg!(debug_assertions) { depth - 2 } else { depth };
        Bounds { depth, states: u64::MAX, futures: 64 }
    };
    let report = search(scope, bounds);
    println!("{what}: {report}");
    if let Some(found) = report.found {
        panic!("{what}: {}\n{found}", explain(scope, &found.trace));
    }
}

/// All sessions and all faults, in any order.
#[test]
fn any_order() {
    let scope = Scope { faults: all_faults(), ..Scope::new(3) };
    holds("any order", &scope, 6, 10_000_000);
}

/// One session's link delays and fails, the two others are prompt: deeper.
#[test]
fn one_bad_link() {
    let faults = Faults {
        client_cuts: 2,
        server_cuts: 2,
        unsubscribes: 1,
        crashes: 1,
        lost_messages: 1,
        repeats: 1,
        ..Faults::default()
    };
    let scope = Scope { faults, prompt: &[1, 2], ..Scope::new(3) };
    holds("one bad link", &scope, 7, 3_000_000);
}

/// A holder whose link delays and is cut, while the store loses data in every way.
#[test]
fn lost_data() {
    let faults = Faults {
        server_cuts: 1,
        client_cuts: 1,
        copies: 2,
        restarts: 2,
        empty_restarts: 1,
        failovers: 1,
        flushes: 1,
        ..Faults::default()
    };
    let scope = Scope { faults, prompt: &[1, 2], ..Scope::new(3) };
    holds("lost data", &scope, 7, 4_000_000);
}

/// The replica that takes over has heard of nothing at all: neither of a lock nor of `meta`. Its
/// process is old and nobody is connected to it, which for R5 must not look like a fresh server.
#[test]
fn empty_replica() {
    let faults = Faults { failovers: 1, ..Faults::default() };
    let scope = Scope { faults, copied: false, prompt: &[1, 2], ..Scope::new(3) };
    holds("empty replica", &scope, 9, 1_000_000);
}

/// FLUSHALL while someone's subscription is gone and its commands still run: it must not take itself
/// for the only one there (R5).
#[test]
fn flush_unsubscribed() {
    let faults = Faults { flushes: 1, unsubscribes: 1, server_cuts: 1, ..Faults::default() };
    let scope = Scope { faults, prompt: &[0, 2], ..Scope::new(3) };
    holds("flush, unsubscribed", &scope, 7, 1_000_000);
}

/// The same value in every session, as a redelivered task brings it (R25): a holder that was passed
/// over must neither renew nor release its successor.
#[test]
fn same_value() {
    let given = &[
        Action::Ask(0, 0, Patience::Endless, 0),
        Action::ToServer(0),
        Action::ToClient(0),
        Action::ServerCut(0),
        Action::Ask(1, 0, Patience::Endless, 0),
    ];
    let faults = Faults { client_cuts: 1, repeats: 1, ..Faults::default() };
    let prompt = &[1];
    let scope = Scope { same_token: true, lease_ms: 9_000, prompt, given, faults, ..Scope::new(2) };
    holds("same value", &scope, 9, 1_000_000);
}

/// A grant by message to a slow session: from where it is on its way.
#[test]
fn slow_grant() {
    let given = &[
        Action::Ask(0, 0, Patience::Endless, 0),
        Action::Ask(1, 0, Patience::Endless, 0),
        Action::ToServer(1),
        Action::End(0, 0),
        Action::Ask(2, 0, Patience::Endless, 0),
    ];
    let faults = Faults { server_cuts: 1, repeats: 1, lost_messages: 1, ..Faults::default() };
    let scope = Scope { faults, asks: 2, prompt: &[0, 2], given, ..Scope::new(3) };
    holds("slow grant", &scope, 8, 1_000_000);
}

/// One name, to read or to write.
const READ: Wanted = &[(0, Mode::Shared)];
const WRITE: Wanted = &[(0, Mode::Exclusive)];
/// Two names: both at once, or one of them.
const BOTH: Wanted = &[(0, Mode::Exclusive), (1, Mode::Exclusive)];
const X: Wanted = WRITE;
const Y: Wanted = &[(1, Mode::Exclusive)];
/// Both at once, the first to read.
const READ_BOTH: Wanted = &[(0, Mode::Shared), (1, Mode::Exclusive)];
/// Of two permits one, or both.
const ONE: Wanted = &[(0, Mode::Permits { count: 1, of: 2 })];
const TWO: Wanted = &[(0, Mode::Permits { count: 2, of: 2 })];

/// The faults of one link.
fn of_a_link() -> Faults {
    Faults {
        client_cuts: 1,
        server_cuts: 1,
        unsubscribes: 1,
        crashes: 1,
        lost_messages: 1,
        repeats: 1,
        ..Faults::default()
    }
}

/// A store that loses data, and a link that is cut.
fn of_the_data() -> Faults {
    Faults {
        client_cuts: 1,
        server_cuts: 1,
        copies: 1,
        restarts: 1,
        empty_restarts: 1,
        failovers: 1,
        flushes: 1,
        ..Faults::default()
    }
}

/// Two readers and a writer of one name.
#[test]
fn shared_in_any_order() {
    let menu: Menu = &[&[0], &[0], &[1]];
    let faults = all_faults();
    let scope = Scope { wants: &[READ, WRITE], menu, faults, ..Scope::new(3) };
    holds("shared, any order", &scope, 6, 1_000_000);
}

/// From where two readers hold it and a writer waits: the first reader's link delays and fails. Whoever asks again
/// asks for either.
#[test]
fn shared_on_a_bad_link() {
    let given = &[
        Action::Ask(0, 0, Patience::Endless, 0),
        Action::ToServer(0),
        Action::ToClient(0),
        Action::Ask(1, 0, Patience::Endless, 0),
        Action::Ask(2, 0, Patience::Endless, 1),
    ];
    let menu: Menu = &[&[0, 1], &[0, 1], &[0, 1]];
    let wants = &[READ, WRITE];
    let (faults, prompt) = (of_a_link(), &[1, 2]);
    let scope = Scope { wants, menu, asks: 2, faults, prompt, given, ..Scope::new(3) };
    holds("shared, a bad link", &scope, 6, 1_000_000);
}

/// A reader whose link delays and is cut, while the store loses data; one of the others reads, one writes.
#[test]
fn shared_and_lost_data() {
    let menu: Menu = &[&[0], &[0], &[1]];
    let (faults, prompt) = (of_the_data(), &[1, 2]);
    let scope = Scope { wants: &[READ, WRITE], menu, faults, prompt, ..Scope::new(3) };
    holds("shared, lost data", &scope, 6, 1_000_000);
}

/// Two permits; each wants one or both.
#[test]
fn permits() {
    let menu: Menu = &[&[0], &[0, 1], &[1]];
    let (faults, prompt) = (of_a_link(), &[1, 2]);
    let scope = Scope { wants: &[ONE, TWO], menu, faults, prompt, ..Scope::new(3) };
    holds("permits", &scope, 6, 1_000_000);
}

/// One who wants two names at once, one who wants either of them, and one who wants the second.
#[test]
fn two_names_in_any_order() {
    let menu: Menu = &[&[0], &[0, 1], &[2]];
    let faults = all_faults();
    let scope = Scope { wants: &[BOTH, X, Y], menu, faults, ..Scope::new(3) };
    holds("two names, any order", &scope, 6, 1_000_000);
}

/// The same where the link of whoever wants both delays and fails.
#[test]
fn two_names_on_a_bad_link() {
    let menu: Menu = &[&[0], &[0, 1], &[2]];
    let (faults, prompt) = (of_a_link(), &[1, 2]);
    let scope = Scope { wants: &[BOTH, X, Y], menu, asks: 2, faults, prompt, ..Scope::new(3) };
    holds("two names, a bad link", &scope, 6, 1_000_000);
}

/// The same while the store loses data.
#[test]
fn two_names_and_lost_data() {
    let menu: Menu = &[&[0], &[0, 1], &[2]];
    let (faults, prompt) = (of_the_data(), &[1, 2]);
    let scope = Scope { wants: &[BOTH, X, Y], menu, faults, prompt, ..Scope::new(3) };
    holds("two names, lost data", &scope, 6, 1_000_000);
}

/// Two who wait for both, one of whom the names are kept for, while either is held by another: whoever has a slow link
/// is the one they are kept for.
#[test]
fn two_names_are_kept() {
    let given = &[
        Action::Ask(1, 0, Patience::Endless, 1),
        Action::Ask(0, 0, Patience::Endless, 0),
        Action::ToServer(0),
        Action::Advance(SECOND_US),
        Action::Ask(2, 0, Patience::Endless, 0),
        Action::Ask(1, 1, Patience::Endless, 2),
    ];
    let menu: Menu = &[&[0, 1, 2], &[0, 1, 2], &[0, 1, 2]];
    let wants = &[BOTH, X, Y];
    let (faults, prompt) = (of_a_link(), &[1, 2]);
    let scope = Scope { owners: 2, wants, menu, asks: 3, faults, prompt, given, ..Scope::new(3) };
    holds("two names, kept", &scope, 4, 1_000_000);
}

/// Two names at once, of which the first is only read, beside its readers and writers.
#[test]
fn two_names_shared() {
    let menu: Menu = &[&[0], &[1, 2], &[0, 3]];
    let (faults, prompt) = (of_a_link(), &[1, 2]);
    let wants = &[READ_BOTH, READ, WRITE, Y];
    let scope = Scope { wants, menu, asks: 2, faults, prompt, ..Scope::new(3) };
    holds("two names, shared", &scope, 6, 1_000_000);
}

/// Random walks go on where the search stops.
#[test]
fn beyond_the_depth() {
    let few = if cfg!(debug_assertions) { 1_000 } else { 10_000 };
    let (walks, steps) = if long() { (300_000, 200) } else { (few, 100) };
    let many = Faults { client_cuts: 4, server_cuts: 4, flushes: 2, repeats: 4, ..all_faults() };
    let any = Scope { faults: many, asks: 3, ..Scope::new(3) };
    let prompt = Scope { prompt: &[1, 2], ..any.clone() };
    let two = Scope { owners: 2, asks: 4, sessions: 2, ..any.clone() };
    let menu: Menu = &[&[0, 1, 2, 3, 4], &[0, 1, 2, 3, 4], &[0, 1, 2, 3, 4]];
    let wants = &[READ, WRITE, BOTH, READ_BOTH, Y];
    let all = Scope { wants, menu, ..any.clone() };
    let all_prompt = Scope { owners: 2, asks: 4, prompt: &[1, 2], ..all.clone() };
    let scopes = [(1, any), (2, prompt), (3, two), (4, all), (5, all_prompt)];
    for (seed, scope) in scopes {
        if let Some(found) = walk(&scope, seed, walks / 5, steps) {
            panic!("{}\n{found}", explain(&scope, &found.trace));
        }
    }
}

/// The walks are no decoration: they find the guard's absence, too.
#[test]
fn walks_find_a_missing_guard() {
    let rules = Rules::ALL.without(6);
    let scope = Scope { rules, faults: all_faults(), ..Scope::new(3) };
    let found = walk(&scope, 1, 10_000, 100).expect("nothing is found without the guard");
    assert!(["G1", "G8"].contains(&found.violation.guarantee), "{found}");
}
