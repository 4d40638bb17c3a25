//! When the command must be stopped: pure, so that each case can be tested.

use crate::args::{OnLost, TERM_S};
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// What is to be done to the command now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Do {
    /// Nothing.
    Nothing,
    /// SIGTERM.
    Terminate,
    /// SIGKILL.
    Kill,
}

/// Decides when the command is stopped, and remembers why.
#[derive(Debug)]
pub(super) struct Stopping {
    on_lost: OnLost,
    /// The most that was ever left until the lock could be another's.
    longest: Duration,
    kill_after: Duration,
    /// SIGTERM, or SIGINT, was passed on.
    asked: bool,
    /// The command was told to end by someone; by then it must.
    kill_at: Option<Instant>,
    lost_at: Option<Instant>,
    terminated: bool,
    killed: bool,
    for_loss: bool,
}

impl Stopping {
    /// By these settings.
    pub(super) fn new(on_lost: OnLost, kill_after: Duration) -> Stopping {
        Stopping {
            on_lost,
            longest: Duration::ZERO,
            kill_after,
            asked: false,
            kill_at: None,
            lost_at: None,
            terminated: false,
            killed: false,
            for_loss: false,
        }
    }

    /// How long before the lock may be another's SIGTERM comes. Answers come every third of the
    /// lease, and every second (beats), so with a short lease or grace 2 s before the end would be
    /// all the time; and a lock that was handed over has a short lease until its first renewal,
    /// which is under way (R27).
    fn margin(&self) -> Duration {
        Duration::from_secs(TERM_S).min(self.longest / 4)
    }

    /// A signal was passed on to the command (C43).
    pub(super) fn passed_on(&mut self, now: Instant, signal: Signal) {
        if signal != Signal::TERM && signal != Signal::INT {
            return;
        }
        // An interrupt alone may be part of the command's work (a prompt's ^C).
        if signal == Signal::TERM || self.asked {
            self.kill_at.get_or_insert(now + self.kill_after);
        }
        self.asked = true;
    }

    /// What to do now, and when to ask again at the latest. `lost`: it is known to be; `left`: for
    /// how long nobody else can hold the lock, as far as we know.
    pub(super) fn next(&mut self, now: Instant, lost: bool, left: Duration) -> (Do, Duration) {
        const LONG: Duration = Duration::from_secs(3_600);
        self.longest = self.longest.max(left);
        if self.killed {
            return (Do::Nothing, LONG);
        }
        let asked = self.kill_at.map_or(LONG, |at| at.saturating_duration_since(now));
        if asked.is_zero() {
            self.killed = true;
            return (Do::Kill, LONG);
        }
        let loss_in = match self.on_lost {
            OnLost::Warn => return (Do::Nothing, asked),
            OnLost::Kill if lost => Duration::ZERO,
            OnLost::Kill => left,
            OnLost::Term => {
                if lost {
                    self.lost_at.get_or_insert(now);
                }
                let term = Duration::from_secs(TERM_S);
                let kill_at = self.lost_at.map(|at| at + term);
                kill_at.map_or(left, |at| left.min(at.saturating_duration_since(now)))
            }
        };
        if loss_in.is_zero() {
            (self.killed, self.for_loss) = (true, true);
            return (Do::Kill, LONG);
        }
        if self.on_lost == OnLost::Kill || self.terminated {
            return (Do::Nothing, loss_in.min(asked));
        }
        if lost || left <= self.margin() {
            (self.terminated, self.for_loss) = (true, true);
            return (Do::Terminate, loss_in.min(asked));
        }
        (Do::Nothing, (left - self.margin()).min(asked))
    }

    /// Was it stopped because the lock was lost, or about to be?
    pub(super) fn for_loss(&self) -> bool {
        self.for_loss
    }

    /// Does a loss stop the command at all?
    pub(super) fn stops(&self) -> bool {
        self.on_lost != OnLost::Warn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn stopping(on_lost: OnLost) -> Stopping {
        Stopping::new(on_lost, 10 * S)
    }

    #[test]
    fn term_comes_two_seconds_before_the_end_and_kill_at_it() {
        let (mut stopping, now) = (stopping(OnLost::Term), Instant::now());
        assert_eq!(stopping.next(now, false, 10 * S), (Do::Nothing, 8 * S));
        assert_eq!(stopping.next(now + 8 * S, false, 2 * S), (Do::Terminate, 2 * S));
        assert!(stopping.for_loss());
        // The store is back: it must end all the same, but the end has moved.
        assert_eq!(stopping.next(now + 9 * S, false, 9 * S), (Do::Nothing, 9 * S));
        assert_eq!(stopping.next(now + 18 * S, false, Duration::ZERO).0, Do::Kill);
        assert_eq!(stopping.next(now + 19 * S, true, Duration::ZERO).0, Do::Nothing);
    }

    #[test]
    fn a_revoked_lock_terminates_at_once_and_kills_soon() {
        let (mut stopping, now) = (stopping(OnLost::Term), Instant::now());
        assert_eq!(stopping.next(now, true, 9 * S), (Do::Terminate, 2 * S));
        assert_eq!(stopping.next(now + S, true, 8 * S), (Do::Nothing, S));
        assert_eq!(stopping.next(now + 2 * S, true, 7 * S).0, Do::Kill);
        let mut late = super::tests::stopping(OnLost::Term);
        assert_eq!(late.next(now, true, S / 2), (Do::Terminate, S / 2));
    }

    #[test]
    fn kill_waits_for_the_last_moment() {
        let (mut stopping, now) = (stopping(OnLost::Kill), Instant::now());
        assert_eq!(stopping.next(now, false, S / 10), (Do::Nothing, S / 10));
        assert!(!stopping.for_loss());
        assert_eq!(stopping.next(now, true, 9 * S).0, Do::Kill);
        assert!(stopping.for_loss());
    }

    #[test]
    fn warn_does_nothing() {
        let mut stopping = stopping(OnLost::Warn);
        assert_eq!(stopping.next(Instant::now(), true, Duration::ZERO).0, Do::Nothing);
        assert!(!stopping.for_loss());
    }

    /// With a short lease, or one that was handed over (R27), the margin must not be all there is.
    #[test]
    fn what_is_short_from_the_start_has_a_short_margin() {
        let now = Instant::now();
        let mut short = stopping(OnLost::Term);
        assert_eq!(short.next(now, false, S), (Do::Nothing, S * 3 / 4));
        assert_eq!(short.next(now, false, S / 2), (Do::Nothing, S / 4));
        assert_eq!(short.next(now, false, S / 4).0, Do::Terminate);
        let mut handed = stopping(OnLost::Term);
        assert_eq!(handed.next(now, false, 2 * S).0, Do::Nothing);
        assert_eq!(handed.next(now, false, 9 * S), (Do::Nothing, 7 * S));
        assert_eq!(handed.next(now, false, 2 * S).0, Do::Terminate);
    }

    /// C43: the grace of a stubborn command begins with SIGTERM, or with the second interrupt.
    #[test]
    fn c43_a_stubborn_command_is_killed() {
        let now = Instant::now();
        let mut term = stopping(OnLost::Term);
        term.passed_on(now, Signal::TERM);
        assert_eq!(term.next(now, false, 30 * S), (Do::Nothing, 10 * S));
        // A second one does not begin it anew.
        term.passed_on(now + 5 * S, Signal::TERM);
        assert_eq!(term.next(now + 10 * S, false, 30 * S).0, Do::Kill);
        assert!(!term.for_loss());
        let mut interrupt = stopping(OnLost::Term);
        interrupt.passed_on(now, Signal::INT);
        interrupt.passed_on(now, Signal::HUP);
        assert_eq!(interrupt.next(now + 20 * S, false, 30 * S).0, Do::Nothing);
        interrupt.passed_on(now + 20 * S, Signal::INT);
        assert_eq!(interrupt.next(now + 30 * S, false, 30 * S).0, Do::Kill);
    }
}
