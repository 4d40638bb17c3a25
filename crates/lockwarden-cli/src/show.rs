//! `lockwarden show`: who holds a lock, and who waits for it.

use crate::{
    args::ShowArgs,
    failure::Failure,
    output::{self, escaped, party, span, tags, utc},
    settings,
    wire::{HolderJson, LockJson},
};
use lockwarden::{Name, Warden};
use std::{ffi::OsStr, fmt::Write};

/// Runs the command.
pub(crate) async fn show(store: Option<&OsStr>, args: ShowArgs) -> Result<(), Failure> {
    let name = settings::name(&args.name)?;
    let url = settings::store_url(store)?;
    let warden = Warden::connect(&url).await?;
    let view = warden.show(name.as_str()).await?;
    warden.close().await;
    let lock = LockJson::new(&name, &view);
    if args.json {
        output::write_json(&lock)
    } else {
        output::write(words(&name, &lock).as_bytes())
    }
}

fn words(name: &Name, lock: &LockJson) -> String {
    let mut text = format!("lock     {name}\n");
    match &lock.holder {
        None if lock.queue.is_empty() => text += "state    free\n",
        None if lock.waits_for_others() => {
            text += "state    free; the first in the queue waits for other locks, too\n";
        }
        None => text += "state    free, about to be granted\n",
        Some(holder) => text += &holder_words(holder),
    }
    for (place, holder) in lock.beside.iter().enumerate() {
        let heading = if place == 0 { "beside   " } else { "         " };
        let gone = if holder.alive == Some(false) { ", link down" } else { "" };
        let mode = holder.mode.as_deref().unwrap_or_default();
        let held = span(holder.held_ms.unwrap_or_default());
        let who = party(holder.label.as_deref(), holder.host.as_deref(), holder.pid);
        let _ = writeln!(text, "{heading}{who} {mode}, for {held}{gone}, token {}", holder.token);
    }
    for (place, ticket) in lock.queue.iter().enumerate() {
        let heading = if place == 0 { "queue    " } else { "         " };
        let left =
            ticket.left_ms.map_or_else(|| "for ever".to_owned(), |it| format!("{} more", span(it)));
        let mode = match ticket.mode.as_str() {
            "exclusive" => String::new(),
            mode => format!(", {mode}"),
        };
        let several = if ticket.several { ", for several locks at once" } else { "" };
        let gone = if ticket.alive { "" } else { ", link down" };
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{heading}{}. {} waiting {}, {left}{mode}{several}{gone}",
            place + 1,
            party(Some(&ticket.label), Some(&ticket.host), ticket.pid),
            span(ticket.waited_ms),
        );
        let site = ticket.site.as_ref().map(|site| format!("at {}", escaped(site)));
        let tags = Some(tags(&ticket.tags)).filter(|it| !it.is_empty());
        let more: Vec<String> =
            site.into_iter().chain(tags.map(|it| format!("tags {it}"))).collect();
        if !more.is_empty() {
            let _ = writeln!(text, "            {}", more.join("; "));
        }
    }
    text
}

fn holder_words(holder: &HolderJson) -> String {
    let mut text = String::new();
    let mut line = |heading: &str, value: String| {
        let _ = writeln!(text, "{heading:<8} {value}");
    };
    if holder.foreign {
        line("state", "held by another kind of client, of which only the token is known".into());
    } else {
        let state = match (holder.state, holder.alive) {
            (Some("revoked"), _) => "held, but revoked: it ends soon",
            (Some("cooling"), _) => {
                "held by nobody, but not free: it is granted again when the lease below ends"
            }
            (Some("left"), _) => {
                "left by its holder to whoever knows its value; else it ends with the lease below"
            }
            (Some("handed over"), _) => "handed over: it waits to be adopted",
            (_, Some(false)) => "held, but the holder's link to the store is down",
            _ => "held",
        };
        let mode = holder.mode.as_deref().filter(|mode| *mode != "exclusive");
        line("state", mode.map_or_else(|| state.to_owned(), |mode| format!("{state} ({mode})")));
        line("holder", party(holder.label.as_deref(), holder.host.as_deref(), holder.pid));
        if let Some(site) = &holder.site {
            line("site", escaped(site));
        }
        if let Some(held) = holder.tags.as_ref().filter(|held| !held.is_empty()) {
            line("tags", tags(held));
        }
    }
    if let (Some(since_unix_ms), Some(held_ms)) = (holder.since_unix_ms, holder.held_ms) {
        line("since", format!("{} ({})", utc(since_unix_ms), span(held_ms)));
    }
    let left = match (holder.lease_left_ms, holder.lease_ms) {
        (None, Some(_)) if holder.endless == Some(true) => "endless: as long as it is held".into(),
        (Some(left_ms), _) if holder.endless == Some(true) => {
            format!("endless, if its holder is heard of: {} left", span(left_ms))
        }
        (Some(left_ms), Some(lease_ms)) => format!("{} left of {}", span(left_ms), span(lease_ms)),
        (Some(left_ms), None) => format!("{} left", span(left_ms)),
        (None, _) => "never ends".into(),
    };
    line("lease", left);
    if let Some(grace_ms) = holder.grace_ms {
        line("grace", span(grace_ms));
    }
    if let Some(fence) = holder.fence {
        line("fence", fence.to_string());
    }
    line("token", holder.token.clone());
    text
}
