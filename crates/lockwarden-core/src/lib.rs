//! The two pure machines of Lockwarden and the words they share.
//!
//! * [`table`]: the store side. Who holds, who waits, the next fence, what expires when. It is the
//!   specification of the locks; the Redis scripts mirror it line by line.
//! * [`keeper`]: the holder side. When to beat and renew, when to stop believing, when a handle is
//!   at risk or lost. It is the whole of G1 and G8 on the holder's side.
//!
//! Nothing here does I/O, reads a clock or draws random bytes: times and ids are arguments, effects
//! come back as data. That is what lets the tests run both machines through years of adversarial
//! time, and a model checker through every order of a small world.
//!
//! The numbers of rules (R4) and guarantees (G1) in comments are explained in
//! `docs/GUARANTEES.md` and `docs/RULES.md` of the repository.
#![forbid(unsafe_code)]

pub mod command;
pub mod deadlock;
pub mod keeper;
pub mod limits;
pub mod name;
pub mod party;
pub mod rules;
pub mod table;

pub use command::{Command, Message, Reply};
pub use name::{Epoch, Name, Run, SessionId, Token};
pub use rules::Rules;
