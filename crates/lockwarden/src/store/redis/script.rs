//! The one script that is loaded, joined from the files in `scripts/`.
//!
//! Files, not strings: each command is one short Lua file that can be read beside the table's
//! function of the same name. They are joined when this crate is compiled, so that there is no
//! generated file that could be older than its sources.

use std::sync::OnceLock;

/// The whole script.
pub(super) const SOURCE: &str = concat!(
    include_str!("scripts/lib/head.lua"),
    include_str!("scripts/alone.lua"),
    include_str!("scripts/alone_several.lua"),
    include_str!("scripts/lib/known.lua"),
    include_str!("scripts/lib/machine.lua"),
    include_str!("scripts/lib/sessions.lua"),
    include_str!("scripts/lib/enter.lua"),
    include_str!("scripts/lib/lock.lua"),
    include_str!("scripts/lib/together.lua"),
    include_str!("scripts/lib/answer.lua"),
    include_str!("scripts/lib/tickets.lua"),
    include_str!("scripts/lib/requests.lua"),
    include_str!("scripts/lib/queue.lua"),
    include_str!("scripts/lib/deadlock.lua"),
    include_str!("scripts/lib/probe.lua"),
    include_str!("scripts/acquire.lua"),
    include_str!("scripts/renew.lua"),
    include_str!("scripts/release.lua"),
    include_str!("scripts/cancel.lua"),
    include_str!("scripts/revoke.lua"),
    include_str!("scripts/recall.lua"),
    include_str!("scripts/convert.lua"),
    include_str!("scripts/hand_over.lua"),
    include_str!("scripts/extend_by_value.lua"),
    include_str!("scripts/leave.lua"),
    include_str!("scripts/beat.lua"),
    include_str!("scripts/show.lua"),
    include_str!("scripts/lib/machine_end.lua"),
    include_str!("scripts/batch.lua"),
);

/// The name by which a server knows the script once it has seen it.
pub(super) fn sha() -> &'static str {
    static SHA: OnceLock<String> = OnceLock::new();
    SHA.get_or_init(|| sha1_smol::Sha1::from(SOURCE).digest().to_string())
}

/// In place of the caller's run, where INFO is refused (R5).
pub(super) const BLIND: &str = "?";
/// In place of the caller's run, in a self-test (R10).
pub(super) const SELF_TEST: &str = "";
/// A wait of no time, and one without end.
pub(super) const NO_WAIT: i64 = -2;
/// See [`NO_WAIT`].
pub(super) const FOR_EVER: i64 = -1;
/// In the place of a wait: adopt what was handed over.
pub(super) const ADOPT: i64 = -3;
/// The commands.
pub(super) const ACQUIRE: u8 = b'a';
/// See [`ACQUIRE`].
pub(super) const RENEW: u8 = b'n';
/// See [`ACQUIRE`].
pub(super) const RELEASE: u8 = b'r';
/// See [`ACQUIRE`].
pub(super) const CANCEL: u8 = b'c';
/// See [`ACQUIRE`].
pub(super) const REVOKE: u8 = b'v';
/// See [`ACQUIRE`].
pub(super) const RECALL: u8 = b'l';
/// See [`ACQUIRE`].
pub(super) const CONVERT: u8 = b'm';
/// See [`ACQUIRE`].
pub(super) const HAND_OVER: u8 = b'h';
/// See [`ACQUIRE`].
pub(super) const EXTEND_BY_VALUE: u8 = b'x';
/// See [`ACQUIRE`].
pub(super) const LEAVE: u8 = b'o';
/// See [`ACQUIRE`].
pub(super) const SHOW: u8 = b's';
/// See [`ACQUIRE`].
pub(super) const HEARTBEAT: u8 = b'b';
/// A message to oneself (R10).
pub(super) const ECHO: u8 = b'e';
/// The form of records, tickets and messages.
pub(super) const SCHEMA: u8 = 1;
/// That of a ticket that is one of several (R29), not exclusive, has a minimum or a delay, or is endless: who takes it for
/// a plain one must not understand it.
#[cfg(test)]
const LONG_TICKET: u8 = 2;
/// That of a record with a minimum or a delay (R33, R43), or without an end.
#[cfg(test)]
const LONG_RECORD: u8 = 4;
/// In the place of a record's schema: several hold the lock together.
#[cfg(test)]
const TOGETHER: u8 = 3;
/// All keys of the call are those of its one command.
pub(super) const SEVERAL: u8 = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis::{
        answer::{Absent, Code, Holder, State},
        trouble::MINIMAL_ACL,
    };
    use lockwarden_core::limits;
    use std::collections::HashMap;

    /// Constants and codes stand in the script as `12 --[[NAME]]`.
    fn named_numbers() -> Vec<(&'static str, &'static str)> {
        let after_number = SOURCE.match_indices(" --[[").map(|(at, _)| SOURCE.split_at(at));
        let pairs = after_number.map(|(before, after)| {
            let is_part = |c: char| c.is_ascii_digit() || c == '-' || c == '?' || c == '\'';
            let number = before.rsplit(|c: char| !is_part(c)).next().unwrap_or_default();
            let name = after.trim_start_matches(" --[[").split("]]").next().unwrap_or_default();
            (name, number)
        });
        pairs.collect()
    }

    #[test]
    fn facts_written_twice_are_equal() {
        let mut facts: HashMap<&str, String> = HashMap::new();
        let mut fact = |name, number: i64| {
            assert_eq!(facts.insert(name, number.to_string()), None, "{name}");
        };
        fact("W_MS", limits::W_MS as i64);
        fact("QUEUE_TTL_MS", limits::QUEUE_TTL_MS as i64);
        fact("ASK_EVERY_MS", limits::ASK_EVERY_MS as i64);
        fact("MOST_PLACES", limits::MOST_PLACES as i64);
        fact("LONGEST_CYCLE", limits::LONGEST_CYCLE as i64);
        fact("DROPS_PER_COMMAND", limits::DROPS_PER_COMMAND as i64);
        fact("MAX_FLOOR_AHEAD_US", limits::MAX_FLOOR_AHEAD_US as i64);
        fact("MOST_HOLDERS_TOLD", limits::MOST_HOLDERS_TOLD as i64);
        fact("UNSEEN_ENDLESS_MS", limits::UNSEEN_ENDLESS_MS as i64);
        fact("SCHEMA", SCHEMA.into());
        fact("LONG_TICKET", LONG_TICKET.into());
        fact("TOGETHER", TOGETHER.into());
        fact("LONG_RECORD", LONG_RECORD.into());
        fact("SEVERAL", SEVERAL.into());
        for (name, letter) in [
            ("ACQUIRE", ACQUIRE),
            ("RENEW", RENEW),
            ("RELEASE", RELEASE),
            ("CANCEL", CANCEL),
            ("REVOKE", REVOKE),
            ("RECALL", RECALL),
            ("CONVERT", CONVERT),
            ("HAND_OVER", HAND_OVER),
            ("EXTEND_BY_VALUE", EXTEND_BY_VALUE),
            ("LEAVE", LEAVE),
            ("SHOW", SHOW),
            ("HEARTBEAT", HEARTBEAT),
            ("ECHO", ECHO),
        ] {
            fact(name, letter.into());
        }
        fact("NO_WAIT", NO_WAIT);
        fact("FOR_EVER", FOR_EVER);
        fact("ADOPT", ADOPT);
        for code in Code::ALL {
            fact(code.name(), *code as i64);
        }
        for holder in Holder::ALL {
            fact(holder.name(), *holder as i64);
        }
        for absent in Absent::ALL {
            fact(absent.name(), *absent as i64);
        }
        for state in State::ALL {
            fact(state.name(), *state as i64);
        }
        facts.insert("BLIND", format!("'{BLIND}'"));
        let named = named_numbers();
        for (name, number) in &named {
            assert_eq!(facts.get(name).map(String::as_str), Some(*number), "{name}");
        }
        for name in facts.keys() {
            assert!(named.iter().any(|(used, _)| used == name), "{name} is used nowhere");
        }
    }

    /// Lua allows 200 locals in one function: that of the whole script, and `machine`, which makes all others.
    #[test]
    fn there_is_room_for_more_locals() {
        let (head, rest) = SOURCE.split_once("local function machine()\n").unwrap();
        let (machine, batch) = rest.split_once("\nreturn enter, {").unwrap();
        let locals = |line: &str| match line.strip_prefix("local ") {
            None => 0,
            Some(line) if line.starts_with("function") => 1,
            Some(line) => line.split(" = ").next().map_or(0, |names| names.split(',').count()),
        };
        for (what, lines) in [("whole", [head, batch].concat()), ("machine", machine.to_owned())] {
            let count: usize = lines.lines().map(locals).sum();
            assert!((40..180).contains(&count), "{what}: {count}");
        }
    }

    /// C30: what a script calls, a user with the documented rights may call.
    #[test]
    fn the_documented_rights_are_enough_for_every_command() {
        let mut count = 0;
        for function in ["call('", "try('", "look('"] {
            for (at, _) in SOURCE.match_indices(function) {
                let (command, rest) =
                    SOURCE[at + function.len()..].split_once('\'').expect("a command's name");
                let right = match command {
                    "PUBSUB" => {
                        assert!(rest.starts_with(", 'NUMSUB'"));
                        "+pubsub|numsub".to_owned()
                    }
                    command => format!("+{}", command.to_lowercase()),
                };
                assert!(MINIMAL_ACL.split_whitespace().any(|it| it == right), "{right}");
                count += 1;
            }
        }
        assert!(count > 90, "{count}");
    }

    #[test]
    fn nothing_newer_than_redis_4() {
        for newer in ["KEEPTTL", "GETDEL", "GETEX", "PXAT", "LPOS", "'COPY'", "ZMSCORE", "setresp"]
        {
            assert!(!SOURCE.contains(newer), "{newer}");
        }
    }
}
