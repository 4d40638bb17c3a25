//! `run --shared` and `run --permits`, on the embedded store and on Redis.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]

mod support;

use rustix::process::Signal;
use serde_json::json;
use support::{Ran, Site, end, hold, sites};

fn try_once(site: &Site, options: &[&str]) -> Ran {
    site.run(&[options, &["--no-wait"]].concat(), "true").end()
}

#[test]
fn readers_run_together_and_a_killed_one_is_noticed() {
    for (_server, site) in sites() {
        let one = hold(&site, "one", &["x", "--shared"]);
        let two = hold(&site, "two", &["x", "--shared"]);
        assert_eq!(try_once(&site, &["x"]).code(), 75);
        let shown = site.show("x");
        assert_eq!(
            (&shown["holder"]["mode"], &shown["beside"][0]["mode"]),
            (&json!("shared"), &json!("shared"))
        );
        let words = site.ran(&["show", "x"]).text();
        assert!(words.contains("held (shared)") && words.contains("beside "), "{words}");
        // Whoever waits for both is shown to wait for both.
        let waiting = site.run(&["x", "--wait", "20s"], "true");
        site.await_queue("x", 1);
        let words = site.ran(&["graph"]).text();
        assert!(
            words.contains("x is held by one ") && words.contains(", beside two ")
                || words.contains("x is held by two ") && words.contains(", beside one "),
            "{words}"
        );
        assert_eq!(site.ran(&["graph", "--dot"]).text().matches("[label=\"held by\"]").count(), 2);
        waiting.signal(Signal::TERM);
        assert_eq!(waiting.end().code(), 128 + 15);
        // The runner and its command are gone at once: what they held is, too.
        one.signal(Signal::KILL);
        site.write("go-one");
        let writer = site.run(&["x", "--wait", "20s"], "true");
        site.await_queue("x", 1);
        end(&site, "two", two);
        let ran = writer.end();
        assert_eq!(ran.code(), 0, "{ran:?}");
    }
}

#[test]
fn so_many_permits_and_no_more() {
    for (_server, site) in sites() {
        let one = hold(&site, "one", &["pool", "--permits", "1/3"]);
        let two = hold(&site, "two", &["pool", "--permits", "2/3"]);
        let ran = try_once(&site, &["pool", "--permits", "1/3"]);
        assert_eq!(ran.code(), 75, "{ran:?}");
        for other in [&["pool"][..], &["pool", "--shared"], &["pool", "--permits", "1/4"]] {
            let ran = try_once(&site, other);
            assert_eq!(ran.code(), 64, "{ran:?}");
            assert!(ran.stderr.contains("of 3 permits"), "{ran:?}");
        }
        end(&site, "two", two);
        assert_eq!(try_once(&site, &["pool", "--permits", "2/3"]).code(), 0);
        end(&site, "one", one);
        assert!(site.is_free("pool"));
    }
}

#[test]
fn bad_input_is_refused_and_named() {
    let site = Site::new();
    for (permits, rule) in [
        ("0/3", "0 of 3 permits are out of range"),
        ("4/3", "4 of 3 permits are out of range"),
        ("1/1000001", "1 of 1000001 permits are out of range"),
        ("1", "permits are N/M"),
        ("-1/3", "permits are N/M"),
        ("one/3", "permits are N/M"),
        ("", "permits are N/M"),
    ] {
        let ran = try_once(&site, &["x", "--permits", permits]);
        assert_eq!(ran.code(), 64, "{ran:?}");
        assert!(ran.stderr.contains(rule), "{ran:?}");
    }
    let ran = try_once(&site, &["x", "--shared", "--permits", "1/2"]);
    assert_eq!(ran.code(), 64, "{ran:?}");
    assert!(site.is_free("x"));
}
