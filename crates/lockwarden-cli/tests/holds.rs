//! `run --at-least` and `run --lock-delay`, on the embedded store and on Redis.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]

mod support;

use rustix::process::Signal;
use std::time::{Duration, Instant};
use support::{Site, hold, sites, wait_for};

/// From the start of a `run` that waits until it has run.
fn waited(site: &Site) -> Duration {
    let began = Instant::now();
    let ran = site.run(&["x", "--wait", "30s"], "true").end();
    assert_eq!(ran.code(), 0, "{ran:?}");
    began.elapsed()
}

/// A short job does not run twice within its minimum, and whoever is refused is told why.
#[test]
fn a_short_job_keeps_its_minimum() {
    for (_server, site) in sites() {
        let began = Instant::now();
        let ran = site.run(&["x", "--at-least", "2s", "--label", "nightly"], "exit 3").end();
        assert_eq!(ran.code(), 3, "{ran:?}");
        assert!(began.elapsed() < Duration::from_secs(2), "the command's end is ours");
        let ran = site.run(&["x", "--no-wait"], "true").end();
        assert_eq!(ran.code(), 75, "{ran:?}");
        assert!(
            ran.stderr.contains("nobody holds it") && ran.stderr.contains("nightly"),
            "{ran:?}"
        );
        assert_eq!(site.show("x")["holder"]["state"], "cooling");
        assert!(site.ran(&["show", "x"]).text().contains("held by nobody, but not free"));
        assert!(site.ran(&["ls"]).text().contains("cooling"));
        // Dead or gone, it is not free for whoever waits for that either.
        assert_eq!(site.ran(&["wait", "x", "--wait", "0s"]).code(), 75);
        let waiting = site.run(&["x", "--wait", "30s"], "true");
        site.await_queue("x", 1);
        assert!(site.ran(&["graph"]).text().contains("x was held last by nightly"));
        assert_eq!(waiting.end().code(), 0);
        assert!(began.elapsed() >= Duration::from_secs(2), "{:?}", began.elapsed());
        assert!(site.is_free("x"));
    }
}

/// R33, R43: a killed command is followed after the rest of its minimum, and after the delay; without either at once.
#[test]
fn a_crash_waits_for_minimum_and_delay() {
    for (_server, site) in sites() {
        for (options, least_ms) in [
            (&["--at-least", "3s"][..], 2_000),
            (&["--lock-delay", "1500ms"], 1_500),
            (&["--lease", "20s", "--grace", "20s"], 0),
        ] {
            site.remove("ready-victim");
            let options = [&["x"], options].concat();
            let victim = hold(&site, "victim", &options);
            // In its minimum's first second.
            victim.signal(Signal::KILL);
            let waited = waited(&site);
            assert!(waited >= Duration::from_millis(least_ms), "{options:?}: {waited:?}");
            // Neither lease nor grace: its end was proven.
            assert!(waited < Duration::from_secs(15), "{options:?}: {waited:?}");
        }
        assert!(site.is_free("x"));
    }
}

/// Who waits for the delay is told that no holder is the reason.
#[test]
fn whoever_waits_for_the_delay_is_told() {
    for (_server, site) in sites() {
        let victim = hold(&site, "victim", &["x", "--lock-delay", "20s"]);
        victim.signal(Signal::KILL);
        let told = wait_for(|| {
            let ran = site.run(&["x", "--no-wait"], "true").end();
            assert_eq!(ran.code(), 75, "{ran:?}");
            ran.stderr.contains("nobody holds it").then_some(ran.stderr)
        });
        assert!(told.contains("the delay after a crash") && told.contains("victim"), "{told}");
        let token = site.show("x")["holder"]["token"].as_str().unwrap().to_owned();
        let revoked = site.ran(&["revoke", "x", "--token", &token]);
        assert_eq!(revoked.code(), 0, "an operator does not wait: {revoked:?}");
        assert!(site.is_free("x"));
    }
}

#[test]
fn bad_input_is_refused_and_named() {
    let site = Site::new();
    for (options, rule) in [
        (["--at-least", "31d"], "hold at least of"),
        (["--at-least", "-1s"], "negative"),
        (["--at-least", "soon"], "is no duration"),
        (["--lock-delay", "31d"], "lock delay of"),
        (["--lock-delay", "5"], "is no duration"),
    ] {
        let ran = site.run(&[&["x"], &options[..]].concat(), "true").end();
        assert_eq!(ran.code(), 64, "{ran:?}");
        assert!(ran.stderr.contains(rule), "{ran:?}");
    }
    let ran = site.run(&["x", "--at-least", "5s", "--at-most", "4s"], "true").end();
    assert_eq!(ran.code(), 64, "{ran:?}");
    assert!(ran.stderr.contains("5s at least, but for 4s at most"), "{ran:?}");
    assert!(site.is_free("x"));
}
