//! Who holds or waits, as a person and a process watch need to know it.

use crate::limits::{
    MAX_SITE_BYTES, MAX_TAG_KEY_BYTES, MAX_TAG_VALUE_BYTES, MAX_TAGS_BYTES, MOST_TAGS,
};
use std::sync::Arc;
use thiserror::Error;

/// The description of a holder or a waiter. Shown and watched, never a proof of ownership.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Party {
    /// The owner: which line of execution it is, among all sessions. Acquisitions of one owner can be part of a
    /// deadlock together (G7). Empty: each stands for itself. See [`crate::name::owner`].
    pub owner: Arc<str>,
    /// What a person reads: a task id, a name. May be empty.
    pub label: Arc<str>,
    /// The name of the host.
    pub host: Arc<str>,
    /// The processes that keep the lock wanted: while one of them lives, the lock is not stale
    /// (R38). Each as [`Process`] writes it; the first is the session's own.
    pub processes: Arc<[Process]>,
    /// Where in the program the acquire stands, as [`site`] writes it; empty: not known.
    pub site: Arc<str>,
    /// What the caller wants people to know besides, by key; see [`tags`].
    pub tags: Arc<[Tag]>,
}

impl Party {
    /// The pid of the session's own process, if it is known.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.processes.first().map(|process| process.pid)
    }
}

/// One thing that a holder or waiter says of itself, for people and their tools.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tag {
    /// What it is about.
    pub key: Arc<str>,
    /// What it says.
    pub value: Arc<str>,
}

/// Why tags are none.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum InvalidTag {
    /// The key is empty, too long, or has other characters than it may.
    #[error(
        "the key of a tag must be 1 to {MAX_TAG_KEY_BYTES} letters of ASCII, digits and ._- ; this one has \
         {bytes} bytes: {begins:?}"
    )]
    Key {
        /// Its length, in bytes.
        bytes: usize,
        /// Its first characters.
        begins: String,
    },
    /// The value is too long.
    #[error(
        "the value of a tag may have {MAX_TAG_VALUE_BYTES} bytes at most; that of {key:?} has {bytes}, and \
         begins {begins:?}"
    )]
    Value {
        /// The key.
        key: String,
        /// The value's length, in bytes.
        bytes: usize,
        /// Its first characters.
        begins: String,
    },
    /// There are too many.
    #[error("a lock may have {MOST_TAGS} tags at most; there are {count}")]
    TooMany {
        /// How many there are.
        count: usize,
    },
    /// All together are too long.
    #[error(
        "the tags of a lock may have {MAX_TAGS_BYTES} bytes at most, keys and values together; these have \
         {bytes}"
    )]
    TooLong {
        /// Their length, in bytes.
        bytes: usize,
    },
}

impl Tag {
    /// Checks the rules of one tag: a key of 1 to [`MAX_TAG_KEY_BYTES`] letters of ASCII, digits and `._-`, so that
    /// it is a word everywhere; a value of at most [`MAX_TAG_VALUE_BYTES`] bytes. Nothing is cut: it could mislead.
    pub fn new(key: &str, value: &str) -> Result<Tag, InvalidTag> {
        let begins = |text: &str| text.chars().take(40).collect();
        let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if !(1..=MAX_TAG_KEY_BYTES).contains(&key.len()) || !key.chars().all(allowed) {
            return Err(InvalidTag::Key { bytes: key.len(), begins: begins(key) });
        }
        if value.len() > MAX_TAG_VALUE_BYTES {
            let (key, bytes) = (key.to_owned(), value.len());
            return Err(InvalidTag::Value { key, bytes, begins: begins(value) });
        }
        Ok(Tag { key: key.into(), value: value.into() })
    }
}

/// Checks the tags of one acquisition, and puts them in the order of their keys, so that the same ones are equal. Of
/// a key that comes twice the last value counts.
///
/// ```
/// let tags = lockwarden_core::party::tags([("job", "1"), ("env", "test"), ("job", "2")])?;
/// let texts: Vec<_> = tags.iter().map(|tag| (&*tag.key, &*tag.value)).collect();
/// assert_eq!(texts, [("env", "test"), ("job", "2")]);
/// # Ok::<(), lockwarden_core::party::InvalidTag>(())
/// ```
pub fn tags<'a>(
    given: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Result<Arc<[Tag]>, InvalidTag> {
    let mut tags: Vec<Tag> = Vec::new();
    for (key, value) in given {
        let tag = Tag::new(key, value)?;
        match tags.binary_search_by(|known| (*known.key).cmp(key)) {
            Ok(index) => tags[index] = tag,
            Err(index) => tags.insert(index, tag),
        }
    }
    if tags.len() > MOST_TAGS {
        return Err(InvalidTag::TooMany { count: tags.len() });
    }
    let bytes = tags.iter().map(|tag| tag.key.len() + tag.value.len()).sum();
    if bytes > MAX_TAGS_BYTES {
        return Err(InvalidTag::TooLong { bytes });
    }
    Ok(tags.into())
}

/// A place in a program as it stands in a [`Party`]: at most [`MAX_SITE_BYTES`], of which the end says the most.
///
/// ```
/// use lockwarden_core::party::site;
/// assert_eq!(&*site("src/main.rs:7"), "src/main.rs:7");
/// assert_eq!(site(&"é/".repeat(200)).len(), 199);
/// ```
#[must_use]
pub fn site(text: &str) -> Arc<str> {
    const CUT: &str = "…";
    if text.len() <= MAX_SITE_BYTES {
        return text.into();
    }
    let least = text.len() - (MAX_SITE_BYTES - CUT.len());
    let from = (least..=text.len()).find(|&at| text.is_char_boundary(at)).unwrap_or(text.len());
    format!("{CUT}{}", &text[from..]).into()
}

/// One process, for ever: pids are reused and live in namespaces, so a pid alone is none (R38).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Process {
    /// Where its pid and start mean something: a digest of the machine's boot id, the pid namespace and the
    /// time namespace (which shifts start times). Empty: unknown.
    pub namespace: Arc<str>,
    /// The pid inside its namespace.
    pub pid: u32,
    /// When it started, in clock ticks after boot (`/proc/PID/stat`, field 22); 0: unreadable.
    pub start: u64,
}
