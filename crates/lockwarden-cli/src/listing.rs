//! The names that a store has, and what stands about each.

use crate::{failure::Failure, glob, wire::LockJson};
use lockwarden::{Error, Name, Warden};
use std::collections::BTreeSet;

/// Shown at once: as many as travel in one batch.
const AT_ONCE: usize = 64;

/// All names, each once, in order: a listing that is read twice reads the same.
pub(crate) async fn names(
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
pub(crate) async fn show_all(
    warden: &Warden,
    names: BTreeSet<Name>,
) -> Result<Vec<LockJson>, Failure> {
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
