//! Forks are noticed: a child holds nothing of its parent's (R24).

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

/// What runs around a fork.
pub(crate) type Handler = extern "C" fn();

/// Runs these around every fork from now on: before it, and after it in the parent and in the child. False:
/// the system has no room for them. What runs in the child may do only what is allowed there: another thread
/// may have held any lock.
#[expect(unsafe_code, reason = "there is no safe interface to pthread_atfork")]
pub(crate) fn watch(before: Option<Handler>, parent: Option<Handler>, child: Handler) -> bool {
    let plain = |handler: Handler| handler as unsafe extern "C" fn();
    // SAFETY: the handlers are functions of this program that live as long as it does, take and return
    // nothing, and do not unwind.
    unsafe { libc::pthread_atfork(before.map(plain), parent.map(plain), Some(plain(child))) == 0 }
}

/// Another number in each process that a fork made. Unlike a pid it costs no system call, so that it can be
/// asked whenever a caller touches a warden. A child that was made around the C library, by a bare `clone`, is
/// not told from its parent.
pub(crate) fn generation() -> u32 {
    const UNKNOWN: u8 = 0;
    const WATCHED: u8 = 1;
    const REFUSED: u8 = 2;
    static GENERATION: AtomicU32 = AtomicU32::new(0);
    // No lock, which another thread may have in hand when a child is forked. If two come at once the forks
    // are counted twice.
    static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);
    extern "C" fn count() {
        GENERATION.fetch_add(1, Ordering::Relaxed);
    }
    let mut state = STATE.load(Ordering::Acquire);
    if state == UNKNOWN {
        state = if watch(None, None, count) { WATCHED } else { REFUSED };
        STATE.store(state, Ordering::Release);
    }
    if state == WATCHED { GENERATION.load(Ordering::Relaxed) } else { std::process::id() }
}
