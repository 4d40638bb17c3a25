//! Bad input: each a clear error and its own exit code, and nothing is left behind (C25, C26, C27).

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that fails says where")]

mod support;

use lockwarden_testkit::servers::{Server, ServerKind};
use std::{
    ffi::{OsStr, OsString},
    fs,
    os::unix::{ffi::OsStrExt, fs::PermissionsExt},
    time::{Duration, Instant},
};
use support::{Ran, Site, ran};

/// Runs `run` with these arguments before the command, which leaves a mark.
fn run(site: &Site, args: &[&OsStr]) -> Ran {
    let mut command = site.program(&["run"]);
    command.args(args).args(["--", "touch", "ran"]);
    ran(command)
}

/// The code, the words in the message, and no trace.
fn refused(site: &Site, args: &[&OsStr], code: i32, words: &str) {
    let ran = run(site, args);
    assert_eq!(ran.code(), code, "{args:?}: {ran:?}");
    assert!(ran.stderr.contains(words), "{words:?} is not in {ran:?}");
    assert!(ran.stderr.len() < 1_000, "{ran:?}");
    assert!(ran.stdout.is_empty(), "{ran:?}");
    assert!(!site.has("ran"), "{args:?}");
}

fn texts<'a>(args: &'a [&'a str]) -> Vec<&'a OsStr> {
    args.iter().map(OsStr::new).collect()
}

#[test]
fn c27_names() {
    let server = Server::start(ServerKind::any());
    server.without_guard();
    let before = server.cmd(&["DBSIZE"]).int();
    for site in [Site::new(), Site::with(&server.url())] {
        let long = "x".repeat(5 * 1_024);
        let not_text = OsString::from(OsStr::from_bytes(b"\xff\x20raw"));
        refused(&site, &texts(&[""]), 64, "a name must not be empty");
        refused(&site, &texts(&[&long]), 64, "4096 bytes at most; this one has 5120");
        refused(&site, &[&not_text], 64, "a name must be UTF-8");
        refused(&site, &texts(&["lockwarden:meta"]), 64, "reserved");
        // Of several any.
        refused(&site, &texts(&["x", ""]), 64, "a name must not be empty");
        refused(&site, &texts(&["x", "lockwarden:meta", "y"]), 64, "reserved");
        let many: Vec<String> = (0..1_001).map(|n| n.to_string()).collect();
        let many: Vec<&OsStr> = many.iter().map(OsStr::new).collect();
        refused(&site, &many, 64, "1001 locks were asked for at once: at most 1000 may be");
        // The other commands, too.
        for command in ["show", "wait"] {
            assert_eq!(site.ran(&[command, ""]).code(), 64);
            assert_eq!(site.ran(&[command, &long]).code(), 64);
        }
        assert_eq!(site.ran(&["revoke", "", "--token", "t"]).code(), 64);
        assert_eq!(site.ran(&["revoke", "x", "--token", ""]).code(), 64);
        assert_eq!(site.ran(&["recall", ""]).code(), 64);
        assert_eq!(site.ran(&["recall", "x", "--token", ""]).code(), 64);
        // These are names, and each is its own.
        for name in
            ["{", "}{", "{}", "{a}b", "a{b}{c}", "line\nbreak", "ключ-日本-🔒", " ", "--wait"]
        {
            let held = site.program(&["run", "--no-wait"]);
            let mut held = held;
            if name.starts_with('-') {
                // A name that looks like an option needs nothing but its place.
                continue;
            }
            held.args([name, "--", "sh", "-c", "printf %s \"$LOCKWARDEN_NAME\""]);
            let ran = ran(held);
            assert_eq!((ran.code(), ran.text()), (0, name.to_owned()), "{ran:?}");
            assert!(site.is_free(name));
        }
        let listed = site.ran(&["ls", "--json"]).json();
        assert_eq!(listed["locks"].as_array().unwrap().len(), 0, "{listed}");
    }
    // Only `meta` and what the self-test leaves for a moment.
    lockwarden_testkit::process::eventually(support::SOON, || {
        server.cmd(&["DBSIZE"]).int() == before
    });
}

#[test]
fn c26_durations() {
    let site = Site::new();
    let year = "99999d";
    let huge = "99999999999999999999999999999999999999999999h";
    for (option, value, words) in [
        ("--wait", "5", "a number with a unit"),
        ("--wait", "", "a number with a unit"),
        ("--wait", "5x", "a number with a unit"),
        ("--wait", "NaN", "a number with a unit"),
        ("--wait", "-1s", "is negative"),
        ("--wait", huge, "is too long"),
        ("--lease", "0s", "lease of 0 ms is out of range: 100 ms to"),
        ("--lease", "99ms", "out of range"),
        ("--lease", "-5s", "is negative"),
        ("--lease", "31d", "out of range"),
        ("--lease", year, "is too long"),
        ("--grace", "0s", "grace of 0 ms is out of range: 3000 ms to"),
        ("--grace", "2999ms", "out of range"),
        ("--grace", huge, "is too long"),
        ("--kill-after", "soon", "a number with a unit"),
        ("--on-lost", "ignore", "possible values: term, kill, warn"),
        ("--on-recall", "kill", "possible values: ignore, term"),
        ("--tag", "job", "a tag is KEY=VALUE"),
        ("--tag", "=nightly", "the key of a tag must be 1 to 64"),
        ("--tag", "a b=c", "\"a b\""),
    ] {
        refused(&site, &texts(&["x", option, value]), 64, words);
    }
    let long = "x".repeat(257);
    refused(&site, &texts(&["x", "--label", &long]), 64, "a label may have 256 bytes at most");
    refused(&site, &texts(&["x", "--tag", &format!("k={long}")]), 64, "that of \"k\" has 257");
    let tags: Vec<String> = (0..17).map(|i| format!("--tag=k{i}=v")).collect();
    let mut many = vec!["x"];
    many.extend(tags.iter().map(String::as_str));
    refused(&site, &texts(&many), 64, "16 tags at most; there are 17");
    // C25: the least wait is one that ends; none is one try.
    for wait in ["0s", "0ms", "0.1ms", "1ms"] {
        let began = Instant::now();
        assert_eq!(run(&site, &texts(&["x", "--wait", wait])).code(), 0);
        assert!(began.elapsed() < Duration::from_secs(5));
        site.remove("ran");
    }
}

#[test]
fn usage_errors_have_one_code() {
    let site = Site::new();
    for args in [
        &[][..],
        &["nonsense"],
        &["run"],
        &["run", "x"],
        &["run", "x", "touch", "ran"],
        &["run", "x", "y", "--"],
        &["run", "--", "touch", "ran"],
        &["run", "x", "--wait", "1s", "--no-wait", "--", "touch", "ran"],
        &["run", "x", "--lease"],
        &["show"],
        &["show", "x", "y"],
        &["revoke", "x"],
        &["recall"],
        &["completions", "csh"],
        &["man", "nonsense"],
    ] {
        let ran = site.ran(args);
        assert_eq!(ran.code(), 64, "{args:?}: {ran:?}");
        assert!(!ran.stderr.is_empty() && ran.stdout.is_empty(), "{ran:?}");
    }
    assert!(!site.has("ran"));
    // Names or a command? Nobody can know.
    for args in [&["run", "x"][..], &["run", "x", "touch", "ran"], &["run", "x", "y", "--no-wait"]]
    {
        let ran = site.ran(args);
        assert!(ran.stderr.contains("the command stands behind --"), "{ran:?}");
    }
    for args in
        [&["--help"][..], &["--version"], &["run", "--help"], &["help", "run"], &["ls", "-h"]]
    {
        let ran = site.ran(args);
        assert_eq!(ran.code(), 0, "{args:?}: {ran:?}");
        assert!(ran.stderr.is_empty() && !ran.stdout.is_empty(), "{ran:?}");
    }
}

#[test]
fn wrong_urls() {
    for (url, words) in [
        ("", "--store needs a URL"),
        ("http://localhost", "redis://HOST"),
        ("localhost:6379", "redis://HOST"),
        ("redis", "redis://HOST"),
        ("file:", "names no directory"),
        ("file://host/dir", "names no host"),
        ("redis://", "host"),
        ("redis://localhost/db", "database"),
        ("redis://localhost:99999", "port"),
        ("unix://relative", "absolute path"),
    ] {
        refused(&Site::with(url), &texts(&["x"]), 64, words);
    }
    // From the variable the same; an empty one is none.
    let site = Site::new();
    let mut command = support::program();
    command.current_dir(site.path("")).env("LOCKWARDEN_URL", "gopher://x");
    assert_eq!(
        ran({
            command.args(["ls"]);
            command
        })
        .code(),
        64
    );
    let mut command = support::program();
    command.env("LOCKWARDEN_URL", "").env("XDG_STATE_HOME", site.path("state"));
    assert_eq!(
        ran({
            command.args(["ls"]);
            command
        })
        .code(),
        0
    );
}

#[test]
fn servers_that_refuse() {
    let kind = ServerKind::any();
    let secret = Server::builder(kind).password("secret").start();
    secret.without_guard();
    let address = secret.address();
    let replica = Server::builder(kind).config("replicaof", "127.0.0.1 1").start();
    let mut servers = vec![
        (format!("redis://{address}"), "password"),
        (format!("redis://:wrong@{address}"), "wrong user or password"),
        (format!("redis://nobody:wrong@{address}"), "wrong user or password"),
        (replica.url(), "read-only"),
    ];
    let limited = kind.has_acl().then(|| {
        let server =
            Server::builder(kind).acl_user("locker", "on >secret ~* resetchannels +@all").start();
        server.without_guard();
        server
    });
    if let Some(limited) = &limited {
        servers.push((format!("redis://locker:secret@{}", limited.address()), "channel"));
    }
    for (url, words) in servers {
        let site = Site::with(&url);
        for wait in [&["--no-wait"][..], &["--wait", "300ms"]] {
            let mut args = vec!["x"];
            args.extend(wait);
            let ran = run(&site, &texts(&args));
            assert_eq!(ran.code(), 69, "{url}: {ran:?}");
            assert!(ran.stderr.to_lowercase().contains(&words.to_lowercase()), "{url}: {ran:?}");
            assert!(!ran.stderr.contains("wrong@"), "a password is shown: {ran:?}");
            assert!(!site.has("ran"));
        }
    }
    assert_eq!(secret.cmd(&["EXISTS", "x"]).int(), Some(0));
    let site = Site::with(&secret.url());
    assert_eq!(run(&site, &texts(&["x"])).code(), 0);
}

#[test]
fn unreachable_stores() {
    for url in [
        "redis://127.0.0.1:1",
        "redis://no-such-host.invalid",
        "unix:///no/such/socket",
        "rediss://127.0.0.1:1",
    ] {
        let began = Instant::now();
        refused(&Site::with(url), &texts(&["x", "--wait", "1s"]), 69, "unavailable");
        assert!(began.elapsed() < Duration::from_secs(20), "{url}");
    }
}

#[test]
fn directories_that_are_not_ours() {
    let site = Site::new();
    // A file where the directory should be.
    fs::write(site.path("store"), "mine").unwrap();
    refused(&site, &texts(&["x"]), 64, "is not a directory");
    assert_eq!(site.read("store"), "mine");
    // A directory that others can write to, and one of another user (as root we can make one).
    let open = site.path("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
    let site_open = Site::with(&format!("file:{}", open.display()));
    let ran = run(&site_open, &texts(&["x"]));
    assert_eq!(ran.code(), 69, "{ran:?}");
    if rustix::process::geteuid().is_root() {
        let theirs = site.path("theirs");
        fs::create_dir(&theirs).unwrap();
        fs::set_permissions(&theirs, fs::Permissions::from_mode(0o700)).unwrap();
        std::os::unix::fs::chown(&theirs, Some(12_345), None).unwrap();
        let site_theirs = Site::with(&format!("file:{}", theirs.display()));
        let ran = run(&site_theirs, &texts(&["x"]));
        assert_eq!(ran.code(), 69, "{ran:?}");
        assert!(ran.stderr.contains("12345"), "{ran:?}");
        assert_eq!(fs::read_dir(&theirs).unwrap().count(), 0, "nothing left behind");
    }
}
