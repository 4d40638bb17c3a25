//! `lockwarden run`: exit codes, and what the command gets (C44).

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]

mod support;

use lockwarden_testkit::process::eventually;
use std::{
    ffi::{OsStr, OsString},
    fs,
    io::{Read, Write},
    os::unix::{ffi::OsStrExt, fs::PermissionsExt},
    process::Stdio,
};
use support::{SOON, Site, is_dead, ran, started, until};

/// C44: the command's code is ours.
#[test]
fn c44_the_exit_code_is_the_commands() {
    let site = Site::new();
    for code in [0, 1, 42, 255] {
        let ran = site.ran(&["run", "x", "--", "sh", "-c", &format!("exit {code}")]);
        assert_eq!(ran.status.code(), Some(code), "{ran:?}");
        assert!(ran.stdout.is_empty() && ran.stderr.is_empty(), "{ran:?}");
    }
    for (signal, code) in [("KILL", 137), ("TERM", 143), ("SEGV", 139)] {
        let ran = site.ran(&["run", "x", "--", "sh", "-c", &format!("kill -{signal} $$")]);
        assert_eq!(ran.status.code(), Some(code), "{ran:?}");
    }
    assert!(site.is_free("x"));
}

#[test]
fn c44_not_found_and_not_executable() {
    let site = Site::new();
    let script = site.path("plain-file");
    fs::write(&script, "#!/bin/sh\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o644)).unwrap();
    for (command, code) in [
        ("no-such-command-anywhere", 127),
        ("/no/such/path", 127),
        ("/", 126),
        (script.to_str().unwrap(), 126),
    ] {
        let ran = site.ran(&["run", "x", "--", command]);
        assert_eq!(ran.code(), code, "{command}: {ran:?}");
        assert!(ran.stderr.contains(command), "{ran:?}");
        assert!(ran.stdout.is_empty());
    }
    assert!(site.is_free("x"));
}

#[test]
fn c44_a_busy_lock_has_its_own_code_and_the_command_does_not_run() {
    let site = Site::new();
    let holder = site.running(&["x"], &format!("echo > ready; {}", until("go")));
    for options in [&["--no-wait"][..], &["--wait", "0s"], &["--wait", "1s"]] {
        let mut command = site.program(&["run", "x"]);
        command.args(options).args(["--", "touch", "ran"]);
        let ran = ran(command);
        assert_eq!(ran.code(), 75, "{ran:?}");
        assert!(ran.stderr.contains("held by (host"), "{ran:?}");
        assert!(ran.stdout.is_empty());
    }
    assert!(!site.has("ran"));
    site.write("go");
    assert_eq!(holder.end().code(), 0);
    assert!(site.is_free("x"));
}

/// C24: the wait is as long as it was told to be.
#[test]
fn c24_a_wait_ends_when_it_should() {
    let site = Site::new();
    let holder = site.running(&["x"], &format!("echo > ready; {}", until("go")));
    let waits: Vec<u128> = (0..3)
        .map(|_| {
            let began = std::time::Instant::now();
            assert_eq!(site.ran(&["run", "x", "--wait", "700ms", "--", "true"]).code(), 75);
            began.elapsed().as_millis()
        })
        .collect();
    // None too early; and none of ours too late, whatever else keeps the machine busy.
    assert!(waits.iter().all(|ms| *ms >= 700), "{waits:?}");
    assert!(waits.iter().any(|ms| *ms < 1_200), "{waits:?}");
    // And one that is long enough gets it.
    let waiter = site.run(&["x", "--wait", "1h"], "exit 5");
    site.await_queue("x", 1);
    site.write("go");
    assert_eq!(waiter.end().code(), 5);
    assert_eq!(holder.end().code(), 0);
}

/// C44: arguments arrive byte for byte, with no shell in between.
#[test]
fn c44_odd_arguments() {
    let site = Site::new();
    let odd: Vec<OsString> = [
        &b""[..],
        b"--",
        b"a b",
        b"'\"$HOME`x`*\\",
        b"--wait",
        b"line\nbreak",
        b"\xff\xfe",
        b"-x",
        b"--",
    ]
    .iter()
    .map(|bytes| OsStr::from_bytes(bytes).to_owned())
    .collect();
    let mut command = site.program(&["run", "x", "--", "printf", "%s\\0"]);
    command.args(&odd);
    let ran = ran(command);
    let mut expected = Vec::new();
    for arg in &odd {
        expected.extend(arg.as_bytes());
        expected.push(0);
    }
    assert_eq!(ran.stdout, expected, "{ran:?}");
}

/// C44: the streams are the command's, byte for byte.
#[test]
fn c44_binary_streams() {
    let site = Site::new();
    let mut command = site.program(&["run", "x", "--", "sh", "-c", "tee /dev/stderr"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = lockwarden_testkit::process::Process::spawn(command).unwrap();
    let data: Vec<u8> = (0..1_000_000u32).map(|i| (i * 7 % 256) as u8).collect();
    let child = process.child();
    let (mut stdin, mut stdout, mut stderr) =
        (child.stdin.take().unwrap(), child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let (mut out, mut err) = (Vec::new(), Vec::new());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            stdin.write_all(&data).unwrap();
            drop(stdin);
        });
        scope.spawn(|| stderr.read_to_end(&mut err).unwrap());
        stdout.read_to_end(&mut out).unwrap();
    });
    assert!(process.wait_exit(SOON).unwrap().success());
    assert!(out == data && err == data, "{} {}", out.len(), err.len());
}

#[test]
fn the_command_gets_the_lock_in_its_environment() {
    let site = Site::new();
    let fence = |store: &str| {
        let mut command = support::program();
        command.current_dir(site.path("")).env("LOCKWARDEN_URL", store);
        command.args(["run", "a b", "--", "sh", "-c"]);
        command.arg(
            "echo \"$LOCKWARDEN_NAME\"; echo $LOCKWARDEN_FENCE; echo $LOCKWARDEN_TOKEN; \
             echo $LOCKWARDEN_URL; echo \"$LOCKWARDEN_NAMES\"",
        );
        let text = ran(command).text();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "a b");
        assert!(!lines[2].is_empty());
        // A place that the command finds from wherever it goes.
        assert_eq!(lines[3], site.url);
        assert_eq!(lines[4], r#"["a b"]"#);
        lines[1].parse::<u64>().unwrap()
    };
    let (first, second) = (fence(&site.url), fence("file:store"));
    assert!(second > first, "fences grow: {first}, {second}");
}

/// What was blocked or ignored, and which descriptors were open, is the command's as it was ours.
#[test]
fn the_command_inherits_what_it_would_without_us() {
    let site = Site::new();
    let look = "grep ^Sig[^Q] /proc/self/status; ls /proc/self/fd | wc -l; umask; pwd";
    for prepare in ["true", "trap '' HUP USR1 CHLD", "exec 7<&0", "trap '' PIPE"] {
        let lines = |through: &str| {
            let mut command = std::process::Command::new("sh");
            let script = format!("{prepare}; exec {through} sh -c '{look}'");
            command.current_dir(site.path("")).args(["-c", &script]).stdin(Stdio::null());
            ran(command).text()
        };
        let mut plain = lines("");
        let ours =
            lines(&format!("{} --store {} run x --", env!("CARGO_BIN_EXE_lockwarden"), site.url));
        if prepare.contains("PIPE") {
            // Rust's start-up has overwritten this one; it is the default for the command.
            let mask = |line: &str| u64::from_str_radix(line.rsplit('\t').next().unwrap(), 16);
            plain = plain
                .lines()
                .map(|line| match line.strip_prefix("SigIgn:") {
                    Some(_) => format!("SigIgn:\t{:016x}\n", mask(line).unwrap() & !(1 << 12)),
                    None => format!("{line}\n"),
                })
                .collect();
        }
        assert_eq!(ours, plain, "{prepare}");
    }
}

/// What the command leaves running in its group ends with it, before the lock is released; what has
/// left the group goes on.
#[test]
fn what_is_left_in_the_group_is_killed() {
    let site = Site::new();
    let script = "sleep 1000 & echo $! > stays; setsid sleep 1000 & echo $! > leaves; \
                  until [ \"$(cut -d' ' -f6 /proc/$!/stat)\" = $! ]; do :; done; exit 4";
    let mut command = site.program(&["run", "x", "--", "sh", "-c", script]);
    // Not ours to wait for: what left the group keeps them open.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut process = lockwarden_testkit::process::Process::spawn(command).unwrap();
    assert_eq!(process.wait_exit(SOON).unwrap().code(), Some(4));
    assert!(is_dead(&site.read("stays")));
    let leaves = site.read("leaves");
    assert!(!is_dead(&leaves));
    let pid = rustix::process::Pid::from_raw(leaves.trim().parse().unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

/// No process of ours is left, whichever way it ends.
#[test]
fn no_process_is_left() {
    let site = Site::new();
    let holder = site.running(&["x"], &format!("echo > ready; {}", until("go")));
    let pids = |name: &str| {
        let shown = site.show(name);
        let pids = shown["holder"]["pids"].as_array().unwrap().clone();
        pids.iter().map(|pid| pid.as_u64().unwrap().to_string()).collect::<Vec<_>>()
    };
    let held = pids("x");
    assert_eq!(held.len(), 3, "runner, command and watcher");
    assert_eq!(site.ran(&["run", "x", "--no-wait", "--", "true"]).code(), 75);
    site.write("go");
    holder.end();
    for pid in &held {
        eventually(SOON, || is_dead(pid));
    }
}

/// Nor a zombie, where nobody collects orphans: both children are ours to collect.
#[test]
fn no_zombie_is_left() {
    let site = Site::new();
    // Orphans come to this process from here on, and it collects none.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).unwrap();
    let children = |of: u32| {
        let children = fs::read_to_string(format!("/proc/{of}/task/{of}/children")).unwrap();
        children.split_ascii_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let holder = site.running(&["x"], &format!("echo > ready; {}", until("go")));
    let waiter = site.run(&["x"], "true");
    site.await_queue("x", 1);
    let pids = [children(holder.process.id()), children(waiter.process.id())].concat();
    assert_eq!(pids.len(), 4, "{pids:?}");
    waiter.signal(rustix::process::Signal::TERM);
    assert_eq!(waiter.end().code(), 143);
    site.write("go");
    assert_eq!(holder.end().code(), 0);
    for pid in pids {
        assert_eq!(support::state(&pid), None, "{pid}");
    }
}

/// While it waits it says for whom, once per change, and nothing with --quiet.
#[test]
fn says_who_holds_the_lock() {
    let site = Site::new();
    let holder =
        site.running(&["x", "--label", "first\x1b"], &format!("echo > ready; {}", until("go")));
    let waiter = site.run(&["x"], "true");
    site.await_queue("x", 1);
    let quiet = site.run(&["x", "-q"], "true");
    site.await_queue("x", 2);
    site.write("go");
    let said = waiter.end().stderr;
    assert!(said.starts_with("lockwarden: waiting for x: held by first\\u{1b} (host "), "{said}");
    assert!(said.lines().count() <= 2, "{said}");
    assert_eq!(quiet.end().stderr, "");
    holder.end();
}

/// The embedded default: where it is, and what happens without a home.
#[test]
fn the_default_store() {
    let site = Site::new();
    let run = |set: &[(&str, &OsStr)]| {
        let mut command = support::program();
        command.current_dir(site.path("")).env_clear().env("PATH", "/usr/bin:/bin");
        for (name, value) in set {
            command.env(name, value);
        }
        command.args(["run", "x", "--", "sh", "-c", "echo $LOCKWARDEN_URL"]);
        started(command).end()
    };
    let (state, home) = (site.path("state"), site.path("home"));
    let place = |dir: &std::path::Path| format!("file:{}\n", dir.display());
    let ran = run(&[("XDG_STATE_HOME", state.as_os_str()), ("HOME", home.as_os_str())]);
    assert_eq!(ran.text(), place(&state.join("lockwarden")));
    let ran = run(&[("HOME", home.as_os_str())]);
    assert_eq!(ran.text(), place(&home.join(".local/state/lockwarden")));
    assert!(home.join(".local/state/lockwarden").is_dir());

    // Without HOME the user database is asked; a user whom it does not know must name a store. (Only
    // root can be another user.)
    if rustix::process::geteuid().is_root() {
        let other = site.path("program");
        fs::copy(env!("CARGO_BIN_EXE_lockwarden"), &other).unwrap();
        fs::set_permissions(site.path(""), fs::Permissions::from_mode(0o711)).unwrap();
        for (user, code, words) in [(65_534, 69, "/nonexistent/"), (54_321, 64, "--store")] {
            let mut command = std::process::Command::new(&other);
            command.current_dir("/").env_clear().args(["run", "x", "--", "true"]);
            std::os::unix::process::CommandExt::uid(&mut command, user);
            let ran = started(command).end();
            assert_eq!(ran.code(), code, "{ran:?}");
            assert!(ran.stderr.contains(words), "{ran:?}");
        }
    }
}
