//! Names, tokens and ids: parsed once, valid ever after.

use crate::limits::{MAX_NAME_BYTES, MAX_TOKEN_BYTES, RESERVED};
use std::{fmt, sync::Arc};
use thiserror::Error;

/// Why a text is no name or no token.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum InvalidName {
    /// It has no characters.
    #[error("a {0} must not be empty")]
    Empty(&'static str),
    /// It is too long.
    #[error("a {what} may have {most} bytes at most; this one has {bytes}, and begins {begins:?}")]
    TooLong {
        /// `name`, `token`, `label` or `owner id`.
        what: &'static str,
        /// Its length, in bytes.
        bytes: usize,
        /// The most, in bytes.
        most: usize,
        /// Its first characters.
        begins: String,
    },
    /// It is not UTF-8.
    #[error("a name must be UTF-8; this one is not: {0:?}")]
    NotUtf8(String),
    /// It begins as companions do (R2), and as the value of a key that holds a record.
    #[error("names and tokens that begin with \"{RESERVED}\" are reserved: {0:?}")]
    Reserved(String),
    /// An owner id has other characters than it may.
    #[error(
        "an owner id may have letters of ASCII, digits and ._:@+=- only, and / between these; this one is {0:?}"
    )]
    OwnerCharacters(String),
}

/// What is locked: any non-empty UTF-8 of at most [`MAX_NAME_BYTES`] bytes that does not begin
/// with [`RESERVED`].
///
/// ```
/// use lockwarden_core::Name;
/// assert_eq!(Name::new("stock:order_7")?.as_str(), "stock:order_7");
/// assert!(Name::new("").is_err());
/// # Ok::<(), lockwarden_core::name::InvalidName>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<str>);

impl Name {
    /// Checks the rules of a name.
    pub fn new(text: &str) -> Result<Name, InvalidName> {
        if text.is_empty() {
            return Err(InvalidName::Empty("name"));
        }
        not_longer("name", text.as_bytes(), MAX_NAME_BYTES)?;
        if text.starts_with(RESERVED) {
            return Err(InvalidName::Reserved(beginning(text.as_bytes())));
        }
        Ok(Name(text.into()))
    }

    /// As [`Name::new`], from bytes that may not be UTF-8.
    pub fn from_bytes(bytes: &[u8]) -> Result<Name, InvalidName> {
        let text =
            std::str::from_utf8(bytes).map_err(|_| InvalidName::NotUtf8(beginning(bytes)))?;
        Name::new(text)
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The value that proves one acquisition: 1 to [`MAX_TOKEN_BYTES`] bytes, unique per acquisition. It stands
/// in the lock's key; what a foreign client writes there counts as one, whatever its bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(Arc<[u8]>);

impl Token {
    /// Checks the rules of a token: its length, and that it does not begin with [`RESERVED`].
    pub fn new(bytes: &[u8]) -> Result<Token, InvalidName> {
        if bytes.is_empty() {
            return Err(InvalidName::Empty("token"));
        }
        not_longer("token", bytes, MAX_TOKEN_BYTES)?;
        if bytes.starts_with(RESERVED.as_bytes()) {
            return Err(InvalidName::Reserved(beginning(bytes)));
        }
        Ok(Token(bytes.into()))
    }

    /// The value of a key that someone wrote, our limits or not: what a store found is a fact.
    #[must_use]
    pub fn found(bytes: &[u8]) -> Token {
        Token(bytes.into())
    }

    /// The bytes of the token.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Checks the length of a label, and cuts nothing: a label that was cut could mislead.
pub fn label(text: &str) -> Result<&str, InvalidName> {
    not_longer("label", text.as_bytes(), crate::limits::MAX_LABEL_BYTES)?;
    Ok(text)
}

/// Checks an owner id: 1 to [`MAX_OWNER_BYTES`](crate::limits::MAX_OWNER_BYTES) letters of ASCII, digits and
/// `._:@+=-`, which ids of tasks, hosts and processes consist of and every store can hold as they are; `/` between
/// an owner and its part (see [`crate::deadlock`]).
pub fn owner(text: &str) -> Result<&str, InvalidName> {
    if text.is_empty() {
        return Err(InvalidName::Empty("owner id"));
    }
    not_longer("owner id", text.as_bytes(), crate::limits::MAX_OWNER_BYTES)?;
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._:@+=-".contains(c);
    if text.split('/').all(|part| !part.is_empty() && part.chars().all(allowed)) {
        Ok(text)
    } else {
        Err(InvalidName::OwnerCharacters(beginning(text.as_bytes())))
    }
}

fn not_longer(what: &'static str, bytes: &[u8], most: usize) -> Result<(), InvalidName> {
    if bytes.len() > most {
        let begins = beginning(bytes);
        return Err(InvalidName::TooLong { what, bytes: bytes.len(), most, begins });
    }
    Ok(())
}

fn beginning(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(40)]).into_owned()
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Wraps a text that a store or a generator made.
            #[must_use]
            pub fn new(text: &str) -> Self {
                Self(text.into())
            }

            /// The id as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.0)
            }
        }
    };
}

id! {
    /// The id of one session: one connected client instance in one process. Random, never reused.
    SessionId
}
id! {
    /// A stretch of the server's life in which no acknowledged lock was lost. Compared for
    /// equality only.
    Epoch
}
id! {
    /// One run of the server's process (Redis: `run_id`; embedded: the boot id).
    Run
}

impl fmt::Display for Name {
    /// On one line: control characters are escaped, all else stands as it is.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        escaped(&self.0, f)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Name({self})")
    }
}

impl fmt::Display for Token {
    /// On one line: bytes that are no text stand as `\xNN`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            escaped(chunk.valid(), f)?;
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({self})")
    }
}

fn escaped(text: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for c in text.chars() {
        if c.is_control() { write!(f, "{}", c.escape_default())? } else { write!(f, "{c}")? }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// C27: every odd name is refused with its reason, or is its own name.
    #[test]
    fn c27_strange_names() {
        for good in [" ", "a b", "ключ-日本-🔒", "line\nbreak", "a:b", "{", "}{", "{}", "{a}b", "é"]
        {
            assert_eq!(Name::new(good).unwrap().as_str(), good);
        }
        assert_eq!(Name::new(""), Err(InvalidName::Empty("name")));
        assert!(matches!(
            Name::new(&"x".repeat(5_000)),
            Err(InvalidName::TooLong { most: 4_096, .. })
        ));
        assert!(Name::new(&"x".repeat(4_096)).is_ok());
        assert!(matches!(Name::from_bytes(b"\xff\x00raw"), Err(InvalidName::NotUtf8(_))));
        assert!(matches!(Name::new("lockwarden:meta"), Err(InvalidName::Reserved(_))));
        assert_ne!(Name::new("é").unwrap(), Name::new("e\u{301}").unwrap());
    }

    /// C05, C27: whatever the bytes, what is shown is text on one line.
    #[test]
    fn c05_foreign_tokens_show_on_one_line() {
        assert_eq!(Token::found(b"\xff\n\x00a\xc3\xa9").to_string(), "\\xff\\n\\u{0}aé");
        assert_eq!(Name::new("line\nbreak").unwrap().to_string(), "line\\nbreak");
    }
}
