//! The file store in one process: several sessions, the files that come and go, and what a session
//! is told.

mod file_support;

use file_support::{SOON, Session, acquire, leftovers, name, release, renew, token};
use lockwarden::{StoreError, Trouble};
use lockwarden_core::{
    Command, Message, Reply,
    command::{Absence, Reason, Wait},
};
use std::fs;

#[tokio::test]
async fn acquire_wait_release_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Session::new(dir.path(), "a").await;
    let mut b = Session::new(dir.path(), "b").await;
    let mut c = Session::new(dir.path(), "c").await;
    let first = a.take("job", "ta").await;
    let refusal = b.queue("job", "tb").await;
    assert_eq!((refusal.reason, refusal.position), (Reason::Held, Some(0)));
    let holder = refusal.holder.unwrap();
    assert_eq!(holder.token, token("ta"));
    assert_eq!(holder.record.unwrap().party.pid(), Some(std::process::id()));
    assert_eq!(c.queue("job", "tc").await.position, Some(1));
    assert!(
        matches!(a.message().await, Message::Asking { token: asked, .. } if asked == token("ta"))
    );

    assert_eq!(a.release("job", "ta").await, Reply::Released);
    let second = b.granted("tb").await;
    // C is the first now, and is told whom to watch.
    assert!(
        matches!(c.message().await, Message::First { holder, .. } if holder.token == token("tb"))
    );
    assert_eq!(a.release("job", "ta").await, Reply::NotHeld(Absence::Taken));
    assert_eq!(b.release("job", "tb").await, Reply::Released);
    let third = c.granted("tc").await;
    assert!(first < second && second < third, "{first} {second} {third}");
    assert_eq!(c.release("job", "tc").await, Reply::Released);
    assert_eq!(c.release("job", "tc").await, Reply::NotHeld(Absence::Free));
}

/// G6: whatever is sent again happens once.
#[tokio::test]
async fn commands_may_come_twice() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Session::new(dir.path(), "a").await;
    let mut b = Session::new(dir.path(), "b").await;
    let fence = a.take("job", "ta").await;
    assert_eq!(a.take("job", "ta").await, fence);
    b.queue("job", "tb").await;
    assert_eq!(b.queue("job", "tb").await.position, Some(0));
    let cancel = Command::Cancel {
        also: Default::default(),
        name: name("job"),
        token: token("tb"),
        proof: "".into(),
    };
    assert_eq!(b.call(cancel.clone()).await, Reply::Cancelled { released: false });
    assert_eq!(b.call(cancel).await, Reply::Cancelled { released: false });
    assert_eq!(a.call(renew("job", "ta")).await, Reply::Renewed { lease_ms: 30_000 });
    a.release("job", "ta").await;
}

/// A batch is one transaction, and its answers come in order; a session's messages to itself follow.
#[tokio::test]
async fn a_batch_is_answered_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Session::new(dir.path(), "a").await;
    let replies = a
        .batch(vec![
            acquire("job", "t1", Wait::No),
            acquire("job", "t2", Wait::Forever),
            release("job", "t1"),
            Command::Beat,
        ])
        .await
        .unwrap();
    assert!(matches!(replies[0], Reply::Granted { .. }), "{replies:?}");
    assert!(matches!(replies[1], Reply::Refused(_)), "{replies:?}");
    assert_eq!(replies[2], Reply::Released);
    let Reply::Beat { run, subscribers, .. } = &replies[3] else { panic!("{replies:?}") };
    assert_eq!((run.as_str(), *subscribers), (&*lockwarden::process::boot(), 1));
    a.granted("t2").await;
    let many: Vec<_> = (0..1_000).map(|i| acquire(&format!("n{i}"), "t", Wait::No)).collect();
    let replies = a.batch(many).await.unwrap();
    assert!(replies.iter().all(|reply| matches!(reply, Reply::Granted { .. })));
    let mut names = a.names().await;
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 1_001);
}

/// R40: hints are lost where a queue is full, messages are not.
#[tokio::test]
async fn a_full_queue_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Session::new(dir.path(), "a").await;
    let mut b = Session::new(dir.path(), "b").await;
    // Far more than the queue of a socket holds, and B does not look.
    let names: Vec<String> = (0..1_500).map(|i| format!("n{i}")).collect();
    for name in &names {
        a.take(name, "ta").await;
        b.queue(name, "tb").await;
    }
    for name in &names {
        a.release(name, "ta").await;
    }
    let mut granted = std::collections::HashSet::new();
    while granted.len() < names.len() {
        match b.message().await {
            Message::Grant { name, .. } => assert!(granted.insert(name)),
            other => panic!("{other:?}"),
        }
    }
}

/// What was said to an earlier link of a session is void on the next one (R22).
#[tokio::test]
async fn a_new_link_begins_without_old_messages() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Session::new(dir.path(), "a").await;
    let mut b = Session::new(dir.path(), "b").await;
    a.take("job", "ta").await;
    b.queue("job", "tb").await;
    a.release("job", "ta").await;
    drop(b);
    let mut b = Session::new(dir.path(), "b").await;
    // The grant itself stands, and is told when it is asked for.
    assert!(matches!(b.acquire("job", "tb", Wait::Forever).await, Reply::Granted { .. }));
    b.release("job", "tb").await;
    let (_, [meta, _, inbox]) = leftovers(dir.path());
    assert_eq!([meta, inbox], [1, 0]);
}

/// R14: a session that ends is dead at once; its lock ends after its grace.
#[tokio::test]
async fn a_dropped_link_is_a_dead_session() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Session::new(dir.path(), "a").await;
    let mut b = Session::new(dir.path(), "b").await;
    a.take("job", "ta").await;
    drop(a);
    let refusal = b.queue("job", "tb").await;
    let ttl_ms = refusal.holder.unwrap().ttl_ms.unwrap();
    assert!(ttl_ms <= 3_000, "{ttl_ms}");
    let session = Some(lockwarden_core::SessionId::new("a"));
    let revoke = Command::Revoke { name: name("job"), token: token("ta"), session, delayed: false };
    assert_eq!(b.call(revoke).await, Reply::Revoked { after_ms: 0 });
    b.granted("tb").await;
}

#[tokio::test]
async fn a_session_is_connected_once() {
    let dir = tempfile::tempdir().unwrap();
    let first = Session::new(dir.path(), "a").await;
    let Err(StoreError::Unavailable { trouble, detail, .. }) = Session::open(dir.path(), "a").await
    else {
        panic!("connected twice")
    };
    assert_eq!(trouble, Trouble::Protocol);
    assert!(detail.contains("connected already"), "{detail}");
    drop(first);
    Session::new(dir.path(), "a").await;
    for id in ["", "../up", "a/b", &"x".repeat(65)] {
        let Err(error) = Session::open(dir.path(), id).await else { panic!("{id:?}") };
        assert!(matches!(error, StoreError::Invalid { .. }), "{error}");
    }
}

/// G9: nothing is left but the one row of `meta`.
#[tokio::test]
async fn nothing_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Session::new(dir.path(), "a").await;
    let mut b = Session::new(dir.path(), "b").await;
    for round in 0..20 {
        let of = format!("job{round}");
        a.take(&of, "ta").await;
        b.queue(&of, "tb").await;
        a.release(&of, "ta").await;
        b.granted("tb").await;
        b.release(&of, "tb").await;
        // What was refused once is remembered for a second, so that its holder is asked once (R16).
    }
    let names = async |session: &mut Session| session.names().await.len();
    let began = std::time::Instant::now();
    while names(&mut a).await > 0 {
        assert!(began.elapsed() < SOON);
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    drop((a, b));
    let (files, rows) = leftovers(dir.path());
    assert_eq!(files, [""; 0]);
    assert_eq!([rows[0], rows[2]], [1, 0]);
}

/// R41: whoever works in a directory that is deleted learns it, and the next session makes a new one.
#[tokio::test]
async fn a_deleted_directory_is_noticed() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("store");
    let mut a = Session::new(&dir, "a").await;
    a.take("job", "ta").await;
    fs::remove_dir_all(&dir).unwrap();
    let error = a.try_call(Command::Beat).await.unwrap_err();
    let StoreError::Unavailable { trouble, detail, .. } = &error else { panic!("{error}") };
    assert_eq!(*trouble, Trouble::Disconnected);
    assert!(detail.contains("deleted or replaced"), "{detail}");
    drop(a);
    let mut a = Session::new(&dir, "a").await;
    a.take("job", "tb").await;

    // Another directory in its place is noticed as well.
    let other = parent.path().join("other");
    let mut b = Session::new(&other, "b").await;
    b.take("job", "tb").await;
    fs::rename(&dir, parent.path().join("away")).unwrap();
    fs::rename(&other, &dir).unwrap();
    a.try_call(Command::Beat).await.unwrap_err();
    b.try_call(Command::Beat).await.unwrap_err();
}

/// Whoever still believes in a database that was deleted is waited for (R5).
#[tokio::test]
async fn a_deleted_database_costs_the_guard() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Session::new(dir.path(), "a").await;
    let fence = a.take("job", "ta").await;
    for file in ["lockwarden.db", "lockwarden.db-wal", "lockwarden.db-shm"] {
        fs::remove_file(dir.path().join(file)).unwrap();
    }
    let mut b = Session::new(dir.path(), "b").await;
    let Reply::Refused(refusal) = b.acquire("job", "tb", Wait::No).await else {
        panic!("granted while another believes")
    };
    let Reason::Guard { guard_ms } = refusal.reason else { panic!("{refusal:?}") };
    assert!(guard_ms <= 3_000, "{guard_ms}");
    tokio::time::sleep(std::time::Duration::from_millis(guard_ms)).await;
    assert!(b.take("job", "tb").await > fence);
    a.try_call(Command::Beat).await.unwrap_err();
}

/// A session whose file was deleted would be dead for all others: it must not go on.
#[tokio::test]
async fn a_deleted_session_file_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Session::new(dir.path(), "a").await;
    a.take("job", "ta").await;
    fs::remove_file(dir.path().join("sessions/a")).unwrap();
    let error = a.try_call(Command::Beat).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable { trouble: Trouble::Disconnected, .. }));
}

/// A socket's address has 108 bytes; a path may be longer.
#[tokio::test]
async fn long_paths_work() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("x".repeat(200)).join("y".repeat(200));
    let mut a = Session::new(&dir, "a").await;
    let mut b = Session::new(&dir, &"b".repeat(64)).await;
    a.take("job", "ta").await;
    b.queue("job", "tb").await;
    a.release("job", "ta").await;
    b.granted("tb").await;
}

#[tokio::test]
async fn pages_cover_every_name() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Session::new(dir.path(), "a").await;
    let wanted: Vec<String> = (0..1_234).map(|i| format!("lock {i:05}")).collect();
    a.batch(wanted.iter().map(|of| acquire(of, "t", Wait::No)).collect()).await.unwrap();
    assert_eq!(a.names().await, wanted);
    assert_eq!(a.names().await, wanted);
    a.batch(wanted.iter().map(|of| release(of, "t")).collect()).await.unwrap();
    assert_eq!(a.names().await, [""; 0]);
}
