//! What a server refuses or cannot do, each as what it is (G10): never "busy", and nothing left behind.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

mod redis_support;

use lockwarden::{
    error::{Effect, StoreError, Trouble},
    store::redis::{Address, Protocol, RedisSettings},
};
use lockwarden_core::{
    Command, Reply,
    command::{Absence, Message, Reason, Wait},
};
use lockwarden_testkit::{
    process::eventually,
    servers::{Server, ServerKind},
};
use redis_support::{
    SOON, Session, acquire, acquire_all, acquire_of, acquire_shared, cancel, recall, release,
    release_all, renew, renew_all, revoke, settings, show, with_protocols,
};
use std::{io::Read, net::TcpListener};

fn trouble(error: &StoreError) -> Trouble {
    match error {
        StoreError::Unavailable { trouble, effect: Effect::NotApplied, .. } => *trouble,
        other => panic!("{other:?}"),
    }
}

fn denial(result: Result<Session, StoreError>) -> String {
    match result.map(|session| session.id) {
        Err(StoreError::Denied { detail, .. }) => detail,
        other => panic!("{other:?}"),
    }
}

/// C28: a key that holds something else is not a lock, and stays as it is.
#[test]
fn c28_another_type_is_not_a_lock() {
    with_protocols(|server, settings| {
        let mut session = Session::connect(settings, "A");
        for make in [&["HSET", "user:1", "a", "b"][..], &["RPUSH", "user:1", "x"]] {
            server.cmd(make);
            let before = server.cmd(&["DUMP", "user:1"]);
            for command in [
                acquire("user:1", "t", Wait::No),
                acquire("user:1", "t", Wait::Forever),
                renew("user:1", "t", 1_000),
                release("user:1", "t"),
                cancel("user:1", "t"),
                revoke("user:1", "t", false),
                show("user:1"),
            ] {
                assert_eq!(session.ask(command.clone()), Reply::NotALock, "{command:?}");
            }
            // It does not hurt its neighbours in a batch.
            let replies = session.batch(vec![
                acquire("other", "t", Wait::No),
                acquire("user:1", "t", Wait::No),
                release("other", "t"),
                release("user:1", "t"),
                acquire("other", "u", Wait::No),
                release("other", "u"),
            ]);
            let replies: Vec<Reply> = replies.into_iter().map(Result::unwrap).collect();
            assert!(matches!(
                replies.as_slice(),
                [
                    Reply::Granted { .. },
                    Reply::NotALock,
                    Reply::Released,
                    Reply::NotALock,
                    Reply::Granted { .. },
                    Reply::Released
                ]
            ));
            assert_eq!(server.cmd(&["DUMP", "user:1"]), before);
            server.cmd(&["DEL", "user:1"]);
        }
        // Someone puts a hash where others wait for a lock: the waiting ticket does not overwrite it.
        session.ask(acquire("user:2", "first", Wait::No));
        session.ask(acquire("user:2", "second", Wait::Forever));
        server.cmd(&["DEL", "user:2"]);
        server.cmd(&["HSET", "user:2", "a", "b"]);
        assert_eq!(session.ask(acquire("user:2", "second", Wait::Forever)), Reply::NotALock);
        assert_eq!(session.ask(cancel("user:2", "second")), Reply::NotALock);
        server.cmd(&["DEL", "user:2"]);
        assert_eq!(session.ask(cancel("user:2", "second")), Reply::Cancelled { released: false });
        // Nothing but meta.
        eventually(SOON, || server.cmd(&["DBSIZE"]).int() == Some(1));
    });
}

/// C36: out of memory is said so; renewals and releases need none, and a new link can be made.
#[test]
fn c36_out_of_memory() {
    with_protocols(|server, settings| {
        let mut session = Session::connect(settings, "A");
        session.ask(acquire("held", "t", Wait::No));
        session.ask(acquire("held", "u", Wait::Forever));
        session.ask(acquire("held", "v", Wait::Forever));
        for reader in ["r", "s"] {
            session.ask(acquire_shared("read", reader, Wait::No));
        }
        session.ask(acquire("read", "w", Wait::Forever));
        session.ask(acquire_all(&["one", "two", "three"], "t", Wait::No));
        assert!(server.cmd(&["CONFIG", "SET", "maxmemory", "1"]).is_ok());
        // All of several or none (R29), though the first of them is written before the others.
        for wait in [Wait::No, Wait::Forever] {
            let error = session.try_ask(acquire_all(&["new", "newer"], "t", wait)).unwrap_err();
            assert_eq!(trouble(&error), Trouble::OutOfMemory);
            assert_eq!(server.cmd(&["EXISTS", "new", "newer"]).int(), Some(0));
        }
        for lease_ms in [20_000, 20_000, 30_000] {
            let renewed = session.ask(renew_all(&["one", "two", "three"], "t", lease_ms));
            assert_eq!(renewed, Reply::Renewed { lease_ms });
        }
        assert_eq!(session.ask(release_all(&["one", "two", "three"], "t")), Reply::Released);
        assert_eq!(server.cmd(&["EXISTS", "one", "two", "three"]).int(), Some(0));
        // Held together it is no other: no new reader, but those who are there go on.
        for lock in ["read", "new"] {
            let error = session.try_ask(acquire_shared(lock, "t", Wait::Forever)).unwrap_err();
            assert_eq!(trouble(&error), Trouble::OutOfMemory);
        }
        for lease_ms in [20_000, 30_000] {
            assert_eq!(session.ask(renew("read", "r", lease_ms)), Reply::Renewed { lease_ms });
        }
        assert!(matches!(session.ask(revoke("read", "s", true)), Reply::Revoked { .. }));
        // It may have been asked before whether it still wants the lock (R16).
        while !matches!(session.message(), Message::Revoked { .. }) {}
        assert_eq!(session.ask(release("read", "s")), Reply::Released);
        assert_eq!(session.ask(release("read", "r")), Reply::Released);
        assert!(matches!(session.message(), Message::Grant { .. }), "handed on all the same");
        assert_eq!(session.ask(release("read", "w")), Reply::Released);
        for wait in [Wait::No, Wait::Forever] {
            let error = session.try_ask(acquire("new", "t", wait)).unwrap_err();
            assert_eq!(trouble(&error), Trouble::OutOfMemory);
        }
        assert_eq!(session.ask(renew("held", "t", 20_000)), Reply::Renewed { lease_ms: 20_000 });
        assert!(matches!(session.ask(Command::Beat), Reply::Beat { subscribers: 1, .. }));
        drop(session);
        let mut session = Session::connect(settings, "A");
        assert_eq!(session.ask(renew("held", "t", 30_000)), Reply::Renewed { lease_ms: 30_000 });
        // In a batch, each command is answered for itself.
        let replies =
            session.batch(vec![acquire("new", "t", Wait::No), release("held", "t"), Command::Beat]);
        assert_eq!(trouble(replies[0].as_ref().unwrap_err()), Trouble::OutOfMemory);
        assert_eq!(replies[1], Ok(Reply::Released));
        assert!(matches!(session.message(), Message::Grant { .. }), "handed on all the same");
        let replies = session.batch(vec![acquire("new", "t", Wait::No), show("held")]);
        assert_eq!(trouble(replies[0].as_ref().unwrap_err()), Trouble::OutOfMemory);
        assert!(matches!(replies[1], Ok(Reply::Shown(_))), "{:?}", replies[1]);
        // So too in a call of its own.
        assert_eq!(session.ask(release("held", "u")), Reply::Released);
        assert!(matches!(session.message(), Message::Grant { .. }), "handed on all the same");
        assert!(server.cmd(&["CONFIG", "SET", "maxmemory", "0"]).is_ok());
        assert!(matches!(session.ask(acquire("new", "t", Wait::No)), Reply::Granted { .. }));
        session.batch(vec![release("new", "t"), release("held", "v")]);
        // Meta alone; whom we asked is remembered for a second.
        eventually(SOON, || server.cmd(&["DBSIZE"]).int() == Some(1));
    });
}

/// C32: a primary that becomes a replica is read-only, not busy; when it is a primary again, all goes on.
#[test]
fn c32_read_only() {
    with_protocols(|server, settings| {
        let mut session = Session::connect(settings, "A");
        session.ask(acquire("held", "t", Wait::No));
        assert!(server.cmd(&["REPLICAOF", "127.0.0.1", "1"]).is_ok());
        let commands = || {
            vec![
                acquire("new", "t", Wait::No),
                renew("held", "t", 30_000),
                release("held", "t"),
                Command::Beat,
            ]
        };
        for answer in session.batch(commands()) {
            assert_eq!(trouble(&answer.unwrap_err()), Trouble::ReadOnly);
        }
        let refused = Session::try_connect(settings, "B").map(|_| ()).unwrap_err();
        assert_eq!(trouble(&refused), Trouble::ReadOnly);
        assert!(server.cmd(&["REPLICAOF", "NO", "ONE"]).is_ok());
        for (command, answer) in commands().into_iter().zip(session.batch(commands())) {
            assert!(answer.is_ok(), "{command:?}: {answer:?}");
        }
        session.ask(release("new", "t"));
    });
}

/// C29: a node of a Cluster is refused when we connect, with the reason, and not when keys lie in different slots.
#[test]
fn c29_a_cluster_is_refused_up_front() {
    for kind in ServerKind::default_set() {
        let server = Server::builder(kind).config("cluster-enabled", "yes").start();
        match Session::try_connect(&settings(&server), "A").map(|session| session.id) {
            Err(StoreError::Invalid { detail }) => assert!(detail.contains("Cluster"), "{detail}"),
            other => panic!("{kind:?}: {other:?}"),
        }
    }
}

const MINIMAL: &str = "on >pw ~lockwarden:* ~job:* resetchannels &lockwarden:* -@all +hello +auth +select \
    +client|setname +info +subscribe +eval +evalsha +scan +getrange +time +pubsub|numsub +publish +get \
    +mget +set +del +exists +pttl +pexpire +hget +hset +hmget +hmset +hdel +hkeys +hlen +zadd +zrem +zcard +zrank \
    +zrange +zrevrange";

fn with_users(body: impl Fn(&Server, &RedisSettings)) {
    for kind in ServerKind::default_set().into_iter().filter(|kind| kind.has_acl()) {
        let server = Server::builder(kind).acl_user("app", MINIMAL).start();
        for protocol in [Protocol::Resp2, Protocol::Resp3] {
            let mut settings = settings(&server);
            settings.protocol = Some(protocol);
            settings.user = Some("app".into());
            settings.password = Some("pw".into());
            server.cmd(&["FLUSHALL"]);
            server.without_guard();
            body(&server, &settings);
        }
    }
}

fn set_user(server: &Server, rules: &str) {
    let reply: Vec<&str> = ["ACL", "SETUSER", "app"].into_iter().chain(rules.split(' ')).collect();
    assert!(server.cmd(&reply).is_ok(), "{rules}");
}

/// C30: the documented permissions are enough for the whole life of a lock.
#[test]
fn c30_the_minimal_permissions_are_enough() {
    with_users(|server, settings| {
        let mut session = Session::connect(settings, "A");
        assert!(matches!(session.ask(acquire("job:1", "t", Wait::No)), Reply::Granted { .. }));
        session.ask(acquire("job:1", "u", Wait::Forever));
        session.ask(renew("job:1", "t", 20_000));
        assert_eq!(session.ask(recall("job:1", "t")), Reply::Recalled);
        session.ask(revoke("job:1", "t", true));
        assert!(matches!(session.message(), Message::Asking { .. }));
        assert!(matches!(session.message(), Message::Recall { .. }));
        assert!(matches!(session.message(), Message::Revoked { .. }));
        session.ask(show("job:1"));
        assert_eq!(session.ask(release("job:1", "t")), Reply::Released);
        assert!(matches!(session.message(), Message::Grant { .. }));
        assert_eq!(session.list(true), (vec![redis_support::name("job:1")], 0));
        session.ask(cancel("job:1", "u"));
        for (owner, lock) in [("a", "job:1"), ("b", "job:2"), ("a", "job:2")] {
            session.ask(acquire_of(owner, lock, &format!("{owner} {lock}")));
        }
        let reply = session.ask(acquire_of("b", "job:1", "b job:1"));
        assert!(matches!(&reply, Reply::Deadlock(_)), "{reply:?}");
        // A new epoch needs no more than that either.
        server.cmd(&["DEL", "lockwarden:meta"]);
        assert!(matches!(session.ask(Command::Beat), Reply::Beat { .. }));
        server.without_guard();
        let error = session.try_ask(acquire("private", "t", Wait::No)).unwrap_err();
        assert!(matches!(&error, StoreError::Denied { .. }), "{error:?}");
    });
}

/// C30: what is missing is named when the link is opened, with the command that grants it.
#[test]
fn c30_missing_permissions_are_named() {
    with_users(|server, settings| {
        let connect = || Session::try_connect(settings, "A");
        set_user(server, "resetchannels");
        let detail = denial(connect());
        assert!(detail.contains("ACL SETUSER app &lockwarden:*"), "{detail}");
        set_user(server, "&lockwarden:*");
        for missing in ["evalsha", "zadd", "hmget", "hkeys", "hlen", "publish", "subscribe"] {
            set_user(server, &format!("-{missing}"));
            let detail = denial(connect());
            assert!(detail.contains(&format!("+{missing}")), "{missing}: {detail}");
            set_user(server, &format!("+{missing}"));
        }
        connect().unwrap();
        let wrong = RedisSettings { password: Some("wrong".into()), ..settings.clone() };
        let detail = denial(Session::try_connect(&wrong, "A"));
        assert!(detail.contains("wrong user or password"), "{detail}");
    });
}

/// A user without a password is that user, not the default one.
#[test]
fn c30_a_user_without_a_password() {
    with_users(|server, settings| {
        set_user(server, "nopass");
        let open = RedisSettings { password: None, ..settings.clone() };
        let mut session = Session::connect(&open, "A");
        let error = session.try_ask(acquire("private", "t", Wait::No)).unwrap_err();
        assert!(matches!(&error, StoreError::Denied { .. }), "{error:?}");
        set_user(server, "resetpass");
        set_user(server, ">pw");
    });
}

/// R5: a client that may not ask which run this is grants nothing, and counts nothing, for W.
#[test]
fn r5_without_info_nothing_counts_for_w() {
    with_users(|server, settings| {
        // It takes W each time, and the server has no part in it.
        if settings.protocol != Some(Protocol::Resp3) {
            return;
        }
        set_user(server, "-info");
        let mut session = Session::connect(settings, "A");
        set_user(server, "+info");
        let start = std::time::Instant::now();
        let first = session.ask(acquire("job:1", "t", Wait::No));
        let Reply::Refused(refusal) = first else { panic!("{first:?}") };
        assert!(matches!(refusal.reason, Reason::Guard { guard_ms: 2_000..=3_000 }));
        // What another session holds is extended and given back, but no belief follows, and nobody
        // is handed anything.
        let mut other = Session::connect(settings, "B");
        other.ask(acquire("job:2", "t", Wait::No));
        assert_eq!(session.ask(release("job:2", "t")), Reply::NotHeld(Absence::Taken));
        eventually(SOON, || {
            matches!(session.ask(acquire("job:1", "t", Wait::No)), Reply::Granted { .. })
        });
        assert!(start.elapsed().as_millis() >= 2_900, "{:?}", start.elapsed());
        session.ask(release("job:1", "t"));
        other.ask(release("job:2", "t"));
    });
}

#[test]
fn passwords() {
    for kind in ServerKind::default_set() {
        let server = Server::builder(kind).password("secret").start();
        server.without_guard();
        for protocol in redis_support::protocols(&server) {
            let with = |password: Option<&str>| {
                let mut settings = settings(&server);
                settings.protocol = Some(protocol);
                settings.password = password.map(str::to_owned);
                Session::try_connect(&settings, "A")
            };
            with(Some("secret")).unwrap().ask(acquire("x", "t", Wait::No));
            let detail = denial(with(Some("wrong")));
            assert!(detail.contains("wrong user or password"), "{kind} {protocol:?}: {detail}");
            let detail = denial(with(None));
            assert!(detail.contains("password"), "{kind} {protocol:?}: {detail}");
        }
    }
}

#[test]
fn databases_and_protocols_that_are_not_there() {
    with_protocols(|server, settings| {
        let mut none = settings.clone();
        none.db = 99;
        let error = Session::try_connect(&none, "A").map(|_| ()).unwrap_err();
        assert!(
            matches!(&error, StoreError::Invalid { detail } if detail.contains("99")),
            "{error}"
        );
        if !server.kind().has_resp3() {
            none.db = 0;
            none.protocol = Some(Protocol::Resp3);
            let error = Session::try_connect(&none, "A").map(|_| ()).unwrap_err();
            assert!(matches!(error, StoreError::Invalid { .. }), "{error}");
            none.protocol = None;
            Session::connect(&none, "A");
        }
    });
}

#[test]
fn nobody_there_or_not_a_redis() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let settings = RedisSettings::new(Address::Tcp { host: "127.0.0.1".into(), port, tls: false });
    let server = std::thread::spawn(move || {
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().unwrap();
            let mut some = [0; 10];
            stream.read_exact(&mut some).unwrap();
            std::io::Write::write_all(&mut stream, b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        }
    });
    let mut resp2 = settings.clone();
    resp2.protocol = Some(Protocol::Resp2);
    resp2.password = Some("x".into());
    let connect = |settings| trouble(&Session::try_connect(settings, "A").map(|_| ()).unwrap_err());
    assert_eq!(connect(&settings), Trouble::Protocol);
    assert_eq!(connect(&resp2), Trouble::Protocol);
    server.join().unwrap();
    assert_eq!(connect(&settings), Trouble::Unreachable);
    let socket = Address::Unix("/nowhere/redis.sock".into());
    assert_eq!(connect(&RedisSettings::new(socket)), Trouble::Unreachable);
}
