//! The bindings for Python, thin: what Python code sees is in `python/lockwarden`.
//!
//! Everything that must go on while Python does not let go of its interpreter lock (heartbeat, renewal, hand-off) runs on
//! the warden's own thread, which never asks for that lock (G1, C15): what it has to tell it leaves in a [`mailbox`], and
//! wakes the event loop by a file descriptor.

use pyo3::prelude::*;

mod by_value;
mod errors;
mod guard;
mod lock;
mod mailbox;
mod views;
mod wait;
mod warden;

#[pymodule]
mod _native {
    #[pymodule_export]
    use crate::by_value::{
        extend_by_value, release_by_value, start_extend_by_value, start_release_by_value,
    };
    #[pymodule_export]
    use crate::guard::Guard;
    #[pymodule_export]
    use crate::lock::Options;
    #[pymodule_export]
    use crate::mailbox::{Mailbox, Started};
    #[pymodule_export]
    use crate::wait::exiting;
    #[pymodule_export]
    use crate::warden::Warden;
}
