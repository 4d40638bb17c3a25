//! What the tests of the Redis store share: a session that is driven by hand.
#![allow(dead_code, unreachable_pub)]

use lockwarden::{
    error::StoreError,
    store::{
        Call, Link, LinkEvent, Page, Store,
        redis::{Address, Protocol, RedisSettings, RedisStore},
    },
};
use lockwarden_core::{
    Command, Epoch, Message, Name, Reply, SessionId, Token,
    command::{Acquire, Mode, Renew, Wait},
    party::{Party, Process},
};
use lockwarden_testkit::servers::{Server, ServerKind};
use std::{collections::BTreeMap, future::poll_fn, sync::Arc, time::Duration};
use tokio::runtime::Runtime;

/// How long anything may take that should come at once.
pub const SOON: Duration = Duration::from_secs(10);

/// The settings for a server.
pub fn settings(server: &Server) -> RedisSettings {
    let address = server.address();
    let (host, port) = (address.ip().to_string(), address.port());
    RedisSettings::new(Address::Tcp { host, port, tls: false })
}

/// The protocols that the server speaks.
pub fn protocols(server: &Server) -> Vec<Protocol> {
    let mut protocols = vec![Protocol::Resp2];
    if server.kind().has_resp3() {
        protocols.push(Protocol::Resp3);
    }
    protocols
}

/// On every server of this run, in each protocol that it speaks: an empty server without a guard.
pub fn with_protocols(mut body: impl FnMut(&Server, &RedisSettings)) {
    for kind in ServerKind::default_set() {
        let server = Server::start(kind);
        for protocol in protocols(&server) {
            server.cmd(&["FLUSHALL"]);
            server.without_guard();
            let mut settings = settings(&server);
            settings.protocol = Some(protocol);
            println!("{kind}, {protocol:?}");
            body(&server, &settings);
        }
    }
}

/// A session with one link, driven by hand on a runtime of its own thread.
pub struct Session {
    pub id: SessionId,
    runtime: Arc<Runtime>,
    link: Box<dyn Link>,
    next_id: u64,
    answers: BTreeMap<u64, Result<Reply, StoreError>>,
    pages: BTreeMap<u64, Result<Page, StoreError>>,
    /// The epoch of the last answers.
    pub epoch: Option<Epoch>,
    /// Messages that were heard, in order.
    pub messages: Vec<Message>,
    /// How often a copy of this session was heard.
    pub cloned: usize,
    /// Why the link is closed.
    pub closed: Option<StoreError>,
    /// It says that it may hold a lock.
    pub may_hold: bool,
}

/// A runtime for links.
pub fn runtime() -> Arc<Runtime> {
    Arc::new(tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap())
}

impl Session {
    pub fn connect(settings: &RedisSettings, id: &str) -> Session {
        Session::try_connect(settings, id).unwrap()
    }

    pub fn try_connect(settings: &RedisSettings, id: &str) -> Result<Session, StoreError> {
        let store = RedisStore::new(settings.clone())?;
        Session::on(&runtime(), &store, id)
    }

    pub fn on(runtime: &Arc<Runtime>, store: &RedisStore, id: &str) -> Result<Session, StoreError> {
        let id = SessionId::new(id);
        let link = runtime.block_on(store.connect(&id, false))?;
        Ok(Session {
            id,
            runtime: runtime.clone(),
            link,
            next_id: 0,
            answers: BTreeMap::new(),
            pages: BTreeMap::new(),
            epoch: None,
            messages: Vec::new(),
            cloned: 0,
            closed: None,
            may_hold: false,
        })
    }

    fn take(&mut self, event: LinkEvent) {
        match event {
            LinkEvent::Answers { epoch, answers } => {
                self.epoch = epoch.or(self.epoch.take());
                self.answers.extend(answers);
            }
            LinkEvent::Message(message) => self.messages.push(message),
            LinkEvent::Cloned => self.cloned += 1,
            LinkEvent::Page { id, page } => {
                self.pages.insert(id, page);
            }
            LinkEvent::Closed(error) => self.closed = Some(error),
        }
    }

    /// Drives the link until something holds. Panics if it takes too long.
    #[track_caller]
    pub fn until<T>(&mut self, what: &str, done: impl FnMut(&mut Session) -> Option<T>) -> T {
        let result = self.within(SOON, done);
        result.unwrap_or_else(|| panic!("{}: {what}: {:?}", self.id, self.closed))
    }

    /// Drives the link until something holds; none: it does not within this time.
    pub fn within<T>(
        &mut self,
        time: Duration,
        mut done: impl FnMut(&mut Session) -> Option<T>,
    ) -> Option<T> {
        let runtime = self.runtime.clone();
        let result = runtime.block_on(async {
            tokio::time::timeout(time, async {
                loop {
                    if let Some(result) = done(self) {
                        return result;
                    }
                    let event = poll_fn(|cx| self.link.poll_event(cx)).await;
                    self.take(event);
                }
            })
            .await
        });
        result.ok()
    }

    /// Takes in what has arrived, without waiting.
    pub fn drain(&mut self) {
        let runtime = self.runtime.clone();
        runtime.block_on(async {
            loop {
                let event = poll_fn(|cx| match self.link.poll_event(cx) {
                    std::task::Poll::Ready(event) => std::task::Poll::Ready(Some(event)),
                    std::task::Poll::Pending => std::task::Poll::Ready(None),
                });
                match event.await {
                    Some(event) => self.take(event),
                    None => return,
                }
            }
        });
    }

    /// Sends commands as one batch; their numbers.
    pub fn send(&mut self, commands: Vec<Command>) -> Vec<u64> {
        let first = self.next_id;
        self.next_id += commands.len() as u64;
        let may_hold = self.may_hold;
        let calls = (first..).zip(commands).map(|(id, command)| Call { id, command, may_hold });
        self.link.send(calls.collect());
        (first..self.next_id).collect()
    }

    /// Sends commands as one batch, which must all be carried out.
    #[track_caller]
    pub fn all(&mut self, commands: Vec<Command>) {
        let calls = self.send(commands);
        for answer in self.answers_to(&calls) {
            answer.unwrap();
        }
    }

    /// Sends commands as one batch, and waits for their answers.
    #[track_caller]
    pub fn batch(&mut self, commands: Vec<Command>) -> Vec<Result<Reply, StoreError>> {
        let ids = self.send(commands);
        self.answers_to(&ids)
    }

    /// Waits for the answers to these.
    #[track_caller]
    pub fn answers_to(&mut self, ids: &[u64]) -> Vec<Result<Reply, StoreError>> {
        self.until("answers", |session| {
            if ids.iter().all(|id| session.answers.contains_key(id)) {
                Some(ids.iter().filter_map(|id| session.answers.remove(id)).collect())
            } else {
                None
            }
        })
    }

    /// One command, answered.
    #[track_caller]
    pub fn try_ask(&mut self, command: Command) -> Result<Reply, StoreError> {
        self.batch(vec![command]).remove(0)
    }

    /// One command, answered without an error.
    #[track_caller]
    pub fn ask(&mut self, command: Command) -> Reply {
        self.try_ask(command).unwrap()
    }

    /// The next message.
    #[track_caller]
    pub fn message(&mut self) -> Message {
        self.until("a message", |session| {
            (!session.messages.is_empty()).then(|| session.messages.remove(0))
        })
    }

    /// All names, and how many foreign keys.
    #[track_caller]
    pub fn list(&mut self, foreign: bool) -> (Vec<Name>, u64) {
        let (mut names, mut foreign_keys, mut cursor) = (Vec::new(), 0, 0);
        loop {
            let id = self.next_id;
            self.next_id += 1;
            self.link.list(id, cursor, foreign);
            let page = self.until("a page", |session| session.pages.remove(&id)).unwrap();
            names.extend(page.names);
            foreign_keys += page.foreign;
            cursor = page.cursor;
            if cursor == 0 {
                names.sort();
                names.dedup();
                return (names, foreign_keys);
            }
        }
    }
}

pub fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

pub fn token(text: &str) -> Token {
    Token::new(text.as_bytes()).unwrap()
}

/// A party with a label.
pub fn party(label: &str) -> Arc<Party> {
    party_of("", label)
}

/// A party of an owner.
pub fn party_of(owner: &str, label: &str) -> Arc<Party> {
    let process = Process { namespace: "0123456789abcdef".into(), pid: 7, start: 99 };
    Arc::new(Party {
        owner: owner.into(),
        label: label.into(),
        host: "höst".into(),
        processes: [process].into(),
        // Some have these, and some have not.
        site: if owner.is_empty() { "".into() } else { "src/höst.rs:7".into() },
        tags: match label {
            "a" => lockwarden_core::party::tags([("task", "7\n")]).unwrap(),
            _ => Arc::default(),
        },
    })
}

/// An acquire with usual terms.
pub fn acquire(lock: &str, by: &str, wait: Wait) -> Command {
    Command::Acquire(Acquire {
        at_least_ms: 0,
        delay_ms: 0,
        endless: false,
        modes: Default::default(),
        also: Default::default(),
        name: name(lock),
        token: token(by),
        proof: "".into(),
        wait,
        lease_ms: 30_000,
        grace_ms: 3_000,
        floor: 0,
        party: party(by),
    })
}

/// An acquire as one reader of several.
pub fn acquire_shared(lock: &str, by: &str, wait: Wait) -> Command {
    let Command::Acquire(ask) = acquire(lock, by, wait) else { unreachable!() };
    Command::Acquire(Acquire { modes: [Mode::Shared].into(), ..ask })
}

/// An acquire of several locks together.
pub fn acquire_all(locks: &[&str], by: &str, wait: Wait) -> Command {
    let Command::Acquire(ask) = acquire(locks[0], by, wait) else { unreachable!() };
    Command::Acquire(Acquire { also: locks[1..].iter().copied().map(name).collect(), ..ask })
}

/// An acquire of an owner, which waits.
pub fn acquire_of(owner: &str, lock: &str, by: &str) -> Command {
    let Command::Acquire(ask) = acquire(lock, by, Wait::Forever) else { unreachable!() };
    Command::Acquire(Acquire { party: party_of(owner, by), ..ask })
}

pub fn release(lock: &str, by: &str) -> Command {
    Command::Release { also: Default::default(), name: name(lock), token: token(by), lost: false }
}

/// A release of several locks together.
pub fn release_all(locks: &[&str], by: &str) -> Command {
    let also = locks[1..].iter().copied().map(name).collect();
    Command::Release { also, name: name(locks[0]), token: token(by), lost: false }
}

pub fn renew(lock: &str, by: &str, lease_ms: u64) -> Command {
    Command::Renew(Renew { also: Default::default(), name: name(lock), token: token(by), lease_ms })
}

/// A renewal of several locks together.
pub fn renew_all(locks: &[&str], by: &str, lease_ms: u64) -> Command {
    let also = locks[1..].iter().copied().map(name).collect();
    Command::Renew(Renew { also, name: name(locks[0]), token: token(by), lease_ms })
}

pub fn cancel(lock: &str, by: &str) -> Command {
    Command::Cancel {
        also: Default::default(),
        name: name(lock),
        token: token(by),
        proof: "".into(),
    }
}

pub fn revoke(lock: &str, by: &str, delayed: bool) -> Command {
    Command::Revoke { name: name(lock), token: token(by), session: None, delayed }
}

pub fn recall(lock: &str, by: &str) -> Command {
    Command::Recall { name: name(lock), token: token(by), by: party("operator") }
}

pub fn show(lock: &str) -> Command {
    Command::Show { name: name(lock) }
}
