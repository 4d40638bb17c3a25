//! What the tests of the file store share: a session that speaks the protocol without a warden, and
//! other processes that do the same on command.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "test code")]

use lockwarden::{
    StoreError,
    store::{Call, Link, LinkEvent, Page, Store, file::FileStore},
};
use lockwarden_core::{
    Command, Message, Name, Reply, SessionId, Token,
    command::{Acquire, Refusal, Renew, Wait},
    party::Party,
};
use lockwarden_testkit::process::Process;
use std::{
    collections::VecDeque,
    future::poll_fn,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{ChildStdin, ChildStdout, Stdio},
    sync::Arc,
    time::Duration,
};

pub const SOON: Duration = Duration::from_secs(20);

pub fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

pub fn token(text: &str) -> Token {
    Token::new(text.as_bytes()).unwrap()
}

/// A session and its link.
pub struct Session {
    link: Box<dyn Link>,
    next: u64,
    messages: VecDeque<Message>,
}

impl Session {
    pub async fn open(dir: &Path, id: &str) -> Result<Session, StoreError> {
        let store = FileStore::new(dir.to_owned());
        let link = store.connect(&SessionId::new(id), false).await?;
        Ok(Session { link, next: 0, messages: VecDeque::new() })
    }

    pub async fn new(dir: &Path, id: &str) -> Session {
        Session::open(dir, id).await.unwrap()
    }

    async fn event(&mut self) -> LinkEvent {
        let event = poll_fn(|cx| self.link.poll_event(cx));
        tokio::time::timeout(SOON, event).await.expect("something happens soon")
    }

    /// Sends calls together; gives their answers.
    pub async fn batch(&mut self, commands: Vec<Command>) -> Result<Vec<Reply>, StoreError> {
        let wanted = commands.len();
        let calls = commands.into_iter().map(|command| {
            self.next += 1;
            Call { id: self.next, command, may_hold: false }
        });
        self.link.send(calls.collect());
        let mut replies = Vec::new();
        while replies.len() < wanted {
            match self.event().await {
                LinkEvent::Answers { answers, .. } => {
                    for (_, answer) in answers {
                        replies.push(answer?);
                    }
                }
                LinkEvent::Message(message) => self.messages.push_back(message),
                LinkEvent::Closed(error) => return Err(error),
                other => panic!("unexpected: {other:?}"),
            }
        }
        Ok(replies)
    }

    pub async fn try_call(&mut self, command: Command) -> Result<Reply, StoreError> {
        Ok(self.batch(vec![command]).await?.remove(0))
    }

    pub async fn call(&mut self, command: Command) -> Reply {
        self.try_call(command).await.unwrap()
    }

    /// The next message.
    pub async fn message(&mut self) -> Message {
        if let Some(message) = self.messages.pop_front() {
            return message;
        }
        match self.event().await {
            LinkEvent::Message(message) => message,
            other => panic!("unexpected: {other:?}"),
        }
    }

    /// How the link ends.
    pub async fn closed(&mut self) -> StoreError {
        loop {
            match self.event().await {
                LinkEvent::Closed(error) => return error,
                LinkEvent::Message(message) => self.messages.push_back(message),
                other => panic!("unexpected: {other:?}"),
            }
        }
    }

    /// The fence of the grant that comes as the next message.
    pub async fn granted(&mut self, of: &str) -> u64 {
        loop {
            match self.message().await {
                Message::Grant { token: granted, fence, .. } if granted == token(of) => {
                    return fence;
                }
                Message::First { .. } | Message::Asking { .. } => {}
                other => panic!("unexpected: {other:?}"),
            }
        }
    }

    /// One page of names.
    pub async fn list(&mut self, cursor: u64) -> Page {
        self.next += 1;
        self.link.list(self.next, cursor, false);
        loop {
            match self.event().await {
                LinkEvent::Page { id, page } if id == self.next => return page.unwrap(),
                LinkEvent::Message(message) => self.messages.push_back(message),
                other => panic!("unexpected: {other:?}"),
            }
        }
    }

    pub async fn names(&mut self) -> Vec<String> {
        let mut names = Vec::new();
        let mut cursor = 0;
        loop {
            let page = self.list(cursor).await;
            names.extend(page.names.iter().map(|name| name.as_str().to_owned()));
            cursor = page.cursor;
            if cursor == 0 {
                return names;
            }
        }
    }

    pub async fn acquire(&mut self, of: &str, with: &str, wait: Wait) -> Reply {
        self.call(acquire(of, with, wait)).await
    }

    pub async fn take(&mut self, of: &str, with: &str) -> u64 {
        match self.acquire(of, with, Wait::No).await {
            Reply::Granted { fence, .. } => fence,
            other => panic!("not granted: {other:?}"),
        }
    }

    pub async fn queue(&mut self, of: &str, with: &str) -> Refusal {
        match self.acquire(of, with, Wait::Forever).await {
            Reply::Refused(refusal) => refusal,
            other => panic!("not queued: {other:?}"),
        }
    }

    pub async fn release(&mut self, of: &str, with: &str) -> Reply {
        self.call(release(of, with)).await
    }
}

pub fn acquire(of: &str, with: &str, wait: Wait) -> Command {
    Command::Acquire(Acquire {
        at_least_ms: 0,
        delay_ms: 0,
        endless: false,
        modes: Default::default(),
        also: Default::default(),
        name: name(of),
        token: token(with),
        proof: "".into(),
        wait,
        lease_ms: 30_000,
        grace_ms: 3_000,
        floor: 0,
        party: Arc::new(Party {
            owner: "".into(),
            label: "test".into(),
            host: lockwarden::process::hostname(),
            processes: [lockwarden::process::current()].into(),
            ..Party::default()
        }),
    })
}

pub fn release(of: &str, with: &str) -> Command {
    Command::Release { also: Default::default(), name: name(of), token: token(with), lost: false }
}

pub fn renew(of: &str, with: &str) -> Command {
    Command::Renew(Renew {
        also: Default::default(),
        name: name(of),
        token: token(with),
        lease_ms: 30_000,
    })
}

/// Another process with a session, that does what it is told: one word a line in, one line out.
pub struct Puppet {
    pub process: Process,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

const DIR: &str = "LOCKWARDEN_TEST_DIR";
const SESSION: &str = "LOCKWARDEN_TEST_SESSION";

impl Puppet {
    /// Starts this test program again; its test `puppet` must call [`play`].
    pub fn start(dir: &Path, session: &str) -> Puppet {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "--nocapture", "--quiet", "puppet"])
            .env(DIR, dir)
            .env(SESSION, session)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut process = Process::spawn(command).unwrap();
        let input = process.child().stdin.take().unwrap();
        let output = BufReader::new(process.child().stdout.take().unwrap());
        Puppet { process, input, output }
    }

    pub fn connected(dir: &Path, session: &str) -> Puppet {
        let mut puppet = Puppet::start(dir, session);
        assert_eq!(puppet.read("connected"), "");
        puppet
    }

    pub fn say(&mut self, line: &str) {
        self.input.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    /// The rest of the next line that begins so.
    pub fn read(&mut self, begins: &str) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "the puppet ended");
            // The test harness of the child writes on the same stream.
            if let Some(at) = line.find(&format!("@{begins}")) {
                return line[at + 1 + begins.len()..].trim().to_owned();
            }
        }
    }

    pub fn kill(mut self) {
        self.process.kill9();
    }
}

/// Plays the puppet, if this process is one.
pub fn play() {
    let (Some(dir), Ok(session)) = (std::env::var_os(DIR), std::env::var(SESSION)) else {
        return;
    };
    let dir = PathBuf::from(dir);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (lines, mut inbox) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            if lines.send(line).is_err() {
                return;
            }
        }
    });
    runtime.block_on(async {
        let mut me = Session::new(&dir, &session).await;
        println!("@connected");
        while let Some(line) = inbox.recv().await {
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["take", of] => println!("@took {}", me.take(of, &session).await),
                ["queue", of] => {
                    println!("@queued {:?}", me.queue(of, &session).await.position);
                    println!("@granted {}", me.granted(&session).await);
                }
                ["release", of] => println!("@released {:?}", me.release(of, &session).await),
                // Until killed: waits for the lock, and gives it back once another waits.
                ["ping-pong", of] => {
                    for round in 0.. {
                        let mine = format!("{session}{round}");
                        me.queue(of, &mine).await;
                        me.granted(&mine).await;
                        let show = || Command::Show { name: name(of) };
                        while let Reply::Shown(view) = me.call(show()).await
                            && view.queue.is_empty()
                        {}
                        me.release(of, &mine).await;
                    }
                }
                // Until killed: takes and gives back as fast as it can.
                ["churn", of] => loop {
                    match me.acquire(of, &session, Wait::Forever).await {
                        Reply::Granted { .. } => {}
                        Reply::Refused(_) => {
                            let granted = me.granted(&session);
                            if tokio::time::timeout(Duration::from_millis(300), granted)
                                .await
                                .is_err()
                            {
                                continue;
                            }
                        }
                        other => panic!("{other:?}"),
                    }
                    me.release(of, &session).await;
                },
                _ => panic!("what is {line:?}?"),
            }
        }
    });
    std::process::exit(0);
}

/// How many files the sessions have, and rows each table.
pub fn leftovers(dir: &Path) -> (Vec<String>, [i64; 3]) {
    let entries = std::fs::read_dir(dir.join("sessions")).unwrap();
    let mut files: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    files.sort();
    let database = rusqlite::Connection::open(dir.join("lockwarden.db")).unwrap();
    let rows = ["meta", "locks", "inbox"].map(|table| {
        let sql = format!("SELECT count(*) FROM {table}");
        database.query_row(&sql, [], |row| row.get(0)).unwrap()
    });
    (files, rows)
}

impl Puppet {
    /// Starts a process that keeps the database locked; its test `blocking_puppet` must call
    /// [`block`].
    pub fn blocker(dir: &Path) -> Puppet {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "--nocapture", "--quiet", "blocking_puppet"])
            .env(DIR, dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut process = Process::spawn(command).unwrap();
        let input = process.child().stdin.take().unwrap();
        let output = BufReader::new(process.child().stdout.take().unwrap());
        Puppet { process, input, output }
    }
}

/// Keeps the database locked until its input ends, if this process is a [`Puppet::blocker`].
pub fn block() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let database = rusqlite::Connection::open(Path::new(&dir).join("lockwarden.db")).unwrap();
    database.execute_batch("BEGIN IMMEDIATE").unwrap();
    println!("@blocking");
    let _ = std::io::stdin().read_line(&mut String::new());
}

/// Forks this process; the child does `work` and exits with what it says.
pub fn fork(work: impl FnOnce() -> i32) -> i32 {
    // SAFETY: as with any program that forks with several threads, the child may meet a lock that
    // some other thread held; the tests are about exactly that. It ends by `_exit`.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork");
    if pid != 0 {
        return pid;
    }
    let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or(101);
    // SAFETY: ends the process, and nothing else.
    unsafe { libc::_exit(code) }
}

/// Waits for a forked child; its exit code. One that hangs is killed.
pub fn wait(pid: i32) -> i32 {
    let mut status = 0;
    let ended = lockwarden_testkit::process::poll_until(SOON, || {
        // SAFETY: `status` is a valid place for the answer.
        let waited = unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) };
        (waited == pid).then_some(())
    });
    if ended.is_none() {
        // SAFETY: the child is ours, and was not waited for: the pid is still its.
        unsafe { libc::kill(pid, libc::SIGKILL) };
        panic!("the forked child hangs");
    }
    assert!(libc::WIFEXITED(status), "status {status}");
    libc::WEXITSTATUS(status)
}
