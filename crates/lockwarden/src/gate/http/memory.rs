//! The newest fences in memory: for a resource that one process serves.

use super::{super::compare, Error, Gate};
use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::sync::Notify;

/// A gate that lives as long as the process, and holds a bounded number of names.
///
/// Where there is no room for another name, it forgets those with the oldest fences, and remembers the
/// newest of the forgotten as its *floor*: of a name that it does not know, it refuses fences under the
/// floor. So it never lets a stale fence through; in return a holder of a rare name may be refused, and
/// passes with its next grant, above the floor. (All names of one store share one row of fences, so that
/// this concerns only grants that are older than those of all the names that it still knows.)
///
/// A new process knows nothing. Give it the newest fence of what it protects: [`Memory::floor`].
#[derive(Clone)]
pub struct Memory {
    known: Arc<Mutex<Known>>,
    room: usize,
    wait: Duration,
}

struct Known {
    floor: u64,
    names: HashMap<String, Seen>,
}

#[derive(Default)]
struct Seen {
    newest: u64,
    /// How many requests are in their handlers, by fence.
    inside: BTreeMap<u64, usize>,
    left: Arc<Notify>,
}

/// A request that was let through; dropped when its handler has answered.
#[must_use]
pub struct Pass {
    known: Arc<Mutex<Known>>,
    name: String,
    fence: u64,
}

impl Memory {
    /// Room for 65,536 names.
    #[must_use]
    pub fn new() -> Memory {
        let known = Known { floor: 0, names: HashMap::new() };
        let wait = Duration::from_secs(10);
        Memory { known: Arc::new(Mutex::new(known)), room: 65_536, wait }
    }

    /// Room for another number of names, one at least. Those with a request inside are kept beyond it.
    #[must_use]
    pub fn room(mut self, names: usize) -> Memory {
        self.room = names.max(1);
        self
    }

    /// Refuse smaller fences from the beginning: the newest that the resource has seen.
    #[must_use]
    pub fn floor(self, newest: u64) -> Memory {
        self.lock().floor = newest;
        self
    }

    /// How long a newer fence waits for the handlers of older ones: 10 s by default. Then it is
    /// refused as [`Error::Unavailable`], 503.
    #[must_use]
    pub fn wait_for(mut self, wait: Duration) -> Memory {
        self.wait = wait;
        self
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        // Nothing panics while it is held.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets it in, or says for whom to wait.
    fn enter(&self, name: &str, fence: u64) -> Result<Result<Pass, Arc<Notify>>, Error> {
        let mut known = self.lock();
        let floor = known.floor;
        compare(fence, known.names.get(name).map_or(floor, |seen| seen.newest))?;
        let seen = known.names.entry(name.to_owned()).or_default();
        // From now on, older ones that have not got in yet are refused.
        seen.newest = fence;
        if seen.inside.first_key_value().is_some_and(|(oldest, _)| *oldest < fence) {
            return Ok(Err(seen.left.clone()));
        }
        *seen.inside.entry(fence).or_default() += 1;
        known.make_room(self.room);
        let name = name.to_owned();
        Ok(Ok(Pass { known: self.known.clone(), name, fence }))
    }
}

impl Default for Memory {
    fn default() -> Memory {
        Memory::new()
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.lock().names.len();
        f.debug_struct("Memory").field("names", &names).finish_non_exhaustive()
    }
}

impl Gate for Memory {
    type Pass = Pass;

    async fn pass(&self, name: &str, fence: u64) -> Result<Pass, Error> {
        let entered = async {
            loop {
                let left = match self.enter(name, fence)? {
                    Ok(pass) => return Ok(pass),
                    Err(left) => left,
                };
                // Listens before it asks again: nobody leaves unheard in between.
                let mut heard = std::pin::pin!(left.notified());
                heard.as_mut().enable();
                if let Ok(pass) = self.enter(name, fence)? {
                    return Ok(pass);
                }
                heard.await;
            }
        };
        tokio::time::timeout(self.wait, entered).await.unwrap_or_else(|_| {
            let why = "the handler of an older fence has not answered yet".into();
            Err(Error::Unavailable { place: name.to_owned(), why })
        })
    }
}

impl Known {
    /// Forgets the older half of the names that nobody is inside of.
    fn make_room(&mut self, room: usize) {
        if self.names.len() <= room {
            return;
        }
        let idle = self.names.values().filter(|seen| seen.inside.is_empty());
        let mut fences: Vec<u64> = idle.map(|seen| seen.newest).collect();
        fences.sort_unstable();
        let Some(&newest) = fences.get(fences.len().saturating_sub(1) / 2) else { return };
        self.floor = self.floor.max(newest);
        self.names.retain(|_, seen| !seen.inside.is_empty() || seen.newest > newest);
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(seen) = known.names.get_mut(&self.name) else { return };
        if let Some(count) = seen.inside.get_mut(&self.fence) {
            *count -= 1;
            if *count == 0 {
                seen.inside.remove(&self.fence);
                seen.left.notify_waiters();
            }
        }
    }
}

impl fmt::Debug for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pass").field("name", &self.name).field("fence", &self.fence).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Stale, *};
    use proptest::prelude::*;
    use std::{future::Future, task::Poll};

    fn run<T>(test: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
    }

    fn stale<T>(fence: u64, newest: u64) -> Result<T, Error> {
        Err(Stale { fence, newest }.into())
    }

    #[test]
    fn a_newer_one_waits_for_older_handlers_and_shuts_out_older_callers() {
        run(async {
            let gate = Memory::new();
            let five = gate.pass("x", 5).await.unwrap();
            let again = gate.pass("x", 5).await.unwrap();
            let mut seven = std::pin::pin!(gate.pass("x", 7));
            let mut poll = async || {
                std::future::poll_fn(|context| Poll::Ready(seven.as_mut().poll(context))).await
            };
            assert!(poll().await.is_pending());
            assert_eq!(gate.pass("x", 5).await.err(), stale::<()>(5, 7).err());
            drop(five);
            assert!(poll().await.is_pending(), "another of the older ones is inside");
            drop(gate.pass("y", 5).await.unwrap());
            drop(again);
            assert!(poll().await.is_ready());
        });
    }

    #[test]
    fn it_does_not_wait_for_ever_and_what_waited_may_be_stale() {
        run(async {
            let gate = Memory::new().wait_for(Duration::from_millis(5));
            let five = gate.pass("x", 5).await.unwrap();
            assert_eq!(gate.pass("x", 7).await.unwrap_err().code(), "unavailable");
            drop(five);
            assert_eq!(gate.pass("x", 6).await.err(), stale::<()>(6, 7).err());
            drop(gate.pass("x", 7).await.unwrap());
        });
    }

    #[test]
    fn a_floor_is_for_names_that_it_does_not_know() {
        run(async {
            let gate = Memory::new().floor(10);
            assert_eq!(gate.pass("x", 9).await.err(), stale::<()>(9, 10).err());
            drop(gate.pass("x", 10).await.unwrap());
            for fence in [0, u64::MAX] {
                assert_eq!(gate.pass("x", fence).await.unwrap_err().code(), "invalid");
            }
        });
    }

    proptest! {
        /// Little room, many names: bounded, and never a fence under one that its name has had.
        #[test]
        fn nothing_stale_gets_through_for_want_of_room(
            writes in prop::collection::vec((0..9_u8, 1..50_u64), 1..200),
        ) {
            run(async {
                let gate = Memory::new().room(3);
                let mut newest = HashMap::new();
                let _inside = gate.pass("inside", 25).await.unwrap();
                for (name, fence) in writes {
                    let seen = newest.entry(name).or_insert(0);
                    if gate.pass(&name.to_string(), fence).await.is_ok() {
                        assert!(fence >= *seen, "{fence} after {seen}");
                        *seen = fence;
                    } else {
                        assert!(fence < *seen || fence < gate.lock().floor);
                    }
                    assert!(gate.lock().names.len() <= 3);
                }
                assert!(gate.lock().names.contains_key("inside"));
            });
        }
    }
}
