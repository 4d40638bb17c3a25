//! Several names at once (R29): granted together or not at all, and nothing held while waiting.

use super::{MS, Place, names, until, waiters, warden};
use lockwarden::{Error, Guard, Lock, Loss, Reason, Warden};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::task::JoinHandle;

fn acquiring(lock: Lock) -> JoinHandle<Result<Guard, Error>> {
    tokio::spawn(async move { lock.acquire().await })
}

/// The holder's fence, if someone of ours holds it.
async fn fence_of(warden: &Warden, name: &str) -> Option<u64> {
    Some(warden.show(name).await.expect("show").holder?.record?.fence)
}

async fn is_free(warden: &Warden, name: &str) -> bool {
    warden.show(name).await.expect("show").holder.is_none()
}

async fn until_nothing_is_left(warden: &Warden) {
    until("nothing left", || async { names(warden).await.is_empty() }).await;
}

/// All at once, with one fence, and given back at once; a name that comes twice is one.
pub async fn several_are_one_grant(place: &dyn Place) {
    let (a, b) = (warden(place).await, warden(place).await);
    let held = a.lock_all(["c", "a", "b", "a"]).acquire().await.expect("free");
    let its: Vec<&str> = held.names().map(lockwarden::Name::as_str).collect();
    assert_eq!((its, held.name().as_str()), (vec!["a", "b", "c"], "a"));
    assert!(held.check());
    for name in ["a", "b", "c"] {
        assert_eq!(fence_of(&b, name).await, Some(held.fence()), "{name}");
        let error = b.lock(name).no_wait().acquire().await.expect_err("held");
        assert!(matches!(error, Error::Busy { .. }), "{error}");
    }
    // One of them is enough to be in the way, and the error says which, and who has it.
    let error = b.lock_all(["0", "1", "c"]).no_wait().acquire().await.expect_err("held");
    let Error::Busy { name, told } = &error else { panic!("{error}") };
    let told = told.as_ref().expect("told");
    let holder = told.holder.as_ref().expect("its holder");
    assert_eq!((name.as_str(), told.reason, told.at), ("c", Reason::Held, 2));
    assert_eq!(holder.token, *held.token());
    assert!(is_free(&b, "0").await && is_free(&b, "1").await, "all or nothing");
    let fence = held.fence();
    held.release().await.expect("released");
    assert_eq!(names(&a).await, Vec::<String>::new());
    // Again, in another order, and by drop.
    let again = b.lock_all(["b", "c", "a"]).no_wait().acquire().await.expect("free");
    assert!(again.fence() > fence);
    drop(again);
    let one = a.lock_all(["a"]).wait_for(MS(5_000)).acquire().await.expect("one is several, too");
    assert!(one.fence() > fence);
    one.release().await.expect("released");
    until_nothing_is_left(&a).await;
}

/// As many as there may be, several times over.
pub async fn a_thousand_at_once(place: &dyn Place) {
    let (a, b) = (warden(place).await, warden(place).await);
    let of = |set: usize| (0..1_000).map(move |number| format!("s{set}-{number:03}"));
    let mut held = Vec::new();
    for set in 0..4 {
        let lock = a.lock_all(of(set)).lease(MS(3_000)).no_wait();
        held.push(lock.acquire().await.expect("free"));
    }
    assert_eq!(names(&b).await.len(), 4_000);
    let waiting = acquiring(b.lock_all(of(2)));
    until("queued", || async { waiters(&a, "s2-999").await == 1 }).await;
    // Renewed together, longer than their lease.
    let began = Instant::now();
    while began.elapsed() < MS(3_500) {
        assert!(held.iter().all(Guard::check), "after {:?}", began.elapsed());
        tokio::time::sleep(MS(50)).await;
    }
    for guard in held {
        guard.release().await.expect("released");
    }
    waiting.await.expect("no panic").expect("granted").release().await.expect("released");
    until_nothing_is_left(&a).await;
}

/// Whoever waits holds nothing, and a younger one passes; but what the oldest waits for is kept for it, and the error
/// says so.
pub async fn only_the_oldest_has_names_kept(place: &dyn Place) {
    let (a, b, c) = (warden(place).await, warden(place).await, warden(place).await);
    let held = a.lock("m").acquire().await.expect("free");
    let oldest = acquiring(b.lock_all(["l", "m"]));
    until("the oldest waits", || async { waiters(&a, "l").await == 1 }).await;
    let younger = acquiring(b.lock_all(["m", "n"]));
    until("the younger one waits", || async { waiters(&a, "n").await == 1 }).await;
    assert!(is_free(&a, "l").await && is_free(&a, "n").await, "held while waiting");
    // `n` is not kept for the younger one, alone or with another.
    c.lock("n").no_wait().acquire().await.expect("it passes").release().await.expect("released");
    let passes = c.lock_all(["n", "z"]).wait_for(MS(5_000)).acquire().await.expect("it passes");
    passes.release().await.expect("released");
    for lock in [c.lock("l"), c.lock_all(["l", "n"]), c.lock_all(["a", "l", "z"])] {
        let error = lock.no_wait().acquire().await.expect_err("kept");
        let Error::Busy { name, told } = &error else { panic!("{error}") };
        let told = told.as_ref().expect("told");
        assert_eq!((name.as_str(), told.reason), ("l", Reason::Kept), "{error}");
        assert!(told.holder.is_none());
        assert!(error.to_string().contains('l'), "{error}");
    }
    let error = c.lock("l").wait_for(MS(50)).acquire().await.expect_err("kept");
    let Error::TimedOut { name, told, .. } = &error else { panic!("{error}") };
    assert_eq!((name.as_str(), told.as_ref().map(|it| it.reason)), ("l", Some(Reason::Kept)));
    let behind = acquiring(c.lock("l"));
    until("it queues behind", || async { waiters(&a, "l").await == 2 }).await;
    held.release().await.expect("released");
    let oldest = oldest.await.expect("no panic").expect("granted");
    assert!(!behind.is_finished() && !younger.is_finished());
    oldest.release().await.expect("released");
    let behind = behind.await.expect("no panic").expect("granted");
    let younger = younger.await.expect("no panic").expect("granted");
    assert!(behind.fence() > 0 && behind.check() && younger.check());
    behind.release().await.expect("released");
    younger.release().await.expect("released");
    until_nothing_is_left(&a).await;
}

/// Those who stand behind the request that a lock is kept for go on at once when that gives up, in whatever way: not
/// only when they look again, a second later.
pub async fn whoever_is_behind_goes_on_at_once(place: &dyn Place) {
    let (a, c) = (warden(place).await, warden(place).await);
    let held = a.lock("m").acquire().await.expect("free");
    for way in ["time-out", "drop", "close"] {
        let b = warden(place).await;
        let lock = b.lock_all(["l", "m"]);
        let oldest = acquiring(if way == "time-out" { lock.wait_for(MS(700)) } else { lock });
        until("the oldest waits", || async { waiters(&a, "l").await == 1 }).await;
        let one = acquiring(c.lock("l"));
        until("it queues behind", || async { waiters(&a, "l").await == 2 }).await;
        let two = acquiring(c.lock_all(["k", "l"]));
        until("it queues behind", || async { waiters(&a, "l").await == 3 }).await;
        match way {
            "time-out" => {
                let error = oldest.await.expect("no panic").expect_err("timed out");
                assert!(matches!(error, Error::TimedOut { .. }), "{error}");
            }
            "drop" => oldest.abort(),
            _ => b.close().await,
        }
        let began = Instant::now();
        one.await.expect("no panic").expect("granted").release().await.expect("released");
        two.await.expect("no panic").expect("granted").release().await.expect("released");
        assert!(began.elapsed() < MS(500), "{way}: {:?}", began.elapsed());
        until("nothing but the held one", || async { names(&a).await == ["m"] }).await;
    }
    held.release().await.expect("released");
    until_nothing_is_left(&a).await;
}

/// G6: a wait that ends, and a future that is dropped at any moment, leave neither locks nor tickets.
pub async fn giving_up_several_leaves_nothing(place: &dyn Place) {
    let (a, b) = (warden(place).await, warden(place).await);
    let held = a.lock_all(["x", "y"]).acquire().await.expect("free");
    let began = Instant::now();
    let error = b.lock_all(["w", "y", "z"]).wait_for(MS(200)).acquire().await.expect_err("held");
    assert!(began.elapsed() >= MS(200), "{:?}", began.elapsed());
    let Error::TimedOut { name, told, .. } = &error else { panic!("{error}") };
    assert_eq!(name.as_str(), "y");
    assert!(told.as_ref().is_some_and(|it| it.holder.is_some()), "{error}");
    for name in ["w", "y", "z"] {
        until("no ticket is left", || async { waiters(&a, name).await == 0 }).await;
    }
    held.release().await.expect("released");
    for i in 0..100_u64 {
        let lock = a.lock_all(["w", "x", "y", "z"]).lease(MS(60_000));
        let patience = Duration::from_micros(i * 30 % 2_000);
        drop(tokio::time::timeout(patience, lock.acquire()).await);
        let guard = b.lock_all(["y", "x"]).wait_for(MS(5_000)).acquire().await;
        guard.expect("nothing was left").release().await.expect("released");
    }
    until_nothing_is_left(&a).await;
}

/// Of several that are held together one is taken away: all are lost, and the guard gives back the rest.
pub async fn one_lost_is_all_lost(place: &dyn Place) {
    let (a, b) = (warden(place).await, warden(place).await);
    for released in [true, false] {
        let held = a.lock_all(["x", "y", "z"]).acquire().await.expect("free");
        let waiting = acquiring(b.lock_all(["x", "z"]));
        until("queued", || async { waiters(&a, "z").await == 1 }).await;
        b.revoke("y", held.token(), false).await.expect("revoked");
        assert_eq!(held.lost().await, Loss::Revoked);
        assert!(!held.check());
        assert!(matches!(held.extend(MS(5_000)).await, Err(Error::Lost { .. })));
        let next = b.lock("y").no_wait().acquire().await.expect("free");
        assert!(!is_free(&b, "x").await && !waiting.is_finished());
        if released {
            assert!(matches!(held.release().await, Err(Error::Lost { .. })));
        } else {
            drop(held);
        }
        let rest = waiting.await.expect("no panic").expect("granted");
        assert!(next.check() && rest.check());
        next.release().await.expect("released");
        rest.release().await.expect("released");
        until_nothing_is_left(&a).await;
    }
    // With a delay: nobody has it before the holder has stopped to believe.
    let held = a.lock_all(["x", "y"]).acquire().await.expect("free");
    b.revoke("y", held.token(), true).await.expect("revoked");
    held.lost().await;
    assert!(!held.check());
    assert!(matches!(held.release().await, Err(Error::Lost { .. })));
    let next = b.lock_all(["x", "y"]).wait_for(MS(6_000)).acquire().await.expect("free");
    next.release().await.expect("released");
    until_nothing_is_left(&a).await;
}

/// Renewed and extended all together; and without renewal they end together.
pub async fn several_are_renewed_together(place: &dyn Place) {
    let (a, b) = (warden(place).await, warden(place).await);
    let ttl_ms = async |name: &str| {
        let holder = b.show(name).await.expect("show").holder.expect("held");
        holder.ttl_ms.expect("it has an expiry (C10)")
    };
    let held = a.lock_all(["x", "y", "z"]).lease(MS(600)).acquire().await.expect("free");
    let began = Instant::now();
    while began.elapsed() < MS(1_800) {
        assert!(held.check(), "after {:?}", began.elapsed());
        for name in ["x", "y", "z"] {
            assert!((100..=601).contains(&ttl_ms(name).await), "{name}");
        }
        tokio::time::sleep(MS(40)).await;
    }
    held.extend(MS(20_000)).await.expect("extended");
    for name in ["x", "y", "z"] {
        assert!((10_000..=20_001).contains(&ttl_ms(name).await), "{name}");
    }
    held.release().await.expect("released");
    let brief = a.lock_all(["x", "y"]).lease(MS(300)).without_renewal();
    let brief = brief.acquire().await.expect("free");
    let waiting = acquiring(b.lock_all(["y", "x"]));
    assert_eq!(brief.lost().await, Loss::LeaseEnded);
    let next = waiting.await.expect("no panic").expect("granted");
    assert!(next.fence() > brief.fence());
    assert!(matches!(brief.release().await, Err(Error::Lost { .. })));
    assert!(next.check());
    next.release().await.expect("released");
    until_nothing_is_left(&a).await;
}

/// An owner acquires the same set once more, or one of it; more than it holds it cannot wait for.
pub async fn an_owner_enters_several_again(place: &dyn Place) {
    let (a, b) = (warden(place).await, warden(place).await);
    let outer = a.lock_all(["x", "y"]).owner("o").acquire().await.expect("free");
    let same = a.lock_all(["y", "x"]).owner("o").acquire().await.expect("its own");
    let one = a.lock("y").owner("o").no_wait().acquire().await.expect("its own");
    for again in [&same, &one] {
        assert_eq!((again.fence(), again.token()), (outer.fence(), outer.token()));
    }
    let more = a.lock_all(["x", "y", "z"]).owner("o").wait_for(MS(5_000));
    assert!(matches!(more.acquire().await, Err(Error::Deadlock { .. })));
    assert!(is_free(&b, "z").await && waiters(&b, "z").await == 0);
    outer.release().await.expect("released");
    drop(same);
    assert!(one.check());
    for name in ["x", "y"] {
        assert!(matches!(b.lock(name).no_wait().acquire().await, Err(Error::Busy { .. })));
    }
    one.release().await.expect("released");
    until_nothing_is_left(&a).await;
}

/// G7: one inside the other against several at once, whichever comes first; and through a lock that is kept.
pub async fn deadlocks_of_several(place: &dyn Place) {
    let (a, b) = (warden(place).await, warden(place).await);
    let is_deadlock = |error: &Error| match error {
        Error::Deadlock { cycle, .. } => {
            cycle.iter().map(|step| step.name.as_str().to_owned()).collect::<Vec<_>>()
        }
        error => panic!("{error}"),
    };
    // Who waits for several holds something already.
    let x = a.lock("x").owner("a").acquire().await.expect("free");
    let y = b.lock("y").owner("b").acquire().await.expect("free");
    let waiting = acquiring(a.lock_all(["y", "z"]).owner("a"));
    until("a waits", || async { waiters(&b, "z").await == 1 }).await;
    let error = b.lock("x").owner("b").acquire().await.expect_err("a deadlock");
    assert_eq!(is_deadlock(&error), ["x", "y"]);
    waiting.abort();
    until("a has left", || async { waiters(&b, "z").await == 0 }).await;
    // The other way round: whoever closes the cycle asks for several.
    let waiting = acquiring(b.lock("x").owner("b"));
    until("b waits", || async { waiters(&a, "x").await == 1 }).await;
    let error = a.lock_all(["w", "y", "z"]).owner("a").acquire().await.expect_err("a deadlock");
    assert_eq!(is_deadlock(&error), ["y", "x"]);
    for name in ["w", "y", "z"] {
        assert_eq!(waiters(&a, name).await, 0, "{name}");
    }
    assert!(x.check() && y.check());
    x.release().await.expect("released");
    waiting.await.expect("no panic").expect("granted").release().await.expect("released");
    y.release().await.expect("released");
    // `k` is kept for who waits for what the asker holds.
    let m = a.lock("m").owner("a").acquire().await.expect("free");
    let kept = acquiring(b.lock_all(["k", "m"]).owner("b"));
    until("b waits", || async { waiters(&a, "k").await == 1 }).await;
    for lock in [a.lock("k"), a.lock_all(["j", "k"])] {
        let began = Instant::now();
        let error = lock.owner("a").acquire().await.expect_err("a deadlock");
        assert!(began.elapsed() < MS(1_000), "{:?}", began.elapsed());
        assert_eq!(is_deadlock(&error), ["k", "m"]);
    }
    // Nobody else is blamed, and not to wait is no wait.
    let other = a.lock("k").owner("other").wait_for(MS(50)).acquire().await;
    assert!(matches!(other, Err(Error::TimedOut { .. })), "{other:?}");
    let other = a.lock("k").owner("a").no_wait().acquire().await;
    assert!(matches!(other, Err(Error::Busy { .. })), "{other:?}");
    m.release().await.expect("released");
    kept.await.expect("no panic").expect("granted").release().await.expect("released");
    until_nothing_is_left(&a).await;
}

/// What breaks a rule is refused before anything is sent, with the value and the rule.
pub async fn bad_values_of_several(place: &dyn Place) {
    let a = warden(place).await;
    let refused = async |lock: Lock, says: &[&str]| {
        let error = lock.no_wait().acquire().await.expect_err("a rule");
        assert_eq!(error.code(), "invalid", "{error}");
        for says in says {
            assert!(error.to_string().contains(says), "{error} does not say {says}");
        }
    };
    let many = |count: usize| (0..count).map(|number| format!("n{number}"));
    refused(a.lock_all(Vec::<String>::new()), &["no lock", "at least one"]).await;
    refused(a.lock_all(many(1_001)), &["1001", "at most 1000"]).await;
    refused(a.lock_all(["x", ""]), &["empty"]).await;
    refused(a.lock_all(["x", "lockwarden:y"]), &["lockwarden:", "reserved"]).await;
    refused(a.lock_all(["x", "y"]).drop_in_value(b"v"), &["drop-in", "2"]).await;
    refused(a.lock_all(["x", "y"]).lease(MS(99)), &["lease of 99 ms"]).await;
    assert_eq!(names(&a).await, Vec::<String>::new());
    // Those are no faults: a name that comes twice, and one lock with a value.
    let twice = a.lock_all(many(1_000).chain(many(1_000))).no_wait().acquire().await;
    twice.expect("1000 names").release().await.expect("released");
    let value = a.lock_all(["x", "x"]).drop_in_value(b"v").no_wait().acquire().await;
    value.expect("one name").release().await.expect("released");
    until_nothing_is_left(&a).await;
}

/// G1, G4: a crowd that wants one to four of six names at the same time, again and again. No two hold the same name,
/// everyone is served, and nothing is left.
pub async fn a_crowd_of_several(place: &dyn Place) {
    let wardens = [warden(place).await, warden(place).await, warden(place).await];
    let inside: Arc<[AtomicU32; 6]> = Arc::default();
    let mut tasks = Vec::new();
    for i in 0..60_usize {
        let (warden, inside) = (wardens[i % 3].clone(), inside.clone());
        tasks.push(tokio::spawn(async move {
            let mut dice = i as u64 + 1;
            let mut next = |below: u64| {
                dice = dice
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                (dice >> 33) % below
            };
            for _ in 0..5 {
                let wanted: Vec<usize> = (0..=next(4)).map(|_| next(6) as usize).collect();
                let lock = warden.lock_all(wanted.iter().map(|it| format!("c{it}")));
                // Some are impatient, and some have an owner: one grant after the other has no deadlock.
                let lock = if next(8) == 0 { lock.wait_for(MS(10)) } else { lock };
                let lock = if i % 2 == 0 { lock.owner(&format!("o{i}")) } else { lock };
                let guard = match lock.acquire().await {
                    Ok(guard) => guard,
                    Err(Error::TimedOut { .. }) => continue,
                    Err(error) => panic!("{error}"),
                };
                let mut held = wanted;
                held.sort_unstable();
                held.dedup();
                for &it in &held {
                    assert_eq!(inside[it].fetch_add(1, Ordering::SeqCst), 0, "two hold c{it}");
                }
                assert!(guard.check());
                tokio::time::sleep(MS(next(3))).await;
                for &it in &held {
                    inside[it].fetch_sub(1, Ordering::SeqCst);
                }
                guard.release().await.expect("released");
            }
        }));
    }
    let all = async {
        for task in tasks {
            task.await.expect("served");
        }
    };
    tokio::time::timeout(Duration::from_secs(60), all).await.expect("one waits for ever");
    until_nothing_is_left(&wardens[0]).await;
}
