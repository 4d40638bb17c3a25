//! Beside other clients on the same keys: redis-py's Lock, a plain SET NX PX, python-redis-lock,
//! application data.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod support;

use lockwarden::{Error, Loss, Warden};
use lockwarden_testkit::{
    conformance::{names, until, waiters},
    process::Process,
    raw::{Raw, Value},
    servers::{META_KEY, Server, servers_dir},
};
use std::{
    io::{BufRead, BufReader, Write},
    process::{ChildStdin, ChildStdout, Command, Stdio},
    time::Instant,
};
use support::{MS, connect, is_held_by, keys, nothing_is_left, on_every_server, size};

/// A Python program with redis-py and python-redis-lock that does as it is told.
struct Python {
    _process: Process,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

const PROGRAM: &str = r#"
import sys, redis, redis_lock
server = redis.Redis(port=int(sys.argv[1]))
locks = {}
for line in sys.stdin:
    what, name, *rest = line.split()
    answer = "done"
    if what == "acquire":  # NAME LEASE WAIT, in seconds; 0: none
        lease, wait = [float(number) for number in rest]
        locks[name] = server.lock(name, timeout=lease or None, sleep=0.01)
        answer = locks[name].acquire(blocking=wait > 0, blocking_timeout=wait or None)
    elif what == "release":
        try:
            locks.pop(name).release()
        except redis.exceptions.LockError as error:
            answer = type(error).__name__
    elif what == "owned":
        answer = locks[name].owned()
    elif what == "count":  # NAME FILE ROUNDS
        for _ in range(int(rest[1])):
            with server.lock(name, timeout=20, sleep=0.001):
                with open(rest[0]) as file:
                    number = int(file.read())
                with open(rest[0], "w") as file:
                    file.write(str(number + 1))
    elif what == "other-acquire":  # python-redis-lock
        locks[name] = redis_lock.Lock(server, name, expire=30)
        answer = locks[name].acquire(blocking=False)
    elif what == "other-release":
        locks.pop(name).release()
    print(answer, flush=True)
"#;

impl Python {
    fn start(server: &Server) -> Python {
        let python = servers_dir().join("../.venv/bin/python");
        assert!(python.exists(), "{} is missing: run tools/install-servers", python.display());
        let mut command = Command::new(python);
        command.args(["-c", PROGRAM, &server.port().to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process::spawn(command).unwrap();
        let input = process.child().stdin.take().unwrap();
        let output = BufReader::new(process.child().stdout.take().unwrap());
        Python { _process: process, input, output }
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    fn hear(&mut self) -> String {
        let mut line = String::new();
        assert!(self.output.read_line(&mut line).unwrap() > 0, "Python has ended");
        line.trim().to_owned()
    }

    fn ask(&mut self, line: &str) -> String {
        self.tell(line);
        self.hear()
    }
}

fn pttl(raw: &mut Raw, key: &str) -> i64 {
    raw.cmd(&["PTTL", key]).int().unwrap()
}

/// It is held by someone of another kind, and that is what the caller hears.
async fn is_foreign(warden: &Warden, name: &str) {
    let error = warden.lock(name).no_wait().acquire().await.unwrap_err();
    assert!(matches!(error, Error::Busy { .. }), "{error}");
    assert!(error.to_string().contains("another kind of client"), "{error}");
    assert!(warden.show(name).await.unwrap().holder.unwrap().record.is_none());
}

/// redis-py's Lock on the same key: each waits for the other, and neither hurts the other.
#[test]
fn redis_py_and_we_exclude_each_other() {
    on_every_server(|server, protocol| async move {
        let mut python = Python::start(&server);
        let warden = connect(&server, protocol).await;
        let mut raw = server.raw();
        assert_eq!(python.ask("acquire x 30 0"), "True");
        is_foreign(&warden, "x").await;
        let lock = warden.lock("x").wait_for(MS(20_000));
        let waiting = tokio::spawn(async move { lock.acquire().await });
        until("queued", || async { waiters(&warden, "x").await == 1 }).await;
        // No probe, no shorter life: what we know nothing of, we leave alone (R3).
        assert!(pttl(&mut raw, "x") > 20_000);
        assert_eq!(python.ask("owned x"), "True");
        assert_eq!(python.ask("release x"), "done");
        let released = Instant::now();
        let ours = waiting.await.unwrap().unwrap();
        assert!(released.elapsed() < MS(1_500), "{:?}", released.elapsed());

        assert_eq!(python.ask("acquire x 30 0"), "False");
        assert_eq!(python.ask("acquire x 30 0.2"), "False");
        python.tell("acquire x 30 20");
        assert!(ours.check());
        ours.release().await.unwrap();
        assert_eq!(python.hear(), "True");

        // Theirs is gone, and ours in its place: their release does not touch it.
        raw.cmd(&["DEL", "x"]);
        let ours = warden.lock("x").acquire().await.unwrap();
        assert!(["LockError", "LockNotOwnedError"].contains(&&*python.ask("release x")));
        assert!(is_held_by(&raw.cmd(&["GET", "x"]), ours.token()));
        ours.release().await.unwrap();

        // One of theirs that never expires.
        assert_eq!(python.ask("acquire x 0 0"), "True");
        is_foreign(&warden, "x").await;
        assert_eq!(pttl(&mut raw, "x"), -1);
        assert_eq!(python.ask("release x"), "done");
        warden.lock("x").wait_for(MS(5_000)).acquire().await.unwrap().release().await.unwrap();
        nothing_is_left(&server);
    });
}

/// Both add to one number that nothing else protects.
#[test]
fn redis_py_and_we_count_together() {
    on_every_server(|server, protocol| async move {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "0").unwrap();
        let rounds = size(500, 60);
        let mut python = Python::start(&server);
        python.tell(&format!("count x {} {rounds}", file.path().display()));
        let warden = connect(&server, protocol).await;
        for _ in 0..rounds {
            let guard = warden.lock("x").acquire().await.unwrap();
            let number: u64 = std::fs::read_to_string(file.path()).unwrap().parse().unwrap();
            tokio::task::yield_now().await;
            std::fs::write(file.path(), (number + 1).to_string()).unwrap();
            guard.release().await.unwrap();
            // We are faster than its polling; let it have its share.
            tokio::time::sleep(MS(2)).await;
        }
        assert_eq!(python.hear(), "done");
        assert_eq!(std::fs::read_to_string(file.path()).unwrap(), (2 * rounds).to_string());
    });
}

/// A plain client with SET NX PX and compare-and-delete.
#[test]
fn a_plain_client_and_we_exclude_each_other() {
    on_every_server(|server, protocol| async move {
        let warden = connect(&server, protocol).await;
        let mut raw = server.raw();
        let set: [&str; 6] = ["SET", "x", "theirs", "NX", "PX", "30000"];
        let del = "if redis.call('GET', KEYS[1]) == ARGV[1] then \
                   return redis.call('DEL', KEYS[1]) end return 0";
        let ours = warden.lock("x").acquire().await.unwrap();
        assert_eq!(raw.cmd(&set), Value::Nil);
        assert_eq!(raw.cmd(&["EVAL", del, "1", "x", "theirs"]).int(), Some(0));
        assert!(ours.check());
        ours.release().await.unwrap();
        assert!(raw.cmd(&set).is_ok());
        is_foreign(&warden, "x").await;
        assert!(pttl(&mut raw, "x") > 20_000);
        assert_eq!(raw.cmd(&["EVAL", del, "1", "x", "theirs"]).int(), Some(1));
        warden.lock("x").no_wait().acquire().await.unwrap().release().await.unwrap();
        nothing_is_left(&server);
    });
}

/// python-redis-lock keeps its locks at other keys: we do not touch them, and it does not touch ours.
#[test]
fn python_redis_lock_is_left_alone() {
    on_every_server(|server, protocol| async move {
        let mut python = Python::start(&server);
        let warden = connect(&server, protocol).await;
        let mut raw = server.raw();
        assert_eq!(python.ask("other-acquire x"), "True");
        let theirs: Vec<String> =
            keys(&mut raw).into_iter().filter(|key| !key.starts_with("lockwarden:")).collect();
        assert!(theirs.contains(&"lock:x".to_owned()), "{theirs:?}");
        let of_theirs = |raw: &mut Raw| -> Vec<Value> {
            theirs.iter().map(|key| raw.cmd(&["DUMP", key])).collect()
        };
        let before = of_theirs(&mut raw);
        let ours = warden.lock("x").acquire().await.unwrap();
        warden.show("x").await.unwrap();
        assert_eq!(names(&warden).await, ["x"]);
        ours.release().await.unwrap();
        assert_eq!(of_theirs(&mut raw), before);
        // And where a name of ours is a key of theirs, it is foreign.
        is_foreign(&warden, "lock:x").await;
        assert_eq!(of_theirs(&mut raw), before);
        assert_eq!(python.ask("other-release x"), "done");
    });
}

/// C05: a value that is no UTF-8 is a holder like any other: busy, shown on one line, listed.
#[test]
fn c05_a_value_of_any_bytes() {
    on_every_server(|server, protocol| async move {
        let warden = connect(&server, protocol).await;
        let mut raw = server.raw();
        let value: Vec<u8> = [0xff, 0xfe, 0x00, 0x0a, 0x80, 0xc3, 0x28, 0x1b]
            .into_iter()
            .chain(0xf0..0xf8)
            .collect();
        let set: [&[u8]; 5] = [b"SET", b"x", &value, b"PX", b"60000"];
        assert!(raw.cmd(&set).is_ok());
        is_foreign(&warden, "x").await;
        let holder = warden.show("x").await.unwrap().holder.unwrap();
        assert_eq!(holder.token.as_bytes(), value);
        let shown = holder.token.to_string();
        assert!(shown.chars().all(|it| !it.is_control()), "{shown:?}");
        let error = warden.lock("x").wait_for(MS(100)).acquire().await.unwrap_err();
        assert_eq!(error.code(), "timed_out");
        assert!(!error.to_string().contains('\n'), "{error}");
        // Without a record or a queue it is no lock of ours: counted, where asked for.
        assert_eq!(warden.page(0, true).await.unwrap().foreign, 1);
        assert_eq!(raw.cmd(&["GET", "x"]), Value::Bulk(value.clone()));
        // It goes by its very bytes.
        warden.revoke("x", &holder.token, false).await.unwrap();
        warden.lock("x").no_wait().acquire().await.unwrap().release().await.unwrap();
    });
}

/// C28: a value that begins as ours do, and is no record, is a foreign client's: waited for, shown, never a broken
/// link. One of a newer version is an error that says so.
#[test]
fn c28_values_that_look_like_ours() {
    on_every_server(|server, protocol| async move {
        let warden = connect(&server, protocol).await;
        let mut raw = server.raw();
        for rest in [
            &b""[..],
            b"hello",
            b"\x01",
            b"\x01\xa1",
            b"\x01\xa1s\xa1t",
            b"\x01\xc0\xc0\xc0\xc0\xc0\xc0\xc0\xc0\xc0\xc0",
        ] {
            let value = [b"lockwarden:", rest].concat();
            let set: [&[u8]; 5] = [b"SET", b"x", &value, b"PX", b"60000"];
            assert!(raw.cmd(&set).is_ok());
            is_foreign(&warden, "x").await;
            let error = warden.lock("x").wait_for(MS(50)).acquire().await.unwrap_err();
            assert_eq!(error.code(), "timed_out", "{value:?}: {error}");
            let holder = warden.show("x").await.unwrap().holder.unwrap();
            assert_eq!(holder.token.as_bytes(), value);
            warden.revoke("x", &holder.token, false).await.unwrap();
            warden.lock("x").no_wait().acquire().await.unwrap().release().await.unwrap();
        }
        raw.cmd(&[&b"SET"[..], b"x", b"lockwarden:\x02\xa1s", b"PX", b"60000"]);
        let error = warden.lock("x").no_wait().acquire().await.unwrap_err();
        assert!(error.to_string().contains("another schema: 2"), "{error}");
        assert!(warden.lock("y").no_wait().acquire().await.is_ok());
    });
}

/// C28: a hash or a list at the lock's key is an error of its own, not busy, whether one waits or
/// not; and it is not touched.
#[test]
fn c28_application_data_at_the_key() {
    on_every_server(|server, protocol| async move {
        let warden = connect(&server, protocol).await;
        let mut raw = server.raw();
        raw.cmd(&["HSET", "hash", "field", "value"]);
        raw.cmd(&["RPUSH", "list", "a", "b"]);
        let mut dump = || [raw.cmd(&["DUMP", "hash"]), raw.cmd(&["DUMP", "list"])];
        let before = dump();
        for name in ["hash", "list"] {
            for wait_ms in [0, 1_000] {
                let began = Instant::now();
                let lock = warden.lock(name).wait_for(MS(wait_ms));
                let error = lock.acquire().await.unwrap_err();
                assert_eq!(error.code(), "invalid", "{error}");
                let text = error.to_string();
                assert!(text.contains(name) && text.contains("another type"), "{text}");
                assert!(began.elapsed() < MS(900), "waiting does not help: {:?}", began.elapsed());
            }
        }
        assert_eq!(dump(), before);
        assert_eq!(names(&warden).await, [""; 0]);
        raw.cmd(&["DEL", "hash", "list"]);
        nothing_is_left(&server);
    });
}

/// C28: a prefix stands before every key, in every operation; application data of the bare name is
/// not touched.
#[test]
fn c28_a_prefix_in_every_operation() {
    on_every_server(|server, protocol| async move {
        let query = format!("{protocol}&prefix=app:");
        let (a, b) = (connect(&server, &query).await, connect(&server, &query).await);
        let mut raw = server.raw();
        raw.cmd(&["SET", "x", "application data"]);
        let mut all_ours = |when: &str, locked: bool| {
            let found = keys(&mut raw);
            for key in &found {
                // The self-test of a link just opened leaves a key for a second.
                let companion = key.starts_with("lockwarden:")
                    && (key.contains("app:") || key.contains("{lockwarden:self-test"));
                let known = key == "x" || key == "app:x" || key == META_KEY;
                assert!(known || companion, "{when}: {key}");
            }
            assert_eq!(found.iter().any(|key| key == "app:x"), locked, "{when}: {found:?}");
            assert_eq!(raw.cmd(&["GET", "x"]).text().as_deref(), Some("application data"));
        };
        let held = a.lock("x").lease(MS(20_000)).acquire().await.unwrap();
        all_ours("acquired", true);
        let lock = b.lock("x");
        let waiting = tokio::spawn(async move { lock.acquire().await });
        until("queued", || async { waiters(&a, "x").await == 1 }).await;
        all_ours("queued", true);
        assert_eq!(names(&a).await, ["x"]);
        held.extend(MS(40_000)).await.unwrap();
        all_ours("extended", true);
        held.release().await.unwrap();
        let next = waiting.await.unwrap().unwrap();
        all_ours("handed on", true);
        a.revoke("x", next.token(), false).await.unwrap();
        all_ours("revoked", false);
        next.lost().await;
        let cancelled = a.lock("x").wait_for(MS(1)).acquire().await.map(drop);
        drop(cancelled);
        until("nothing is left", || async { names(&a).await.is_empty() }).await;
        all_ours("released", false);
        assert!(keys(&mut raw).contains(&"lockwarden:meta:app:".to_owned()));
    });
}

/// C56: a lock held by nobody, for ten minutes still: revoked, it is the first waiter's at once, and
/// then the others' in turn.
#[test]
fn c56_a_revoke_wakes_those_who_wait() {
    on_every_server(|server, protocol| async move {
        let (a, b) = (connect(&server, protocol).await, connect(&server, protocol).await);
        let mut raw = server.raw();
        raw.cmd(&["SET", "x", "nobody's", "PX", "600000"]);
        let mut waiting = Vec::new();
        for i in 0..3 {
            let lock = a.lock("x").wait_for(MS(60_000));
            waiting.push(tokio::spawn(async move { lock.acquire().await }));
            until("queued", || async { waiters(&b, "x").await == i + 1 }).await;
        }
        let token = b.show("x").await.unwrap().holder.unwrap().token;
        let began = Instant::now();
        b.revoke("x", &token, false).await.unwrap();
        for waiter in waiting {
            let guard = waiter.await.unwrap().unwrap();
            assert!(began.elapsed() < MS(500), "{:?}", began.elapsed());
            guard.release().await.unwrap();
        }
        // A second look at the same token finds nothing.
        let error = b.revoke("x", &token, false).await.unwrap_err();
        assert_eq!(error.code(), "lost", "{error}");

        // A holder that lives is told at once, makes nothing anew, and hurts nobody.
        let held = a.lock("x").lease(MS(600)).acquire().await.unwrap();
        let lock = b.lock("x");
        let waiting = tokio::spawn(async move { lock.acquire().await });
        until("queued", || async { waiters(&a, "x").await == 1 }).await;
        b.revoke("x", held.token(), false).await.unwrap();
        assert_eq!(held.lost().await, Loss::Revoked);
        let next = waiting.await.unwrap().unwrap();
        assert!(held.release().await.is_err());
        assert!(next.check());
        assert!(is_held_by(&raw.cmd(&["GET", "x"]), next.token()));
        next.release().await.unwrap();
    });
}
