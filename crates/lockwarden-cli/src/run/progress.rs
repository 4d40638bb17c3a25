//! What is said while we wait: one line that is rewritten on a terminal, one line per change
//! elsewhere. All of it on stderr.

use super::names::{Names, listed};
use crate::output;
use lockwarden::{HolderView, Name, Reason, Refusal, Waiting, error::describe};
use std::{
    io::{self, IsTerminal, Write},
    time::{Duration, Instant},
};
use tokio::sync::watch;

/// Of how many holders one line tells.
const MOST_TOLD: usize = 3;

/// Says who holds the locks.
pub(super) struct Progress<'a> {
    names: &'a Names,
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
    pub(super) fn new(names: &'a Names, quiet: bool) -> Progress<'a> {
        Progress {
            names,
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
            let line = format!("lockwarden: waiting for {} ({waited}): {words}", self.names);
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
            output::say(format_args!("waiting for {}: {words}", self.names));
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
        let why = self.why(refusal);
        match refusal.position {
            None => why,
            Some(0) => format!("{why}; next in the queue"),
            Some(ahead) => format!("{why}; {ahead} ahead in the queue"),
        }
    }

    /// Who holds it; of several, who holds which.
    fn why(&self, refusal: &Refusal) -> String {
        if refusal.reason == Reason::Kept {
            let kept = "kept for others, who asked for several locks at once before";
            return match self.names.are_several() {
                true => format!("{} is {kept}", self.names.at(refusal.at)),
                false => kept.to_owned(),
            };
        }
        let mut told: Vec<(&HolderView, Vec<&Name>)> = Vec::new();
        for (number, holder) in refusal.holders() {
            let name = self.names.at(number);
            match told.iter_mut().find(|(its, _)| its.token == holder.token) {
                Some((_, names)) => names.push(name),
                None => told.push((holder, vec![name])),
            }
        }
        let are = |names: &[&Name]| if names.len() > 1 { "are" } else { "is" };
        let mut words: Vec<_> = told
            .iter()
            .take(MOST_TOLD)
            .map(|(holder, names)| match self.names.are_several() {
                true => format!("{} {} {}", listed(names), are(names), describe(holder)),
                false => describe(holder),
            })
            .collect();
        match told.len().saturating_sub(MOST_TOLD) {
            _ if told.is_empty() => words.push("others were first".into()),
            0 => {}
            more => words.push(format!("and {more} more")),
        }
        words.join("; ")
    }
}

/// What a line is about: the same again is not worth another one, though times have changed.
fn about(waiting: &Waiting) -> String {
    let refusal = waiting.told.as_ref();
    let holders: Vec<_> = refusal
        .iter()
        .flat_map(|it| it.holders())
        .map(|(number, holder)| (number, &holder.token))
        .collect();
    let kept = refusal.filter(|it| it.reason == Reason::Kept).map(|it| it.at);
    let position = refusal.and_then(|it| it.position);
    let guard = refusal.is_some_and(|it| matches!(it.reason, Reason::Guard { .. }));
    format!("{holders:?} {kept:?} {position:?} {guard} {:?}", waiting.trouble)
}
