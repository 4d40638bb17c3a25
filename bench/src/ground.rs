//! The server that a benchmark measures on, and the runtime it measures in.

use lockwarden::Warden;
use lockwarden_testkit::{
    raw::Raw,
    servers::{Server, ServerKind},
};
use std::{cell::RefCell, error::Error, future::Future, time::Duration};
use tokio::runtime::Runtime;

/// Whatever goes wrong ends the program with a message.
pub(crate) type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// A server of its own, with a connection for questions about it.
pub(crate) struct Ground {
    pub(crate) server: Server,
    pub(crate) length: Duration,
    runtime: Runtime,
    raw: RefCell<Raw>,
}

impl Ground {
    pub(crate) fn new(kind: ServerKind, seconds: u64) -> Outcome<Ground> {
        let server = Server::builder(kind).try_start()?;
        server.without_guard();
        let raw = RefCell::new(server.raw());
        let length = Duration::from_secs(seconds.max(1));
        Ok(Ground { raw, server, length, runtime: runtime()? })
    }

    pub(crate) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    pub(crate) fn url(&self) -> String {
        self.server.url()
    }

    pub(crate) async fn warden(&self) -> Outcome<Warden> {
        connect(&self.url()).await
    }

    /// The processor time that the server has used so far, in µs.
    pub(crate) fn server_cpu_us(&self) -> f64 {
        let info = self.info("cpu");
        let seconds = |field| number(&info, field);
        (seconds("used_cpu_user:") + seconds("used_cpu_sys:")) * 1_000_000.0
    }

    /// Calls of a command by clients (calls of it inside scripts are not told apart: ask about those
    /// that scripts do not call).
    pub(crate) fn calls(&self, command: &str) -> f64 {
        let field = format!("cmdstat_{command}:calls=");
        let info = self.info("commandstats");
        let calls = number(&info, &field);
        if calls.is_nan() { 0.0 } else { calls }
    }

    /// The time that the server has spent in a command so far, in µs.
    pub(crate) fn spent_us(&self, command: &str) -> f64 {
        let info = self.info("commandstats");
        let line = info.lines().find(|it| it.starts_with(&format!("cmdstat_{command}:")));
        line.and_then(|it| it.split_once(",usec=")).map_or(0.0, |(_, rest)| number(rest, ""))
    }

    /// A command that cannot fail but by a broken server.
    pub(crate) fn cmd(&self, words: &[&str]) -> lockwarden_testkit::raw::Value {
        self.raw.borrow_mut().cmd(words)
    }

    fn info(&self, section: &str) -> String {
        self.cmd(&["INFO", section]).text().unwrap_or_default()
    }
}

/// The runtime of every contender: tokio's default one.
pub(crate) fn runtime() -> Outcome<Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().enable_all().build()?)
}

/// A warden on the store of a URL.
pub(crate) async fn connect(url: &str) -> Outcome<Warden> {
    Ok(Warden::connect(url).await?)
}

/// The number that follows a field's name; NaN: there is none.
fn number(info: &str, field: &str) -> f64 {
    let value = |line: &str| -> Option<f64> {
        let text = line.strip_prefix(field)?;
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        text[..end].parse().ok()
    };
    info.lines().find_map(value).unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    #[test]
    fn fields_are_read() {
        let info = "# CPU\r\nused_cpu_sys:1.25\r\ncmdstat_evalsha:calls=17,usec=3\r\n";
        assert_eq!(super::number(info, "used_cpu_sys:"), 1.25);
        assert_eq!(super::number(info, "cmdstat_evalsha:calls="), 17.0);
        assert!(super::number(info, "used_cpu_user:").is_nan());
    }
}
