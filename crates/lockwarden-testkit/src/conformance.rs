//! What every store must do, through the warden, as a user sees it. One suite for all stores:
//! [`conformance_tests!`](crate::conformance_tests) writes a test per case, so that a store cannot
//! leave one out.

use lockwarden::{Error, HoldState, Loss, Reason, Settings, State, Warden, store::Store};
use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

mod by_value;
mod holds;
mod modes;
mod owners;
mod parties;
mod recall;
pub use by_value::{
    bad_values_of_drop_ins, endless_locks, extended_by_value, left_to_their_values,
    released_by_value,
};
pub use holds::{
    a_delay_after_a_loss, bad_values_of_holds, handed_on, handed_over, handed_over_to_nobody,
    held_at_least, modes_change, modes_that_do_not_change, no_minimum_for_whoever_gives_up,
    what_is_not_handed_over,
};
pub use modes::{
    a_crowd_in_every_mode, a_crowd_that_converts, a_writer_that_gives_up_lets_readers_in,
    deadlocks_in_every_mode, each_of_many_is_renewed_and_lost_by_itself, modes_may_differ_by_name,
    permits_are_counted, readers_and_writers_take_turns,
};
pub use owners::{
    a_deadlock_is_told_at_once, a_long_deadlock_is_spelled_out, a_lost_one_is_acquired_anew,
    an_owner_enters_again, no_deadlock_without_a_cycle, no_more_than_its_owner_has,
    parts_that_wait_at_once_hide_nothing,
};

pub use parties::{
    acquires_of_one_place_share_their_party, bad_tags_are_refused, sites_and_tags_are_shown,
};

pub use recall::{
    a_recall_changes_nothing, a_recall_hurts_only_the_holder_that_is_named,
    a_recall_is_for_the_guards_that_are, a_recall_reaches_the_holder,
};

mod several;
pub use several::{
    a_crowd_of_several, a_thousand_at_once, an_owner_enters_several_again, bad_values_of_several,
    deadlocks_of_several, giving_up_several_leaves_nothing, one_lost_is_all_lost,
    only_the_oldest_has_names_kept, several_are_one_grant, several_are_renewed_together,
    whoever_is_behind_goes_on_at_once,
};

/// A store under test, empty at first.
pub trait Place: Send + Sync {
    /// A handle of the store, as another program would open it.
    fn store(&self) -> Arc<dyn Store>;
}

/// Writes one test per case of the suite for a place: `conformance_tests!(make_place)`, where
/// `make_place()` gives an empty [`Place`].
#[macro_export]
macro_rules! conformance_tests {
    ($make:expr) => {
        $crate::conformance_tests!(@list || Some(($make)()););
    };
    // On a server of this kind, if this run is to test it.
    (if_wanted $kind:expr, $make:expr) => {
        $crate::conformance_tests!(@list || {
            $kind.is_wanted().then(|| ($make)($kind))
        };);
    };
    (@list $make:expr;) => {
        $crate::conformance_tests!(@ $make;
            refuses_and_tells_who_holds, fences_grow, serves_in_order_of_arrival,
            waits_as_long_as_told, a_dropped_future_leaves_nothing, a_dropped_waiter_hurts_nobody,
            renews_for_as_long_as_held, ends_without_renewal, extend_sets_and_never_adds,
            revoke_at_once, revoke_with_delay, strange_names_are_names, bad_values_are_refused,
            drop_releases, close_releases_and_cancels, values_of_drop_ins, counts_right,
            wins_are_shared, many_locks_leave_nothing, lost_is_told_once_and_stays,
            bad_values_of_drop_ins, endless_locks, extended_by_value, released_by_value,
            left_to_their_values, acquire_is_reusable, fence_floors, an_owner_enters_again, a_deadlock_is_told_at_once,
            a_long_deadlock_is_spelled_out, no_deadlock_without_a_cycle,
            parts_that_wait_at_once_hide_nothing, a_lost_one_is_acquired_anew,
            no_more_than_its_owner_has, held_at_most, readers_and_writers_take_turns,
            a_writer_that_gives_up_lets_readers_in, permits_are_counted,
            each_of_many_is_renewed_and_lost_by_itself, deadlocks_in_every_mode,
            modes_may_differ_by_name, a_crowd_in_every_mode, a_crowd_that_converts,
            held_at_least, no_minimum_for_whoever_gives_up, a_delay_after_a_loss, modes_change,
            modes_that_do_not_change, handed_over, handed_over_to_nobody, handed_on, what_is_not_handed_over,
            bad_values_of_holds,
            sites_and_tags_are_shown,
            bad_tags_are_refused, acquires_of_one_place_share_their_party,
            a_recall_reaches_the_holder, a_recall_changes_nothing, a_recall_is_for_the_guards_that_are,
            a_recall_hurts_only_the_holder_that_is_named,
            several_are_one_grant, a_thousand_at_once,
            only_the_oldest_has_names_kept, whoever_is_behind_goes_on_at_once,
            giving_up_several_leaves_nothing, one_lost_is_all_lost, several_are_renewed_together,
            an_owner_enters_several_again, deadlocks_of_several, bad_values_of_several,
            a_crowd_of_several);
    };
    (@ $make:expr; $($case:ident),*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let Some(place) = ($make)() else { return };
                $crate::conformance::$case(&place).await;
            }
        )*
    };
}

/// A warden at the place.
pub async fn warden(place: &dyn Place) -> Warden {
    Settings::new().connect_to(place.store()).await.expect("the store connects")
}

/// Waits until `condition` holds; asks every 5 ms.
pub async fn until<F: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> F) {
    let began = Instant::now();
    while !condition().await {
        assert!(began.elapsed() < Duration::from_secs(20), "not within 20 s: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// How many wait for a name.
pub async fn waiters(warden: &Warden, name: &str) -> usize {
    warden.show(name).await.expect("show").queue.len()
}

/// All names that hold anything.
pub async fn names(warden: &Warden) -> Vec<String> {
    let (mut names, mut cursor) = (Vec::new(), 0);
    loop {
        let page = warden.page(cursor, false).await.expect("list");
        names.extend(page.names.iter().map(|name| name.as_str().to_owned()));
        cursor = page.cursor;
        if cursor == 0 {
            names.sort();
            names.dedup();
            return names;
        }
    }
}

const MS: fn(u64) -> Duration = Duration::from_millis;

/// C02, C37, G10: a refusal is typed and says who holds the lock; the holder is untouched.
pub async fn refuses_and_tells_who_holds(place: &dyn Place) {
    let (a, b) = (warden(place).await, warden(place).await);
    let held = a.lock("x").label("task-7").no_wait().acquire().await.expect("free");
    for _ in 0..2 {
        let error = b.lock("x").no_wait().acquire().await.expect_err("busy");
        let Error::Busy { name, told } = &error else { panic!("{error}") };
        let told = told.as_ref().expect("told");
        let record = told.holder.as_ref().expect("holder").record.as_ref().expect("ours");
        assert_eq!((name.as_str(), told.reason), ("x", Reason::Held));
        assert_eq!(&*record.party.label, "task-7");
        assert_eq!(record.party.pid(), Some(std::process::id()));
        assert_eq!(record.fence, held.fence());
        assert!(error.to_string().contains("task-7"), "{error}");
        assert_eq!((error.code(), error.retry_helps()), ("busy", true));
    }
    // C57: the same process is no exception, not even the same warden.
    assert!(matches!(a.lock("x").no_wait().acquire().await, Err(Error::Busy { .. })));
    assert!(held.check());
    held.release().await.expect("released");
    b.lock("x").no_wait().acquire().await.expect("free again").release().await.expect("released");
    assert_eq!(names(&a).await, Vec::<String>::new());
}

/// G2, C01, C61: fences grow with every grant, and no token comes twice.
pub async fn fences_grow(place: &dyn Place) {
    let (a, b) = (warden(place).await, warden(place).await);
    let (mut last, mut tokens) = (0, Vec::new());
    for i in 0..40 {
        let warden = if i % 2 == 0 { &a } else { &b };
        let guard = warden.lock("x").acquire().await.expect("granted");
        assert!(guard.fence() > last, "{} after {last}", guard.fence());
        last = guard.fence();
        tokens.push(guard.token().clone());
        if i % 3 == 0 { drop(guard) } else { guard.release().await.expect("released") }
    }
    tokens.sort();
    tokens.dedup();
    assert_eq!(tokens.len(), 40);
}

/// G4, C49: first come, first served, across sessions; each grant within the release (C48).
pub async fn serves_in_order_of_arrival(place: &dyn Place) {
    let wardens = [warden(place).await, warden(place).await, warden(place).await];
    let held = wardens[0].lock("x").acquire().await.expect("free");
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for i in 0..30 {
        let (warden, order) = (wardens[i % 3].clone(), order.clone());
        tasks.push(tokio::spawn(async move {
            let guard = warden.lock("x").wait_for(MS(30_000)).acquire().await.expect("granted");
            assert!(guard.check(), "granted, yet not checked");
            order.lock().expect("order").push(i);
            guard.release().await.expect("released");
        }));
        until("queued", || async { waiters(&wardens[0], "x").await == i + 1 }).await;
    }
    held.release().await.expect("released");
    for task in tasks {
        task.await.expect("served");
    }
    assert_eq!(*order.lock().expect("order"), (0..30).collect::<Vec<_>>());
    assert_eq!(names(&wardens[0]).await, Vec::<String>::new());
}

/// C24, C25: a wait takes as long as told, gives an error of its own, and leaves no ticket.
pub async fn waits_as_long_as_told(place: &dyn Place) {
    let (a, b) = (warden(place).await, warden(place).await);
    // C25: with no wait, a free lock is granted.
    let held = b.lock("x").no_wait().acquire().await.expect("free");
    let began = Instant::now();
    let error = a.lock("x").wait_for(MS(300)).acquire().await.expect_err("held");
    let took = began.elapsed();
    assert!(took >= MS(300) && took < MS(1_500), "{took:?}");
    let Error::TimedOut { waited, told, .. } = &error else { panic!("{error}") };
    assert!(*waited >= MS(300) && told.is_some(), "{error:?}");
    until("no ticket is left", || async { waiters(&a, "x").await == 0 }).await;
    // A tiny wait is a wait that ends.
    let began = Instant::now();
    let nothing = a.lock("x").wait_for(Duration::from_nanos(1)).acquire().await;
    let tiny = a.lock("x").wait_for(Duration::from_micros(1)).acquire().await.expect_err("held");
    assert!(nothing.is_err() && began.elapsed() < MS(1_000));
    assert!(matches!(&tiny, Error::TimedOut { told: Some(_), .. }), "it was asked: {tiny:?}");
    held.release().await.expect("released");
    // C24: and however short it is, there is one try.
    for _ in 0..50 {
        let tiny = a.lock("x").wait_for(Duration::from_micros(1)).acquire().await;
        tiny.expect("free").release().await.expect("released");
    }
}

/// G6, C39: an acquire that is dropped at any moment leaves neither a lock nor a ticket.
pub async fn a_dropped_future_leaves_nothing(place: &dyn Place) {
    let (a, b) = (warden(place).await, warden(place).await);
    for i in 0..100_u64 {
        let lock = a.lock("x").lease(MS(60_000));
        let patience = Duration::from_micros(i * 30 % 2_000);
        let held = tokio::time::timeout(patience, lock.acquire()).await;
        drop(held);
        let guard = b.lock("x").wait_for(MS(5_000)).acquire().await.expect("nothing was left");
        guard.release().await.expect("released");
    }
    until("nothing is left", || async { names(&a).await.is_empty() }).await;
}

/// C50: a waiter that gives up is passed over at once, wherever it stands.
pub async fn a_dropped_waiter_hurts_nobody(place: &dyn Place) {
    let (a, b) = (warden(place).await, warden(place).await);
    let held = a.lock("x").acquire().await.expect("free");
    let mut tasks = Vec::new();
    for i in 0..3 {
        let b = b.clone();
        tasks.push(tokio::spawn(async move { b.lock("x").acquire().await }));
        until("queued", || async { waiters(&a, "x").await == i + 1 }).await;
    }
    tasks[0].abort();
    until("one has left", || async { waiters(&a, "x").await == 2 }).await;
    held.release().await.expect("released");
    let second = tasks.remove(1).await.expect("task").expect("granted");
    tasks[1].abort();
    until("the last has left", || async { waiters(&a, "x").await == 0 }).await;
    second.release().await.expect("released");
    until("nothing is left", || async { names(&a).await.is_empty() }).await;
}

/// C13, C22: renewed for as long as it is held, and never beyond its lease.
pub async fn renews_for_as_long_as_held(place: &dyn Place) {
    let (a, b) = (warden(place).await, warden(place).await);
    let guard = a.lock("x").lease(MS(600)).acquire().await.expect("free");
    let began = Instant::now();
    while began.elapsed() < MS(2_400) {
        assert!(guard.check(), "after {:?}", began.elapsed());
        let view = b.show("x").await.expect("show");
        let ttl_ms = view.holder.expect("held").ttl_ms.expect("it has an expiry (C10)");
        assert!((150..=601).contains(&ttl_ms), "{ttl_ms}");
        assert!(guard.remaining() <= MS(600));
        tokio::time::sleep(MS(40)).await;
    }
    assert_eq!(guard.state(), State::Held);
    guard.release().await.expect("released");
}

/// C16, C20, C21: without renewal it ends with its lease; then extend and release say so, and the
/// next holder is not touched.
pub async fn ends_without_renewal(place: &dyn Place) {
    let (a, b) = (warden(place).await, warden(place).await);
    let guard = a.lock("x").lease(MS(300)).without_renewal().acquire().await.expect("free");
    let loss = guard.lost().await;
    assert_eq!(loss, Loss::LeaseEnded);
    assert!(!guard.check());
    assert!(matches!(guard.extend(MS(10_000)).await, Err(Error::Lost { .. })));
    let next = b.lock("x").wait_for(MS(3_000)).acquire().await.expect("free by now");
    assert!(next.fence() > guard.fence());
    assert!(matches!(guard.release().await, Err(Error::Lost { .. })));
    assert!(next.check());
    assert!(matches!(a.lock("x").no_wait().acquire().await, Err(Error::Busy { .. })));
    next.release().await.expect("released");
    // C08: the name is as good as new.
    a.lock("x").no_wait().acquire().await.expect("free").release().await.expect("released");
}

/// C22, A4: extend sets the lease; ten of them are no longer than one.
pub async fn extend_sets_and_never_adds(place: &dyn Place) {
    let a = warden(place).await;
    let guard = a.lock("x").lease(MS(5_000)).acquire().await.expect("free");
    for _ in 0..10 {
        guard.extend(MS(5_000)).await.expect("extended");
        let view = a.show("x").await.expect("show");
        let ttl_ms = view.holder.expect("held").ttl_ms.expect("an expiry");
        assert!(ttl_ms <= 5_001, "{ttl_ms}");
    }
    guard.extend(MS(20_000)).await.expect("extended");
    let ttl_ms = a.show("x").await.expect("show").holder.expect("held").ttl_ms.expect("expiry");
    assert!((10_000..=20_001).contains(&ttl_ms), "{ttl_ms}");
    guard.extend(MS(1_000)).await.expect("shortened");
    let ttl_ms = a.show("x").await.expect("show").holder.expect("held").ttl_ms.expect("expiry");
    assert!(ttl_ms <= 1_001, "{ttl_ms}");
    assert!(guard.check());
    assert!(matches!(guard.extend(Duration::ZERO).await, Err(Error::Invalid(_))));
    guard.release().await.expect("released");
}

/// C56, R32: revoked at once, the first waiter has it at once, the holder is told and its release
/// hurts nobody.
pub async fn revoke_at_once(place: &dyn Place) {
    let (a, b) = (warden(place).await, warden(place).await);
    let held = a.lock("x").acquire().await.expect("free");
    let waiter = tokio::spawn({
        let b = b.clone();
        async move { b.lock("x").acquire().await }
    });
    until("queued", || async { waiters(&a, "x").await == 1 }).await;
    let other = lockwarden::Token::found(b"another");
    assert!(matches!(b.revoke("x", &other, false).await, Err(Error::Lost { .. })));
    assert!(held.check());
    assert_eq!(b.revoke("x", held.token(), false).await.expect("revoked"), Duration::ZERO);
    let next = waiter.await.expect("task").expect("granted");
    assert_eq!(held.lost().await, Loss::Revoked);
    assert!(!held.check() && next.check());
    assert!(matches!(held.release().await, Err(Error::Lost { .. })));
    assert!(next.check());
    next.release().await.expect("released");
}

/// R32: revoked with a delay, the holder stops believing before the waiter is granted.
pub async fn revoke_with_delay(place: &dyn Place) {
    let (a, b) = (warden(place).await, warden(place).await);
    let held = a.lock("x").acquire().await.expect("free");
    let after = b.revoke("x", held.token(), true).await.expect("revoked");
    assert!(after > MS(2_000) && after <= MS(3_000), "{after:?}");
    assert_eq!(held.lost().await, Loss::Revoked);
    assert!(!held.check());
    let view = b.show("x").await.expect("show");
    let record = view.holder.expect("still there").record.expect("ours");
    assert_eq!(record.state, HoldState::Revoked);
    // The holder still works at what it cannot stop; nobody is let in.
    let next = b.lock("x").wait_for(MS(6_000)).acquire().await.expect("granted in the end");
    assert!(matches!(held.release().await, Err(Error::Lost { .. })));
    assert!(next.check());
    next.release().await.expect("released");
}

/// C27: every name that is accepted is its own lock, everywhere.
pub async fn strange_names_are_names(place: &dyn Place) {
    let a = warden(place).await;
    let long = "x".repeat(4_096);
    let strange = [
        " ",
        "a b",
        "ключ-日本-🔒",
        "line\nbreak",
        "a:b",
        "A",
        "a",
        "é",
        "e\u{301}",
        "{",
        "}",
        "{}",
        "}{",
        "{a}",
        "a{b}c",
        "{}x",
        "a}b",
        "{a}{b}",
        "*",
        "[a]",
        "\\",
        "%00",
        "\"'`;",
        "\u{0}",
        "undefined",
        &long,
    ];
    let mut guards = Vec::new();
    for name in strange {
        let guard = a.lock(name).no_wait().acquire().await;
        guards.push(guard.unwrap_or_else(|error| panic!("{name:?}: {error}")));
    }
    for name in strange {
        assert!(matches!(a.lock(name).no_wait().acquire().await, Err(Error::Busy { .. })));
        assert!(a.show(name).await.expect("show").holder.is_some(), "{name:?}");
    }
    let mut expected: Vec<String> = strange.iter().map(|&name| name.to_owned()).collect();
    expected.sort();
    assert_eq!(names(&a).await, expected);
    for guard in guards {
        assert!(guard.check(), "{}", guard.name());
        guard.release().await.expect("released");
    }
    assert_eq!(names(&a).await, Vec::<String>::new());
}

/// C23, C25, C26, C27: what breaks a rule is refused before anything is sent, with the value.
pub async fn bad_values_are_refused(place: &dyn Place) {
    let a = warden(place).await;
    let refused = async |lock: lockwarden::Lock, says: &str| {
        let error = lock.no_wait().acquire().await.expect_err(says);
        assert_eq!(error.code(), "invalid", "{error}");
        assert!(error.to_string().contains(says), "{error} does not say {says}");
    };
    refused(a.lock(""), "empty").await;
    refused(a.lock(&"x".repeat(5_120)), "5120").await;
    refused(a.lock("lockwarden:meta"), "reserved").await;
    refused(a.lock("x").lease(Duration::ZERO), "lease of 0 ms").await;
    refused(a.lock("x").lease(MS(99)), "lease of 99 ms").await;
    refused(a.lock("x").lease(Duration::MAX), "lease").await;
    refused(a.lock("x").grace(MS(2_999)), "grace of 2999 ms").await;
    refused(a.lock("x").grace(Duration::MAX), "grace").await;
    refused(a.lock("x").label(&"x".repeat(257)), "label").await;
    refused(a.lock("x").drop_in_value(b""), "token").await;
    let error = a.lock("x").wait_for(Duration::MAX).acquire().await.expect_err("wait");
    assert_eq!(error.code(), "invalid", "{error}");
    assert_eq!(names(&a).await, Vec::<String>::new());
}

/// C41: dropping the guard releases, on every way out.
pub async fn drop_releases(place: &dyn Place) {
    let (a, b) = (warden(place).await, warden(place).await);
    let dropped = async {
        let _guard = a.lock("x").acquire().await.expect("free");
        Err::<(), &str>("boom")
    };
    assert_eq!(dropped.await, Err("boom"));
    b.lock("x").wait_for(MS(5_000)).acquire().await.expect("released").release().await.expect("ok");
}

/// Clean shutdown: everything held is released, everything waiting is cancelled, callers are told.
pub async fn close_releases_and_cancels(place: &dyn Place) {
    let (a, b) = (warden(place).await, warden(place).await);
    let mine = a.lock("mine").acquire().await.expect("free");
    let theirs = b.lock("theirs").acquire().await.expect("free");
    let waiter = tokio::spawn({
        let a = a.clone();
        async move { a.lock("theirs").acquire().await }
    });
    until("queued", || async { waiters(&b, "theirs").await == 1 }).await;
    a.clone().close().await;
    assert!(matches!(waiter.await.expect("task"), Err(Error::Closed)));
    assert!(!mine.check());
    assert!(matches!(mine.state(), State::Lost(_)));
    assert!(matches!(a.lock("y").acquire().await, Err(Error::Closed)));
    b.lock("mine").no_wait().acquire().await.expect("released").release().await.expect("released");
    assert_eq!(waiters(&b, "theirs").await, 0);
    theirs.release().await.expect("released");
    assert_eq!(names(&b).await, Vec::<String>::new());
}

/// R25, A1: a redelivered task brings the same value again, and is refused.
pub async fn values_of_drop_ins(place: &dyn Place) {
    let (a, b) = (warden(place).await, warden(place).await);
    let value = b"task\x00\xff-1";
    let held = a.lock("x").drop_in_value(value).lease(MS(5_000)).acquire().await.expect("free");
    assert_eq!(held.token().as_bytes(), value);
    let view = b.show("x").await.expect("show");
    assert_eq!(view.holder.expect("held").token.as_bytes(), value);
    let same = b.lock("x").drop_in_value(value).no_wait();
    assert!(matches!(same.acquire().await, Err(Error::Busy { .. })));
    assert!(a.lock("x").drop_in_value(value).no_wait().acquire().await.is_err());
    let queued = b.lock("x").drop_in_value(value).wait_for(MS(200)).acquire().await;
    assert!(matches!(queued, Err(Error::TimedOut { .. })), "{queued:?}");
    assert!(held.check());
    held.release().await.expect("released");
    let next = same.acquire().await.expect("free");
    next.release().await.expect("released");
    // A lease of 1 ms is allowed here; check() need not ever be true.
    let brief = a.lock("x").drop_in_value(b"v").lease(MS(1)).without_renewal();
    let brief = brief.acquire().await.expect("granted");
    assert!(!brief.check());
}

/// G1, as a user means it: an unprotected counter under the lock comes out right, and whoever is in
/// passes `check()` alone.
pub async fn counts_right(place: &dyn Place) {
    let (counter, inside) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let mut tasks = Vec::new();
    for _ in 0..4 {
        let warden = warden(place).await;
        for _ in 0..10 {
            let (warden, counter, inside) = (warden.clone(), counter.clone(), inside.clone());
            tasks.push(tokio::spawn(async move {
                for _ in 0..5 {
                    let guard = warden.lock("counter").acquire().await.expect("granted");
                    assert!(guard.check());
                    assert!(!inside.swap(true, Ordering::SeqCst), "two are in");
                    let seen = counter.load(Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    counter.store(seen + 1, Ordering::SeqCst);
                    inside.store(false, Ordering::SeqCst);
                    guard.release().await.expect("released");
                }
            }));
        }
    }
    for task in tasks {
        task.await.expect("counted");
    }
    assert_eq!(counter.load(Ordering::SeqCst), 4 * 10 * 5);
}

/// C49: one that releases and at once acquires again does not starve the others.
pub async fn wins_are_shared(place: &dyn Place) {
    let wins: Arc<[AtomicU64; 4]> = Arc::default();
    let mut tasks = Vec::new();
    let began = Instant::now();
    for i in 0..4 {
        let (warden, wins) = (warden(place).await, wins.clone());
        tasks.push(tokio::spawn(async move {
            while began.elapsed() < MS(1_000) {
                let guard = warden.lock("x").wait_for(MS(10_000)).acquire().await.expect("served");
                wins[i].fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(MS(2)).await;
                guard.release().await.expect("released");
            }
        }));
    }
    for task in tasks {
        task.await.expect("done");
    }
    let wins: Vec<u64> = wins.iter().map(|wins| wins.load(Ordering::Relaxed)).collect();
    let all: u64 = wins.iter().sum();
    assert!(wins.iter().all(|&wins| wins * 20 >= all), "{wins:?}");
}

/// G9, C51: thousands of names leave nothing.
pub async fn many_locks_leave_nothing(place: &dyn Place) {
    let a = warden(place).await;
    let mut guards = Vec::new();
    for i in 0..1_000 {
        guards.push(a.lock(&format!("name-{i}")).no_wait().acquire().await.expect("free"));
    }
    assert_eq!(names(&a).await.len(), 1_000);
    for guard in guards {
        assert!(guard.check());
        guard.release().await.expect("released");
    }
    assert_eq!(names(&a).await, Vec::<String>::new());
}

/// G8: a handle that is lost stays lost, and everyone who asks is told the same.
pub async fn lost_is_told_once_and_stays(place: &dyn Place) {
    let (a, b) = (warden(place).await, warden(place).await);
    let held = Arc::new(a.lock("x").acquire().await.expect("free"));
    let watchers: Vec<_> = (0..3)
        .map(|_| {
            let held = held.clone();
            tokio::spawn(async move { held.lost().await })
        })
        .collect();
    b.revoke("x", held.token(), false).await.expect("revoked");
    for watcher in watchers {
        assert_eq!(watcher.await.expect("told"), Loss::Revoked);
    }
    for _ in 0..3 {
        assert_eq!(held.state(), State::Lost(Loss::Revoked));
        assert_eq!(held.lost().await, Loss::Revoked);
        assert!(!held.check());
    }
}

/// C08: one lock value may be acquired again and again; each acquisition is a handle of its own
/// (C06).
pub async fn acquire_is_reusable(place: &dyn Place) {
    let a = warden(place).await;
    let lock = a.lock("x").wait_for(MS(5_000));
    let first = lock.acquire().await.expect("free");
    let first_token = first.token().clone();
    first.release().await.expect("released");
    let second = lock.acquire().await.expect("free again");
    assert_ne!(*second.token(), first_token);
    let moved = tokio::spawn(async move { second.release().await });
    // C07: a handle may be released by another task.
    moved.await.expect("task").expect("released");
}

/// R34: a fence is above the floor that the caller knows; a floor a day ahead is refused.
pub async fn fence_floors(place: &dyn Place) {
    let (a, b) = (warden(place).await, warden(place).await);
    let guard = a.lock("x").acquire().await.expect("free");
    let floor = guard.fence() + 1_000_000;
    guard.release().await.expect("released");
    let guard = b.lock("x").fence_floor(floor).acquire().await.expect("free");
    assert!(guard.fence() > floor);
    let fence = guard.fence();
    guard.release().await.expect("released");
    // G2: the others' grow on from there, though they never heard of the floor.
    let guard = a.lock("x").acquire().await.expect("free");
    assert!(guard.fence() > fence);
    guard.release().await.expect("released");
    let far = fence + 3 * 24 * 3_600 * 1_000_000;
    let error = a.lock("x").fence_floor(far).acquire().await.expect_err("poison");
    assert_eq!(error.code(), "invalid", "{error}");
}

/// R33: renewed as long as it may be held, and no longer, also where it was handed over.
pub async fn held_at_most(place: &dyn Place) {
    let (a, b) = (warden(place).await, warden(place).await);
    let most = |warden: &Warden| warden.lock("x").lease(MS(600)).hold_at_most(MS(1_500));
    let began = Instant::now();
    let held = most(&a).acquire().await.expect("free");
    let next = tokio::spawn({
        let lock = most(&b);
        async move { lock.acquire().await }
    });
    until("b waits", || async { waiters(&a, "x").await == 1 }).await;
    let error = held.extend(MS(1_600)).await.expect_err("beyond the ceiling");
    assert_eq!(error.code(), "invalid");
    held.extend(MS(500)).await.expect("within it");
    tokio::time::sleep_until((began + MS(1_100)).into()).await;
    assert!(held.check(), "renewed beyond its lease");
    assert_eq!(held.lost().await, Loss::HeldAtMost);
    // A timer that is late is no loss that is.
    assert!(began.elapsed() < MS(2_500), "{:?}", began.elapsed());
    let next = next.await.expect("no panic").expect("granted");
    assert!(next.fence() > held.fence());
    assert!(matches!(held.release().await, Err(Error::Lost { loss: Loss::HeldAtMost, .. })));
    assert!(next.check());
    assert_eq!(next.lost().await, Loss::HeldAtMost);
    // Longer than its lease it need not be.
    let brief = a.lock("y").hold_at_most(MS(200)).acquire().await.expect("free");
    assert!(brief.remaining() <= MS(200));
    assert_eq!(brief.lost().await, Loss::HeldAtMost);
    for bad in [Duration::ZERO, MS(99), Duration::MAX] {
        let error = a.lock("z").hold_at_most(bad).acquire().await.expect_err("out of range");
        assert_eq!(error.code(), "invalid", "{error}");
    }
    until("nothing left", || async { names(&a).await.is_empty() }).await;
}
