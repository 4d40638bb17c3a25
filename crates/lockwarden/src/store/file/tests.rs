//! A restart of the machine, simulated: the boot's id is an argument in here.

use super::*;
use crate::store::{Call, LinkEvent};
use lockwarden_core::{
    Command, Name, Reply, Token,
    command::{Acquire, Wait},
};
use std::{fs, future::poll_fn, time::Duration};

async fn call(link: &mut dyn Link, command: Command) -> Reply {
    link.send(vec![Call { id: 1, command, may_hold: false }]);
    loop {
        let event = poll_fn(|cx| link.poll_event(cx));
        match tokio::time::timeout(Duration::from_secs(10), event).await.unwrap() {
            LinkEvent::Answers { mut answers, .. } => return answers.remove(0).1.unwrap(),
            LinkEvent::Message(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

fn acquire(token: &str, floor: u64) -> Command {
    Command::Acquire(Acquire {
        at_least_ms: 0,
        delay_ms: 0,
        endless: false,
        modes: Default::default(),
        also: Default::default(),
        name: Name::new("job").unwrap(),
        token: Token::found(token.as_bytes()),
        proof: "".into(),
        wait: Wait::Forever,
        lease_ms: 3_600_000,
        grace_ms: 3_600_000,
        floor,
        party: Arc::default(),
    })
}

async fn connect(dir: &Path, boot: &str, session: &str) -> Box<dyn Link> {
    FileStore::in_boot(dir, boot.into()).connect(&SessionId::new(session), false).await.unwrap()
}

fn fence(reply: Reply) -> u64 {
    match reply {
        Reply::Granted { fence, .. } => fence,
        other => panic!("not granted: {other:?}"),
    }
}

/// After a restart every holder and waiter is gone: the first session gets the lock at once, without
/// a guard, and with a greater fence.
#[tokio::test]
async fn a_restart_of_the_machine_frees_everything() {
    let dir = tempfile::tempdir().unwrap();
    let mut before = connect(dir.path(), "first", "a").await;
    let old = fence(call(&mut *before, acquire("ta", 0)).await);
    let mut waiter = connect(dir.path(), "first", "b").await;
    assert!(matches!(call(&mut *waiter, acquire("tb", 0)).await, Reply::Refused(_)));
    // As a dead machine leaves them: files without locks.
    drop((before, waiter));
    for file in ["sessions/a", "sessions/a.sock", "sessions/b"] {
        fs::write(dir.path().join(file), "").unwrap();
    }
    let mut after = connect(dir.path(), "second", "c").await;
    let new = fence(call(&mut *after, acquire("tc", old)).await);
    assert!(new > old);
    let mut files: Vec<_> = fs::read_dir(dir.path().join("sessions"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    files.sort();
    assert_eq!(files, ["c", "c.sock"]);
}

/// G2: a fence that is ahead of the wall clock stays the least, and is not refused as too far ahead.
#[tokio::test]
async fn fences_outlive_a_clock_that_goes_back() {
    let dir = tempfile::tempdir().unwrap();
    drop(connect(dir.path(), "first", "a").await);
    // Ten years ahead of now.
    let ahead = 10 * 365 * 86_400 * 1_000_000
        + u64::try_from(std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_micros()).unwrap();
    let database = rusqlite::Connection::open(dir.path().join(place::DATABASE)).unwrap();
    database.execute("UPDATE meta SET fence = ?1", [database::to_sql(ahead)]).unwrap();
    drop(database);
    let mut after = connect(dir.path(), "second", "b").await;
    assert!(fence(call(&mut *after, acquire("tb", ahead)).await) > ahead);
}

/// A power failure may damage the file: the next boot makes a new one, this boot says so.
#[tokio::test]
async fn a_damaged_database_is_made_anew_after_a_restart_only() {
    let dir = tempfile::tempdir().unwrap();
    let mut before = connect(dir.path(), "first", "a").await;
    let old = fence(call(&mut *before, acquire("ta", 0)).await);
    drop(before);
    let path = dir.path().join(place::DATABASE);
    for damage in [Damage::Header, Damage::Pages, Damage::Empty] {
        let boot = format!("{damage:?}");
        damage.inflict(&path);
        let same = FileStore::in_boot(dir.path(), marked(dir.path()));
        if damage != Damage::Empty {
            let error = same.connect(&SessionId::new("a"), false).await.err().unwrap().to_string();
            assert!(error.contains("damaged"), "{error}");
        }
        let mut after = connect(dir.path(), &boot, "b").await;
        assert!(fence(call(&mut *after, acquire("tb", 0)).await) > old);
        drop(after);
        assert_eq!(&*marked(dir.path()), boot);
    }
}

fn marked(dir: &Path) -> Arc<str> {
    fs::read_to_string(dir.join("lockwarden.boot")).unwrap().into()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Damage {
    Header,
    Pages,
    Empty,
}

impl Damage {
    fn inflict(self, path: &Path) {
        let database = rusqlite::Connection::open(path).unwrap();
        database.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
        drop(database);
        let mut bytes = fs::read(path).unwrap();
        match self {
            Damage::Header => bytes[..100].fill(0xff),
            Damage::Pages => bytes[100..].fill(0xff),
            Damage::Empty => bytes.clear(),
        }
        fs::write(path, bytes).unwrap();
    }
}

/// Many sessions make the same store at the same moment; one of them does.
#[test]
fn a_store_is_made_once() {
    for _ in 0..30 {
        let dir = tempfile::tempdir().unwrap();
        let start = std::sync::Barrier::new(8);
        std::thread::scope(|scope| {
            for number in 0..8 {
                let (dir, start) = (dir.path().join("new"), &start);
                scope.spawn(move || {
                    let runtime =
                        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                    start.wait();
                    runtime.block_on(async {
                        let mut link = connect(&dir, "boot", &format!("s{number}")).await;
                        let reply = call(&mut *link, Command::Beat).await;
                        assert!(matches!(reply, Reply::Beat { .. }));
                    });
                });
            }
        });
    }
}
