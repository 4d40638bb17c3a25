//! One link: the commands of a session, their answers, and what the session is told.
//!
//! It is driven by whoever polls it: no task of its own, no queue in between, and one write per
//! batch. It never reconnects; when anything is wrong with it, it says [`LinkEvent::Closed`] and is
//! of no use any more (R8).

use super::{
    Marks,
    answer::{Answers, Reader, share_a_name},
    call::{By, COMMANDS_PER_CALL, Writer},
    keys::{self, COMPANIONS, Form, Keyspace, LOCK_HEAD},
    message::{self, Heard},
    resp::{self, Value},
    stream::Connection,
    trouble::{self, Context},
};
use crate::{
    error::{Effect, StoreError},
    store::{Call, Link, LinkEvent, Page},
};
use bytes::{Bytes, BytesMut};
use lockwarden_core::{Reply, SessionId, limits::W_MS};
use std::{
    collections::VecDeque,
    sync::Arc,
    task::{Context as TaskContext, Poll, Waker},
    time::{Duration, Instant},
};

/// Calls of the script on their way at once: so many that the server has the next before it is done with the
/// last, and neither it nor we fall asleep in between, which costs more than a call; few enough that commands
/// which become ready meanwhile travel together.
const CALLS_IN_FLIGHT: usize = 4;
/// Keys that the server looks at for one page of names.
const KEYS_PER_PAGE: u64 = 1_000;

/// What the next replies answer.
enum Pending {
    /// A call of the script.
    Batch(Vec<Call>),
    /// A page of keys.
    Scan { id: u64, foreign: bool },
    /// For each of these keys how its value begins; then, where foreign keys are counted, whether a record
    /// stands at it.
    Looks {
        id: u64,
        page: Result<Page, StoreError>,
        keys: VecDeque<Bytes>,
        value: Option<Look>,
        foreign: bool,
    },
}

/// What a key is by the beginning of its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    /// A lock of ours, with its record in it.
    Lock,
    /// Another text, a drop-in's value or a foreign client's.
    Text,
    /// No text, gone, or none of our business.
    Other,
}

/// A link.
pub(super) struct RedisLink {
    pub(super) context: Context,
    keyspace: Arc<Keyspace>,
    session: SessionId,
    /// The session's own channel: what is heard on another is not for this session.
    channel: String,
    marks: Arc<Marks>,
    /// The connection for commands; with RESP3 for everything. None: the link is closed.
    main: Option<Connection>,
    /// The connection for messages, with RESP2.
    ear: Option<Connection>,
    writer: Writer,
    pub(super) reader: Reader,
    pending: VecDeque<Pending>,
    calls_in_flight: usize,
    /// Batches that the server could not carry out because it does not know the script (any more), and
    /// those that must not overtake them (R8).
    untaught: VecDeque<Vec<Call>>,
    events: VecDeque<LinkEvent>,
    /// We could not ask which run of the server this is: nothing counts until then (R5).
    blind_until: Option<Instant>,
    waiting_for_room: Option<Waker>,
}

/// What a link is made of, once it is connected.
pub(super) struct Parts {
    pub(super) context: Context,
    pub(super) keyspace: Arc<Keyspace>,
    pub(super) session: SessionId,
    pub(super) marks: Arc<Marks>,
    pub(super) main: Connection,
    pub(super) ear: Option<Connection>,
    pub(super) writer: Writer,
    pub(super) reader: Reader,
    pub(super) blind: bool,
}

impl RedisLink {
    pub(super) fn new(parts: Parts) -> RedisLink {
        let Parts { context, keyspace, session, marks, main, ear, writer, reader, blind } = parts;
        RedisLink {
            context,
            keyspace,
            channel: keys::session_channel(&session),
            session,
            marks,
            main: Some(main),
            ear,
            writer,
            reader,
            pending: VecDeque::new(),
            calls_in_flight: 0,
            untaught: VecDeque::new(),
            events: VecDeque::new(),
            blind_until: blind.then(|| Instant::now() + Duration::from_millis(W_MS)),
            waiting_for_room: None,
        }
    }

    /// How long nothing may be granted, in ms, because we do not know the server's run.
    fn guard_ms(&self) -> u64 {
        let left = self.blind_until.map(|at| at.saturating_duration_since(Instant::now()));
        left.map_or(0, |left| left.as_micros().div_ceil(1_000) as u64)
    }

    fn send_batch(&mut self, by: By, calls: Vec<Call>) {
        let guard_ms = self.guard_ms();
        let Some(main) = &mut self.main else { return };
        self.writer.write(main.output(), by, guard_ms, &calls);
        self.pending.push_back(Pending::Batch(calls));
        self.calls_in_flight += 1;
    }

    fn queue_batch(&mut self, calls: Vec<Call>) {
        if self.untaught.is_empty() {
            self.send_batch(By::Hash, calls);
        } else {
            self.untaught.push_back(calls);
        }
    }

    /// Sends again what the server could not carry out, in order: the first by its text.
    fn teach(&mut self) {
        if self.calls_in_flight > 0 {
            return;
        }
        let mut by = By::Text;
        while let Some(calls) = self.untaught.pop_front() {
            self.send_batch(by, calls);
            by = By::Hash;
        }
    }

    fn close(&mut self, error: StoreError) {
        // Dropping resets while anything is unanswered (R9), and closes in peace otherwise.
        self.hang_up();
        self.events.push_back(LinkEvent::Closed(error));
    }

    fn hang_up(&mut self) {
        let at_peace = self.pending.is_empty()
            && self.untaught.is_empty()
            && self.main.as_ref().is_some_and(Connection::is_flushed);
        for connection in self.main.take().into_iter().chain(self.ear.take()) {
            if at_peace {
                connection.close_in_peace();
            }
        }
    }

    fn effect(&self) -> Effect {
        if self.calls_in_flight > 0 { Effect::Unknown } else { Effect::NotApplied }
    }

    fn broken(&mut self, error: &std::io::Error) {
        let closed = self.context.disconnected(&trouble::words(error), self.effect());
        self.close(closed);
    }

    fn garbled(&mut self, what: &str) {
        let closed = self.context.protocol(what, self.effect());
        self.close(closed);
    }

    /// One step of input and output. Ready: something came.
    fn poll_connections(&mut self, cx: &mut TaskContext<'_>) -> Poll<()> {
        for is_ear in [true, false] {
            let connection = if is_ear { &mut self.ear } else { &mut self.main };
            let Some(connection) = connection else { continue };
            if let Poll::Ready(Err(error)) = connection.poll_flush(cx) {
                self.broken(&error);
                return Poll::Ready(());
            }
            let Poll::Ready(frame) = connection.poll_frame(cx) else { continue };
            match frame {
                Err(error) => self.broken(&error),
                Ok(Value::Push(frame)) => self.pushed(frame),
                Ok(Value::Array(frame)) if is_ear => self.pushed(frame),
                Ok(Value::Error(error)) if is_ear => {
                    let closed = self.context.refused(&error);
                    self.close(closed);
                }
                Ok(frame) if !is_ear => self.replied(frame),
                Ok(_) => {}
            }
            return Poll::Ready(());
        }
        Poll::Pending
    }

    /// What the server sent unasked.
    pub(super) fn pushed(&mut self, frame: Vec<Value>) {
        match frame.as_slice() {
            [kind, channel, Value::Text(text)]
                if kind.text() == Some("message") && channel.text() == Some(&*self.channel) =>
            {
                self.heard(text);
            }
            // Whoever unsubscribed us, we hear nothing any more.
            [kind, ..] if kind.text() == Some("unsubscribe") => {
                self.garbled("our subscription was ended");
            }
            _ => {}
        }
    }

    fn heard(&mut self, text: &Bytes) {
        match message::read(&mut self.reader, &self.keyspace, text) {
            Some(Heard::Message(message)) => self.events.push_back(LinkEvent::Message(message)),
            Some(Heard::Echo(mark)) if self.marks.is_own(&self.session, &mark) => {}
            Some(Heard::Echo(_)) => self.events.push_back(LinkEvent::Cloned),
            Some(Heard::Beat { mark, epoch, run, now_us, subscribers }) => {
                let mut parts = mark.splitn(2, |byte| *byte == b':');
                let sender = parts.next().unwrap_or_default();
                if !self.marks.is_own(&self.session, sender) {
                    return self.events.push_back(LinkEvent::Cloned);
                }
                // Of an earlier link of ours: its number means nothing here.
                if sender != self.writer.mark().as_bytes() {
                    return;
                }
                let id = parts.next().and_then(|id| std::str::from_utf8(id).ok()?.parse().ok());
                if let Some(id) = id {
                    let reply = Reply::Beat { run, now_us, subscribers };
                    let answers = vec![(id, Ok(reply))];
                    self.events.push_back(LinkEvent::Answers { epoch: Some(epoch), answers });
                }
            }
            None => {}
        }
    }

    fn replied(&mut self, frame: Value) {
        match self.pending.pop_front() {
            Some(Pending::Batch(calls)) => {
                self.calls_in_flight -= 1;
                self.batch_replied(calls, frame);
                if let Some(waker) = self.waiting_for_room.take() {
                    waker.wake();
                }
            }
            Some(Pending::Scan { id, foreign }) => self.scanned(id, foreign, frame),
            Some(Pending::Looks { id, page, keys, value, foreign }) => {
                self.looked(id, page, keys, value, foreign, &frame);
            }
            None => self.garbled("a reply to no command"),
        }
    }

    fn batch_replied(&mut self, calls: Vec<Call>, frame: Value) {
        match frame {
            Value::Array(values) => {
                // It came behind one that was not carried out. What concerns other names may do that;
                // for the rest the order is lost, and the link with it (R8).
                if self.untaught.iter().any(|missed| share_a_name(missed, &calls)) {
                    return self.garbled("the script vanished between two calls");
                }
                match self.reader.answers(&self.context, &calls, values) {
                    Ok(Answers { epoch, answers, rest, .. }) if rest.is_empty() => {
                        if !answers.is_empty() {
                            self.events.push_back(LinkEvent::Answers { epoch, answers });
                        }
                    }
                    _ => return self.garbled("an answer that the script does not give"),
                }
                if !self.untaught.is_empty() {
                    self.teach();
                }
            }
            Value::Error(error) if error.starts_with(b"NOSCRIPT") => {
                // Before those that were written behind it, which came back before it did.
                self.untaught.push_back(late(calls).collect());
                self.teach();
            }
            // The server checks the rights to all keys of a call before it carries out any of it: each
            // command stands for itself (R12).
            Value::Error(error) if error.starts_with(b"NOPERM") && calls.len() > 1 => {
                self.untaught.extend(late(calls).map(|call| vec![call]));
                self.teach();
            }
            Value::Error(error) => {
                let error = self.context.refused(&error);
                let answers = calls.iter().map(|call| (call.id, Err(error.clone()))).collect();
                self.events.push_back(LinkEvent::Answers { epoch: None, answers });
                self.teach();
            }
            _ => self.garbled("a reply of another kind than a script's"),
        }
    }

    fn scanned(&mut self, id: u64, foreign: bool, frame: Value) {
        let page = match frame {
            Value::Error(error) => Err(self.context.refused(&error)),
            frame => match scan_page(&frame) {
                Some(page) => Ok(page),
                None => return self.garbled("a page of keys of another kind"),
            },
        };
        let (cursor, found) = match page {
            Ok(page) => page,
            Err(error) => return self.events.push_back(LinkEvent::Page { id, page: Err(error) }),
        };
        let companion = |key: &Bytes| self.keyspace.name_of_companion(key);
        let names = found.iter().filter_map(companion).collect();
        let page = Page { names, cursor, foreign: 0 };
        let prefix = self.keyspace.prefix.as_bytes();
        let keys: VecDeque<Bytes> = found
            .into_iter()
            .filter(|key| !keys::is_ours(key) && key.starts_with(prefix))
            .collect();
        let Some(main) = self.main.as_mut().filter(|_| !keys.is_empty()) else {
            return self.events.push_back(LinkEvent::Page { id, page: Ok(page) });
        };
        for key in &keys {
            write_look(main.output(), key);
            if foreign {
                write_exists_record(main.output(), key);
            }
        }
        // Nothing else may come between these and what was sent before them.
        let page = Ok(page);
        self.pending.push_back(Pending::Looks { id, page, keys, value: None, foreign });
    }

    fn looked(
        &mut self,
        id: u64,
        mut page: Result<Page, StoreError>,
        mut keys: VecDeque<Bytes>,
        value: Option<Look>,
        foreign: bool,
        frame: &Value,
    ) {
        let seen = value.map_or_else(|| look(frame), Ok);
        if value.is_none() && foreign {
            let value = Some(seen.unwrap_or_else(|error| {
                page = Err(self.context.refused(error));
                Look::Other
            }));
            return self.pending.push_front(Pending::Looks { id, page, keys, value, foreign });
        }
        let key = keys.pop_front();
        match (seen, &mut page) {
            (Err(error), _) => page = Err(self.context.refused(error)),
            (Ok(Look::Lock), Ok(page)) => {
                page.names.extend(key.and_then(|key| self.keyspace.name(&key)));
            }
            // A drop-in's record stands beside its key.
            (Ok(Look::Text), Ok(page)) if foreign && frame.int() == Some(0) => page.foreign += 1,
            _ => {}
        }
        if keys.is_empty() {
            self.events.push_back(LinkEvent::Page { id, page });
        } else {
            self.pending.push_front(Pending::Looks { id, page, keys, value: None, foreign });
        }
    }
}

/// What the beginning of a key's value says; else why nothing can be asked.
fn look(frame: &Value) -> Result<Look, &[u8]> {
    match frame {
        Value::Text(text) if text.as_ref() == LOCK_HEAD => Ok(Look::Lock),
        Value::Text(text) if !text.is_empty() => Ok(Look::Text),
        // The user may not read keys at all; of a single key it is no matter of ours.
        Value::Error(error)
            if error.starts_with(b"NOPERM")
                && !trouble::is_about_a_key(&String::from_utf8_lossy(error)) =>
        {
            Err(error)
        }
        _ => Ok(Look::Other),
    }
}

/// Calls that are sent again: what was sent behind them may have been granted meanwhile (R5).
/// How many of the first of these go in one call.
fn commands_together(calls: &[Call]) -> usize {
    let single = calls.iter().take_while(|call| call.command.also().is_empty()).count();
    single.clamp(1, COMMANDS_PER_CALL)
}

fn late(calls: Vec<Call>) -> impl Iterator<Item = Call> {
    calls.into_iter().map(|call| Call { may_hold: true, ..call })
}

fn scan_page(frame: &Value) -> Option<(u64, Vec<Bytes>)> {
    let Value::Array(parts) = frame else { return None };
    let [cursor, Value::Array(found)] = parts.as_slice() else { return None };
    let cursor = cursor.text()?.parse().ok()?;
    Some((cursor, found.iter().filter_map(|key| key.bytes().cloned()).collect()))
}

/// How does the key's value begin? Enough of it to know a lock of ours.
fn write_look(out: &mut BytesMut, key: &[u8]) {
    let end = (LOCK_HEAD.len() - 1).to_string();
    resp::command(out, &[b"GETRANGE", key, b"0", end.as_bytes()]);
}

/// Does a record stand beside the key? Then it is a lock of ours.
fn write_exists_record(out: &mut BytesMut, key: &[u8]) {
    // A key that is no text is no lock of ours either; whatever is asked of it answers "no".
    let form = Form::of("", std::str::from_utf8(key).unwrap_or_default());
    let record = COMPANIONS[0].as_bytes();
    resp::begin(out, 2);
    resp::argument(out, b"EXISTS");
    match form {
        Form::Plain => resp::argument_of(out, &[record, b":{", key, b"}"]),
        _ => {
            let [open, tag, close] = keys::form_parts(&form);
            resp::argument_of(out, &[record, open, tag, close, key]);
        }
    }
}

impl Link for RedisLink {
    fn poll_ready(&mut self, cx: &mut TaskContext<'_>) -> Poll<()> {
        if self.calls_in_flight < CALLS_IN_FLIGHT && self.untaught.is_empty() {
            return Poll::Ready(());
        }
        self.waiting_for_room = Some(cx.waker().clone());
        Poll::Pending
    }

    fn send(&mut self, mut calls: Vec<Call>) {
        if self.main.is_none() {
            return;
        }
        let reserved =
            |call: &Call| call.command.names().any(|name| self.keyspace.is_reserved(name));
        if calls.iter().any(reserved) {
            let (refused, rest): (Vec<Call>, Vec<Call>) = calls.into_iter().partition(reserved);
            calls = rest;
            let prefix = &self.keyspace.prefix;
            let detail = format!("with the prefix {prefix:?} the name leads into reserved keys");
            let error = StoreError::Invalid { detail };
            let answers = refused.iter().map(|call| (call.id, Err(error.clone()))).collect();
            self.events.push_back(LinkEvent::Answers { epoch: None, answers });
        }
        while !calls.is_empty() {
            let rest = calls.split_off(commands_together(&calls));
            self.queue_batch(calls);
            calls = rest;
        }
    }

    fn list(&mut self, id: u64, cursor: u64, foreign: bool) {
        let Some(main) = &mut self.main else { return };
        let (cursor, count) = (cursor.to_string(), KEYS_PER_PAGE.to_string());
        resp::command(main.output(), &[b"SCAN", cursor.as_bytes(), b"COUNT", count.as_bytes()]);
        self.pending.push_back(Pending::Scan { id, foreign });
    }

    fn poll_event(&mut self, cx: &mut TaskContext<'_>) -> Poll<LinkEvent> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Poll::Ready(event);
            }
            if self.poll_connections(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }
}

impl Drop for RedisLink {
    fn drop(&mut self) {
        self.hang_up();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis::{Address, RedisSettings, RedisStore, connect};
    use lockwarden_core::Command;
    use lockwarden_testkit::servers::{Server, ServerKind};
    use std::future::poll_fn;

    /// R4: who speaks of a run that is over is told so, and nothing is carried out, not even the
    /// beginning of an epoch.
    #[tokio::test]
    async fn r4_another_run_is_stale() {
        for kind in ServerKind::default_set() {
            let server = Server::start(kind);
            let (host, port) = (server.address().ip().to_string(), server.port());
            let settings = RedisSettings::new(Address::Tcp { host, port, tls: false });
            let store = RedisStore::new(settings).unwrap();
            let mut link = connect::connect(&store, &SessionId::new("A")).await.unwrap();
            let beat = async |link: &mut RedisLink| {
                link.send(vec![Call { id: 1, command: Command::Beat, may_hold: false }]);
                loop {
                    match poll_fn(|cx| link.poll_event(cx)).await {
                        LinkEvent::Answers { epoch, mut answers } => {
                            return (epoch, answers.remove(0).1.unwrap());
                        }
                        LinkEvent::Closed(error) => panic!("{error}"),
                        _ => {}
                    }
                }
            };
            for without_meta in [true, false] {
                link.writer.pretend_run("0123456789abcdef0123456789abcdef01234567");
                if !without_meta {
                    server.without_guard();
                }
                let before = server.cmd(&["HGETALL", "lockwarden:meta"]);
                assert_eq!(beat(&mut link).await, (None, Reply::Stale), "{kind}");
                assert_eq!(server.cmd(&["HGETALL", "lockwarden:meta"]), before);
            }
            link.writer.pretend_run(&server.info("server", "run_id").unwrap());
            let (epoch, reply) = beat(&mut link).await;
            assert!(epoch.is_some() && matches!(reply, Reply::Beat { subscribers: 1, .. }));
        }
    }
}
