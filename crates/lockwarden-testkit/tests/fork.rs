//! C14, R24: processes that fork while they hold locks. A child holds nothing, never waits for a
//! thread that it does not have, hurts nobody, and may connect on its own.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod support;

use lockwarden::{Loss, Settings, State, blocking};
use lockwarden_testkit::{
    process::poll_until,
    site::Site,
    taker::{Options, SOON},
};
use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};
use support::{MS, TAKER, every_site, size};

/// Forks; the child does the work, and its result is its exit code.
#[expect(unsafe_code, reason = "there is no safe way to fork")]
fn fork(work: impl FnOnce() -> i32) -> i32 {
    // SAFETY: as with any program that forks with several threads, the child may meet a lock that
    // some other thread held; the tests are about exactly that. It ends by `_exit`.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork");
    if pid != 0 {
        return pid;
    }
    // What a panic would print might wait for a lock of the parent's.
    std::panic::set_hook(Box::new(|_| {}));
    let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or(101);
    // SAFETY: ends the process, and nothing else.
    unsafe { libc::_exit(code) }
}

/// Waits for a forked child; its exit code. One that hangs is killed.
#[expect(unsafe_code, reason = "there is no safe way to wait for a forked child")]
fn wait(pid: i32) -> i32 {
    let mut status = 0;
    let ended = poll_until(SOON, || {
        // SAFETY: `status` is a valid place for the answer.
        let waited = unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) };
        (waited == pid).then_some(())
    });
    if ended.is_none() {
        kill(pid);
        panic!("the forked child hangs");
    }
    assert!(libc::WIFEXITED(status), "status {status}");
    libc::WEXITSTATUS(status)
}

#[expect(unsafe_code, reason = "there is no safe way to kill a forked child")]
fn kill(pid: i32) {
    // SAFETY: the child is ours, and was not waited for: the pid is still its.
    unsafe { libc::kill(pid, libc::SIGKILL) };
}

fn sites() -> Vec<Site> {
    let resp2 = Site::redis(lockwarden_testkit::servers::ServerKind::any()).query("?protocol=2");
    every_site().into_iter().chain([resp2]).collect()
}

/// Says where the child stopped: its exit code is the number of the step.
fn steps(steps: &[&dyn Fn() -> bool]) -> i32 {
    let failed = steps.iter().position(|step| !step());
    failed.map_or(0, |at| i32::try_from(at).unwrap() + 1)
}

fn brief(call: impl FnOnce() -> bool) -> bool {
    let began = Instant::now();
    call() && began.elapsed() < MS(500)
}

/// The child's handles are lost, every call is refused at once, and dropping all of it hurts nobody.
#[test]
fn c14_a_forked_child_holds_nothing() {
    for site in sites() {
        let warden = blocking::Warden::connect(site.url()).unwrap();
        let observer = blocking::Warden::connect(site.url()).unwrap();
        let mut held = Some(warden.lock("x").lease(MS(1_500)).acquire().unwrap());
        let dropped = Some(warden.lock("y").lease(MS(1_500)).acquire().unwrap());
        let token = held.as_ref().unwrap().token().clone();
        let mut all = Some((warden, dropped));
        let child = fork(|| {
            let (warden, dropped) = all.take().unwrap();
            let guard = held.take().unwrap();
            let code = steps(&[
                &|| !guard.check(),
                &|| guard.state() == State::Lost(Loss::Forked),
                &|| guard.remaining().is_zero() && guard.must_stop_in().is_zero(),
                &|| brief(|| guard.lost() == Loss::Forked),
                &|| brief(|| guard.extend(MS(9_000)).is_err()),
                &|| brief(|| warden.lock("z").acquire().is_err()),
                &|| brief(|| warden.lock("z").no_wait().acquire().is_err()),
                &|| brief(|| warden.show("x").is_err()),
                &|| brief(|| warden.revoke("x", guard.token(), false).is_err()),
            ]);
            if code != 0 {
                return code;
            }
            if !brief(|| guard.release().is_err()) {
                return 50;
            }
            if !brief(|| {
                drop(dropped);
                drop(warden.clone());
                warden.close();
                true
            }) {
                return 51;
            }
            0
        });
        assert_eq!(wait(child), 0, "{}", site.url());
        // Longer than the lease: renewed by the parent, as if nothing had been.
        let (warden, dropped) = all.take().unwrap();
        let held = held.take().unwrap();
        let began = Instant::now();
        while began.elapsed() < MS(2_200) {
            assert!(held.check(), "{}: {:?}", site.url(), held.state());
            assert!(dropped.as_ref().unwrap().check());
            std::thread::sleep(MS(20));
        }
        assert_eq!(observer.show("x").unwrap().holder.unwrap().token, token);
        held.release().unwrap();
        dropped.unwrap().release().unwrap();
        warden.lock("x").no_wait().acquire().unwrap().release().unwrap();
    }
}

/// A child drops the runtime in which its parent's warden lives, as it does when it returns from
/// `main`: the parent's connection, its heartbeat and its lock go on.
#[test]
fn c14_a_child_drops_the_runtime() {
    for site in sites() {
        let parents = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (warden, guard) = parents.block_on(async {
            let warden = support::join(&site).await;
            let guard = warden.lock("x").lease(MS(1_500)).acquire().await.unwrap();
            (warden, guard)
        });
        let mut all = Some((parents, warden, guard));
        let child = fork(|| {
            let (parents, warden, guard) = all.take().unwrap();
            i32::from(!brief(|| {
                drop(guard);
                drop(parents);
                drop(warden);
                true
            }))
        });
        assert_eq!(wait(child), 0, "{}", site.url());
        let (parents, _warden, guard) = all.take().unwrap();
        parents.block_on(async {
            let began = Instant::now();
            while began.elapsed() < MS(3_500) {
                assert!(guard.check(), "{}: {:?}", site.url(), guard.state());
                tokio::time::sleep(MS(20)).await;
            }
            guard.release().await.unwrap();
        });
    }
}

/// Children connect on their own, and hold and renew their own locks, while the parent holds its.
#[test]
fn c14_children_connect_on_their_own() {
    for site in sites() {
        let warden = blocking::Warden::connect(site.url()).unwrap();
        let held = warden.lock("parent").lease(MS(1_000)).acquire().unwrap();
        let url = site.url().to_owned();
        let children: Vec<i32> = (0..4)
            .map(|i| {
                let url = url.clone();
                fork(move || {
                    let Ok(warden) = blocking::Warden::connect(&url) else { return 1 };
                    if warden.lock("parent").no_wait().acquire().is_ok() {
                        return 2;
                    }
                    let lock = warden.lock(&format!("child{i}")).lease(MS(500));
                    let Ok(guard) = lock.acquire() else { return 3 };
                    let began = Instant::now();
                    while began.elapsed() < MS(size(4_000, 1_500)) {
                        if !guard.check() {
                            return 4;
                        }
                        std::thread::sleep(MS(10));
                    }
                    i32::from(guard.release().is_err()) * 5
                })
            })
            .collect();
        for child in children {
            assert_eq!(wait(child), 0, "{url}");
        }
        assert!(held.check(), "{url}: {:?}", held.state());
        held.release().unwrap();
    }
}

/// Forks at any moment, while other threads use the same warden: no child hangs on what they held.
#[test]
fn c14_forks_amid_calls() {
    for site in sites() {
        let warden = blocking::Warden::connect(site.url()).unwrap();
        let held = warden.lock("x").acquire().unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for i in 0..2 {
                let (warden, held, done) = (&warden, &held, &done);
                scope.spawn(move || {
                    let lock = warden.lock(&format!("busy{i}"));
                    while !done.load(Ordering::Relaxed) {
                        lock.acquire().unwrap().release().unwrap();
                        (0..200).for_each(|_| assert!(held.check()));
                    }
                });
            }
            for round in 0..size(300, 40) {
                let (inner, guard, url) = (&warden, &held, site.url());
                let child = fork(move || {
                    let code = steps(&[
                        &|| !guard.check(),
                        &|| inner.lock("z").no_wait().acquire().is_err(),
                        &|| inner.show("x").is_err(),
                    ]);
                    if code != 0 || round % 10 > 0 {
                        return code;
                    }
                    let Ok(own) = blocking::Warden::connect(url) else { return 10 };
                    match own.lock("own").acquire().map(blocking::Guard::release) {
                        Ok(Ok(())) => 0,
                        _ => 11,
                    }
                });
                assert_eq!(wait(child), 0, "{}: round {round}", site.url());
            }
            done.store(true, Ordering::Relaxed);
        });
        assert!(held.check());
        held.release().unwrap();
    }
}

/// A holder is killed whose child lives on, with copies of its sockets: as from another machine, the
/// lock is free after grace, not only when the child ends.
#[test]
fn c14_a_child_keeps_no_lock_of_its_parent_alive() {
    for site in sites() {
        let mut taker = Options::new(TAKER, site.url()).start();
        taker.acquire("k", "x", "");
        taker.tell("fork k");
        let child: i32 = taker.hear("forked k")[2].parse().unwrap();
        let settings = Settings::new().without_process_watch();
        let observer = blocking::Warden::with(settings, site.url()).unwrap();
        taker.process().kill9();
        let killed = Instant::now();
        let next = observer.lock("x").wait_for(Duration::from_secs(8)).acquire();
        // Nobody waits for it: it is this process's grandchild.
        kill(child);
        let guard = next.unwrap_or_else(|error| panic!("{}: {error}", site.url()));
        assert!(killed.elapsed() <= MS(4_500), "{}: {:?}", site.url(), killed.elapsed());
        guard.release().unwrap();
    }
}
