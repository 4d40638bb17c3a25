//! What may become of a hold beside being renewed and released: the minimum and the delay after a crash, another mode,
//! other hands.

use super::{MS, Place, names, until, waiters, warden};
use lockwarden::{Error, HandOver, HoldState, Loss, Mode, State};
use std::time::{Duration, Instant};

/// R33: released early, it is nobody's until its minimum is over, and whoever waits is told so.
pub async fn held_at_least(place: &dyn Place) {
    let (a, b) = (warden(place).await, warden(place).await);
    let least = MS(1_200);
    for mode in [Mode::Exclusive, Mode::Permits { count: 2, of: 3 }] {
        let lock = |warden: &lockwarden::Warden| warden.lock_all::<&str>([]).and_as("x", mode);
        let began = Instant::now();
        let held = lock(&a).hold_at_least(least).acquire().await.expect("free");
        let fence = held.fence();
        held.release().await.expect("released");
        let refused = lock(&b).no_wait().acquire().await.expect_err("it cools");
        assert_eq!(refused.code(), "busy");
        assert!(refused.to_string().contains("nobody holds it"), "{refused}");
        let record = a.show("x").await.expect("shown").holder.and_then(|it| it.record);
        assert_eq!(record.map(|it| it.state), Some(HoldState::Cooling));
        let next = lock(&b).wait_for(MS(10_000)).acquire().await.expect("granted");
        assert!(began.elapsed() >= least, "{:?}", began.elapsed());
        assert!(next.fence() > fence, "G2");
        next.release().await.expect("released");
    }
    // What is over is over.
    let held = a.lock("x").hold_at_least(MS(1)).acquire().await.expect("free");
    tokio::time::sleep(MS(2)).await;
    held.release().await.expect("released");
    b.lock("x").no_wait().acquire().await.expect("free").release().await.expect("released");
    until("nothing left", || async { names(&a).await.is_empty() }).await;
}

/// A waiter that gave up never had it, and no minimum holds for it.
pub async fn no_minimum_for_whoever_gives_up(place: &dyn Place) {
    let (a, b) = (warden(place).await, warden(place).await);
    let held = a.lock("x").acquire().await.expect("free");
    let waiter = b.lock("x").hold_at_least(MS(60_000)).wait_for(MS(200)).acquire().await;
    assert_eq!(waiter.expect_err("held").code(), "timed_out");
    held.release().await.expect("released");
    a.lock("x").no_wait().acquire().await.expect("free");
}

/// R43: after a lease that ran out the delay must pass, too; after a release it need not.
pub async fn a_delay_after_a_loss(place: &dyn Place) {
    let (a, b) = (warden(place).await, warden(place).await);
    let lock = |warden: &lockwarden::Warden| warden.lock("x").lock_delay(MS(1_500));
    lock(&a).acquire().await.expect("free").release().await.expect("released");
    let began = Instant::now();
    let held = lock(&a).lease(MS(500)).without_renewal().acquire().await.expect("no delay");
    assert_eq!(held.lost().await, Loss::LeaseEnded);
    // Its session knows that it has lost it, and says so when it is asked; that makes it no freer.
    let refused = b.lock("x").no_wait().acquire().await.expect_err("not before 2 s");
    assert_eq!(refused.code(), "busy");
    until("it cools", || async {
        let record = b.show("x").await.expect("shown").holder.and_then(|it| it.record);
        record.is_some_and(|record| record.state == HoldState::Cooling)
    })
    .await;
    let refused = b.lock("x").no_wait().acquire().await.expect_err("it cools");
    assert!(refused.to_string().contains("the delay after a crash"), "{refused}");
    let next = b.lock("x").wait_for(MS(10_000)).acquire().await.expect("granted");
    // Lost a little before the lease ends, for clocks that run at different rates (R20).
    assert!(began.elapsed() >= MS(1_900), "{:?}", began.elapsed());
    // What was lost does not come back.
    assert!(matches!(held.release().await, Err(Error::Lost { .. })));
    assert!(next.check());
}

/// A writer goes on as a reader, and readers enter; alone, it writes again.
pub async fn modes_change(place: &dyn Place) {
    let (a, b) = (warden(place).await, warden(place).await);
    let mut held = a.lock("x").lease(MS(600)).acquire().await.expect("free");
    let fence = held.fence();
    let reader = tokio::spawn({
        let reader = b.lock("x").shared();
        async move { reader.acquire().await }
    });
    until("the reader waits", || async { waiters(&a, "x").await == 1 }).await;
    held.downgrade().await.expect("ours");
    let reader = reader.await.expect("no panic").expect("granted");
    assert!(held.check() && reader.check() && held.fence() == fence);
    let refused = held.try_upgrade().await.expect_err("beside a reader");
    assert_eq!(refused.code(), "busy");
    // It is renewed in its new mode, for as long as it is held.
    tokio::time::sleep(MS(1_500)).await;
    assert_eq!((held.check(), held.state()), (true, State::Held));
    reader.release().await.expect("released");
    held.try_upgrade().await.expect("alone");
    assert!(held.fence() > fence, "G2");
    assert!(b.lock("x").shared().no_wait().acquire().await.is_err());
    held.downgrade().await.expect("ours");
    held.downgrade().await.expect("as it is");
    b.lock("x").shared().no_wait().acquire().await.expect("beside it");
    held.release().await.expect("released");
    until("nothing left", || async { names(&a).await.is_empty() }).await;
}

/// What cannot change its mode says so, and stays what it is.
pub async fn modes_that_do_not_change(place: &dyn Place) {
    let a = warden(place).await;
    let mut permits = a.lock("p").permits(1, 2).acquire().await.expect("free");
    assert_eq!(permits.downgrade().await.expect_err("permits").code(), "other_mode");
    let mut several = a.lock_all(["x", "y"]).acquire().await.expect("free");
    assert_eq!(several.downgrade().await.expect_err("several").code(), "invalid");
    let task = a.lock("z").owner("task");
    let (mut outer, mut inner) =
        (task.acquire().await.expect("z"), task.acquire().await.expect("z"));
    assert_eq!(outer.downgrade().await.expect_err("two guards").code(), "invalid");
    inner.release().await.expect("released");
    outer.downgrade().await.expect("the only one");
    // Its owner enters as a reader from now on, and not as a writer.
    inner = a.lock("z").shared().owner("task").acquire().await.expect("once more");
    inner.release().await.expect("released");
    let deadlock = task.acquire().await.expect_err("it would wait for itself");
    assert_eq!(deadlock.code(), "deadlock");
    let token = outer.token().clone();
    a.revoke("z", &token, false).await.expect("revoked");
    outer.lost().await;
    assert_eq!(outer.try_upgrade().await.expect_err("revoked").code(), "lost");
    assert!(permits.check() && several.check());
}

/// R32: it goes from hand to hand, and to nobody else in between; only once.
pub async fn handed_over(place: &dyn Place) {
    let (a, b, c) = (warden(place).await, warden(place).await, warden(place).await);
    for mode in [Mode::Exclusive, Mode::Shared, Mode::Permits { count: 1, of: 1 }] {
        let given = a.lock_all(["y"]).and_as("x", mode).acquire().await.expect("free");
        let fence = given.fence();
        let waiter = tokio::spawn({
            let waiter = c.lock("y").wait_for(MS(20_000));
            async move { waiter.acquire().await }
        });
        until("one waits", || async { waiters(&a, "y").await == 1 }).await;
        let handle = given.hand_over(MS(30_000)).await.expect("ours").to_string();
        assert!(c.lock_all(["y"]).no_wait().acquire().await.is_err(), "nobody else's");
        let record = a.show("x").await.expect("shown").holder.and_then(|it| it.record);
        assert_eq!(record.map(|it| it.state), Some(HoldState::HandedOver));
        let handle: HandOver = handle.parse().expect("as it was written");
        assert_eq!(handle.names().map(|name| name.as_str()).collect::<Vec<_>>(), ["x", "y"]);
        let adopted = b.adopt(&handle).label("the next").acquire().await.expect("handed over");
        assert!(adopted.check() && adopted.fence() > fence, "G2");
        let record = a.show("x").await.expect("shown").holder.and_then(|it| it.record);
        let record = record.expect("held");
        assert_eq!((record.mode, record.state), (mode, HoldState::Held));
        assert_eq!(&*record.party.label, "the next");
        for warden in [&b, &c] {
            let error = warden.adopt(&handle).acquire().await.expect_err("once");
            assert_eq!(error.code(), "not_handed_over");
            assert!(matches!(error, Error::NotHandedOver { .. }));
        }
        assert!(adopted.check() && !waiter.is_finished());
        adopted.release().await.expect("released");
        waiter.await.expect("no panic").expect("granted").release().await.expect("released");
    }
    until("nothing left", || async { names(&a).await.is_empty() }).await;
}

/// What nobody adopts is free when its time is over, whatever became of the giver.
pub async fn handed_over_to_nobody(place: &dyn Place) {
    let (a, b) = (warden(place).await, warden(place).await);
    let handle =
        a.lock("x").acquire().await.expect("free").hand_over(MS(4_500)).await.expect("ours");
    a.close().await;
    let began = Instant::now();
    let next = b.lock("x").wait_for(MS(20_000)).acquire().await.expect("granted");
    // Not when the giver's grace is over.
    assert!(began.elapsed() >= MS(4_000), "{:?}", began.elapsed());
    let error = b.adopt(&handle).acquire().await.expect_err("too late");
    assert_eq!(error.code(), "not_handed_over");
    assert!(next.check());
}

/// From task to task of one program, again and again; the last one has it.
pub async fn handed_on(place: &dyn Place) {
    let a = warden(place).await;
    let mut guard = a.lock("x").acquire().await.expect("free");
    for _ in 0..20 {
        let (before, handle) = (guard.fence(), guard.hand_over(MS(10_000)).await.expect("ours"));
        guard = a.adopt(&handle).acquire().await.expect("handed over");
        assert!(guard.check() && guard.fence() > before);
    }
    // Longer than the lease of a hand-over may be: it is renewed as any.
    guard.release().await.expect("released");
    until("nothing left", || async { names(&a).await.is_empty() }).await;
}

/// What cannot be handed over is not.
pub async fn what_is_not_handed_over(place: &dyn Place) {
    let a = warden(place).await;
    let task = a.lock("x").owner("task");
    let (outer, inner) = (task.acquire().await.expect("x"), task.acquire().await.expect("x"));
    assert_eq!(inner.hand_over(MS(9_000)).await.expect_err("two guards").code(), "invalid");
    assert!(outer.check(), "held on");
    let token = outer.token().clone();
    a.revoke("x", &token, false).await.expect("revoked");
    outer.lost().await;
    assert_eq!(outer.hand_over(MS(9_000)).await.expect_err("revoked").code(), "lost");
    for keep in [Duration::ZERO, MS(99), Duration::from_secs(31 * 24 * 3_600)] {
        let held = a.lock("y").acquire().await.expect("free");
        assert_eq!(held.hand_over(keep).await.expect_err("out of range").code(), "invalid");
    }
    until("y is free", || async { names(&a).await.is_empty() }).await;
    let unknown =
        r#"{"v":1,"locks":[["y"]],"token":"nobody's"}"#.parse::<HandOver>().expect("form");
    let error = a.adopt(&unknown).acquire().await.expect_err("nobody's");
    assert_eq!(error.code(), "not_handed_over");
    // It took nothing.
    until("nothing left", || async { names(&a).await.is_empty() }).await;
}

/// Values out of range, before anything is sent.
pub async fn bad_values_of_holds(place: &dyn Place) {
    let a = warden(place).await;
    let month = Duration::from_secs(31 * 24 * 3_600);
    for lock in [
        a.lock("x").hold_at_least(month),
        a.lock("x").lock_delay(month),
        a.lock("x").lock_delay(Duration::MAX),
        a.lock("x").hold_at_least(MS(5_000)).hold_at_most(MS(4_999)),
    ] {
        let error = lock.acquire().await.expect_err("out of range");
        assert_eq!(error.code(), "invalid", "{error}");
    }
    assert!(names(&a).await.is_empty());
}
