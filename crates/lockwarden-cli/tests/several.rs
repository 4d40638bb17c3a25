//! Several names at once (R29): `lockwarden run x y -- …`, on the embedded store and on Redis.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]

mod support;

use lockwarden_testkit::process::eventually;
use rustix::process::Signal;
use serde_json::Value;
use std::time::{Duration, Instant};
use support::{SOON, Site, end, hold, sites, until};

const PROGRAM: &str = env!("CARGO_BIN_EXE_lockwarden");

/// One try for these names, and how it ended.
fn try_once(site: &Site, names: &[&str]) -> support::Ran {
    site.run(&[names, &["--no-wait"]].concat(), "true").end()
}

fn nothing_is_left(site: &Site) {
    eventually(SOON, || site.ran(&["ls", "--json"]).json()["locks"].as_array().unwrap().is_empty());
}

/// All are held while the command runs, by one acquisition, and free afterwards.
#[test]
fn all_are_held_and_given_back_together() {
    for (_server, site) in sites() {
        let holder = hold(&site, "both", &["y", "x", "y"]);
        let (x, y) = (site.show("x"), site.show("y"));
        for field in ["token", "fence", "owner", "pids", "label"] {
            assert_eq!(x["holder"][field], y["holder"][field], "{field}");
        }
        for (names, in_the_way) in [(&["x"][..], "x"), (&["y"], "y"), (&["a", "y", "z"], "y")] {
            let ran = try_once(&site, names);
            assert_eq!(ran.code(), 75, "{ran:?}");
            let words = format!("the lock {in_the_way} is busy: held by both (host ");
            assert!(ran.stderr.contains(&words), "{ran:?}");
        }
        // What was free of the refused ones is free still.
        assert!(site.is_free("a") && site.is_free("z"));
        end(&site, "both", holder);
        assert!(site.is_free("x") && site.is_free("y"));
        nothing_is_left(&site);
    }
}

/// The first as given, and all as JSON, for a name may have any character that could stand between two.
#[test]
fn the_command_gets_all_names() {
    let site = Site::new();
    let look =
        "printf '%s|%s|' \"$LOCKWARDEN_NAME\" $LOCKWARDEN_FENCE; printf %s \"$LOCKWARDEN_NAMES\"";
    let ran = site.run(&["z", "a \"b\"\n,c", "z", "ü"], look).end();
    assert_eq!(ran.code(), 0, "{ran:?}");
    let text = ran.text();
    let parts: Vec<&str> = text.splitn(3, '|').collect();
    assert_eq!(parts[0], "z");
    assert!(parts[1].parse::<u64>().unwrap() > 0);
    let names: Vec<String> = serde_json::from_str(parts[2]).unwrap();
    assert_eq!(names, ["z", "a \"b\"\n,c", "ü"]);
    // One inside another has its own.
    let inner = format!("{PROGRAM} run c -- sh -c 'printf %s \"$LOCKWARDEN_NAMES\"'");
    assert_eq!(site.run(&["a", "b"], &inner).end().text(), r#"["c"]"#);
}

/// More than a variable may have: the command runs without it, and we say so. An outer one does not stand for it.
#[test]
fn names_that_do_not_fit_are_left_out() {
    let site = Site::new();
    let names: Vec<String> = (0..40).map(|n| format!("{n:02}{}", "x".repeat(4_000))).collect();
    let mut command = site.program(&["run"]);
    command.env("LOCKWARDEN_NAMES", "outer");
    command.args(&names).args(["--", "sh", "-c", "echo \"${LOCKWARDEN_NAMES-none}\""]);
    let ran = support::ran(command);
    assert_eq!((ran.code(), ran.text().as_str()), (0, "none\n"), "{}", ran.stderr);
    assert!(ran.stderr.contains("too long together for LOCKWARDEN_NAMES"), "{}", ran.stderr);
    nothing_is_left(&site);
}

#[test]
fn a_thousand_names() {
    for (_server, site) in sites() {
        let names: Vec<String> = (0..1_000).map(|n| format!("n{n}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let holder = hold(&site, "all", &names);
        assert_eq!(try_once(&site, &["n999"]).code(), 75);
        // n99 and n990 to n999; all of them would be more than a pipe takes.
        let listed = site.ran(&["ls", "n99*", "--json"]).json();
        assert_eq!(listed["locks"].as_array().unwrap().len(), 11);
        end(&site, "all", holder);
        nothing_is_left(&site);
    }
}

/// Another `run` with one of them waits for the end, and says for whom.
#[test]
fn one_of_them_is_waited_for() {
    for (_server, site) in sites() {
        let holder = hold(&site, "both", &["x", "y"]);
        let one = site.run(&["y"], "echo one >> order");
        site.await_queue("y", 1);
        let both = site.run(&["y", "x"], "echo both >> order");
        site.await_queue("y", 2);
        site.await_queue("x", 1);
        assert!(!site.has("order"));
        end(&site, "both", holder);
        let (one, both) = (one.end(), both.end());
        assert_eq!((one.code(), both.code()), (0, 0), "{one:?} {both:?}");
        assert_eq!(site.read("order"), "one\nboth\n");
        let words = "lockwarden: waiting for y: held by both (host ";
        assert!(one.stderr.starts_with(words), "{one:?}");
        let words = "lockwarden: waiting for y and x: x and y are held by both (host ";
        assert!(both.stderr.starts_with(words), "{both:?}");
        nothing_is_left(&site);
    }
}

/// While it waits it holds nothing. What is free is kept for the one that came first, and for no other.
#[test]
fn nothing_is_held_while_waiting() {
    for (_server, site) in sites() {
        let holder = hold(&site, "holder", &["x"]);
        let first = site.run(&["x", "y"], "echo first >> order");
        site.await_queue("y", 1);
        let second = site.run(&["z", "x"], "echo second >> order");
        site.await_queue("z", 1);
        assert!(site.show("y")["holder"].is_null() && site.show("z")["holder"].is_null());
        // z is free, and whoever wants it may have it.
        assert_eq!(try_once(&site, &["z"]).code(), 0);
        // y is free, too, but kept.
        let ran = try_once(&site, &["y"]);
        assert_eq!(ran.code(), 75, "{ran:?}");
        assert!(ran.stderr.contains("the lock y is busy: it is kept for others"), "{ran:?}");
        let third = site.run(&["y"], "echo third >> order");
        site.await_queue("y", 2);
        end(&site, "holder", holder);
        let ended = [first.end(), second.end(), third.end()];
        assert!(ended.iter().all(|ran| ran.code() == 0), "{ended:?}");
        let said = &ended[2].stderr;
        assert!(said.starts_with("lockwarden: waiting for y: kept for others"), "{said}");
        let order = site.read("order");
        assert!(order.starts_with("first\n"), "{order}");
        assert_eq!(order.lines().count(), 3, "{order}");
        nothing_is_left(&site);
        site.remove("order");
    }
}

/// `show`, `ls` and `graph` where somebody waits for several.
#[test]
fn views_tell_who_waits_for_several() {
    for (_server, site) in sites() {
        let holder = hold(&site, "holder", &["v", "x"]);
        let waiter = site.run(&["x", "y", "--label", "waiter"], "true");
        site.await_queue("y", 1);
        let (x, y) = (site.show("x"), site.show("y"));
        assert_eq!(x["queue"][0]["several"], true);
        assert_eq!(y["queue"][0]["token"], x["queue"][0]["token"]);
        assert!(y["holder"].is_null() && y["free"] == false);
        let words = site.ran(&["show", "y"]).text();
        let expected = "state    free; the first in the queue waits for other locks, too\n";
        assert!(words.contains(expected), "{words}");
        assert!(words.contains(", for ever, for several locks at once\n"), "{words}");
        let words = site.ran(&["graph"]).text();
        let lines: Vec<&str> = words.lines().collect();
        assert_eq!(lines.len(), 4, "{words}");
        assert!(lines[0].starts_with("x is held by holder (host "), "{words}");
        assert!(lines[1].starts_with("  1. waiter (host "), "{words}");
        assert!(lines[1].ends_with(", to have several at once"), "{words}");
        assert_eq!(lines[2], "y is free");
        // One box for the waiter, and an arrow from it to each.
        let dot = site.ran(&["graph", "--dot"]).text();
        assert_eq!(dot.matches("shape=box").count(), 2, "{dot}");
        assert_eq!(dot.matches("-> \"lock x\"").count(), 1, "{dot}");
        assert_eq!(dot.matches("-> \"lock y\"").count(), 1, "{dot}");
        let locks = site.ran(&["ls", "--json"]).json()["locks"].clone();
        let names: Vec<&Value> = locks.as_array().unwrap().iter().map(|it| &it["name"]).collect();
        assert_eq!(names, ["v", "x", "y"]);
        // Who waits for y alone waits for the one that it is kept for, and y is not about to be granted.
        let behind = site.run(&["y"], "true");
        site.await_queue("y", 2);
        assert_eq!(site.show("y")["queue"][1]["several"], false);
        assert!(site.ran(&["show", "y"]).text().contains(expected));
        assert!(site.ran(&["graph"]).text().contains("\ny is free\n"));
        end(&site, "holder", holder);
        assert_eq!((waiter.end().code(), behind.end().code()), (0, 0));
        nothing_is_left(&site);
    }
}

/// A runner that is killed gives back all, as fast as one that has one: long before its grace of 10 s.
#[test]
fn a_killed_runner_frees_all() {
    for (_server, site) in sites() {
        let holder = hold(&site, "killed", &["x", "y", "z"]);
        let waiters = [site.run(&["x"], "true"), site.run(&["y"], "true")];
        site.await_queue("x", 1);
        site.await_queue("y", 1);
        let began = Instant::now();
        holder.signal(Signal::KILL);
        for waiter in waiters {
            assert_eq!(waiter.end().code(), 0);
        }
        // Nobody waited for this one.
        eventually(SOON, || try_once(&site, &["z", "x"]).code() == 0);
        assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
        assert_eq!(holder.end().code(), 137);
        nothing_is_left(&site);
    }
}

/// A waiter that is killed, or gives up, leaves nothing, and what was kept for it is free.
#[test]
fn a_waiter_that_has_gone_keeps_nothing() {
    for (_server, site) in sites() {
        let holder = hold(&site, "holder", &["x"]);
        for (signal, code) in [(Signal::KILL, 137), (Signal::TERM, 143)] {
            let waiter = site.run(&["x", "y"], "true");
            site.await_queue("y", 1);
            assert_eq!(try_once(&site, &["y"]).code(), 75);
            waiter.signal(signal);
            assert_eq!(waiter.end().code(), code);
            eventually(SOON, || try_once(&site, &["y"]).code() == 0);
        }
        end(&site, "holder", holder);
        // The tickets of the dead go with the next who asks.
        assert_eq!(try_once(&site, &["x", "y"]).code(), 0);
        nothing_is_left(&site);
    }
}

/// The wait ends in time, and the error names the lock in the way.
#[test]
fn a_wait_that_ends_names_the_lock_in_the_way() {
    for (_server, site) in sites() {
        let holder = hold(&site, "holder", &["b"]);
        let ran = site.run(&["a", "b", "c", "--wait", "1s"], "touch ran").end();
        assert_eq!(ran.code(), 75, "{ran:?}");
        assert!(ran.stderr.contains("the lock b was not granted within "), "{ran:?}");
        assert!(ran.stderr.contains("held by holder (host "), "{ran:?}");
        assert!(!site.has("ran"));
        assert!(site.is_free("a") && site.is_free("c"));
        end(&site, "holder", holder);
        nothing_is_left(&site);
    }
}

/// Where one is lost all are: the command is stopped, and the rest is given back.
#[test]
fn loss_of_one_is_loss_of_all() {
    for (_server, site) in sites() {
        let script = "trap 'echo > heard; exit 5' TERM; echo > ready; while :; do sleep 0.01; done";
        let runner = site.running(&["x", "y"], script);
        let token = site.show("y")["holder"]["token"].as_str().unwrap().to_owned();
        assert_eq!(site.ran(&["revoke", "y", "--token", &token]).code(), 0);
        let ran = runner.end();
        assert_eq!(ran.code(), 74, "{ran:?}");
        assert!(site.has("heard"));
        let words = "of the locks x and y one was lost, and with it all: an operator revoked it";
        assert!(ran.stderr.contains(words), "{ran:?}");
        nothing_is_left(&site);
    }
}

/// `run x` inside `run x y`, `run x y` inside `run x`, directly and with another in between: refused at once.
#[test]
fn inside_itself_is_a_deadlock() {
    for (_server, site) in sites() {
        for (outer, inner) in [
            (&["x", "y"][..], format!("{PROGRAM} run x -- touch ran")),
            (&["x", "y"], format!("{PROGRAM} run y -- touch ran")),
            (&["x"], format!("{PROGRAM} run a x -- touch ran")),
            (&["x", "y"], format!("{PROGRAM} run b -- {PROGRAM} run a x z -- touch ran")),
        ] {
            let began = Instant::now();
            let ran = site.run(&[outer, &["--label", "outer"]].concat(), &inner).end();
            assert_eq!(ran.code(), 76, "{ran:?}");
            assert!(ran.stderr.contains(" is held by outer (host "), "{ran:?}");
            assert!(!site.has("ran"));
            // At once: a wait would end with the test.
            assert!(began.elapsed() < Duration::from_secs(20));
        }
        // Without a wait it is busy, and what it does not hold it may have.
        let inner = format!("{PROGRAM} run a x --no-wait -- touch ran");
        assert_eq!(site.run(&["x", "y"], &inner).end().code(), 75);
        let inner = format!("{PROGRAM} run a b -- touch ran");
        assert_eq!(site.run(&["x", "y"], &inner).end().code(), 0);
        assert!(site.has("ran"));
        site.remove("ran");
        nothing_is_left(&site);
    }
}

/// A cycle through two commands, each with several: the one that closes it ends with 76, the other goes on.
#[test]
fn a_cycle_through_several() {
    for (_server, site) in sites() {
        let nested = |inner: &str, me: &str| {
            let go = until(&format!("go-{me}"));
            format!("echo > ready-{me}; {go}; {PROGRAM} run {inner} -- touch ran-{me}")
        };
        let a = site.run(&["a1", "a2", "--label", "a"], &nested("b2 c", "a"));
        let b = site.run(&["b1", "b2", "--label", "b"], &nested("c a1", "b"));
        site.await_file("ready-a");
        site.await_file("ready-b");
        site.write("go-a");
        site.await_queue("b2", 1);
        site.write("go-b");
        let ran = b.end();
        assert_eq!(ran.code(), 76, "{ran:?}");
        for words in ["a1 is held by a (host ", "b2 is held by b (host "] {
            assert!(ran.stderr.contains(words), "{ran:?}");
        }
        let ran = a.end();
        assert_eq!(ran.code(), 0, "{ran:?}");
        assert!(site.has("ran-a") && !site.has("ran-b"));
        nothing_is_left(&site);
    }
}

/// `run y x` beside `run x y`: each gets its turn, and nobody hears of a deadlock.
#[test]
fn no_order_has_to_be_kept() {
    for (_server, site) in sites() {
        let rounds = |names: &str| {
            let run = format!("{PROGRAM} run -q {names} -- sh -c 'mkdir busy && rmdir busy'");
            let script = format!("for i in 1 2 3 4 5; do {run} || exit; done");
            let mut command = std::process::Command::new("sh");
            command.current_dir(site.path("")).args(["-c", &script]);
            command.env("LOCKWARDEN_URL", &site.url).env_remove("LOCKWARDEN_OWNER");
            support::started(command)
        };
        let started = ["x y", "y x", "z y x", "x z"].map(rounds);
        for started in started {
            let ran = started.end();
            assert_eq!((ran.code(), ran.stderr.as_str()), (0, ""), "{ran:?}");
        }
        nothing_is_left(&site);
    }
}
