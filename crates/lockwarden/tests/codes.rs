//! The codes of errors stand once, in `codes.toml`; the library and docs/ERRORS.md agree with it.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use lockwarden::{Absence, Effect, Error, Loss, Mode, Name, StoreError, Trouble, gate};
use std::{collections::BTreeSet, fmt::Write, path::Path, time::Duration};
use toml::{Table, Value};

/// Every kind of error. A new one does not compile until it stands in the match; then add it above, too.
fn errors() -> Vec<Error> {
    let name = Name::new("x").unwrap();
    let errors = vec![
        Error::Busy { name: name.clone(), told: None },
        Error::TimedOut { name: name.clone(), waited: Duration::ZERO, told: None },
        Error::Guarded { name: name.clone(), left: Duration::ZERO },
        Error::Lost { name: name.clone(), loss: Loss::LeaseEnded },
        Error::ReleasedOrLost { name: name.clone() },
        Error::Deadlock { name: name.clone(), cycle: Vec::new() },
        Error::Foreign { name: name.clone() },
        Error::Endless { name: name.clone() },
        Error::NotHandedOver { name: name.clone(), absence: Absence::Free },
        Error::TooDeep { name: name.clone(), most: 1_000 },
        Error::OtherMode { name, asked: Mode::Shared, in_use: Mode::Permits { count: 1, of: 2 } },
        unavailable(Trouble::Unreachable, Effect::NotApplied),
        unavailable(Trouble::Disconnected, Effect::Unknown),
        Error::Store(StoreError::Denied { place: String::new(), detail: String::new() }),
        Error::Store(StoreError::Invalid { detail: String::new() }),
        Error::Invalid(String::new()),
        Error::Closed,
    ];
    for error in &errors {
        match error {
            Error::Busy { .. }
            | Error::TimedOut { .. }
            | Error::Guarded { .. }
            | Error::Lost { .. }
            | Error::ReleasedOrLost { .. }
            | Error::Deadlock { .. }
            | Error::TooDeep { .. }
            | Error::OtherMode { .. }
            | Error::Foreign { .. }
            | Error::Endless { .. }
            | Error::NotHandedOver { .. }
            | Error::Store(
                StoreError::Unavailable { .. }
                | StoreError::Denied { .. }
                | StoreError::Invalid { .. },
            )
            | Error::Invalid(_)
            | Error::Closed => {}
        }
    }
    errors
}

/// The same for troubles, in the order of `codes.toml`.
fn troubles() -> Vec<Trouble> {
    let troubles = vec![
        Trouble::Unreachable,
        Trouble::Disconnected,
        Trouble::ReadOnly,
        Trouble::OutOfMemory,
        Trouble::Loading,
        Trouble::Blocked,
        Trouble::Protocol,
    ];
    for trouble in &troubles {
        match trouble {
            Trouble::Unreachable
            | Trouble::Disconnected
            | Trouble::ReadOnly
            | Trouble::OutOfMemory
            | Trouble::Loading
            | Trouble::Blocked
            | Trouble::Protocol => {}
        }
    }
    troubles
}

fn unavailable(trouble: Trouble, effect: Effect) -> Error {
    let (place, detail) = (String::new(), String::new());
    Error::Store(StoreError::Unavailable { place, trouble, detail, effect })
}

fn rows(array: &str) -> Vec<Table> {
    let table: Table = include_str!("../codes.toml").parse().unwrap();
    table[array].as_array().unwrap().iter().map(|row| row.as_table().unwrap().clone()).collect()
}

fn text<'a>(row: &'a Table, key: &str) -> &'a str {
    row[key].as_str().unwrap()
}

#[test]
fn the_library_agrees() {
    let rows = rows("code");
    let mut seen = BTreeSet::new();
    for error in errors() {
        let code = error.code();
        let row = rows.iter().find(|row| text(row, "code") == code);
        let row = row.unwrap_or_else(|| panic!("{code} is not in codes.toml"));
        assert_eq!(row["retry"], Value::Boolean(error.retry_helps()), "retry of {code}");
        let effect = match error.effect() {
            Effect::NotApplied => "not applied",
            Effect::Unknown => "unknown",
        };
        assert!([effect, "either"].contains(&text(row, "effect")), "{code} was {effect}");
        seen.insert(code);
    }
    let codes: Vec<&str> = rows.iter().map(|row| text(row, "code")).collect();
    assert_eq!(codes.len(), seen.len(), "of {codes:?} only {seen:?} are given by the library");
}

#[test]
fn troubles_have_their_words() {
    let words: Vec<String> =
        rows("trouble").iter().map(|row| text(row, "word").to_owned()).collect();
    let given: Vec<String> = troubles().iter().map(Trouble::to_string).collect();
    assert_eq!(words, given);
}

/// What a gate answers, in the order of `codes.toml`.
#[test]
fn the_gates_agree() {
    let text = String::new;
    let errors = [
        gate::Error::Stale(gate::Stale { fence: 1, newest: 2 }),
        gate::Error::Invalid { argument: "", why: text() },
        gate::Error::Unfit { place: text(), why: text() },
        gate::Error::Unavailable { place: text(), why: text() },
    ];
    let given = errors.map(|error| {
        match error {
            gate::Error::Stale(_)
            | gate::Error::Invalid { .. }
            | gate::Error::Unfit { .. }
            | gate::Error::Unavailable { .. } => {}
        }
        let effect = match error.effect() {
            Effect::NotApplied => "not applied",
            Effect::Unknown => "unknown",
        };
        (error.code(), error.retry_helps(), effect)
    });
    let rows = rows("gate");
    let told = rows.iter().map(|row| {
        (self::text(row, "code"), row["retry"] == Value::Boolean(true), self::text(row, "effect"))
    });
    assert_eq!(told.collect::<Vec<_>>(), given);
}

#[test]
fn the_documentation_agrees() {
    let mut codes =
        String::from("| code | kind | what it means | retry | effect | exit | way out |\n");
    codes += "|---|---|---|---|---|---|---|\n";
    for row in rows("code") {
        let [code, kind, means, effect, way_out] =
            ["code", "kind", "means", "effect", "way_out"].map(|key| text(&row, key));
        let retry = if row["retry"] == Value::Boolean(true) { "yes" } else { "no" };
        let exit = &row["exit"];
        writeln!(
            codes,
            "| `{code}` | {kind} | {means} | {retry} | {effect} | {exit} | {way_out} |"
        )
        .unwrap();
    }
    let mut troubles = String::from("| word | what it means |\n|---|---|\n");
    for row in rows("trouble") {
        writeln!(troubles, "| {} | {} |", text(&row, "word"), text(&row, "means")).unwrap();
    }
    let mut gates = String::from("| code | kind | what it means | retry | effect | way out |\n");
    gates += "|---|---|---|---|---|---|\n";
    for row in rows("gate") {
        let [code, kind, means, effect, way_out] =
            ["code", "kind", "means", "effect", "way_out"].map(|key| text(&row, key));
        let retry = if row["retry"] == Value::Boolean(true) { "yes" } else { "no" };
        writeln!(gates, "| `{code}` | {kind} | {means} | {retry} | {effect} | {way_out} |")
            .unwrap();
    }
    // A packaged crate has no documentation tree beside it.
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/ERRORS.md");
    let Ok(page) = std::fs::read_to_string(&path) else { return };
    for (begin, expected) in [("codes", codes), ("troubles", troubles), ("gates", gates)] {
        let begin = format!("<!-- {begin}: from codes.toml -->\n");
        let (_, rest) = page.split_once(&begin).unwrap();
        let (found, _) = rest.split_once("<!-- end -->").unwrap();
        assert!(
            found == expected,
            "docs/ERRORS.md is not what codes.toml says. Put this behind {begin}\n{expected}"
        );
    }
}
