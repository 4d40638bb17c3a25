//! What holders and waiters say of themselves: the site of their acquire, and tags.

use super::{MS, Place, names, until, waiters, warden};
use lockwarden::{Error, Lock, Party};
use std::sync::Arc;

/// Acquires here, whatever the lock.
async fn here(lock: Lock) -> Result<lockwarden::Guard, Error> {
    lock.acquire().await
}

fn tags(party: &Party) -> Vec<(&str, &str)> {
    party.tags.iter().map(|tag| (&*tag.key, &*tag.value)).collect()
}

/// A site and tags stand in the record, in the ticket, in what a refusal tells, and with whoever is handed the lock.
pub async fn sites_and_tags_are_shown(place: &dyn Place) {
    let (a, b) = (warden(place).await, warden(place).await);
    let line = line!() + 1;
    let held = a.lock("x").tag("job", "nightly").tag("attempt", "2").acquire().await.expect("free");
    let site = format!("{}:{line}", file!());
    let waiter = tokio::spawn({
        let lock = b.lock("x").tag("job", "\u{e9}\n\"").tag("job", "").site("worker");
        async move { lock.acquire().await }
    });
    until("queued", || async { waiters(&a, "x").await == 1 }).await;
    let view = b.show("x").await.expect("show");
    let holder = view.holder.as_ref().and_then(|it| it.record.as_ref()).expect("ours");
    assert_eq!(&*holder.party.site, site);
    assert_eq!(tags(&holder.party), [("attempt", "2"), ("job", "nightly")]);
    let ticket = &view.queue[0].party;
    assert_eq!((&*ticket.site, tags(ticket)), ("worker", vec![("job", "")]));
    // The others of the party are as ever.
    assert_eq!(holder.party.pid(), Some(std::process::id()));
    let error = b.lock("x").no_wait().acquire().await.expect_err("busy");
    assert!(error.to_string().contains(&format!(" at {site} for ")), "{error}");
    held.release().await.expect("released");
    let next = waiter.await.expect("task").expect("granted");
    let view = a.show("x").await.expect("show");
    let holder = view.holder.and_then(|it| it.record).expect("ours");
    assert_eq!((&*holder.party.site, tags(&holder.party)), ("worker", vec![("job", "")]));
    next.release().await.expect("released");
    // None at all, and the most of all.
    let bare = a.lock("x").site("").acquire().await.expect("free");
    let view = b.show("x").await.expect("show");
    let party = view.holder.and_then(|it| it.record).expect("ours").party;
    assert!(party.site.is_empty() && party.tags.is_empty());
    bare.release().await.expect("released");
    let mut lock = a.lock("x").site(&"\u{e9}/".repeat(200));
    let value = "\u{1f512}".repeat(15);
    for i in 0..16 {
        lock = lock.tag(&format!("k.{i:02}"), &value[..if i == 15 { 56 } else { 60 }]);
    }
    let full = here(lock).await.expect("free");
    let view = b.show("x").await.expect("show");
    let party = view.holder.and_then(|it| it.record).expect("ours").party;
    assert!(party.site.len() <= 200 && party.site.ends_with("\u{e9}/\u{e9}/"), "{}", party.site);
    let texts = tags(&party);
    assert_eq!((texts.len(), texts[0]), (16, ("k.00", &*value)));
    full.release().await.expect("released");
    until("nothing left", || async { names(&a).await.is_empty() }).await;
}

/// What breaks a rule of tags is refused with the value and the rule, before anything is sent.
pub async fn bad_tags_are_refused(place: &dyn Place) {
    let a = warden(place).await;
    let many = |count: usize, length: usize| {
        let value = "v".repeat(length);
        (0..count).fold(a.lock("x"), |lock, i| lock.tag(&format!("key-{i:02}"), &value))
    };
    let bad = [
        (a.lock("x").tag("", "v"), "0 bytes"),
        (a.lock("x").tag("a b", "v"), "\"a b\""),
        (a.lock("x").tag("a=b", "v"), "\"a=b\""),
        (a.lock("x").tag("\u{e9}", "v"), "\u{e9}"),
        (a.lock("x").tag(&"k".repeat(65), "v"), "65 bytes"),
        (a.lock("x").tag("key", &"v".repeat(257)), "that of \"key\" has 257"),
        (many(17, 1), "there are 17"),
        // 16 keys of 6 bytes.
        (many(16, 59), "these have 1040"),
    ];
    for (lock, says) in bad {
        let error = lock.no_wait().acquire().await.expect_err(says);
        assert_eq!(error.code(), "invalid", "{error}");
        assert!(error.to_string().contains(says), "{error} does not say {says}");
    }
    assert_eq!(names(&a).await, Vec::<String>::new());
    many(16, 58).acquire().await.expect("1 KiB").release().await.expect("released");
    let long = a.lock("x").tag(&"k".repeat(64), &"v".repeat(256));
    long.acquire().await.expect("in range").release().await.expect("released");
    until("nothing left", || async { names(&a).await.is_empty() }).await;
}

/// What is acquired at one place, or says the same of itself, is shown as one party: it costs once what it is.
pub async fn acquires_of_one_place_share_their_party(place: &dyn Place) {
    let a = warden(place).await;
    let mut guards = Vec::new();
    for i in 0..4 {
        guards.push(here(a.lock(&format!("l{i}"))).await.expect("free"));
    }
    let other = a.lock("other").acquire().await.expect("free");
    let mut parties: Vec<Arc<Party>> = Vec::new();
    for name in ["l0", "l1", "l2", "l3", "other"] {
        let view = a.show(name).await.expect("show");
        parties.push(view.holder.and_then(|it| it.record).expect("ours").party);
    }
    assert!(parties[..4].iter().all(|party| *party == parties[0]));
    assert_ne!(parties[0].site, parties[4].site);
    for guard in guards {
        guard.release().await.expect("released");
    }
    other.release().await.expect("released");
    let free = a.lock("l0").wait_for(MS(5_000)).acquire().await.expect("free");
    free.release().await.expect("released");
}
