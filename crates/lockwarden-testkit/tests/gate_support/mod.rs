//! What the tests of the gates share.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part")]
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use axum::{Extension, Router, routing::put};
use lockwarden::gate::http::{GateLayer, Memory, Passed};
use lockwarden_testkit::gates::documented;
use std::{
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{net::TcpListener, runtime::Runtime};

/// A database with the documented table.
pub fn sqlite(path: &Path) -> rusqlite::Connection {
    let db = rusqlite::Connection::open(path).unwrap();
    db.busy_timeout(Duration::from_secs(60)).unwrap();
    if !db.table_exists(None, "stock").unwrap() {
        db.execute_batch(documented("sql: table")).unwrap();
    }
    db
}

/// An HTTP service on a free port: `PUT /r` stores its body, behind a gate for the lock `x`.
pub struct Web {
    pub address: String,
    stored: Arc<Mutex<String>>,
    _runtime: Runtime,
}

impl Web {
    pub fn start() -> Web {
        Web::behind(GateLayer::new(Memory::new()).name("x"))
    }

    /// A body `wait …` is answered only when `release` is put into what is stored.
    pub fn behind(layer: GateLayer<Memory>) -> Web {
        let stored = Arc::new(Mutex::new(String::new()));
        let store = stored.clone();
        let handler = move |passed: Option<Extension<Passed>>, body: String| {
            let store = store.clone();
            async move {
                if body.starts_with("wait") {
                    *store.lock().unwrap() = "waiting".into();
                    while *store.lock().unwrap() != "release" {
                        tokio::time::sleep(Duration::from_millis(2)).await;
                    }
                }
                *store.lock().unwrap() = body;
                passed.map_or_else(String::new, |it| format!("{} {}", it.name, it.fence))
            }
        };
        let app = Router::new().route("/r", put(handler)).layer(layer);
        let runtime = support_runtime();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        runtime.spawn(async { axum::serve(listener, app).await });
        Web { address, stored, _runtime: runtime }
    }

    pub fn stored(&self) -> String {
        self.stored.lock().unwrap().clone()
    }

    pub fn set_stored(&self, text: &str) {
        *self.stored.lock().unwrap() = text.to_owned();
    }
}

fn support_runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}
