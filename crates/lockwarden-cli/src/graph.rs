//! `lockwarden graph`: who waits for whom.

use crate::{
    args::GraphArgs,
    failure::Failure,
    listing,
    output::{self, escaped, span},
    settings,
    wire::{GraphJson, HolderJson, LockJson, TicketJson},
};
use lockwarden::Warden;
use std::{collections::BTreeMap, ffi::OsStr};

/// Runs the command.
pub(crate) async fn graph(store: Option<&OsStr>, args: GraphArgs) -> Result<(), Failure> {
    let url = settings::store_url(store)?;
    let pattern = args.pattern.map(|it| it.to_string_lossy().into_owned());
    let warden = Warden::connect(&url).await?;
    let (names, _) = listing::names(&warden, pattern.as_deref(), false).await?;
    let mut locks = listing::show_all(&warden, names).await?;
    locks.retain(|lock| !lock.queue.is_empty());
    let graph = GraphJson { store: warden.place(), locks };
    warden.close().await;
    match () {
        () if args.json => output::write_json(&graph),
        () if args.dot => output::write(dot(&graph).as_bytes()),
        () => {
            output::write(words(&graph).as_bytes())?;
            if graph.locks.is_empty() {
                output::say(format_args!("nobody waits in {}", graph.store));
            }
            Ok(())
        }
    }
}

fn words(graph: &GraphJson) -> String {
    let mut text = String::new();
    for lock in &graph.locks {
        text += &escaped(&lock.name);
        text += &match &lock.holder {
            None if lock.waits_for_others() => " is free\n".into(),
            None => " is about to be granted\n".into(),
            Some(holder) => {
                let party = |it: &HolderJson| {
                    let since =
                        it.held_ms.map_or_else(String::new, |ms| format!(" for {}", span(ms)));
                    Party::holder(it).words + &since
                };
                // Whoever wants it alone waits for all of them.
                let all: Vec<String> =
                    std::iter::once(holder).chain(&lock.beside).map(party).collect();
                format!(" {} {}\n", relation(holder), all.join(", beside "))
            }
        };
        for (place, ticket) in lock.queue.iter().enumerate() {
            let waits = Party::waiter(ticket).words;
            let several = if ticket.several { ", to have several at once" } else { "" };
            let waited = span(ticket.waited_ms);
            text += &format!("  {}. {waits} waits for {waited}{several}\n", place + 1);
        }
    }
    text
}

/// Who holds or waits. One that has an owner is the same wherever it does; else each acquisition stands for itself.
struct Party<'a> {
    id: &'a str,
    /// What the id is: an owner's, or only the token's of one acquisition.
    kind: &'static str,
    words: String,
}

impl<'a> Party<'a> {
    fn holder(holder: &'a HolderJson) -> Party<'a> {
        let words = if holder.foreign {
            format!("another kind of client (value {})", escaped(&holder.token))
        } else {
            let party = output::party(holder.label.as_deref(), holder.host.as_deref(), holder.pid);
            party + &more(holder.site.as_deref(), holder.tags.as_ref())
        };
        Party::new(holder.owner.as_deref(), &holder.token, words)
    }

    fn waiter(ticket: &'a TicketJson) -> Party<'a> {
        let party = output::party(Some(&ticket.label), Some(&ticket.host), ticket.pid);
        let words = party + &more(ticket.site.as_deref(), Some(&ticket.tags));
        Party::new(ticket.owner.as_deref(), &ticket.token, words)
    }

    fn new(owner: Option<&'a str>, token: &'a str, words: String) -> Party<'a> {
        let kind = if owner.is_some() { "owner" } else { "token" };
        Party { id: owner.unwrap_or(token), kind, words }
    }
}

/// What a lock is to whom it names as its holder.
fn relation(holder: &HolderJson) -> &'static str {
    match holder.state {
        Some("cooling") => "was held last by",
        Some("handed over") => "was handed over by",
        _ => "is held by",
    }
}

/// What else is known of a party: where it acquires, and its tags.
fn more(site: Option<&str>, tags: Option<&BTreeMap<String, String>>) -> String {
    let site = site.map_or_else(String::new, |site| format!(" at {}", escaped(site)));
    let tags = tags.map(output::tags).filter(|tags| !tags.is_empty());
    site + &tags.map_or_else(String::new, |tags| format!(" [{tags}]"))
}

/// Parties are boxes, locks are ellipses: an arrow from a party to a lock is a wait, one from a lock to a party
/// says who holds it.
fn dot(graph: &GraphJson) -> String {
    let mut parties = BTreeMap::new();
    let mut edges = String::new();
    let mut draw = |party: Party<'_>| {
        let node = quoted(&format!("{} {}", party.kind, party.id));
        parties.insert(node.clone(), quoted(&party.words));
        node
    };
    for LockJson { name, holder, beside, queue, .. } in &graph.locks {
        let lock = quoted(&format!("lock {name}"));
        edges += &format!("  {lock} [label={}];\n", quoted(name));
        for holder in holder.iter().chain(beside) {
            let label = relation(holder).trim_start_matches("is ");
            edges += &format!("  {lock} -> {} [label=\"{label}\"];\n", draw(Party::holder(holder)));
        }
        for (place, ticket) in queue.iter().enumerate() {
            let label = quoted(&format!("{}. {}", place + 1, span(ticket.waited_ms)));
            edges += &format!("  {} -> {lock} [label={label}];\n", draw(Party::waiter(ticket)));
        }
    }
    let mut text = String::from("digraph waits {\n");
    for (node, label) in parties {
        text += &format!("  {node} [shape=box, label={label}];\n");
    }
    text + &edges + "}\n"
}

/// A quoted ID of the DOT language (<https://graphviz.org/doc/info/lang.html>): a backslash before a quote is all
/// that it knows, and at the end of a text one must not stand alone; labels read more of them.
fn quoted(text: &str) -> String {
    let text = escaped(text).replace('\\', "\\\\").replace('"', "\\\"");
    format!("\"{text}\"")
}
