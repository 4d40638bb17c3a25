//! `ls`, `show`, `revoke`, `recall`, `wait`, `completions`, `man`; and their JSON (C66).

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]

mod support;

use lockwarden_testkit::{
    process::eventually,
    servers::{Server, ServerKind},
};
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};
use support::{SOON, Site, Started, until};

/// Both kinds of stores, and what keeps them.
fn sites() -> (Server, [Site; 2]) {
    let server = Server::start(ServerKind::any());
    server.without_guard();
    let on_server = Site::with(&server.url());
    (server, [Site::new(), on_server])
}

fn hold(site: &Site, options: &[&str]) -> Started {
    site.remove("ready");
    site.remove("go");
    site.running(options, &format!("echo > ready; {}", until("go")))
}

fn keys(value: &Value) -> BTreeSet<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

#[test]
fn show_tells_the_holder_and_the_queue() {
    let (_server, sites) = sites();
    for site in sites {
        let holder =
            hold(&site, &["x", "--label", "nightly\n1", "--lease", "20s", "--grace", "5s"]);
        let second = site.run(&["x", "--label", "second", "--wait", "100s"], "true");
        site.await_queue("x", 1);
        let third = site.run(&["x"], "true");
        site.await_queue("x", 2);
        let shown = site.show("x");
        assert_eq!(keys(&shown), ["beside", "free", "holder", "name", "queue"].into());
        assert_eq!((&shown["name"], &shown["free"]), (&json!("x"), &json!(false)));
        let held = &shown["holder"];
        let expected = [
            "token",
            "lease_left_ms",
            "foreign",
            "label",
            "owner",
            "host",
            "pid",
            "pids",
            "held_ms",
            "since_unix_ms",
            "fence",
            "lease_ms",
            "grace_ms",
            "alive",
            "revoked",
            "state",
            "delay_ms",
            "least_left_ms",
            "endless",
            "mode",
            "session",
            "site",
            "tags",
        ];
        assert_eq!(keys(held), expected.into());
        assert_eq!(held["pid"], holder.process.id());
        assert_eq!(held["pids"].as_array().unwrap().len(), 3);
        assert_eq!(held["label"], "nightly\n1");
        assert_eq!(held["host"], rustix::system::uname().nodename().to_str().unwrap());
        assert_eq!((&held["lease_ms"], &held["grace_ms"]), (&json!(20_000), &json!(5_000)));
        let left = held["lease_left_ms"].as_u64().unwrap();
        assert!((1..=20_000).contains(&left), "{left}");
        assert!(held["fence"].as_u64().unwrap() > 0);
        assert_eq!((&held["alive"], &held["revoked"]), (&json!(true), &json!(false)));
        let queue = shown["queue"].as_array().unwrap();
        let expected = [
            "token",
            "label",
            "owner",
            "host",
            "pid",
            "waited_ms",
            "left_ms",
            "mode",
            "several",
            "alive",
            "session",
            "site",
            "tags",
        ];
        assert_eq!(keys(&queue[0]), expected.into());
        assert_eq!(queue[0]["pid"], second.process.id());
        assert_eq!((&queue[0]["label"], &queue[1]["label"]), (&json!("second"), &json!("")));
        assert!((1..=100_000).contains(&queue[0]["left_ms"].as_u64().unwrap()));
        assert_eq!(
            (&queue[1]["pid"], &queue[1]["left_ms"]),
            (&json!(third.process.id()), &json!(null))
        );

        // The same in words, on one line each.
        let words = site.ran(&["show", "x"]).text();
        for part in
            ["lock     x\n", "nightly\\n1 (host ", "of 20.0 s\n", "1. second (host ", "2. (host "]
        {
            assert!(words.contains(part), "{part:?} is not in\n{words}");
        }
        assert!(words.contains(&format!("token    {}\n", held["token"].as_str().unwrap())));
        site.write("go");
        for started in [holder, second, third] {
            let ran = started.end();
            assert_eq!(ran.code(), 0, "{ran:?}");
        }
        let free = json!({"name": "x", "free": true, "holder": null, "beside": [], "queue": []});
        assert_eq!(site.show("x"), free);
        assert_eq!(site.ran(&["show", "x"]).text(), "lock     x\nstate    free\n");
    }
}

/// Whoever holds or waits is the same words everywhere, so that one finds them again.
#[test]
fn a_party_is_said_in_one_way() {
    let (_server, sites) = sites();
    for site in sites {
        let holder = hold(&site, &["x", "--label", "nightly"]);
        let waiter = site.run(&["x"], "true");
        site.await_queue("x", 1);
        let host = rustix::system::uname().nodename().to_str().unwrap().to_owned();
        let holds = format!("nightly (host {host}, pid {})", holder.process.id());
        let waits = format!(" (host {host}, pid {})", waiter.process.id());
        for view in ["show", "graph"] {
            let words = site.ran(&[view, "x"]).text();
            assert!(words.contains(&holds) && words.contains(&waits), "{words}");
        }
        let table = site.ran(&["ls"]).text();
        assert!(table.contains(&holds), "{table}");
        let busy = site.ran(&["run", "x", "--no-wait", "--", "true"]);
        assert!(busy.stderr.contains(&format!("held by {holds} for ")), "{busy:?}");
        site.write("go");
        for started in [holder, waiter] {
            let ran = started.end();
            assert_eq!(ran.code(), 0, "{ran:?}");
        }
    }
}

/// Tags are shown wherever holders and waiters are; a `run` has no site of its own.
#[test]
fn tags_are_shown() {
    let (_server, sites) = sites();
    for site in sites {
        let tags = ["--tag", "job=nightly", "--tag", "note=a=b \u{e9}\n", "--tag", "job=hourly"];
        let holder = hold(&site, &[&["x"][..], &tags].concat());
        let waiter = site.run(&["x", "--tag", "empty="], "true");
        site.await_queue("x", 1);
        let held = json!({"job": "hourly", "note": "a=b \u{e9}\n"});
        let shown = site.show("x");
        let listed = site.ran(&["ls", "--json"]).json();
        let graph = site.ran(&["graph", "--json"]).json();
        for lock in [&shown, &listed["locks"][0], &graph["locks"][0]] {
            let (holder, waiter) = (&lock["holder"], &lock["queue"][0]);
            assert_eq!((&holder["tags"], &waiter["tags"]), (&held, &json!({"empty": ""})));
            assert_eq!((&holder["site"], &waiter["site"]), (&json!(null), &json!(null)));
        }
        let words = site.ran(&["show", "x"]).text();
        assert!(words.contains("tags     job=hourly note=\"a=b \u{e9}\\n\"\n"), "{words}");
        assert!(words.contains("\n            tags empty=\"\"\n"), "{words}");
        let words = site.ran(&["graph"]).text();
        assert!(words.contains(") [job=hourly note=\"a=b \u{e9}\\n\"] for "), "{words}");
        site.write("go");
        for started in [holder, waiter] {
            let ran = started.end();
            assert_eq!(ran.code(), 0, "{ran:?}");
        }
    }
}

#[test]
fn ls_lists_what_matches() {
    let (server, sites) = sites();
    for site in &sites {
        assert_eq!(site.ran(&["ls", "--json"]).json()["locks"], json!([]));
        assert_eq!(site.ran(&["ls"]).stdout, b"");
        let held: Vec<Started> =
            ["job:b", "job:a", "other", "odd\nname"].iter().map(|it| hold(site, &[it])).collect();
        let names = |args: &[&str]| -> Vec<String> {
            let mut all = vec!["ls", "--json"];
            all.extend(args);
            let listed = site.ran(&all).json();
            let locks = listed["locks"].as_array().unwrap();
            locks.iter().map(|it| it["name"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(names(&[]), ["job:a", "job:b", "odd\nname", "other"]);
        assert_eq!(names(&["job:*"]), ["job:a", "job:b"]);
        assert_eq!(names(&["o*[er]"]), ["odd\nname", "other"]);
        assert_eq!(names(&["nothing"]), [""; 0]);
        let table = site.ran(&["ls"]).text();
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), 5, "{table}");
        assert!(lines[0].starts_with("NAME"), "{table}");
        assert!(lines[3].starts_with("odd\\nname "), "{table}");
        let pid = held[1].process.id().to_string();
        assert!(
            lines[1].starts_with("job:a ") && lines[1].contains(&format!(", pid {pid}) ")),
            "{table}"
        );
        site.write("go");
        for started in held {
            let ran = started.end();
            assert_eq!(ran.code(), 0, "{ran:?}");
        }
        assert_eq!(names(&[]), [""; 0]);
    }
    // Other strings are counted only when asked for; locks of other clients are shown as what they are.
    let site = &sites[1];
    server.cmd(&["SET", "cache:1", "value"]);
    server.cmd(&["SET", "cache:2", "value", "PX", "100000"]);
    server.cmd(&["HSET", "hash", "a", "b"]);
    let listed = site.ran(&["ls", "--json"]).json();
    assert!(listed.get("foreign_keys").is_none(), "{listed}");
    let listed = site.ran(&["ls", "--json", "--foreign"]).json();
    assert_eq!(listed["foreign_keys"], 2, "{listed}");
    let ran = site.ran(&["ls", "--foreign"]);
    assert!(ran.stderr.contains("2 other text keys"), "{ran:?}");
    let shown = site.show("cache:2");
    assert_eq!(
        (&shown["holder"]["foreign"], &shown["holder"]["token"]),
        (&json!(true), &json!("value"))
    );
    assert_eq!(shown["holder"]["label"], json!(null));
    let busy = site.ran(&["run", "cache:2", "--no-wait", "--", "true"]);
    assert_eq!(busy.code(), 75);
    assert!(busy.stderr.contains("another kind of client"), "{busy:?}");
}

/// C66: what is shown is what the store has, whatever became of the holders.
#[test]
fn c66_only_the_living_are_shown() {
    let (_server, sites) = sites();
    for site in sites {
        let mut killed: Vec<Started> =
            (0..3).map(|i| hold(&site, &[&format!("killed:{i}"), "--grace", "3s"])).collect();
        let revoked: Vec<Started> =
            (0..3).map(|i| hold(&site, &[&format!("revoked:{i}")])).collect();
        let living: Vec<Started> = (0..3).map(|i| hold(&site, &[&format!("living:{i}")])).collect();
        assert_eq!(site.ran(&["run", "released", "--", "true"]).code(), 0);
        for runner in &mut killed {
            runner.process.kill9();
        }
        for i in 0..3 {
            let name = format!("revoked:{i}");
            let token = site.show(&name)["holder"]["token"].as_str().unwrap().to_owned();
            assert_eq!(site.ran(&["revoke", &name, "--token", &token]).code(), 0);
        }
        let listed = || {
            let listed = site.ran(&["ls", "--json"]).json();
            let name = |it: &Value| it["name"].as_str().unwrap().to_owned();
            listed["locks"].as_array().unwrap().iter().map(name).collect::<Vec<_>>()
        };
        // The killed ones count until someone wants their locks, or their lease ends.
        for i in 0..3 {
            assert_eq!(
                site.ran(&["run", &format!("killed:{i}"), "--wait", "20s", "--", "true"]).code(),
                0
            );
        }
        assert_eq!(listed(), ["living:0", "living:1", "living:2"]);
        site.write("go");
        for runner in living {
            assert_eq!(runner.end().code(), 0);
        }
        for runner in revoked {
            assert_eq!(runner.end().code(), 74);
        }
        assert!(listed().is_empty());
    }
}

#[test]
fn revoke_hurts_only_the_holder_that_is_named() {
    let (_server, sites) = sites();
    for site in sites {
        let holder = hold(&site, &["x"]);
        let ran = site.ran(&["revoke", "x", "--token", "another"]);
        assert_eq!(ran.code(), 1, "{ran:?}");
        assert!(ran.stderr.contains("nothing was revoked"), "{ran:?}");
        let token = site.show("x")["holder"]["token"].as_str().unwrap().to_owned();
        let revoke = |delayed: bool| {
            let mut args = vec!["revoke", "x", "--json", "--token", &token];
            args.extend(delayed.then_some("--delayed"));
            site.ran(&args)
        };
        let revoked = revoke(true).json();
        assert_eq!((&revoked["name"], &revoked["revoked"]), (&json!("x"), &json!(true)));
        assert!((1..=3_000).contains(&revoked["ends_in_ms"].as_u64().unwrap()), "{revoked}");
        assert_eq!(holder.end().code(), 74);
        eventually(SOON, || site.is_free("x"));
        // Once more: there is nothing of it.
        assert_eq!(revoke(false).code(), 1);
        let holder = hold(&site, &["x"]);
        let token = site.show("x")["holder"]["token"].as_str().unwrap().to_owned();
        let revoked = site.ran(&["revoke", "x", "--json", "--token", &token]).json();
        assert_eq!(revoked["ends_in_ms"], 0);
        assert_eq!(holder.end().code(), 74);
    }
}

/// Whoever holds the lock is asked, and decides; another one is not.
#[test]
fn recall_asks_the_holder() {
    let (server, sites) = sites();
    for site in &sites {
        let free = site.ran(&["recall", "x"]);
        assert_eq!(free.code(), 1, "{free:?}");
        assert!(free.stderr.contains("nobody was asked"), "{free:?}");
        let holder = hold(site, &["x"]);
        let ran = site.ran(&["recall", "x", "--token", "another"]);
        assert_eq!(ran.code(), 1, "{ran:?}");
        let token = site.show("x")["holder"]["token"].as_str().unwrap().to_owned();
        let expected = json!({"name": "x", "recalled": true, "token": token});
        assert_eq!(site.ran(&["recall", "x", "--json"]).json(), expected);
        assert_eq!(site.ran(&["recall", "x", "--json", "--token", &token]).json(), expected);
        let ran = site.ran(&["recall", "x"]);
        assert_eq!((ran.code(), ran.stdout.len()), (0, 0), "{ran:?}");
        assert!(ran.stderr.contains("the holder of the lock x is asked"), "{ran:?}");
        // It goes on, and says who asked.
        assert_eq!(site.show("x")["holder"]["token"], token.as_str());
        site.write("go");
        let ran = holder.end();
        assert_eq!(ran.code(), 0, "{ran:?}");
        assert!(ran.stderr.contains("the lock x is asked for by (host "), "{ran:?}");
        assert!(site.is_free("x"));
    }
    server.cmd(&["SET", "theirs", "value"]);
    for args in [&["recall", "theirs"][..], &["recall", "theirs", "--token", "value"]] {
        let ran = sites[1].ran(args);
        assert_eq!(ran.code(), 1, "{ran:?}");
        assert!(ran.stderr.contains("another kind of client, which cannot be asked"), "{ran:?}");
    }
}

/// `--on-recall=term`: the command is told to end, as by any SIGTERM through us, and the next one has the lock.
#[test]
fn a_recalled_command_ends() {
    let (_server, sites) = sites();
    for site in &sites {
        let script = "trap 'echo > heard; exit 5' TERM; echo > ready; while :; do sleep 0.01; done";
        let runner = site.running(&["x", "--on-recall", "term"], script);
        let next = site.run(&["x"], "true");
        site.await_queue("x", 1);
        assert_eq!(site.ran(&["recall", "x"]).code(), 0);
        let ran = runner.end();
        assert_eq!(ran.code(), 5, "the command's own: {ran:?}");
        assert!(site.has("heard"));
        assert!(ran.stderr.contains("told to end (SIGTERM)"), "{ran:?}");
        assert_eq!(next.end().code(), 0);
        // A stubborn one is killed.
        site.remove("ready");
        let options = ["x", "--on-recall", "term", "--kill-after", "100ms"];
        let script = "trap '' TERM; echo > ready; while :; do sleep 0.01; done";
        let runner = site.running(&options, script);
        assert_eq!(site.ran(&["recall", "x"]).code(), 0);
        assert_eq!(runner.end().code(), 137);
        eventually(SOON, || site.is_free("x"));
    }
}

#[test]
fn wait_waits_until_nobody_holds_it() {
    let (_server, sites) = sites();
    for site in sites {
        let ran = site.ran(&["wait", "x", "--json"]);
        assert_eq!(ran.json()["free"], true, "{ran:?}");
        assert_eq!(site.ran(&["wait", "x", "--wait", "0s"]).text(), "");
        let holder = hold(&site, &["x"]);
        let began = Instant::now();
        let ran = site.ran(&["wait", "x", "--wait", "300ms", "--json"]);
        assert!(began.elapsed() >= Duration::from_millis(300));
        assert_eq!(ran.code(), 75, "{ran:?}");
        assert!(ran.stderr.contains("is not free after"), "{ran:?}");
        assert_eq!(serde_json::from_slice::<Value>(&ran.stdout).unwrap()["free"], false);
        assert_eq!(site.ran(&["wait", "x", "--wait", "0s"]).code(), 75);
        let waiter = support::started(site.program(&["wait", "x"]));
        site.write("go");
        assert_eq!(holder.end().code(), 0);
        assert_eq!(waiter.end().code(), 0);
        // A holder that is killed is seen at once: not at the end of its grace or its lease.
        let mut holder = hold(&site, &["x"]);
        let waiter = support::started(site.program(&["wait", "x"]));
        let began = Instant::now();
        holder.process.kill9();
        assert_eq!(waiter.end().code(), 0);
        assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    }
}

#[test]
fn completions_for_every_shell() {
    let site = Site::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let ran = site.ran(&["completions", shell]);
        assert_eq!(ran.code(), 0, "{ran:?}");
        for word in ["lockwarden", "revoke", "no-wait"] {
            assert!(ran.text().contains(word), "{shell}: {word}");
        }
    }
    // The one that is surely here can read its own.
    let script = format!("eval \"$({} completions bash)\"", env!("CARGO_BIN_EXE_lockwarden"));
    let mut bash = std::process::Command::new("bash");
    bash.args(["-euc", &script]);
    let ran = support::ran(bash);
    assert_eq!((ran.code(), ran.stderr.as_str()), (0, ""));
}

#[test]
fn man_pages() {
    let site = Site::new();
    let page = site.ran(&["man"]).text();
    for part in [".TH lockwarden 1", "lockwarden\\-run(1)", "Exit codes:"] {
        assert!(page.contains(part), "{part}");
    }
    let page = site.ran(&["man", "run"]).text();
    for part in [".TH lockwarden-run 1", "lockwarden run", "setsid", "LOCKWARDEN_FENCE"] {
        assert!(page.contains(part), "{part}\n{page}");
    }
    for command in ["ls", "show", "revoke", "wait", "stress", "completions", "man"] {
        assert_eq!(site.ran(&["man", command]).code(), 0);
    }
}

/// `| head` is no failure.
#[test]
fn a_reader_that_has_seen_enough() {
    let site = Site::new();
    let script =
        format!("{} man run | true; exit ${{PIPESTATUS[0]}}", env!("CARGO_BIN_EXE_lockwarden"));
    let mut bash = std::process::Command::new("bash");
    bash.current_dir(site.path("")).args(["-c", &script]);
    let ran = support::ran(bash);
    assert_eq!((ran.code(), ran.stderr.as_str()), (0, ""));
}
