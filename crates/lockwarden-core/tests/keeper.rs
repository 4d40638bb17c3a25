//! The keeper alone: transitions of a handle, when it mends, what it renews, and that it rests.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests, though not in functions of one"
)]

use lockwarden_core::{
    Epoch, Rules,
    command::Absence,
    keeper::{Acknowledged, Action, HandleId, Keeper, Keeping, Loss, Mend, Risk, State},
    limits::{BEAT_MS, W_MS},
};
use proptest::{prelude::*, test_runner::RngSeed};

use std::num::NonZeroU64;

const T0: u64 = 1_700_000_000_000_000;
const MS: u64 = 1_000;

fn epoch(number: u64) -> Epoch {
    Epoch::new(&format!("{number}.s0"))
}

fn keeping(lease_ms: u64) -> Keeping {
    Keeping { lease_ms, grace_ms: W_MS, renew: true, most_ms: None }
}

fn said(sent_us: u64, lease_ms: u64, number: u64) -> Acknowledged {
    Acknowledged { sent_us, lease_ms, epoch: epoch(number) }
}

/// All that the keeper wants now. Beats are sent, and left unanswered.
fn polled(keeper: &mut Keeper, now_us: u64) -> Vec<Action> {
    let mut actions = Vec::new();
    while let Some(action) = keeper.poll(now_us) {
        if action == Action::Beat {
            keeper.beat_sent(now_us);
        }
        actions.push(action);
        assert!(actions.len() < 10_000, "it never comes to rest");
    }
    assert!(keeper.deadline_us().is_none_or(|at| at > now_us), "at rest, yet due");
    actions
}

fn states(actions: &[Action]) -> Vec<State> {
    let state = |action: &Action| match action {
        Action::Changed(_, state) => Some(*state),
        _ => None,
    };
    actions.iter().filter_map(state).collect()
}

fn beats(keeper: &mut Keeper, now_us: u64, number: u64) {
    polled(keeper, now_us);
    let id = keeper.beat_sent(now_us);
    keeper.beat_heard(now_us + MS, id, &epoch(number), now_us, 1);
}

/// A keeper with a link, one beat heard, and handle 1 granted for `lease_ms`, all at `T0`.
fn holding(lease_ms: u64) -> Keeper {
    let mut keeper = Keeper::default();
    keeper.link_up(T0);
    beats(&mut keeper, T0, 1);
    keeper.granted(T0 + MS, 1, keeping(lease_ms), said(T0, lease_ms, 1));
    keeper
}

#[test]
fn held_until_the_margins_of_beat_and_lease() {
    let mut keeper = holding(30_000);
    let end_us = T0 + (W_MS * 990 - 10 * MS);
    assert!(keeper.check(1, end_us - 1));
    assert!(!keeper.check(1, end_us), "W less 1 % and 10 ms after the beat left (R20)");
    let mut short = holding(1_000);
    assert!(short.check(1, T0 + 980 * MS - 1) && !short.check(1, T0 + 980 * MS));
    assert!(polled(&mut short, T0 + 2 * MS).is_empty());
    assert!(states(&polled(&mut keeper, T0 + 10 * MS)).is_empty());
    assert!(!keeper.check(2, T0), "an unknown handle");
}

/// G8: held, at risk for want of a beat, held again, at risk for want of a renewal, lost for good.
#[test]
fn held_at_risk_held_lost() {
    let mut keeper = holding(30_000);
    assert!(states(&polled(&mut keeper, T0 + 1_999 * MS)).is_empty());
    let at_risk = states(&polled(&mut keeper, T0 + 2_000 * MS));
    assert_eq!(at_risk, [State::AtRisk(Risk::BeatOverdue)]);
    assert!(keeper.check(1, T0 + 2_000 * MS), "at risk well before the end");
    beats(&mut keeper, T0 + 2_500 * MS, 1);
    assert_eq!(states(&polled(&mut keeper, T0 + 2_502 * MS)), [State::Held]);
    for second in 3..20 {
        beats(&mut keeper, T0 + second * 1_000 * MS, 1);
    }
    beats(&mut keeper, T0 + 20_000 * MS, 1);
    assert_eq!(keeper.state(1), Some(State::AtRisk(Risk::RenewalOverdue)));
    assert!(keeper.check(1, T0 + 20_002 * MS));
    let end_us = T0 + (30_000 * 990 - 10 * MS);
    for second in 21..30 {
        beats(&mut keeper, (T0 + second * 1_000 * MS).min(end_us - 2 * MS), 1);
    }
    assert!(keeper.check(1, end_us - 1) && !keeper.check(1, end_us));
    assert_eq!(states(&polled(&mut keeper, end_us)), [State::Lost(Loss::LeaseEnded)]);
    keeper.renewed(end_us, 1, said(end_us, 30_000, 1));
    assert!(!keeper.check(1, end_us), "lost is final");
    assert_eq!(keeper.state(1), Some(State::Lost(Loss::LeaseEnded)));
}

/// A loss is told when the lease ends even if nobody polled: the state is read from deadlines.
#[test]
fn a_pause_needs_no_timer() {
    let mut keeper = holding(5_000);
    let later_us = T0 + 3_600_000 * MS;
    assert!(!keeper.check(1, later_us));
    assert_eq!(keeper.state_at(1, later_us), Some(State::Lost(Loss::LeaseEnded)));
    keeper.renewed(later_us, 1, said(later_us, 5_000, 1));
    assert_eq!(keeper.state(1), Some(State::Lost(Loss::LeaseEnded)));
}

#[test]
fn lost_by_answer_and_by_revoke() {
    for loss in [Loss::NotHeld(Absence::Taken), Loss::Revoked, Loss::Cloned] {
        let mut keeper = holding(30_000);
        keeper.lost(1, loss);
        assert!(!keeper.check(1, T0 + 2 * MS));
        assert_eq!(states(&polled(&mut keeper, T0 + 2 * MS)), [State::Lost(loss)]);
        keeper.lost(1, Loss::LeaseEnded);
        assert!(states(&polled(&mut keeper, T0 + 3 * MS)).is_empty(), "the first reason stays");
    }
}

/// R6: a guarded renewal keeps the lock and gives no belief; it is repeated when the guard ends.
#[test]
fn guarded_is_no_belief() {
    let mut keeper = holding(30_000);
    let now_us = T0 + 500 * MS;
    keeper.epoch_seen(now_us, &epoch(2));
    assert!(!keeper.check(1, now_us), "R23");
    let actions = polled(&mut keeper, now_us);
    assert_eq!(states(&actions), [State::AtRisk(Risk::NewEpoch)]);
    assert!(actions.contains(&Action::Renew(vec![(1, 30_000)])));
    keeper.guarded(now_us + MS, 1, now_us, 30_000, 2_000);
    beats(&mut keeper, now_us + 2 * MS, 2);
    assert!(!keeper.check(1, now_us + 4 * MS));
    let renews = |action: &Action| matches!(action, Action::Renew(_));
    beats(&mut keeper, now_us + 1_000 * MS, 2);
    assert!(!polled(&mut keeper, now_us + 1_990 * MS).iter().any(renews));
    beats(&mut keeper, now_us + 1_999 * MS, 2);
    let again_us = now_us + 2_001 * MS;
    assert!(polled(&mut keeper, again_us).iter().any(renews));
    keeper.renewed(again_us + MS, 1, said(again_us, 30_000, 2));
    assert!(keeper.check(1, again_us + MS));
    assert_eq!(states(&polled(&mut keeper, again_us + MS)), [State::Held]);
}

/// R21, R23: a grant that is the first word of a new epoch is believed in as soon as a beat can come back, not only after
/// the next regular one; and the epoch's own beat needs none besides.
#[test]
fn a_new_epoch_has_a_beat_at_once() {
    let mut keeper = holding(30_000);
    let now_us = T0 + 100 * MS;
    keeper.granted(now_us, 2, keeping(30_000), said(now_us, 30_000, 2));
    assert!(!keeper.check(2, now_us));
    assert!(polled(&mut keeper, now_us).contains(&Action::Beat), "at once");
    let id = keeper.beat_sent(now_us);
    keeper.beat_heard(now_us + MS, id, &epoch(2), now_us, 1);
    assert!(keeper.check(2, now_us + MS));
    assert!(!polled(&mut keeper, now_us + 2 * MS).contains(&Action::Beat));
}

/// R21: beats of a new link count only after an acknowledgement on it; and, whichever of the two
/// comes first, the handle is held as soon as both are there (G8).
#[test]
fn a_new_link_needs_beat_and_renewal() {
    for beat_first in [true, false] {
        let mut keeper = holding(30_000);
        keeper.link_down();
        let up_us = T0 + 2_500 * MS;
        keeper.link_up(up_us);
        let late_us = T0 + 3_200 * MS;
        if beat_first {
            beats(&mut keeper, up_us, 1);
            assert!(keeper.check(1, up_us + MS) && !keeper.check(1, late_us), "the old beat only");
            keeper.renewed(up_us + 2 * MS, 1, said(up_us, 30_000, 1));
        } else {
            polled(&mut keeper, up_us);
            let id = keeper.beat_sent(up_us);
            keeper.renewed(up_us + MS, 1, said(up_us, 30_000, 1));
            assert!(!keeper.check(1, up_us + MS));
            keeper.beat_heard(up_us + 2 * MS, id, &epoch(1), up_us, 1);
        }
        assert!(keeper.check(1, late_us));
        polled(&mut keeper, up_us + 3 * MS);
        assert_eq!(keeper.state(1), Some(State::Held), "beat first: {beat_first}");
    }
}

/// R22: a grant by message counts from the last beat before it; with too little left, or without a
/// beat, nothing is kept.
#[test]
fn granted_by_message() {
    let mut keeper = holding(30_000);
    let now_us = T0 + 1_000 * MS;
    assert!(keeper.granted_by_message(now_us, 2, keeping(30_000), W_MS, &epoch(1)));
    assert!(keeper.check(2, T0 + 2_959 * MS) && !keeper.check(2, T0 + 2_960 * MS));
    let late_us = T0 + 1_961 * MS;
    assert!(!keeper.granted_by_message(late_us, 3, keeping(30_000), W_MS, &epoch(1)));
    assert!(!keeper.check(3, late_us) && keeper.state(3).is_none());
    keeper.link_down();
    keeper.link_up(now_us);
    assert!(!keeper.granted_by_message(now_us, 4, keeping(30_000), W_MS, &epoch(1)));
    beats(&mut keeper, now_us, 1);
    assert!(!keeper.granted_by_message(now_us, 5, keeping(30_000), W_MS, &epoch(2)));
}

#[test]
fn mends() {
    let mends = |actions: Vec<Action>| {
        actions.into_iter().find_map(|action| match action {
            Action::Mend(mend) => Some(mend),
            _ => None,
        })
    };
    // A beat without an answer for W, also when the machine slept meanwhile.
    let mut keeper = holding(30_000);
    polled(&mut keeper, T0 + 1_000 * MS);
    assert_eq!(mends(polled(&mut keeper, T0 + 3_999 * MS)), None);
    assert_eq!(mends(polled(&mut keeper, T0 + 4_000 * MS)), Some(Mend::BeatUnanswered));
    assert_eq!(mends(polled(&mut keeper, T0 + 9_000 * MS)), None, "once per link");
    // A jump of the server's clock, either way; no jump where only the network was slow.
    for (server_us, delay_us, expected) in [
        (T0 + 1_000 * MS, 0, None),
        (T0 + 1_490 * MS, 0, None),
        (T0 + 1_600 * MS, 0, Some(Mend::ClockJumped)),
        (T0 + 300 * MS, 0, Some(Mend::ClockJumped)),
        (T0 + 2_900 * MS, 1_900 * MS, None),
    ] {
        let mut keeper = holding(30_000);
        let sent_us = T0 + 1_000 * MS;
        polled(&mut keeper, sent_us);
        let id = keeper.beat_sent(sent_us);
        keeper.beat_heard(sent_us + delay_us, id, &epoch(1), server_us, 1);
        let found = mends(polled(&mut keeper, sent_us + delay_us + 1));
        assert_eq!(found, expected, "{}", server_us - T0);
    }
    // Nobody listens on our channel: the beat does not count either (R19).
    let mut keeper = holding(30_000);
    let sent_us = T0 + 1_000 * MS;
    polled(&mut keeper, sent_us);
    let id = keeper.beat_sent(sent_us);
    keeper.beat_heard(sent_us, id, &epoch(1), sent_us, 0);
    assert!(!keeper.check(1, T0 + 2_960 * MS));
    assert_eq!(mends(polled(&mut keeper, sent_us)), Some(Mend::Unsubscribed));
    // An answer of a link that is gone says nothing.
    keeper.link_down();
    keeper.link_up(sent_us);
    keeper.beat_heard(sent_us, id, &epoch(1), sent_us, 1);
    assert!(!keeper.check(1, T0 + 2_960 * MS));
}

/// Renewals are due at a third of the lease, once until answered; a failed one comes back soon; a
/// forgotten handle never does (G8).
#[test]
fn renewals() {
    let renewed = |keeper: &mut Keeper, now_us| {
        let action = polled(keeper, now_us).into_iter().find_map(|action| match action {
            Action::Renew(handles) => Some(handles),
            _ => None,
        });
        action.unwrap_or_default()
    };
    let mut keeper = holding(3_000);
    assert_eq!(renewed(&mut keeper, T0 + 1_000 * MS), []);
    assert_eq!(renewed(&mut keeper, T0 + 1_001 * MS), [(1, 3_000)]);
    assert_eq!(renewed(&mut keeper, T0 + 1_200 * MS), []);
    keeper.renewal_failed(T0 + 1_200 * MS, 1);
    assert_eq!(renewed(&mut keeper, T0 + 1_450 * MS), [(1, 3_000)]);
    keeper.forget(1);
    assert_eq!(renewed(&mut keeper, T0 + 2_600 * MS), []);
    assert!(keeper.is_empty() && !keeper.check(1, T0 + 1_500 * MS));
}

/// A longer lease counts when it is acknowledged, a shorter one from when its renewal leaves: it
/// may be carried out long before its answer is heard, and the key end with it (G1). An answer to
/// an earlier renewal changes nothing about that.
#[test]
fn another_lease() {
    let mut keeper = holding(30_000);
    let first_us = T0 + 400 * MS;
    keeper.extend(first_us, 1, 30_000);
    assert!(polled(&mut keeper, first_us).contains(&Action::Renew(vec![(1, 30_000)])));
    let now_us = T0 + 500 * MS;
    keeper.extend(now_us, 1, 1_000);
    assert!(polled(&mut keeper, now_us).contains(&Action::Renew(vec![(1, 1_000)])));
    keeper.renewed(now_us + MS, 1, said(first_us, 30_000, 1));
    let end_us = now_us + 980 * MS;
    assert!(keeper.check(1, end_us - 1) && !keeper.check(1, end_us));
    keeper.renewed(now_us + 2 * MS, 1, said(now_us, 1_000, 1));
    assert_eq!(keeper.lease_end_us(1), end_us);
    let mut keeper = holding(3_000);
    keeper.extend(now_us, 1, 60_000);
    polled(&mut keeper, now_us);
    assert!(keeper.lease_end_us(1) < T0 + 3_000 * MS);
    keeper.renewed(now_us + MS, 1, said(now_us, 60_000, 1));
    assert!(keeper.lease_end_us(1) > T0 + 50_000 * MS);
}

/// R33: no renewal reaches beyond the ceiling; near it there is none any more, and at it the handle is lost, for a
/// reason of its own.
#[test]
fn held_at_most() {
    let mut keeper = Keeper::default();
    keeper.link_up(T0);
    beats(&mut keeper, T0, 1);
    let most = Keeping { most_ms: NonZeroU64::new(10_000), ..keeping(4_000) };
    keeper.granted(T0 + MS, 1, most, said(T0, 4_000, 1));
    let (mut asked, mut changes) = (Vec::new(), Vec::new());
    for ms in (2..10_100).step_by(10) {
        let now_us = T0 + ms * MS;
        for action in polled(&mut keeper, now_us) {
            match action {
                Action::Renew(all) => {
                    for (id, lease_ms) in all {
                        assert!(now_us + lease_ms * MS <= T0 + 10_000 * MS, "beyond the ceiling");
                        asked.push(lease_ms);
                        keeper.renewed(now_us + MS, id, said(now_us, lease_ms, 1));
                    }
                }
                Action::Changed(_, state) => changes.push((ms / 100, state)),
                _ => {}
            }
        }
        if ms % 500 == 2 {
            beats(&mut keeper, now_us, 1);
        }
    }
    // The last that is whole, and one for the rest.
    let (last, whole) = asked.split_last().unwrap();
    assert!(
        whole.iter().all(|lease_ms| *lease_ms == 4_000) && (1..4_000).contains(last),
        "{asked:?}"
    );
    let states: Vec<State> = changes.iter().map(|(_, state)| *state).collect();
    assert_eq!(states, [State::AtRisk(Risk::CeilingNear), State::Lost(Loss::HeldAtMost)]);
    assert!((98..=100).contains(&changes[1].0), "{changes:?}");
}

/// A new link, or another epoch, must renew even near the ceiling (R21, R23): for the rest. The same grant told again
/// does not move the ceiling, and without a ceiling a lost lease is just that.
#[test]
fn held_at_most_on_a_new_link() {
    let mut keeper = Keeper::default();
    keeper.link_up(T0);
    beats(&mut keeper, T0, 1);
    let most = Keeping { most_ms: NonZeroU64::new(5_000), ..keeping(30_000) };
    keeper.granted(T0 + MS, 1, most, said(T0, 5_000, 1));
    assert_eq!(keeper.rest_ms(1, T0), Some(5_000));
    keeper.link_down();
    let now_us = T0 + 2_000 * MS;
    keeper.link_up(now_us);
    keeper.granted(now_us, 1, most, said(now_us, 3_000, 1));
    assert_eq!(keeper.rest_ms(1, now_us), Some(3_000));
    keeper.link_down();
    keeper.link_up(now_us + MS);
    let renewed = |action: Action| match action {
        Action::Renew(all) => Some(all),
        _ => None,
    };
    let all: Vec<_> = polled(&mut keeper, now_us + MS).into_iter().filter_map(renewed).collect();
    assert_eq!(all, [[(1, 2_999)]]);
    // At the very end there is nothing left to renew.
    keeper.link_down();
    keeper.link_up(T0 + 5_000 * MS);
    assert!(!polled(&mut keeper, T0 + 5_000 * MS).iter().any(|it| matches!(it, Action::Renew(_))));
    assert_eq!(keeper.state(1), Some(State::Lost(Loss::HeldAtMost)));
}

/// Work must stop by the last answer plus grace, guarded answers included, and by the lease.
#[test]
fn stop_by() {
    let mut keeper = Keeper::default();
    keeper.link_up(T0);
    beats(&mut keeper, T0, 1);
    let long = Keeping { grace_ms: 10_000, ..keeping(30_000) };
    keeper.granted(T0 + MS, 1, long, said(T0, 30_000, 1));
    assert_eq!(keeper.stop_by_us(1), T0 + 10_000 * 990 - 10 * MS);
    keeper.guarded(T0 + 600 * MS, 1, T0 + 500 * MS, 30_000, 1);
    assert_eq!(keeper.stop_by_us(1), T0 + 500 * MS + 10_000 * 990 - 10 * MS);
    let mut short = holding(1_000);
    assert_eq!(short.stop_by_us(1), short.lease_end_us(1));
    short.forget(1);
    assert_eq!(short.stop_by_us(1), 0);
}

/// A hundred thousand handles: renewed in batches, each once per lease/3; a poll that has nothing
/// to do looks at one deadline, not at the handles.
#[test]
fn many_handles() {
    const HANDLES: u64 = 100_000;
    let mut keeper = Keeper::default();
    keeper.link_up(T0);
    beats(&mut keeper, T0, 1);
    let (mut granted, mut renewals, mut batches) = (0, 0, 0);
    for ms in 0..19_000 {
        let now_us = T0 + ms * MS;
        // Granted over eight seconds and a half, as real ones would be.
        let until = (granted + 12).min(HANDLES);
        for id in granted..until {
            keeper.granted(now_us, id, keeping(30_000), said(now_us, 30_000, 1));
        }
        granted = until;
        while let Some(action) = keeper.poll(now_us) {
            match action {
                Action::Beat => {
                    let id = keeper.beat_sent(now_us);
                    keeper.beat_heard(now_us, id, &epoch(1), now_us, 1);
                }
                Action::Renew(handles) => {
                    assert!(handles.len() <= 256);
                    batches += 1;
                    renewals += handles.len() as u64;
                    for (id, lease_ms) in handles {
                        keeper.renewed(now_us, id, said(now_us, lease_ms, 1));
                    }
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(keeper.deadline_us().unwrap() > now_us);
    }
    assert_eq!(renewals, HANDLES, "each once in the nineteen seconds");
    assert!(batches <= HANDLES / 200, "{batches} batches");
    assert!((0..HANDLES).all(|id| keeper.state(id) == Some(State::Held)));
}

/// What may reach a keeper, in any order, late or twice.
#[derive(Clone, Debug)]
enum Input {
    Up,
    Down,
    Beat { answered_after: u64, epoch: u64, subscribers: u64, skew_ms: i64 },
    Granted(HandleId, u64),
    ByMessage(HandleId, u64),
    Renewed(HandleId, u64),
    Guarded(HandleId, u64),
    Failed(HandleId),
    Lost(HandleId),
    Forget(HandleId),
    Extend(HandleId, u64),
    Epoch(u64),
    Unsubscribed,
}

fn input() -> impl Strategy<Value = Input> {
    let id = || 1..4_u64;
    let lease = || 100..40_000_u64;
    prop_oneof![
        2 => Just(Input::Up),
        1 => Just(Input::Down),
        8 => (0..2_000_000_u64, 1..3_u64, 0..8_u64, -800..800_i64).prop_map(|(answered_after, epoch, some, skew_ms)| {
            Input::Beat { answered_after, epoch, subscribers: some.min(1), skew_ms: skew_ms / 4 }
        }),
        3 => (id(), lease()).prop_map(|(id, lease)| Input::Granted(id, lease)),
        3 => (id(), lease()).prop_map(|(id, lease)| Input::ByMessage(id, lease)),
        4 => (id(), lease()).prop_map(|(id, lease)| Input::Renewed(id, lease)),
        2 => (id(), lease()).prop_map(|(id, lease)| Input::Guarded(id, lease)),
        1 => id().prop_map(Input::Failed),
        1 => id().prop_map(Input::Lost),
        1 => id().prop_map(Input::Forget),
        1 => (id(), lease()).prop_map(|(id, lease)| Input::Extend(id, lease)),
        1 => (1..3_u64).prop_map(Input::Epoch),
        1 => Just(Input::Unsubscribed),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2_000, rng_seed: RngSeed::Fixed(0x10c4), failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Whatever comes: after polling the keeper rests until a later moment; a check that is true
    /// has a live state; lost is final; a check never outlives the lease or W after the last beat.
    #[test]
    fn rests_and_never_revives(
        inputs in prop::collection::vec((input(), 0..1_500_000_u64), 1..60),
    ) {
        let mut keeper = Keeper::new(Rules::ALL);
        let mut now_us = T0;
        let mut lost: Vec<HandleId> = Vec::new();
        let mut last_beat_us = 0;
        for (input, wait_us) in inputs {
            let sent_us = now_us.saturating_sub(20 * MS);
            match input {
                Input::Up => keeper.link_up(now_us),
                Input::Down => keeper.link_down(),
                Input::Beat { answered_after, epoch: number, subscribers, skew_ms } => {
                    polled(&mut keeper, now_us);
                    let id = keeper.beat_sent(now_us);
                    last_beat_us = now_us;
                    now_us += answered_after;
                    let server_us = now_us.saturating_add_signed(skew_ms * 1_000);
                    keeper.beat_heard(now_us, id, &epoch(number), server_us, subscribers);
                }
                Input::Granted(id, lease) => {
                    lost.retain(|it| *it != id);
                    keeper.granted(now_us, id, keeping(lease), said(sent_us, lease, 1));
                }
                Input::ByMessage(id, lease) => {
                    if keeper.granted_by_message(now_us, id, keeping(lease), lease, &epoch(1)) {
                        lost.retain(|it| *it != id);
                    }
                }
                Input::Renewed(id, lease) => keeper.renewed(now_us, id, said(sent_us, lease, 1)),
                Input::Guarded(id, lease) => keeper.guarded(now_us, id, sent_us, lease, 700),
                Input::Failed(id) => keeper.renewal_failed(now_us, id),
                Input::Lost(id) => keeper.lost(id, Loss::Revoked),
                Input::Forget(id) => {
                    keeper.forget(id);
                    lost.retain(|it| *it != id);
                }
                Input::Extend(id, lease) => keeper.extend(now_us, id, lease),
                Input::Epoch(number) => {
                    keeper.epoch_seen(now_us, &epoch(number));
                }
                Input::Unsubscribed => keeper.unsubscribed(),
            }
            for action in polled(&mut keeper, now_us) {
                if let Action::Changed(id, State::Lost(_)) = action {
                    prop_assert!(!lost.contains(&id), "lost twice");
                    lost.push(id);
                }
            }
            now_us += wait_us;
            for id in 1..4 {
                if keeper.check(id, now_us) {
                    let state = keeper.state_at(id, now_us);
                    prop_assert!(!matches!(state, None | Some(State::Lost(_))));
                    prop_assert!(!lost.contains(&id) && now_us < keeper.lease_end_us(id));
                    prop_assert!(now_us < last_beat_us + W_MS * MS);
                    prop_assert!(now_us <= keeper.stop_by_us(id));
                }
                // G8: while only a beat or the guard is wanting, a held state is not shown.
                if keeper.state_at(id, now_us) == Some(State::Held) {
                    prop_assert!(keeper.check(id, now_us), "held, and the check denies it");
                }
            }
            polled(&mut keeper, now_us);
        }
        prop_assert!(BEAT_MS * 3 == W_MS);
    }
}
