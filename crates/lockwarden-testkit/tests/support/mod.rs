//! What the tests of the cases share.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part")]
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use lockwarden::{Error, StoreError, Token, Trouble, Warden};
use lockwarden_testkit::{
    conformance::{Place, warden},
    process::eventually,
    proxy::Proxy,
    raw::{Raw, Value},
    servers::{META_KEY, Server, ServerKind},
    site::Site,
    taker::SOON,
};
use std::{future::Future, time::Duration};

pub const TAKER: &str = env!("CARGO_BIN_EXE_taker");
pub const MS: fn(u64) -> Duration = Duration::from_millis;

/// The sizes that the project promises with `LOCKWARDEN_TEST_LONG`, and smaller ones otherwise.
pub fn size(long: u64, short: u64) -> u64 {
    if std::env::var_os("LOCKWARDEN_TEST_LONG").is_some() { long } else { short }
}

/// A server without the guard.
pub fn started(kind: ServerKind) -> Server {
    let server = Server::start(kind);
    server.without_guard();
    server
}

pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Runs a test on every server, with one connection per session and with two where both are spoken.
pub fn on_every_server<F: Future<Output = ()>>(test: impl Fn(Server, &'static str) -> F) {
    let runtime = runtime();
    for kind in ServerKind::default_set() {
        runtime.block_on(test(started(kind), "?protocol=2"));
        if kind.has_resp3() {
            runtime.block_on(test(started(kind), "?protocol=3"));
        }
    }
}

/// The same at once, each in a thread of its own: for what mostly waits.
pub fn at_once_on_every_server<F: Future<Output = ()>>(
    test: impl Fn(Server, &'static str) -> F + Sync,
) {
    std::thread::scope(|scope| {
        for kind in ServerKind::default_set() {
            let resp3 = kind.has_resp3().then_some("?protocol=3");
            for protocol in ["?protocol=2"].into_iter().chain(resp3) {
                let test = &test;
                scope.spawn(move || runtime().block_on(test(started(kind), protocol)));
            }
        }
    });
}

/// Every server, and an embedded store.
pub fn every_site() -> Vec<Site> {
    let servers = ServerKind::default_set().into_iter().map(Site::redis);
    std::iter::once(Site::file()).chain(servers).collect()
}

/// Runs a test on every server and on an embedded store, one after the other.
pub fn on_every_site<F: Future<Output = ()>>(test: impl Fn(Site) -> F) {
    let runtime = runtime();
    for site in every_site() {
        runtime.block_on(test(site));
    }
}

/// The same at once, each in a thread of its own: for what mostly waits.
pub fn at_once_on_every_site<F: Future<Output = ()>>(test: impl Fn(Site) -> F + Sync) {
    std::thread::scope(|scope| {
        for site in every_site() {
            let test = &test;
            scope.spawn(move || runtime().block_on(test(site)));
        }
    });
}

pub async fn connect(server: &Server, query: &str) -> Warden {
    Warden::connect(&format!("{}{query}", server.url())).await.unwrap()
}

pub async fn connect_through(server: &Server, query: &str) -> (Warden, Proxy) {
    let proxy = Proxy::start(server.address()).unwrap();
    let url = format!("{}{query}", server.url_at(proxy.address()));
    (Warden::connect(&url).await.unwrap(), proxy)
}

pub async fn join(site: &Site) -> Warden {
    warden(site as &dyn Place).await
}

/// Every key of the server.
pub fn keys(raw: &mut Raw) -> Vec<String> {
    let mut keys: Vec<String> =
        raw.cmd(&["KEYS", "*"]).items().iter().filter_map(Value::text).collect();
    keys.sort();
    keys
}

/// G9: no key but `meta`.
pub fn nothing_is_left(server: &Server) {
    let mut raw = server.raw();
    eventually(SOON, || keys(&mut raw) == [META_KEY]);
}

/// How often the server has carried out a command that a client sent, from INFO commandstats.
pub fn calls(raw: &mut Raw, command: &str) -> u64 {
    let info = raw.cmd(&["INFO", "commandstats"]).text().unwrap();
    let line = format!("cmdstat_{command}:calls=");
    let calls = info.lines().find_map(|it| it.strip_prefix(&line)?.split(',').next());
    calls.map_or(0, |calls| calls.parse().unwrap())
}

/// The store's trouble, if that is what the error is about.
pub fn trouble(error: &Error) -> Option<Trouble> {
    match error {
        Error::Store(StoreError::Unavailable { trouble, .. }) => Some(*trouble),
        _ => None,
    }
}

/// A small seeded generator: the same seed gives the same order of events.
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// Does the value of a lock's key say that it is held by this token?
pub fn is_held_by(value: &Value, token: &Token) -> bool {
    let Value::Bulk(value) = value else { return false };
    let token = token.as_bytes();
    value.starts_with(b"lockwarden:") && value.windows(token.len()).any(|part| part == token)
}
