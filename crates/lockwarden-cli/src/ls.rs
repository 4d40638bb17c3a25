//! `lockwarden ls`: the locks that are held or waited for.

use crate::{
    args::LsArgs,
    failure::Failure,
    glob, output, settings,
    wire::{HolderJson, LockJson, LocksJson},
};
use lockwarden::{Error, Name, Warden};
use std::{collections::BTreeSet, ffi::OsStr};

/// Shown at once: as many as travel in one batch.
const AT_ONCE: usize = 64;

/// Runs the command.
pub(crate) async fn ls(store: Option<&OsStr>, args: LsArgs) -> Result<(), Failure> {
    let url = settings::store_url(store)?;
    let pattern = args.pattern.map(|it| it.to_string_lossy().into_owned());
    let warden = Warden::connect(&url).await?;
    let (names, foreign) = names(&warden, pattern.as_deref(), args.foreign).await?;
    let locks = show_all(&warden, names).await?;
    let listing =
        LocksJson { store: warden.place(), locks, foreign_keys: args.foreign.then_some(foreign) };
    warden.close().await;
    if args.json { output::write_json(&listing) } else { print(&listing) }
}

/// All names, each once, in order: a listing that is read twice reads the same.
async fn names(
    warden: &Warden,
    pattern: Option<&str>,
    foreign: bool,
) -> Result<(BTreeSet<Name>, u64), Failure> {
    let (mut names, mut others, mut cursor) = (BTreeSet::new(), 0, 0);
    loop {
        let page = warden.page(cursor, foreign).await?;
        let wanted = |name: &Name| pattern.is_none_or(|it| glob::matches(it, name.as_str()));
        names.extend(page.names.into_iter().filter(wanted));
        others += page.foreign;
        cursor = page.cursor;
        if cursor == 0 {
            return Ok((names, others));
        }
    }
}

/// What stands about each (C66: asked of the store now, never remembered). What has become free
/// since its name was listed is left out.
async fn show_all(warden: &Warden, names: BTreeSet<Name>) -> Result<Vec<LockJson>, Failure> {
    let mut locks = Vec::with_capacity(names.len());
    let mut names = names.into_iter();
    loop {
        let asked: Vec<_> = names
            .by_ref()
            .take(AT_ONCE)
            .map(|name| {
                let warden = warden.clone();
                tokio::spawn(async move {
                    let view = warden.show(name.as_str()).await?;
                    Ok::<_, Error>(LockJson::new(&name, &view))
                })
            })
            .collect();
        if asked.is_empty() {
            return Ok(locks);
        }
        for shown in asked {
            // The runtime ends after us, so no task of it is lost.
            let lock = shown.await.map_err(|_| Error::Closed)??;
            if !lock.free {
                locks.push(lock);
            }
        }
    }
}

fn print(listing: &LocksJson) -> Result<(), Failure> {
    let mut rows =
        vec![["NAME", "HOLDER", "HELD", "LEASE LEFT", "FENCE", "WAITING"].map(String::from)];
    for lock in &listing.locks {
        let span = |ms: Option<u64>, none: &str| ms.map_or_else(|| none.to_owned(), output::span);
        let holder = lock.holder.as_ref();
        rows.push([
            output::escaped(&lock.name),
            holder.map_or_else(|| "-".into(), who),
            span(holder.and_then(|it| it.held_ms), "-"),
            span(
                holder.and_then(|it| it.lease_left_ms),
                if holder.is_some() { "never ends" } else { "-" },
            ),
            holder.and_then(|it| it.fence).map_or_else(|| "-".into(), |it| it.to_string()),
            lock.queue.len().to_string(),
        ]);
    }
    let mut text = String::new();
    if !listing.locks.is_empty() {
        let widths: Vec<usize> = (0..6)
            .map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0))
            .collect();
        for row in &rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                line += &format!("{cell:<width$}  ");
            }
            text += line.trim_end();
            text.push('\n');
        }
    }
    output::write(text.as_bytes())?;
    if listing.locks.is_empty() {
        output::say(format_args!("no locks in {}", listing.store));
    }
    if let Some(foreign) = listing.foreign_keys {
        output::say(format_args!("and {foreign} other text keys that look like no lock"));
    }
    Ok(())
}

/// A holder in few words.
fn who(holder: &HolderJson) -> String {
    if holder.foreign {
        return "another kind of client".into();
    }
    let label = holder.label.as_deref().filter(|it| !it.is_empty());
    let label = label.map_or_else(String::new, |it| format!("{} ", output::escaped(it)));
    let host = output::escaped(holder.host.as_deref().unwrap_or("?"));
    let pid = holder.pid.map_or_else(|| "?".to_owned(), |pid| pid.to_string());
    let state = match (holder.revoked, holder.alive) {
        (Some(true), _) => " (revoked)",
        (_, Some(false)) => " (link down)",
        _ => "",
    };
    format!("{label}{host}:{pid}{state}")
}
