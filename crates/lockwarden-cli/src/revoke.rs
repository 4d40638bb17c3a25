//! `lockwarden revoke`: take a lock away from its holder.

use crate::{args::RevokeArgs, failure::Failure, output, settings, wire::RevokedJson};
use lockwarden::{Error, Loss, Warden};
use std::{ffi::OsStr, time::Duration};

/// Runs the command.
pub(crate) async fn revoke(store: Option<&OsStr>, args: RevokeArgs) -> Result<(), Failure> {
    let name = settings::name(&args.name)?;
    let token = settings::token(&args.token)?;
    let url = settings::store_url(store)?;
    let warden = Warden::connect(&url).await?;
    let revoked = warden.revoke(name.as_str(), &token, args.delayed).await;
    warden.close().await;
    let ends_in = match revoked {
        Ok(ends_in) => ends_in,
        // It was revoked before, with a delay, and ends soon: what was asked for is so (G6).
        Err(Error::Lost { loss: Loss::NotHeld(absence), .. }) if was_revoked(absence) => {
            Duration::from_millis(lockwarden::limits::W_MS)
        }
        Err(Error::Lost { name, .. }) => return Err(Failure::NotHeld { name }),
        Err(error) => return Err(error.into()),
    };
    let ends_in_ms = u64::try_from(ends_in.as_millis()).unwrap_or(u64::MAX);
    if args.json {
        let name = name.as_str().to_owned();
        return output::write_json(&RevokedJson { name, revoked: true, ends_in_ms });
    }
    if ends_in_ms == 0 {
        output::say(format_args!("the lock {name} is revoked"));
    } else {
        let within = output::span(ends_in_ms);
        output::say(format_args!("the lock {name} is revoked, and ends within {within}"));
    }
    Ok(())
}

fn was_revoked(absence: lockwarden::Absence) -> bool {
    absence == lockwarden::Absence::Revoked
}
