//! The gate of a Redis key: one script compares with the newest fence, keeps the newer and writes.
//!
//! It is for any client: this module says what to send and reads the reply; it has no connection. Send
//! [`SCRIPT`] with EVAL (or its SHA-1 with EVALSHA), two keys and five arguments; `docs/GATES.md` has it
//! with redis-rs and redis-py.
//!
//! ```
//! use lockwarden::gate::redis::{SCRIPT, Write};
//! # fn eval(_: &str, keys: &[Vec<u8>], arguments: &[Vec<u8>]) -> (i64, i64, String) {
//! #     assert_eq!(keys[1], b"lockwarden:gate:{stock:7}");
//! #     assert_eq!(arguments[0], b"1764470000000000");
//! #     (2, 1764470000000001, String::new())
//! # }
//! # let fence = 1_764_470_000_000_000; // from Guard::fence
//! let write = Write::set("stock:7", fence, "41").call()?;
//! let (code, newest, words) = eval(SCRIPT, &write.keys, &write.arguments); // your client
//! match write.read(code, newest, &words) {
//!     Ok(()) => {}                               // written
//!     Err(error) => println!("{error}"),         // fence 1764470000000000 is stale: …
//! }
//! # Ok::<(), lockwarden::gate::Error>(())
//! ```
//!
//! **The fence outlives the value.** It is kept for ever unless [`Write::keep_fence_for`] says
//! otherwise, also after the value has expired or was deleted. Once a fence is gone (its time is over,
//! or the server lost its data or evicted it), the gate has forgotten what it saw, and the next fence
//! passes, however old it is. So the time must be longer than any holder may sleep, and the server must
//! not evict (`maxmemory-policy noeviction`).

use super::{Error, MAX_FENCE, Stale, valid};
use crate::store::redis::companion;
use lockwarden_core::limits::{MAX_WAIT_MS, RESERVED};
use std::time::Duration;

/// The script: KEYS, arguments and reply are described at its head.
pub const SCRIPT: &str = include_str!("redis.lua");

/// The fence was not stale, and the write is done.
pub const PASSED: i64 = 1;
/// The second element of the reply is newer.
pub const STALE: i64 = 2;
/// One of the keys holds something else.
pub const UNFIT: i64 = 3;
/// An argument breaks its rule.
pub const INVALID: i64 = 4;

/// One write at a key, under a fence.
#[derive(Clone, Debug)]
#[must_use = "nothing is written before it is sent"]
pub struct Write {
    key: Vec<u8>,
    fence: u64,
    value: Option<Vec<u8>>,
    expiry: Option<Duration>,
    keep: Option<Duration>,
}

/// What to send with [`SCRIPT`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Both keys; they share a slot of a Cluster.
    pub keys: [Vec<u8>; 2],
    /// The arguments behind them.
    pub arguments: [Vec<u8>; 5],
    fence: u64,
}

/// Where the newest fence of a key stands: a string with a decimal number.
#[must_use]
pub fn fence_key(key: &[u8]) -> Vec<u8> {
    companion("gate", key)
}

impl Write {
    /// Sets the key to a value, without an expiry.
    pub fn set(key: impl AsRef<[u8]>, fence: u64, value: impl AsRef<[u8]>) -> Write {
        let (key, value) = (key.as_ref().to_owned(), Some(value.as_ref().to_owned()));
        Write { key, fence, value, expiry: None, keep: None }
    }

    /// Deletes the key. Its fence stays.
    pub fn delete(key: impl AsRef<[u8]>, fence: u64) -> Write {
        Write { key: key.as_ref().to_owned(), fence, value: None, expiry: None, keep: None }
    }

    /// The value expires after this time.
    pub fn expire_after(mut self, expiry: Duration) -> Write {
        self.expiry = Some(expiry);
        self
    }

    /// The fence is forgotten after this time without a write, instead of never. At least as long as
    /// the value lives (a value without an expiry needs its fence for ever), and longer than any
    /// holder may sleep.
    pub fn keep_fence_for(mut self, keep: Duration) -> Write {
        self.keep = Some(keep);
        self
    }

    /// Checks all values.
    ///
    /// # Errors
    /// [`Error::Invalid`].
    pub fn call(&self) -> Result<Call, Error> {
        valid(self.fence)?;
        if self.key.is_empty() {
            return Err(Error::invalid("key", "it is empty"));
        }
        let reserved = RESERVED.as_bytes();
        if self.key.starts_with(reserved) {
            return Err(Error::invalid("key", format!("it begins with {RESERVED}, as locks do")));
        }
        if self.value.as_ref().is_some_and(|value| value.starts_with(reserved)) {
            return Err(Error::invalid("value", format!("it begins with {RESERVED}, as locks do")));
        }
        let keep_ms = ms("keep_fence_for", self.keep)?;
        let expiry_ms = ms("expire_after", self.expiry)?;
        if self.value.is_some() && keep_ms > 0 && (expiry_ms == 0 || expiry_ms > keep_ms) {
            return Err(Error::invalid("keep_fence_for", "the fence must outlive the value"));
        }
        let (what, value) = match &self.value {
            Some(value) => ("set", value.clone()),
            None => ("delete", Vec::new()),
        };
        Ok(Call {
            keys: [self.key.clone(), fence_key(&self.key)],
            arguments: [
                self.fence.to_string().into_bytes(),
                keep_ms.to_string().into_bytes(),
                what.into(),
                value,
                expiry_ms.to_string().into_bytes(),
            ],
            fence: self.fence,
        })
    }
}

impl Call {
    /// Reads the three elements of the reply.
    ///
    /// # Errors
    /// What the gate said; a reply that this version does not know is [`Error::Unfit`].
    pub fn read(&self, code: i64, newest: i64, words: &str) -> Result<(), Error> {
        let place = || format!("the key {}", self.keys[0].escape_ascii());
        match (code, u64::try_from(newest)) {
            (PASSED, _) => Ok(()),
            (STALE, Ok(newest)) if (self.fence + 1..=MAX_FENCE).contains(&newest) => {
                Err(Stale { fence: self.fence, newest }.into())
            }
            (UNFIT, _) => Err(Error::Unfit { place: place(), why: words.to_owned() }),
            (INVALID, _) => Err(Error::invalid("argument", words)),
            _ => {
                let why = format!("an unknown reply of the script: {code}, {newest}, {words}");
                Err(Error::Unfit { place: place(), why })
            }
        }
    }
}

/// Whole ms, 0 for none.
fn ms(argument: &'static str, length: Option<Duration>) -> Result<u64, Error> {
    let Some(length) = length else { return Ok(0) };
    let ms = u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
    if (1..=MAX_WAIT_MS).contains(&ms) {
        Ok(ms)
    } else {
        Err(Error::invalid(argument, format!("{length:?} is out of range: 1 ms to 100 years")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_written_twice_are_equal() {
        let facts = [
            ("PASSED", PASSED.to_string()),
            ("STALE", STALE.to_string()),
            ("UNFIT", UNFIT.to_string()),
            ("INVALID", INVALID.to_string()),
            ("MAX_FENCE", MAX_FENCE.to_string()),
            ("MAX_MS", MAX_WAIT_MS.to_string()),
        ];
        for (name, number) in &facts {
            let marked = SCRIPT.matches(&format!("--[[{name}]]")).count();
            assert_ne!(marked, 0, "{name} is used nowhere");
            assert_eq!(
                SCRIPT.matches(&format!(" {number} --[[{name}]]")).count(),
                marked,
                "{name}"
            );
        }
        let known: usize =
            facts.iter().map(|(name, _)| SCRIPT.matches(&format!("--[[{name}]]")).count()).sum();
        assert_eq!(SCRIPT.matches("--[[").count(), known, "a number without its fact");
    }

    #[test]
    fn bad_values_are_typed_errors() {
        let (ms, long) = (Duration::from_millis, Duration::from_secs(4_000_000_000));
        let set = |key: &str| Write::set(key, 1, "v");
        for (write, expected) in [
            (set(""), "key"),
            (set("lockwarden:meta"), "key"),
            (Write::set("k", 0, "v"), "fence"),
            (Write::delete("k", u64::MAX), "fence"),
            (Write::set("k", 1, "lockwarden:x"), "value"),
            (set("k").expire_after(ms(0)), "expire_after"),
            (set("k").expire_after(long), "expire_after"),
            (set("k").expire_after(Duration::MAX), "expire_after"),
            (set("k").keep_fence_for(ms(1_000)), "keep_fence_for"),
            (set("k").expire_after(ms(1_001)).keep_fence_for(ms(1_000)), "keep_fence_for"),
        ] {
            let error = write.call().unwrap_err();
            assert!(
                matches!(error, Error::Invalid { argument, .. } if argument == expected),
                "{write:?}: {error}"
            );
        }
        assert!(Write::delete("k", 1).keep_fence_for(ms(1_000)).call().is_ok());
        assert!(set("k").expire_after(ms(1_000)).keep_fence_for(ms(1_000)).call().is_ok());
    }

    #[test]
    fn unknown_replies_are_never_taken_for_a_pass() {
        let call = Write::set("k", 7, "v").call().unwrap();
        assert_eq!(call.read(PASSED, 7, ""), Ok(()));
        assert_eq!(call.read(STALE, 8, ""), Err(Stale { fence: 7, newest: 8 }.into()));
        // A newest that is none cannot be handed on as a floor.
        for (code, newest) in [(STALE, -1), (STALE, 7), (STALE, i64::MAX), (0, 0), (99, 7)] {
            assert!(matches!(call.read(code, newest, ""), Err(Error::Unfit { .. })), "{code}");
        }
    }

    #[test]
    fn nothing_newer_than_redis_4() {
        for newer in ["KEEPTTL", "GETDEL", "GETEX", "PXAT", "setresp"] {
            assert!(!SCRIPT.contains(newer), "{newer}");
        }
    }
}
