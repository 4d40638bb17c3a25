//! What becomes of a command whose lock is lost, or whose store is away (C46; G8).

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]

mod support;

use lockwarden_testkit::{
    process::eventually,
    proxy::{Cut, NewConnections, Proxy},
    servers::{Server, ServerKind},
};
use std::time::{Duration, Instant, SystemTime};
use support::{SOON, Site, until};

/// A server that grants at once, behind a proxy, and a site whose store is the proxy.
fn behind_proxy() -> (Server, Proxy, Site) {
    let server = Server::start(ServerKind::any());
    server.without_guard();
    let proxy = Proxy::start(server.address()).unwrap();
    let site = Site::with(&server.url_at(proxy.address()));
    (server, proxy, site)
}

/// The network is gone.
fn cut_off(proxy: &Proxy) {
    proxy.new_connections(NewConnections::Refuse);
    proxy.cut(Cut::Reset);
}

fn exists(server: &Server, name: &str) -> bool {
    server.cmd(&["EXISTS", name]).int() == Some(1)
}

fn token(site: &Site, name: &str) -> String {
    site.show(name)["holder"]["token"].as_str().unwrap().to_owned()
}

/// A revoked lock: SIGTERM at once, and the code says why, whatever the command's was.
#[test]
fn a_revoked_lock_terminates_the_command() {
    let server = Server::start(ServerKind::any());
    server.without_guard();
    for site in [Site::new(), Site::with(&server.url())] {
        for delayed in [&[][..], &["--delayed"]] {
            for file in ["ready", "heard"] {
                site.remove(file);
            }
            let script = "trap 'echo > heard; exit 5' TERM; echo > ready; \
                          while :; do sleep 0.01; done";
            let runner = site.running(&["x"], script);
            let token = token(&site, "x");
            let mut revoke = site.program(&["revoke", "x", "--token", &token]);
            revoke.args(delayed);
            let revoked = support::ran(revoke);
            assert_eq!(revoked.code(), 0, "{revoked:?}");
            let ran = runner.end();
            assert_eq!(ran.code(), 74, "{ran:?}");
            assert!(ran.stderr.contains("an operator revoked it"), "{ran:?}");
            assert!(site.has("heard"));
            eventually(SOON, || site.is_free("x"));
        }
    }
}

/// One that does not end then is killed 2 s later.
#[test]
fn a_stubborn_command_of_a_revoked_lock_is_killed() {
    let site = Site::new();
    let script = "trap 'echo > heard' TERM; echo > ready; while :; do sleep 0.01; done";
    let runner = site.running(&["x"], script);
    let began = Instant::now();
    assert_eq!(site.ran(&["revoke", "x", "--token", &token(&site, "x")]).code(), 0);
    let ran = runner.end();
    assert_eq!(ran.code(), 74, "{ran:?}");
    assert!(site.has("heard"));
    assert!(began.elapsed() >= Duration::from_secs(2), "{:?}", began.elapsed());
}

/// --on-lost=kill does not ask.
#[test]
fn on_lost_kill() {
    let site = Site::new();
    let script = "trap 'echo > heard' TERM; echo > ready; while :; do sleep 0.01; done";
    let runner = site.running(&["x", "--on-lost", "kill"], script);
    assert_eq!(site.ran(&["revoke", "x", "--token", &token(&site, "x")]).code(), 0);
    let ran = runner.end();
    assert_eq!(ran.code(), 74, "{ran:?}");
    assert!(!site.has("heard"));
}

/// --on-lost=warn says so, and the code is the command's.
#[test]
fn on_lost_warn() {
    let site = Site::new();
    let script = format!("echo > ready; {}; exit 8", until("go"));
    let runner = site.running(&["x", "--on-lost", "warn"], &script);
    assert_eq!(site.ran(&["revoke", "x", "--token", &token(&site, "x")]).code(), 0);
    // Another holds it already, and the command goes on.
    assert_eq!(site.run(&["x"], "exit 0").end().code(), 0);
    site.write("go");
    let ran = runner.end();
    assert_eq!(ran.code(), 8, "{ran:?}");
    assert!(ran.stderr.contains("was lost: an operator revoked it"), "{ran:?}");
}

/// A store that stays away: the command is told before the lock may be another's, and dead by then.
#[test]
fn a_store_that_stays_away_stops_the_command_in_time() {
    for stubborn in [false, true] {
        let (_server, proxy, site) = behind_proxy();
        let on_term = if stubborn { ":" } else { "exit 5" };
        let script = format!(
            "trap 'echo > heard; {on_term}' TERM; echo > ready; \
             while :; do echo x > alive; sleep 0.01; done"
        );
        // The shortest grace: it is what ends it, long before the lease.
        let runner = site.running(&["x", "--grace", "3s"], &script);
        cut_off(&proxy);
        let away = SystemTime::now();
        let ran = runner.end();
        assert_eq!(ran.code(), 74, "{ran:?}");
        assert!(site.has("heard"), "{ran:?}");
        assert!(ran.stderr.contains("at risk"), "{ran:?}");
        // By the grace after the last answer, and not at once: what was answered last was asked for
        // within the second before.
        let alive = std::fs::metadata(site.path("alive")).unwrap().modified().unwrap();
        let lived = alive.duration_since(away).unwrap_or_default();
        assert!(lived < Duration::from_secs(3), "{lived:?}");
        assert!(lived > Duration::from_secs(1), "{lived:?}");
    }
}

/// The same by a network that is silent, where nothing is refused or closed.
#[test]
fn a_silent_network_stops_the_command_in_time() {
    let (_server, proxy, site) = behind_proxy();
    let script = "echo > ready; exec sleep 1000";
    let runner = site.running(&["x", "--grace", "3s", "--on-lost", "kill"], script);
    proxy.half_open(NewConnections::Ignore);
    let ran = runner.end();
    assert_eq!(ran.code(), 74, "{ran:?}");
}

/// A short outage does not concern the command.
#[test]
fn a_short_outage_is_ridden_out() {
    let (server, proxy, site) = behind_proxy();
    let script = format!("echo > ready; {}; exit 3", until("go"));
    let runner = site.running(&["x"], &script);
    cut_off(&proxy);
    // As long as a restart takes; what is tried is the length.
    std::thread::sleep(Duration::from_secs(2));
    proxy.heal();
    assert!(exists(&server, "x"));
    // The link stands again: the lock is renewed over it.
    eventually(SOON, || site.show("x")["holder"]["alive"] == true);
    site.write("go");
    let ran = runner.end();
    assert_eq!(ran.code(), 3, "{ran:?}");
    assert!(!exists(&server, "x"));
}

/// C46, first: the store is away when the command ends, and comes back within the patience.
#[test]
fn c46_the_release_is_tried_again() {
    let (server, proxy, site) = behind_proxy();
    let script = format!("echo > ready; {}; exit 3", until("go"));
    let runner = site.running(&["x", "--lease", "60s"], &script);
    cut_off(&proxy);
    site.write("go");
    // The store stays away for longer than one try takes, and for less than the patience: what is tried is
    // the length.
    std::thread::sleep(Duration::from_secs(1));
    proxy.heal();
    let back = Instant::now();
    let ran = runner.end();
    assert_eq!(ran.code(), 3, "{ran:?}");
    assert!(!exists(&server, "x"), "{ran:?}");
    assert!(!ran.stderr.contains("could not be released"), "{ran:?}");
    println!("released {:?} after the store was back", back.elapsed());
}

/// C46, second: it does not come back. A warning, the command's code, and the lock ends by itself.
#[test]
fn c46_the_release_is_given_up() {
    let (server, proxy, site) = behind_proxy();
    let script = format!("echo > ready; {}; exit 3", until("go"));
    let runner = site.running(&["x", "--lease", "20s"], &script);
    cut_off(&proxy);
    let away = Instant::now();
    site.write("go");
    let ran = runner.end();
    assert_eq!(ran.code(), 3, "{ran:?}");
    assert!(ran.stderr.contains("the lock x could not be released"), "{ran:?}");
    assert!(ran.stderr.contains("it ends by itself within 20.0 s"), "{ran:?}");
    assert!(away.elapsed() < Duration::from_secs(10), "{:?}", away.elapsed());
    // Nobody renews it any more.
    let ttl = server.cmd(&["PTTL", "x"]).int().unwrap();
    assert!(ttl <= 20_000, "{ttl}");
    eventually(SOON, || !exists(&server, "x"));
}

/// C46, third: the server closes idle connections.
#[test]
fn c46_idle_connections_are_closed() {
    let server = Server::builder(ServerKind::any()).config("timeout", "1").start();
    server.without_guard();
    let site = Site::with(&server.url());
    // For longer than such a connection lives.
    let ran = site.ran(&["run", "x", "--lease", "60s", "--", "sh", "-c", "sleep 3; exit 3"]);
    assert_eq!(ran.code(), 3, "{ran:?}");
    assert!(!exists(&server, "x"), "{ran:?}");
}

/// A lock that is lost while the command runs, but the command ends by itself first: its own code,
/// and a word about it.
#[test]
fn a_command_that_ends_by_itself_keeps_its_code() {
    let server = Server::start(ServerKind::any());
    server.without_guard();
    let site = Site::with(&server.url());
    let script = format!("echo > ready; {}; exit 3", until("go"));
    let runner = site.running(&["x"], &script);
    // Nobody tells the holder; the next renewal would be in 10 s.
    server.cmd(&["SET", "x", "another", "PX", "60000"]);
    site.write("go");
    let ran = runner.end();
    assert_eq!(ran.code(), 3, "{ran:?}");
    assert!(ran.stderr.contains("before the command ended: the lock x was lost"), "{ran:?}");
    // And the other one is not hurt.
    assert!(exists(&server, "x"));
}

/// C44, C37: while the store is away nothing runs, and the code says so.
#[test]
fn c37_an_absent_store_is_not_a_busy_lock() {
    let mut server = Server::start(ServerKind::any());
    let url = server.url();
    server.kill9();
    let site = Site::with(&url);
    for args in [
        &["run", "x", "--no-wait", "--", "touch", "ran"][..],
        &["run", "x", "--wait", "1s", "--", "touch", "ran"],
        &["run", "x", "--", "touch", "ran"],
        &["ls"],
        &["show", "x"],
        &["wait", "x"],
        &["revoke", "x", "--token", "t"],
    ] {
        let ran = site.ran(args);
        assert_eq!(ran.code(), 69, "{args:?}: {ran:?}");
        assert!(ran.stderr.contains("unreachable"), "{ran:?}");
        assert!(ran.stdout.is_empty());
    }
    assert!(!site.has("ran"));
}

/// `--at-most`: the command is told to end a quarter of it before, and is gone when it is over; 74 says why.
#[test]
fn at_most_ends_the_command() {
    let server = Server::start(ServerKind::any());
    server.without_guard();
    for site in [Site::new(), Site::with(&server.url())] {
        let script = "trap 'echo > heard; exit 5' TERM; echo > ready; while :; do sleep 0.01; done";
        let began = Instant::now();
        let ran = site.run(&["x", "--at-most", "1500ms", "--label", "brief"], script).end();
        assert_eq!(ran.code(), 74, "{ran:?}");
        assert!(site.has("heard"), "{ran:?}");
        let took = began.elapsed();
        assert!(took >= Duration::from_secs(1) && took < Duration::from_secs(10), "{took:?}");
        assert!(ran.stderr.contains("--at-most"), "{ran:?}");
        assert!(site.is_free("x"));
        // One that ends in time hears nothing of it.
        let ran = site.ran(&["run", "x", "--at-most", "20s", "--", "sh", "-c", "exit 3"]);
        assert_eq!((ran.code(), ran.stderr.as_str()), (3, ""));
        site.remove("heard");
        site.remove("ready");
    }
    for bad in ["0s", "-5s", "99ms", "5", "200000d"] {
        let ran = Site::new().ran(&["run", "x", "--at-most", bad, "--", "true"]);
        assert_eq!(ran.code(), 64, "{bad}: {ran:?}");
    }
}
