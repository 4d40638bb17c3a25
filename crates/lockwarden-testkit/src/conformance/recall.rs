//! Recalls: the holder is asked for its lock, and decides (R32).

use super::{MS, Place, names, until, waiters, warden};
use lockwarden::{Absence, Error, Guard, HoldState, Loss, Settings, Token};
use std::time::Duration;

/// A recall comes that was not told yet.
async fn is_recalled(guard: &Guard) -> bool {
    tokio::time::timeout(MS(20_000), guard.recalled()).await.is_ok_and(|by| by.is_some())
}

/// None comes, not even behind an answer of the store.
async fn is_left_alone(guard: &Guard) -> bool {
    guard.extend(MS(30_000)).await.expect("held");
    tokio::time::timeout(MS(50), guard.recalled()).await.is_err()
}

/// The listener hears who asks, gives the lock up, and the first waiter has it. A recall that nobody listened to yet
/// is not forgotten.
pub async fn a_recall_reaches_the_holder(place: &dyn Place) {
    let a = warden(place).await;
    let b = Settings::new().label("operator").connect_to(place.store()).await.expect("connects");
    let held = a.lock("x").acquire().await.expect("free");
    let token = held.token().clone();
    let listener = tokio::spawn(async move {
        let by = held.recalled().await.expect("asked");
        held.release().await.expect("released");
        by
    });
    let waiter = tokio::spawn({
        let lock = b.lock("x");
        async move { lock.acquire().await }
    });
    until("queued", || async { waiters(&a, "x").await == 1 }).await;
    b.recall("x", &token).await.expect("asked");
    let by = tokio::time::timeout(MS(20_000), listener).await.expect("heard").expect("no panic");
    assert_eq!((&*by.label, by.pid()), ("operator", Some(std::process::id())));
    let next = waiter.await.expect("no panic").expect("granted");
    // By oneself, and before anyone listens.
    b.recall("x", next.token()).await.expect("asked");
    assert!(is_recalled(&next).await);
    next.release().await.expect("released");
    until("nothing left", || async { names(&a).await.is_empty() }).await;
}

/// A holder that does not listen, or goes on, keeps its lock; it can be asked again.
pub async fn a_recall_changes_nothing(place: &dyn Place) {
    let (a, b) = (warden(place).await, warden(place).await);
    let held = a.lock("x").acquire().await.expect("free");
    let fence = held.fence();
    for _ in 0..3 {
        b.recall("x", held.token()).await.expect("asked");
    }
    // Those that came meanwhile are one.
    assert!(is_recalled(&held).await);
    let mut told = 1;
    while !is_left_alone(&held).await {
        told += 1;
    }
    assert!(told <= 3, "{told}");
    // Of those who wait at once everybody is told.
    let asks = b.recall("x", held.token());
    let (one, other, asked) = tokio::join!(is_recalled(&held), is_recalled(&held), asks);
    assert!(one && other);
    asked.expect("asked");
    assert!(held.check());
    let record = b.show("x").await.expect("show").holder.and_then(|it| it.record).expect("ours");
    assert_eq!((record.fence, record.state), (fence, HoldState::Held));
    assert!(matches!(b.lock("x").no_wait().acquire().await, Err(Error::Busy { .. })));
    drop(held);
    until("nothing left", || async { names(&b).await.is_empty() }).await;
}

/// A guard hears what was asked since it exists: one of an owner that enters again, and one of several locks.
pub async fn a_recall_is_for_the_guards_that_are(place: &dyn Place) {
    let (a, b) = (warden(place).await, warden(place).await);
    let outer = a.lock("x").owner("task").acquire().await.expect("free");
    b.recall("x", outer.token()).await.expect("asked");
    // Behind it in the same session.
    assert!(is_recalled(&outer).await);
    let inner = a.lock("x").owner("task").acquire().await.expect("our own");
    assert!(is_left_alone(&inner).await);
    b.recall("x", outer.token()).await.expect("asked");
    assert!(is_recalled(&inner).await && is_recalled(&outer).await);
    inner.release().await.expect("released");
    outer.release().await.expect("released");
    let both = a.lock_all(["y", "z"]).acquire().await.expect("free");
    b.recall("z", both.token()).await.expect("asked");
    assert!(is_recalled(&both).await);
    both.release().await.expect("released");
    until("nothing left", || async { names(&a).await.is_empty() }).await;
}

/// The token is compared. Who does not hold it any more is not asked, and hears that nobody will.
pub async fn a_recall_hurts_only_the_holder_that_is_named(place: &dyn Place) {
    let (a, b) = (warden(place).await, warden(place).await);
    let not_held = async |token: &Token| match b.recall("x", token).await {
        Err(Error::Lost { loss: Loss::NotHeld(absence), .. }) => absence,
        other => panic!("{other:?}"),
    };
    assert_eq!(not_held(&Token::found(b"another")).await, Absence::Free);
    let held = a.lock("x").acquire().await.expect("free");
    assert_eq!(not_held(&Token::found(b"another")).await, Absence::Taken);
    assert!(is_left_alone(&held).await);
    let waiter = tokio::spawn({
        let lock = a.lock("x");
        async move { lock.acquire().await }
    });
    until("queued", || async { waiters(&b, "x").await == 1 }).await;
    b.revoke("x", held.token(), false).await.expect("revoked");
    let next = waiter.await.expect("no panic").expect("granted");
    assert_eq!(not_held(held.token()).await, Absence::Taken);
    assert!(is_left_alone(&next).await);
    // Lost: nobody will ask.
    assert_eq!(held.lost().await, Loss::Revoked);
    let told = tokio::time::timeout(Duration::from_secs(20), held.recalled()).await;
    assert!(told.expect("it ends").is_none());
    next.release().await.expect("released");
    until("nothing left", || async { names(&a).await.is_empty() }).await;
}
