//! The gate of a Redis key, on real servers.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod support;

use lockwarden::gate::{
    Error, MAX_FENCE, Stale,
    redis::{SCRIPT, Write, fence_key},
};
use lockwarden_testkit::{
    gates::{documented, send},
    process::eventually,
    raw::{Raw, Value},
    servers::{Server, ServerKind, servers_dir},
    taker::SOON,
};
use std::{collections::HashMap, process::Command};
use support::{Dice, MS, connect, keys, runtime, size, started};

fn on_each(test: impl Fn(&Server, &mut Raw)) {
    for kind in ServerKind::default_set() {
        let server = Server::start(kind);
        test(&server, &mut server.raw());
    }
}

fn set(key: &str, fence: u64, value: &str) -> Write {
    Write::set(key, fence, value)
}

fn stale<T>(fence: u64, newest: u64) -> Result<T, Error> {
    Err(Stale { fence, newest }.into())
}

fn why(result: Result<(), Error>) -> String {
    match result {
        Err(Error::Unfit { why, .. }) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn stale_is_refused_and_equal_passes() {
    on_each(|_, raw| {
        assert_eq!(send(raw, &set("r", 5, "five")), Ok(()));
        assert_eq!(send(raw, &set("r", 5, "again")), Ok(()));
        assert_eq!(send(raw, &set("r", 7, "seven")), Ok(()));
        assert_eq!(send(raw, &set("r", 6, "six")), stale(6, 7));
        assert_eq!(send(raw, &Write::delete("r", 6)), stale(6, 7));
        assert_eq!(raw.cmd(&["GET", "r"]), "seven".into());
        // Another key has fences of its own.
        assert_eq!(send(raw, &set("other", 6, "six")), Ok(()));
        // Bytes of any kind.
        let bytes = b"\r\n\0\xff{}";
        assert_eq!(send(raw, &Write::set(bytes, 1, bytes)), Ok(()));
        assert_eq!(raw.cmd(&[b"GET".as_slice(), bytes]), Value::Bulk(bytes.to_vec()));
    });
}

#[test]
fn the_fence_outlives_the_value() {
    on_each(|_, raw| {
        let ttl = |raw: &mut Raw, key: &[u8]| raw.cmd(&[b"PTTL".as_slice(), key]).int().unwrap();
        let fence = fence_key(b"r");
        assert_eq!(send(raw, &set("r", 7, "seven").expire_after(MS(1))), Ok(()));
        eventually(SOON, || raw.cmd(&["GET", "r"]) == Value::Nil);
        assert_eq!(send(raw, &set("r", 6, "six")), stale(6, 7));
        assert_eq!(ttl(raw, &fence), -1, "for ever");
        // A write without an expiry takes an earlier one's away.
        assert_eq!(send(raw, &set("r", 7, "seven").expire_after(MS(90_000))), Ok(()));
        assert!((1..=90_000).contains(&ttl(raw, b"r")));
        assert_eq!(send(raw, &set("r", 7, "seven")), Ok(()));
        assert_eq!(ttl(raw, b"r"), -1);
        assert_eq!(send(raw, &Write::delete("r", 8)), Ok(()));
        assert_eq!(raw.cmd(&["GET", "r"]), Value::Nil);
        assert_eq!(send(raw, &set("r", 7, "seven")), stale(7, 8));
        // Only where it is asked for, it is forgotten, and that opens the gate, as is documented.
        assert_eq!(send(raw, &Write::delete("r", 9).keep_fence_for(MS(1))), Ok(()));
        eventually(SOON, || raw.cmd(&[b"GET".as_slice(), &fence]) == Value::Nil);
        assert_eq!(send(raw, &set("r", 6, "six")), Ok(()));
    });
}

#[test]
fn what_is_no_string_and_no_fence_is_left_alone() {
    on_each(|_, raw| {
        raw.cmd(&["HSET", "hash", "field", "value"]);
        assert_eq!(why(send(raw, &set("hash", 5, "v"))), "it holds a hash");
        assert_eq!(why(send(raw, &Write::delete("hash", 5))), "it holds a hash");
        assert_eq!(raw.cmd(&["HGET", "hash", "field"]), "value".into());
        assert_eq!(raw.cmd(&[b"EXISTS".as_slice(), &fence_key(b"hash")]), Value::Int(0));
        raw.cmd(&[b"LPUSH".as_slice(), &fence_key(b"r"), b"x"]);
        assert!(why(send(raw, &set("r", 5, "v"))).contains("a list is in the place"));
        for text in ["", "x", "-1", "0", "1e3", "9007199254740992", "12345678901234567"] {
            raw.cmd(&[b"SET".as_slice(), &fence_key(b"r"), text.as_bytes()]);
            assert!(why(send(raw, &set("r", 5, "v"))).contains("is no fence"), "{text:?}");
        }
        assert_eq!(raw.cmd(&["EXISTS", "r"]), Value::Int(0));
    });
}

/// A lock whose name is the resource's key is not taken from its holder.
#[test]
fn a_lock_is_not_overwritten() {
    for kind in ServerKind::default_set() {
        let server = started(kind);
        runtime().block_on(async {
            let warden = connect(&server, "").await;
            let guard = warden.lock("r").acquire().await.unwrap();
            let mut raw = server.raw();
            assert!(why(send(&mut raw, &set("r", guard.fence(), "v"))).contains("it is a lock"));
            let deleted = send(&mut raw, &Write::delete("r", guard.fence()));
            assert!(why(deleted).contains("it is a lock"));
            guard.release().await.unwrap();
        });
    }
}

/// Numbers are doubles in Lua: up to the last one that is exact, and not beyond.
#[test]
fn large_fences_are_compared_exactly() {
    on_each(|_, raw| {
        assert_eq!(send(raw, &set("r", MAX_FENCE - 1, "a")), Ok(()));
        assert_eq!(send(raw, &set("r", MAX_FENCE, "b")), Ok(()));
        assert_eq!(send(raw, &set("r", MAX_FENCE - 1, "c")), stale(MAX_FENCE - 1, MAX_FENCE));
        assert_eq!(raw.cmd(&[b"GET".as_slice(), &fence_key(b"r")]), "9007199254740991".into());
        // Today's fences have 16 digits; Lua's own format would print them as 1.7644700000000e+15.
        assert_eq!(send(raw, &set("s", 1_764_470_000_000_001, "a")), Ok(()));
        assert_eq!(raw.cmd(&[b"GET".as_slice(), &fence_key(b"s")]), "1764470000000001".into());
        assert_eq!(
            send(raw, &set("s", 1_764_470_000_000_000, "b")),
            stale(1_764_470_000_000_000, 1_764_470_000_000_001)
        );
    });
}

/// What another client sends that does not check its values.
#[test]
fn bad_arguments_have_their_code_and_change_nothing() {
    on_each(|_, raw| {
        let good = ["7", "0", "set", "v", "0"];
        let mut ask = |place: usize, value: &str| {
            let mut arguments = good;
            arguments[place] = value;
            let mut command = vec!["EVAL", SCRIPT, "2", "r", "lockwarden:gate:{r}"];
            command.extend(arguments);
            raw.cmd(&command).items()[0].clone()
        };
        let number =
            ["", "x", "-1", "+7", " 7", "7.0", "1e3", "0x10", "nan", "inf", "10000000000000000"];
        for value in number.into_iter().chain(["0", "9007199254740992", "9007199254740993"]) {
            assert_eq!(ask(0, value), Value::Int(4), "{value:?}");
        }
        for value in number.into_iter().chain(["3153600000001", "9007199254740991"]) {
            assert_eq!(ask(1, value), Value::Int(4), "{value:?}");
            assert_eq!(ask(4, value), Value::Int(4), "{value:?}");
        }
        // The fence would go before the value.
        assert_eq!(ask(1, "1000"), Value::Int(4));
        assert_eq!(ask(2, "SET"), Value::Int(4));
        assert_eq!(ask(3, "lockwarden:x"), Value::Int(4));
        let short = ["EVAL", SCRIPT, "2", "r", "lockwarden:gate:{r}", "7", "0", "set"];
        assert_eq!(raw.cmd(&short).items()[0], Value::Int(4));
        assert_eq!(raw.cmd(&["EVAL", SCRIPT, "2", "r", "f"]).items()[0], Value::Int(4));
        assert_eq!(keys(raw), Vec::<String>::new());
    });
}

#[test]
fn random_writes_match_the_comparison() {
    on_each(|_, raw| {
        let mut dice = Dice(11);
        let mut newest: HashMap<u64, u64> = HashMap::new();
        for _ in 0..size(20_000, 2_000) {
            let (key, fence) = (dice.below(5), 1 + dice.below(1_000));
            let seen = newest.entry(key).or_insert(0);
            let write = set(&format!("r{key}"), fence, &fence.to_string());
            match send(raw, &write) {
                Ok(()) => {
                    assert!(fence >= *seen);
                    *seen = fence;
                }
                refused => assert_eq!(refused, stale(fence, *seen)),
            }
            let value = raw.cmd(&["GET", &format!("r{key}")]).text().unwrap();
            assert_eq!(value, seen.to_string());
        }
    });
}

#[test]
fn clients_with_shuffled_fences_end_with_the_highest() {
    on_each(|server, raw| {
        let (clients, rounds) = (8, size(500, 50));
        std::thread::scope(|scope| {
            for client in 0..clients {
                scope.spawn(move || {
                    let mut raw = server.raw();
                    for round in 0..rounds {
                        let fence = 1 + (round * clients + client) * 37 % (rounds * clients);
                        match send(&mut raw, &set("r", fence, &fence.to_string())) {
                            Ok(()) | Err(Error::Stale(_)) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                });
            }
        });
        let highest = (clients * rounds).to_string();
        assert_eq!(raw.cmd(&["GET", "r"]).text(), Some(highest.clone()));
        assert_eq!(raw.cmd(&[b"GET".as_slice(), &fence_key(b"r")]).text(), Some(highest));
    });
}

/// Without memory nothing is written, neither fence nor value.
#[test]
fn out_of_memory_is_all_or_nothing() {
    on_each(|_, raw| {
        assert_eq!(send(raw, &set("r", 5, "five")), Ok(()));
        assert!(raw.cmd(&["CONFIG", "SET", "maxmemory", "1"]).is_ok());
        let call = set("r", 7, "seven").call().unwrap();
        let mut command: Vec<&[u8]> = vec![b"EVAL", SCRIPT.as_bytes(), b"2"];
        command.extend(call.keys.iter().chain(&call.arguments).map(Vec::as_slice));
        let reply = raw.cmd(&command);
        assert!(reply.error().unwrap().contains("OOM"), "{reply:?}");
        assert!(raw.cmd(&["CONFIG", "SET", "maxmemory", "0"]).is_ok());
        assert_eq!(raw.cmd(&["GET", "r"]), "five".into());
        assert_eq!(raw.cmd(&[b"GET".as_slice(), &fence_key(b"r")]), "5".into());
    });
}

/// The rights that docs/GATES.md gives are enough.
#[test]
fn the_documented_rights_are_enough() {
    const RIGHTS: &str = "~stock:* ~lockwarden:gate* +eval +evalsha +type +get +getrange +set +del";
    assert!(include_str!("../../../docs/GATES.md").contains(&format!("`{RIGHTS}`")));
    for kind in ServerKind::default_set().into_iter().filter(|kind| kind.has_acl()) {
        let server = Server::builder(kind).acl_user("app", &format!("on >secret {RIGHTS}")).start();
        let mut raw = server.raw_without_login();
        assert!(raw.cmd(&["AUTH", "app", "secret"]).is_ok());
        for key in ["stock:7", "stock:{7}", "stock:}{"] {
            assert_eq!(send(&mut raw, &set(key, 7, "v").expire_after(MS(60_000))), Ok(()));
            assert_eq!(send(&mut raw, &set(key, 6, "v")), stale(6, 7));
            assert_eq!(send(&mut raw, &Write::delete(key, 7)), Ok(()));
        }
    }
}

/// C27: on a server that refuses keys of different slots, keys full of braces.
#[test]
fn both_keys_share_a_slot_of_a_cluster() {
    for kind in ServerKind::default_set() {
        let server = Server::builder(kind).config("cluster-enabled", "yes").start();
        let mut raw = server.raw();
        let slots: Vec<String> = (0..16_384).map(|slot| slot.to_string()).collect();
        let mut command = vec!["CLUSTER", "ADDSLOTS"];
        command.extend(slots.iter().map(String::as_str));
        assert!(raw.cmd(&command).is_ok());
        let up = |raw: &mut Raw| raw.cmd(&["CLUSTER", "INFO"]).text().unwrap();
        eventually(SOON, || up(&mut raw).contains("cluster_state:ok"));
        for key in ["stock", "{a}b", "a{b}c", "}{", "{}x", "a}b", "{", "}", "{}{a}", "ö{ü}", " "]
        {
            assert_eq!(send(&mut raw, &set(key, 7, "v")), Ok(()), "{key}");
            assert_eq!(send(&mut raw, &set(key, 6, "w")), stale(6, 7), "{key}");
        }
        let apart = ["EVAL", SCRIPT, "2", "r", "lockwarden:gate:r", "7", "0", "set", "v", "0"];
        assert!(raw.cmd(&apart).error().is_some(), "so the slots do matter here");
    }
}

/// docs/GATES.md: with redis-rs.
#[test]
fn the_documented_rust_works() {
    for kind in ServerKind::default_set() {
        let server = Server::start(kind);
        let client = redis::Client::open(server.url()).unwrap();
        let mut connection = client.get_connection().unwrap();
        let mut put = |fence: u64| -> Result<(), Box<dyn std::error::Error>> {
            let write = Write::set("stock:7", fence, "41").call()?;
            let mut script = redis::cmd("EVAL");
            script.arg(SCRIPT).arg(2).arg(&write.keys).arg(&write.arguments);
            let (code, newest, words): (i64, i64, String) = script.query(&mut connection)?;
            Ok(write.read(code, newest, &words)?)
        };
        put(7).unwrap();
        assert!(put(6).unwrap_err().to_string().contains("the resource has seen 7"));
    }
}

/// docs/GATES.md: with redis-py.
#[test]
fn the_documented_python_works() {
    const USE: &str = r#"
import sys, redis
server, script = redis.Redis(port=int(sys.argv[1])), sys.argv[2]
write(server, script, "r", 7, "seven")
write(server, script, "r", 7, "again")
for bad, expected in [(6, "seen 7"), (0, "fence")]:
    try:
        write(server, script, "r", bad, "bad")
    except RuntimeError as error:
        assert expected in str(error), error
    else:
        sys.exit(f"{bad} passed")
assert server.get("r") == b"again"
"#;
    on_each(|server, raw| {
        let program = [documented("python: redis"), USE].concat();
        let python = servers_dir().join("../.venv/bin/python");
        let port = server.port().to_string();
        let run = Command::new(python).args(["-c", &program, &port, SCRIPT]).output().unwrap();
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        // It is the gate of every other client.
        assert_eq!(send(raw, &set("r", 6, "six")), stale(6, 7));
    });
}
