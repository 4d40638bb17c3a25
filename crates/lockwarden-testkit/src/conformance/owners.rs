//! Owners: what they hold more than once, and the deadlocks that are told to them (G7).

use super::{MS, Place, names, until, waiters, warden};
use lockwarden::{Error, Loss};
use std::time::{Duration, Instant};

/// An owner acquires what it holds once more: one acquisition to the store, given back by the last of its guards.
pub async fn an_owner_enters_again(place: &dyn Place) {
    let (a, b) = (warden(place).await, warden(place).await);
    let task = |name| a.lock(name).owner("task-1");
    let outer = task("x").acquire().await.expect("free");
    let inner = task("x").no_wait().acquire().await.expect("our own");
    assert_eq!((inner.fence(), inner.token()), (outer.fence(), outer.token()));
    // Another owner, and nobody in particular, find it busy.
    for other in [a.lock("x").owner("task-2"), a.lock("x")] {
        assert!(matches!(other.no_wait().acquire().await, Err(Error::Busy { .. })));
    }
    // In any order, and by drop as well.
    outer.release().await.expect("released");
    assert!(inner.check());
    let third = task("x").acquire().await.expect("our own");
    drop(inner);
    assert!(third.check());
    assert!(matches!(b.lock("x").no_wait().acquire().await, Err(Error::Busy { .. })));
    third.release().await.expect("released");
    let next = b.lock("x").wait_for(MS(5_000)).acquire().await.expect("free");
    // There is a bound, and none of its guards is lost at it.
    next.release().await.expect("released");
    let mut guards = Vec::new();
    let error = loop {
        match task("x").acquire().await {
            Ok(guard) => guards.push(guard),
            Err(error) => break error,
        }
    };
    assert_eq!((guards.len(), error.code()), (1_000, "too_deep"));
    // A dropped future is no guard.
    drop(guards.pop());
    drop(tokio::time::timeout(Duration::ZERO, task("x").acquire()).await);
    // What was lost is acquired anew, beside the guards that know of it.
    let token = guards[0].token().clone();
    b.revoke("x", &token, false).await.expect("revoked");
    guards[0].lost().await;
    let anew = task("x").wait_for(MS(5_000)).acquire().await.expect("free");
    assert!(anew.check() && anew.fence() > guards[0].fence());
    for guard in guards {
        assert!(matches!(guard.release().await, Err(Error::Lost { .. })));
    }
    assert!(anew.check());
    anew.release().await.expect("released");
    until("nothing left", || async { names(&a).await.is_empty() }).await;
}

/// G7: two take two locks in two orders. Whoever closes the cycle is told so at once, keeps what it holds, and
/// nothing is left of its request.
pub async fn a_deadlock_is_told_at_once(place: &dyn Place) {
    let (a, b) = (warden(place).await, warden(place).await);
    let x = a.lock("x").owner("a").label("first").acquire().await.expect("free");
    let y = b.lock("y").owner("b").label("second").acquire().await.expect("free");
    let waiting = tokio::spawn({
        let lock = a.lock("y").owner("a");
        async move { lock.acquire().await }
    });
    until("a waits", || async { waiters(&b, "y").await == 1 }).await;
    let began = Instant::now();
    let error = b.lock("x").owner("b").acquire().await.expect_err("a deadlock");
    assert!(began.elapsed() < MS(1_000), "no time-out is involved: {:?}", began.elapsed());
    let Error::Deadlock { name, cycle } = &error else { panic!("{error}") };
    assert_eq!(name.as_str(), "x");
    let steps: Vec<_> = cycle
        .iter()
        .map(|step| (step.name.as_str(), &*step.party.label, step.party.pid()))
        .collect();
    let pid = Some(std::process::id());
    assert_eq!(steps, [("x", "first", pid), ("y", "second", pid)]);
    let words = error.to_string();
    assert!(
        words.contains("x is held by first (host ") && words.contains("who waits for y"),
        "{words}"
    );
    assert!(x.check() && y.check());
    assert_eq!(waiters(&a, "x").await, 0);
    y.release().await.expect("released");
    let y = waiting.await.expect("no panic").expect("granted");
    y.release().await.expect("released");
    x.release().await.expect("released");
    until("nothing left", || async { names(&a).await.is_empty() }).await;
}

/// G7 over five owners in three sessions: the whole cycle, in order.
pub async fn a_long_deadlock_is_spelled_out(place: &dyn Place) {
    let wardens = [warden(place).await, warden(place).await, warden(place).await];
    let of = |i: usize| format!("owner-{i}");
    let mut held = Vec::new();
    for i in 0..5 {
        let lock = wardens[i % 3].lock(&format!("l{i}")).owner(&of(i));
        held.push(lock.acquire().await.expect("free"));
    }
    let mut waiting = Vec::new();
    for i in 0..4 {
        let name = format!("l{}", i + 1);
        let lock = wardens[(i + 1) % 3].lock(&name).owner(&of(i));
        waiting.push(tokio::spawn(async move { lock.acquire().await }));
        until("it waits", || async { waiters(&wardens[0], &name).await == 1 }).await;
    }
    // A bystander waits for the same, and is no part of it.
    let lock = wardens[0].lock("l0").owner("bystander");
    waiting.push(tokio::spawn(async move { lock.acquire().await }));
    until("it waits", || async { waiters(&wardens[0], "l0").await == 1 }).await;
    let error = wardens[2].lock("l0").owner(&of(4)).acquire().await.expect_err("a deadlock");
    let Error::Deadlock { cycle, .. } = &error else { panic!("{error}") };
    let names: Vec<&str> = cycle.iter().map(|step| step.name.as_str()).collect();
    assert_eq!(names, ["l0", "l1", "l2", "l3", "l4"]);
    // Without a wait there is no deadlock, and a wait that was given up counts no more.
    let no_wait = wardens[2].lock("l0").owner(&of(4)).no_wait();
    assert!(matches!(no_wait.acquire().await, Err(Error::Busy { .. })));
    waiting[1].abort();
    until("it left", || async { waiters(&wardens[0], "l2").await == 0 }).await;
    let brief = wardens[2].lock("l0").owner(&of(4)).wait_for(MS(50));
    assert!(matches!(brief.acquire().await, Err(Error::TimedOut { .. })));
    drop(held);
    for task in waiting {
        drop(task.await);
    }
    until("nothing left", || async { super::names(&wardens[0]).await.is_empty() }).await;
}

/// No false alarm: many who take locks in one order, some of them giving up.
pub async fn no_deadlock_without_a_cycle(place: &dyn Place) {
    let wardens = [warden(place).await, warden(place).await, warden(place).await];
    let mut tasks = Vec::new();
    for i in 0..24_usize {
        let warden = wardens[i % 3].clone();
        tasks.push(tokio::spawn(async move {
            let owner = format!("o{i}");
            for round in 0..6 {
                let mut held = Vec::new();
                // Always upwards, with gaps.
                for number in (0..6).filter(|number| (number * 7 + i + round) % 3 != 0) {
                    let lock = warden.lock(&format!("n{number}")).owner(&owner);
                    let lock = if i % 5 == 0 { lock.wait_for(MS(20)) } else { lock };
                    match lock.acquire().await {
                        Ok(guard) => held.push(guard),
                        Err(Error::TimedOut { .. }) => break,
                        Err(error) => panic!("{error}"),
                    }
                }
                for guard in held {
                    guard.release().await.expect("released");
                }
            }
        }));
    }
    for task in tasks {
        task.await.expect("no panic");
    }
    until("nothing left", || async { names(&wardens[0]).await.is_empty() }).await;
}

/// G7: two parts of one owner wait in different places at the same time, and each is found through the other's back.
pub async fn parts_that_wait_at_once_hide_nothing(place: &dyn Place) {
    let (a, b, c) = (warden(place).await, warden(place).await, warden(place).await);
    let outer = a.lock("outer").owner("a").acquire().await.expect("free");
    let x = b.lock("x").owner("h").acquire().await.expect("free");
    let y = b.lock("y").owner("z").acquire().await.expect("free");
    let mut parts = Vec::new();
    for (name, owner) in [("x", "a/b"), ("y", "a/c")] {
        let lock = c.lock(name).owner(owner);
        parts.push(tokio::spawn(async move { lock.acquire().await }));
        until("it waits", || async { waiters(&a, name).await == 1 }).await;
    }
    for owner in ["h", "z"] {
        let lock = b.lock("outer").owner(owner).wait_for(MS(5_000));
        assert!(matches!(lock.acquire().await, Err(Error::Deadlock { .. })), "{owner}");
    }
    // One part goes on; the other still waits, for the whole as well.
    y.release().await.expect("released");
    let y = parts.pop().expect("two").await.expect("no panic").expect("granted");
    let lock = b.lock("outer").owner("h").wait_for(MS(5_000));
    assert!(matches!(lock.acquire().await, Err(Error::Deadlock { .. })));
    x.release().await.expect("released");
    let x = parts.pop().expect("one").await.expect("no panic").expect("granted");
    let lock = b.lock("outer").owner("h").wait_for(MS(50));
    assert!(matches!(lock.acquire().await, Err(Error::TimedOut { .. })), "no part waits any more");
    for guard in [outer, x, y] {
        guard.release().await.expect("released");
    }
    until("nothing left", || async { names(&a).await.is_empty() }).await;
}

/// An owner whose grant is lost acquires anew: neither does it enter what may be another's, nor wait for itself where
/// the store has the old grant still.
pub async fn a_lost_one_is_acquired_anew(place: &dyn Place) {
    let (a, b) = (warden(place).await, warden(place).await);
    let brief = || a.lock("x").owner("o").lease(MS(2_000)).without_renewal();
    let old = brief().acquire().await.expect("free");
    // 1 % and 10 ms before the store's own end.
    assert_eq!(old.lost().await, Loss::LeaseEnded);
    let new = brief().wait_for(MS(5_000)).acquire().await.expect("no deadlock with itself");
    assert!(new.check() && new.fence() > old.fence());
    // Taken over, and nobody has looked since.
    new.lost().await;
    let other = b.lock("x").owner("p").wait_for(MS(5_000)).acquire().await.expect("free");
    assert!(matches!(brief().no_wait().acquire().await, Err(Error::Busy { .. })));
    assert!(other.check());
    other.release().await.expect("released");
    for guard in [old, new] {
        assert!(matches!(guard.release().await, Err(Error::Lost { .. })));
    }
    until("nothing left", || async { names(&a).await.is_empty() }).await;
}

/// R34: one more guard of a grant cannot have a newer fence, so it does not pretend to.
pub async fn no_more_than_its_owner_has(place: &dyn Place) {
    let a = warden(place).await;
    let held = a.lock("x").owner("o").acquire().await.expect("free");
    let below = a.lock("x").owner("o").fence_floor(held.fence() - 1);
    assert_eq!(below.acquire().await.expect("its own").fence(), held.fence());
    for floor in [held.fence(), held.fence() + 1_000_000] {
        let error = a.lock("x").owner("o").fence_floor(floor).acquire().await.expect_err("older");
        assert_eq!(error.code(), "invalid", "{error}");
    }
    held.release().await.expect("released");
    until("nothing left", || async { names(&a).await.is_empty() }).await;
}
