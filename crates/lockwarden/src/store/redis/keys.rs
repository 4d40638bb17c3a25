//! The names of keys and channels, in one place.
//!
//! A lock's key is the prefix and the name: exactly what redis-py, Redlock and rslock write. Under a token
//! of ours its value begins with [`LOCK_HEAD`]; behind it stands the record.
//! Everything else begins with `lockwarden:` (R2). The companions of a lock stand in its slot of a
//! Cluster, whatever braces its name contains; their names are built by the scripts (`companion` in
//! `lib/lock.lua`) from the [`Form`] that is chosen here.

use lockwarden_core::{Name, SessionId, limits::RESERVED};
use std::sync::OnceLock;

/// The keys and channels of one database and prefix.
#[derive(Clone, Debug)]
pub(super) struct Keyspace {
    /// What stands before every name.
    pub(super) prefix: String,
    /// The hash `meta` (R2).
    pub(super) meta: String,
    /// The channel of all sessions (R5). Channels are server-wide, keys are not.
    pub(super) common: String,
    /// Names that begin so lead, behind the prefix, into the reserved keys.
    reserved: Option<String>,
}

/// How a companion's name is made of a kind (`record`, `queue` …) and the lock's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// `lockwarden:<kind>:{key}`: the key has no braces; all of it is the companion's hash tag.
    Plain,
    /// `lockwarden:<kind>=key`: the key has a hash tag, which is the companion's first one, too.
    Tagged,
    /// `lockwarden:<kind>~{t}key`: the key has braces but no hash tag; `t` has the key's slot.
    Odd(Tag),
}

/// A short text that hashes to a wanted slot.
pub(super) type Tag = [u8; 4];

/// How the value of a lock's key begins that has its record in it (the scripts write it), and no value that
/// a caller chooses.
pub(super) const LOCK_HEAD: &[u8] = RESERVED.as_bytes();

const SLOTS: usize = 16_384;

impl Keyspace {
    /// The keys of a database and a prefix.
    pub(super) fn new(db: u32, prefix: &str) -> Keyspace {
        let meta = if prefix.is_empty() {
            format!("{RESERVED}meta")
        } else {
            format!("{RESERVED}meta:{prefix}")
        };
        let common = format!("{RESERVED}common:{db}:{prefix}");
        // Without a prefix, `Name` has seen to it.
        let rest = RESERVED.strip_prefix(prefix).filter(|rest| *rest != RESERVED);
        let everything = prefix.starts_with(RESERVED).then_some("");
        let reserved = rest.or(everything).map(str::to_owned);
        Keyspace { prefix: prefix.to_owned(), meta, common, reserved }
    }

    /// The same with a prefix under which every name is a reserved one (R10).
    pub(super) fn for_self_test(&self) -> Keyspace {
        Keyspace { prefix: RESERVED.to_owned(), ..self.clone() }
    }

    /// Could a name together with the prefix begin like a companion? Then this very name is refused.
    pub(super) fn is_reserved(&self, name: &Name) -> bool {
        self.reserved.as_ref().is_some_and(|rest| name.as_str().starts_with(rest))
    }

    /// The name whose key this is.
    pub(super) fn name(&self, key: &[u8]) -> Option<Name> {
        let name = key.strip_prefix(self.prefix.as_bytes()).filter(|_| !is_ours(key))?;
        Name::from_bytes(name).ok()
    }

    /// The name whose companion this key is.
    pub(super) fn name_of_companion(&self, companion: &[u8]) -> Option<Name> {
        self.name(key_of_companion(companion)?)
    }
}

/// A session's own channel.
pub(super) fn session_channel(session: &SessionId) -> String {
    format!("{RESERVED}session:{session}")
}

/// Is it a companion, a channel's or meta's name?
pub(super) fn is_ours(key: &[u8]) -> bool {
    key.starts_with(RESERVED.as_bytes())
}

/// Companions that tell of a lock: a drop-in's record, and the queue of whatever is waited for.
pub(super) const COMPANIONS: [&str; 2] = ["lockwarden:record", "lockwarden:queue"];

fn key_of_companion(companion: &[u8]) -> Option<&[u8]> {
    let rest = COMPANIONS.iter().find_map(|kind| companion.strip_prefix(kind.as_bytes()))?;
    match rest {
        [b':', b'{', key @ .., b'}'] => Some(key),
        [b'=', key @ ..] => Some(key),
        [b'~', b'{', rest @ ..] => {
            let end = rest.iter().position(|byte| *byte == b'}')?;
            Some(&rest[end + 1..])
        }
        _ => None,
    }
}

impl Form {
    /// The form for the companions of the key that a prefix and a name make.
    pub(super) fn of(prefix: &str, name: &str) -> Form {
        // Without a branch per byte: most names have no braces, and all of them come by here.
        let has_brace = |text: &str| {
            text.bytes().fold(false, |found, byte| found | (byte == b'{') | (byte == b'}'))
        };
        if !has_brace(name) && !has_brace(prefix) {
            return Form::Plain;
        }
        Form::of_braced(format!("{prefix}{name}").as_bytes())
    }

    fn of_braced(key: &[u8]) -> Form {
        match hash_tag(key) {
            Some(_) => Form::Tagged,
            None => Form::Odd(tags()[slot(key)]),
        }
    }
}

/// The name of a key's companion of a kind, in the key's slot.
pub(crate) fn companion(kind: &str, key: &[u8]) -> Vec<u8> {
    let head = [RESERVED.as_bytes(), kind.as_bytes()].concat();
    if !key.iter().any(|byte| matches!(byte, b'{' | b'}')) {
        return [&head, b":{".as_slice(), key, b"}"].concat();
    }
    [&head, form_parts(&Form::of_braced(key)).concat().as_slice(), key].concat()
}

/// What stands between the kind and the key, as the scripts expect it; a plain form is empty.
pub(super) fn form_parts(form: &Form) -> [&[u8]; 3] {
    match form {
        Form::Plain => [b"", b"", b""],
        Form::Tagged => [b"=", b"", b""],
        Form::Odd(tag) => [b"~{", tag, b"}"],
    }
}

/// The part of a key that decides about its slot, where that is not all of it.
fn hash_tag(key: &[u8]) -> Option<&[u8]> {
    let open = key.iter().position(|byte| *byte == b'{')?;
    let tag = &key[open + 1..];
    let close = tag.iter().position(|byte| *byte == b'}')?;
    (close > 0).then(|| &tag[..close])
}

fn slot(key: &[u8]) -> usize {
    usize::from(crc16(hash_tag(key).unwrap_or(key))) % SLOTS
}

/// CRC-16/XMODEM, as Redis Cluster uses it.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc: u16, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    })
}

/// A tag for each slot, found once by trying: rare names need one.
fn tags() -> &'static [Tag] {
    static TAGS: OnceLock<Vec<Tag>> = OnceLock::new();
    TAGS.get_or_init(|| {
        const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
        let mut tags = vec![Tag::default(); SLOTS];
        let mut missing = SLOTS;
        let mut count: usize = 0;
        // 36^4 texts; a hundredth of them has reached every slot.
        while missing > 0 {
            let digit = |place: u32| DIGITS[count / 36_usize.pow(place) % 36];
            let tag = [digit(3), digit(2), digit(1), digit(0)];
            count += 1;
            let found = &mut tags[slot(&tag)];
            if found[0] == 0 {
                *found = tag;
                missing -= 1;
            }
        }
        tags
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KINDS: [&str; 5] = ["record", "queue", "tickets", "asked", "gate"];

    /// What `companion` in `lib/lock.lua` does, and the gates.
    fn companion(kind: &str, key: &str) -> String {
        let form = Form::of("", key);
        let text = String::from_utf8(form_parts(&form).concat()).unwrap();
        let companion = match form {
            Form::Plain => format!("lockwarden:{kind}:{{{key}}}"),
            _ => format!("lockwarden:{kind}{text}{key}"),
        };
        assert_eq!(super::companion(kind, key.as_bytes()), companion.as_bytes());
        companion
    }

    #[test]
    fn slots_are_those_of_redis() {
        // From the specification of Redis Cluster, and from CLUSTER KEYSLOT.
        assert_eq!(crc16(b"123456789"), 0x31C3);
        for (key, expected) in
            [("foo", 12_182), ("{foo}bar", 12_182), ("a{foo}{bar}", 12_182), ("", 0)]
        {
            assert_eq!(slot(key.as_bytes()), expected, "{key}");
        }
    }

    /// C27: names full of braces keep their companions in their own slot.
    #[test]
    fn c27_braces_have_the_three_forms() {
        assert_eq!(companion("record", "stock"), "lockwarden:record:{stock}");
        assert_eq!(companion("queue", "{a}b"), "lockwarden:queue={a}b");
        assert_eq!(companion("queue", "x{a}b}"), "lockwarden:queue=x{a}b}");
        for odd in ["}{", "{}x", "a}b", "{", "}", "{}", "{}{a}", "a{"] {
            assert!(companion("queue", odd).starts_with("lockwarden:queue~{"), "{odd}");
        }
        assert!(tags().iter().all(|tag| tag[0] != 0));
    }

    #[test]
    fn a_prefix_cannot_lead_into_the_reserved_names() {
        let name = |text| Name::new(text).unwrap();
        assert!(Keyspace::new(0, "lock").is_reserved(&name("warden:meta")));
        assert!(!Keyspace::new(0, "lock").is_reserved(&name("warden-meta")));
        assert!(!Keyspace::new(0, "").is_reserved(&name("warden:meta")));
        assert!(!Keyspace::new(0, "app:").is_reserved(&name("warden:meta")));
        assert_ne!(Keyspace::new(0, "a").meta, Keyspace::new(0, "b").meta);
        assert_ne!(Keyspace::new(0, "a").common, Keyspace::new(1, "a").common);
    }

    fn key() -> impl Strategy<Value = String> {
        prop_oneof![2 => "[{}=~:ab]{1,9}", 1 => "\\PC{1,20}", 1 => "[a-z:]{0,9}\\{[a-z]{0,3}\\}[a-z{}]{0,4}"]
    }

    proptest! {
        #[test]
        fn companions_share_the_slot_and_lead_back(key in key()) {
            for kind in KINDS {
                let companion = companion(kind, &key);
                prop_assert_eq!(slot(companion.as_bytes()), slot(key.as_bytes()), "{}", companion);
                if let Some(found) = key_of_companion(companion.as_bytes()) {
                    prop_assert_eq!(found, key.as_bytes());
                } else {
                    prop_assert!(kind != "record" && kind != "queue");
                }
            }
        }

        #[test]
        fn companions_never_collide(one in key(), other in key()) {
            for kind in KINDS {
                for other_kind in KINDS {
                    let same = kind == other_kind && one == other;
                    prop_assert_eq!(companion(kind, &one) == companion(other_kind, &other), same);
                }
                let meta = Keyspace::new(0, &other).meta;
                prop_assert_ne!(companion(kind, &one), meta);
            }
        }
    }
}
