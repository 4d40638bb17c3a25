//! The model: three sessions and one name, every order of everything up to a depth.
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

use lockwarden_core::Rules;
use world::{
    Action, Faults, Scope,
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

/// Random walks go on where the search stops.
#[test]
fn beyond_the_depth() {
    let few = if cfg!(debug_assertions) { 1_000 } else { 10_000 };
    let (walks, steps) = if long() { (300_000, 200) } else { (few, 100) };
    let many = Faults { client_cuts: 4, server_cuts: 4, flushes: 2, repeats: 4, ..all_faults() };
    let any = Scope { faults: many, asks: 3, ..Scope::new(3) };
    let prompt = Scope { prompt: &[1, 2], ..any.clone() };
    let two = Scope { owners: 2, asks: 4, sessions: 2, ..any.clone() };
    for (seed, scope) in [(1, any), (2, prompt), (3, two)] {
        if let Some(found) = walk(&scope, seed, walks / 3, steps) {
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
