//! Opening a link (R7, R10): log in, ask which run this is, subscribe, test oneself.
//!
//! All of it is sent at once where the order of one connection keeps it in order, for
//! `lockwarden run` pays for every round trip.

use super::{
    Protocol, RedisStore,
    answer::{Answers, Reader},
    call::{By, Writer},
    keys::{self, Keyspace},
    link::{Parts, RedisLink},
    resp::{self, Value},
    script,
    stream::Connection,
    trouble::{self, Context},
};
use crate::{
    error::{Effect, StoreError},
    store::Call,
};
use bytes::{Bytes, BytesMut};
use lockwarden_core::{
    Command, Name, Reply, Run, SessionId, Token,
    command::{Acquire, Renew, Wait},
    limits::DEFAULT_GRACE_MS,
    party::Party,
};
use std::{io, sync::Arc, time::Duration};

/// How long opening a link may take, all in all.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Why there is no link yet.
enum Failure {
    /// The server does not speak RESP3.
    OnlyResp2,
    /// There will be none.
    Final(StoreError),
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Failure {
        Failure::Final(error)
    }
}

/// Opens a link for the session.
pub(super) async fn connect(
    store: &RedisStore,
    session: &SessionId,
) -> Result<RedisLink, StoreError> {
    let attempt = tokio::time::timeout(CONNECT_TIMEOUT, try_both(store, session)).await;
    attempt.unwrap_or_else(|_| {
        let detail = format!("no link within {} s", CONNECT_TIMEOUT.as_secs());
        Err(store.context.unreachable(&detail))
    })
}

async fn try_both(store: &RedisStore, session: &SessionId) -> Result<RedisLink, StoreError> {
    if !store.speaks_only_resp2() {
        match with_resp3(store, session).await {
            Ok(link) => return Ok(link),
            Err(Failure::Final(error)) => return Err(error),
            Err(Failure::OnlyResp2) if store.settings.protocol == Some(Protocol::Resp3) => {
                let detail = format!("the store {} does not speak RESP3", store.context.place);
                return Err(StoreError::Invalid { detail });
            }
            Err(Failure::OnlyResp2) => store.note_only_resp2(),
        }
    }
    with_resp2(store, session).await
}

/// Frames that come while a link is being opened: replies, and what a subscription brings.
struct Opening<'a> {
    context: &'a Context,
    connection: Connection,
    /// Messages that were heard; a grant may be among them.
    heard: Vec<Vec<Value>>,
}

impl<'a> Opening<'a> {
    async fn new(store: &'a RedisStore) -> Result<Opening<'a>, StoreError> {
        let unreachable = |error| store.context.unreachable(&trouble::words(&error));
        let connection = Connection::open(&store.settings.address).await.map_err(unreachable)?;
        Ok(Opening { context: &store.context, connection, heard: Vec::new() })
    }

    /// The reply to the next command; to SUBSCRIBE its acknowledgement.
    async fn reply(&mut self) -> Result<Value, StoreError> {
        loop {
            match self.frame().await? {
                Value::Push(frame) | Value::Array(frame) if kind(&frame) == Some("message") => {
                    self.heard.push(frame);
                }
                reply => return Ok(reply),
            }
        }
    }

    /// The same, where an error ends it all.
    async fn good_reply(&mut self) -> Result<Value, StoreError> {
        match self.reply().await? {
            Value::Error(error) => Err(self.context.refused(&error)),
            reply => Ok(reply),
        }
    }

    async fn frame(&mut self) -> Result<Value, StoreError> {
        let lost = |error: io::Error| match error.kind() {
            io::ErrorKind::InvalidData => {
                self.context.protocol(&trouble::words(&error), Effect::NotApplied)
            }
            _ => self.context.disconnected(&trouble::words(&error), Effect::NotApplied),
        };
        self.connection.next().await.map_err(lost)
    }

    /// Waits until one hears oneself.
    async fn hear_echo(&mut self, mark: &str) -> Result<(), StoreError> {
        let echo = format!("{}T{}:{mark}", script::SCHEMA, mark.len());
        let is_echo = |frame: &Vec<Value>| frame.get(2).and_then(Value::text) == Some(&*echo);
        while !self.heard.iter().any(is_echo) {
            match self.frame().await? {
                Value::Push(frame) | Value::Array(frame) => self.heard.push(frame),
                Value::Error(error) => return Err(self.context.refused(&error)),
                _ => {}
            }
        }
        Ok(())
    }

    fn output(&mut self) -> &mut BytesMut {
        self.connection.output()
    }
}

fn kind(frame: &[Value]) -> Option<&str> {
    frame.first().and_then(Value::text)
}

/// One connection for everything.
async fn with_resp3(store: &RedisStore, session: &SessionId) -> Result<RedisLink, Failure> {
    let settings = &store.settings;
    let mark = store.marks.make(session)?;
    let mut test = SelfTest::new(store, session);
    let mut opening = Opening::new(store).await?;
    let out = opening.output();
    match (&settings.user, &settings.password) {
        (None, None) => resp::command(out, &[b"HELLO", b"3"]),
        (user, password) => {
            let user = user.as_deref().unwrap_or("default");
            let password = password.as_deref().unwrap_or_default();
            let login: [&[u8]; 5] = [b"HELLO", b"3", b"AUTH", user.as_bytes(), password.as_bytes()];
            resp::command(out, &login);
        }
    }
    write_opening(out, settings.db);
    write_subscribe(out, &keys::session_channel(session));
    test.write(out, By::Hash, &mark);
    write_subscribe(out, &store.keyspace.common);

    match opening.reply().await? {
        Value::Error(error) if is_only_resp2(&error) => return Err(Failure::OnlyResp2),
        Value::Error(error) => return Err(store.context.refused(&error).into()),
        _ => {}
    }
    let run = read_opening(&mut opening, settings.db).await?;
    opening.good_reply().await?;
    let tested = opening.reply().await?;
    opening.good_reply().await?;
    let tested = match test.read(tested)? {
        Tested::Well => None,
        Tested::Unknown => {
            test.write(opening.output(), By::Text, &mark);
            Some(opening.reply().await?)
        }
    };
    if let Some(tested) = tested {
        test.read(tested)?;
    }
    opening.hear_echo(&mark).await?;
    Ok(finish(store, session, mark, run, opening, None))
}

/// Two connections that make one link.
async fn with_resp2(store: &RedisStore, session: &SessionId) -> Result<RedisLink, StoreError> {
    let settings = &store.settings;
    let mark = store.marks.make(session)?;
    let mut test = SelfTest::new(store, session);
    let (mut main, mut ear) = tokio::try_join!(Opening::new(store), Opening::new(store))?;
    for opening in [&mut main, &mut ear] {
        let out = opening.output();
        match (&settings.user, &settings.password) {
            (Some(user), password) => {
                let password = password.as_deref().unwrap_or_default();
                resp::command(out, &[b"AUTH", user.as_bytes(), password.as_bytes()]);
            }
            (None, Some(password)) => resp::command(out, &[b"AUTH", password.as_bytes()]),
            (None, None) => {}
        }
    }
    write_opening(main.output(), settings.db);
    resp::command(ear.output(), &[b"CLIENT", b"SETNAME", CLIENT_NAME]);
    write_subscribe(ear.output(), &keys::session_channel(session));
    let login = settings.user.is_some() || settings.password.is_some();
    let listen = async {
        if login {
            ear.good_reply().await?;
        }
        ear.reply().await?;
        ear.good_reply().await
    };
    let speak = async {
        if login {
            main.good_reply().await?;
        }
        read_opening(&mut main, settings.db).await
    };
    let (_, run) = tokio::try_join!(listen, speak)?;
    // Only now, when the subscription stands: what the script publishes must be heard.
    test.write(main.output(), By::Hash, &mark);
    if let Tested::Unknown = test.read(main.reply().await?)? {
        test.write(main.output(), By::Text, &mark);
        test.read(main.reply().await?)?;
    }
    ear.hear_echo(&mark).await?;
    write_subscribe(ear.output(), &store.keyspace.common);
    ear.good_reply().await?;
    Ok(finish(store, session, mark, run, main, Some(ear)))
}

const CLIENT_NAME: &[u8] = b"lockwarden";

fn write_subscribe(out: &mut BytesMut, channel: &str) {
    resp::command(out, &[b"SUBSCRIBE", channel.as_bytes()]);
}

/// What every connection for commands begins with, after the login.
fn write_opening(out: &mut BytesMut, db: u32) {
    resp::command(out, &[b"CLIENT", b"SETNAME", CLIENT_NAME]);
    if db != 0 {
        resp::command(out, &[b"SELECT", db.to_string().as_bytes()]);
    }
    resp::command(out, &[b"INFO", b"server"]);
}

/// The run of the server; none: it does not say (R5).
async fn read_opening(opening: &mut Opening<'_>, db: u32) -> Result<Option<Run>, StoreError> {
    // The name is for people; a server that refuses it is used all the same. But it is the first to
    // say that a login is missing.
    if let Value::Error(error) = opening.reply().await?
        && error.starts_with(b"NOAUTH")
    {
        return Err(opening.context.refused(&error));
    }
    if db != 0
        && let Value::Error(error) = opening.reply().await?
    {
        return Err(match opening.context.refused(&error) {
            denied @ StoreError::Denied { .. } => denied,
            _ => StoreError::Invalid {
                detail: format!(
                    "the store {} has no database {db}: {}",
                    opening.context.place,
                    String::from_utf8_lossy(&error)
                ),
            },
        });
    }
    Ok(match opening.reply().await? {
        Value::Error(error) if error.starts_with(b"NOAUTH") => {
            return Err(opening.context.refused(&error));
        }
        Value::Text(info) if is_of_cluster(&info) => {
            return Err(StoreError::Invalid {
                detail: format!(
                    "the store {} is a node of a Redis Cluster, which is not supported: its scripts cannot see the keys of \
                     other slots; use a standalone server for locks",
                    opening.context.place
                ),
            });
        }
        Value::Text(info) => run_of(&info),
        _ => None,
    })
}

fn run_of(info: &Bytes) -> Option<Run> {
    let info = std::str::from_utf8(info).ok()?;
    let run = info.lines().find_map(|line| line.strip_prefix("run_id:"))?.trim();
    (!run.is_empty()).then(|| Run::new(run))
}

/// Refused up front, rather than when the first keys lie in different slots (C29).
fn is_of_cluster(info: &[u8]) -> bool {
    // As Redis and as Valkey say it.
    let modes: [&[u8]; 2] = [b"redis_mode:cluster", b"server_mode:cluster"];
    info.split(|byte| *byte == b'\n').any(|line| modes.contains(&line.trim_ascii()))
}

fn is_only_resp2(error: &[u8]) -> bool {
    let error = String::from_utf8_lossy(error);
    error.starts_with("NOPROTO") || error.contains("unknown command")
}

fn finish(
    store: &RedisStore,
    session: &SessionId,
    mark: String,
    run: Option<Run>,
    main: Opening<'_>,
    ear: Option<Opening<'_>>,
) -> RedisLink {
    let blind = run.is_none();
    let run = run.unwrap_or_else(|| Run::new(script::BLIND));
    let by_message = ear.is_some();
    let (ear, heard) = match ear {
        Some(ear) => (Some(ear.connection), ear.heard),
        None => (None, main.heard),
    };
    let keyspace = store.keyspace.clone();
    let reader = Reader::new(keyspace.clone(), run.clone());
    let mut link = RedisLink::new(Parts {
        context: store.context.clone(),
        keyspace: keyspace.clone(),
        session: session.clone(),
        marks: store.marks.clone(),
        main: main.connection,
        ear,
        writer: Writer::new(keyspace, session.clone(), run.as_str(), mark, by_message),
        reader,
        blind,
    });
    for frame in heard {
        link.pushed(frame);
    }
    link
}

/// Does all that a lock needs work here (R10)? Each command runs once on a reserved name, in a call
/// that leaves meta alone, and a message to oneself is published.
struct SelfTest<'a> {
    context: &'a Context,
    keyspace: Arc<Keyspace>,
    writer: Writer,
    calls: Vec<Call>,
}

enum Tested {
    Well,
    /// The server does not know the script.
    Unknown,
}

impl<'a> SelfTest<'a> {
    fn new(store: &'a RedisStore, session: &SessionId) -> SelfTest<'a> {
        let keyspace = Arc::new(store.keyspace.for_self_test());
        let writer =
            Writer::new(keyspace.clone(), session.clone(), script::SELF_TEST, String::new(), false);
        SelfTest { context: &store.context, keyspace, writer, calls: self_test_calls(session) }
    }

    fn write(&mut self, out: &mut BytesMut, by: By, mark: &str) {
        self.writer.write_self_test(out, by, mark, &self.calls);
    }

    fn read(&self, reply: Value) -> Result<Tested, StoreError> {
        let values = match reply {
            Value::Array(values) => values,
            Value::Error(error) if error.starts_with(b"NOSCRIPT") => return Ok(Tested::Unknown),
            Value::Error(error) => return Err(self.context.refused(&error)),
            _ => return Err(self.malformed()),
        };
        let mut reader = Reader::new(self.keyspace.clone(), Run::new(script::SELF_TEST));
        let answers = reader.answers(self.context, &self.calls, values);
        let Answers { answers, mut rest, .. } = answers.map_err(|_| self.malformed())?;
        for (_, answer) in answers {
            match answer {
                Ok(Reply::Unsubscribed) => {
                    let detail = "scripts do not see our own subscription: is this one server?";
                    return Err(self.context.protocol(detail, Effect::NotApplied));
                }
                Ok(_) => {}
                // What needs no memory still works: renewals and releases of what is held (C36).
                Err(error) if is_out_of_memory(&error) => {}
                Err(error) => return Err(error),
            }
        }
        // The echo's own answer.
        match rest.pop() {
            Some(Value::Text(error)) => Err(self.context.refused(&error)),
            _ => Ok(Tested::Well),
        }
    }

    fn malformed(&self) -> StoreError {
        self.context.protocol("an answer that the script does not give", Effect::NotApplied)
    }
}

fn is_out_of_memory(error: &StoreError) -> bool {
    use crate::error::Trouble::OutOfMemory;
    matches!(error, StoreError::Unavailable { trouble: OutOfMemory, .. })
}

fn self_test_calls(session: &SessionId) -> Vec<Call> {
    // A name of one's own: what another's failed test has left there would hide what fails here.
    let name = format!("self-test:{session}");
    let (Ok(name), Ok(first), Ok(second)) = (Name::new(&name), Token::new(b"1"), Token::new(b"2"))
    else {
        return Vec::new();
    };
    // Owners, so that their waits are followed (R37); two, or it would be a deadlock.
    let acquire = |token: &Token, wait| {
        let owner = format!("{session}:{token}").into();
        Command::Acquire(Acquire {
            at_least_ms: 0,
            delay_ms: 0,
            endless: false,
            modes: Default::default(),
            also: Default::default(),
            name: name.clone(),
            token: token.clone(),
            proof: session.as_str().into(),
            wait,
            lease_ms: 1_000,
            grace_ms: DEFAULT_GRACE_MS,
            floor: 0,
            party: Arc::new(Party { owner, ..Party::default() }),
        })
    };
    let commands = [
        acquire(&first, Wait::No),
        acquire(&second, Wait::Forever),
        Command::Renew(Renew {
            also: Default::default(),
            name: name.clone(),
            token: first.clone(),
            lease_ms: 2_000,
        }),
        Command::Show { name: name.clone() },
        Command::Revoke {
            name: name.clone(),
            token: first.clone(),
            session: Some(session.clone()),
            delayed: true,
        },
        Command::Release {
            also: Default::default(),
            name: name.clone(),
            token: first,
            lost: false,
        },
        Command::Cancel {
            also: Default::default(),
            name,
            token: second,
            proof: session.as_str().into(),
        },
        Command::Beat,
    ];
    let call = |(id, command)| Call { id, command, may_hold: false };
    (0..).zip(commands).map(call).collect()
}
