//! Replies and messages are alike if they differ in a few milliseconds only.

use lockwarden_core::{
    Message, Reply,
    command::{HoldState, HolderView, Reason, RecordView},
};

/// How far two clocks that were read in one script may be apart: the server's process may have been
/// kept waiting in between.
pub(crate) const TOLERANCE_MS: u64 = 20;

fn alike(actual: &mut u64, expected: u64) {
    if actual.abs_diff(expected) <= TOLERANCE_MS {
        *actual = expected;
    }
}

fn alike_option(actual: &mut Option<u64>, expected: Option<u64>) {
    if let (Some(actual), Some(expected)) = (actual, expected) {
        alike(actual, expected);
    }
}

fn alike_holder(actual: &mut Option<HolderView>, expected: Option<&HolderView>) {
    if let (Some(actual), Some(expected)) = (actual, expected) {
        alike_option(&mut actual.ttl_ms, expected.ttl_ms);
        if let (Some(actual), Some(expected)) = (&mut actual.record, &expected.record) {
            alike(&mut actual.held_ms, expected.held_ms);
            alike_cooling(actual, expected);
        }
    }
}

/// What cools has the rest of its time for a lease, also where it was revoked after it was left.
fn alike_cooling(actual: &mut RecordView, expected: &RecordView) {
    alike(&mut actual.least_left_ms, expected.least_left_ms);
    if matches!(expected.state, HoldState::Cooling | HoldState::Revoked) {
        alike(&mut actual.lease_ms, expected.lease_ms);
    }
}

/// The reply with the expected milliseconds wherever they are nearly the same.
pub(crate) fn alike_reply(mut actual: Reply, expected: &Reply) -> Reply {
    match (&mut actual, expected) {
        (Reply::Refused(actual), Reply::Refused(expected)) => {
            if let (Reason::Guard { guard_ms: actual }, Reason::Guard { guard_ms: expected }) =
                (&mut actual.reason, expected.reason)
            {
                alike(actual, expected);
            }
            alike_holder(&mut actual.holder, expected.holder.as_ref());
            for ((_, actual), (_, expected)) in actual.others.iter_mut().zip(&expected.others) {
                let mut other = Some(actual.clone());
                alike_holder(&mut other, Some(expected));
                if let Some(other) = other {
                    *actual = other;
                }
            }
        }
        (Reply::Guarded { guard_ms: actual, .. }, Reply::Guarded { guard_ms: expected, .. }) => {
            alike(actual, *expected);
        }
        (
            Reply::Extended { lease_ms: actual, guard_ms: actual_guard, .. },
            Reply::Extended { lease_ms: expected, guard_ms: expected_guard, .. },
        ) => {
            alike(actual, *expected);
            alike(actual_guard, *expected_guard);
        }
        (Reply::Revoked { after_ms: actual }, Reply::Revoked { after_ms: expected }) => {
            alike(actual, *expected);
        }
        (Reply::Deadlock(actual), Reply::Deadlock(expected)) => {
            for (actual, expected) in actual.iter_mut().zip(expected) {
                alike(&mut actual.held_ms, expected.held_ms);
            }
        }
        (Reply::Shown(actual), Reply::Shown(expected)) => {
            alike_holder(&mut actual.holder, expected.holder.as_ref());
            for ((actual, _), (expected, _)) in actual.beside.iter_mut().zip(&expected.beside) {
                let mut other = Some(actual.clone());
                alike_holder(&mut other, Some(expected));
                if let Some(other) = other {
                    *actual = other;
                }
            }
            for (actual, expected) in actual.queue.iter_mut().zip(&expected.queue) {
                alike(&mut actual.waited_ms, expected.waited_ms);
                alike_option(&mut actual.left_ms, expected.left_ms);
            }
        }
        _ => {}
    }
    actual
}

pub(crate) fn alike_message(mut actual: Message, expected: &Message) -> Message {
    match (&mut actual, expected) {
        (Message::First { holder: actual, .. }, Message::First { holder: expected, .. }) => {
            alike_option(&mut actual.ttl_ms, expected.ttl_ms);
            if let (Some(actual), Some(expected)) = (&mut actual.record, &expected.record) {
                alike(&mut actual.held_ms, expected.held_ms);
                alike_cooling(actual, expected);
            }
        }
        (
            Message::Revoked { after_ms: actual, .. },
            Message::Revoked { after_ms: expected, .. },
        ) => {
            alike(actual, *expected);
        }
        _ => {}
    }
    actual
}
