//! The conformance suite on every store.

use lockwarden::store::{Store, memory::MemoryStore};
use lockwarden_testkit::conformance::Place;
use std::sync::Arc;

mod memory {
    use super::*;

    struct Memory(MemoryStore);

    impl Place for Memory {
        fn store(&self) -> Arc<dyn Store> {
            Arc::new(self.0.clone())
        }
    }

    lockwarden_testkit::conformance_tests!(|| Memory(MemoryStore::new()));
}
