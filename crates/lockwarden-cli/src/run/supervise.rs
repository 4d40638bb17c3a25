//! While the command runs: signals go to it, its end comes to us, and it is stopped before the lock
//! can be another's.

use super::{
    command::{self, Change, Command, End, Left},
    names::Names,
    signals::Signals,
    stopping::{Do, Stopping},
    terminal::{Stop, Terminal},
    watcher::Watcher,
};
use crate::{
    args::{OnRecall, RunArgs},
    exit::Code,
    failure::Failure,
    output::{self, escaped, say, span},
};
use lockwarden::{Error, Guard, Party, Risk, State, Warden};
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// How often the watcher is told by when the command must have ended.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// What is held while the command runs.
pub(super) struct Held<'a> {
    pub(super) warden: &'a Warden,
    pub(super) names: &'a Names,
    pub(super) guard: Guard,
}

/// Starts the command and returns the exit code, when the command and all of its group have ended
/// and the lock is released.
pub(super) async fn supervise(
    args: &RunArgs,
    held: Held<'_>,
    mut command: Command,
    watcher: &mut Watcher,
    signals: &mut Signals,
) -> Result<i32, Failure> {
    let Held { warden, names, guard } = held;
    let stopping = Stopping::new(args.on_lost, args.kill_after);
    let mut terminal = Terminal::new();
    terminal.lend_at_start(command.group());
    if stopping.stops() {
        // Before the start: we may be frozen at any moment after it.
        watcher.must_end_in(guard.must_stop_in());
    }
    command.start(guard.fence(), guard.token().as_bytes());
    let mut running = Running {
        names,
        guard: &guard,
        command: &command,
        watcher,
        terminal: &mut terminal,
        stopping,
        seen: State::Held,
        on_recall: args.on_recall,
        is_stopped: false,
    };
    let end = running.until_end(signals).await;
    let for_loss = running.stopped_for_loss(end);
    terminal.take_back();
    let exec_error = command.exec_error();
    end_group(command, watcher).await;
    let code = match exec_error {
        Some(error) => {
            let program = escaped(&args.command[0].to_string_lossy());
            say(format_args!("cannot run {program}: {error}"));
            command::exec_code(error.raw_os_error().unwrap_or(0)).number()
        }
        None if for_loss => Code::Lost.number(),
        None => end.code(),
    };
    release(Held { warden, names, guard }, args.lease, for_loss).await;
    Ok(code)
}

/// The command while it runs.
struct Running<'a> {
    names: &'a Names,
    guard: &'a Guard,
    command: &'a Command,
    watcher: &'a mut Watcher,
    terminal: &'a mut Terminal,
    stopping: Stopping,
    /// The state of the lock that was told last.
    seen: State,
    on_recall: OnRecall,
    /// The command is stopped, as far as we know.
    is_stopped: bool,
}

impl Running<'_> {
    async fn until_end(&mut self, signals: &mut Signals) -> End {
        loop {
            if let Some(end) = self.command.ended() {
                return end;
            }
            let pause = self.look_after_lock();
            tokio::select! {
                biased;
                signal = signals.next_or_child() => match signal {
                    Some(signal) => self.pass_on(signal),
                    None => self.look_after_children(),
                },
                state = self.guard.changed(self.seen) => self.tell(state),
                Some(by) = self.guard.recalled() => self.recalled(&by),
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Stops the command if it is time; returns when to look again.
    fn look_after_lock(&mut self) -> Duration {
        let state = self.guard.state();
        if state != self.seen {
            self.tell(state);
        }
        let left = self.guard.must_stop_in();
        if self.stopping.stops() {
            self.watcher.must_end_in(left);
        }
        let lost = matches!(state, State::Lost(_));
        let (action, again) = self.stopping.next(Instant::now(), lost, left);
        match action {
            Do::Nothing => {}
            Do::Terminate => {
                say("the command is told to end (SIGTERM)");
                self.command.signal(Signal::TERM);
            }
            Do::Kill => {
                let why = if self.stopping.for_loss() { "lock" } else { "time to end" };
                say(format_args!("the command's {why} is over: it is killed (SIGKILL)"));
                self.command.signal(Signal::KILL);
            }
        }
        // Each answer of the store moves the end, and the watcher wants to hear of it in time.
        let tell = (left / 4).clamp(Duration::from_millis(5), TELL_EVERY);
        if self.stopping.stops() { again.min(tell) } else { again }
    }

    /// Was it the loss of the lock that ended the command? The watcher, too, may have killed it,
    /// while we were frozen.
    fn stopped_for_loss(&self, end: End) -> bool {
        let by_watcher = self.stopping.stops()
            && end == End::Signalled(Signal::KILL.as_raw())
            && self.guard.must_stop_in().is_zero();
        self.stopping.for_loss() || by_watcher
    }

    fn pass_on(&mut self, signal: Signal) {
        // We were continued, but someone else may hold the lock by now: the command must not be.
        if signal == Signal::CONT && self.stopping.stops() && self.guard.must_stop_in().is_zero() {
            return;
        }
        // What happened before the signal was sent may not have been told yet.
        self.look_after_job();
        self.command.signal(signal);
        self.stopping.passed_on(Instant::now(), signal);
        // As the shells do for stopped jobs: else it would never hear of it.
        if self.is_stopped && (signal == Signal::TERM || signal == Signal::HUP) {
            self.command.signal(Signal::CONT);
        }
    }

    /// Someone asks for the lock.
    fn recalled(&mut self, by: &Party) {
        let (name, by) =
            (self.guard.name(), output::party(Some(&by.label), Some(&by.host), by.pid()));
        match self.on_recall {
            OnRecall::Ignore => say(format_args!("the lock {name} is asked for by {by}")),
            OnRecall::Term => {
                say(format_args!(
                    "the lock {name} is asked for by {by}: the command is told to end (SIGTERM)"
                ));
                // As if it had come from outside: it has --kill-after to end.
                self.pass_on(Signal::TERM);
            }
        }
    }

    fn look_after_children(&mut self) {
        if self.watcher.has_died() {
            say(
                "the watcher process has died: if lockwarden is killed now, only the command itself \
                 dies with it, not what it has started",
            );
        }
        self.look_after_job();
    }

    /// The command may have been stopped or continued.
    fn look_after_job(&mut self) {
        let stopped = match self.command.changed() {
            None => return,
            Some(Change::Continued) => {
                self.is_stopped = false;
                return;
            }
            Some(Change::Stopped(signal)) => signal,
        };
        self.is_stopped = true;
        match self.terminal.stopped(self.command.group(), stopped) {
            Stop::Alone => return,
            Stop::GoOn => {}
            Stop::WithUs => {
                self.terminal.stop_with(self.command.group());
                if self.stopping.stops() && self.guard.must_stop_in().is_zero() {
                    return;
                }
            }
        }
        self.command.signal(Signal::CONT);
        self.is_stopped = false;
    }

    /// Says what has changed about the lock (G8).
    fn tell(&mut self, state: State) {
        let locks = self.names.nouns();
        let are = if self.names.are_several() { "are" } else { "is" };
        let before = std::mem::replace(&mut self.seen, state);
        match state {
            State::Held if matches!(before, State::AtRisk(_)) => {
                say(format_args!("{locks} {are} safe again"));
            }
            State::Held => {}
            State::AtRisk(risk) => say(format_args!("{locks} {are} at risk: {}", why(risk))),
            State::Lost(loss) => say(self.names.lost(loss)),
        }
    }
}

fn why(risk: Risk) -> &'static str {
    match risk {
        Risk::RenewalOverdue => "it could not be renewed for a while",
        Risk::BeatOverdue => "the store does not answer",
        Risk::CeilingNear => "it has been held for nearly as long as --at-most allows",
        Risk::NewEpoch => "the store began anew, and it must be renewed there first",
    }
}

/// Kills what the command has left in its group, and waits until it is gone: nothing of it may run
/// once the lock is another's.
async fn end_group(command: Command, watcher: &mut Watcher) {
    let group = command.group();
    // The command is a zombie still, so its group is nobody else's.
    command.signal(Signal::KILL);
    watcher.done();
    command.reap();
    let began = Instant::now();
    let mut said = false;
    loop {
        match command::left_in(group) {
            Left::Nobody => return,
            Left::Untouchable => {
                return say("processes of other users are left of the command; they go on");
            }
            Left::Some => {}
        }
        if !said && began.elapsed() > Duration::from_secs(1) {
            said = true;
            say("waiting for what the command has left running: it was killed, but has not ended");
        }
        tokio::time::sleep(command::LOOK_AGAIN).await;
    }
}

/// Releases the lock (C46). What fails here changes nothing about the command's exit code.
async fn release(held: Held<'_>, lease: Duration, for_loss: bool) {
    let Held { warden, names, guard } = held;
    match guard.release().await {
        Ok(()) => {}
        // Told already.
        Err(Error::Lost { .. }) if for_loss => {}
        Err(Error::Lost { loss, .. }) => {
            say(format_args!("before the command ended: {}", names.lost(loss)));
        }
        Err(error @ Error::ReleasedOrLost { .. }) => say(error),
        Err(error) => {
            let lease_ms = u64::try_from(lease.as_millis()).unwrap_or(u64::MAX);
            let within = span(lease_ms);
            let it_ends = if names.are_several() { "they end" } else { "it ends" };
            let themselves = if names.are_several() { "themselves" } else { "itself" };
            say(format_args!(
                "{} could not be released: {error}; {it_ends} by {themselves} within {within}",
                names.nouns()
            ));
            // Trying on would only keep the caller waiting.
            return;
        }
    }
    warden.clone().close().await;
}
