//! C30: a user with the rights that the README names, and with each of them taken away.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod support;

use lockwarden::{Error, StoreError, Warden};
use lockwarden_testkit::{
    conformance::{names, until, waiters},
    servers::{Server, ServerKind},
};
use support::{MS, runtime};

const README: &str = include_str!("../../../README.md");

/// The rights of the README's user, as it names them.
fn documented_rights() -> Vec<&'static str> {
    let (_, rest) = README.split_once("ACL SETUSER locks on >PASSWORD ").unwrap();
    let (rights, _) = rest.split_once("```").unwrap();
    rights.split_whitespace().collect()
}

/// A server with a user that has no right at all yet.
fn started(kind: ServerKind) -> Server {
    let server = Server::builder(kind).acl_user("locks", "on >secret").start();
    server.without_guard();
    server
}

fn allow(server: &Server, rights: &[&str]) {
    let mut command = vec!["ACL", "SETUSER", "locks", "resetkeys", "resetchannels", "-@all"];
    command.extend(rights);
    let reply = server.cmd(&command);
    assert!(reply.is_ok(), "{rights:?}: {reply:?}");
}

async fn connect(server: &Server, protocol: &str) -> Result<Warden, Error> {
    let url = format!("redis://locks:secret@{}{protocol}", server.address());
    Warden::connect(&url).await
}

/// All that a lock can go through.
async fn life(server: &Server, protocol: &str) -> Result<(), Error> {
    let (a, b) = (connect(server, protocol).await?, connect(server, protocol).await?);
    let held = a.lock("job:x").wait_for(MS(4_000)).acquire().await?;
    assert_eq!(b.lock("job:x").no_wait().acquire().await.unwrap_err().code(), "busy");
    held.extend(MS(10_000)).await?;
    let lock = b.lock("job:x");
    let waiting = tokio::spawn(async move { lock.acquire().await });
    until("queued", || async { waiters(&a, "job:x").await == 1 }).await;
    let gave_up = b.lock("job:x").wait_for(MS(20)).acquire().await.unwrap_err();
    assert_eq!(gave_up.code(), "timed_out", "{gave_up}");
    held.release().await?;
    let next = waiting.await.unwrap()?;
    assert!(next.check());
    a.page(0, true).await?;
    assert_eq!(names(&a).await, ["job:x"]);
    a.recall("job:x", next.token()).await?;
    assert!(next.recalled().await.is_some());
    a.revoke("job:x", next.token(), true).await?;
    next.lost().await;
    let again = a.lock("job:x").wait_for(MS(6_000)).acquire().await?;
    a.revoke("job:x", again.token(), false).await?;
    until("free", || async { names(&a).await.is_empty() }).await;
    // In every mode, several at once, from hand to hand.
    let reader = |warden: &Warden| warden.lock("job:x").shared().wait_for(MS(4_000));
    let ended = reader(&a).lease(MS(150)).without_renewal().acquire().await?;
    let mut reads = reader(&b).hold_at_least(MS(1)).lock_delay(MS(1)).acquire().await?;
    ended.lost().await;
    // A little before the store has it so (R20).
    while let Err(error) = reads.try_upgrade().await {
        if error.code() != "busy" {
            return Err(error);
        }
        tokio::time::sleep(MS(5)).await;
    }
    reads.downgrade().await?;
    let given = reads.hand_over(MS(10_000)).await?;
    let adopted = a.adopt(&given).acquire().await?;
    adopted.release().await?;
    let permits = a.lock("job:p").permits(1, 2).acquire().await?;
    let several = b.lock_all(["job:x", "job:y"]).acquire().await?;
    let waits = a.lock_all(["job:y", "job:z"]).owner("task").wait_for(MS(4_000));
    let waits = tokio::spawn(async move { waits.acquire().await });
    until("queued", || async { waiters(&a, "job:z").await == 1 }).await;
    several.release().await?;
    waits.await.unwrap()?.release().await?;
    permits.release().await?;
    until("free", || async { names(&a).await.is_empty() }).await;
    a.close().await;
    b.close().await;
    Ok(())
}

fn protocols() -> [&'static str; 2] {
    ["?protocol=2", "?protocol=3"]
}

/// What the README names is enough for everything.
#[test]
fn c30_the_documented_rights_are_enough() {
    for kind in ServerKind::default_set().into_iter().filter(|kind| kind.has_acl()) {
        let server = started(kind);
        allow(&server, &documented_rights());
        for protocol in protocols() {
            runtime().block_on(life(&server, protocol)).unwrap();
        }
        // Of other names it may use none, and hears so.
        let error = runtime().block_on(async {
            let warden = connect(&server, "").await.unwrap();
            warden.lock("other").no_wait().acquire().await.unwrap_err()
        });
        assert!(matches!(error, Error::Store(StoreError::Denied { .. })), "{error}");
        assert!(error.to_string().contains('~'), "{error}");
    }
}

/// Each of them taken away: either it all works still, or it is refused before anything is locked,
/// and the error names what is missing. Never busy; never a lock that cannot be released.
#[test]
fn c30_each_right_taken_away() {
    for kind in ServerKind::default_set().into_iter().filter(|kind| kind.has_acl()) {
        let server = started(kind);
        let rights = documented_rights();
        for missing in &rights {
            let rest: Vec<&str> = rights.iter().filter(|it| it != &missing).copied().collect();
            allow(&server, &rest);
            for protocol in protocols() {
                server.cmd(&["SCRIPT", "FLUSH"]);
                let runtime = runtime();
                let result = runtime.block_on(connect(&server, protocol));
                let word = missing.trim_start_matches('+').split('|').next().unwrap();
                match result {
                    Err(error) => {
                        let text = error.to_string();
                        let denied = matches!(error, Error::Store(StoreError::Denied { .. }));
                        assert!(denied, "{kind} {protocol} without {missing}: {text}");
                        // By name; or, where the server itself does not say which command of a
                        // script it refuses (Redis 7.0), with all that are needed.
                        let (said, advice) = text.split_once("ACL SETUSER").unwrap();
                        let named = said.contains(word)
                            || missing.starts_with('~') && said.contains("key")
                            || missing.starts_with('&') && said.contains("channel")
                            || said.contains("executing the script") && advice.contains(missing);
                        assert!(named, "{kind} {protocol} without {missing}: {text}");
                    }
                    Ok(warden) => {
                        runtime.block_on(warden.close());
                        partial_life(&runtime, &server, protocol, missing);
                    }
                }
                assert_eq!(server.cmd(&["EXISTS", "job:x"]).int(), Some(0), "{missing}");
            }
        }
    }
}

/// Who can connect without a right can acquire and release, or cannot acquire.
fn partial_life(runtime: &tokio::runtime::Runtime, server: &Server, protocol: &str, missing: &str) {
    runtime.block_on(async {
        let warden = connect(server, protocol).await.unwrap();
        // Without INFO nothing is granted for W (R5).
        match warden.lock("job:x").wait_for(MS(6_000)).acquire().await {
            Ok(guard) => {
                let released = guard.release().await;
                released.unwrap_or_else(|error| panic!("without {missing}: {error}"));
            }
            Err(error) => {
                let denied = matches!(error, Error::Store(StoreError::Denied { .. }));
                assert!(denied, "without {missing}: {error}");
            }
        }
        match warden.page(0, true).await {
            Ok(_) => {}
            Err(error) => {
                let denied = matches!(error, Error::Store(StoreError::Denied { .. }));
                let word = missing.trim_start_matches('+');
                assert!(denied && error.to_string().contains(word), "without {missing}: {error}");
            }
        }
        warden.close().await;
    });
}
