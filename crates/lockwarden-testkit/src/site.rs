//! A store for a test, reached by its URL from any process: a directory, or a real server.

use crate::{
    conformance::Place,
    servers::{Server, ServerKind},
};
use lockwarden::store::{Store, url::StoreUrl};
use std::sync::Arc;
use tempfile::TempDir;

/// A store under test; its directory or its server goes when it is dropped.
#[derive(Debug)]
pub struct Site {
    url: String,
    /// The server, where it is one.
    pub server: Option<Server>,
    _dir: Option<TempDir>,
}

impl Site {
    /// An embedded store in a new directory.
    ///
    /// # Panics
    /// If there can be no directory.
    #[must_use]
    pub fn file() -> Site {
        let dir = tempfile::tempdir().expect("a directory");
        let url = format!("file:{}", dir.path().join("store").display());
        Site { url, server: None, _dir: Some(dir) }
    }

    /// A real server, started without the guard.
    #[must_use]
    pub fn redis(kind: ServerKind) -> Site {
        Site::of(Server::start(kind))
    }

    /// The same from a server with settings of its own.
    #[must_use]
    pub fn of(server: Server) -> Site {
        server.without_guard();
        Site { url: server.url(), server: Some(server), _dir: None }
    }

    /// The same with options of the URL: `?protocol=2`.
    #[must_use]
    pub fn query(mut self, query: &str) -> Site {
        self.url += query;
        self
    }

    /// The URL of the store.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The server.
    ///
    /// # Panics
    /// If it is an embedded store.
    #[must_use]
    pub fn server(&self) -> &Server {
        self.server.as_ref().expect("a server")
    }
}

impl Place for Site {
    fn store(&self) -> Arc<dyn Store> {
        self.url.parse::<StoreUrl>().expect("a URL").open().expect("a store")
    }
}
