//! A batch of commands as one call of the script. The head of `scripts/lib/head.lua` says what
//! stands where.

use super::{
    keys::{self, Form, Keyspace},
    resp, script, wire,
};
use crate::store::Call;
use bytes::BytesMut;
use lockwarden_core::{
    Command, Name, SessionId,
    command::{Acquire, Extension, Wait},
    party::Party,
};
use std::sync::Arc;

/// Commands in one call: a script keeps the server from everybody else. A command about several names (R29) has a
/// call of its own.
pub(super) const COMMANDS_PER_CALL: usize = 128;

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
    /// The commands of the call that is being written, two bytes each (see `scripts/lib/head.lua`).
    orders: Vec<u8>,
    /// The forms of its locks' keys.
    forms: Vec<Form>,
    /// The leases of its renewals.
    leases: Vec<u64>,
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
            orders: Vec::new(),
            forms: Vec::new(),
            leases: Vec::new(),
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
        self.write_all(out, by, 0, calls, &[mark.as_bytes()]);
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
        self.orders.clear();
        self.forms.clear();
        self.leases.clear();
        // Seven of the call, and what its commands say.
        let mut arguments = 7 + tail.len();
        for call in calls {
            let form = |name: &Name| Form::of(&self.keyspace.prefix, name.as_str());
            self.forms.extend(call.command.names().map(form));
            let (word, number, its_arguments) = match &call.command {
                Command::Acquire(ask) => (script::ACQUIRE, term_number(&mut terms, ask), 1),
                Command::Renew(renew) => (script::RENEW, self.lease_number(renew.lease_ms), 1),
                Command::Release { lost, .. } => (script::RELEASE, u8::from(*lost), 1),
                Command::Cancel { .. } => (script::CANCEL, 0, 2),
                Command::Revoke { .. } => (script::REVOKE, 0, 3),
                Command::Recall { .. } => (script::RECALL, 0, 2),
                Command::Convert { .. } => (script::CONVERT, 0, 4),
                Command::HandOver { .. } => (script::HAND_OVER, 0, 3),
                Command::ExtendByValue { .. } => (script::EXTEND_BY_VALUE, 0, 3),
                Command::Leave { .. } => (script::LEAVE, 0, 1),
                Command::Show { .. } => (script::SHOW, 0, 0),
                Command::Beat => (script::HEARTBEAT, 0, 1),
            };
            self.orders.extend([word, number]);
            arguments += its_arguments;
        }
        if !tail.is_empty() {
            self.orders.extend([script::ECHO, 0]);
        }
        let keys = 1 + self.forms.len();
        if self.forms.iter().all(|form| *form == Form::Plain) {
            self.forms.clear();
        }
        arguments += self.forms.len() + 7 * terms.len() + self.leases.len();
        self.head(out, by, keys, arguments);
        let prefix = self.keyspace.prefix.as_bytes();
        for name in calls.iter().flat_map(|call| call.command.names()) {
            resp::argument_of(out, &[prefix, name.as_str().as_bytes()]);
        }
        self.context_of(out, guard_ms, calls, terms.len());
        for form in &self.forms {
            resp::argument_of(out, &keys::form_parts(form));
        }
        for term in terms {
            self.term(out, term);
        }
        for lease_ms in &self.leases {
            resp::argument_number(out, *lease_ms);
        }
        for call in calls {
            self.command(out, call);
        }
        for bytes in tail {
            resp::argument(out, bytes);
        }
    }

    /// The number of a renewal's lease, which it shares with others like it.
    fn lease_number(&mut self, lease_ms: u64) -> u8 {
        let known = self.leases.iter().position(|lease| *lease == lease_ms);
        let index = known.unwrap_or_else(|| {
            self.leases.push(lease_ms);
            self.leases.len() - 1
        });
        byte(index + 1)
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

    fn context_of(&self, out: &mut BytesMut, guard_ms: u64, calls: &[Call], terms: usize) {
        let may_hold = calls.iter().any(|call| call.may_hold);
        resp::argument(out, self.session.as_str().as_bytes());
        resp::argument(out, self.run.as_bytes());
        resp::argument_number(out, guard_ms);
        resp::argument(out, if may_hold { b"" } else { self.keyspace.common.as_bytes() });
        // A self-test finds out.
        let hears = !self.beats_by_message && self.run != script::SELF_TEST;
        resp::argument_number(out, u64::from(hears));
        let names = match calls {
            [call] if !call.command.also().is_empty() => script::SEVERAL,
            _ => u8::from(some_name_comes_twice(calls)),
        };
        let has_forms = u8::from(!self.forms.is_empty());
        resp::argument(out, &[has_forms, byte(terms), byte(self.leases.len()), names]);
        resp::argument(out, &self.orders);
    }

    fn term(&mut self, out: &mut BytesMut, term: &Acquire) {
        resp::argument(out, term.proof.as_bytes());
        match term.wait {
            Wait::No => resp::argument(out, script::NO_WAIT.to_string().as_bytes()),
            Wait::Forever => resp::argument(out, script::FOR_EVER.to_string().as_bytes()),
            Wait::Adopt => resp::argument(out, script::ADOPT.to_string().as_bytes()),
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
        resp::argument(out, how(term).as_bytes());
    }

    fn command(&self, out: &mut BytesMut, call: &Call) {
        match &call.command {
            Command::Acquire(ask) => resp::argument(out, ask.token.as_bytes()),
            Command::Renew(renew) => resp::argument(out, renew.token.as_bytes()),
            Command::Release { token, .. } => resp::argument(out, token.as_bytes()),
            Command::Cancel { token, proof, .. } => {
                resp::argument(out, token.as_bytes());
                resp::argument(out, proof.as_bytes());
            }
            Command::Revoke { token, session, delayed, .. } => {
                resp::argument(out, token.as_bytes());
                let session = session.as_ref().map_or("", SessionId::as_str);
                resp::argument(out, session.as_bytes());
                resp::argument_number(out, u64::from(*delayed));
            }
            Command::Recall { token, by, .. } => {
                resp::argument(out, token.as_bytes());
                resp::argument(out, wire::encode(by).as_bytes());
            }
            Command::Convert { token, to, floor, new_token, .. } => {
                resp::argument(out, token.as_bytes());
                resp::argument(out, wire::encode_mode(*to).as_bytes());
                resp::argument_number(out, *floor);
                resp::argument(out, new_token.as_bytes());
            }
            Command::HandOver { token, to, lease_ms, .. } => {
                resp::argument(out, token.as_bytes());
                resp::argument(out, to.as_bytes());
                resp::argument_number(out, *lease_ms);
            }
            Command::ExtendByValue { token, ms, how, .. } => {
                resp::argument(out, token.as_bytes());
                resp::argument_number(out, *ms);
                resp::argument(
                    out,
                    match how {
                        Extension::Add => b"add",
                        Extension::Replace => b"replace",
                        Extension::Set => b"set",
                    },
                );
            }
            Command::Leave { token, .. } => resp::argument(out, token.as_bytes()),
            Command::Show { .. } => {}
            Command::Beat if self.beats_by_message => {
                resp::argument(out, format!("{}:{}", self.mark, call.id).as_bytes());
            }
            Command::Beat => resp::argument(out, b""),
        }
    }
}

/// The modes of the locks that are asked for, with commas between them; then, where there is one, the minimum and the
/// delay, in ms, and 1 where it is endless. Nothing: all are exclusive, and there is nothing of that.
fn how(ask: &Acquire) -> String {
    let text = |(_, mode)| wire::encode_mode(mode);
    let mut how = match ask.modes.is_empty() {
        true => String::new(),
        false => ask.wants().map(text).collect::<Vec<_>>().join(","),
    };
    if ask.at_least_ms > 0 || ask.delay_ms > 0 || ask.endless {
        how += &format!(";{};{}", ask.at_least_ms, ask.delay_ms);
    }
    if ask.endless {
        how += ";1";
    }
    how
}

/// Counts and numbers of a call travel as bytes.
#[expect(
    clippy::cast_possible_truncation,
    reason = "a call has at most COMMANDS_PER_CALL commands"
)]
fn byte(number: usize) -> u8 {
    const { assert!(COMMANDS_PER_CALL < 256) };
    debug_assert!(number < 256);
    number as u8
}

/// Where it does, each command must see what the one before it left, and the script takes its longer way.
fn some_name_comes_twice(calls: &[Call]) -> bool {
    let mut names: Vec<&str> = Vec::with_capacity(calls.len());
    names.extend(calls.iter().filter_map(|call| call.command.name()).map(Name::as_str));
    names.sort_unstable();
    names.windows(2).any(|pair| pair[0] == pair[1])
}

/// The number of the acquire's term, which it shares with others like it.
fn term_number<'a>(terms: &mut Vec<&'a Acquire>, ask: &'a Acquire) -> u8 {
    let alike = |other: &Acquire| {
        other.wait == ask.wait
            && other.lease_ms == ask.lease_ms
            && other.grace_ms == ask.grace_ms
            && other.floor == ask.floor
            && other.proof == ask.proof
            && other.modes == ask.modes
            && (other.at_least_ms, other.delay_ms, other.endless)
                == (ask.at_least_ms, ask.delay_ms, ask.endless)
            && (Arc::ptr_eq(&other.party, &ask.party) || other.party == ask.party)
    };
    let recent = terms.len().saturating_sub(TERMS_COMPARED);
    let known = terms[recent..].iter().position(|other| alike(other));
    byte(match known {
        Some(index) => recent + index + 1,
        None => {
            terms.push(ask);
            terms.len()
        }
    })
}
