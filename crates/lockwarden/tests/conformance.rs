//! The conformance suite on every store.

use lockwarden::store::{Store, memory::MemoryStore};
use lockwarden_testkit::{
    conformance::Place,
    servers::{Server, ServerKind},
    site::Site,
};
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

mod file {
    use super::*;

    lockwarden_testkit::conformance_tests!(Site::file);
}

/// One module per server; those that are not to be tested in this run pass at once, and say so.
macro_rules! on_servers {
    ($($module:ident: $kind:expr, $query:literal);* $(;)?) => {
        $(
            mod $module {
                use super::*;

                lockwarden_testkit::conformance_tests!(if_wanted $kind, |kind| {
                    Site::of(Server::start(kind)).query($query)
                });
            }
        )*
    };
}

on_servers! {
    redis_5_0: ServerKind::Redis50, "";
    redis_6_2: ServerKind::Redis62, "";
    redis_7_0: ServerKind::Redis70, "";
    redis_7_0_resp2: ServerKind::Redis70, "?protocol=2";
    redis_8_2: ServerKind::Redis82, "";
    valkey_9_1: ServerKind::Valkey91, "";
    valkey_9_1_resp2: ServerKind::Valkey91, "?protocol=2";
}
