//! What Lockwarden's tests share: real servers on free ports, a proxy that breaks connections on
//! purpose, and real child processes to kill, stop and continue.
//!
//! For tests only, and for Linux only (death signals, abstract socket names). Only
//! [`conformance`], which runs the same tests on every store, [`gates`] and the `taker` know Lockwarden's own
//! code;
//! [`servers::Server::without_guard`] writes the hash that spares a test the wait after a server's
//! start.
//!
//! Nothing here waits for a fixed time: what must have happened is asked for again and again until a
//! deadline ([`process::eventually`]).

// This crate is test code: a failing step of a test's own machinery ends the test with a message, and
// handing such failures through every caller would bury what the test is about.
#![allow(clippy::expect_used, clippy::unwrap_used)]
#![deny(unsafe_code)]

pub mod clock;
pub mod conformance;
pub mod gates;
mod ports;
pub mod postgres;
pub mod process;
pub mod proxy;
pub mod raw;
pub mod recorder;
pub mod servers;
pub mod site;
pub mod taker;
