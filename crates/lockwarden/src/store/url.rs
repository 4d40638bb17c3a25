//! Which store a URL names.

use crate::{
    error::{Error, StoreError},
    store::{
        Store,
        file::FileStore,
        memory::MemoryStore,
        redis::{Address, Protocol, RedisSettings, RedisStore},
    },
};
use percent_encoding::percent_decode_str;
use std::{path::PathBuf, str::FromStr, sync::Arc};
use url::Url;

/// A parsed URL of a store.
///
/// | form | store |
/// |---|---|
/// | `memory:` | the memory of this process |
/// | `file:DIR`, `file:///DIR` | an embedded store in a directory |
/// | `redis://[[USER]:PASSWORD@]HOST[:PORT][/DB]` | Redis or Valkey, port 6379 and database 0 by default |
/// | `rediss://…` | the same with TLS |
/// | `unix:///PATH`, `unix://[USER:PASSWORD@]/PATH`, `redis+unix://…` | the same through a socket, database in `?db=DB` |
///
/// Of Redis also `?prefix=TEXT` (before every lock's name; default none), `?db=DB`,
/// `?protocol=2` or `3` (RESP version; default the best that the server speaks).
///
/// ```
/// use lockwarden::store::url::StoreUrl;
/// assert!("redis://:secret@localhost/3".parse::<StoreUrl>().is_ok());
/// assert!("http://localhost".parse::<StoreUrl>().is_err());
/// ```
#[derive(Clone, Debug)]
pub enum StoreUrl {
    /// The memory of this process.
    Memory,
    /// An embedded store in this directory.
    File(PathBuf),
    /// Redis or Valkey.
    Redis(RedisSettings),
}

/// The forms, for messages.
const FORMS: &str = "file:DIR, memory:, redis://HOST, rediss://HOST, unix:///SOCKET";

impl FromStr for StoreUrl {
    type Err = Error;

    fn from_str(text: &str) -> Result<StoreUrl, Error> {
        match text.split_once(':') {
            Some(("memory", "")) => Ok(StoreUrl::Memory),
            Some(("file", path)) => file(text, path),
            Some(("redis" | "rediss", _)) => tcp(text),
            Some(("unix" | "redis+unix", _)) => socket(text),
            _ => Err(invalid(text, &format!("it must be one of {FORMS}"))),
        }
    }
}

impl StoreUrl {
    /// The store; not yet connected.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] for settings that the store cannot have.
    pub fn open(self) -> Result<Arc<dyn Store>, StoreError> {
        Ok(match self {
            StoreUrl::Memory => Arc::new(MemoryStore::of_process()),
            StoreUrl::File(dir) => Arc::new(FileStore::new(dir)),
            StoreUrl::Redis(settings) => Arc::new(RedisStore::new(settings)?),
        })
    }
}

fn file(text: &str, path: &str) -> Result<StoreUrl, Error> {
    // `file:DIR` is taken as it stands; `file://` begins a URL, whose path may be encoded.
    let path = match path.strip_prefix("//") {
        None => path.to_owned(),
        Some(rest) if rest.starts_with('/') => decoded(text, rest)?,
        Some(_) => return Err(invalid(text, "a file URL names no host: file:DIR or file:///DIR")),
    };
    if path.is_empty() {
        return Err(invalid(text, "it names no directory: file:DIR"));
    }
    Ok(StoreUrl::File(path.into()))
}

fn tcp(text: &str) -> Result<StoreUrl, Error> {
    let url = parsed(text)?;
    let host = url.host_str().unwrap_or("");
    if host.is_empty() {
        return Err(invalid(text, "it names no host"));
    }
    let address = Address::Tcp {
        host: host.trim_start_matches('[').trim_end_matches(']').to_owned(),
        port: url.port().unwrap_or(6379),
        tls: url.scheme() == "rediss",
    };
    let mut settings = RedisSettings::new(address);
    credentials(text, &url, &mut settings)?;
    match url.path().trim_matches('/') {
        "" => {}
        db => settings.db = number(text, "the database", db)?,
    }
    queried(text, &url, settings)
}

fn socket(text: &str) -> Result<StoreUrl, Error> {
    // As redis-py reads them: unix://[USER:PASSWORD@]/PATH?db=N. The parser wants no other scheme.
    let (_, rest) = text.split_once(':').unwrap_or(("", ""));
    let rest = rest.strip_prefix("//").unwrap_or(rest);
    let authority =
        if rest.contains('@') { rest.replacen('@', "@socket", 1) } else { format!("socket{rest}") };
    let url = parsed(&format!("redis://{authority}")).map_err(|_| invalid(text, "it is no URL"))?;
    let path = decoded(text, url.path())?;
    if url.host_str() != Some("socket") || path.len() < 2 {
        return Err(invalid(text, "it names no socket by an absolute path: unix:///PATH"));
    }
    let mut settings = RedisSettings::new(Address::Unix(path.into()));
    credentials(text, &url, &mut settings)?;
    queried(text, &url, settings)
}

fn parsed(text: &str) -> Result<Url, Error> {
    Url::parse(text).map_err(|error| invalid(text, &error.to_string()))
}

fn credentials(text: &str, url: &Url, settings: &mut RedisSettings) -> Result<(), Error> {
    if !url.username().is_empty() {
        settings.user = Some(decoded(text, url.username())?);
    }
    if let Some(password) = url.password() {
        settings.password = Some(decoded(text, password)?);
    }
    if settings.user.is_some() && settings.password.is_none() {
        return Err(invalid(text, "a user needs a password: redis://USER:PASSWORD@HOST"));
    }
    Ok(())
}

fn queried(text: &str, url: &Url, mut settings: RedisSettings) -> Result<StoreUrl, Error> {
    for (key, value) in url.query_pairs() {
        match &*key {
            "db" => settings.db = number(text, "the database", &value)?,
            "prefix" => settings.prefix = value.into_owned(),
            "protocol" => {
                settings.protocol = match &*value {
                    "2" => Some(Protocol::Resp2),
                    "3" => Some(Protocol::Resp3),
                    _ => return Err(invalid(text, "the protocol is 2 or 3")),
                }
            }
            _ => {
                let rule = format!("unknown option {key:?}; there are db, prefix and protocol");
                return Err(invalid(text, &rule));
            }
        }
    }
    Ok(StoreUrl::Redis(settings))
}

fn number(text: &str, what: &str, value: &str) -> Result<u32, Error> {
    value.parse().map_err(|_| invalid(text, &format!("{what} is a number, not {value:?}")))
}

fn decoded(text: &str, part: &str) -> Result<String, Error> {
    let decoded = percent_decode_str(part).decode_utf8();
    Ok(decoded.map_err(|_| invalid(text, "it is not UTF-8"))?.into_owned())
}

/// The URL and the rule that it breaks, without its password.
fn invalid(text: &str, rule: &str) -> Error {
    Error::Invalid(format!("the store URL {:?} is not usable: {rule}", masked(text)))
}

/// Whatever stands between the scheme and the last `@` may be a password.
fn masked(text: &str) -> String {
    match (text.find("//"), text.rfind('@')) {
        (Some(begin), Some(end)) if begin + 2 <= end => {
            format!("{}…{}", &text[..begin + 2], &text[end..])
        }
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redis(text: &str) -> RedisSettings {
        match text.parse().unwrap() {
            StoreUrl::Redis(settings) => settings,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_form_is_read() {
        assert!(matches!("memory:".parse().unwrap(), StoreUrl::Memory));
        for (text, dir) in [
            ("file:a b", "a b"),
            ("file:/x/y", "/x/y"),
            ("file:///x%20y", "/x y"),
            ("file:./%", "./%"),
        ] {
            let StoreUrl::File(path) = text.parse().unwrap() else { panic!("{text}") };
            assert_eq!(path, PathBuf::from(dir));
        }
        let settings = redis("rediss://u:p%40ss@[::1]:7000/3?prefix=app:&protocol=2");
        assert_eq!(settings.address, Address::Tcp { host: "::1".into(), port: 7000, tls: true });
        assert_eq!(
            (settings.user.as_deref(), settings.password.as_deref()),
            (Some("u"), Some("p@ss"))
        );
        assert_eq!((settings.db, settings.prefix.as_str()), (3, "app:"));
        assert_eq!(settings.protocol, Some(Protocol::Resp2));
        let settings = redis("redis://:secret@localhost");
        assert_eq!(
            (settings.user, settings.password.as_deref(), settings.db),
            (None, Some("secret"), 0)
        );
        for text in ["unix:///run/r.sock?db=2", "redis+unix:///run/r.sock?db=2"] {
            let settings = redis(text);
            assert_eq!(settings.address, Address::Unix("/run/r.sock".into()));
            assert_eq!(settings.db, 2);
        }
        let settings = redis("unix://u:p@/run/r.sock");
        assert_eq!(settings.address, Address::Unix("/run/r.sock".into()));
        assert_eq!(settings.password.as_deref(), Some("p"));
    }

    /// Every refusal names the URL and the rule, and never a password.
    #[test]
    fn bad_urls_are_refused() {
        for text in [
            "",
            "x",
            "http://h",
            "redis:",
            "redis://",
            "redis:///1",
            "redis://h/x",
            "redis://h/-1",
            "redis://h:99999",
            "redis://h?protocol=4",
            "redis://h?colour=red",
            "redis://u@h",
            "file:",
            "file://host/dir",
            "unix:",
            "unix://",
            "unix://relative",
            "memory:x",
            "redis://h/1/2",
            "redis://u:hidden@h/x",
            "unix://u:hidden@relative",
        ] {
            let error = text.parse::<StoreUrl>().expect_err(text);
            assert_eq!(error.code(), "invalid", "{text}");
            assert!(!error.to_string().contains("hidden"), "{error}");
        }
    }
}
