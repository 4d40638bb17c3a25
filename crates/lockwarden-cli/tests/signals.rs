//! Signals to `lockwarden run` and to its parts (C12, C43, C45; R38).

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]

mod support;

use lockwarden_testkit::process::eventually;
use rustix::process::{Pid, Signal};
use std::{
    path::Path,
    time::{Duration, Instant},
};
use support::{SOON, Site, Started, is_dead, until, wait_for};

/// How often what depends on the moment is tried.
const ROUNDS: u64 = 100;

/// C43: the command hears the signal; we wait for it; the lock is held until it has ended and free
/// right after.
#[test]
fn c43_signals_are_passed_on_and_the_end_awaited() {
    let site = Site::new();
    for signal in ["TERM", "INT", "HUP", "QUIT", "USR1", "USR2", "ALRM"] {
        for file in ["ready", "heard", "go"] {
            site.remove(file);
        }
        // It needs a while to stop: as long as we say.
        let script = format!(
            "trap 'echo > heard; {}; exit 7' {signal}; echo > ready; \
             while :; do sleep 0.01; done",
            until("go")
        );
        let runner = site.running(&["x"], &script);
        runner.signal(number(signal));
        site.await_file("heard");
        let shown = site.show("x");
        assert_eq!(shown["holder"]["pid"], runner.process.id(), "{signal}: {shown}");
        site.write("go");
        let ran = runner.end();
        assert_eq!(ran.status.code(), Some(7), "{signal}: {ran:?}");
        assert!(site.is_free("x"), "{signal}");
    }
}

/// C12, C43: a command that the signal ends shows it, and its lock is free at once.
#[test]
fn c12_a_stopped_command_leaves_no_lock() {
    let site = Site::new();
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129)] {
        site.remove("ready");
        let runner = site.running(&["x"], "echo > ready; exec sleep 1000");
        runner.signal(signal);
        assert_eq!(runner.end().status.code(), Some(code));
        assert!(site.is_free("x"));
    }
}

/// C43: a command that ignores SIGTERM is killed after --kill-after, and only then is the lock free.
#[test]
fn c43_a_stubborn_command_is_killed() {
    let site = Site::new();
    let script = "trap '' TERM; sleep 1000 & echo $! > child; echo $$ > ready; wait; wait";
    let runner = site.running(&["x", "--kill-after", "300ms"], script);
    let next = site.run(
        &["x"],
        "for it in $(cat ready child); do grep -s '^State:' /proc/$it/status; done; exit 0",
    );
    site.await_queue("x", 1);
    let began = Instant::now();
    runner.signal(Signal::TERM);
    assert_eq!(runner.end().status.code(), Some(137));
    assert!(began.elapsed() >= Duration::from_millis(300));
    // When the next one started, nobody of the first was left.
    let states = next.end().text();
    assert!(states.lines().all(|it| it.contains('Z') || it.contains('X')), "{states}");
}

/// C43: one ^C is the command's business; a second one begins its grace.
#[test]
fn c43_the_second_interrupt_counts() {
    let site = Site::new();
    let script = "trap 'echo x >> heard' INT; echo > ready; while :; do sleep 0.01; done";
    let runner = site.running(&["x", "--kill-after", "100ms"], script);
    runner.signal(Signal::INT);
    eventually(SOON, || site.read("heard").lines().count() == 1);
    assert!(!site.is_free("x"));
    runner.signal(Signal::INT);
    assert_eq!(runner.end().status.code(), Some(137));
    assert!(site.is_free("x"));
}

/// Signals that were ignored when we started stay so (nohup).
#[test]
fn ignored_signals_stay_ignored() {
    let site = Site::new();
    let mut command = std::process::Command::new("sh");
    command.current_dir(site.path("")).args(["-c", "trap '' HUP INT; exec \"$@\"", "sh"]);
    command.arg(env!("CARGO_BIN_EXE_lockwarden")).args(["--store", &site.url, "run", "x", "--"]);
    command.args(["sh", "-c", &format!("echo > ready; {}; exit 3", until("go"))]);
    let runner = support::started(command);
    site.await_file("ready");
    for signal in [Signal::HUP, Signal::INT, Signal::HUP, Signal::INT] {
        runner.signal(signal);
    }
    // Came through the same way after them, so they had had their chance.
    runner.signal(Signal::WINCH);
    assert!(!site.is_free("x"));
    site.write("go");
    assert_eq!(runner.end().status.code(), Some(3));
}

/// C45: a signal ends the wait at once; nothing is left, and the command never starts.
#[test]
fn c45_a_wait_can_be_ended() {
    let site = Site::new();
    let holder = site.running(&["x"], &format!("echo > ready; {}", until("go")));
    let mut took = Vec::new();
    for (signal, code) in [
        (Signal::TERM, 143),
        (Signal::INT, 130),
        (Signal::HUP, 129),
        (Signal::QUIT, 131),
        (Signal::USR1, 138),
        (Signal::USR2, 140),
    ] {
        let waiter = site.run(&["x", "--wait", "60s"], "echo > started");
        site.await_queue("x", 1);
        let began = Instant::now();
        waiter.signal(signal);
        let ran = waiter.end();
        took.push(began.elapsed());
        assert_eq!(ran.status.code(), Some(code), "{ran:?}");
        assert_eq!(site.show("x")["queue"].as_array().unwrap().len(), 0);
    }
    // Not each, for the machine may be busy with other things.
    took.sort();
    assert!(took[took.len() / 2] < Duration::from_millis(500), "{took:?}");
    site.write("go");
    assert_eq!(holder.end().code(), 0);
    assert!(!site.has("started"));
}

/// C45: so does one that comes in the first moments, whenever exactly.
#[test]
fn c45_in_the_first_50_ms() {
    let site = Site::new();
    let holder = site.running(&["x"], &format!("echo > ready; {}", until("go")));
    for round in 0..ROUNDS {
        let waiter = site.run(&["x"], "echo > started");
        // The moment is what is tried: each round another one.
        std::thread::sleep(Duration::from_micros(round * 50_000 / ROUNDS));
        waiter.signal(Signal::TERM);
        let ran = waiter.end();
        assert_eq!(ran.code(), 143, "{round}: {ran:?}");
    }
    assert_eq!(site.show("x")["queue"].as_array().unwrap().len(), 0);
    site.write("go");
    assert_eq!(holder.end().code(), 0);
    assert!(!site.has("started"));
    assert!(site.is_free("x"));
}

/// C45: and with the lock free, where the command may have started already: then it got the signal.
#[test]
fn c45_in_the_first_50_ms_of_an_uncontended_run() {
    let site = Site::new();
    let script = "echo x >> started; while :; do sleep 1; done";
    for round in 0..ROUNDS {
        let runner = site.run(&["x"], script);
        std::thread::sleep(Duration::from_micros(round * 50_000 / ROUNDS));
        runner.signal(Signal::TERM);
        let ran = runner.end();
        assert_eq!(ran.code(), 143, "{round}: {ran:?}");
        assert!(site.is_free("x"), "{round}");
    }
}

/// C45: at the moment of the release either the command ran under the lock and got the signal, or it
/// never ran; and the lock is free.
#[test]
fn c45_at_the_moment_of_the_release() {
    let site = Site::new();
    let (mut ran_on, mut never_ran) = (0, 0);
    for round in 0..ROUNDS {
        for file in ["ready", "go", "started", "heard"] {
            site.remove(file);
        }
        let holder = site.running(&["x"], &format!("echo > ready; {}", until("go")));
        let waiter = site.run(
            &["x"],
            "trap 'echo > heard; exit 9' TERM; echo > started; while :; do sleep 0.01; done",
        );
        site.await_queue("x", 1);
        site.write("go");
        // From before the release to after the grant.
        std::thread::sleep(Duration::from_micros(round * 30_000 / ROUNDS));
        waiter.signal(Signal::TERM);
        let ran = waiter.end();
        assert_eq!(holder.end().code(), 0);
        match (ran.code(), site.has("started"), site.has("heard")) {
            (9, true, true) => ran_on += 1,
            // Not, or not far enough to have set its trap.
            (143, _, false) => never_ran += 1,
            other => panic!("{round}: {other:?} {ran:?}"),
        }
        assert!(site.is_free("x"), "{round}");
    }
    println!("{ran_on} commands ran and got the signal, {never_ran} never ran");
}

/// The whole group dies with a runner that is killed by SIGKILL, and the next holder on this machine
/// starts only after that (R38).
#[test]
fn a_killed_runner_takes_its_group_along() {
    let site = Site::new();
    for round in 0..ROUNDS / 2 {
        site.remove("ready");
        // Neither of them would end by itself, or by a signal that can be ignored.
        let script = "trap '' TERM INT HUP; (trap '' TERM INT HUP; sleep 1000 & echo $! > third; \
                      wait) & echo $! > second; \
                      until [ -s third ]; do :; done; echo $$ > ready; wait";
        site.remove("third");
        let mut runner = site.running(&["x"], script);
        let next = site.run(
            &["x"],
            "for it in $(cat ready second third); do grep -s '^State:' /proc/$it/status; done; :",
        );
        site.await_queue("x", 1);
        let began = Instant::now();
        runner.process.kill9();
        let states = next.end().text();
        // Not by the end of the grace or of the lease.
        assert!(began.elapsed() < Duration::from_secs(8), "{round}: {:?}", began.elapsed());
        let dead = |line: &str| line.contains('Z') || line.contains('X');
        assert!(states.lines().all(dead), "{round}: {states}");
    }
    assert!(site.is_free("x"));
}

/// The same for a runner that is killed while it waits: its child never becomes the command.
#[test]
fn a_runner_killed_while_it_waits_leaves_nothing() {
    let site = Site::new();
    let holder = site.running(&["x"], &format!("echo > ready; {}", until("go")));
    for _ in 0..ROUNDS / 2 {
        let mut waiter = site.run(&["x"], "echo > started");
        site.await_queue("x", 1);
        let children = children_of(&waiter);
        assert_eq!(children.len(), 2);
        waiter.process.kill9();
        for child in &children {
            eventually(SOON, || is_dead(child));
        }
        // Its ticket is known to be dead; the next hand-off drops it.
        eventually(SOON, || site.alive_in_queue("x") == 0);
    }
    site.write("go");
    assert_eq!(holder.end().code(), 0);
    assert!(!site.has("started"));
    assert!(site.is_free("x"));
}

/// A runner that is frozen cannot stop its command in time; the watcher does.
#[test]
fn a_frozen_runner_does_not_keep_its_command_alive() {
    let site = Site::new();
    let script = "trap '' TERM; echo $$ > ready; while :; do sleep 0.01; done";
    let mut runner = site.running(&["x", "--lease", "1s"], script);
    let command = site.read("ready");
    runner.process.stop();
    eventually(SOON, || is_dead(&command));
    // And another gets the lock, though the runner's link is up.
    assert_eq!(site.run(&["x"], "exit 0").end().code(), 0);
    runner.process.cont();
    assert_eq!(runner.end().code(), 74);
}

/// A command that someone stops is left alone, and its lock is kept for it beyond the lease.
#[test]
fn a_stopped_command_keeps_its_lock() {
    let site = Site::new();
    let script = format!("echo $$ > ready; {}; exit 6", until("go"));
    let runner = site.running(&["x", "--lease", "300ms"], &script);
    let command = site.read("ready");
    let pid = Pid::from_raw(command.trim().parse().unwrap()).unwrap();
    rustix::process::kill_process(pid, Signal::STOP).unwrap();
    eventually(SOON, || support::state(&command) == Some('T'));
    // For longer than a lease: until it has been renewed a few times.
    let held_ms = || site.show("x")["holder"]["held_ms"].as_u64();
    let since = held_ms().unwrap();
    wait_for(|| held_ms().filter(|ms| *ms > since + 1_000));
    assert_eq!(support::state(&command), Some('T'));
    rustix::process::kill_process(pid, Signal::CONT).unwrap();
    site.write("go");
    assert_eq!(runner.end().code(), 6);
}

/// A SIGTERM that is passed on to a stopped command reaches it.
#[test]
fn a_stopped_command_can_be_terminated() {
    let site = Site::new();
    let runner = site.running(&["x"], "echo $$ > ready; exec sleep 1000");
    let pid = Pid::from_raw(site.read("ready").trim().parse().unwrap()).unwrap();
    rustix::process::kill_process(pid, Signal::STOP).unwrap();
    eventually(SOON, || support::state(&site.read("ready")) == Some('T'));
    runner.signal(Signal::TERM);
    assert_eq!(runner.end().code(), 143);
}

/// The watcher's death is told, and changes nothing else.
#[test]
fn a_killed_watcher_is_told() {
    let site = Site::new();
    let runner = site.running(&["x"], &format!("echo > ready; {}; exit 2", until("go")));
    let watcher = site.show("x")["holder"]["pids"][2].as_i64().unwrap();
    let pid = Pid::from_raw(i32::try_from(watcher).unwrap()).unwrap();
    // Signals that end programs do not end it.
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT] {
        rustix::process::kill_process(pid, signal).unwrap();
    }
    assert!(!is_dead(&watcher.to_string()));
    rustix::process::kill_process(pid, Signal::KILL).unwrap();
    // Reaped by the runner, which has noticed.
    eventually(SOON, || !Path::new(&format!("/proc/{watcher}")).exists());
    site.write("go");
    let ran = runner.end();
    assert_eq!(ran.code(), 2);
    assert!(ran.stderr.contains("the watcher process has died"), "{ran:?}");
}

fn children_of(runner: &Started) -> Vec<String> {
    let pid = runner.process.id();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    children.unwrap().split_ascii_whitespace().map(str::to_owned).collect()
}

fn number(name: &str) -> Signal {
    match name {
        "TERM" => Signal::TERM,
        "INT" => Signal::INT,
        "HUP" => Signal::HUP,
        "QUIT" => Signal::QUIT,
        "USR1" => Signal::USR1,
        "USR2" => Signal::USR2,
        "ALRM" => Signal::ALARM,
        other => panic!("{other}"),
    }
}
