//! A TCP proxy between client and server that breaks things on purpose, while it runs.
//!
//! Everything can be set for all connections, present and future ([`Proxy`]), or for one
//! ([`Connection`]). After a call has returned it holds: after [`Proxy::hold`] no further byte is
//! forwarded, after [`Proxy::cut`] the sockets are closed, after [`Proxy::new_connections`] with
//! [`NewConnections::Refuse`] nobody listens.
//!
//! | wanted | call |
//! |---|---|
//! | a slow network | [`Proxy::delay`] |
//! | a reply that is on its way for ever, or comes late | [`Proxy::hold`], [`Proxy::release`] |
//! | a lost message, with the connection alive | [`Proxy::swallow`], [`Proxy::release`] |
//! | a cut connection | [`Proxy::cut`], [`Proxy::cut_subscribed`], [`Connection::cut`] |
//! | a network that is gone without a word | [`Proxy::half_open`], [`Proxy::heal`] |
//! | a server that is down | [`Proxy::new_connections`] |
//! | a failover | [`Proxy::set_upstream`], then [`Proxy::cut`] |

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc as async_mpsc};
use tokio::time::Instant;

use crate::ports::Port;
use crate::process::while_not_forking;

/// How long the proxy's own thread may take to do what it was told.
const ORDER_DEADLINE: Duration = Duration::from_secs(10);

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server: commands.
    ToServer,
    /// From the server to the client: replies and messages.
    ToClient,
}

impl Direction {
    /// Both.
    pub const BOTH: [Direction; 2] = [Direction::ToServer, Direction::ToClient];
}

/// How a connection is cut. Either way both of its sockets are closed, and what was held is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// In good order: both sides read an end of file.
    Close,
    /// By reset: both sides' reads and writes fail.
    Reset,
}

/// What becomes of connections that are opened from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NewConnections {
    /// They are connected to the server.
    Forward,
    /// Nobody listens: "connection refused".
    Refuse,
    /// They are accepted and never hear anything; the server learns nothing of them. They stay so until
    /// they are cut.
    Ignore,
}

/// Why a proxy could not be started.
#[derive(Debug, thiserror::Error)]
#[error("the proxy cannot listen on 127.0.0.1:{port}")]
pub struct ProxyError {
    /// Where it would have listened.
    pub port: u16,
    /// The operating system's reason.
    pub source: io::Error,
}

/// The proxy. Dropping it closes everything.
#[derive(Debug)]
pub struct Proxy {
    shared: Arc<Shared>,
    orders: async_mpsc::UnboundedSender<Order>,
    thread: Option<std::thread::JoinHandle<()>>,
    port: Port,
}

impl Proxy {
    /// Listens on a free port of 127.0.0.1 and forwards to `upstream`.
    ///
    /// # Errors
    /// [`ProxyError`].
    pub fn start(upstream: SocketAddr) -> Result<Proxy, ProxyError> {
        let port = Port::reserve();
        let shared = Arc::new(Shared {
            upstream: Mutex::new(upstream),
            connections: Mutex::new(Connections {
                settings: [Setting::default(); 2],
                open: Vec::new(),
                accepted: 0,
            }),
        });
        let (orders, inbox) = async_mpsc::unbounded_channel();
        let (started, start) = mpsc::channel();
        let thread = {
            let shared = Arc::clone(&shared);
            let port = port.number();
            std::thread::Builder::new().name("proxy".into()).spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                match runtime {
                    Ok(runtime) => {
                        let listener = runtime.block_on(serve(port, shared, inbox, started));
                        // With the runtime go its tasks, and with them all connections.
                        while_not_forking(|| drop((listener, runtime)));
                    }
                    Err(error) => drop(started.send(Err(error))),
                }
            })
        };
        let failed = |source| ProxyError { port: port.number(), source };
        let thread = thread.map_err(failed)?;
        start.recv().unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into())).map_err(failed)?;
        Ok(Proxy { shared, orders, thread: Some(thread), port })
    }

    /// Where clients connect to. Stays the same while nobody listens, too.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port.number()).into()
    }

    /// Connects new connections to another server from now on.
    pub fn set_upstream(&self, upstream: SocketAddr) {
        *lock(&self.shared.upstream) = upstream;
    }

    /// What arrives from now on is forwarded only so much later, in order. Zero ends it.
    pub fn delay(&self, direction: Direction, delay: Duration) {
        self.set(direction, |setting| setting.delay = delay);
    }

    /// Keeps back what arrives, and what is still delayed, until [`Proxy::release`]. The end of a
    /// connection is kept back too.
    pub fn hold(&self, direction: Direction) {
        self.set(direction, |setting| setting.flow = Flow::Hold);
    }

    /// Loses what arrives until [`Proxy::release`], without a trace. The end of a connection is lost as
    /// well: its other side stays open until cut. What arrived earlier is still forwarded.
    pub fn swallow(&self, direction: Direction) {
        self.set(direction, |setting| setting.flow = Flow::Swallow);
    }

    /// Ends [`Proxy::hold`], and forwards what was kept back, and [`Proxy::swallow`]. Delays stay.
    pub fn release(&self, direction: Direction) {
        self.set(direction, |setting| setting.flow = Flow::Pass);
    }

    /// The network is gone without a word: nothing is forwarded in either direction, nothing is closed, and
    /// neither side learns of the other's end. What becomes of new connections is the second argument;
    /// with [`NewConnections::Forward`] they are opened, and as silent.
    pub fn half_open(&self, new: NewConnections) {
        for direction in Direction::BOTH {
            self.hold(direction);
        }
        self.new_connections(new);
    }

    /// Everything as at the start: no delay, nothing held or swallowed, new connections forwarded. What
    /// was held is forwarded; ignored connections stay ignored.
    pub fn heal(&self) {
        for direction in Direction::BOTH {
            self.set(direction, |setting| *setting = Setting::default());
        }
        self.new_connections(NewConnections::Forward);
    }

    /// What becomes of connections that are opened from now on.
    ///
    /// # Panics
    /// If the port cannot be listened on again.
    pub fn new_connections(&self, new: NewConnections) {
        let (done, answer) = mpsc::channel();
        // An error means that the thread has ended: then the answer below is missing.
        let _ = self.orders.send(Order { new, done });
        answer
            .recv_timeout(ORDER_DEADLINE)
            .expect("the proxy's thread answers")
            .expect("the reserved port can be listened on");
    }

    /// Cuts all open connections: those that the proxy has accepted, so any over which a byte has gone.
    pub fn cut(&self, how: Cut) {
        for connection in self.connections() {
            connection.cut(how);
        }
    }

    /// Cuts the open connections on which a client has subscribed, and returns how many these were.
    pub fn cut_subscribed(&self, how: Cut) -> usize {
        let subscribed: Vec<_> =
            self.connections().into_iter().filter(Connection::has_subscribed).collect();
        for connection in &subscribed {
            connection.cut(how);
        }
        subscribed.len()
    }

    /// The open connections, oldest first.
    pub fn connections(&self) -> Vec<Connection> {
        let connections = lock(&self.shared.connections);
        connections.open.iter().map(|link| Connection { link: Arc::clone(link) }).collect()
    }

    /// How many connections were ever accepted.
    pub fn accepted(&self) -> u64 {
        lock(&self.shared.connections).accepted
    }

    fn set(&self, direction: Direction, change: impl Fn(&mut Setting)) {
        // Held throughout, so that no connection is missed that is just being accepted.
        let mut connections = lock(&self.shared.connections);
        change(&mut connections.settings[direction as usize]);
        for link in &connections.open {
            link.set(direction, &change);
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let (gone, _) = async_mpsc::unbounded_channel();
        // The thread ends when nobody can give it orders any more.
        drop(std::mem::replace(&mut self.orders, gone));
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed by itself, and a drop must not panic.
            let _ = thread.join();
        }
        for link in &lock(&self.shared.connections).open {
            lock(&link.state).open = false;
        }
    }
}

/// One connection through the proxy. Of no effect once it is closed.
#[derive(Debug, Clone)]
pub struct Connection {
    link: Arc<Link>,
}

impl Connection {
    /// Its number in the order of arrival, from 1.
    pub fn id(&self) -> u64 {
        self.link.id
    }

    /// The client's end.
    pub fn client(&self) -> SocketAddr {
        self.link.client
    }

    /// Whether the client has sent SUBSCRIBE, PSUBSCRIBE or SSUBSCRIBE (seen by the proxy, whether
    /// forwarded or not).
    pub fn has_subscribed(&self) -> bool {
        lock(&self.link.state).subscribed
    }

    /// Whether it has not been cut or ended from both sides.
    pub fn is_open(&self) -> bool {
        lock(&self.link.state).open
    }

    /// How many bytes were forwarded.
    pub fn forwarded(&self, direction: Direction) -> u64 {
        lock(&self.link.state).paths[direction as usize].forwarded
    }

    /// How many bytes have arrived and wait to be forwarded, because they are held or delayed.
    pub fn waiting(&self, direction: Direction) -> usize {
        lock(&self.link.state).paths[direction as usize]
            .queue
            .iter()
            .map(|item| item.bytes.len())
            .sum()
    }

    /// How many bytes were swallowed.
    pub fn swallowed(&self, direction: Direction) -> u64 {
        lock(&self.link.state).paths[direction as usize].swallowed
    }

    /// As [`Proxy::delay`], for this one.
    pub fn delay(&self, direction: Direction, delay: Duration) {
        self.link.set(direction, |setting| setting.delay = delay);
    }

    /// As [`Proxy::hold`], for this one.
    pub fn hold(&self, direction: Direction) {
        self.link.set(direction, |setting| setting.flow = Flow::Hold);
    }

    /// As [`Proxy::swallow`], for this one.
    pub fn swallow(&self, direction: Direction) {
        self.link.set(direction, |setting| setting.flow = Flow::Swallow);
    }

    /// As [`Proxy::release`], for this one.
    pub fn release(&self, direction: Direction) {
        self.link.set(direction, |setting| setting.flow = Flow::Pass);
    }

    /// Cuts it, and returns when both sockets are closed.
    ///
    /// # Panics
    /// If the proxy's thread does not answer.
    pub fn cut(&self, how: Cut) {
        let (done, answer) = mpsc::channel();
        {
            let mut state = lock(&self.link.state);
            if !state.open {
                return;
            }
            state.cuts.push((how, done));
        }
        self.link.cut_asked.notify_one();
        // Disconnected means that the connection ended by itself meanwhile: that is as good.
        match answer.recv_timeout(ORDER_DEADLINE) {
            Ok(()) | Err(mpsc::RecvTimeoutError::Disconnected) => {}
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("the proxy's thread does not answer"),
        }
    }
}

// Below: the proxy's own thread. One runtime with one task per connection. All settings stand in
// mutexes that are held while a piece is put into a queue or written out (which never waits), so that a
// change, once made, applies to every byte that has not moved yet.

#[derive(Debug)]
struct Shared {
    upstream: Mutex<SocketAddr>,
    connections: Mutex<Connections>,
}

#[derive(Debug)]
struct Connections {
    /// For future connections.
    settings: [Setting; 2],
    open: Vec<Arc<Link>>,
    accepted: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Flow {
    #[default]
    Pass,
    Hold,
    Swallow,
}

#[derive(Debug, Clone, Copy, Default)]
struct Setting {
    flow: Flow,
    delay: Duration,
}

#[derive(Debug)]
struct Link {
    id: u64,
    client: SocketAddr,
    state: Mutex<LinkState>,
    changed: [Notify; 2],
    cut_asked: Notify,
}

#[derive(Debug)]
struct LinkState {
    open: bool,
    subscribed: bool,
    paths: [Path; 2],
    cuts: Vec<(Cut, mpsc::Sender<()>)>,
}

#[derive(Debug, Default)]
struct Path {
    setting: Setting,
    queue: VecDeque<Item>,
    forwarded: u64,
    swallowed: u64,
    /// The end of what has been seen, for a command's name that came in two pieces.
    tail: Vec<u8>,
}

/// A piece of what arrived, or the end.
#[derive(Debug)]
struct Item {
    due: Instant,
    bytes: Vec<u8>,
    end: Option<End>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Eof,
    Reset,
}

/// The connection has been reset by one side.
struct WasReset;

struct Order {
    new: NewConnections,
    done: mpsc::Sender<io::Result<()>>,
}

impl Link {
    fn set(&self, direction: Direction, change: impl Fn(&mut Setting)) {
        change(&mut lock(&self.state).paths[direction as usize].setting);
        self.changed[direction as usize].notify_one();
    }
}

/// No thread panics while it holds one of these, and if one did, its test has failed already.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

async fn listen(port: u16) -> io::Result<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await
}

/// Until nobody can give orders any more; returns the listener, if there is one, to be closed.
async fn serve(
    port: u16,
    shared: Arc<Shared>,
    mut orders: async_mpsc::UnboundedReceiver<Order>,
    started: mpsc::Sender<io::Result<()>>,
) -> Option<TcpListener> {
    let mut listener = match listen(port).await {
        Ok(listener) => Some(listener),
        Err(error) => {
            let _ = started.send(Err(error));
            return None;
        }
    };
    let mut new = NewConnections::Forward;
    // The starter waits for it.
    let _ = started.send(Ok(()));
    loop {
        tokio::select! {
            // Orders first: a connection that is opened after an order was given must feel it.
            biased;
            order = orders.recv() => {
                let Some(order) = order else { return listener };
                new = order.new;
                let result = match (new, &listener) {
                    (NewConnections::Refuse, _) => {
                        while_not_forking(|| listener = None);
                        Ok(())
                    }
                    (_, Some(_)) => Ok(()),
                    (_, None) => listen(port).await.map(|reopened| listener = Some(reopened)),
                };
                // The one who gave the order may have given up.
                let _ = order.done.send(result);
            }
            accepted = accept(listener.as_ref()) => {
                if let Ok((stream, client)) = accepted {
                    open(&shared, stream, client, new);
                }
            }
        }
    }
}

async fn accept(listener: Option<&TcpListener>) -> io::Result<(TcpStream, SocketAddr)> {
    match listener {
        Some(listener) => listener.accept().await,
        None => std::future::pending().await,
    }
}

fn open(shared: &Arc<Shared>, stream: TcpStream, client: SocketAddr, new: NewConnections) {
    let mut connections = lock(&shared.connections);
    connections.accepted += 1;
    let path =
        |direction: usize| Path { setting: connections.settings[direction], ..Path::default() };
    let link = Arc::new(Link {
        id: connections.accepted,
        client,
        state: Mutex::new(LinkState {
            open: true,
            subscribed: false,
            paths: [path(0), path(1)],
            cuts: Vec::new(),
        }),
        changed: [Notify::new(), Notify::new()],
        cut_asked: Notify::new(),
    });
    connections.open.push(Arc::clone(&link));
    drop(connections);
    tokio::spawn(run(Arc::clone(shared), link, stream, new));
}

async fn run(shared: Arc<Shared>, link: Arc<Link>, client: TcpStream, new: NewConnections) {
    let upstream = *lock(&shared.upstream);
    let mut server = None;
    let how = tokio::select! {
        biased;
        () = link.cut_asked.notified() => None,
        how = carry(&link, &client, &mut server, upstream, new) => Some(how),
    };
    let asked = lock(&link.state).cuts.first().map(|(how, _)| *how);
    let how = how.or(asked).unwrap_or(Cut::Close);
    while_not_forking(|| {
        std::iter::once(client).chain(server).for_each(|stream| close(stream, how))
    });
    lock(&shared.connections).open.retain(|other| !Arc::ptr_eq(other, &link));
    let cuts = {
        let mut state = lock(&link.state);
        state.open = false;
        std::mem::take(&mut state.cuts)
    };
    for (_, done) in cuts {
        // Whoever asked may have given up.
        let _ = done.send(());
    }
}

fn close(stream: TcpStream, how: Cut) {
    match how {
        Cut::Reset => {
            // Closing with a linger of zero is how one sends a reset. Refused only by a dead socket.
            let _ = SockRef::from(&stream).set_linger(Some(Duration::ZERO));
        }
        // Closing with unread bytes would send a reset.
        Cut::Close => while matches!(stream.try_read(&mut [0; 4096]), Ok(1..)) {},
    }
}

impl Path {
    /// Whether a command that subscribes ends in these bytes, or did so shortly before.
    fn sees_subscribe(&mut self, bytes: &[u8]) -> bool {
        // After `*` and the number of arguments: a value or a channel of that name is none.
        const NAMES: [&[u8]; 3] = [
            b"\r\n$9\r\nSUBSCRIBE\r\n",
            b"\r\n$10\r\nPSUBSCRIBE\r\n",
            b"\r\n$10\r\nSSUBSCRIBE\r\n",
        ];
        /// The longest name, and a number of arguments before it.
        const KEPT: usize = 40;
        self.tail.extend(bytes.iter().map(u8::to_ascii_uppercase));
        let counted = |before: &[u8]| {
            let digits = before.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
            digits > 0 && before[..before.len() - digits].ends_with(b"*")
        };
        let seen = NAMES.iter().any(|name| {
            let found = |(at, part): (usize, &[u8])| part == *name && counted(&self.tail[..at]);
            self.tail.windows(name.len()).enumerate().any(found)
        });
        let surplus = self.tail.len().saturating_sub(KEPT);
        self.tail.drain(..surplus);
        seen
    }
}

/// Forwards until both directions have ended; says how the sockets are then to be closed.
async fn carry(
    link: &Link,
    client: &TcpStream,
    server: &mut Option<TcpStream>,
    upstream: SocketAddr,
    new: NewConnections,
) -> Cut {
    if new == NewConnections::Ignore {
        std::future::pending::<()>().await;
    }
    let Ok(stream) = TcpStream::connect(upstream).await else { return Cut::Reset };
    let server = &*server.insert(stream);
    for stream in [client, server] {
        // Without it small commands wait for acknowledgements. If it is refused, the socket is dead.
        let _ = stream.set_nodelay(true);
    }
    // A reset ends both directions at once; an end of file only its own.
    let both = tokio::try_join!(
        forward(link, Direction::ToServer, client, server),
        forward(link, Direction::ToClient, server, client),
    );
    match both {
        Ok(_) => Cut::Close,
        Err(WasReset) => Cut::Reset,
    }
}

async fn forward(
    link: &Link,
    direction: Direction,
    from: &TcpStream,
    to: &TcpStream,
) -> Result<(), WasReset> {
    tokio::select! {
        result = write(link, direction, to) => result,
        never = read(link, direction, from) => match never {},
    }
}

/// Moves what arrives into the queue. Goes on for ever, so that the writer's end is the direction's end.
async fn read(link: &Link, direction: Direction, from: &TcpStream) -> Infallible {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let ready = from.readable().await;
        if take_in(link, direction, ready.and_then(|()| from.try_read(&mut buffer)), &buffer) {
            return std::future::pending().await;
        }
    }
}

/// One piece, and whether it was the end.
fn take_in(link: &Link, direction: Direction, read: io::Result<usize>, buffer: &[u8]) -> bool {
    let (bytes, end) = match read {
        Ok(0) => (&[][..], Some(End::Eof)),
        Ok(length) => (&buffer[..length], None),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
        Err(_) => (&[][..], Some(End::Reset)),
    };
    let mut state = lock(&link.state);
    let path = &mut state.paths[direction as usize];
    let subscribes = direction == Direction::ToServer && path.sees_subscribe(bytes);
    if path.setting.flow == Flow::Swallow {
        path.swallowed += bytes.len() as u64;
    } else {
        let due = Instant::now() + path.setting.delay;
        path.queue.push_back(Item { due, bytes: bytes.to_vec(), end });
    }
    state.subscribed |= subscribes;
    drop(state);
    link.changed[direction as usize].notify_one();
    end.is_some()
}

/// Moves the queue's items out when they are due, until the end has been passed on.
async fn write(link: &Link, direction: Direction, to: &TcpStream) -> Result<(), WasReset> {
    enum Next {
        Nothing,
        Due(Instant),
        Full,
    }
    loop {
        let changed = link.changed[direction as usize].notified();
        let next = {
            let mut state = lock(&link.state);
            let path = &mut state.paths[direction as usize];
            match path.queue.front_mut() {
                _ if path.setting.flow == Flow::Hold => Next::Nothing,
                None => Next::Nothing,
                Some(item) if item.due > Instant::now() => Next::Due(item.due),
                Some(item) => match item.end {
                    Some(End::Eof) => {
                        // Refused only if the socket is dead, which its reader reports.
                        let _ = SockRef::from(to).shutdown(std::net::Shutdown::Write);
                        return Ok(());
                    }
                    Some(End::Reset) => return Err(WasReset),
                    None => match to.try_write(&item.bytes) {
                        Ok(length) => {
                            item.bytes.drain(..length);
                            path.forwarded += length as u64;
                            if item.bytes.is_empty() {
                                path.queue.pop_front();
                            }
                            continue;
                        }
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Next::Full,
                        // The receiver is gone. Its own reader finds the reason, and passes it on to the
                        // sender if it is not being held.
                        Err(_) => return Ok(()),
                    },
                },
            }
        };
        match next {
            Next::Nothing => changed.await,
            Next::Due(due) => tokio::select! {
                () = changed => {}
                () = tokio::time::sleep_until(due) => {}
            },
            Next::Full => tokio::select! {
                () = changed => {}
                _ = to.ready(Interest::WRITABLE) => {}
            },
        }
    }
}
