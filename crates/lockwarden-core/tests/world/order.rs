//! Who must be served, and when: told a second time, and more plainly than the table does it (G4, G5, R29, R42).

use lockwarden_core::{
    Name, Token,
    command::Mode,
    table::{Record, Request, Table, Ticket},
};
use std::collections::BTreeMap;

/// May one name be held in all these modes at the same time?
pub fn fit(modes: &[Mode]) -> bool {
    let permits = |mode: &Mode| match mode {
        Mode::Permits { count, of } => Some((*count, *of)),
        Mode::Exclusive | Mode::Shared => None,
    };
    match modes {
        [] | [_] => true,
        [Mode::Permits { of, .. }, ..] => {
            let all: Option<Vec<_>> = modes.iter().map(permits).collect();
            all.is_some_and(|all| {
                all.iter().all(|it| it.1 == *of) && all.iter().map(|it| it.0).sum::<u32>() <= *of
            })
        }
        _ => modes.iter().all(|mode| *mode == Mode::Shared),
    }
}

/// A moment of the store: who holds what, and who waits for it, of those who live and are in time.
pub struct Moment<'a> {
    pub names: BTreeMap<&'a Name, Standing<'a>>,
    requests: &'a BTreeMap<Token, Request>,
    /// The request whose names are kept for it: the one that came first (R29).
    oldest: Option<&'a Request>,
}

/// What stands about one name.
#[derive(Default)]
pub struct Standing<'a> {
    pub held: Vec<&'a Record>,
    pub queue: Vec<&'a Ticket>,
}

impl<'a> Moment<'a> {
    /// What stands in the table, of it those tickets that `counts`; the holders come from where the caller says.
    pub fn new(
        table: &'a Table,
        holders: &'a Table,
        held: impl Fn(&Name, &Record) -> bool,
        counts: impl Fn(&Name, &Ticket) -> bool,
    ) -> Moment<'a> {
        let mut names: BTreeMap<&Name, Standing<'_>> = BTreeMap::new();
        let mut living: Vec<&Token> = Vec::new();
        for (name, lock) in &table.locks {
            let queue: Vec<_> = lock.queue.iter().filter(|it| counts(name, it)).collect();
            living.extend(queue.iter().filter(|it| it.several).map(|it| &it.token));
            names.entry(name).or_default().queue = queue;
        }
        for (name, lock) in &holders.locks {
            names.entry(name).or_default().held =
                lock.holders().filter(|it| held(name, it)).collect();
        }
        let living = table.requests.values().filter(|it| living.contains(&&it.token));
        let oldest = living.min_by_key(|it| (it.since_us, &it.token));
        Moment { names, requests: &table.requests, oldest }
    }

    /// All that this ticket waits for.
    pub fn wants(&self, name: &'a Name, ticket: &Ticket) -> Vec<(&'a Name, Mode)> {
        match self.requests.get(&ticket.token).filter(|_| ticket.several) {
            Some(request) => request.wants().collect(),
            None => vec![(name, ticket.mode)],
        }
    }

    /// Why somebody with this token must not be served now: no room, or somebody who comes before it.
    pub fn hinders(&self, token: &Token, wants: &[(&Name, Mode)]) -> Option<String> {
        wants.iter().find_map(|(name, mode)| {
            let standing = self.names.get(name)?;
            let mut modes: Vec<Mode> = standing.held.iter().map(|record| record.mode).collect();
            modes.push(*mode);
            if !fit(&modes) {
                return Some(format!("there is no room in {name} for {modes:?}"));
            }
            let first = self.ahead(name, token).find(|it| self.is_in_the_way(it))?;
            Some(format!("{} waits for {name} before it", first.token))
        })
    }

    /// A request for several names that could have been served, and stands before this token in one of the queues: it
    /// may be passed only while it cannot.
    pub fn passes(&self, token: &Token, wants: &[(&'a Name, Mode)]) -> Option<&'a Token> {
        wants.iter().find_map(|(name, _)| {
            let ready = self.ahead(name, token).find(|it| it.several && self.is_ready(name, it))?;
            Some(&ready.token)
        })
    }

    /// Whoever waits though nothing hinders it.
    pub fn ready(&self) -> Option<&'a Token> {
        self.names.iter().find_map(|(name, standing)| {
            let ready = standing.queue.iter().find(|ticket| self.is_ready(name, ticket))?;
            Some(&ready.token)
        })
    }

    fn is_ready(&self, name: &'a Name, ticket: &Ticket) -> bool {
        let wants = self.wants(name, ticket);
        // One that has lost a ticket while it was cut off must say so itself: others came meanwhile.
        let waits_for_all = wants.iter().all(|(name, _)| {
            let queue = self.names.get(name).map(|it| &it.queue);
            queue.is_some_and(|queue| queue.iter().any(|it| it.token == ticket.token))
        });
        waits_for_all && self.hinders(&ticket.token, &wants).is_none()
    }

    fn ahead(&self, name: &Name, token: &Token) -> impl Iterator<Item = &'a Ticket> {
        let queue = self.names.get(name).map(|standing| standing.queue.clone());
        let token = token.clone();
        queue.into_iter().flatten().take_while(move |it| it.token != token)
    }

    /// Nobody passes a request for one name; one for several is passed, if it is not the oldest.
    fn is_in_the_way(&self, ticket: &Ticket) -> bool {
        !ticket.several || self.oldest.is_some_and(|oldest| oldest.token == ticket.token)
    }
}
