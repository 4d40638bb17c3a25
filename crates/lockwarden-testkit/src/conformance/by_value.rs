//! Locks under values that their users chose: without an end, extended and released by whoever knows the value, and left.

use super::{MS, Place, names, until, waiters, warden};
use lockwarden::{Error, Extension, HoldState, Lock, Loss, RecordView, State, Warden};
use std::time::Instant;

const VALUE: &[u8] = b"their value";

fn drop_in(warden: &Warden) -> Lock {
    warden.lock("x").drop_in_value(VALUE)
}

async fn shown(warden: &Warden) -> (Option<u64>, RecordView) {
    let holder = warden.show("x").await.expect("shown").holder.expect("held");
    (holder.ttl_ms, holder.record.expect("ours"))
}

/// It has no end as long as it is held, whoever it was handed to, and none is left.
pub async fn endless_locks(place: &dyn Place) {
    let (a, b) = (warden(place).await, warden(place).await);
    let endless = |warden: &Warden| drop_in(warden).endless().lease(MS(900));
    let held = endless(&a).acquire().await.expect("free");
    let (ttl_ms, record) = shown(&b).await;
    assert_eq!((ttl_ms, record.endless, record.lease_ms), (None, true, 900));
    let refused = b.lock("x").no_wait().acquire().await.expect_err("held");
    assert!(refused.to_string().contains("without an end"), "{refused}");
    // It is renewed all the same, and by asking for it nobody gives it an end.
    tokio::time::sleep(MS(1_800)).await;
    assert_eq!((held.check(), held.state(), shown(&b).await.0), (true, State::Held, None));
    assert_eq!(held.extend(MS(5_000)).await.expect_err("no lease").code(), "invalid");
    let waiter = tokio::spawn({
        let waiter = endless(&b);
        async move { waiter.acquire().await }
    });
    until("it waits", || async { waiters(&a, "x").await == 1 }).await;
    held.release().await.expect("released");
    let next = waiter.await.expect("no panic").expect("granted");
    until("it is endless again", || async { shown(&a).await.0.is_none() }).await;
    assert!(next.check());
    next.release().await.expect("released");
    until("nothing left", || async { names(&a).await.is_empty() }).await;
}

/// What cannot be without an end, and what cannot be left.
pub async fn bad_values_of_drop_ins(place: &dyn Place) {
    let a = warden(place).await;
    for lock in [
        a.lock("x").endless(),
        drop_in(&a).endless().without_renewal(),
        drop_in(&a).endless().hold_at_most(MS(5_000)),
        drop_in(&a).endless().shared(),
    ] {
        assert_eq!(lock.acquire().await.expect_err("refused").code(), "invalid");
    }
    let plain = a.lock("x").acquire().await.expect("free");
    assert_eq!(plain.leave().await.expect_err("no value").code(), "invalid");
    a.lock("x").wait_for(MS(5_000)).acquire().await.expect("it was released");
    let short = a.extend_by_value("x", VALUE, MS(0), Extension::Set).await;
    assert_eq!(short.expect_err("out of range").code(), "invalid");
    let reserved = a.release_by_value("x", b"lockwarden:cooling:x").await;
    assert_eq!(reserved.expect_err("reserved").code(), "invalid");
}

/// Whoever knows the value extends, and its holder's belief ends no sooner for it; a guard of one's own follows.
pub async fn extended_by_value(place: &dyn Place) {
    let (a, b) = (warden(place).await, warden(place).await);
    for free in [Extension::Add, Extension::Set] {
        let error = b.extend_by_value("x", VALUE, MS(5_000), free).await.expect_err("free");
        assert_eq!(error.code(), "lost");
    }
    let held = drop_in(&a).lease(MS(5_000)).without_renewal().acquire().await.expect("free");
    let extend = async |warden: &Warden, ms, how| {
        warden.extend_by_value("x", VALUE, MS(ms), how).await.expect("extended")
    };
    let other = b.extend_by_value("x", b"another", MS(5_000), Extension::Set).await;
    assert!(matches!(other, Err(Error::Lost { .. })), "{other:?}");
    // By another session: the holder does not hear of it, and keeps what it has.
    let left = extend(&b, 10_000, Extension::Add).await;
    assert!((MS(13_000)..=MS(15_001)).contains(&left), "{left:?}");
    let (ttl_ms, record) = shown(&a).await;
    assert!((13_000..=15_001).contains(&ttl_ms.expect("a lease")), "{ttl_ms:?}");
    assert!((13_000..=15_001).contains(&record.lease_ms), "R15: {record:?}");
    assert!(held.remaining() < MS(5_000));
    let left = extend(&b, 1_000, Extension::Set).await;
    assert!(left > MS(10_000), "R18: {left:?}");
    // By its own.
    let left = extend(&a, 40_000, Extension::Replace).await;
    assert_eq!(left, MS(40_000));
    assert!(held.check() && held.remaining() > MS(35_000), "{:?}", held.remaining());
    assert_eq!(extend(&a, 1_000, Extension::Set).await, MS(1_000));
    assert!(held.remaining() < MS(1_000), "G1");
    held.release().await.expect("released");
    // One without an end has nothing to add to, and is none from then on.
    let held = drop_in(&a).endless().lease(MS(2_000)).acquire().await.expect("free");
    for how in [Extension::Add, Extension::Replace] {
        let error = b.extend_by_value("x", VALUE, MS(9_000), how).await.expect_err("endless");
        assert_eq!(error.code(), "endless");
    }
    assert_eq!(extend(&b, 50, Extension::Set).await, MS(2_000), "its holder believes for so long");
    let (ttl_ms, record) = shown(&a).await;
    assert!(ttl_ms.is_some() && !record.endless);
    tokio::time::sleep(MS(2_500)).await;
    assert!(held.check(), "it goes on being renewed");
    held.release().await.expect("released");
    until("nothing left", || async { names(&a).await.is_empty() }).await;
}

/// Whoever knows the value releases; the holder is told, and the first in the queue has it.
pub async fn released_by_value(place: &dyn Place) {
    let (a, b) = (warden(place).await, warden(place).await);
    let lost = b.release_by_value("x", VALUE).await.expect_err("free");
    assert!(matches!(lost, Error::Lost { .. }), "{lost}");
    for by_its_own in [false, true] {
        let held = drop_in(&a).acquire().await.expect("free");
        let waiter = tokio::spawn({
            let waiter = b.lock("x");
            async move { waiter.acquire().await }
        });
        until("it waits", || async { waiters(&a, "x").await == 1 }).await;
        let other = b.release_by_value("x", b"another").await.expect_err("another's");
        assert!(matches!(other, Error::Lost { .. }), "{other}");
        assert!(held.check(), "nothing was changed");
        let by = if by_its_own { &a } else { &b };
        by.release_by_value("x", VALUE).await.expect("released");
        if by_its_own {
            assert!(!held.check(), "G1: before the next one is granted");
        } else {
            assert_eq!(held.lost().await, Loss::Revoked);
        }
        let next = waiter.await.expect("no panic").expect("granted");
        drop(held);
        assert!(next.check());
        next.release().await.expect("released");
    }
    until("nothing left", || async { names(&a).await.is_empty() }).await;
}

/// What is left keeps its value and its end, is nobody's, and anybody's who knows the value.
pub async fn left_to_their_values(place: &dyn Place) {
    let (a, b) = (warden(place).await, warden(place).await);
    let lease = |ms| drop_in(&a).lease(MS(ms)).without_renewal();
    let began = Instant::now();
    let held = lease(2_000).acquire().await.expect("free");
    // Whether the future is awaited or not.
    drop(held.leave());
    until("it is left", || async { shown(&b).await.1.state == HoldState::Cooling }).await;
    assert!(shown(&b).await.0.is_some_and(|ttl_ms| ttl_ms <= 2_000));
    let refused = b.lock("x").no_wait().acquire().await.expect_err("left");
    assert!(refused.to_string().contains("has left it"), "{refused}");
    // The same value again is another acquisition.
    assert_eq!(lease(2_000).no_wait().acquire().await.expect_err("left").code(), "busy");
    // Its session's end is nothing to it.
    a.clone().close().await;
    let next = b.lock("x").wait_for(MS(10_000)).acquire().await.expect("it ended");
    assert!(began.elapsed() >= MS(1_900), "{:?}", began.elapsed());
    next.release().await.expect("released");
    let a = warden(place).await;
    let lease = |ms| drop_in(&a).lease(MS(ms)).without_renewal();
    lease(5_000).acquire().await.expect("free").leave().await.expect("left");
    let left = b.extend_by_value("x", VALUE, MS(30_000), Extension::Add).await.expect("left");
    assert!(left > MS(30_000), "{left:?}");
    // What is nobody's may end sooner, too.
    let left = b.extend_by_value("x", VALUE, MS(20_000), Extension::Replace).await.expect("left");
    assert_eq!(left, MS(20_000));
    b.release_by_value("x", VALUE).await.expect("released");
    // One without an end is released.
    drop_in(&a).endless().acquire().await.expect("free").leave().await.expect("released");
    b.lock("x").no_wait().acquire().await.expect("free").release().await.expect("released");
    until("nothing left", || async { names(&a).await.is_empty() }).await;
}
