//! The kit's servers, against every server of the set.

// Clippy knows test functions as tests, but not what they share.
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use lockwarden_testkit::process::{Process, eventually};
use lockwarden_testkit::raw::{Raw, RawError, Value};
use lockwarden_testkit::servers::{META_KEY, Restart, Server, ServerError, ServerKind};

const SOON: Duration = Duration::from_secs(10);

fn for_each(test: impl Fn(ServerKind)) {
    for kind in ServerKind::default_set() {
        eprintln!("on {kind}");
        test(kind);
    }
}

fn text(server: &Server, key: &str) -> Option<String> {
    server.cmd(&["GET", key]).text()
}

fn time_ms(server: &Server) -> i64 {
    let reply = server.cmd(&["TIME"]);
    let part = |index: usize| reply.items()[index].text().unwrap().parse::<i64>().unwrap();
    part(0) * 1000 + part(1) / 1000
}

#[test]
fn a_server_answers_and_is_the_version_that_its_id_says() {
    for_each(|kind| {
        let server = Server::start(kind);
        assert!(server.cmd(&["SET", "k", "v"]).is_ok());
        assert_eq!(server.cmd(&["GET", "k"]), Value::from("v"));
        assert!(server.cmd(&["NONSENSE"]).error().unwrap().starts_with("ERR unknown command"));
        let valkey = server.info("server", "valkey_version");
        let version = valkey.clone().or_else(|| server.info("server", "redis_version")).unwrap();
        let engine = if valkey.is_some() { "valkey" } else { "redis" };
        assert!(format!("{engine}-{version}").starts_with(kind.id()), "{engine} {version}");
        assert_eq!(server.url(), format!("redis://{}", server.address()));
    });
}

#[test]
fn dropping_leaves_no_process_and_no_directory() {
    for_each(|kind| {
        let server = Server::start(kind);
        let process = format!("/proc/{}", server.process_id().unwrap());
        let dir = server.dir().to_owned();
        let address = server.address();
        assert!(std::fs::exists(&process).unwrap() && dir.exists());
        drop(server);
        assert!(!std::fs::exists(&process).unwrap());
        assert!(!dir.exists());
        assert!(Raw::connect(address).is_err());
    });
}

#[test]
fn a_killed_server_keeps_its_port_and_comes_back_with_without_or_with_older_data() {
    for_each(|kind| {
        let mut server = Server::start(kind);
        let address = server.address();
        server.cmd(&["SET", "k", "old"]);
        let snapshot = server.snapshot();
        server.cmd(&["SET", "k", "new"]);
        assert!(server.cmd(&["SAVE"]).is_ok());
        server.cmd(&["SET", "unsaved", "1"]);
        let mut open = server.raw();
        let run = server.info("server", "run_id");

        server.kill9();
        assert!(!server.is_running());
        assert!(open.try_cmd(&["PING"]).is_err());
        assert!(matches!(server.try_raw(), Err(RawError::Connect { .. })));
        assert_ne!(Server::start(kind).address(), address, "reserved while it is down");

        server.restart(Restart::AsLeft);
        assert_eq!(server.address(), address);
        assert_ne!(server.info("server", "run_id"), run);
        assert_eq!(text(&server, "k").as_deref(), Some("new"));
        assert_eq!(text(&server, "unsaved"), None);

        server.restart(Restart::From(&snapshot));
        assert_eq!(text(&server, "k").as_deref(), Some("old"));

        server.restart(Restart::Empty);
        assert_eq!(text(&server, "k"), None);
    });
}

#[test]
fn an_append_only_server_loses_nothing_and_takes_an_older_state_back() {
    for_each(|kind| {
        let mut server = Server::builder(kind).append_only().start();
        server.cmd(&["SET", "k", "old"]);
        let snapshot = server.snapshot();
        server.cmd(&["SET", "k", "new"]);
        server.kill9();
        server.restart(Restart::AsLeft);
        assert_eq!(text(&server, "k").as_deref(), Some("new"));
        server.restart(Restart::From(&snapshot));
        assert_eq!(text(&server, "k").as_deref(), Some("old"));
        server.restart(Restart::Empty);
        assert_eq!(text(&server, "k"), None);
    });
}

#[test]
fn shutting_down_saves_or_does_not() {
    for_each(|kind| {
        let mut server = Server::start(kind);
        server.cmd(&["SET", "k", "1"]);
        server.shutdown(true);
        assert!(!server.is_running());
        server.restart(Restart::AsLeft);
        assert_eq!(text(&server, "k").as_deref(), Some("1"));
        server.cmd(&["SET", "k", "2"]);
        server.shutdown(false);
        server.restart(Restart::AsLeft);
        assert_eq!(text(&server, "k").as_deref(), Some("1"));
    });
}

#[test]
fn a_server_saves_by_itself_only_if_told_to() {
    for_each(|kind| {
        let server = Server::builder(kind).save("1 1").start();
        server.cmd(&["SET", "k", "v"]);
        eventually(SOON, || server.dir().join("dump.rdb").exists());
        let save =
            |server: &Server| server.cmd(&["CONFIG", "GET", "save"]).items()[1].text().unwrap();
        assert_eq!(save(&server), "1 1");
        assert_eq!(save(&Server::start(kind)), "");
    });
}

#[test]
fn a_stopped_server_is_silent_until_continued() {
    for_each(|kind| {
        let mut server = Server::start(kind);
        let mut raw = server.raw();
        server.stop();
        raw.set_reply_deadline(Duration::from_millis(100)).unwrap();
        assert!(matches!(raw.try_cmd(&["PING"]), Err(RawError::NoReply(_))));
        server.cont();
        raw.set_reply_deadline(SOON).unwrap();
        assert_eq!(raw.read().unwrap(), Value::Simple("PONG".into()));
        server.stop();
    });
}

#[test]
fn a_unix_socket_is_served_if_asked_for() {
    for_each(|kind| {
        let server = Server::builder(kind).unix_socket().start();
        let path = server.unix_socket().unwrap();
        assert_eq!(Raw::connect_unix(&path).unwrap().cmd(&["PING"]), Value::Simple("PONG".into()));
        assert_eq!(Server::start(kind).unix_socket(), None);
    });
}

#[test]
fn a_password_is_asked_for() {
    for_each(|kind| {
        let server = Server::builder(kind).password("secret").start();
        assert!(server.raw_without_login().cmd(&["PING"]).error().unwrap().starts_with("NOAUTH"));
        assert!(server.cmd(&["SET", "k", "v"]).is_ok());
        assert_eq!(server.url(), format!("redis://:secret@{}", server.address()));
    });
}

#[test]
fn users_have_the_rights_that_the_test_gave() {
    for_each(|kind| {
        let builder =
            Server::builder(kind).acl_user("alice", "on >wonder ~a:* +@all").password("secret");
        if !kind.has_acl() {
            assert!(matches!(builder.try_start(), Err(ServerError::Unsupported { .. })));
            return;
        }
        let server = builder.start();
        let mut alice = server.raw_without_login();
        assert!(alice.cmd(&["PING"]).error().unwrap().starts_with("NOAUTH"));
        assert!(alice.cmd(&["AUTH", "alice", "wonder"]).is_ok());
        assert!(alice.cmd(&["SET", "a:1", "v"]).is_ok());
        assert!(alice.cmd(&["SET", "b:1", "v"]).error().unwrap().starts_with("NOPERM"));
        assert!(server.raw_without_login().cmd(&["AUTH", "secret"]).is_ok());
        assert!(server.cmd(&["SET", "b:1", "v"]).is_ok(), "the kit itself may do all");
    });
}

#[test]
fn memory_can_run_out() {
    for_each(|kind| {
        let server = Server::builder(kind).max_memory_bytes(1).start();
        assert!(server.cmd(&["SET", "k", "v"]).error().unwrap().starts_with("OOM"));
    });
}

#[test]
fn tls_is_served_with_a_certificate_that_its_authority_signed() {
    for_each(|kind| {
        let builder = Server::builder(kind).tls();
        if !kind.has_tls() {
            assert!(matches!(builder.try_start(), Err(ServerError::Unsupported { .. })));
            return;
        }
        let server = builder.start();
        let mut command = Command::new("openssl");
        command
            .args([
                "s_client",
                "-quiet",
                "-verify_return_error",
                "-verify_ip",
                "127.0.0.1",
                "-connect",
            ])
            .arg(server.tls_address().unwrap().to_string())
            .arg("-CAfile")
            .arg(server.tls_ca())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut client = Process::spawn(command).unwrap();
        client.child().stdin.as_mut().unwrap().write_all(b"PING\r\n").unwrap();
        let mut reply = [0; 7];
        client.child().stdout.as_mut().unwrap().read_exact(&mut reply).unwrap();
        assert_eq!(&reply, b"+PONG\r\n");
    });
}

#[test]
fn a_server_that_cannot_start_says_why() {
    for_each(|kind| {
        let Err(ServerError::NotReady { log, .. }) =
            Server::builder(kind).config("no-such-setting", "1").try_start()
        else {
            panic!("it must not start");
        };
        assert!(log.contains("no-such-setting"), "{log}");
    });
}

#[test]
fn without_guard_states_this_run() {
    for_each(|kind| {
        let mut server = Server::start(kind);
        let field = |server: &Server, field: &str| server.cmd(&["HGET", META_KEY, field]).text();
        server.without_guard();
        let epoch = field(&server, "epoch").unwrap();
        assert_eq!(field(&server, "run"), server.info("server", "run_id"));
        assert_eq!(field(&server, "guard").as_deref(), Some("0"));
        assert_eq!(field(&server, "fence").as_deref(), Some("0"));
        server.restart(Restart::Empty);
        server.without_guard();
        assert_ne!(field(&server, "epoch").unwrap(), epoch);
    });
}

#[test]
fn the_wall_clock_can_be_stepped_while_the_server_runs() {
    for_each(|kind| {
        let mut server = Server::builder(kind).clock_shim().start();
        let before = time_ms(&server);
        server.cmd(&["SET", "k", "v", "PX", "60000"]);
        server.step_clock(-3_600_500);
        let back = time_ms(&server) - before;
        assert!((-3_600_500..-3_590_000).contains(&back), "{back}");
        let left = server.cmd(&["PTTL", "k"]).int().unwrap();
        assert!(left > 3_600_000, "{left}");
        server.step_clock(3_600_500 + 61_000);
        let forward = time_ms(&server) - before;
        assert!((61_000..71_000).contains(&forward), "{forward}");
        assert_eq!(text(&server, "k"), None, "expired by the server's own clock");
        let script = "return redis.call('TIME')[1]";
        let in_script = server.cmd(&["EVAL", script, "0"]).text().unwrap().parse::<i64>().unwrap();
        assert!(in_script * 1000 - before > 55_000, "scripts see it too");
        server.restart(Restart::AsLeft);
        assert!(time_ms(&server) - before > 60_000, "and it outlasts a restart");
    });
}

#[test]
fn many_servers_at_once_have_ports_of_their_own() {
    let kind = ServerKind::any();
    let servers: Vec<Server> = (0..6).map(|_| Server::start(kind)).collect();
    for (index, server) in servers.iter().enumerate() {
        assert!(server.cmd(&["SET", "who", &index.to_string()]).is_ok());
    }
    for (index, server) in servers.iter().enumerate() {
        assert_eq!(text(server, "who"), Some(index.to_string()));
    }
}
