//! Which store a URL names.

use crate::{
    error::{Error, StoreError},
    store::{Store, memory::MemoryStore},
};
use std::{str::FromStr, sync::Arc};

/// A parsed URL of a store.
#[derive(Clone, Debug)]
pub enum StoreUrl {
    /// `memory:`
    Memory,
}

impl FromStr for StoreUrl {
    type Err = Error;

    fn from_str(_text: &str) -> Result<StoreUrl, Error> {
        Ok(StoreUrl::Memory)
    }
}

impl StoreUrl {
    /// The store; not yet connected.
    pub fn open(self) -> Result<Arc<dyn Store>, StoreError> {
        Ok(Arc::new(MemoryStore::of_process()))
    }
}
