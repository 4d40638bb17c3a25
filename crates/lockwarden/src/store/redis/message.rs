//! What is published on a session's own channel, read.
//!
//! A message is the schema's number, a letter, and fields: each its length, a colon, its bytes (R12).
//! `tell` in `lib/sessions.lua` and its callers write them.

use super::{
    answer::{Reader, hold_state},
    keys::Keyspace,
    script::SCHEMA,
    wire,
};
use bytes::Bytes;
use lockwarden_core::{
    Epoch, Message, Name, Run, SessionId, Token,
    command::{HolderView, RecordView},
};

/// What was heard on the own channel.
#[derive(Debug, PartialEq)]
pub(super) enum Heard {
    /// The session is told something.
    Message(Message),
    /// A self-test (R10), with the mark of its sender.
    Echo(Bytes),
    /// A beat (R19).
    Beat {
        /// The mark of its sender.
        mark: Bytes,
        /// The epoch.
        epoch: Epoch,
        /// The server's run.
        run: Run,
        /// The server's clock, in µs.
        now_us: u64,
        /// How many listen on this channel.
        subscribers: u64,
    },
}

/// Reads a message; none: it is not ours to read (another schema, another prefix, a bystander's).
/// A message that is not understood is one that was not delivered, which may happen to any.
pub(super) fn read(reader: &mut Reader, keyspace: &Keyspace, text: &Bytes) -> Option<Heard> {
    let [version, kind, ..] = **text else { return None };
    if version != b'0' + SCHEMA {
        return None;
    }
    let mut fields = Fields { text, at: 2 };
    let heard = match kind {
        b'G' => Heard::Message(Message::Grant {
            name: fields.name(keyspace)?,
            token: fields.token()?,
            fence: fields.number()?,
            lease_ms: fields.number()?,
            epoch: reader.epoch(fields.text()?),
            first: fields.token_or_none()?,
        }),
        b'F' => {
            let name = fields.name(keyspace)?;
            let token = fields.token()?;
            let holder = HolderView {
                token: fields.token()?,
                // -1: it has none.
                ttl_ms: fields.number_or_none()?,
                record: Some(RecordView {
                    session: SessionId::new(fields.text()?),
                    fence: fields.number()?,
                    lease_ms: fields.number()?,
                    grace_ms: fields.number()?,
                    held_ms: fields.number()?,
                    state: hold_state(i64::try_from(fields.number()?).ok()?)?,
                    party: reader.party(&fields.bytes()?),
                    mode: wire::decode_mode(&fields.bytes()?)?,
                    delay_ms: fields.number()?,
                    least_left_ms: fields.number()?,
                    endless: fields.number()? != 0,
                }),
            };
            Heard::Message(Message::First { name, token, holder: Box::new(holder) })
        }
        b'A' => {
            Heard::Message(Message::Asking { name: fields.name(keyspace)?, token: fields.token()? })
        }
        b'R' => Heard::Message(Message::Revoked {
            name: fields.name(keyspace)?,
            token: fields.token()?,
            after_ms: fields.number()?,
        }),
        b'L' => Heard::Message(Message::Recall {
            name: fields.name(keyspace)?,
            token: fields.token()?,
            by: reader.party(&fields.bytes()?),
        }),
        b'T' => Heard::Echo(fields.bytes()?),
        b'B' => Heard::Beat {
            mark: fields.bytes()?,
            epoch: reader.epoch(fields.text()?),
            run: reader.run(fields.text()?),
            now_us: fields.number()?,
            subscribers: fields.number()?,
        },
        _ => return None,
    };
    fields.is_at_end().then_some(heard)
}

struct Fields<'a> {
    text: &'a Bytes,
    at: usize,
}

impl<'a> Fields<'a> {
    fn range(&mut self) -> Option<std::ops::Range<usize>> {
        let rest = self.text.get(self.at..)?;
        let colon = rest.iter().take(10).position(|byte| *byte == b':')?;
        let length: usize = std::str::from_utf8(&rest[..colon]).ok()?.parse().ok()?;
        let start = self.at + colon + 1;
        let end = start.checked_add(length).filter(|end| *end <= self.text.len())?;
        self.at = end;
        Some(start..end)
    }

    fn bytes(&mut self) -> Option<Bytes> {
        let range = self.range()?;
        Some(self.text.slice(range))
    }

    fn text(&mut self) -> Option<&'a str> {
        let range = self.range()?;
        std::str::from_utf8(&self.text[range]).ok()
    }

    fn number(&mut self) -> Option<u64> {
        self.text()?.parse().ok()
    }

    /// A number; none: a negative one.
    fn number_or_none(&mut self) -> Option<Option<u64>> {
        let number: i64 = self.text()?.parse().ok()?;
        Some(u64::try_from(number).ok())
    }

    fn name(&mut self, keyspace: &Keyspace) -> Option<Name> {
        let range = self.range()?;
        keyspace.name(&self.text[range])
    }

    fn token(&mut self) -> Option<Token> {
        self.token_or_none()?
    }

    fn token_or_none(&mut self) -> Option<Option<Token>> {
        let range = self.range()?;
        Some((!range.is_empty()).then(|| Token::found(&self.text[range])))
    }

    fn is_at_end(&self) -> bool {
        self.at == self.text.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::Arc;

    fn heard(text: &[u8]) -> Option<Heard> {
        let keyspace = Arc::new(Keyspace::new(0, "p:"));
        let mut reader = Reader::new(keyspace.clone(), Run::new("run"));
        read(&mut reader, &keyspace, &Bytes::copy_from_slice(text))
    }

    #[test]
    fn messages_are_read() {
        let name = Name::new("a:b").unwrap();
        let token = Token::new(b"1:x").unwrap();
        let asking = Message::Asking { name: name.clone(), token: token.clone() };
        assert_eq!(heard(b"1A5:p:a:b3:1:x"), Some(Heard::Message(asking)));
        let grant = Message::Grant {
            name,
            token,
            fence: 7,
            lease_ms: 3_000,
            epoch: Epoch::new("e"),
            first: None,
        };
        assert_eq!(heard(b"1G5:p:a:b3:1:x1:74:30001:e0:"), Some(Heard::Message(grant)));
        let recall = heard(b"1L5:p:a:b3:1:x14:[\"\",\"l\",\"\",[]]");
        let Some(Heard::Message(Message::Recall { by, .. })) = recall else { panic!("{recall:?}") };
        assert_eq!(&*by.label, "l");
        assert_eq!(heard(b"1T2:n1"), Some(Heard::Echo(Bytes::from_static(b"n1"))));
    }

    #[test]
    fn what_is_not_ours_is_passed_over() {
        for text in [
            &b""[..],
            b"1",
            b"hello",
            b"2A5:p:a:b3:1:x",
            b"1A5:q:a:b3:1:x",
            b"1A5:p:a:b3:1:xx",
            b"1A5:p:a:b4:1:x",
            b"1A99999999999999999999:p",
            b"1A5:p:a:b0:",
            b"1Z",
        ] {
            assert_eq!(heard(text), None, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(mut text: Vec<u8>, kind in "[GFARLTB]") {
            text.splice(0..0, [b'1', kind.as_bytes()[0]]);
            let _ = heard(&text);
        }
    }
}
