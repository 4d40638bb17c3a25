//! The Redis store: locks on one Redis or Valkey server, 4.0 and later.
//!
//! A lock is a plain string key with an expiry, as other lock clients write it; its record stands in the
//! value, and its queue in companion keys (`keys`). All that changes state is one Lua script (`script`,
//! `scripts/`), which carries out a batch of commands per call and mirrors `lockwarden_core::table`. This
//! module must not decide anything about locks: it writes commands (`call`), reads answers (`answer`,
//! `message`), and keeps one link (`link`), which never mends itself.

mod answer;
mod call;
mod connect;
mod inherited;
mod keys;
mod link;
mod message;
mod resp;
mod script;
mod stream;
mod trouble;
mod wire;

pub(crate) use keys::companion;

use super::{Connecting, Link, Store};
use crate::error::StoreError;
use keys::Keyspace;
use lockwarden_core::{SessionId, limits::RESERVED};
use std::{
    collections::{HashMap, VecDeque},
    fmt,
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

/// Where the server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// By TCP.
    Tcp {
        /// Its host name or address.
        host: String,
        /// Its port.
        port: u16,
        /// Encrypted, with the server's certificate checked against those that the system trusts.
        tls: bool,
    },
    /// By a unix socket.
    Unix(PathBuf),
}

/// The version of the server's protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// RESP2, with two connections: one for commands, one for messages.
    Resp2,
    /// RESP3, with one connection for both. Redis 6 and later.
    Resp3,
}

/// What one needs to know to use a server.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisSettings {
    /// Where it is.
    pub address: Address,
    /// As whom to log in; none: as the default user, if there is a password.
    pub user: Option<String>,
    /// The password.
    pub password: Option<String>,
    /// The number of the database.
    pub db: u32,
    /// What stands before every name in the names of the keys.
    pub prefix: String,
    /// Which protocol; none: RESP3 where the server speaks it.
    pub protocol: Option<Protocol>,
}

impl RedisSettings {
    /// The database 0 at an address, without a login or a prefix.
    #[must_use]
    pub fn new(address: Address) -> RedisSettings {
        RedisSettings {
            address,
            user: None,
            password: None,
            db: 0,
            prefix: String::new(),
            protocol: None,
        }
    }
}

impl fmt::Debug for RedisSettings {
    /// Without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisSettings")
            .field("address", &self.address)
            .field("user", &self.user)
            .field("password", &self.password.as_ref().map(|_| "…"))
            .field("db", &self.db)
            .field("prefix", &self.prefix)
            .field("protocol", &self.protocol)
            .finish()
    }
}

/// Locks on a Redis or Valkey server.
pub struct RedisStore {
    settings: RedisSettings,
    keyspace: Arc<Keyspace>,
    context: trouble::Context,
    /// The server does not speak RESP3: found out once.
    only_resp2: AtomicBool,
    marks: Arc<Marks>,
}

impl RedisStore {
    /// Takes the settings; connects to nothing yet.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] if the prefix begins with `lockwarden:`.
    pub fn new(settings: RedisSettings) -> Result<RedisStore, StoreError> {
        if settings.prefix.starts_with(RESERVED) {
            let prefix = &settings.prefix;
            return Err(StoreError::Invalid {
                detail: format!("prefixes that begin with \"{RESERVED}\" are reserved: {prefix:?}"),
            });
        }
        let keyspace = Arc::new(Keyspace::new(settings.db, &settings.prefix));
        let context = trouble::Context {
            place: place(&settings).into(),
            user: settings.user.as_deref().unwrap_or("default").into(),
        };
        let only_resp2 = AtomicBool::new(settings.protocol == Some(Protocol::Resp2));
        Ok(RedisStore { settings, keyspace, context, only_resp2, marks: Arc::default() })
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RedisStore").field(&self.settings).finish()
    }
}

impl Store for RedisStore {
    /// Connecting leaves `meta` alone, so that no epoch begins here.
    fn connect<'a>(&'a self, session: &'a SessionId, _may_hold: bool) -> Connecting<'a> {
        Box::pin(async move {
            let link = connect::connect(self, session).await?;
            Ok(Box::new(link) as Box<dyn Link>)
        })
    }

    fn place(&self) -> String {
        self.context.place.to_string()
    }

    fn watches_processes(&self) -> bool {
        true
    }
}

impl RedisStore {
    fn speaks_only_resp2(&self) -> bool {
        self.only_resp2.load(Ordering::Relaxed)
    }

    fn note_only_resp2(&self) {
        self.only_resp2.store(true, Ordering::Relaxed);
    }
}

/// As a URL, without the password.
fn place(settings: &RedisSettings) -> String {
    let user = settings.user.as_ref().map_or_else(String::new, |user| format!("{user}@"));
    let db = if settings.db == 0 { String::new() } else { format!("/{}", settings.db) };
    match &settings.address {
        Address::Tcp { host, port, tls } => {
            let scheme = if *tls { "rediss" } else { "redis" };
            let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
            format!("{scheme}://{user}{host}:{port}{db}")
        }
        Address::Unix(path) => {
            let db = if settings.db == 0 { String::new() } else { format!("?db={}", settings.db) };
            format!("unix://{user}{}{db}", path.display())
        }
    }
}

/// The marks of the links that this process has made for each session: what is heard on a session's
/// own channel with another mark comes from a copy of this session (R24). Earlier links count as one's
/// own, because a message of theirs may be heard late.
#[derive(Debug, Default)]
struct Marks(Mutex<HashMap<SessionId, VecDeque<String>>>);

/// Older links than so many are forgotten: nothing of theirs is under way any more.
const MARKS_PER_SESSION: usize = 64;

impl Marks {
    /// A new link's mark.
    fn make(&self, session: &SessionId) -> Result<String, StoreError> {
        let number = getrandom::u64().map_err(|error| StoreError::Invalid {
            detail: format!("the system gives no random numbers: {error}"),
        })?;
        let mark = format!("{number:016x}");
        let mut marks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let own = marks.entry(session.clone()).or_default();
        if own.len() == MARKS_PER_SESSION {
            own.pop_front();
        }
        own.push_back(mark.clone());
        Ok(mark)
    }

    /// Did a link of this process to the session send what begins with this mark?
    fn is_own(&self, session: &SessionId, mark: &[u8]) -> bool {
        let marks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        marks.get(session).is_some_and(|own| own.iter().any(|it| it.as_bytes() == mark))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> RedisSettings {
        RedisSettings {
            user: Some("app".into()),
            password: Some("secret".into()),
            ..RedisSettings::new(Address::Tcp { host: "h".into(), port: 1, tls: true })
        }
    }

    #[test]
    fn the_password_is_shown_nowhere() {
        let store = RedisStore::new(settings()).unwrap();
        assert_eq!(store.place(), "rediss://app@h:1");
        assert!(!format!("{store:?}").contains("secret"), "{store:?}");
    }

    #[test]
    fn a_reserved_prefix_is_refused() {
        let settings = RedisSettings { prefix: "lockwarden:x".into(), ..settings() };
        assert!(matches!(RedisStore::new(settings), Err(StoreError::Invalid { .. })));
    }

    #[test]
    fn marks_of_earlier_links_are_ones_own() {
        let (marks, session) = (Marks::default(), SessionId::new("s"));
        let (first, second) = (marks.make(&session).unwrap(), marks.make(&session).unwrap());
        assert!(marks.is_own(&session, first.as_bytes()));
        assert!(marks.is_own(&session, second.as_bytes()));
        assert!(!marks.is_own(&session, b"0000000000000000"));
        assert!(!marks.is_own(&SessionId::new("t"), first.as_bytes()));
    }
}
