//! `lockwarden recall`: ask the holder of a lock to give it up.

use crate::{args::RecallArgs, failure::Failure, output, settings, wire::RecalledJson};
use lockwarden::{Error, Name, Token, Warden};
use std::ffi::OsStr;

/// Runs the command.
pub(crate) async fn recall(store: Option<&OsStr>, args: RecallArgs) -> Result<(), Failure> {
    let name = settings::name(&args.name)?;
    let token = args.token.map(|token| settings::token(&token)).transpose()?;
    let url = settings::store_url(store)?;
    let warden = Warden::connect(&url).await?;
    let asked = ask(&warden, &name, token).await;
    warden.close().await;
    let token = asked?;
    if args.json {
        let (name, token) = (name.as_str().to_owned(), token.to_string());
        return output::write_json(&RecalledJson { name, recalled: true, token });
    }
    output::say(format_args!("the holder of the lock {name} is asked to give it up"));
    Ok(())
}

/// Asks the holder with this token, or whoever holds it now; says whom.
async fn ask(warden: &Warden, name: &Name, token: Option<Token>) -> Result<Token, Failure> {
    let nobody = || Failure::NotAsked { name: name.clone() };
    let token = match token {
        Some(token) => token,
        None => warden.show(name.as_str()).await?.holder.ok_or_else(nobody)?.token,
    };
    match warden.recall(name.as_str(), &token).await {
        Ok(()) => Ok(token),
        Err(Error::Lost { .. }) => Err(nobody()),
        Err(error) => Err(error.into()),
    }
}
