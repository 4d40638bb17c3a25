//! Locks.
