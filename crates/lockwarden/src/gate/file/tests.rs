//! The gate of a file, within one process; crashed after each of its steps.

use super::*;
use crate::gate::Stale;
use proptest::prelude::*;
use std::{cell::Cell, collections::BTreeSet, os::unix::fs::PermissionsExt};

thread_local! {
    /// How many steps are left until nothing happens any more.
    static STEPS_LEFT: Cell<usize> = const { Cell::new(usize::MAX) };
}

pub(super) fn has_crashed() -> bool {
    STEPS_LEFT.with(|left| {
        let now = left.get();
        left.set(now.saturating_sub(1));
        now == 0
    })
}

/// Runs a write that ends, as by SIGKILL, after so many steps; did it get to its end?
fn crash_after(steps: usize, write: impl FnOnce() -> Result<(), Error>) -> bool {
    STEPS_LEFT.set(steps);
    let result = write();
    STEPS_LEFT.set(usize::MAX);
    result.is_ok()
}

fn names(dir: &Path) -> BTreeSet<String> {
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name();
    std::fs::read_dir(dir).unwrap().map(|entry| name(entry).into_string().unwrap()).collect()
}

#[test]
fn stale_is_refused_and_equal_passes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    let gate = Gate::at(&path);
    assert_eq!(gate.newest(), Ok(None));
    gate.replace(5, b"five").unwrap();
    gate.replace(5, b"five again").unwrap();
    gate.replace(7, b"seven").unwrap();
    assert_eq!(gate.replace(6, b"six"), Err(Stale { fence: 6, newest: 7 }.into()));
    assert_eq!(std::fs::read(&path).unwrap(), b"seven");
    assert_eq!(gate.newest(), Ok(Some(7)));
    assert_eq!(names(dir.path()), ["x", ".x.fence"].map(String::from).into());
}

/// After a crash at any step: old or new contents, the fence never back and never behind the
/// contents, and the next write works and leaves nothing of the crashed one.
#[test]
fn a_crash_at_any_step_leaves_old_or_new() {
    // With how many steps there are: none may go untried.
    for (first, second, all) in [(0, 5, 13), (3, 5, 14), (5, 5, 8)] {
        let mut steps = 0;
        loop {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("x");
            let gate = Gate::at(&path).wait_for(Duration::ZERO);
            if first > 0 {
                gate.replace(first, b"old").unwrap();
            }
            let done = crash_after(steps, || gate.replace(second, b"new"));
            let contents = std::fs::read(&path).unwrap_or_default();
            let newest = gate.newest().unwrap().unwrap_or(0);
            assert!([b"old".as_slice(), b"new", b""].contains(&contents.as_slice()));
            assert_eq!(contents.is_empty(), first == 0 && contents != b"new");
            assert!(newest == first || newest == second, "after {steps} steps: {newest}");
            if contents == b"new" {
                assert_eq!(newest, second, "after {steps} steps an older fence gets through");
                let stale = Err(Stale { fence: second - 1, newest: second }.into());
                assert_eq!(gate.replace(second - 1, b"late"), stale);
            }
            // The same again, as its holder may, and then its follower.
            gate.replace(second, b"again").unwrap();
            gate.replace(second + 1, b"next").unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), b"next");
            assert_eq!(names(dir.path()), ["x", ".x.fence"].map(String::from).into());
            if done {
                break;
            }
            steps += 1;
        }
        assert_eq!(steps, all);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, failure_persistence: None, ..Default::default() })]

    #[test]
    fn random_writes_match_the_comparison(fences in prop::collection::vec(1..99_u64, 1..20)) {
        let dir = tempfile::tempdir().unwrap();
        let (gate, mut newest) = (Gate::at(dir.path().join("x")), 0);
        for fence in fences {
            match gate.replace(fence, fence.to_string().as_bytes()) {
                Ok(()) => {
                    prop_assert!(fence >= newest);
                    newest = fence;
                }
                refused => prop_assert_eq!(refused, Err(Stale { fence, newest }.into())),
            }
            prop_assert_eq!(gate.newest(), Ok(Some(newest)));
            prop_assert_eq!(gate.replace(newest, newest.to_string().as_bytes()), Ok(()));
            let contents = std::fs::read_to_string(dir.path().join("x")).unwrap();
            prop_assert_eq!(contents, newest.to_string());
        }
    }
}

#[test]
fn threads_with_shuffled_fences_end_with_the_highest() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    let threads = 8;
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let gate = Gate::at(&path).wait_for(Duration::from_secs(60));
            scope.spawn(move || {
                for round in 0..12_u64 {
                    // Each fence once, in an order that jumps up and down.
                    let fence = 1 + (round * threads + thread) * 37 % (12 * threads);
                    match gate.replace(fence, fence.to_string().as_bytes()) {
                        Ok(()) => {}
                        Err(Error::Stale(Stale { newest, .. })) => assert!(newest > fence),
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
    });
    assert_eq!(std::fs::read_to_string(&path).unwrap(), (12 * threads).to_string());
    assert_eq!(Gate::at(&path).newest(), Ok(Some(12 * threads)));
}

#[test]
fn mode_is_kept_and_links_are_followed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    std::fs::write(&path, "old").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    std::fs::create_dir(dir.path().join("links")).unwrap();
    let link = dir.path().join("links/l");
    std::os::unix::fs::symlink("../x", &link).unwrap();
    Gate::at(&link).replace(5, b"new").unwrap();
    assert!(link.symlink_metadata().unwrap().file_type().is_symlink());
    assert_eq!(std::fs::read(&path).unwrap(), b"new");
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o7777, 0o640);
    // One file, one gate, by whatever name.
    assert_eq!(Gate::at(&path).newest(), Ok(Some(5)));
    assert_eq!(names(&dir.path().join("links")), ["l"].map(String::from).into());
}

/// Where the test may give files away.
#[test]
fn the_owner_is_kept() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    use std::os::unix::fs::MetadataExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    std::fs::write(&path, "old").unwrap();
    std::os::unix::fs::chown(&path, Some(65_534), Some(65_533)).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o4711)).unwrap();
    Gate::at(&path).replace(5, b"new").unwrap();
    let meta = path.metadata().unwrap();
    assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o7777), (65_534, 65_533, 0o4711));
}

#[test]
fn a_writer_that_stays_inside_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    let gate = Gate::at(&path).wait_for(Duration::from_millis(20));
    gate.replace(5, b"five").unwrap();
    let place = Place::find(&path).unwrap();
    let inside = place.enter(Duration::ZERO).unwrap();
    let error = gate.replace(7, b"seven").unwrap_err();
    assert_eq!(error.code(), "unavailable");
    // Some containers hide the locks: then there is no name, and never a wrong one.
    let me = std::process::id().to_string();
    let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    let listed = locks.lines().any(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        fields.get(1) == Some(&"FLOCK") && fields.get(4) == Some(&me.as_str())
    });
    let who = if listed { format!("inside: process {me}") } else { "inside".to_owned() };
    assert!(error.to_string().ends_with(&who), "{error}\n{locks}");
    // The lock goes over to the new sidecar: nobody enters by it before the writer is done.
    let raised = place.raise(6, &inside).unwrap();
    assert_eq!(gate.replace(7, b"seven").unwrap_err().code(), "unavailable");
    drop(inside);
    assert_eq!(gate.replace(7, b"seven").unwrap_err().code(), "unavailable");
    drop(raised);
    gate.replace(7, b"seven").unwrap();
}

#[test]
fn bad_places_are_typed_errors() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| Gate::at(dir.path().join(name)).replace(1, b"x").unwrap_err();
    for path in ["", "/", ".."] {
        assert_eq!(Gate::at(path).replace(1, b"x").unwrap_err().code(), "invalid", "{path:?}");
    }
    assert_eq!(at("no/such/dir").code(), "unfit");
    assert_eq!(at(&"n".repeat(255)).code(), "unfit");
    std::fs::create_dir(dir.path().join("d")).unwrap();
    assert_eq!(at("d").code(), "unfit");
    assert_eq!(
        Gate::at(dir.path().join("d")).newest(),
        Ok(None),
        "refused before its fence was kept"
    );
    std::os::unix::fs::symlink("nowhere", dir.path().join("l")).unwrap();
    assert_eq!(at("l").code(), "unfit");
    for (name, sidecar) in
        [("a", "x"), ("b", "0\n"), ("c", "7"), ("e", "9007199254740992\n"), ("f", "+7\n")]
    {
        std::fs::write(dir.path().join(format!(".{name}.fence")), sidecar).unwrap();
        assert_eq!(at(name).code(), "unfit", "{sidecar:?}");
    }
    // What stands there is no file, or leads elsewhere.
    std::fs::create_dir(dir.path().join(".g.fence")).unwrap();
    assert_eq!(at("g").code(), "unfit");
    std::os::unix::fs::symlink("a", dir.path().join(".h.fence")).unwrap();
    assert_eq!(at("h").code(), "unfit");
    for fence in [0, u64::MAX] {
        let error = Gate::at(dir.path().join("new")).replace(fence, b"x").unwrap_err();
        assert_eq!(error.code(), "invalid");
    }
    assert!(!dir.path().join(".new.fence").exists());
}
