//! The one script that is loaded, joined from the files in `scripts/`.
//!
//! Files, not strings: each command is one short Lua file that can be read beside the table's
//! function of the same name. They are joined when this crate is compiled, so that there is no
//! generated file that could be older than its sources.

use std::sync::OnceLock;

/// The whole script.
pub(super) const SOURCE: &str = concat!(
    include_str!("scripts/lib/head.lua"),
    include_str!("scripts/lib/enter.lua"),
    include_str!("scripts/lib/sessions.lua"),
    include_str!("scripts/lib/lock.lua"),
    include_str!("scripts/lib/answer.lua"),
    include_str!("scripts/lib/queue.lua"),
    include_str!("scripts/lib/probe.lua"),
    include_str!("scripts/acquire.lua"),
    include_str!("scripts/renew.lua"),
    include_str!("scripts/release.lua"),
    include_str!("scripts/cancel.lua"),
    include_str!("scripts/revoke.lua"),
    include_str!("scripts/beat.lua"),
    include_str!("scripts/show.lua"),
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
/// The form of records, tickets and messages.
pub(super) const SCHEMA: u8 = 1;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis::answer::{Absent, Code, Holder};
    use lockwarden_core::limits;
    use std::collections::HashMap;

    /// The script's constants: `local A, B = 1, 2` at the head.
    fn constants() -> HashMap<&'static str, &'static str> {
        let head = include_str!("scripts/lib/head.lua");
        let lines = head.lines().filter_map(|line| line.strip_prefix("local "));
        let pairs = lines.filter_map(|line| line.split_once(" = "));
        let constants = pairs.flat_map(|(names, values)| names.split(", ").zip(values.split(", ")));
        constants.filter(|(name, _)| !name.contains(|c: char| c.is_lowercase())).collect()
    }

    #[test]
    fn facts_written_twice_are_equal() {
        let mut constants = constants();
        let mut same = |name: &str, number: i64| {
            assert_eq!(constants.remove(name), Some(&*number.to_string()), "{name}");
        };
        same("W_MS", limits::W_MS as i64);
        same("QUEUE_TTL_MS", limits::QUEUE_TTL_MS as i64);
        same("ASK_EVERY_MS", limits::ASK_EVERY_MS as i64);
        same("DROPS_PER_COMMAND", limits::DROPS_PER_COMMAND as i64);
        same("MAX_FLOOR_AHEAD_US", limits::MAX_FLOOR_AHEAD_US as i64);
        same("SCHEMA", SCHEMA.into());
        same("NO_WAIT", NO_WAIT);
        same("FOR_EVER", FOR_EVER);
        for code in Code::ALL {
            same(code.name(), *code as i64);
        }
        for holder in Holder::ALL {
            same(holder.name(), *holder as i64);
        }
        for absent in Absent::ALL {
            same(absent.name(), *absent as i64);
        }
        assert_eq!(constants.remove("BLIND"), Some("'?'"));
        assert!(constants.is_empty(), "known to the script only: {constants:?}");
    }

    /// Lua allows 200 locals in one function.
    #[test]
    fn there_is_room_for_more_locals() {
        let lines = SOURCE.lines().filter_map(|line| line.strip_prefix("local "));
        let count: usize = lines
            .map(|line| match line.split_once(" = ") {
                _ if line.starts_with("function") => 1,
                Some((names, _)) => names.split(',').count(),
                None => line.split(',').count(),
            })
            .sum();
        assert!(count < 180, "{count}");
    }

    #[test]
    fn nothing_newer_than_redis_4() {
        for newer in ["KEEPTTL", "GETDEL", "GETEX", "PXAT", "LPOS", "'COPY'", "ZMSCORE", "setresp"]
        {
            assert!(!SOURCE.contains(newer), "{newer}");
        }
    }
}
