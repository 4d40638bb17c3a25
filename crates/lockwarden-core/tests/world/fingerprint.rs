//! One number for a state of the [`World`], the same for states that differ in nothing that matters.
//!
//! Times count relative to now, and what is long past counts as past; epochs, runs, beats, links and
//! handles are numbered by first appearance, for they are compared for equality only. The keeper is
//! hashed by its own `Hash`, so that no part of it can be forgotten here: the [`Normal`] hasher
//! knows each kind of number by its size. What is hashed by hand below leaves out only what no
//! answer and no decision depends on (since when, for people; the way to a fresh number).

use super::{
    Conn, Down, EPOCH_US, SECOND_US, Up, World,
    session::{FIRST_HANDLE, Owner},
};
use lockwarden_core::{
    Reply,
    command::Reason,
    limits::W_MS,
    table::{Record, Request, Table, Together},
};
use std::hash::{Hash, Hasher};

/// Longer ago than any lease or belief of the model: it makes no difference how long.
const LONG_AGO_US: u64 = 10 * SECOND_US;

pub fn fingerprint(world: &World) -> u64 {
    let mut to = Normal::new(world.now_us);
    table(&world.table, world, &mut to);
    if world.copy.as_ref() == Some(&world.table) {
        to.write_u8(1);
    } else if let Some(copy) = &world.copy {
        table(copy, world, &mut to);
    }
    world.run.hash(&mut to);
    let up_us = (world.now_us - world.started_us).min((W_MS + 1_000) * 1_000);
    to.mix(up_us | u64::from(world.promoted));
    world.faults.hash(&mut to);
    for (index, session) in world.sessions.iter().enumerate() {
        // Numbers of beats, links and handles are a session's own.
        to.numbers.clear();
        to.mix(u64::from(session.running) << 1 | u64::from(session.linked));
        if session.running {
            session.keeper.hash(&mut to);
        }
        to.mix(session.asked);
        for it in &session.owners {
            owner(it, &mut to);
        }
        session.epoch().hash(&mut to);
        for it in world.conns.iter().filter(|conn| conn.session == index) {
            conn(it, &mut to);
        }
    }
    world.done.hash(&mut to);
    for (name, fence) in &world.fences {
        let ahead = fence.saturating_sub(world.server_us() - 1);
        if ahead > 0 {
            name.hash(&mut to);
            to.mix(ahead);
        }
    }
    to.finish()
}

fn table(table: &Table, world: &World, to: &mut Normal) {
    let future = |at_us: u64| at_us.saturating_sub(world.server_us());
    // A fence below now is as good as none: the next one is the time.
    let fence = |fence: u64| fence.saturating_sub(world.server_us() - 1);
    to.write_u8(u8::from(table.meta.is_some()));
    if let Some(meta) = &table.meta {
        (&meta.epoch, &meta.run).hash(to);
        to.mix(future(meta.guard_until_us));
        to.mix(fence(meta.fence));
    }
    for (name, lock) in &table.locks {
        name.hash(to);
        if let Some(key) = &lock.key {
            key.token.hash(to);
            to.mix(key.expires_us.map_or(u64::MAX, future));
        }
        let record = |record: &Record, to: &mut Normal| {
            (&record.session, &record.run, record.state, record.lease_ms, record.mode).hash(to);
            to.mix(fence(record.fence));
        };
        if let Some(it) = lock.record() {
            record(it, to);
        }
        for (end_us, it) in lock.together().into_iter().flat_map(Together::by_end) {
            it.token.hash(to);
            to.mix(future(end_us));
            record(it, to);
        }
        to.write_usize(lock.queue.len());
        for ticket in &lock.queue {
            (&ticket.token, &ticket.session, ticket.several, ticket.mode).hash(to);
            to.mix(ticket.deadline_us.map_or(u64::MAX, future));
        }
        to.mix(future(lock.queue_expires_us));
        if let Some((token, until_us)) = &lock.asked {
            token.hash(to);
            to.mix(future(*until_us));
        }
    }
    // Of the ages of requests only the order matters, and whether another may still be as old (then the tokens decide).
    let mut requests: Vec<&Request> = table.requests.values().collect();
    requests.sort_unstable_by_key(|it| (it.since_us, &it.token));
    for it in requests {
        (&it.token, &it.session, &it.names, &it.modes).hash(to);
        to.write_u8(u8::from(it.since_us >= world.server_us()));
        to.mix(it.deadline_us.map_or(u64::MAX, future));
        to.mix(future(it.expires_us));
    }
}

fn owner(owner: &Owner, to: &mut Normal) {
    match owner {
        Owner::Idle => to.write_u8(0),
        Owner::Waiting { want, token, patience, recheck_us, sent } => {
            (1_u8, want, token, patience, sent).hash(to);
            // Overdue is overdue.
            to.mix(recheck_us.map_or(u64::MAX, |at| at.saturating_sub(to.now_us)));
        }
        Owner::Holding { want, token, handle, told, patience } => {
            (2_u8, want, token, told, patience).hash(to);
            to.write_u64(*handle);
        }
        Owner::Ending { want, token, cancel, .. } => (3_u8, want, token, cancel).hash(to),
    }
}

fn conn(conn: &Conn, to: &mut Normal) {
    (conn.client_open, conn.server_open, conn.subscribed, &conn.run).hash(to);
    for up in &conn.to_server {
        match up {
            Up::Call(call) => call.hash(to),
            Up::Close => to.write_u8(7),
        }
    }
    to.write_u8(8);
    for down in &conn.to_client {
        match down {
            Down::Answer(call, epoch, answer) => {
                (call, epoch).hash(to);
                reply(answer, to);
            }
            Down::Message(message) => message_hash(message, to),
            Down::Closed => to.write_u8(9),
        }
    }
}

fn reply(reply: &Reply, to: &mut Normal) {
    std::mem::discriminant(reply).hash(to);
    match reply {
        Reply::Granted { lease_ms, .. } | Reply::Renewed { lease_ms } => to.mix(*lease_ms),
        Reply::Guarded { lease_ms, guard_ms } => to.mix(lease_ms << 32 | guard_ms),
        Reply::Refused(refusal) => {
            let guard_ms = match refusal.reason {
                Reason::Guard { guard_ms } => guard_ms,
                Reason::Held | Reason::Kept => 0,
            };
            let ttl_ms = refusal.holder.as_ref().and_then(|holder| holder.ttl_ms);
            to.mix(guard_ms);
            (ttl_ms, refusal.position).hash(to);
        }
        Reply::Beat { subscribers, .. } => to.mix(u64::from(*subscribers > 0)),
        Reply::NotHeld(absence) => absence.hash(to),
        _ => {}
    }
}

fn message_hash(message: &lockwarden_core::Message, to: &mut Normal) {
    use lockwarden_core::Message::{Asking, First, Grant, Recall, Revoked};
    std::mem::discriminant(message).hash(to);
    match message {
        Grant { name, token, lease_ms, epoch, first, .. } => {
            (name, token, lease_ms, epoch, first).hash(to);
        }
        First { name, token, holder } => (name, token, holder.ttl_ms).hash(to),
        Asking { name, token } | Revoked { name, token, .. } | Recall { name, token, .. } => {
            (name, token).hash(to);
        }
    }
}

/// The hasher that takes times, numbers and ids relative to now and to each other.
struct Normal {
    now_us: u64,
    state: u64,
    /// Beats, links and handles in order of appearance.
    numbers: Vec<u64>,
    /// Epochs and runs in order of appearance.
    texts: Vec<Vec<u8>>,
}

/// Keepers number links from 1 and beats from `link << 32`.
const LINKS: std::ops::Range<u64> = 0..64;
const FIRST_NUMBER: u64 = 1 << 32;

impl Normal {
    fn new(now_us: u64) -> Normal {
        const { assert!(FIRST_HANDLE < EPOCH_US / 2 && FIRST_HANDLE > 64 << 32) };
        Normal { now_us, state: 0x9e37_79b9_7f4a_7c15, numbers: Vec::new(), texts: Vec::new() }
    }

    fn mix(&mut self, value: u64) {
        let product =
            u128::from(self.state ^ value).wrapping_mul(0xa076_1d64_78bd_642f_e703_7ed1_a0b4_28db);
        self.state = (product as u64 ^ (product >> 64) as u64).rotate_left(23) ^ value;
    }
}

impl Hasher for Normal {
    fn finish(&self) -> u64 {
        let product =
            u128::from(self.state).wrapping_mul(0xe703_7ed1_a0b4_28db_8ebc_6af0_9c88_c6e3);
        product as u64 ^ (product >> 64) as u64
    }

    fn write(&mut self, bytes: &[u8]) {
        // An epoch is a time and a caller, a run is `r1`; tokens and names begin otherwise.
        let epoch = bytes.len() > 3 && bytes[0].is_ascii_digit() && bytes.contains(&b'.');
        let run = bytes.len() > 1 && bytes[0] == b'r' && bytes[1].is_ascii_digit();
        if epoch || run {
            let known = self.texts.iter().position(|text| text == bytes);
            let index = known.unwrap_or_else(|| {
                self.texts.push(bytes.to_vec());
                self.texts.len() - 1
            });
            self.mix(0x7e00 + index as u64);
            return;
        }
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.mix(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, value: u8) {
        self.mix(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        if value > EPOCH_US / 2 && value < u64::MAX / 2 {
            let ahead_us = (value + LONG_AGO_US).saturating_sub(self.now_us);
            self.mix(0x7153_0000_0000 ^ ahead_us);
        } else if LINKS.contains(&value) || (FIRST_NUMBER..EPOCH_US / 2).contains(&value) {
            let known = self.numbers.iter().position(|number| *number == value);
            let index = known.unwrap_or_else(|| {
                self.numbers.push(value);
                self.numbers.len() - 1
            });
            self.mix(0x1d00 + index as u64);
        } else {
            self.mix(value);
        }
    }

    /// Only how far the server's clock is ahead: in the model all clocks are one.
    fn write_i64(&mut self, _: i64) {}

    fn write_usize(&mut self, value: usize) {
        self.mix(value as u64);
    }

    fn write_isize(&mut self, value: isize) {
        self.mix(value as u64);
    }
}
