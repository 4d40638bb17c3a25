//! The JSON that we print. These types are its definition: fields are added, never renamed, and the
//! core's types are never serialised.

use crate::{output, stress::Sequence};
use lockwarden::{HoldState, HolderView, LockView, Mode, Name, Party, RecordView, TicketView};
use serde::Serialize;
use std::collections::BTreeMap;

/// What `ls --json` prints.
#[derive(Debug, Serialize)]
pub(crate) struct LocksJson {
    /// Where the store is, without its password.
    pub(crate) store: String,
    /// The locks that are held or waited for, by name.
    pub(crate) locks: Vec<LockJson>,
    /// How many other text keys the store has; only with `--foreign`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) foreign_keys: Option<u64>,
}

/// One lock: what `show --json` prints.
#[derive(Debug, Serialize)]
pub(crate) struct LockJson {
    /// Its name, as it is.
    pub(crate) name: String,
    /// Nobody holds it, and nobody waits for it.
    pub(crate) free: bool,
    /// Who holds it.
    pub(crate) holder: Option<HolderJson>,
    /// Who holds it together with that one, whose lease ends first comes first.
    pub(crate) beside: Vec<HolderJson>,
    /// Who waits for it, in order.
    pub(crate) queue: Vec<TicketJson>,
}

/// A holder.
#[derive(Debug, Serialize)]
pub(crate) struct HolderJson {
    /// The value of its key; `revoke` wants it. Bytes that are no text stand as `\xNN`.
    pub(crate) token: String,
    /// In how many ms its lease ends; null: never.
    pub(crate) lease_left_ms: Option<u64>,
    /// Another kind of client wrote the key: the fields from here on are null.
    pub(crate) foreign: bool,
    pub(crate) label: Option<String>,
    /// Which line of execution it is, for deadlocks; null: it stands for itself.
    pub(crate) owner: Option<String>,
    pub(crate) host: Option<String>,
    pub(crate) pid: Option<u32>,
    /// All processes whose life keeps the lock, the first among them (R38).
    pub(crate) pids: Option<Vec<u32>>,
    /// For how many ms it has held the lock.
    pub(crate) held_ms: Option<u64>,
    /// The same as a time: ms after 1970, by this machine's clock.
    pub(crate) since_unix_ms: Option<u64>,
    pub(crate) fence: Option<u64>,
    pub(crate) lease_ms: Option<u64>,
    pub(crate) grace_ms: Option<u64>,
    /// Its link to the store is up.
    pub(crate) alive: Option<bool>,
    /// It was revoked, and ends soon.
    pub(crate) revoked: Option<bool>,
    /// `held`; `revoked`: it ends soon; `cooling`: nobody has it, and it is not granted before its end; `left`: the same,
    /// unless somebody who knows its value extends or releases it; `handed over`: it waits to be adopted.
    pub(crate) state: Option<&'static str>,
    /// For how many ms before its end the lock is granted to nobody, if its holder is lost by a crash.
    pub(crate) delay_ms: Option<u64>,
    /// How many ms of its minimum are left.
    pub(crate) least_left_ms: Option<u64>,
    /// It has no end of its own while it is held: its lease is what its holder counts by.
    pub(crate) endless: Option<bool>,
    /// `exclusive`, `shared` or `permits N/M`.
    pub(crate) mode: Option<String>,
    pub(crate) session: Option<String>,
    /// Where in its program the acquire stands; null: not known.
    pub(crate) site: Option<String>,
    /// Its tags.
    pub(crate) tags: Option<BTreeMap<String, String>>,
}

/// A waiter.
#[derive(Debug, Serialize)]
pub(crate) struct TicketJson {
    pub(crate) token: String,
    pub(crate) label: String,
    /// As a holder's.
    pub(crate) owner: Option<String>,
    pub(crate) host: String,
    pub(crate) pid: Option<u32>,
    /// For how many ms it has waited.
    pub(crate) waited_ms: u64,
    /// For how many ms it will wait on; null: for ever.
    pub(crate) left_ms: Option<u64>,
    /// As a holder's.
    pub(crate) mode: String,
    /// It waits for other locks, too, to have all of them at once.
    pub(crate) several: bool,
    /// Its link to the store is up.
    pub(crate) alive: bool,
    pub(crate) session: String,
    /// As a holder's.
    pub(crate) site: Option<String>,
    pub(crate) tags: BTreeMap<String, String>,
}

/// What `graph --json` prints.
#[derive(Debug, Serialize)]
pub(crate) struct GraphJson {
    /// Where the store is, without its password.
    pub(crate) store: String,
    /// The locks that are waited for, each with its holder and its queue: every waiter waits for the holder and
    /// for whoever is ahead of it.
    pub(crate) locks: Vec<LockJson>,
}

/// What `revoke --json` prints.
#[derive(Debug, Serialize)]
pub(crate) struct RevokedJson {
    pub(crate) name: String,
    pub(crate) revoked: bool,
    /// In how many ms the lock ends; 0: it has.
    pub(crate) ends_in_ms: u64,
}

/// What `recall --json` prints.
#[derive(Debug, Serialize)]
pub(crate) struct RecalledJson {
    pub(crate) name: String,
    /// Its holder is asked; it decides.
    pub(crate) recalled: bool,
    /// The holder's.
    pub(crate) token: String,
}

/// What `wait --json` prints.
#[derive(Debug, Serialize)]
pub(crate) struct WaitedJson {
    pub(crate) name: String,
    pub(crate) free: bool,
    pub(crate) waited_ms: u64,
}

/// What `stress orders --json` prints.
#[derive(Debug, Serialize)]
pub(crate) struct StressJson {
    /// Where the store is, without its password.
    pub(crate) store: String,
    pub(crate) scenario: &'static str,
    /// The number of locks of each order.
    pub(crate) locks: u32,
    /// In which order they are acquired one inside the other: `sorted` or `random`.
    pub(crate) order: Sequence,
    pub(crate) work_ms: f64,
    pub(crate) wait_ms: f64,
    pub(crate) seed: u64,
    /// The styles that ran.
    pub(crate) results: Vec<StressResultJson>,
    /// The styles that this store cannot do.
    pub(crate) left_out: Vec<LeftOutJson>,
}

/// A style that did not run.
#[derive(Debug, Serialize)]
pub(crate) struct LeftOutJson {
    pub(crate) style: &'static str,
    pub(crate) reason: &'static str,
}

/// The figures of one style.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct StressResultJson {
    pub(crate) style: &'static str,
    /// How many orders there were, and how many locks each needed.
    pub(crate) orders: u64,
    pub(crate) locks: u32,
    /// Done of all, from 0 to 1.
    pub(crate) success_rate: f64,
    pub(crate) done: u64,
    /// Did not get their locks within the wait.
    pub(crate) gave_up: u64,
    /// The store refused them something.
    pub(crate) failed: u64,
    /// From the start to the end of the last order; the least possible; and the one by the other.
    pub(crate) total_s: f64,
    pub(crate) best_s: f64,
    pub(crate) ratio: f64,
    /// From asking until all locks were had, of the orders that got them; null: none did.
    pub(crate) mean_ms: Option<f64>,
    pub(crate) p50_ms: Option<f64>,
    pub(crate) p99_ms: Option<f64>,
    pub(crate) max_ms: Option<f64>,
    /// Done, per second of the total time.
    pub(crate) throughput_per_s: f64,
    /// Told by the library; of `flawed` and `backoff` seen from outside.
    pub(crate) deadlocks: u64,
    /// How long the slowest of them took to be told; null: none was.
    pub(crate) deadlock_told_max_ms: Option<f64>,
    /// The most at a time, beyond those that were there before; 0: there is no server.
    pub(crate) connections: u64,
    pub(crate) connections_per_process: u64,
    /// What the server counted, those inside of scripts included; 0: there is no server.
    pub(crate) commands: u64,
    /// For each lock of each order that got its locks.
    pub(crate) commands_per_acquisition: Option<f64>,
    /// What the style left behind in the store. It was removed.
    pub(crate) keys_left: u64,
    /// How often two orders held one lock at the same time.
    pub(crate) violations: u64,
    /// How often an order did not hold a lock any more that it should hold.
    pub(crate) lost: u64,
    pub(crate) processes: u32,
    /// How many of them were killed, and how many orders the others did again for them.
    pub(crate) killed: u32,
    pub(crate) redone: u64,
    /// How often the server was restarted.
    pub(crate) restarts: u32,
    /// What the store refused, in its words.
    pub(crate) refusals: Vec<String>,
}

fn owner(party: &Party) -> Option<String> {
    Some(party.owner.to_string()).filter(|owner| !owner.is_empty())
}

fn mode(mode: Mode) -> String {
    match mode {
        Mode::Exclusive => "exclusive".into(),
        Mode::Shared => "shared".into(),
        Mode::Permits { count, of } => format!("permits {count}/{of}"),
    }
}

fn state(state: HoldState) -> &'static str {
    match state {
        HoldState::Held => "held",
        HoldState::Revoked => "revoked",
        HoldState::Cooling => "cooling",
        HoldState::HandedOver => "handed over",
    }
}

fn site(party: &Party) -> Option<String> {
    Some(party.site.to_string()).filter(|site| !site.is_empty())
}

fn tags(party: &Party) -> BTreeMap<String, String> {
    party.tags.iter().map(|tag| (tag.key.to_string(), tag.value.to_string())).collect()
}

impl LockJson {
    /// Nobody holds it, and the first in its queue waits for other locks, too: so it may stay, kept for that one or
    /// not.
    pub(crate) fn waits_for_others(&self) -> bool {
        self.holder.is_none() && self.queue.iter().find(|it| it.alive).is_some_and(|it| it.several)
    }

    /// A lock as the store shows it.
    pub(crate) fn new(name: &Name, view: &LockView) -> LockJson {
        LockJson {
            name: name.as_str().to_owned(),
            free: view.holder.is_none() && view.queue.is_empty(),
            holder: view.holder.as_ref().map(|holder| HolderJson::new(holder, view.holder_alive)),
            beside: view
                .beside
                .iter()
                .map(|(holder, alive)| HolderJson::new(holder, Some(*alive)))
                .collect(),
            queue: view.queue.iter().map(TicketJson::new).collect(),
        }
    }
}

impl HolderJson {
    fn new(holder: &HolderView, alive: Option<bool>) -> HolderJson {
        let record = holder.record.as_ref();
        let pids = |it: &RecordView| it.party.processes.iter().map(|it| it.pid).collect();
        HolderJson {
            token: holder.token.to_string(),
            lease_left_ms: holder.ttl_ms,
            foreign: record.is_none(),
            label: record.map(|it| it.party.label.to_string()),
            owner: record.and_then(|it| owner(&it.party)),
            host: record.map(|it| it.party.host.to_string()),
            pid: record.and_then(|it| it.party.pid()),
            pids: record.map(pids),
            held_ms: record.map(|it| it.held_ms),
            since_unix_ms: record.map(|it| output::unix_ms_ago(it.held_ms)),
            fence: record.map(|it| it.fence),
            lease_ms: record.map(|it| it.lease_ms),
            grace_ms: record.map(|it| it.grace_ms),
            alive,
            revoked: record.map(|it| it.state == HoldState::Revoked),
            state: record.map(|it| match it.state {
                HoldState::Held if holder.is_delayed() => "cooling",
                HoldState::Cooling if holder.is_left() => "left",
                its => state(its),
            }),
            delay_ms: record.map(|it| it.delay_ms),
            least_left_ms: record.map(|it| it.least_left_ms),
            endless: record.map(|it| it.endless),
            mode: record.map(|it| mode(it.mode)),
            session: record.map(|it| it.session.to_string()),
            site: record.and_then(|it| site(&it.party)),
            tags: record.map(|it| tags(&it.party)),
        }
    }
}

impl TicketJson {
    fn new(ticket: &TicketView) -> TicketJson {
        TicketJson {
            token: ticket.token.to_string(),
            label: ticket.party.label.to_string(),
            owner: owner(&ticket.party),
            host: ticket.party.host.to_string(),
            pid: ticket.party.pid(),
            waited_ms: ticket.waited_ms,
            left_ms: ticket.left_ms,
            mode: mode(ticket.mode),
            several: ticket.several,
            alive: ticket.alive,
            session: ticket.session.to_string(),
            site: site(&ticket.party),
            tags: tags(&ticket.party),
        }
    }
}
