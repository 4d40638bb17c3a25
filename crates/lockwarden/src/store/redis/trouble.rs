//! What the server's errors and the socket's mean to a lock.

use crate::error::{Effect, StoreError, Trouble};
use lockwarden_core::Reply;
use std::{io, sync::Arc};

/// The permissions that are enough, beside `~` for the locks' own names: for messages to people.
pub(super) const MINIMAL_ACL: &str = "~lockwarden:* &lockwarden:* +hello +auth +select +client|setname \
    +info +subscribe +eval +evalsha +scan +getrange +time +pubsub|numsub +publish +get +mget +set +del \
    +exists +pttl +pexpire +hget +hset +hmget +hmset +hdel +hkeys +hlen +zadd +zrem +zcard +zrank +zrange +zrevrange";

/// Where errors come from, for their texts.
#[derive(Clone, Debug)]
pub(super) struct Context {
    /// Where the store is, without its password.
    pub(super) place: Arc<str>,
    /// The user whose permissions count.
    pub(super) user: Arc<str>,
}

/// What a server's error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Trouble(Trouble),
    Denied,
    NotALock,
}

/// The server's error codes that mean something to us. Some versions wrap the error of a command in
/// the script's own ("ERR Error running script … @user_script: 1: -OOM command …"), so they are looked
/// for anywhere.
const CODES: [(&str, Kind); 19] = [
    ("WRONGTYPE", Kind::NotALock),
    ("OOM", Kind::Trouble(Trouble::OutOfMemory)),
    ("MISCONF", Kind::Trouble(Trouble::OutOfMemory)),
    ("READONLY", Kind::Trouble(Trouble::ReadOnly)),
    ("NOREPLICAS", Kind::Trouble(Trouble::ReadOnly)),
    ("LOADING", Kind::Trouble(Trouble::Loading)),
    ("BUSY", Kind::Trouble(Trouble::Loading)),
    ("MASTERDOWN", Kind::Trouble(Trouble::Loading)),
    ("TRYAGAIN", Kind::Trouble(Trouble::Loading)),
    ("CLUSTERDOWN", Kind::Trouble(Trouble::Loading)),
    ("MOVED", Kind::Trouble(Trouble::Loading)),
    ("ASK", Kind::Trouble(Trouble::Loading)),
    ("UNKILLABLE", Kind::Trouble(Trouble::Loading)),
    ("NOAUTH", Kind::Denied),
    ("WRONGPASS", Kind::Denied),
    ("NOPERM", Kind::Denied),
    ("DENIED", Kind::Denied),
    ("EXECABORT", Kind::Trouble(Trouble::Protocol)),
    ("LOCKWARDEN", Kind::Trouble(Trouble::Protocol)),
];

/// What a server before Redis 6 says to a user name.
const NO_USERS: &str = "wrong number of arguments for 'auth'";

fn kind(text: &str) -> Kind {
    let words = text.split_whitespace().take(30);
    for word in words.map(|word| word.trim_matches(|c: char| !c.is_ascii_uppercase())) {
        if let Some((_, kind)) = CODES.iter().find(|(code, _)| *code == word) {
            return *kind;
        }
    }
    // Errors without a code of their own, of older versions.
    let denied = [
        "invalid password",
        "no permission",
        "can't run this command",
        "without any password",
        NO_USERS,
    ];
    if denied.iter().any(|part| text.contains(part)) {
        return Kind::Denied;
    }
    if text.contains("max number of clients") {
        return Kind::Trouble(Trouble::Unreachable);
    }
    Kind::Trouble(Trouble::Protocol)
}

/// Is a refusal one of a key, and not of a command?
pub(super) fn is_about_a_key(refusal: &str) -> bool {
    refusal.contains("key") && !refusal.contains("command")
}

impl Context {
    /// The server refused a request as a whole: nothing was done.
    pub(super) fn refused(&self, error: &[u8]) -> StoreError {
        let text = String::from_utf8_lossy(error);
        match kind(&text) {
            Kind::Trouble(trouble) => self.unavailable(trouble, text.trim(), Effect::NotApplied),
            Kind::Denied => self.denied(&text),
            Kind::NotALock => StoreError::Invalid {
                detail: format!(
                    "a key of Lockwarden's own on {} is of another type: {text}",
                    self.place
                ),
            },
        }
    }

    /// One command of a batch failed; it was not applied.
    pub(super) fn command_failed(&self, error: &[u8]) -> Result<Reply, StoreError> {
        match kind(&String::from_utf8_lossy(error)) {
            Kind::NotALock => Ok(Reply::NotALock),
            _ => Err(self.refused(error)),
        }
    }

    /// It refuses us. Names what is missing, and the command that would grant it.
    pub(super) fn denied(&self, error: &str) -> StoreError {
        let (user, error) = (&self.user, error.trim());
        let detail = if error.contains("NOAUTH") || error.contains("without any password") {
            format!("it asks for a password, or for another one ({error})")
        } else if error.contains("WRONGPASS") || error.contains("invalid password") {
            format!("wrong user or password ({error})")
        } else if error.contains(NO_USERS) {
            format!(
                "wrong user or password: this server has passwords, but no users (they came with Redis 6); \
                 leave {user} out of the URL, as in redis://:PASSWORD@HOST ({error})"
            )
        } else if error.contains("channel") {
            format!(
                "user {user} lacks the channel permission &lockwarden:* ({error}): \
                 ACL SETUSER {user} &lockwarden:*"
            )
        } else if is_about_a_key(error) {
            format!(
                "user {user} may not use a key ({error}): \
                 ACL SETUSER {user} ~lockwarden:* and ~ with the names of the locks"
            )
        } else {
            format!(
                "user {user} may not run a command that locks need ({error}): \
                 ACL SETUSER {user} {MINIMAL_ACL}"
            )
        };
        StoreError::Denied { place: self.place.to_string(), detail }
    }

    /// No connection could be made.
    pub(super) fn unreachable(&self, detail: &str) -> StoreError {
        self.unavailable(Trouble::Unreachable, detail, Effect::NotApplied)
    }

    /// The connection broke.
    pub(super) fn disconnected(&self, detail: &str, effect: Effect) -> StoreError {
        self.unavailable(Trouble::Disconnected, detail, effect)
    }

    /// It answers something else than the protocol says.
    pub(super) fn protocol(&self, detail: &str, effect: Effect) -> StoreError {
        self.unavailable(Trouble::Protocol, detail, effect)
    }

    fn unavailable(&self, trouble: Trouble, detail: &str, effect: Effect) -> StoreError {
        let (place, detail) = (self.place.to_string(), detail.to_owned());
        StoreError::Unavailable { place, trouble, detail, effect }
    }
}

/// An error of the socket in words; the kind's own where the system says nothing more.
pub(super) fn words(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "the server closed the connection".to_owned(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context() -> Context {
        Context { place: "redis://h:1".into(), user: "app".into() }
    }

    #[test]
    fn errors_have_their_kinds() {
        for (text, expected) in [
            ("OOM command not allowed when used memory > 'maxmemory'.", Trouble::OutOfMemory),
            ("@user_script: 12: -OOM command not allowed when used", Trouble::OutOfMemory),
            ("MISCONF Redis is configured to save RDB snapshots, but", Trouble::OutOfMemory),
            ("READONLY You can't write against a read only replica.", Trouble::ReadOnly),
            (
                "@user_script: 3: -READONLY You can't write against a read only slave.",
                Trouble::ReadOnly,
            ),
            ("NOREPLICAS Not enough good replicas to write.", Trouble::ReadOnly),
            ("LOADING Redis is loading the dataset in memory", Trouble::Loading),
            ("BUSY Redis is busy running a script.", Trouble::Loading),
            ("ERR max number of clients reached", Trouble::Unreachable),
            ("ERR something new", Trouble::Protocol),
        ] {
            let StoreError::Unavailable { trouble, effect, .. } =
                context().refused(text.as_bytes())
            else {
                panic!("{text}");
            };
            assert_eq!((trouble, effect), (expected, Effect::NotApplied), "{text}");
        }
        let wrong_type =
            b"@user_script: 9: -WRONGTYPE Operation against a key holding the wrong kind";
        assert_eq!(context().command_failed(wrong_type), Ok(Reply::NotALock));
    }

    /// C30: what is missing has a name, and the message says how to get it.
    #[test]
    fn c30_a_denial_says_what_is_missing() {
        for (text, expected) in [
            ("NOPERM this user has no permissions to access one of the channels", "&lockwarden:*"),
            ("NOPERM No permissions to access a channel", "ACL SETUSER app &lockwarden:*"),
            ("NOPERM User app has no permissions to run the 'evalsha' command", "+evalsha"),
            ("NOPERM No permissions to access a key", "~lockwarden:*"),
            ("NOAUTH Authentication required.", "asks for a password"),
            ("WRONGPASS invalid username-password pair or user is disabled.", "wrong user"),
            ("ERR invalid password", "wrong user or password"),
            ("ERR wrong number of arguments for 'auth' command", "leave app out of the URL"),
            ("ERR AUTH <password> called without any password configured", "password"),
        ] {
            let StoreError::Denied { detail, .. } = context().refused(text.as_bytes()) else {
                panic!("{text}");
            };
            assert!(detail.contains(expected), "{text}: {detail}");
        }
    }
}
