//! The ways to acquire the locks of an order, side by side.

mod all_at_once;
mod backoff;
mod flawed;
mod nested;
mod pool;
mod refusal;

pub(super) use refusal::Refusal;

use super::{order::Holding, pipe::Setup, redis_client, scenario::Wanted};
use crate::failure::Failure;
use backoff::Backoff;
use clap::ValueEnum;
use flawed::Flawed;
use lockwarden::{Guard, Settings, Warden, store::url::StoreUrl};
use nested::Nested;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tokio::time::Instant;

/// A way to acquire the locks of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Style {
    /// SETNX, then EXPIRE; looks every 0.1 s; a release that never matches. Needs Redis.
    Flawed,
    /// A Lua lock that looks ever more seldom; sorted names; an owner-checked release. Needs Redis.
    Backoff,
    /// All locks at once.
    Lockwarden,
    /// One lock inside the other; deadlocks are told, rolled back, and tried again.
    LockwardenNested,
}

impl Style {
    pub(super) const ALL: [Style; 4] =
        [Style::Flawed, Style::Backoff, Style::Lockwarden, Style::LockwardenNested];

    /// As on the command line.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Style::Flawed => "flawed",
            Style::Backoff => "backoff",
            Style::Lockwarden => "lockwarden",
            Style::LockwardenNested => "lockwarden-nested",
        }
    }

    /// Does it hold what this product promises?
    pub(super) const fn is_ours(self) -> bool {
        matches!(self, Style::Lockwarden | Style::LockwardenNested)
    }
}

/// One acquired lock, and how it is given back.
pub(super) enum Proof {
    /// One guard may be that of several locks; the last of these gives them back.
    Guard(Arc<Guard>),
    Key(Key),
}

/// A key of a style that is not ours.
pub(super) struct Key {
    name: String,
    value: String,
}

/// What a process acquires locks by.
pub(super) enum Client {
    Flawed(Flawed),
    Backoff(Backoff),
    AllAtOnce(Warden),
    Nested(Nested),
}

impl Client {
    /// Connects, or gets ready to.
    pub(super) async fn connect(setup: &Setup) -> Result<Client, Failure> {
        Ok(match setup.style {
            Style::Flawed | Style::Backoff => {
                let client = redis_client::of_url(&setup.url)?;
                let prefix = match setup.url.parse()? {
                    StoreUrl::Redis(settings) => settings.prefix,
                    _ => String::new(),
                };
                match setup.style {
                    Style::Flawed => Client::Flawed(Flawed::new(client, prefix, setup)),
                    _ => Client::Backoff(Backoff::new(client, prefix, setup)),
                }
            }
            Style::Lockwarden => Client::AllAtOnce(warden(setup).await?),
            Style::LockwardenNested => Client::Nested(Nested::new(warden(setup).await?, setup)),
        })
    }

    /// Acquires all locks of an order. If it is refused, `holding` has what was acquired before that.
    pub(super) async fn acquire(
        &self,
        wanted: &[Wanted],
        holding: &mut Holding,
        give_up_at: Instant,
    ) -> Result<(), Refusal> {
        match self {
            Client::Flawed(flawed) => flawed.acquire(wanted, holding, give_up_at).await,
            Client::Backoff(backoff) => backoff.acquire(wanted, holding, give_up_at).await,
            Client::AllAtOnce(warden) => {
                all_at_once::acquire(warden, wanted, holding, give_up_at).await
            }
            Client::Nested(nested) => nested.acquire(wanted, holding, give_up_at).await,
        }
    }

    /// Gives one lock back. Was it still ours, as far as anyone can tell?
    pub(super) async fn release(&self, proof: Proof) -> bool {
        match (self, proof) {
            (Client::Flawed(flawed), Proof::Key(key)) => flawed.release(key).await,
            (Client::Backoff(backoff), Proof::Key(key)) => backoff.release(key).await,
            // An answer that is lost in a restart is no loss: the warden goes on trying.
            (_, Proof::Guard(guard)) => match Arc::into_inner(guard) {
                Some(guard) => {
                    !matches!(guard.release().await, Err(lockwarden::Error::Lost { .. }))
                }
                None => true,
            },
            // No client has another one's keys.
            (_, Proof::Key(_)) => true,
        }
    }

    /// Gives back whatever is left, and disconnects.
    pub(super) async fn close(&self) {
        match self {
            Client::AllAtOnce(warden) => warden.clone().close().await,
            Client::Nested(nested) => nested.close().await,
            // Their keys expire, or are removed by the run.
            Client::Flawed(_) | Client::Backoff(_) => {}
        }
    }
}

async fn warden(setup: &Setup) -> Result<Warden, Failure> {
    Ok(Settings::new().label("stress").connect(&setup.url).await?)
}
