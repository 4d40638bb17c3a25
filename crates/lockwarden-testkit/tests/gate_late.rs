//! A paused holder that wakes up late, at each gate: a real process holds the lock and has checked it, is
//! stopped beyond its lease, and goes on with its write after another has taken over (G2).
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod gate_support;
mod support;

use gate_support::{Web, sqlite};
use lockwarden_testkit::{
    gates::documented, postgres::Postgres, servers::ServerKind, site::Site, taker::Options,
};
use support::TAKER;

/// What became of the late write.
struct Late {
    answer: Vec<String>,
    /// The fences of the first holder and of the second.
    fences: (u64, u64),
    /// What the resource holds after it.
    left: String,
}

fn late_write(site: &Site, gate: &str, place: &str, read: impl Fn() -> String) -> Late {
    let options = Options::new(TAKER, site.url());
    let (mut a, mut b) = (options.clone().label("a").start(), options.label("b").start());
    let put = |value: &str| format!("put k {gate} {place} {value}");
    let (first, _) = a.acquire("k", "x", "lease=1000");
    a.tell(&put("first"));
    a.hear("put k");
    assert_eq!(read(), "first");
    // The check that every careful holder makes, and then the pause.
    assert!(a.check("k"));
    a.process().stop();
    let (second, _) = b.acquire("k", "x", "lease=20000");
    assert!(second > first, "G2");
    b.tell(&put("second"));
    b.hear("put k");
    assert_eq!(read(), "second");
    // It does not look again: it is on its way to the write.
    a.tell(&put("late"));
    a.process().cont();
    let answer = loop {
        let brief = std::time::Duration::from_millis(20);
        if let Some(words) = a.hear_within("refused k", brief) {
            break words;
        }
        if let Some(words) = a.hear_within("put k", brief) {
            break words;
        }
        assert!(a.process().is_running());
    };
    let left = read();
    if answer[0] == "refused" {
        // The grant that is newest goes on as before.
        b.tell(&put("third"));
        b.hear("put k");
        assert_eq!(read(), "third");
    }
    Late { answer, fences: (first, second), left }
}

fn is_refused(site: &Site, gate: &str, place: &str, read: impl Fn() -> String) {
    let Late { answer, fences: (first, second), left } = late_write(site, gate, place, read);
    let text = answer.join(" ");
    assert_eq!(answer[0], "refused", "{text}");
    assert_eq!(left, "second", "the late write is there");
    let expected = format!("fence {first} is stale: the resource has seen {second}");
    assert!(text.contains(&expected), "{text}");
    if gate == "http" {
        assert!(text.contains(" 412 "), "{text}");
    }
}

#[test]
fn a_late_write_is_refused_redis() {
    for kind in ServerKind::default_set() {
        let site = Site::redis(kind);
        let place = site.server().address().to_string();
        let read = || site.server().cmd(&["GET", "r"]).text().unwrap();
        is_refused(&site, "redis", &place, read);
    }
}

#[test]
fn a_late_write_is_refused_sqlite() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let db = sqlite(&path);
    db.execute("INSERT INTO stock (id) VALUES ('r')", ()).unwrap();
    let read = || db.query_row("SELECT amount FROM stock", (), |row| row.get(0)).unwrap();
    is_refused(&Site::file(), "sqlite", path.to_str().unwrap(), read);
}

#[test]
fn a_late_write_is_refused_postgres() {
    let server = Postgres::start();
    server.client().batch_execute(documented("sql: table")).unwrap();
    server.client().execute("INSERT INTO stock (id) VALUES ('r')", &[]).unwrap();
    let read = || server.client().query_one("SELECT amount FROM stock", &[]).unwrap().get(0);
    is_refused(&Site::file(), "postgres", &server.url().replace(' ', "_"), read);
}

#[test]
fn a_late_write_is_refused_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r");
    let read = || std::fs::read_to_string(&path).unwrap();
    is_refused(&Site::file(), "file", path.to_str().unwrap(), read);
}

#[test]
fn a_late_write_is_refused_http() {
    let web = Web::start();
    is_refused(&Site::file(), "http", &web.address, || web.stored());
}

/// That these tests can fail: without a gate, the late write is what is left.
#[test]
fn without_a_gate_the_late_write_stays() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r");
    let read = || std::fs::read_to_string(&path).unwrap();
    let late = late_write(&Site::file(), "none", path.to_str().unwrap(), read);
    assert_eq!((late.answer[0].as_str(), late.left.as_str()), ("put", "late"));
}
