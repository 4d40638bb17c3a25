//! The order watch through the library: sites, classes, async and blocking.
#![allow(clippy::unwrap_used, reason = "tests")]

use lockwarden::{OrderWatch, Settings, Warden, blocking, order::Disagreement};
use std::sync::{Arc, Mutex};

fn watch() -> (OrderWatch, Arc<Mutex<Vec<Disagreement>>>) {
    let heard: Arc<Mutex<Vec<Disagreement>>> = Arc::default();
    let tell = heard.clone();
    (OrderWatch::telling(move |it| tell.lock().unwrap().push(it.clone())), heard)
}

#[tokio::test]
async fn it_names_both_sites_before_anything_waits() {
    let (watch, heard) = watch();
    let settings = || Settings::new().order_watch(&watch);
    // Two wardens of one process, one watch.
    let a = settings().connect("memory:").await.unwrap();
    let b = settings().connect("memory:").await.unwrap();
    let lock = |warden: &Warden, name: &str, class| warden.lock(name).class(class);
    let user = lock(&a, "order:user:1", "user").owner("order-1");
    let stock = lock(&a, "order:stock:1", "stock").owner("order-1");
    let first = line!() + 2;
    {
        let _user = user.acquire().await.unwrap();
        let _stock = stock.acquire().await.unwrap();
    }
    // Without an owner nothing belongs together.
    let _stock = lock(&b, "order:stock:2", "stock").acquire().await.unwrap();
    let _user = lock(&b, "order:user:2", "user").acquire().await.unwrap();
    assert!(heard.lock().unwrap().is_empty());
    let user = lock(&b, "order:user:3", "user").owner("order-2");
    let stock = lock(&b, "order:stock:3", "stock").owner("order-2");
    let second = line!() + 1;
    let _stock = stock.acquire().await.unwrap();
    let _user = user.acquire().await.unwrap();
    let heard = heard.lock().unwrap();
    let [Disagreement { now, before }] = &heard[..] else { panic!("{heard:?}") };
    assert_eq!((&*now.held, &*now.asked), ("stock", "user"));
    assert_eq!((now.held_at.line(), now.asked_at.line()), (second, second + 1));
    assert_eq!((before[0].held_at.line(), before[0].asked_at.line()), (first, first + 1));
    assert!(now.held_at.file().ends_with("order.rs"));
}

/// What is refused, given up or dropped is held no more.
#[tokio::test]
async fn what_was_not_granted_is_not_held() {
    let (watch, heard) = watch();
    let warden = Settings::new().order_watch(&watch).connect("memory:").await.unwrap();
    let lock = |name: &str, owner: &str| warden.lock(name).owner(owner).no_wait();
    let other = warden.lock("held:x").acquire().await.unwrap();
    assert!(lock("held:x", "a").acquire().await.is_err());
    lock("held:y", "a").acquire().await.unwrap().release().await.unwrap();
    other.release().await.unwrap();
    let y = lock("held:y", "b").acquire().await.unwrap();
    let _x = lock("held:x", "b").acquire().await.unwrap();
    drop(y);
    assert!(heard.lock().unwrap().is_empty(), "{heard:?}");
}

#[test]
fn blocking_calls_are_their_own_sites() {
    let (watch, heard) = watch();
    let warden = blocking::Warden::with(Settings::new().order_watch(&watch), "memory:").unwrap();
    let lock = |name: &str, owner: &str| warden.lock(name).with(|it| it.owner(owner));
    for (names, owner) in [(["blocking:x", "blocking:y"], "a"), (["blocking:y", "blocking:x"], "b")]
    {
        let _outer = lock(names[0], owner).acquire().unwrap();
        let _inner = lock(names[1], owner).acquire().unwrap();
    }
    let heard = heard.lock().unwrap();
    assert_eq!(heard.len(), 1);
    assert!(heard[0].now.asked_at.file().ends_with("tests/order.rs"), "{}", heard[0]);
}
