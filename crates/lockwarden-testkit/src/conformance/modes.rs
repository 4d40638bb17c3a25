//! Modes: locks that several hold together.

use super::{MS, Place, names, until, waiters, warden};
use lockwarden::{Error, Mode};
use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};

/// Readers hold it together; a writer waits for all of them, and readers that came after it wait for it (G4).
pub async fn readers_and_writers_take_turns(place: &dyn Place) {
    let (a, b) = (warden(place).await, warden(place).await);
    let first = a.lock("x").shared().no_wait().acquire().await.expect("free");
    let second = b.lock("x").shared().no_wait().acquire().await.expect("beside the first");
    assert!(second.fence() > first.fence());
    assert!(first.check() && second.check());
    let busy = b.lock("x").no_wait().acquire().await;
    assert!(matches!(busy, Err(Error::Busy { .. })), "{busy:?}");
    let writer = tokio::spawn({
        let writer = a.lock("x");
        async move { writer.acquire().await }
    });
    until("the writer waits", || async { waiters(&b, "x").await == 1 }).await;
    let busy = b.lock("x").shared().no_wait().acquire().await;
    assert!(matches!(busy, Err(Error::Busy { .. })), "behind the writer: {busy:?}");
    // More than one command serves: they are let in together all the same.
    let readers: Vec<_> = (0..150)
        .map(|number| {
            let reader = if number % 2 == 0 { a.lock("x") } else { b.lock("x") };
            tokio::spawn(async move { reader.shared().acquire().await })
        })
        .collect();
    until("all wait", || async { waiters(&b, "x").await == 151 }).await;
    first.release().await.expect("released");
    assert!(!writer.is_finished());
    second.release().await.expect("released");
    let writer = writer.await.expect("no panic").expect("granted");
    assert_eq!(waiters(&a, "x").await, 150);
    writer.release().await.expect("released");
    let mut guards = Vec::new();
    for reader in readers {
        guards.push(reader.await.expect("no panic").expect("granted"));
    }
    assert!(guards.iter().all(lockwarden::Guard::check), "all of them at once");
    let view = a.show("x").await.expect("shown");
    assert_eq!((view.beside.len(), view.queue.len()), (149, 0));
    for guard in guards {
        guard.release().await.expect("released");
    }
    until("nothing left", || async { names(&a).await.is_empty() }).await;
}

/// A writer that gives up lets in those who waited for it only.
pub async fn a_writer_that_gives_up_lets_readers_in(place: &dyn Place) {
    let a = warden(place).await;
    let reader = a.lock("x").shared().acquire().await.expect("free");
    let writer = tokio::spawn({
        let writer = a.lock("x");
        async move { writer.wait_for(MS(300)).acquire().await }
    });
    until("the writer waits", || async { waiters(&a, "x").await == 1 }).await;
    let behind = a.lock("x").shared().wait_for(MS(10_000)).acquire().await.expect("let in");
    let error = writer.await.expect("no panic").expect_err("there are readers");
    assert_eq!(error.code(), "timed_out");
    assert!(reader.check() && behind.check());
}

/// As many as there are permits, by weight, in order.
pub async fn permits_are_counted(place: &dyn Place) {
    let (a, b) = (warden(place).await, warden(place).await);
    let two = a.lock("pool").permits(2, 3).acquire().await.expect("free");
    let one = b.lock("pool").permits(1, 3).acquire().await.expect("one left");
    let busy = b.lock("pool").permits(1, 3).no_wait().acquire().await;
    assert!(matches!(busy, Err(Error::Busy { .. })), "{busy:?}");
    // Who wants much is not passed by those who want little.
    let all = tokio::spawn({
        let all = a.lock("pool").permits(3, 3);
        async move { all.acquire().await }
    });
    until("it waits", || async { waiters(&b, "pool").await == 1 }).await;
    one.release().await.expect("released");
    let busy = b.lock("pool").permits(1, 3).no_wait().acquire().await;
    assert!(matches!(busy, Err(Error::Busy { .. })), "{busy:?}");
    two.release().await.expect("released");
    let all = all.await.expect("no panic").expect("granted");
    // Another use of the name is told so at once, in all directions.
    for other in [a.lock("pool").permits(1, 4), a.lock("pool"), b.lock("pool").shared()] {
        let error = other.acquire().await.expect_err("another mode");
        let Error::OtherMode { in_use, .. } = &error else { panic!("{error}") };
        assert_eq!(*in_use, Mode::Permits { count: 3, of: 3 });
    }
    all.release().await.expect("released");
    let alone = a.lock("pool").acquire().await.expect("free");
    let error = b.lock("pool").permits(1, 3).acquire().await.expect_err("another mode");
    assert!(error.to_string().contains("exclusively"), "{error}");
    alone.release().await.expect("released");
    for (count, of) in [(0, 3), (4, 3), (1, 1_000_001)] {
        let error = a.lock("pool").permits(count, of).acquire().await.expect_err("out of range");
        assert_eq!(error.code(), "invalid");
        assert!(error.to_string().contains(&format!("{count} of {of} permits")), "{error}");
    }
    until("nothing left", || async { names(&a).await.is_empty() }).await;
}

/// Each holder has a lease, and an end, of its own.
pub async fn each_of_many_is_renewed_and_lost_by_itself(place: &dyn Place) {
    let (a, b) = (warden(place).await, warden(place).await);
    let shared = |warden: &lockwarden::Warden| warden.lock("x").shared().lease(MS(400));
    let kept = shared(&a).acquire().await.expect("free");
    let ends = shared(&b).without_renewal().acquire().await.expect("beside it");
    let revoked = shared(&b).acquire().await.expect("beside them");
    b.revoke("x", revoked.token(), false).await.expect("revoked");
    revoked.lost().await;
    ends.lost().await;
    until("the one that is not renewed is gone", || async {
        a.show("x").await.expect("shown").beside.is_empty()
    })
    .await;
    tokio::time::sleep(MS(900)).await;
    assert!(kept.check(), "renewed for longer than its lease");
    let busy = b.lock("x").no_wait().acquire().await;
    assert!(matches!(busy, Err(Error::Busy { .. })), "{busy:?}");
    kept.release().await.expect("released");
    b.lock("x").wait_for(MS(5_000)).acquire().await.expect("free");
}

/// G7 with readers and with permits: whoever can never be served is told, and nobody else.
pub async fn deadlocks_in_every_mode(place: &dyn Place) {
    let (a, b) = (warden(place).await, warden(place).await);
    // A reader that wants to write would wait for itself.
    let reader = a.lock("x").shared().owner("a").acquire().await.expect("free");
    let again = a.lock("x").shared().owner("a").acquire().await.expect("its own");
    let error = a.lock("x").owner("a").acquire().await.expect_err("it reads");
    assert_eq!(error.code(), "deadlock");
    again.release().await.expect("released");
    // Two who read and want to write: the second is told.
    let other = b.lock("x").shared().owner("b").acquire().await.expect("beside it");
    let y = b.lock("y").owner("b").acquire().await.expect("free");
    let waits = tokio::spawn({
        let lock = a.lock("y").owner("a");
        async move { lock.acquire().await }
    });
    until("a waits", || async { waiters(&a, "y").await == 1 }).await;
    let error = b.lock("x").owner("b").acquire().await.expect_err("a reads, and waits for b");
    assert_eq!(error.code(), "deadlock");
    y.release().await.expect("released");
    waits.await.expect("no panic").expect("granted").release().await.expect("released");
    other.release().await.expect("released");
    reader.release().await.expect("released");
    // Permits: one of those who hold them is enough, as long as it can finish.
    let one = a.lock("pool").permits(1, 2).owner("c").acquire().await.expect("free");
    let two = b.lock("pool").permits(1, 2).owner("d").acquire().await.expect("free");
    let z = b.lock("z").owner("e").acquire().await.expect("free");
    let waits = tokio::spawn({
        let lock = a.lock("z").owner("c");
        async move { lock.acquire().await }
    });
    until("c waits", || async { waiters(&a, "z").await == 1 }).await;
    let third = b.lock("pool").permits(1, 2).owner("e");
    let granted = tokio::spawn(async move { third.acquire().await });
    until("e waits, for d", || async { waiters(&a, "pool").await == 1 }).await;
    assert!(!granted.is_finished());
    two.release().await.expect("released");
    let third = granted.await.expect("no panic").expect("granted");
    // Both in the way: now it never can.
    let error = b.lock("pool").permits(2, 2).owner("e").acquire().await.expect_err("c waits for e");
    assert_eq!(error.code(), "deadlock", "{error}");
    third.release().await.expect("released");
    z.release().await.expect("released");
    waits.await.expect("no panic").expect("granted").release().await.expect("released");
    one.release().await.expect("released");
    until("nothing left", || async { names(&a).await.is_empty() }).await;
}

/// Several at once, each in a mode of its own.
pub async fn modes_may_differ_by_name(place: &dyn Place) {
    let (a, b) = (warden(place).await, warden(place).await);
    let import = |warden: &lockwarden::Warden, name: &str| {
        let pool = Mode::Permits { count: 1, of: 2 };
        warden.lock(name).and_as("catalog", Mode::Shared).and_as("pool", pool)
    };
    let one = import(&a, "orders:1").acquire().await.expect("free");
    let two = import(&b, "orders:2").no_wait().acquire().await.expect("beside it");
    let busy = import(&a, "orders:3").no_wait().acquire().await;
    let Err(Error::Busy { name, .. }) = busy else { panic!("{busy:?}") };
    assert_eq!(name.as_str(), "pool");
    let third = tokio::spawn({
        let third = import(&b, "orders:3");
        async move { third.acquire().await }
    });
    until("it waits", || async { waiters(&a, "pool").await == 1 }).await;
    one.release().await.expect("released");
    let third = third.await.expect("no panic").expect("granted");
    let error = a.lock("x").and_as("x", Mode::Shared).acquire().await.expect_err("two modes");
    assert_eq!(error.code(), "invalid");
    two.release().await.expect("released");
    third.release().await.expect("released");
    until("nothing left", || async { names(&a).await.is_empty() }).await;
}

/// A crowd whose writers go on as readers, and whose readers write where they are alone: never a writer beside anybody.
pub async fn a_crowd_that_converts(place: &dyn Place) {
    let wardens = [warden(place).await, warden(place).await];
    let inside = Arc::new(AtomicI64::new(0));
    let upgraded = Arc::new(AtomicI64::new(0));
    let tasks: Vec<_> = (0..60_i64)
        .map(|number| {
            let lock = wardens[usize::from(number % 2 == 0)].lock("x");
            let (inside, upgraded) = (inside.clone(), upgraded.clone());
            let enter = move |weight: i64, most: i64| {
                let now = inside.fetch_add(weight, Ordering::SeqCst) + weight;
                assert!(now <= most, "{now} of {most}");
            };
            tokio::spawn(async move {
                let mut fence = 0;
                if number % 3 == 0 {
                    let mut guard = lock.acquire().await.expect("served");
                    enter(1_000, 1_000);
                    tokio::time::sleep(MS(1)).await;
                    // From here on others may read.
                    enter(1 - 1_000, 999);
                    guard.downgrade().await.expect("ours");
                    tokio::time::sleep(MS(1)).await;
                    assert!(guard.check());
                    enter(-1, 999);
                    guard.release().await.expect("released");
                    return;
                }
                let mut guard = lock.shared().acquire().await.expect("served");
                enter(1, 999);
                for _ in 0..3 {
                    assert!(guard.check() && guard.fence() >= fence);
                    fence = guard.fence();
                    tokio::time::sleep(MS(1)).await;
                    match guard.try_upgrade().await {
                        Ok(()) => {
                            upgraded.fetch_add(1, Ordering::SeqCst);
                            assert!(guard.fence() > fence, "G2");
                            enter(999, 1_000);
                            tokio::time::sleep(MS(1)).await;
                            enter(-999, 999);
                            guard.downgrade().await.expect("ours");
                        }
                        Err(error) => assert_eq!(error.code(), "busy", "{error}"),
                    }
                }
                enter(-1, 999);
                guard.release().await.expect("released");
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic");
    }
    assert!(upgraded.load(Ordering::SeqCst) > 0, "the last reader at least is alone");
    until("nothing left", || async { names(&wardens[0]).await.is_empty() }).await;
}

/// A crowd of readers, writers and users of permits: none too many at once, and all are served.
pub async fn a_crowd_in_every_mode(place: &dyn Place) {
    let wardens = [warden(place).await, warden(place).await];
    let (inside, used) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicI64::new(0)));
    let tasks: Vec<_> = (0..120_i64)
        .map(|number| {
            let warden = wardens[usize::from(number % 2 == 0)].clone();
            let (inside, used) = (inside.clone(), used.clone());
            tokio::spawn(async move {
                let (counter, weight, most, lock) = match number % 6 {
                    0 => (inside, 1_000, 1_000, warden.lock("x")),
                    1..4 => (inside, 1, 999, warden.lock("x").shared()),
                    kind => {
                        let count = kind - 3;
                        (used, count, 4, warden.lock("pool").permits(count as u32, 4))
                    }
                };
                let guard = lock.acquire().await.expect("served");
                let now = counter.fetch_add(weight, Ordering::SeqCst) + weight;
                assert!(now <= most, "{now} of {most}");
                tokio::time::sleep(MS(2)).await;
                assert!(guard.check());
                counter.fetch_sub(weight, Ordering::SeqCst);
                guard.release().await.expect("released");
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic");
    }
    until("nothing left", || async { names(&wardens[0]).await.is_empty() }).await;
}
