//! The gate of an HTTP service: a real server, real requests.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod gate_support;

use gate_support::Web;
use lockwarden::gate::http::{GateLayer, Memory};
use lockwarden_testkit::{gates::request, process::eventually, taker::SOON};
use std::time::Duration;

fn put(web: &Web, headers: &str, body: &str) -> (u16, String) {
    request(&web.address, "PUT", headers, body).unwrap()
}

/// Lets the handler that waits go, also when the test fails.
struct Release<'a>(&'a Web);

impl Drop for Release<'_> {
    fn drop(&mut self) {
        self.0.set_stored("release");
    }
}

fn fence(fence: u64) -> String {
    format!("lockwarden-fence: {fence}\r\n")
}

#[test]
fn a_stale_fence_is_answered_with_412_and_why() {
    let web = Web::start();
    assert_eq!(put(&web, &fence(5), "five"), (200, "x 5".into()));
    assert_eq!(put(&web, &fence(5), "again"), (200, "x 5".into()));
    assert_eq!(put(&web, &fence(7), "seven"), (200, "x 7".into()));
    let (status, text) = put(&web, &fence(6), "six");
    assert_eq!(status, 412);
    assert!(text.contains("fence 6 is stale: the resource has seen 7"), "{text}");
    assert_eq!(web.stored(), "seven");
}

#[test]
fn what_is_missing_or_malformed_never_reaches_the_handler() {
    let web = Web::behind(GateLayer::new(Memory::new()));
    let name = "lockwarden-name: a%20b\r\n";
    for (headers, status, part) in [
        (String::new(), 428, "lockwarden-fence is missing"),
        (fence(5), 428, "lockwarden-name is missing"),
        (format!("{name}lockwarden-fence: five\r\n"), 400, "lockwarden-fence is no number"),
        (format!("{name}{}", fence(0)), 400, "0 is no grant's fence"),
        (format!("{name}{}", fence(u64::MAX)), 400, "above 9007199254740991"),
        (format!("{name}{}{}", fence(5), fence(6)), 400, "more than once"),
        (format!("lockwarden-name: %FF\r\n{}", fence(5)), 400, "no UTF-8"),
        (format!("lockwarden-name: \r\n{}", fence(5)), 400, "lockwarden-name"),
    ] {
        let (found, text) = put(&web, &headers, "written");
        assert_eq!(found, status, "{headers:?}: {text}");
        assert!(text.contains(part), "{headers:?}: {text}");
        assert_eq!(web.stored(), "");
    }
    assert_eq!(put(&web, &format!("{name}{}", fence(5)), "written"), (200, "a b 5".into()));
    // Each name has its own fences.
    let other = format!("lockwarden-name: c\r\n{}", fence(4));
    assert_eq!(put(&web, &other, "written"), (200, "c 4".into()));
}

#[test]
fn an_optional_fence_is_compared_where_it_is_there() {
    let web = Web::behind(GateLayer::new(Memory::new().floor(5)).name("x").optional());
    assert_eq!(put(&web, "", "without"), (200, String::new()));
    assert_eq!(put(&web, &fence(4), "four").0, 412);
    assert_eq!(put(&web, &fence(5), "five").0, 200);
    assert_eq!(put(&web, &format!("lockwarden-name: y\r\n{}", fence(5)), "five").0, 400);
}

/// An older request that is in its handler is not overtaken, and one of its own age is not let in
/// behind a newer one.
#[test]
fn a_newer_one_waits_for_the_handler_of_an_older_one() {
    let web = Web::start();
    std::thread::scope(|scope| {
        let older = scope.spawn(|| put(&web, &fence(5), "wait"));
        let release = Release(&web);
        eventually(SOON, || web.stored() == "waiting");
        let newer = scope.spawn(|| put(&web, &fence(7), "seven"));
        eventually(SOON, || put(&web, &fence(4), "four").1.contains("seen 7"));
        assert!(!newer.is_finished());
        assert_eq!(put(&web, &fence(5), "five").0, 412);
        assert_eq!(web.stored(), "waiting");
        drop(release);
        assert_eq!(older.join().unwrap().0, 200);
        assert_eq!(newer.join().unwrap().0, 200);
    });
    assert_eq!(web.stored(), "seven");
}

#[test]
fn a_handler_that_does_not_answer_costs_a_503_not_a_hang() {
    let brief = Memory::new().wait_for(Duration::from_millis(50));
    let web = Web::behind(GateLayer::new(brief).name("x"));
    std::thread::scope(|scope| {
        let older = scope.spawn(|| put(&web, &fence(5), "wait"));
        let release = Release(&web);
        eventually(SOON, || web.stored() == "waiting");
        let (status, text) = put(&web, &fence(7), "seven");
        assert_eq!(status, 503);
        assert!(text.contains("an older fence has not answered"), "{text}");
        drop(release);
        assert_eq!(older.join().unwrap().0, 200);
    });
}
