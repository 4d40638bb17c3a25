//! A batch of commands as one call of the script. The head of `scripts/lib/head.lua` says what
//! stands where.

use super::{
    keys::{self, Form, Keyspace},
    resp, script, wire,
};
use crate::store::Call;
use bytes::BytesMut;
use lockwarden_core::{
    Command, SessionId,
    command::{Acquire, Wait},
    party::Party,
};
use std::sync::Arc;

/// How a call names the script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// By its hash; a server that does not know it says NOSCRIPT and does nothing.
    Hash,
    /// By its text, which also teaches it to the server.
    Text,
}

/// Writes calls of one session.
#[derive(Debug)]
pub(super) struct Writer {
    keyspace: Arc<Keyspace>,
    session: SessionId,
    run: String,
    /// The link's mark (R24).
    mark: String,
    /// The subscription stands on another connection than the commands (RESP2): beats go with a message, and
    /// count when it is heard (R19).
    beats_by_message: bool,
    /// The last party and its text: acquires of one session seldom differ in it.
    party: (Arc<Party>, String),
    /// The number of the term of each acquire of the call that is being written.
    terms: Vec<usize>,
    /// The forms of its locks' keys.
    forms: Vec<Form>,
}

/// How many of the last terms an acquire is compared with before it brings its own.
const TERMS_COMPARED: usize = 4;

impl Writer {
    /// A writer for a session that speaks to that run of the server.
    pub(super) fn new(
        keyspace: Arc<Keyspace>,
        session: SessionId,
        run: &str,
        mark: String,
        beats_by_message: bool,
    ) -> Writer {
        let party = Arc::<Party>::default();
        let text = wire::encode(&party);
        let run = run.to_owned();
        Writer {
            keyspace,
            session,
            run,
            mark,
            beats_by_message,
            party: (party, text),
            terms: Vec::new(),
            forms: Vec::new(),
        }
    }

    /// Speaks of another run from here on.
    #[cfg(test)]
    pub(super) fn pretend_run(&mut self, run: &str) {
        run.clone_into(&mut self.run);
    }

    /// The link's mark (R24).
    pub(super) fn mark(&self) -> &str {
        &self.mark
    }

    /// Writes a call. `guard_ms`: nothing may be granted for so long, whatever meta says.
    pub(super) fn write(&mut self, out: &mut BytesMut, by: By, guard_ms: u64, calls: &[Call]) {
        self.write_all(out, by, guard_ms, calls, &[]);
    }

    /// Writes these calls, then a message to oneself with this mark (R10).
    pub(super) fn write_self_test(
        &mut self,
        out: &mut BytesMut,
        by: By,
        mark: &str,
        calls: &[Call],
    ) {
        self.write_all(out, by, 0, calls, &[b"echo", mark.as_bytes()]);
    }

    fn write_all(
        &mut self,
        out: &mut BytesMut,
        by: By,
        guard_ms: u64,
        calls: &[Call],
        tail: &[&[u8]],
    ) {
        let mut terms: Vec<&Acquire> = Vec::new();
        self.terms.clear();
        self.forms.clear();
        let (mut keys, mut arguments) = (1, 7);
        for call in calls {
            if let Some(name) = call.command.name() {
                keys += 1;
                self.forms.push(Form::of(&self.keyspace.prefix, name.as_str()));
            }
            arguments += 1 + match &call.command {
                Command::Acquire(ask) => {
                    self.terms.push(term_number(&mut terms, ask));
                    2
                }
                Command::Renew(_) | Command::Cancel { .. } => 2,
                Command::Release { .. } | Command::Beat => 1,
                Command::Revoke { .. } => 3,
                Command::Show { .. } => 0,
            };
        }
        if self.forms.iter().all(|form| *form == Form::Plain) {
            self.forms.clear();
        }
        arguments += self.forms.len() + 6 * terms.len() + tail.len();
        self.head(out, by, keys, arguments);
        let prefix = self.keyspace.prefix.as_bytes();
        for name in calls.iter().filter_map(|call| call.command.name()) {
            resp::argument_of(out, &[prefix, name.as_str().as_bytes()]);
        }
        let may_hold = calls.iter().any(|call| call.may_hold);
        self.context_of(out, guard_ms, may_hold, &terms);
        let mut terms = std::mem::take(&mut self.terms);
        let mut numbers = terms.iter();
        for call in calls {
            let number = match &call.command {
                Command::Acquire(_) => numbers.next().copied().unwrap_or(1),
                _ => 0,
            };
            self.command(out, call, number);
        }
        terms.clear();
        self.terms = terms;
        for bytes in tail {
            resp::argument(out, bytes);
        }
    }

    fn head(&self, out: &mut BytesMut, by: By, keys: usize, arguments: usize) {
        resp::begin(out, 3 + keys + arguments);
        match by {
            By::Hash => {
                resp::argument(out, b"EVALSHA");
                resp::argument(out, script::sha().as_bytes());
            }
            By::Text => {
                resp::argument(out, b"EVAL");
                resp::argument(out, script::SOURCE.as_bytes());
            }
        }
        resp::argument_number(out, keys as u64);
        resp::argument(out, self.keyspace.meta.as_bytes());
    }

    fn context_of(
        &mut self,
        out: &mut BytesMut,
        guard_ms: u64,
        may_hold: bool,
        terms: &[&Acquire],
    ) {
        resp::argument(out, self.session.as_str().as_bytes());
        resp::argument(out, self.run.as_bytes());
        resp::argument_number(out, guard_ms);
        resp::argument(out, if may_hold { b"" } else { self.keyspace.common.as_bytes() });
        // A self-test finds out.
        let hears = !self.beats_by_message && self.run != script::SELF_TEST;
        resp::argument_number(out, u64::from(hears));
        resp::argument_number(out, self.forms.len() as u64);
        for form in &self.forms {
            resp::argument_of(out, &keys::form_parts(form));
        }
        resp::argument_number(out, terms.len() as u64);
        for term in terms {
            resp::argument(out, term.proof.as_bytes());
            match term.wait {
                Wait::No => resp::argument(out, script::NO_WAIT.to_string().as_bytes()),
                Wait::Forever => resp::argument(out, script::FOR_EVER.to_string().as_bytes()),
                Wait::For(ms) => resp::argument_number(out, ms),
            }
            resp::argument_number(out, term.lease_ms);
            resp::argument_number(out, term.grace_ms);
            resp::argument_number(out, term.floor);
            if !Arc::ptr_eq(&self.party.0, &term.party) {
                if self.party.0 != term.party {
                    self.party.1 = wire::encode(&term.party);
                }
                self.party.0 = term.party.clone();
            }
            resp::argument(out, self.party.1.as_bytes());
        }
    }

    fn command(&self, out: &mut BytesMut, call: &Call, term: usize) {
        let word = |out: &mut BytesMut, word: &str| resp::argument(out, word.as_bytes());
        match &call.command {
            Command::Acquire(ask) => {
                word(out, "acquire");
                resp::argument(out, ask.token.as_bytes());
                resp::argument_number(out, term as u64);
            }
            Command::Renew(renew) => {
                word(out, "renew");
                resp::argument(out, renew.token.as_bytes());
                resp::argument_number(out, renew.lease_ms);
            }
            Command::Release { token, .. } => {
                word(out, "release");
                resp::argument(out, token.as_bytes());
            }
            Command::Cancel { token, proof, .. } => {
                word(out, "cancel");
                resp::argument(out, token.as_bytes());
                resp::argument(out, proof.as_bytes());
            }
            Command::Revoke { token, session, delayed, .. } => {
                word(out, "revoke");
                resp::argument(out, token.as_bytes());
                let session = session.as_ref().map_or("", SessionId::as_str);
                resp::argument(out, session.as_bytes());
                resp::argument_number(out, u64::from(*delayed));
            }
            Command::Show { .. } => word(out, "show"),
            Command::Beat => {
                word(out, "beat");
                if self.beats_by_message {
                    let mark = format!("{}:{}", self.mark, call.id);
                    resp::argument(out, mark.as_bytes());
                } else {
                    resp::argument(out, b"");
                }
            }
        }
    }
}

/// The number of the acquire's term, which it shares with others like it.
fn term_number<'a>(terms: &mut Vec<&'a Acquire>, ask: &'a Acquire) -> usize {
    let alike = |other: &Acquire| {
        other.wait == ask.wait
            && other.lease_ms == ask.lease_ms
            && other.grace_ms == ask.grace_ms
            && other.floor == ask.floor
            && other.proof == ask.proof
            && (Arc::ptr_eq(&other.party, &ask.party) || other.party == ask.party)
    };
    let recent = terms.len().saturating_sub(TERMS_COMPARED);
    match terms[recent..].iter().position(|other| alike(other)) {
        Some(index) => recent + index + 1,
        None => {
            terms.push(ask);
            terms.len()
        }
    }
}
