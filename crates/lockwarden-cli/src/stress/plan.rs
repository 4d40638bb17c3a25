//! What a run will do, checked before anything is done.

use super::{
    StressError,
    scenario::{Locks, Orders, Sequence},
    styles::Style,
};
use crate::{args::OrdersArgs, failure::Failure, settings};
use lockwarden::store::url::StoreUrl;
use std::{ffi::OsStr, path::PathBuf, time::Duration};

/// What a run will do.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) place: Place,
    pub(super) orders: Orders,
    pub(super) work: Duration,
    pub(super) wait: Duration,
    pub(super) processes: u32,
    /// How many processes are killed.
    pub(super) victims: u32,
    pub(super) restart: bool,
    pub(super) styles: Vec<Style>,
    /// Styles that were wanted, or would be, and that this store cannot do.
    pub(super) left_out: Vec<Style>,
}

/// On which store.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// That of the user.
    Store { url: String, is_redis: bool },
    /// A server that is started for the run.
    OwnServer { program: PathBuf },
}

impl Plan {
    /// Checks what the parser cannot.
    pub(super) fn new(store: Option<&OsStr>, args: &OrdersArgs) -> Result<Plan, Failure> {
        let place = place(store, args)?;
        let processes = args.processes;
        if processes > args.orders {
            return Err(
                StressError::MoreProcessesThanOrders { processes, orders: args.orders }.into()
            );
        }
        let has_redis = !matches!(place, Place::Store { is_redis: false, .. });
        let mut wanted = args.style.clone();
        if wanted.is_empty() {
            wanted = Style::ALL.to_vec();
        }
        let (styles, left_out) =
            once_each(wanted).into_iter().partition::<Vec<_>, _>(|it| has_redis || it.is_ours());
        if let (Some(style), true) = (left_out.first(), styles.is_empty()) {
            let store = named(store)?;
            return Err(StressError::NeedsRedis { style: *style, store }.into());
        }
        Ok(Plan {
            place,
            orders: Orders {
                count: args.orders,
                locks: args.locks,
                sequence: args.order,
                seed: args.seed,
                prefix: format!("stress:{}:", lockwarden::new_owner()?),
            },
            work: args.work,
            wait: args.wait,
            processes,
            victims: victims(args.kill, processes)?,
            restart: args.restart_redis,
            styles,
            left_out,
        })
    }

    /// In one line, for people.
    pub(super) fn words(&self) -> String {
        let Plan { orders, processes, work, wait, .. } = self;
        let locks = match orders.locks {
            Locks::Two => "two locks",
            Locks::Four => "four locks",
        };
        let sequence = match orders.sequence {
            Sequence::Sorted => "sorted",
            Sequence::Random => "random",
        };
        let several = if *processes == 1 { "process" } else { "processes" };
        format!(
            "{} orders, {locks} each ({sequence}), {work:?} of work, wait {wait:?}, {processes} {several}, seed {}",
            orders.count, orders.seed
        )
    }
}

fn place(store: Option<&OsStr>, args: &OrdersArgs) -> Result<Place, Failure> {
    if args.restart_redis || args.redis_server.is_some() {
        if store.is_some() {
            let store = named(store)?;
            return Err(match args.redis_server {
                Some(_) => StressError::TwoStores { store },
                None => StressError::NotOursToRestart { store },
            }
            .into());
        }
        let program = args.redis_server.clone().unwrap_or_else(|| "redis-server".into());
        return Ok(Place::OwnServer { program });
    }
    let url = settings::store_url(store)?;
    let is_redis = match url.parse()? {
        StoreUrl::Redis(_) => true,
        StoreUrl::File(_) => false,
        StoreUrl::Memory => return Err(StressError::InMemory.into()),
    };
    Ok(Place::Store { url: settings::absolute(url), is_redis })
}

/// The store, without its password.
fn named(store: Option<&OsStr>) -> Result<String, Failure> {
    let url: StoreUrl = settings::store_url(store)?.parse()?;
    Ok(url.open().map_err(lockwarden::Error::from)?.place())
}

/// How many processes are killed: the share, but one at least, and not all.
fn victims(percent: u8, processes: u32) -> Result<u32, StressError> {
    match percent {
        0 => Ok(0),
        100 => Err(StressError::NoSurvivors),
        _ if processes < 2 => Err(StressError::KillNeedsProcesses { percent }),
        _ => {
            let share = (processes * u32::from(percent) + 50) / 100;
            Ok(share.clamp(1, processes - 1))
        }
    }
}

fn once_each(styles: Vec<Style>) -> Vec<Style> {
    let mut once = Vec::new();
    for style in styles {
        if !once.contains(&style) {
            once.push(style);
        }
    }
    once
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_the_processes_is_killed_but_never_all() {
        for (percent, processes, killed) in
            [(0, 1, 0), (10, 2, 1), (10, 10, 1), (25, 10, 3), (99, 4, 3), (50, 4, 2), (1, 256, 3)]
        {
            assert_eq!(victims(percent, processes).unwrap(), killed, "{percent} of {processes}");
        }
        assert!(matches!(victims(10, 1), Err(StressError::KillNeedsProcesses { .. })));
        assert!(matches!(victims(100, 4), Err(StressError::NoSurvivors)));
    }

    #[test]
    fn a_style_given_twice_runs_once() {
        let styles = vec![Style::Backoff, Style::Flawed, Style::Backoff];
        assert_eq!(once_each(styles), [Style::Backoff, Style::Flawed]);
    }
}
