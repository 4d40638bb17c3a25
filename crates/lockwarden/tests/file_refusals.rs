//! What the file store refuses, and in which words.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "test code")]

mod file_support;

use file_support::{Session, acquire, leftovers, release};
use lockwarden::{Effect, StoreError, Trouble};
use lockwarden_core::{Command, Reply, command::Wait};
use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown, symlink},
    path::{Path, PathBuf},
    process::Command as Program,
};

const NOBODY: u32 = 65_534;

async fn refused(dir: &Path) -> StoreError {
    match Session::open(dir, "a").await {
        Err(error) => error,
        Ok(_) => panic!("{} was not refused", dir.display()),
    }
}

fn root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: only root can make files of other users, and mount");
    }
    root
}

#[tokio::test]
async fn what_belongs_to_others_is_refused_and_named() {
    if !root() {
        return;
    }
    for part in ["", "sessions", "lockwarden.db"] {
        let dir = tempfile::tempdir().unwrap();
        drop(Session::new(dir.path(), "a").await);
        chown(dir.path().join(part), Some(NOBODY), None).unwrap();
        let error = refused(dir.path()).await;
        let StoreError::Denied { place, detail } = &error else { panic!("{error:?}") };
        assert_eq!(*place, format!("file:{}", dir.path().display()));
        let path = dir.path().join(part);
        for told in ["(65534)", "--store", path.to_str().unwrap().trim_end_matches('/')] {
            assert!(detail.contains(told), "{told} is missing in {detail}");
        }
    }
}

#[tokio::test]
async fn what_others_may_write_to_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let error = refused(dir.path()).await;
    assert!(matches!(error, StoreError::Denied { .. }), "{error:?}");
    assert!(error.to_string().contains("chmod go-w"), "{error}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing was made in it");
}

/// What is made is for its user alone, whatever the umask.
#[tokio::test]
async fn what_is_made_is_private() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("some/where");
    let mut a = Session::new(&dir, "a").await;
    a.take("job", "ta").await;
    for (part, mode) in [
        ("", 0o700),
        ("sessions", 0o700),
        ("sessions/a", 0o600),
        ("lockwarden.db", 0o600),
        ("lockwarden.db-wal", 0o600),
        ("lockwarden.db-shm", 0o600),
    ] {
        let found = fs::metadata(dir.join(part)).unwrap().permissions().mode() & 0o777;
        assert_eq!(found, mode, "{part} has mode {found:o}");
    }
}

#[tokio::test]
async fn what_is_no_directory_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "text").unwrap();
    for path in [file.clone(), file.join("below")] {
        let error = refused(&path).await;
        assert!(matches!(error, StoreError::Invalid { .. }), "{error:?}");
    }
    let linked = dir.path().join("linked");
    symlink(dir.path().join("real"), &linked).unwrap();
    refused(&linked).await;
    fs::create_dir(dir.path().join("real")).unwrap();
    Session::new(&linked, "a").await;
}

/// A schema of a later version is refused, and nothing is changed.
#[tokio::test]
async fn another_schema_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    drop(Session::new(dir.path(), "a").await);
    let path = dir.path().join("lockwarden.db");
    let database = rusqlite::Connection::open(&path).unwrap();
    let ours: i64 = database.query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap();
    drop(database);
    for number in [ours + 1, 1_000_000] {
        let database = rusqlite::Connection::open(&path).unwrap();
        database.execute_batch(&format!("PRAGMA user_version={number}")).unwrap();
        drop(database);
        let before = fs::read(&path).unwrap();
        let error = refused(dir.path()).await;
        assert!(matches!(error, StoreError::Denied { .. }), "{error:?}");
        assert!(error.to_string().contains(&format!("schema {number}")), "{error}");
        assert_eq!(fs::read(&path).unwrap(), before);
    }
    assert_eq!(leftovers(dir.path()).0, [""; 0]);
}

/// One of an earlier version is refused while somebody uses the store, and made anew when nobody does: what no
/// living session holds is free.
#[tokio::test]
async fn an_earlier_schema_is_made_anew_when_nobody_uses_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lockwarden.db");
    let mut user = Session::new(dir.path(), "user").await;
    user.take("job", "t").await;
    let database = rusqlite::Connection::open(&path).unwrap();
    database.execute_batch("PRAGMA user_version=1").unwrap();
    drop(database);
    let error = refused(dir.path()).await;
    assert!(matches!(error, StoreError::Denied { .. }), "{error:?}");
    assert!(error.to_string().contains("schema 1"), "{error}");
    drop(user);
    let mut next = Session::new(dir.path(), "next").await;
    next.take("job", "u").await;
    assert_eq!(next.release("job", "u").await, Reply::Released);
}

#[tokio::test]
async fn a_database_of_something_else_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lockwarden.db");
    let database = rusqlite::Connection::open(&path).unwrap();
    database.execute_batch("CREATE TABLE theirs (a); INSERT INTO theirs VALUES (1)").unwrap();
    drop(database);
    let error = refused(dir.path()).await;
    assert!(error.to_string().contains("something else"), "{error}");

    // So is what is no database at all; and neither is deleted.
    let text = "this is somebody's text, and longer than the header of a database is: it goes on \
                and on and on, until there is no doubt any more";
    fs::write(&path, text).unwrap();
    let error = refused(dir.path()).await;
    assert!(
        matches!(error, StoreError::Unavailable { trouble: Trouble::Protocol, .. }),
        "{error:?}"
    );
    assert_eq!(fs::read_to_string(&path).unwrap(), text);
}

/// A small file system of its own; none where mounting is not allowed.
struct Mount(PathBuf);

impl Mount {
    fn new(at: &Path, size: &str) -> Option<Mount> {
        let options = format!("size={size},mode=700");
        let done = Program::new("mount")
            .args(["-t", "tmpfs", "-o", &options, "lockwarden-test"])
            .arg(at)
            .status();
        if !done.is_ok_and(|status| status.success()) {
            eprintln!("skipped: mounting is not allowed here");
            return None;
        }
        Some(Mount(at.to_owned()))
    }

    fn read_only(&self) {
        let done = Program::new("mount").args(["-o", "remount,ro"]).arg(&self.0).status().unwrap();
        assert!(done.success());
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Program::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[tokio::test]
async fn a_read_only_file_system_is_told() {
    let parent = tempfile::tempdir().unwrap();
    if !root() {
        return;
    }
    let Some(mount) = Mount::new(parent.path(), "4m") else { return };
    let made = parent.path().join("made");
    drop(Session::new(&made, "a").await);
    mount.read_only();
    for dir in [made, parent.path().join("not-made")] {
        let error = refused(&dir).await;
        assert!(
            matches!(error, StoreError::Unavailable { trouble: Trouble::ReadOnly, .. }),
            "{error:?}"
        );
    }
}

/// A full disk refuses what needs room, says so, and what frees room goes on.
#[tokio::test]
async fn a_full_disk_is_told() {
    let parent = tempfile::tempdir().unwrap();
    if !root() {
        return;
    }
    let Some(_mount) = Mount::new(parent.path(), "512k") else { return };
    let dir = parent.path().join("store");
    let mut a = Session::new(&dir, "a").await;
    a.take("job", "ta").await;
    let ballast = parent.path().join("ballast");
    fs::write(&ballast, vec![1; 1 << 20]).unwrap_err();
    let mut held = 0;
    let error = loop {
        match a.try_call(acquire(&format!("{held:0>900}"), "t", Wait::No)).await {
            Ok(Reply::Granted { .. }) => held += 1,
            Ok(other) => panic!("{other:?}"),
            Err(error) => break error,
        }
    };
    let StoreError::Unavailable { trouble, effect, .. } = &error else { panic!("{error:?}") };
    assert_eq!((*trouble, *effect), (Trouble::OutOfMemory, Effect::NotApplied), "{error}");
    fs::remove_file(&ballast).unwrap();
    assert!(matches!(a.call(Command::Beat).await, Reply::Beat { .. }));
    let releases = (0..held).map(|number| release(&format!("{number:0>900}"), "t")).collect();
    for reply in a.batch(releases).await.unwrap() {
        assert_eq!(reply, Reply::Released);
    }
    assert_eq!(a.release("job", "ta").await, Reply::Released);
}
