//! Real Redis and Valkey servers on free ports of 127.0.0.1, each with a directory of its own.
//!
//! `tools/install-servers` puts the programs into place. Which of them a test runs against is for
//! [`ServerKind::default_set`] to say:
//!
//! ```no_run
//! use lockwarden_testkit::servers::{Server, ServerKind};
//!
//! for kind in ServerKind::default_set() {
//!     let server = Server::start(kind);
//!     server.without_guard();
//!     assert!(server.cmd(&["SET", "name", "value"]).is_ok());
//! }
//! ```

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;
use std::time::Duration;

use tempfile::TempDir;

use crate::clock::ClockShim;
use crate::ports::Port;
use crate::process::{Process, poll_until};
use crate::raw::{Raw, RawError, Value};

/// The variable that names the servers to test against: ids separated by commas, or `all`.
pub const SERVERS_VARIABLE: &str = "LOCKWARDEN_TEST_SERVERS";
/// What it means when it is not set.
pub const DEFAULT_SERVERS: &str = "redis-7.0,valkey-9.1";

/// The hash in which Lockwarden keeps epoch, run, guard and fence, for the default prefix.
pub const META_KEY: &str = "lockwarden:meta";

/// How long a server may take until it answers, or until it has shut down.
const SERVER_DEADLINE: Duration = Duration::from_secs(30);
/// Valkey 9.1 reads the wall clock anew only when 1 ms of monotonic time has passed since the last reading.
/// (Redis reads it for each command.) Twice that, so that no rounding matters.
const CLOCK_READING_KEPT: Duration = Duration::from_millis(2);
/// How often another port is tried if somebody who does not reserve ports has taken the first.
const PORT_TRIES: u32 = 5;
/// A user with all rights, there whenever a test defines users of its own.
const ADMIN: (&str, &str) = ("testkit-admin", "testkit-admin");
/// All that a server writes into its directory as data.
const DATA_FILES: [&str; 3] = ["dump.rdb", "appendonly.aof", "appendonlydir"];

/// The repository's `.servers`, or where `LOCKWARDEN_SERVERS_DIR` says.
pub fn servers_dir() -> PathBuf {
    std::env::var_os("LOCKWARDEN_SERVERS_DIR")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.servers"), PathBuf::from)
}

/// An engine and its version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ServerKind {
    /// Redis 5.0: no users, no RESP3.
    Redis50,
    /// Redis 6.2.
    Redis62,
    /// Redis 7.0, the only one built with TLS.
    Redis70,
    /// Redis 8.2.
    Redis82,
    /// Valkey 9.1.
    Valkey91,
}

impl ServerKind {
    /// Every kind that `tools/install-servers --all` brings.
    pub const ALL: [ServerKind; 5] = [
        ServerKind::Redis50,
        ServerKind::Redis62,
        ServerKind::Redis70,
        ServerKind::Redis82,
        ServerKind::Valkey91,
    ];

    /// Its name, for instance `redis-7.0`.
    pub fn id(self) -> &'static str {
        match self {
            ServerKind::Redis50 => "redis-5.0",
            ServerKind::Redis62 => "redis-6.2",
            ServerKind::Redis70 => "redis-7.0",
            ServerKind::Redis82 => "redis-8.2",
            ServerKind::Valkey91 => "valkey-9.1",
        }
    }

    /// The program.
    pub fn program(self) -> PathBuf {
        servers_dir().join(self.id()).join("redis-server")
    }

    /// Is it among those that this run tests ([`ServerKind::default_set`])?
    #[must_use]
    pub fn is_wanted(self) -> bool {
        ServerKind::default_set().contains(&self)
    }

    /// Whether the program is there.
    pub fn is_installed(self) -> bool {
        self.program().exists()
    }

    /// Whether it knows users and their rights (Redis 6.0 and later).
    pub fn has_acl(self) -> bool {
        self != ServerKind::Redis50
    }

    /// Whether it speaks RESP3 (Redis 6.0 and later).
    pub fn has_resp3(self) -> bool {
        self != ServerKind::Redis50
    }

    /// Whether this build of it speaks TLS.
    pub fn has_tls(self) -> bool {
        self == ServerKind::Redis70
    }

    /// The kinds to test against: those that [`SERVERS_VARIABLE`] names, else [`DEFAULT_SERVERS`].
    ///
    /// # Panics
    /// If one of them is unknown or not installed: a test must not pass because its server is missing.
    pub fn default_set() -> Vec<ServerKind> {
        let wish = std::env::var(SERVERS_VARIABLE).unwrap_or_else(|_| DEFAULT_SERVERS.to_owned());
        let kinds = parse_set(&wish).unwrap_or_else(|error| panic!("{SERVERS_VARIABLE}: {error}"));
        for kind in &kinds {
            assert!(kind.is_installed(), "{}", ServerError::Missing { kind: *kind });
        }
        kinds
    }

    /// The first kind of [`ServerKind::default_set`], for tests for which any server will do.
    ///
    /// # Panics
    /// As `default_set` does.
    pub fn any() -> ServerKind {
        ServerKind::default_set()[0]
    }
}

fn parse_set(wish: &str) -> Result<Vec<ServerKind>, UnknownServer> {
    match wish.trim() {
        "all" => Ok(ServerKind::ALL.to_vec()),
        "" => parse_set(DEFAULT_SERVERS),
        ids => ids.split(',').map(|id| id.trim().parse()).collect(),
    }
}

impl fmt::Display for ServerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.id())
    }
}

impl FromStr for ServerKind {
    type Err = UnknownServer;

    fn from_str(id: &str) -> Result<ServerKind, UnknownServer> {
        let found = ServerKind::ALL.into_iter().find(|kind| kind.id() == id);
        found.ok_or_else(|| UnknownServer { id: id.to_owned() })
    }
}

/// No kind of server has this id.
#[derive(Debug, thiserror::Error)]
#[error(
    "unknown server {id:?}; known are redis-5.0, redis-6.2, redis-7.0, redis-8.2, valkey-9.1 and `all`"
)]
pub struct UnknownServer {
    /// What was asked for.
    pub id: String,
}

/// Why a server could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// Its program is not there.
    #[error(
        "{kind} is not installed: run tools/install-servers (with --all for the rarer versions)"
    )]
    Missing {
        /// Which.
        kind: ServerKind,
    },
    /// This version, or this build of it, cannot do what was asked for.
    #[error("{kind} has no {feature}")]
    Unsupported {
        /// Which.
        kind: ServerKind,
        /// What it lacks.
        feature: &'static str,
    },
    /// It ended, or did not answer in time.
    #[error("{kind} did not come up; it wrote:\n{log}")]
    NotReady {
        /// Which.
        kind: ServerKind,
        /// All that it wrote.
        log: String,
    },
    /// A file or the process could not be made.
    #[error("a server's files or process could not be made")]
    Io(#[from] io::Error),
}

/// What a server finds in its directory when it starts again.
#[derive(Debug, Clone, Copy)]
pub enum Restart<'a> {
    /// What it left: after [`Server::kill9`] the newest snapshot or append-only file, if it wrote any.
    AsLeft,
    /// Nothing.
    Empty,
    /// An older state, put back.
    From(&'a Snapshot),
}

/// The data of a server at one moment, from [`Server::snapshot`].
#[derive(Debug)]
pub struct Snapshot {
    dir: TempDir,
}

/// How a server is to be started; from [`Server::builder`].
#[derive(Debug, Clone)]
#[must_use]
pub struct Builder {
    kind: ServerKind,
    unix_socket: bool,
    password: Option<String>,
    users: Vec<(String, String)>,
    append_only: bool,
    tls: bool,
    clock_shim: bool,
    config: Vec<(String, String)>,
}

impl Builder {
    /// Listens on a unix socket too: [`Server::unix_socket`].
    pub fn unix_socket(mut self) -> Builder {
        self.unix_socket = true;
        self
    }

    /// The default user must give this password (no white space).
    pub fn password(mut self, password: &str) -> Builder {
        self.password = Some(password.to_owned());
        self
    }

    /// Adds a user, by an ACL file; `rules` as in `ACL SETUSER`, for instance
    /// `on >secret ~lockwarden:* &lockwarden:* +@all`. The user `default` may be defined as well.
    pub fn acl_user(mut self, name: &str, rules: &str) -> Builder {
        self.users.push((name.to_owned(), rules.to_owned()));
        self
    }

    /// The most memory in bytes; past it, commands that write are refused and nothing is evicted.
    pub fn max_memory_bytes(self, bytes: u64) -> Builder {
        self.config("maxmemory", &bytes.to_string()).config("maxmemory-policy", "noeviction")
    }

    /// When to write a snapshot by itself, as in the configuration: `"1 1"` is one change within one
    /// second. Without this the server writes none.
    pub fn save(self, rule: &str) -> Builder {
        self.config("save", rule)
    }

    /// Writes every change into an append-only file, which is given to the disk before each reply.
    pub fn append_only(mut self) -> Builder {
        self.append_only = true;
        self.config("appendonly", "yes").config("appendfsync", "always")
    }

    /// Listens for TLS too, on [`Server::tls_address`], with a certificate for 127.0.0.1 and localhost
    /// that [`Server::tls_ca`] signed. Clients need no certificate.
    pub fn tls(mut self) -> Builder {
        self.tls = true;
        self
    }

    /// Lets the test move the server's wall clock: [`Server::step_clock`].
    pub fn clock_shim(mut self) -> Builder {
        self.clock_shim = true;
        self
    }

    /// Any line of the configuration file. A later one with the same name wins, over our own too.
    pub fn config(mut self, name: &str, value: &str) -> Builder {
        self.config.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts the server and waits until it answers.
    ///
    /// # Panics
    /// If it does not start: [`Builder::try_start`] is for tests that expect this.
    #[track_caller]
    pub fn start(self) -> Server {
        match self.try_start() {
            Ok(server) => server,
            Err(error) => panic!("{error}"),
        }
    }

    /// Starts the server and waits until it answers.
    ///
    /// # Errors
    /// [`ServerError`].
    pub fn try_start(self) -> Result<Server, ServerError> {
        let kind = self.kind;
        let lacks = |feature| ServerError::Unsupported { kind, feature };
        if !kind.is_installed() {
            return Err(ServerError::Missing { kind });
        }
        if self.tls && !kind.has_tls() {
            return Err(lacks("TLS"));
        }
        if !self.users.is_empty() && !kind.has_acl() {
            return Err(lacks("users"));
        }
        let mut tries = PORT_TRIES;
        loop {
            tries -= 1;
            match self.clone().start_on(Port::reserve(), self.tls.then(Port::reserve)) {
                Err(ServerError::NotReady { log, .. })
                    if tries > 0 && log.contains("Address already in use") => {}
                result => return result,
            }
        }
    }

    fn start_on(self, port: Port, tls_port: Option<Port>) -> Result<Server, ServerError> {
        let dir = tempfile::Builder::new().prefix("lockwarden-server-").tempdir()?;
        let clock = if self.clock_shim { Some(ClockShim::new(dir.path())?) } else { None };
        let mut server = Server { setup: self, port, tls_port, clock, process: None, dir };
        server.write_config()?;
        server.launch()?;
        Ok(server)
    }
}

/// A running server. Dropping it kills it and removes its directory; it also dies with the test's own
/// process, however that ends.
#[derive(Debug)]
pub struct Server {
    setup: Builder,
    port: Port,
    tls_port: Option<Port>,
    clock: Option<ClockShim>,
    // Before `dir`: fields are dropped in order, and the server must be gone before its directory.
    process: Option<Process>,
    dir: TempDir,
}

impl Server {
    /// Starts a server that keeps nothing on disk and asks for no password.
    ///
    /// # Panics
    /// If it does not start.
    #[track_caller]
    pub fn start(kind: ServerKind) -> Server {
        Server::builder(kind).start()
    }

    /// A server with settings.
    pub fn builder(kind: ServerKind) -> Builder {
        Builder {
            kind,
            unix_socket: false,
            password: None,
            users: Vec::new(),
            append_only: false,
            tls: false,
            clock_shim: false,
            config: Vec::new(),
        }
    }

    /// Which engine and version it is.
    pub fn kind(&self) -> ServerKind {
        self.setup.kind
    }

    /// Where it listens. The same after a restart.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port.number()).into()
    }

    /// The port of [`Server::address`].
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Where it listens for TLS, if it was built so.
    pub fn tls_address(&self) -> Option<SocketAddr> {
        self.tls_port.as_ref().map(|port| (Ipv4Addr::LOCALHOST, port.number()).into())
    }

    /// The certificate, in PEM, of the authority that signed every test server's certificate.
    pub fn tls_ca(&self) -> PathBuf {
        servers_dir().join("tls/ca.crt")
    }

    /// Its unix socket, if it was built with one.
    pub fn unix_socket(&self) -> Option<PathBuf> {
        self.setup.unix_socket.then(|| self.dir.path().join("redis.sock"))
    }

    /// `redis://127.0.0.1:PORT`, with the default user's password if there is one.
    pub fn url(&self) -> String {
        self.url_at(self.address())
    }

    /// The same for another address, for instance a proxy's.
    pub fn url_at(&self, address: SocketAddr) -> String {
        match &self.setup.password {
            Some(password) => format!("redis://:{password}@{address}"),
            None => format!("redis://{address}"),
        }
    }

    /// Its working directory.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// All that it wrote to its log since it was first started.
    pub fn log(&self) -> String {
        fs::read(self.log_path())
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    /// Its process id; `None` while it is down.
    pub fn process_id(&self) -> Option<u32> {
        self.process.as_ref().map(Process::id)
    }

    /// Whether its process is there. A stopped one is.
    pub fn is_running(&mut self) -> bool {
        self.process.as_mut().is_some_and(Process::is_running)
    }

    /// A new connection with all rights, logged in where the server asks for it.
    ///
    /// # Panics
    /// If the server cannot be reached.
    #[track_caller]
    pub fn raw(&self) -> Raw {
        match self.try_raw() {
            Ok(raw) => raw,
            Err(error) => panic!("{}: {error:?}", self.kind()),
        }
    }

    /// A new connection with all rights.
    ///
    /// # Errors
    /// If the server cannot be reached or refuses the login.
    pub fn try_raw(&self) -> Result<Raw, RawError> {
        let mut raw = Raw::connect(self.address())?;
        if !self.setup.users.is_empty() {
            self.log_in(&mut raw, &["AUTH", ADMIN.0, ADMIN.1])?;
        } else if let Some(password) = &self.setup.password {
            self.log_in(&mut raw, &["AUTH", password])?;
        }
        Ok(raw)
    }

    /// A new connection that has not logged in.
    ///
    /// # Panics
    /// If the server cannot be reached.
    #[track_caller]
    pub fn raw_without_login(&self) -> Raw {
        Raw::connect(self.address()).unwrap_or_else(|error| panic!("{}: {error:?}", self.kind()))
    }

    /// One command with all rights over a connection of its own.
    ///
    /// # Panics
    /// If there is no reply.
    #[track_caller]
    pub fn cmd<A: AsRef<[u8]>>(&self, command: &[A]) -> Value {
        self.raw().cmd(command)
    }

    /// One field of `INFO`; `None` if the server does not state it.
    ///
    /// # Panics
    /// If there is no reply.
    #[track_caller]
    pub fn info(&self, section: &str, field: &str) -> Option<String> {
        info_field(&self.cmd(&["INFO", section]), field)
    }

    /// Spares the test the guard: Lockwarden grants nothing during the first seconds of a new epoch,
    /// unless the server has long been up. This writes the hash [`META_KEY`] as if an epoch of this run
    /// had long begun. Call it after every start and restart, before a client connects.
    ///
    /// # Panics
    /// If the server refuses it.
    #[track_caller]
    pub fn without_guard(&self) {
        let run = self.info("server", "run_id").expect("every server states its run");
        // Unique: no other run has this id.
        let epoch = format!("testkit-{run}");
        let reply =
            self.cmd(&["HSET", META_KEY, "epoch", &epoch, "run", &run, "guard", "0", "fence", "0"]);
        assert!(reply.int().is_some(), "HSET {META_KEY}: {reply:?}");
    }

    /// Moves the server's wall clock by so many milliseconds, on top of earlier steps; negative is back.
    /// The server's next command sees it, and it outlasts restarts.
    ///
    /// # Panics
    /// If it was built without [`Builder::clock_shim`].
    pub fn step_clock(&self, ms: i64) {
        self.clock.as_ref().expect("built with clock_shim()").step(ms);
        // Not a guess about speed: this is how long the engine by its own rule may go on with the old reading.
        std::thread::sleep(CLOCK_READING_KEPT);
    }

    /// SIGKILL: the server is gone without writing anything. Its port stays reserved.
    pub fn kill9(&mut self) {
        // Dropping kills and waits.
        self.process = None;
    }

    /// SIGSTOP: the server stands still, its connections stay.
    ///
    /// # Panics
    /// If it is down.
    pub fn stop(&mut self) {
        self.process.as_mut().expect("the server is up").stop();
    }

    /// SIGCONT: it goes on.
    ///
    /// # Panics
    /// If it is down.
    pub fn cont(&mut self) {
        self.process.as_mut().expect("the server is up").cont();
    }

    /// Ends the server by its own `SHUTDOWN`, with or without a last snapshot, and waits until it is gone.
    ///
    /// # Panics
    /// If it refuses or does not end.
    #[track_caller]
    pub fn shutdown(&mut self, save: bool) {
        let mut process = self.process.take().expect("the server is up");
        // No reply is the good one: the connection ends.
        if let Ok(refusal) = self.raw().try_cmd(&["SHUTDOWN", if save { "SAVE" } else { "NOSAVE" }])
        {
            panic!("SHUTDOWN: {refusal:?}");
        }
        assert!(process.wait_exit(SERVER_DEADLINE).is_some(), "no end within {SERVER_DEADLINE:?}");
    }

    /// Kills the server if it runs, and starts it again on the same port in the same directory.
    ///
    /// # Panics
    /// If it does not come up.
    #[track_caller]
    pub fn restart(&mut self, with: Restart<'_>) {
        if let Err(error) = self.try_restart(with) {
            panic!("{error}");
        }
    }

    /// Kills the server if it runs, and starts it again on the same port in the same directory.
    ///
    /// # Errors
    /// [`ServerError`].
    pub fn try_restart(&mut self, with: Restart<'_>) -> Result<(), ServerError> {
        self.kill9();
        match with {
            Restart::AsLeft => {}
            Restart::Empty => self.remove_data()?,
            Restart::From(snapshot) => {
                self.remove_data()?;
                copy_data(snapshot.dir.path(), self.dir.path())?;
            }
        }
        self.launch()
    }

    /// The server's data now, to put back later with [`Restart::From`] (also into another server of the
    /// same version and settings).
    ///
    /// # Panics
    /// If it cannot be written.
    #[track_caller]
    pub fn snapshot(&self) -> Snapshot {
        // An append-only file is complete at any moment, and is what counts where there is one.
        if !self.setup.append_only {
            let saved = self.cmd(&["SAVE"]);
            assert!(saved.is_ok(), "SAVE: {saved:?}");
        }
        let dir =
            tempfile::Builder::new().prefix("lockwarden-snapshot-").tempdir().expect("a directory");
        copy_data(self.dir.path(), dir.path()).expect("data files can be copied");
        Snapshot { dir }
    }

    fn log_in(&self, raw: &mut Raw, login: &[&str]) -> Result<(), RawError> {
        match raw.try_cmd(login)? {
            reply if reply.is_ok() => Ok(()),
            refusal => Err(RawError::Connect {
                address: self.address().to_string(),
                source: io::Error::other(format!("AUTH: {refusal:?}")),
            }),
        }
    }

    fn log_path(&self) -> PathBuf {
        self.dir.path().join("server.log")
    }

    fn config_path(&self) -> PathBuf {
        self.dir.path().join("redis.conf")
    }

    fn write_config(&self) -> io::Result<()> {
        let dir = self.dir.path();
        let setup = &self.setup;
        let mut lines = vec![
            "bind 127.0.0.1".to_owned(),
            format!("port {}", self.port.number()),
            format!("dir \"{}\"", dir.display()),
            "daemonize no".to_owned(),
            "databases 16".to_owned(),
        ];
        if !setup.config.iter().any(|(name, _)| name == "save") {
            lines.push("save \"\"".to_owned());
        }
        if let Some(path) = self.unix_socket() {
            lines.push(format!("unixsocket \"{}\"", path.display()));
        }
        if let Some(tls_port) = &self.tls_port {
            let tls = servers_dir().join("tls").canonicalize()?;
            lines.extend([
                format!("tls-port {}", tls_port.number()),
                format!("tls-cert-file \"{}\"", tls.join("server.crt").display()),
                format!("tls-key-file \"{}\"", tls.join("server.key").display()),
                format!("tls-ca-cert-file \"{}\"", tls.join("ca.crt").display()),
                "tls-auth-clients no".to_owned(),
            ]);
        }
        if setup.users.is_empty() {
            lines.extend(
                setup.password.iter().map(|password| format!("requirepass \"{password}\"")),
            );
        } else {
            let path = dir.join("users.acl");
            let mut users: Vec<String> =
                setup.users.iter().map(|(name, rules)| format!("user {name} {rules}")).collect();
            users.push(format!("user {} on >{} ~* &* +@all", ADMIN.0, ADMIN.1));
            // With an ACL file the server does not look at requirepass.
            users.extend(
                setup
                    .password
                    .iter()
                    .map(|password| format!("user default on >{password} ~* &* +@all")),
            );
            fs::write(&path, users.join("\n") + "\n")?;
            lines.push(format!("aclfile \"{}\"", path.display()));
        }
        lines.extend(setup.config.iter().map(|(name, value)| format!("{name} {value}")));
        fs::write(self.config_path(), lines.join("\n") + "\n")
    }

    fn launch(&mut self) -> Result<(), ServerError> {
        let log = File::options().create(true).append(true).open(self.log_path())?;
        // What earlier runs wrote is not this one's reason for failing.
        let log_start = log.metadata()?.len();
        let mut command = Command::new(self.kind().program());
        command
            .arg(self.config_path())
            .current_dir(self.dir.path())
            .stdin(std::process::Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        if let Some(clock) = &self.clock {
            clock.apply(&mut command);
        }
        let mut process = Process::spawn(command)?;
        let id = process.id().to_string();
        let ready = poll_until(SERVER_DEADLINE, || {
            if !process.is_running() {
                return Some(false);
            }
            (self.answering_process()? == id).then_some(true)
        });
        if ready != Some(true) {
            let log = fs::read(self.log_path())?;
            let start = usize::try_from(log_start).unwrap_or(0).min(log.len());
            let log = String::from_utf8_lossy(&log[start..]).into_owned();
            return Err(ServerError::NotReady { kind: self.kind(), log });
        }
        self.process = Some(process);
        Ok(())
    }

    /// The process that answers on our port, once it has loaded its data.
    fn answering_process(&self) -> Option<String> {
        let mut raw = self.try_raw().ok()?;
        // A server that loads its data answers INFO, but refuses PING.
        let pong = raw.try_cmd(&["PING"]).ok()?;
        if pong != Value::Simple("PONG".into()) {
            return None;
        }
        info_field(&raw.try_cmd(&["INFO", "server"]).ok()?, "process_id")
    }

    fn remove_data(&self) -> io::Result<()> {
        for name in DATA_FILES {
            let path = self.dir.path().join(name);
            let removed =
                if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
            match removed {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

fn copy_data(from: &Path, to: &Path) -> io::Result<()> {
    for name in DATA_FILES {
        let (from, to) = (from.join(name), to.join(name));
        if from.is_dir() {
            fs::create_dir(&to)?;
            for entry in fs::read_dir(&from)? {
                let entry = entry?;
                fs::copy(entry.path(), to.join(entry.file_name()))?;
            }
        } else if from.exists() {
            fs::copy(&from, &to)?;
        }
    }
    Ok(())
}

fn info_field(info: &Value, field: &str) -> Option<String> {
    let text = info.text()?;
    let value = |line: &str| line.strip_prefix(field)?.strip_prefix(':').map(str::to_owned);
    text.lines().find_map(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_sets_are_read() {
        for kind in ServerKind::ALL {
            assert_eq!(kind.id().parse::<ServerKind>().unwrap(), kind);
        }
        assert_eq!(
            parse_set("redis-5.0, valkey-9.1").unwrap(),
            [ServerKind::Redis50, ServerKind::Valkey91]
        );
        assert_eq!(parse_set("all").unwrap(), ServerKind::ALL);
        assert_eq!(parse_set("").unwrap(), parse_set(DEFAULT_SERVERS).unwrap());
        let error = parse_set("redis-7.0,redis-3").unwrap_err();
        assert!(error.to_string().contains("unknown server \"redis-3\""), "{error}");
    }

    #[test]
    fn a_missing_server_says_what_to_run() {
        let message = ServerError::Missing { kind: ServerKind::Redis50 }.to_string();
        assert!(
            message.contains("redis-5.0") && message.contains("tools/install-servers"),
            "{message}"
        );
    }
}
