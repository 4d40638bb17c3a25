//! A held lock on its way to another task or process.

use lockwarden_core::{Name, Token, command::Mode, limits, name::InvalidName};
use std::{fmt, str::FromStr};
use thiserror::Error;

/// What [`Guard::hand_over`](crate::Guard::hand_over) gives and [`Warden::adopt`](crate::Warden::adopt) takes: which
/// locks, and the token that proves that they were given. As text it is one line of JSON, to be sent in whatever way
/// the giver and the receiver have: a queue, a pipe, an argument. Whoever reads it can take the locks.
#[derive(Clone, PartialEq, Eq)]
pub struct HandOver {
    /// One at least, each once.
    pub(crate) names: Vec<(Name, Mode)>,
    pub(crate) token: Token,
}

/// A text that is no hand-over.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("this is no hand-over of locks: {0}")]
pub struct InvalidHandOver(String);

impl HandOver {
    /// The locks that are handed over.
    pub fn names(&self) -> impl Iterator<Item = &Name> {
        self.names.iter().map(|(name, _)| name)
    }
}

/// As text: JSON.
impl fmt::Display for HandOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let locks: Vec<serde_json::Value> = self.names.iter().map(lock_to_json).collect();
        let token = self.token.to_string();
        write!(f, "{}", serde_json::json!({ "v": VERSION, "locks": locks, "token": token }))
    }
}

const VERSION: u64 = 1;
/// How much of what is no lock an error tells, in characters.
const MOST_TOLD: usize = 60;

fn lock_to_json((name, mode): &(Name, Mode)) -> serde_json::Value {
    match mode {
        Mode::Exclusive => serde_json::json!([name.as_str()]),
        Mode::Shared => serde_json::json!([name.as_str(), "shared"]),
        Mode::Permits { count, of } => serde_json::json!([name.as_str(), "permits", count, of]),
    }
}

fn lock_of_json(value: &serde_json::Value) -> Option<Result<(Name, Mode), InvalidName>> {
    let parts = value.as_array()?;
    let number = |at: usize| u32::try_from(parts.get(at)?.as_u64()?).ok();
    let mode = match (parts.len(), parts.get(1).and_then(|kind| kind.as_str())) {
        (1, None) => Mode::Exclusive,
        (2, Some("shared")) => Mode::Shared,
        (4, Some("permits")) => {
            let (count, of) = (number(2)?, number(3)?);
            limits::permits(count, of).ok()?;
            Mode::Permits { count, of }
        }
        _ => return None,
    };
    Some(Name::new(parts.first()?.as_str()?).map(|name| (name, mode)))
}

impl FromStr for HandOver {
    type Err = InvalidHandOver;

    fn from_str(text: &str) -> Result<HandOver, InvalidHandOver> {
        let no = |why: &dyn fmt::Display| InvalidHandOver(why.to_string());
        let value: serde_json::Value = serde_json::from_str(text).map_err(|error| no(&error))?;
        let version = value["v"].as_u64();
        if version != Some(VERSION) {
            let given = version.map_or_else(|| "none".to_owned(), |version| version.to_string());
            return Err(no(&format!("its version is {given}, and {VERSION} is known")));
        }
        let locks = value["locks"].as_array().ok_or_else(|| no(&"it names no locks"))?;
        let mut names: Vec<(Name, Mode)> = Vec::with_capacity(locks.len().min(limits::MOST_NAMES));
        for lock in locks {
            let short = || lock.to_string().chars().take(MOST_TOLD).collect::<String>();
            let lock = lock_of_json(lock).ok_or_else(|| no(&format!("{} is no lock", short())))?;
            names.push(lock.map_err(|invalid| no(&invalid))?);
        }
        limits::names(names.len()).map_err(|many| no(&many))?;
        names.sort();
        if names.is_empty() || names.windows(2).any(|pair| pair[0].0 == pair[1].0) {
            return Err(no(&"it must name one lock at least, and each once"));
        }
        let token = value["token"].as_str().ok_or_else(|| no(&"it has no token"))?;
        let token = Token::new(token.as_bytes()).map_err(|invalid| no(&invalid))?;
        Ok(HandOver { names, token })
    }
}

/// Without the token, which is a secret.
impl fmt::Debug for HandOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandOver").field("names", &self.names).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_hand_over_is_one_line_of_text() {
        let names = [
            ("a \"quoted\"\nname", Mode::Exclusive),
            ("b", Mode::Shared),
            ("c", Mode::Permits { count: 2, of: 3 }),
        ];
        let names = names.map(|(name, mode)| (Name::new(name).unwrap(), mode)).into();
        let given = HandOver { names, token: Token::new(b"1234567890").unwrap() };
        let text = given.to_string();
        assert_eq!(text.lines().count(), 1);
        assert_eq!(text.parse::<HandOver>().unwrap(), given);
        assert!(!format!("{given:?}").contains("1234567890"));
    }

    #[test]
    fn what_is_none_is_refused_with_the_reason() {
        for (text, why) in [
            ("", "EOF"),
            ("{}", "version is none"),
            (r#"{"v":2}"#, "version is 2"),
            (r#"{"v":1,"token":"t"}"#, "no locks"),
            (r#"{"v":1,"token":"t","locks":[]}"#, "one lock at least"),
            (r#"{"v":1,"token":"t","locks":[["x"],["x","shared"]]}"#, "each once"),
            (r#"{"v":1,"token":"t","locks":["x"]}"#, "is no lock"),
            (r#"{"v":1,"token":"t","locks":[["x","permits",3,2]]}"#, "is no lock"),
            (r#"{"v":1,"token":"t","locks":[[""]]}"#, "empty"),
            (r#"{"v":1,"locks":[["x"]]}"#, "no token"),
            (r#"{"v":1,"token":"","locks":[["x"]]}"#, ""),
            (r#"{"v":1,"token":"lockwarden:cooling:1","locks":[["x"]]}"#, "reserved"),
        ] {
            let error = text.parse::<HandOver>().unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
