//! Fair, crash-safe, fast distributed locks on an embedded store or on Redis.
//!
//! ```
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! use lockwarden::Warden;
//!
//! let warden = Warden::connect("memory:").await?;
//! let guard = warden.lock("nightly-report").acquire().await?;
//! // … work; before each step that must not happen twice: guard.check() …
//! guard.release().await?;
//! # Ok::<(), lockwarden::Error>(()) }).unwrap();
//! ```

pub mod blocking;
mod clock;
pub mod error;
mod fork;
pub mod gate;
mod hand_over;
pub mod order;
mod proc_locks;
pub mod process;
mod random;
pub mod store;
mod warden;

pub use error::{Effect, Error, StoreError, Trouble};
pub use hand_over::{HandOver, InvalidHandOver};
#[doc(hidden)]
pub use lockwarden_core::Rules;
pub use lockwarden_core::{
    Name, Token,
    command::{
        Absence, CycleStep, Extension, HoldState, HolderView, LockView, Mode, Reason, RecordView,
        Refusal, TicketView,
    },
    keeper::{Loss, Risk, State},
    limits, name,
    party::{InvalidTag, Party, Process, Tag},
};
pub use order::OrderWatch;
pub use warden::{Guard, Lock, Settings, Waiting, Warden};

/// A new owner id that nobody else has, for [`Lock::owner`].
///
/// # Errors
/// [`Error::Store`] if the operating system's generator fails.
pub fn new_owner() -> Result<String, Error> {
    Ok(random::text()?)
}

/// The README's example compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// And so do the guide's.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/GUIDE.md")]
struct Guide;
