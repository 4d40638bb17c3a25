//! The locks of one `run`: one, or several that are granted together.

use crate::{failure::Failure, settings};
use lockwarden::{Error, Loss, Name, error::why_lost, limits};
use std::{collections::BTreeSet, ffi::OsString, fmt};

/// What one variable of the environment may have, with its name and the end (Linux: MAX_ARG_STRLEN, where pages have
/// 4 KiB). With a longer one no command could be executed.
const LONGEST_VARIABLE: usize = 128 * 1_024;

/// How many names stand in one line of words.
const MOST_SAID: usize = 4;

/// The names, each once; never empty.
pub(super) struct Names {
    /// As they were given.
    given: Vec<Name>,
    /// In the library's order, by which a refusal counts them.
    ordered: Vec<Name>,
}

impl Names {
    /// Checks them.
    pub(super) fn new(given: &[OsString]) -> Result<Names, Failure> {
        let mut ordered = BTreeSet::new();
        let mut once = Vec::with_capacity(given.len());
        for name in given {
            let name = settings::name(name)?;
            if ordered.insert(name.clone()) {
                once.push(name);
            }
        }
        limits::names(once.len()).map_err(Error::from)?;
        Ok(Names { given: once, ordered: ordered.into_iter().collect() })
    }

    /// The one that was given first.
    pub(super) fn first(&self) -> &Name {
        &self.given[0]
    }

    /// All of them, as they were given.
    pub(super) fn iter(&self) -> impl Iterator<Item = &str> {
        self.given.iter().map(Name::as_str)
    }

    /// Are they more than one?
    pub(super) fn are_several(&self) -> bool {
        self.given.len() > 1
    }

    /// The one of this number, as a refusal counts them.
    pub(super) fn at(&self, number: usize) -> &Name {
        self.ordered.get(number).unwrap_or(self.first())
    }

    /// All of them for the command: a JSON array, for a name may have any character that could stand between two. None:
    /// they do not fit into a variable of that name.
    pub(super) fn json(&self, variable: &str) -> Option<String> {
        let text = serde_json::to_string(&self.iter().collect::<Vec<_>>()).ok()?;
        (variable.len() + text.len() + 2 <= LONGEST_VARIABLE).then_some(text)
    }

    /// With the noun, as it begins a sentence about them.
    pub(super) fn nouns(&self) -> String {
        format!("the lock{} {self}", if self.are_several() { "s" } else { "" })
    }

    /// That they were lost, in words.
    pub(super) fn lost(&self, loss: Loss) -> String {
        if self.are_several() {
            format!("of {} one was lost, and with it all: {}", self.nouns(), why_lost(loss))
        } else {
            Error::Lost { name: self.first().clone(), loss }.to_string()
        }
    }
}

/// In a sentence: `a`, `a and b`, `a, b, c, d and 6 more`.
impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&listed(&self.given.iter().collect::<Vec<_>>()))
    }
}

/// Names in a sentence.
pub(super) fn listed(names: &[&Name]) -> String {
    let said = names.len().min(MOST_SAID);
    let mut words: Vec<String> = names[..said].iter().map(ToString::to_string).collect();
    if names.len() > said {
        words.push(format!("{} more", names.len() - said));
    }
    let last = words.pop().unwrap_or_default();
    if words.is_empty() { last } else { format!("{} and {last}", words.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(given: &[&str]) -> Names {
        Names::new(&given.iter().map(OsString::from).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn each_counts_once_and_keeps_its_place() {
        let names = names(&["c", "a", "c", "b", "a"]);
        assert_eq!(names.iter().collect::<Vec<_>>(), ["c", "a", "b"]);
        assert_eq!(names.first().as_str(), "c");
        assert_eq!([0, 1, 2].map(|n| names.at(n).as_str()), ["a", "b", "c"]);
        assert_eq!(names.json("X").unwrap(), r#"["c","a","b"]"#);
    }

    #[test]
    fn in_words() {
        assert_eq!(names(&["x"]).nouns(), "the lock x");
        assert_eq!(names(&["x", "y"]).nouns(), "the locks x and y");
        assert_eq!(names(&["x", "y\n", "z"]).to_string(), "x, y\\n and z");
        assert_eq!(names(&["a", "b", "c", "d", "e", "f"]).to_string(), "a, b, c, d and 2 more");
    }

    #[test]
    fn odd_names_stay_apart() {
        let odd = ["a,b", "\"", "x\ny", "\\", "ü"];
        let json = names(&odd).json("X").unwrap();
        assert_eq!(serde_json::from_str::<Vec<String>>(&json).unwrap(), odd);
    }

    #[test]
    fn too_much_for_a_variable_is_not_there() {
        let long = |bytes: usize| {
            let names = (0..64).map(|n| format!("{n:02}{}", "x".repeat(bytes)).into());
            Names::new(&names.collect::<Vec<OsString>>()).unwrap().json("X")
        };
        assert!(long(2_000).is_some_and(|it| it.len() < LONGEST_VARIABLE));
        assert_eq!(long(2_048), None);
    }

    #[test]
    fn a_thousand_at_most() {
        let many =
            |count: usize| (0..count).map(|n| n.to_string().into()).collect::<Vec<OsString>>();
        assert!(Names::new(&many(limits::MOST_NAMES)).is_ok());
        assert!(Names::new(&many(limits::MOST_NAMES + 1)).is_err());
        // Counted once each.
        assert!(Names::new(&[many(600), many(600)].concat()).is_ok());
    }
}
