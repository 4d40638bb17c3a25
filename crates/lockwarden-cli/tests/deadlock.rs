//! G7 on the command line: commands inside commands, across processes; and `graph`.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]

mod support;

use serde_json::json;
use std::{
    io::Write,
    process::{Command, Stdio},
    time::{Duration, Instant},
};
use support::{Site, ran, sites, until};

const PROGRAM: &str = env!("CARGO_BIN_EXE_lockwarden");

/// `run x` inside `run x`, directly and with another lock in between.
#[test]
fn a_run_inside_itself_is_refused() {
    for (_server, site) in sites() {
        for inner in [
            format!("{PROGRAM} run x -- touch ran"),
            format!("{PROGRAM} run y -- {PROGRAM} run x -- touch ran"),
        ] {
            let began = Instant::now();
            let ran = site.run(&["x", "--label", "outer"], &inner).end();
            assert_eq!(ran.code(), 76, "{ran:?}");
            assert!(ran.stderr.contains("deadlock: x is held by outer (host "), "{ran:?}");
            assert!(!site.has("ran"));
            // At once: a wait would end with the test.
            assert!(began.elapsed() < Duration::from_secs(20));
        }
        // Without a wait it is busy, and what it does not hold it may have.
        let inner = format!("{PROGRAM} run x --no-wait -- touch ran");
        assert_eq!(site.run(&["x"], &inner).end().code(), 75);
        let inner = format!("{PROGRAM} run y -- {PROGRAM} run z -- touch ran");
        assert_eq!(site.run(&["x"], &inner).end().code(), 0);
        assert!(site.has("ran"));
        assert!(["x", "y", "z"].iter().all(|name| site.is_free(name)));
        site.remove("ran");
    }
}

/// Parts of one command that run side by side wait for each other like anybody else: no false alarm.
#[test]
fn side_by_side_is_no_deadlock() {
    for (_server, site) in sites() {
        let part = format!("{PROGRAM} run db -- sh -c 'echo x >> ran; sleep 0.05'");
        let ran = site.run(&["x"], &format!("{part} & {part} & {part} & wait")).end();
        assert_eq!(ran.code(), 0, "{ran:?}");
        assert_eq!(site.read("ran").lines().count(), 3, "{ran:?}");
        site.remove("ran");
    }
}

/// Two commands that take two locks in two orders: the one that closes the cycle ends with 76, the other goes on.
#[test]
fn two_orders_across_processes() {
    for (_server, site) in sites() {
        let nested = |inner: &str, ready: &str, go: &str, ran: &str| {
            format!(
                "echo > {ready}; {}; {PROGRAM} run {inner} --label {ran}-inner -- touch {ran}",
                until(go)
            )
        };
        let a = site.run(&["x", "--label", "a"], &nested("y", "ready-a", "go-a", "ran-a"));
        let b = site.run(&["y", "--label", "b"], &nested("x", "ready-b", "go-b", "ran-b"));
        site.await_file("ready-a");
        site.await_file("ready-b");
        site.write("go-a");
        site.await_queue("y", 1);
        let graph = site.ran(&["graph", "--json"]).json();
        assert_eq!(graph["locks"][0]["name"], "y");
        assert_eq!(graph["locks"][0]["holder"]["label"], "b");
        assert_eq!(graph["locks"][0]["queue"][0]["label"], "ran-a-inner");
        let outer = site.show("x")["holder"]["owner"].as_str().unwrap().to_owned();
        let inner = graph["locks"][0]["queue"][0]["owner"].as_str().unwrap();
        assert!(inner.starts_with(&format!("{outer}/")), "{inner} is a part of {outer}");
        site.write("go-b");
        let ran = b.end();
        assert_eq!(ran.code(), 76, "{ran:?}");
        for words in ["x is held by a (host ", "who waits for y is held by b (host "] {
            assert!(ran.stderr.contains(words), "{ran:?}");
        }
        let ran = a.end();
        assert_eq!(ran.code(), 0, "{ran:?}");
        assert!(site.has("ran-a") && !site.has("ran-b"));
        assert!(site.is_free("x") && site.is_free("y"));
    }
}

#[test]
fn graph_says_who_waits_for_whom() {
    for (_server, site) in sites() {
        assert_eq!(site.ran(&["graph"]).text(), "");
        assert_eq!(site.ran(&["graph", "--json"]).json()["locks"], json!([]));
        let holder = site.running(
            &["stock \"1\"\\", "--label", "holder"],
            &format!("echo > ready; {}", until("go")),
        );
        let lonely = site.run(&["nobody-waits"], &until("go"));
        let first = site.run(&["stock \"1\"\\", "--label", "fir\nst"], "true");
        site.await_queue("stock \"1\"\\", 1);
        let second = site.run(&["stock \"1\"\\"], "true");
        site.await_queue("stock \"1\"\\", 2);
        let words = site.ran(&["graph"]).text();
        let lines: Vec<&str> = words.lines().collect();
        assert_eq!(lines.len(), 3, "{words}");
        assert!(lines[0].starts_with("stock \"1\"\\ is held by holder (host "), "{words}");
        assert!(lines[1].starts_with("  1. fir\\nst (host "), "{words}");
        assert!(lines[2].contains(" waits for "), "{words}");
        assert_eq!(site.ran(&["graph", "nobody*"]).text(), "");
        let dot = site.ran(&["graph", "--dot"]).text();
        assert!(dot.starts_with("digraph waits {\n") && dot.ends_with("}\n"), "{dot}");
        assert_eq!(dot.matches(" -> ").count(), 3, "{dot}");
        // Graphviz itself says whether it can read it, where there is one.
        let checked = Command::new("dot")
            .args(["-Tcanon"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn();
        if let Ok(mut checker) = checked {
            checker.stdin.take().unwrap().write_all(dot.as_bytes()).unwrap();
            assert!(checker.wait().unwrap().success(), "{dot}");
        }
        site.write("go");
        for started in [holder, lonely, first, second] {
            assert_eq!(started.end().code(), 0);
        }
        site.remove("go");
        site.remove("ready");
    }
}

/// The owner of an outer `run` is checked like any other value.
#[test]
fn a_bad_owner_is_refused() {
    let site = Site::new();
    for bad in ["a b", "a//b", "\u{e4}", &"x".repeat(600)] {
        let mut command = site.program(&["run", "x", "--", "touch", "ran"]);
        command.env("LOCKWARDEN_OWNER", bad);
        let ran = ran(command);
        assert_eq!(ran.code(), 64, "{ran:?}");
        assert!(ran.stderr.contains("LOCKWARDEN_OWNER"), "{ran:?}");
        assert!(!site.has("ran"));
    }
}
