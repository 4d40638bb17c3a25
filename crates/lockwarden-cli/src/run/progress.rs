//! What is said while we wait: one line that is rewritten on a terminal, one line per change
//! elsewhere. All of it on stderr.

use crate::output;
use lockwarden::{Name, Reason, Waiting, error::describe};
use std::{
    io::{self, IsTerminal, Write},
    time::{Duration, Instant},
};
use tokio::sync::watch;

/// Says who holds the lock.
pub(super) struct Progress<'a> {
    name: &'a Name,
    began: Instant,
    quiet: bool,
    terminal: bool,
    /// A line stands on the terminal that must be cleared.
    shown: bool,
    /// What the last line was about.
    said: String,
}

impl<'a> Progress<'a> {
    /// Nothing yet.
    pub(super) fn new(name: &'a Name, quiet: bool) -> Progress<'a> {
        Progress {
            name,
            began: Instant::now(),
            quiet,
            terminal: io::stderr().is_terminal(),
            shown: false,
            said: String::new(),
        }
    }

    /// Says what comes, until it is dropped.
    pub(super) async fn follow(&mut self, mut waiting: watch::Receiver<Waiting>) {
        if self.quiet {
            return std::future::pending().await;
        }
        loop {
            // On a terminal the seconds are counted, once there is anything to be seen.
            let tick = self.terminal && self.shown;
            tokio::select! {
                changed = waiting.changed() => {
                    if changed.is_err() {
                        return std::future::pending().await;
                    }
                }
                () = tokio::time::sleep(Duration::from_secs(1)), if tick => {}
            }
            let now = waiting.borrow_and_update().clone();
            self.say(&now);
        }
    }

    /// Leaves the terminal as it was.
    pub(super) fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }

    fn say(&mut self, waiting: &Waiting) {
        let waited = output::span(self.began.elapsed().as_secs() * 1_000);
        let waited = waited.replace(".0 s", " s");
        let words = self.words(waiting);
        if self.terminal {
            let line = format!("lockwarden: waiting for {} ({waited}): {words}", self.name);
            // A line that wraps cannot be rewritten.
            let size = rustix::termios::tcgetwinsize(io::stderr());
            // Some terminals do not know theirs, and say 0.
            let columns = size.map_or(0, |size| usize::from(size.ws_col));
            let columns = if columns == 0 { 80 } else { columns };
            let line: String = line.chars().take(columns.saturating_sub(1)).collect();
            let _ = write!(io::stderr(), "\r{line}\x1b[K");
            self.shown = true;
            return;
        }
        let about = about(waiting);
        if about != self.said {
            self.said = about;
            output::say(format_args!("waiting for {}: {words}", self.name));
        }
    }

    fn words(&self, waiting: &Waiting) -> String {
        if let Some(trouble) = &waiting.trouble {
            return output::escaped(&trouble.to_string());
        }
        let Some(refusal) = &waiting.told else { return "asking".into() };
        if let Reason::Guard { guard_ms } = refusal.reason {
            let s = guard_ms.div_ceil(1_000);
            return format!(
                "the store began anew and grants nothing for {s} s, for older holders' sake"
            );
        }
        let holder = refusal.holder.as_ref();
        let holder = holder.map_or_else(|| "others were first".to_owned(), describe);
        match refusal.position {
            None => holder,
            Some(0) => format!("{holder}; next in the queue"),
            Some(ahead) => format!("{holder}; {ahead} ahead in the queue"),
        }
    }
}

/// What a line is about: the same again is not worth another one, though times have changed.
fn about(waiting: &Waiting) -> String {
    let refusal = waiting.told.as_ref();
    let holder = refusal.and_then(|it| it.holder.as_ref()).map(|it| &it.token);
    let position = refusal.and_then(|it| it.position);
    let guard = refusal.is_some_and(|it| matches!(it.reason, Reason::Guard { .. }));
    format!("{holder:?} {position:?} {guard} {:?}", waiting.trouble)
}
