//! The pure machines.
