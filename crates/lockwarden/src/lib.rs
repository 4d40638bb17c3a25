//! Fair, crash-safe, fast distributed locks on an embedded store or on Redis.

pub mod error;
pub mod store;
