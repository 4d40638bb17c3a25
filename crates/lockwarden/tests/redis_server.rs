//! The Redis store on real servers: what only a server can do to it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

mod redis_support;

use lockwarden::{
    error::{StoreError, Trouble},
    store::redis::{Address, Protocol, RedisSettings, RedisStore},
};
use lockwarden_core::{
    Command, Reply,
    command::{Message, Reason, Wait},
};
use lockwarden_testkit::{
    process::eventually,
    proxy::{Cut, Direction, Proxy},
    raw::Value,
    servers::{Restart, Server, ServerKind},
};
use redis_support::{
    SOON, Session, acquire, acquire_all, acquire_of, cancel, name, release, release_all, renew,
    renew_all, revoke, runtime, settings, show, with_protocols,
};
use std::process::Command as Process;

fn keys(server: &Server) -> Vec<String> {
    let reply = server.cmd(&["KEYS", "*"]);
    let mut keys: Vec<String> = reply.items().iter().filter_map(Value::text).collect();
    keys.sort();
    keys
}

/// The next grant, whatever else is said before it.
fn granted(session: &mut Session) -> Message {
    session.until("a grant", |session| {
        let at = session.messages.iter().position(|it| matches!(it, Message::Grant { .. }))?;
        Some(session.messages.remove(at))
    })
}

/// One round of a lock's life: held, waited for, handed over, given back.
fn life(session: &mut Session, lock: &str) {
    let Reply::Granted { fence, lease_ms: 30_000 } = session.ask(acquire(lock, "a", Wait::No))
    else {
        panic!("not granted");
    };
    assert!(matches!(session.ask(acquire(lock, "b", Wait::Forever)), Reply::Refused(_)));
    assert_eq!(session.ask(release(lock, "a")), Reply::Released);
    let granted = granted(session);
    let Message::Grant { fence: next, token, lease_ms: 3_000, .. } = granted else {
        panic!("{granted:?}");
    };
    assert_eq!(token, redis_support::token("b"));
    assert!(next > fence, "G2");
    assert_eq!(session.ask(renew(lock, "b", 10_000)), Reply::Renewed { lease_ms: 10_000 });
    assert_eq!(session.ask(release(lock, "b")), Reply::Released);
}

/// A prefix stands before every lock's key, and nothing else is touched; at the end nothing is left (G9).
#[test]
fn c28_all_keys_have_the_prefix_or_ours() {
    with_protocols(|server, settings| {
        let settings = RedisSettings { prefix: "app:".into(), db: 0, ..settings.clone() };
        let mut session = Session::connect(&settings, "A");
        let run = server.info("server", "run_id").unwrap();
        let meta =
            ["HSET", "lockwarden:meta:app:", "epoch", "e", "run", &run, "guard", "0", "fence", "0"];
        server.cmd(&meta);
        server.cmd(&["SET", "x", "an application's"]);
        session.ask(acquire("x", "a", Wait::No));
        assert_eq!(
            server.cmd(&["GETRANGE", "app:x", "0", "10"]).text().as_deref(),
            Some("lockwarden:")
        );
        assert_eq!(server.cmd(&["GET", "x"]).text().as_deref(), Some("an application's"));
        session.ask(release("x", "a"));
        life(&mut session, "x");
        life(&mut session, "}{");
        life(&mut session, "{y}z");
        let expected = ["lockwarden:meta", "lockwarden:meta:app:", "x"];
        eventually(SOON, || keys(server) == expected);
        // Not even through the prefix can a name lead into the reserved ones.
        let settings = RedisSettings { prefix: "lock".into(), ..settings };
        let mut session = Session::connect(&settings, "B");
        let refused = session.try_ask(acquire("warden:meta", "a", Wait::No));
        assert!(matches!(refused, Err(StoreError::Invalid { .. })), "{refused:?}");
    });
}

/// The server forgets its scripts at any moment: nobody notices, and the order stays.
#[test]
fn scripts_that_are_flushed_are_loaded_again_in_order() {
    with_protocols(|server, settings| {
        let mut session = Session::connect(settings, "A");
        for round in 0..20 {
            assert!(server.cmd(&["SCRIPT", "FLUSH"]).is_ok());
            let (lock, other) = (format!("x{round}"), format!("y{round}"));
            let mut ids = session.send(vec![acquire(&lock, "a", Wait::No), Command::Beat]);
            ids.extend(session.send(vec![release(&lock, "a"), acquire(&other, "a", Wait::No)]));
            ids.extend(session.send(vec![acquire(&lock, "b", Wait::No), release(&other, "a")]));
            ids.extend(session.send(vec![release(&lock, "b"), show(&lock)]));
            let answers = session.answers_to(&ids);
            let kinds: Vec<String> = answers
                .iter()
                .map(|answer| format!("{:?}", answer.as_ref().unwrap()))
                .map(|text| text.split([' ', '(']).next().unwrap_or_default().to_owned())
                .collect();
            let expected = [
                "Granted", "Beat", "Released", "Granted", "Granted", "Released", "Released",
                "Shown",
            ];
            assert_eq!(kinds, expected);
        }
        assert!(session.closed.is_none());
    });
}

/// Issue 2: at most two connections, and one round trip for each command.
#[test]
fn connections_and_commands_are_few() {
    with_protocols(|server, settings| {
        let clients = || {
            let list = server.cmd(&["CLIENT", "LIST"]).text().unwrap_or_default();
            list.lines().filter(|line| line.contains("name=lockwarden")).count()
        };
        eventually(SOON, || clients() == 0);
        let mut session = Session::connect(settings, "A");
        let most = if settings.protocol == Some(Protocol::Resp3) { 1 } else { 2 };
        assert_eq!(clients(), most);
        server.cmd(&["CONFIG", "RESETSTAT"]);
        session.ask(acquire("x", "a", Wait::Forever));
        session.ask(release("x", "a"));
        let stats = server.info("commandstats", "cmdstat_evalsha").unwrap();
        assert!(stats.starts_with("calls=2,"), "{stats}");
        // Dropped with nothing unanswered: closed in good order, and soon forgotten.
        drop(session);
        eventually(SOON, || clients() == 0);
    });
}

/// R24: a second session of the same id, made by another process, is heard by the first. One's own
/// new link is not.
#[test]
fn r24_a_copy_of_a_session_is_heard() {
    with_protocols(|server, settings| {
        let (runtime, store) = (runtime(), RedisStore::new(settings.clone()).unwrap());
        let mut first = Session::on(&runtime, &store, "A").unwrap();
        let mut again = Session::on(&runtime, &store, "A").unwrap();
        // What is said to all is not said on one's own channel.
        assert_eq!(server.cmd(&["PUBLISH", "lockwarden:common:0:", "1T2:no"]).int(), Some(2));
        first.ask(Command::Beat);
        again.ask(Command::Beat);
        first.drain();
        assert_eq!((first.cloned, again.cloned), (0, 0));
        drop(again);
        let mut copy = Session::connect(settings, "A");
        first.until("the copy", |session| (session.cloned > 0).then_some(()));
        if settings.protocol == Some(Protocol::Resp2) {
            copy.ask(Command::Beat);
            first.ask(Command::Beat);
            copy.until("the first", |session| (session.cloned > 0).then_some(()));
        }
    });
}

/// R11: the subscription is killed while the command connection lives. Nothing is granted then, and
/// no beat is heard.
#[test]
fn r11_without_a_subscription_nothing_is_granted() {
    for kind in ServerKind::default_set() {
        let server = Server::builder(kind).clock_shim().start();
        server.step_clock(10_000);
        server.without_guard();
        let proxy = Proxy::start(server.address()).unwrap();
        let (host, port) = (proxy.address().ip().to_string(), proxy.address().port());
        let mut settings = RedisSettings::new(Address::Tcp { host, port, tls: false });
        settings.protocol = Some(Protocol::Resp2);
        let mut session = Session::connect(&settings, "A");
        session.ask(acquire("held", "a", Wait::No));
        for connection in proxy.connections().iter().filter(|it| it.has_subscribed()) {
            // Nor does the client hear that it is closed.
            connection.swallow(Direction::ToClient);
        }
        server.cmd(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        eventually(SOON, || {
            let count = server.cmd(&["PUBSUB", "NUMSUB", "lockwarden:session:A"]);
            count.items()[1].int() == Some(0)
        });
        assert_eq!(session.ask(acquire("new", "a", Wait::No)), Reply::Unsubscribed);
        assert_eq!(session.ask(acquire("new", "a", Wait::Forever)), Reply::Unsubscribed);
        assert_eq!(session.ask(renew("held", "a", 30_000)), Reply::Unsubscribed);
        assert_eq!(session.ask(release("held", "a")), Reply::Released);
        // R5: it is not alone, though one session is counted: that is another. The guard begins.
        let mut other = Session::connect(&RedisSettings::new(direct(&server)), "B");
        server.cmd(&["FLUSHALL"]);
        let beat = session.send(vec![Command::Beat]);
        session.ask(show("new"));
        let Reply::Refused(refusal) = other.ask(acquire("held", "b", Wait::No)) else {
            panic!("{kind}: granted, though A may believe");
        };
        assert!(matches!(refusal.reason, Reason::Guard { .. }));
        assert!(session.closed.is_none());
        proxy.cut_subscribed(Cut::Close);
        let closed = session.until("the end", |session| session.closed.clone());
        assert!(
            matches!(&closed, StoreError::Unavailable { trouble: Trouble::Disconnected, .. }),
            "{beat:?} {closed:?}"
        );
    }
}

fn direct(server: &Server) -> Address {
    let (host, port) = (server.address().ip().to_string(), server.port());
    Address::Tcp { host, port, tls: false }
}

/// A client that is killed on the server's side learns of it as an unknown outcome, once.
#[test]
fn a_killed_link_is_closed_and_stays_so() {
    with_protocols(|server, settings| {
        let mut session = Session::connect(settings, "A");
        server.cmd(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        let closed = session.until("the end", |session| session.closed.take());
        assert!(matches!(closed, StoreError::Unavailable { trouble: Trouble::Disconnected, .. }));
        session.send(vec![Command::Beat, acquire("x", "a", Wait::No)]);
        session.drain();
        assert!(session.closed.is_none(), "after the end nothing happens any more");
        assert_eq!(server.cmd(&["EXISTS", "x"]).int(), Some(0));
    });
}

/// G4 where `meta` alone was removed, with what it says about queues: who waited is still first.
#[test]
fn g4_a_queue_outlives_meta() {
    for kind in ServerKind::default_set() {
        let server = Server::builder(kind).clock_shim().start();
        server.without_guard();
        let mut holder = Session::connect(&settings(&server), "A");
        let mut waiter = Session::connect(&settings(&server), "B");
        assert!(matches!(holder.ask(acquire("x", "a", Wait::No)), Reply::Granted { .. }));
        assert!(matches!(waiter.ask(acquire("x", "b", Wait::Forever)), Reply::Refused(_)));
        server.cmd(&["DEL", "lockwarden:meta", "x"]);
        for _ in 0..2 {
            // The first begins an epoch with a guard, the second comes when it is over.
            assert!(matches!(holder.ask(acquire("x", "c", Wait::No)), Reply::Refused(_)), "{kind}");
            server.step_clock(3_200);
        }
        let granted = waiter.message();
        assert!(
            matches!(&granted, Message::Grant { token, .. } if *token == redis_support::token("b")),
            "{granted:?}"
        );
    }
}

/// R29: the script's shorter way for several names writes the records that the other one does. A name with braces takes
/// that.
#[test]
fn r29_records_of_several_are_alike_by_both_ways() {
    with_protocols(|server, settings| {
        let mut session = Session::connect(settings, "A");
        let mut record = |locks: &[&str], renewed: Option<u64>| {
            let reply = session.ask(acquire_all(locks, "t", Wait::No));
            let Reply::Granted { fence, .. } = reply else { panic!("{reply:?}") };
            if let Some(lease_ms) = renewed {
                assert_eq!(
                    session.ask(renew_all(locks, "t", lease_ms)),
                    Reply::Renewed { lease_ms }
                );
            }
            let ttl_ms = |lock| server.cmd(&["PTTL", lock]).int().unwrap();
            let lease_ms = renewed.unwrap_or(30_000) as i64;
            assert!(locks.iter().all(|lock| (lease_ms - 900..=lease_ms).contains(&ttl_ms(lock))));
            let values = locks.iter().map(|lock| server.cmd(&["GET", lock]));
            let mut texts: Vec<Vec<u8>> = values
                .map(|value| match value {
                    Value::Bulk(text) => text,
                    other => panic!("{other:?}"),
                })
                .collect();
            texts.dedup();
            assert_eq!(texts.len(), 1, "they have one fence");
            // The fence is the moment, which is the record's as well.
            let (text, moment) = (texts.remove(0), [&[0xcf][..], &fence.to_be_bytes()].concat());
            let mut parts = Vec::new();
            let mut from = 0;
            for at in 0..text.len() {
                if text[at..].starts_with(&moment) {
                    parts.push(text[from..at].to_vec());
                    from = at + moment.len();
                }
            }
            parts.push(text[from..].to_vec());
            assert_eq!(parts.len(), 3, "{text:?}");
            parts
        };
        let (short, long) = (["one", "two", "three"], ["four", "x{tag}y"]);
        for renewed in [None, Some(30_000), Some(20_000), Some(20_000)] {
            assert_eq!(record(&short, renewed), record(&long, renewed));
            server.cmd(&[&["DEL"], &short[..], &long].concat());
        }
    });
}

/// R29: what is left of a request whose tickets were dropped while its session was cut off is forgotten when it asks again
/// and all names are free. Else names would be kept for nobody.
#[test]
fn r29_a_request_without_tickets_is_forgotten() {
    with_protocols(|server, settings| {
        let mut holder = Session::connect(settings, "A");
        let mut waiter = Session::connect(settings, "B");
        let both = ["one", "two"];
        assert!(matches!(holder.ask(acquire_all(&both, "t", Wait::No)), Reply::Granted { .. }));
        let refused = waiter.ask(acquire_all(&both, "u", Wait::Forever));
        assert!(matches!(refused, Reply::Refused { .. }), "{refused:?}");
        drop(waiter);
        eventually(SOON, || {
            let heard = server.cmd(&["PUBSUB", "NUMSUB", "lockwarden:session:B"]);
            heard.items()[1].int() == Some(0)
        });
        assert_eq!(holder.ask(release_all(&both, "t")), Reply::Released);
        assert_eq!(server.cmd(&["HLEN", "lockwarden:requested"]).int(), Some(1));
        let mut waiter = Session::connect(settings, "B");
        let granted = waiter.ask(acquire_all(&both, "u", Wait::Forever));
        assert!(matches!(granted, Reply::Granted { .. }), "{granted:?}");
        assert_eq!(server.cmd(&["HLEN", "lockwarden:requested"]).int(), Some(0));
        assert_eq!(waiter.ask(release_all(&both, "u")), Reply::Released);
    });
}

/// R12: what somebody else put where an owner's waits are kept stays as it is, and hurts nobody's wait.
#[test]
fn r12_what_stands_in_the_place_of_waits_is_let_be() {
    with_protocols(|server, settings| {
        let mut session = Session::connect(settings, "A");
        for place in ["lockwarden:wait#o", "lockwarden:wait#o/p"] {
            server.cmd(&["SET", place, "foreign"]);
            session.ask(acquire("x", "a", Wait::No));
            let waiting = acquire_of("o/p", "x", "b");
            // As its recheck will.
            for _ in 0..2 {
                let reply = session.ask(waiting.clone());
                assert!(
                    matches!(&reply, Reply::Refused(it) if it.position == Some(0)),
                    "{reply:?}"
                );
            }
            assert_eq!(session.ask(release("x", "a")), Reply::Released);
            let Message::Grant { token, .. } = granted(&mut session) else { unreachable!() };
            assert_eq!(token, redis_support::token("b"));
            assert_eq!(session.ask(release("x", "b")), Reply::Released);
            assert_eq!(server.cmd(&["GET", place]).text().as_deref(), Some("foreign"));
            assert_eq!(server.cmd(&["PTTL", place]).int(), Some(-1));
            server.cmd(&["DEL", place]);
        }
    });
}

/// R37: where another lock's queue cannot be read no way leads on, and the others are still followed.
#[test]
fn r37_a_queue_that_cannot_be_read_leads_nowhere() {
    with_protocols(|server, settings| {
        let mut session = Session::connect(settings, "A");
        let by = |owner: &str, lock: &str| acquire_of(owner, lock, &format!("{owner} {lock}"));
        // h waits in two places, with parts of it. The one that is looked at first is broken.
        for (owner, lock) in [("h", "x"), ("q", "y"), ("q", "z")] {
            assert!(matches!(session.ask(by(owner, lock)), Reply::Granted { .. }));
        }
        for (owner, lock) in [("h/1", "y"), ("h/2", "z")] {
            assert!(matches!(session.ask(by(owner, lock)), Reply::Refused(_)));
        }
        let break_it: [&[&str]; 3] = [
            &["SET", "lockwarden:queue:{y}", "foreign"],
            // MessagePack's 2: another schema.
            &["HSET", "lockwarden:tickets:{y}", "h/1 y", "\u{2}"],
            &["SET", "lockwarden:tickets:{y}", "foreign"],
        ];
        for command in break_it {
            assert!(server.cmd(command).error().is_none(), "{command:?}");
            let reply = session.ask(by("s", "x"));
            assert!(matches!(&reply, Reply::Refused(it) if it.position == Some(0)), "{reply:?}");
            session.ask(cancel("x", "s x"));
            let reply = session.ask(by("q", "x"));
            assert!(matches!(&reply, Reply::Deadlock(_)), "{reply:?}");
        }
        session.ask(cancel("z", "h/2 z"));
        assert!(matches!(session.ask(by("q", "x")), Reply::Refused(_)), "no other way");
    });
}

/// R4, R5: a fresh server, a restarted one and a flushed one begin an epoch; whether with a guard
/// depends on who may still believe.
#[test]
fn r5_who_waits_for_the_guard() {
    for kind in ServerKind::default_set() {
        let mut server = Server::builder(kind).clock_shim().start();
        let guarded =
            |session: &mut Session, lock: &str| match session.ask(acquire(lock, "a", Wait::No)) {
                Reply::Refused(refusal) => matches!(refusal.reason, Reason::Guard { .. }),
                Reply::Granted { .. } => false,
                other => panic!("{other:?}"),
            };
        let mut first = Session::connect(&settings(&server), "A");
        assert!(guarded(&mut first, "x"), "{kind}: fresh");
        server.step_clock(3_200);
        assert!(!guarded(&mut first, "x"), "{kind}: the guard is over");
        server.step_clock(2_000);
        server.cmd(&["FLUSHALL"]);
        assert!(!guarded(&mut first, "x"), "{kind}: flushed, up for long, alone");
        let mut second = Session::connect(&settings(&server), "B");
        server.cmd(&["FLUSHALL"]);
        assert!(guarded(&mut second, "y"), "{kind}: flushed while another is connected");
        assert_eq!(
            first.ask(release("x", "a")),
            Reply::NotHeld(lockwarden_core::command::Absence::Free)
        );
        drop((first, second));
        server.restart(Restart::Empty);
        let mut third = Session::connect(&settings(&server), "C");
        assert!(guarded(&mut third, "x"), "{kind}: restarted");
        // Data of an earlier run: the run in meta is another.
        server.without_guard();
        server.cmd(&["HSET", "lockwarden:meta", "run", "earlier", "fence", "9000000000000000"]);
        server.step_clock(10_000);
        assert!(guarded(&mut third, "z"), "{kind}: restored");
        server.step_clock(3_200);
        let granted = third.ask(acquire("z", "a", Wait::No));
        assert_eq!(granted, Reply::Granted { fence: 9_000_000_000_000_001, lease_ms: 30_000 });
    }
}

/// `list` finds what is held or waited for, whatever the name, and counts other clients' strings.
#[test]
fn list_finds_all_names() {
    with_protocols(|server, settings| {
        for prefix in ["", "p:", "{p}"] {
            server.cmd(&["FLUSHALL"]);
            let mut settings = settings.clone();
            settings.prefix = prefix.into();
            server.without_guard();
            let mut session = Session::connect(&settings, "A");
            eventually(SOON, || {
                matches!(session.ask(acquire("a", "t", Wait::No)), Reply::Granted { .. })
            });
            session
                .batch(["}{", "{x}y", "ключ", "b"].map(|lock| acquire(lock, "t", Wait::No)).into());
            session.ask(acquire("b", "u", Wait::Forever));
            // Someone waits for a foreign client's lock.
            server.cmd(&["SET", &format!("{prefix}foreign"), "1"]);
            session.ask(acquire("foreign", "t", Wait::Forever));
            server.cmd(&["HSET", &format!("{prefix}hash"), "a", "b"]);
            for i in 0..2_500 {
                server_set(server, &format!("{prefix}other:{i}"), i == 0);
            }
            let mut expected: Vec<_> =
                ["a", "b", "foreign", "{x}y", "}{", "ключ"].into_iter().map(name).collect();
            expected.sort();
            assert_eq!(session.list(false), (expected.clone(), 0));
            let (names, foreign) = session.list(true);
            assert_eq!(names, expected);
            assert_eq!(foreign, 2, "the foreign lock, and the one string of the others");
            session.ask(cancel("b", "u"));
        }
    });
}

/// One of many keys of other clients: a string, or something else.
fn server_set(server: &Server, key: &str, is_string: bool) {
    thread_local! {
        static RAW: std::cell::RefCell<Option<(u16, lockwarden_testkit::raw::Raw)>> =
            const { std::cell::RefCell::new(None) };
    }
    RAW.with_borrow_mut(|raw| {
        if raw.as_ref().is_none_or(|(port, _)| *port != server.port()) {
            *raw = Some((server.port(), server.raw()));
        }
        let raw = &mut raw.as_mut().unwrap().1;
        let command: &[&str] = if is_string { &["SET", key, "1"] } else { &["RPUSH", key, "1"] };
        raw.cmd(command);
    });
}

/// A holder whose link is gone keeps its lock for its grace, then the waiter's recheck finds it free.
#[test]
fn r14_a_dead_holder_keeps_its_grace() {
    for kind in ServerKind::default_set() {
        let server = Server::builder(kind).clock_shim().start();
        server.without_guard();
        let holder = Session::connect(&settings(&server), "A");
        let mut holder = Some(holder);
        holder.as_mut().unwrap().ask(acquire("x", "a", Wait::No));
        let mut waiter = Session::connect(&settings(&server), "B");
        waiter.ask(acquire("x", "b", Wait::Forever));
        holder = None;
        assert!(holder.is_none());
        let ttl = |waiter: &mut Session| match waiter.ask(acquire("x", "b", Wait::Forever)) {
            Reply::Refused(refusal) => refusal.holder.and_then(|it| it.ttl_ms).unwrap_or_default(),
            Reply::Granted { .. } => 0,
            other => panic!("{other:?}"),
        };
        eventually(SOON, || ttl(&mut waiter) <= 3_000);
        server.step_clock(3_100);
        assert_eq!(ttl(&mut waiter), 0, "{kind}");
        waiter.ask(revoke("x", "b", false));
    }
}

/// R14: after a restart with data, that a holder's link is down says nothing until it has shown itself.
#[test]
fn r14_a_record_of_an_earlier_run_is_not_shortened() {
    for kind in ServerKind::default_set() {
        let mut server = Server::builder(kind).clock_shim().start();
        server.without_guard();
        let mut holder = Session::connect(&settings(&server), "A");
        holder.ask(acquire("x", "a", Wait::No));
        let snapshot = server.snapshot();
        server.restart(Restart::From(&snapshot));
        let mut waiter = Session::connect(&settings(&server), "B");
        let mut ttl_ms = || match waiter.ask(acquire("x", "b", Wait::Forever)) {
            Reply::Refused(refusal) => refusal.holder.and_then(|it| it.ttl_ms).unwrap_or_default(),
            other => panic!("{kind}: {other:?}"),
        };
        assert!(ttl_ms() > 20_000, "{kind}: during the guard");
        server.step_clock(3_200);
        assert!(ttl_ms() > 20_000, "{kind}: its link is down, but it never had one to this run");
        let mut holder = Session::connect(&settings(&server), "A");
        assert_eq!(holder.ask(renew("x", "a", 30_000)), Reply::Renewed { lease_ms: 30_000 });
        drop(holder);
        eventually(SOON, || ttl_ms() <= 3_000);
    }
}

#[test]
fn unix_sockets() {
    for kind in ServerKind::default_set() {
        let server = Server::builder(kind).unix_socket().start();
        server.without_guard();
        let settings = RedisSettings::new(Address::Unix(server.unix_socket().unwrap()));
        for protocol in redis_support::protocols(&server) {
            let settings = RedisSettings { protocol: Some(protocol), ..settings.clone() };
            life(&mut Session::connect(&settings, "A"), "x");
        }
    }
}

/// The trusted certificates are the process's, so it takes another process to name others.
#[test]
fn tls() {
    if let Ok(port) = std::env::var("LOCKWARDEN_TEST_TLS_PORT") {
        return over_tls(port.parse().unwrap());
    }
    let Some(kind) = ServerKind::default_set().into_iter().find(|kind| kind.has_tls()) else {
        println!("no server of this run speaks TLS");
        return;
    };
    let server = Server::builder(kind).tls().start();
    server.without_guard();
    let port = server.tls_address().unwrap().port().to_string();
    let run = |ca: &std::path::Path, expected: &str| {
        let output = Process::new(std::env::current_exe().unwrap())
            .args(["tls", "--exact", "--nocapture"])
            .env("LOCKWARDEN_TEST_TLS_PORT", &port)
            .env("SSL_CERT_FILE", ca)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains(expected), "{output:?}");
    };
    run(&server.tls_ca(), "over TLS: well");
    run(std::path::Path::new("/dev/null"), "over TLS: refused");
}

fn over_tls(port: u16) {
    for host in ["127.0.0.1", "localhost"] {
        for protocol in [Protocol::Resp2, Protocol::Resp3] {
            let address = Address::Tcp { host: host.into(), port, tls: true };
            let mut settings = RedisSettings::new(address);
            settings.protocol = Some(protocol);
            match Session::try_connect(&settings, "A") {
                Ok(mut session) => {
                    life(&mut session, "x");
                    println!("over TLS: well");
                }
                Err(StoreError::Unavailable { trouble: Trouble::Unreachable, detail, .. }) => {
                    assert!(detail.contains("certificate"), "{detail}");
                    println!("over TLS: refused");
                }
                Err(other) => panic!("{other:?}"),
            }
        }
    }
}
