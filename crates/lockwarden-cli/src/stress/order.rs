//! One order, from asking for its locks to giving them back; and what it believes meanwhile.

use super::{
    clock::now_us,
    dice::Dice,
    ledger::Ledger,
    pipe::{Event, Span},
    scenario::Orders,
    styles::{Client, Proof, Refusal},
};
use lockwarden::State;
use std::{future::Future, sync::Arc, time::Duration};
use tokio::time::Instant;

/// How often an order looks whether it still holds its locks, while it works or waits for the next.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The longest pause before an order asks again that was told of a deadlock.
const LONGEST_PAUSE_US: u64 = 20_000;

/// What all orders of a process share.
pub(super) struct Shop {
    pub(super) client: Client,
    pub(super) ledger: Ledger,
    pub(super) orders: Orders,
    pub(super) work: Duration,
    pub(super) wait: Duration,
}

/// Carries an order out.
pub(super) async fn carry_out(shop: Arc<Shop>, order: u32) {
    let mut wanted = shop.orders.wanted(order);
    let mut dice = Dice::new(shop.orders.seed, u64::from(order) << 32);
    let mut give_up_at = ask(&shop, order);
    loop {
        let mut holding = Holding { shop: shop.clone(), order, held: Vec::new() };
        match shop.client.acquire(&wanted, &mut holding, give_up_at).await {
            Ok(()) => {
                shop.ledger.note(Event::Had { order, at_us: now_us() });
                let is_sure = holding.work().await;
                holding.release().await;
                if is_sure {
                    return shop.ledger.note(Event::Done { order, at_us: now_us() });
                }
                give_up_at = ask(&shop, order);
            }
            Err(Refusal::Deadlock { told }) => {
                holding.release().await;
                let told_us = u64::try_from(told.as_micros()).unwrap_or(u64::MAX);
                shop.ledger.note(Event::Deadlock { order, told_us });
                // Whoever insists on an order that meets others half-way may be refused for ever; a thousand that do
                // hardly get anywhere (0015). By their names no circle closes among those who begin anew.
                wanted.sort_unstable_by(|a, b| a.name.cmp(&b.name));
                let pause = Duration::from_micros(dice.below(LONGEST_PAUSE_US));
                tokio::time::sleep(pause).await;
            }
            Err(Refusal::TimedOut) => {
                holding.release().await;
                return shop.ledger.note(Event::GaveUp { order, at_us: now_us() });
            }
            Err(Refusal::Failed(words)) => {
                holding.release().await;
                return shop.ledger.note(Event::Failed { order, at_us: now_us(), words });
            }
        }
    }
}

fn ask(shop: &Shop, order: u32) -> Instant {
    shop.ledger.note(Event::Asked { order, at_us: now_us() });
    Instant::now() + shop.wait
}

/// What an order has acquired.
pub(super) struct Holding {
    shop: Arc<Shop>,
    order: u32,
    held: Vec<Held>,
}

struct Held {
    proof: Proof,
    /// Until the first look that says yes, `until_us` is 0.
    span: Span,
}

impl Holding {
    /// Which order it is.
    pub(super) fn order(&self) -> u32 {
        self.order
    }

    /// The same for people.
    pub(super) fn label(&self) -> String {
        format!("order-{}", self.order)
    }

    /// The order waits for one of its locks, and nobody else will notice a deadlock.
    pub(super) fn waits(&self, place: usize) {
        self.shop.ledger.note(Event::Waits { order: self.order, place });
    }

    /// One lock is had.
    pub(super) fn keep(&mut self, place: usize, proof: Proof) {
        let acquisition = self.shop.ledger.next_acquisition();
        let span = Span { place, acquisition, from_us: 0, until_us: 0 };
        self.held.push(Held { proof, span });
        self.look();
    }

    /// Looks at what is held now and then until the future ends.
    pub(super) async fn looking_after<T>(&mut self, future: impl Future<Output = T>) -> T {
        tokio::pin!(future);
        loop {
            match tokio::time::timeout(LOOK_EVERY, &mut future).await {
                Ok(result) => return result,
                Err(_) => self.look(),
            }
        }
    }

    /// Works. At the end, and only then, is it sure: all of it was held until now.
    async fn work(&mut self) -> bool {
        let done_at = Instant::now() + self.shop.work;
        while Instant::now() < done_at {
            let look_at = done_at.min(Instant::now() + LOOK_EVERY);
            tokio::time::sleep_until(look_at).await;
            self.look();
            if self.held.iter().any(Held::is_lost) {
                break;
            }
        }
        // A restart of the store, say: the locks may be ours again in a moment.
        loop {
            if self.held.iter().any(Held::is_lost) {
                self.shop.ledger.note(Event::Lost { order: self.order });
                return false;
            }
            match self.held.iter().find(|held| !held.is_believed()) {
                None => return true,
                Some(held) => held.changed().await,
            }
        }
    }

    /// Gives everything back, the last first.
    async fn release(mut self) {
        self.look();
        while let Some(held) = self.held.pop() {
            let is_lost = held.is_lost();
            let was_ours = self.shop.client.release(held.proof).await;
            if !was_ours && !is_lost {
                self.shop.ledger.note(Event::Lost { order: self.order });
            }
        }
    }

    fn look(&mut self) {
        for held in &mut self.held {
            let before_us = now_us();
            if held.is_believed() {
                if held.span.from_us == 0 {
                    held.span.from_us = now_us();
                }
                held.span.until_us = before_us.max(held.span.from_us);
            }
        }
        let believed = self.held.iter().map(|held| held.span).filter(|span| span.until_us > 0);
        let spans: Vec<Span> = believed.collect();
        if !spans.is_empty() {
            self.shop.ledger.note(Event::Believed { order: self.order, spans });
        }
    }
}

impl Held {
    /// Does the holder believe that it has the lock? The other styles cannot know better.
    fn is_believed(&self) -> bool {
        match &self.proof {
            Proof::Guard(guard) => guard.check(),
            Proof::Key(_) => true,
        }
    }

    fn is_lost(&self) -> bool {
        match &self.proof {
            Proof::Guard(guard) => matches!(guard.state(), State::Lost(_)),
            Proof::Key(_) => false,
        }
    }

    /// Ends when there may be another answer.
    async fn changed(&self) {
        if let Proof::Guard(guard) = &self.proof {
            let seen = guard.state();
            if !guard.check() && !self.is_lost() {
                guard.changed(seen).await;
            }
        }
    }
}
