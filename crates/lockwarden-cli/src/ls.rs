//! `lockwarden ls`: the locks that are held or waited for.

use crate::{
    args::LsArgs,
    failure::Failure,
    listing, output, settings,
    wire::{HolderJson, LocksJson},
};
use lockwarden::Warden;
use std::ffi::OsStr;

/// Runs the command.
pub(crate) async fn ls(store: Option<&OsStr>, args: LsArgs) -> Result<(), Failure> {
    let url = settings::store_url(store)?;
    let pattern = args.pattern.map(|it| it.to_string_lossy().into_owned());
    let warden = Warden::connect(&url).await?;
    let (names, foreign) = listing::names(&warden, pattern.as_deref(), args.foreign).await?;
    let locks = listing::show_all(&warden, names).await?;
    let listing =
        LocksJson { store: warden.place(), locks, foreign_keys: args.foreign.then_some(foreign) };
    warden.close().await;
    if args.json { output::write_json(&listing) } else { print(&listing) }
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
                match holder {
                    Some(holder) if holder.endless == Some(true) => "endless",
                    Some(_) => "never ends",
                    None => "-",
                },
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
    let party = output::party(holder.label.as_deref(), holder.host.as_deref(), holder.pid);
    let state = match (holder.state, holder.alive) {
        (Some("revoked"), _) => ", revoked",
        (Some("cooling"), _) => ", cooling",
        (Some("handed over"), _) => ", handed over",
        (_, Some(false)) => ", link down",
        _ => "",
    };
    let site = holder.site.as_deref().map(|site| format!(" at {}", output::escaped(site)));
    party + &site.unwrap_or_default() + state
}
