//! How a [`Party`] stands in records, tickets and messages: JSON of private types.
//!
//! Only this module knows the text; scripts hand it through. Core types are never serialised
//! themselves, so that a change of theirs cannot change what other versions read.

use lockwarden_core::{
    command::Mode,
    party::{Party, Process, Tag},
};
use serde::{Deserialize, Serialize};
use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

/// Owner, label, host, processes, site, tags. The owner comes first, where scripts find it: it has no character that
/// JSON writes in another way. Site and tags are left out at the end where there are none: whoever has none pays for
/// none, and older texts are read.
#[derive(Serialize, Deserialize)]
struct PartyText<'a>(
    #[serde(borrow)] Cow<'a, str>,
    #[serde(borrow)] Cow<'a, str>,
    #[serde(borrow)] Cow<'a, str>,
    #[serde(borrow)] Vec<ProcessText<'a>>,
    #[serde(default, skip_serializing_if = "Option::is_none")] Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    BTreeMap<Cow<'a, str>, Cow<'a, str>>,
);

/// Namespace, pid, start.
#[derive(Serialize, Deserialize)]
struct ProcessText<'a>(#[serde(borrow)] Cow<'a, str>, u32, u64);

/// The party as text.
pub(super) fn encode(party: &Party) -> String {
    let process = |process: &'_ Process| -> ProcessText<'static> {
        ProcessText(Cow::Owned(process.namespace.to_string()), process.pid, process.start)
    };
    let has_more = !party.site.is_empty() || !party.tags.is_empty();
    let tag = |tag: &'_ Tag| -> (Cow<'static, str>, Cow<'static, str>) {
        (Cow::Owned(tag.key.to_string()), Cow::Owned(tag.value.to_string()))
    };
    let text = PartyText(
        Cow::Borrowed(&party.owner),
        Cow::Borrowed(&party.label),
        Cow::Borrowed(&party.host),
        party.processes.iter().map(process).collect(),
        has_more.then_some(Cow::Borrowed(&*party.site)),
        party.tags.iter().map(tag).collect(),
    );
    // Strings and numbers: there is nothing in it that JSON cannot say.
    serde_json::to_string(&text).unwrap_or_default()
}

/// The party of a text. One that we cannot read is shown without its details: they are for people
/// and for the process watch, and prove nothing.
pub(super) fn decode(text: &[u8]) -> Party {
    let Ok(text) = serde_json::from_slice(text) else {
        return Party::default();
    };
    let PartyText(owner, label, host, processes, site, tags) = text;
    let process =
        |it: ProcessText<'_>| Process { namespace: Arc::from(&*it.0), pid: it.1, start: it.2 };
    let tag = |(key, value): (Cow<'_, str>, Cow<'_, str>)| Tag {
        key: Arc::from(&*key),
        value: Arc::from(&*value),
    };
    Party {
        owner: Arc::from(&*owner),
        label: Arc::from(&*label),
        host: Arc::from(&*host),
        processes: processes.into_iter().map(process).collect(),
        site: site.as_deref().map_or_else(Arc::default, Arc::from),
        tags: tags.into_iter().map(tag).collect(),
    }
}

/// How a mode stands in terms, answers and messages.
pub(super) fn encode_mode(mode: Mode) -> String {
    match mode {
        Mode::Exclusive => String::new(),
        Mode::Shared => "s".into(),
        Mode::Permits { count, of } => format!("p{count}/{of}"),
    }
}

/// The mode of a text; none: it is of none.
pub(super) fn decode_mode(text: &[u8]) -> Option<Mode> {
    let text = std::str::from_utf8(text).ok()?;
    Some(match text {
        "" => Mode::Exclusive,
        "s" => Mode::Shared,
        _ => {
            let (count, of) = text.strip_prefix('p')?.split_once('/')?;
            Mode::Permits { count: count.parse().ok()?, of: of.parse().ok()? }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_party_comes_back(
            owner: String, label: String, host: String, ids: Vec<(String, u32, u64)>, site: String,
            tags: BTreeMap<String, String>,
        ) {
            let process = |(namespace, pid, start): (String, _, _)| {
                Process { namespace: namespace.into(), pid, start }
            };
            let processes = ids.into_iter().map(process).collect();
            let (owner, label, host) = (owner.into(), label.into(), host.into());
            let tag = |(key, value): (String, String)| Tag { key: key.into(), value: value.into() };
            let (site, tags) = (site.into(), tags.into_iter().map(tag).collect());
            let party = Party { owner, label, host, processes, site, tags };
            prop_assert_eq!(decode(encode(&party).as_bytes()), party);
        }

        #[test]
        fn another_text_is_a_party_without_details(text: Vec<u8>) {
            let _ = decode(&text);
        }
    }

    #[test]
    fn it_is_short() {
        assert_eq!(encode(&Party::default()), r#"["","","",[]]"#);
        let site = Party { site: "a.rs:1".into(), ..Party::default() };
        assert_eq!(encode(&site), r#"["","","",[],"a.rs:1"]"#);
        let tag = Tag { key: "k".into(), value: "v".into() };
        let tags = Party { tags: [tag].into(), ..Party::default() };
        assert_eq!(encode(&tags), r#"["","","",[],"",{"k":"v"}]"#);
    }

    /// What was written before there were sites and tags.
    #[test]
    fn an_older_text_is_read() {
        let party = decode(r#"["o","l","h",[["n",7,9]]]"#.as_bytes());
        assert_eq!((&*party.owner, &*party.label, &*party.host), ("o", "l", "h"));
        assert_eq!((party.pid(), party.site.is_empty(), party.tags.len()), (Some(7), true, 0));
    }
}
