//! The proxy, between a real server and a foreign client.

// Clippy knows test functions as tests, but not what they share.
#![allow(clippy::unwrap_used)]

use std::io::{self, ErrorKind, Read};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use lockwarden_testkit::process::eventually;
use lockwarden_testkit::proxy::{Connection, Cut, Direction, NewConnections, Proxy};
use lockwarden_testkit::raw::{Raw, RawError, Value};
use lockwarden_testkit::servers::{Server, ServerKind};

const SOON: Duration = Duration::from_secs(10);
/// For what must not happen: long enough for a reply that is on its way to arrive.
const A_WHILE: Duration = Duration::from_millis(100);

fn start() -> (Server, Proxy) {
    let server = Server::start(ServerKind::any());
    let proxy = Proxy::start(server.address()).unwrap();
    (server, proxy)
}

fn connect(proxy: &Proxy) -> (Raw, Connection) {
    let mut raw = Raw::connect(proxy.address()).unwrap();
    assert_eq!(raw.cmd(&["PING"]), pong());
    (raw, proxy.connections().pop().unwrap())
}

fn pong() -> Value {
    Value::Simple("PONG".into())
}

fn assert_silent(raw: &mut Raw) {
    raw.set_reply_deadline(A_WHILE).unwrap();
    let read = raw.read();
    assert!(matches!(read, Err(RawError::NoReply(_))), "{read:?}");
    raw.set_reply_deadline(SOON).unwrap();
}

fn end_of(raw: &mut Raw) -> ErrorKind {
    match raw.read() {
        Err(RawError::Io(error)) => error.kind(),
        other => panic!("an end was expected: {other:?}"),
    }
}

/// Without the asking one. To be waited for: the server may not yet have noticed that an earlier asking
/// one is gone.
fn clients_of(server: &Server) -> usize {
    server.cmd(&["CLIENT", "LIST"]).text().unwrap().lines().count() - 1
}

#[test]
fn bytes_of_any_size_and_value_pass_unchanged() {
    let (_server, proxy) = start();
    let (mut raw, connection) = connect(&proxy);
    let big: Vec<u8> =
        (0..3_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    assert!(raw.cmd(&[b"SET", b"big".as_slice(), &big]).is_ok());
    assert!(raw.cmd(&["GET", "big"]) == Value::Bulk(big.clone()));
    assert!(connection.forwarded(Direction::ToServer) > 3_000_000);
    assert!(connection.forwarded(Direction::ToClient) > 3_000_000);
}

#[test]
fn delays_add_up_and_keep_the_order() {
    let (_server, proxy) = start();
    let (mut raw, _) = connect(&proxy);
    proxy.delay(Direction::ToServer, Duration::from_millis(60));
    proxy.delay(Direction::ToClient, Duration::from_millis(40));
    let start = Instant::now();
    for n in 1..=10 {
        raw.send(&["RPUSH", "list", &n.to_string()]).unwrap();
    }
    for n in 1..=10 {
        assert_eq!(raw.read().unwrap(), Value::Int(n));
    }
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(100), "{took:?}");
    assert!(took < Duration::from_millis(500), "the ten travel together: {took:?}");
    let new = Instant::now();
    let (mut other, _) = connect(&proxy);
    assert!(new.elapsed() >= Duration::from_millis(100), "new connections too");
    proxy.heal();
    let start = Instant::now();
    other.cmd(&["PING"]);
    assert!(start.elapsed() < Duration::from_millis(40));
}

#[test]
fn held_commands_are_not_executed_until_released() {
    let (server, proxy) = start();
    let (mut raw, connection) = connect(&proxy);
    proxy.hold(Direction::ToServer);
    raw.send(&["SET", "k", "v"]).unwrap();
    eventually(SOON, || connection.waiting(Direction::ToServer) > 0);
    assert_silent(&mut raw);
    assert_eq!(server.cmd(&["GET", "k"]), Value::Nil);
    proxy.release(Direction::ToServer);
    assert!(raw.read().unwrap().is_ok());
    assert_eq!(connection.waiting(Direction::ToServer), 0);
}

#[test]
fn a_held_reply_means_executed_and_unknown() {
    let (server, proxy) = start();
    let (mut raw, connection) = connect(&proxy);
    proxy.hold(Direction::ToClient);
    raw.send(&["SET", "k", "v"]).unwrap();
    eventually(SOON, || connection.waiting(Direction::ToClient) == b"+OK\r\n".len());
    assert_eq!(server.cmd(&["GET", "k"]), Value::from("v"));
    assert_silent(&mut raw);
    connection.cut(Cut::Reset);
    assert!(raw.read().is_err());
}

#[test]
fn what_is_held_can_be_released_for_one_connection_only() {
    let (_server, proxy) = start();
    let (mut one, first) = connect(&proxy);
    let (mut two, second) = connect(&proxy);
    first.hold(Direction::ToClient);
    one.send(&["PING"]).unwrap();
    assert_eq!(two.cmd(&["PING"]), pong());
    assert_silent(&mut one);
    second.hold(Direction::ToServer);
    first.release(Direction::ToClient);
    assert_eq!(one.read().unwrap(), pong());
    two.send(&["PING"]).unwrap();
    assert_silent(&mut two);
    assert_ne!(first.id(), second.id());
}

#[test]
fn swallowed_bytes_never_arrive_and_the_connection_lives() {
    let (server, proxy) = start();
    let (mut raw, connection) = connect(&proxy);
    proxy.swallow(Direction::ToServer);
    raw.send(&["SET", "k", "lost"]).unwrap();
    eventually(SOON, || connection.swallowed(Direction::ToServer) > 0);
    proxy.release(Direction::ToServer);
    assert_eq!(raw.cmd(&["PING"]), pong(), "the next reply is the next command's");
    assert_eq!(server.cmd(&["GET", "k"]), Value::Nil);

    proxy.swallow(Direction::ToClient);
    raw.send(&["SET", "k", "v"]).unwrap();
    eventually(SOON, || connection.swallowed(Direction::ToClient) == b"+OK\r\n".len() as u64);
    proxy.release(Direction::ToClient);
    assert_eq!(raw.cmd(&["GET", "k"]), Value::from("v"), "executed, and only its reply was lost");
}

#[test]
fn a_cut_closes_or_resets_both_sides() {
    for (how, seen) in
        [(Cut::Close, ErrorKind::UnexpectedEof), (Cut::Reset, ErrorKind::ConnectionReset)]
    {
        let (server, proxy) = start();
        let (mut raw, connection) = connect(&proxy);
        eventually(SOON, || clients_of(&server) == 1);
        proxy.cut(how);
        assert!(!connection.is_open());
        assert!(proxy.connections().is_empty());
        assert_eq!(end_of(&mut raw), seen);
        eventually(SOON, || clients_of(&server) == 0);
        connection.cut(how);
        connect(&proxy);
        assert_eq!(proxy.accepted(), 2);
    }
}

#[test]
fn only_the_subscribed_connection_is_cut() {
    let (_server, proxy) = start();
    let (mut plain, plain_connection) = connect(&proxy);
    let (mut listening, listening_connection) = connect(&proxy);
    plain.cmd(&["SET", "k", "SUBSCRIBE"]);
    plain.cmd(&["UNSUBSCRIBE", "channel"]);
    assert_eq!(listening.cmd(&["subscribe", "channel"]).items()[0], Value::from("subscribe"));
    assert!(listening_connection.has_subscribed());
    assert!(!plain_connection.has_subscribed());
    assert_eq!(plain.cmd(&["PUBLISH", "channel", "hello"]), Value::Int(1));
    assert_eq!(listening.read().unwrap().items()[2], Value::from("hello"));
    assert_eq!(proxy.cut_subscribed(Cut::Reset), 1);
    assert_eq!(end_of(&mut listening), ErrorKind::ConnectionReset);
    assert_eq!(plain.cmd(&["PING"]), pong());
    assert_eq!(proxy.cut_subscribed(Cut::Reset), 0);
}

#[test]
fn a_subscription_is_seen_even_in_pieces() {
    use std::io::Write;
    let (_server, proxy) = start();
    let mut stream = TcpStream::connect(proxy.address()).unwrap();
    stream.set_nodelay(true).unwrap();
    eventually(SOON, || proxy.connections().len() == 1);
    let connection = proxy.connections().remove(0);
    for (sent, byte) in (1..).zip(b"*2\r\n$9\r\nSUBSCRIBE\r\n$1\r\nc\r\n") {
        stream.write_all(&[*byte]).unwrap();
        eventually(SOON, || connection.forwarded(Direction::ToServer) == sent);
    }
    assert!(connection.has_subscribed());
}

#[test]
fn half_open_is_silent_both_ways_and_closes_nothing() {
    let (server, proxy) = start();
    let (mut raw, connection) = connect(&proxy);
    let (other, _) = connect(&proxy);
    proxy.half_open(NewConnections::Ignore);
    raw.send(&["SET", "k", "v"]).unwrap();
    drop(other);
    let mut new = Raw::connect(proxy.address()).unwrap();
    new.send(&["PING"]).unwrap();
    assert_silent(&mut raw);
    assert_silent(&mut new);
    // The server has learnt neither of the end nor of the new one.
    eventually(SOON, || clients_of(&server) == 2);
    proxy.heal();
    assert!(raw.read().unwrap().is_ok(), "what was on its way arrives");
    eventually(SOON, || clients_of(&server) == 1);
    assert!(connection.is_open());
    assert_silent(&mut new);
    proxy.cut(Cut::Close);
    assert_eq!(end_of(&mut new), ErrorKind::UnexpectedEof);
}

#[test]
fn new_connections_are_refused_while_the_old_ones_go_on() {
    let (_server, proxy) = start();
    let (mut raw, _) = connect(&proxy);
    proxy.new_connections(NewConnections::Refuse);
    let Err(RawError::Connect { source, .. }) = Raw::connect(proxy.address()) else {
        panic!("nobody may listen");
    };
    assert_eq!(source.kind(), ErrorKind::ConnectionRefused);
    assert_eq!(raw.cmd(&["PING"]), pong());
    proxy.new_connections(NewConnections::Forward);
    connect(&proxy);
}

#[test]
fn the_end_of_one_side_reaches_the_other() {
    let (mut server, proxy) = start();
    let (raw, connection) = connect(&proxy);
    drop(raw);
    eventually(SOON, || !connection.is_open() && clients_of(&server) == 0);
    let (mut raw, _) = connect(&proxy);
    server.kill9();
    end_of(&mut raw);
    // Nobody behind the proxy: it accepts, then resets.
    let reset = Raw::connect(proxy.address()).and_then(|mut raw| raw.try_cmd(&["PING"]));
    let refused = |error: &io::Error| error.kind() == ErrorKind::ConnectionRefused;
    assert!(!matches!(&reset, Err(RawError::Connect { source, .. }) if refused(source)));
    assert!(reset.is_err(), "{reset:?}");
}

#[test]
fn a_reset_of_the_client_reaches_the_server_as_one() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = Proxy::start(listener.local_addr().unwrap()).unwrap();
    let client = TcpStream::connect(proxy.address()).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    socket2::SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
    drop(client);
    let read: io::Result<usize> = server.read(&mut [0; 8]);
    assert_eq!(read.unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[test]
fn another_upstream_serves_the_next_connections() {
    let (server, proxy) = start();
    let second = Server::start(server.kind());
    second.cmd(&["SET", "who", "second"]);
    let (mut raw, _) = connect(&proxy);
    proxy.set_upstream(second.address());
    assert_eq!(raw.cmd(&["GET", "who"]), Value::Nil);
    proxy.cut(Cut::Close);
    let (mut raw, _) = connect(&proxy);
    assert_eq!(raw.cmd(&["GET", "who"]), Value::from("second"));
}

#[test]
fn dropping_the_proxy_closes_everything() {
    let (server, proxy) = start();
    let (mut raw, connection) = connect(&proxy);
    let address = proxy.address();
    drop(proxy);
    end_of(&mut raw);
    assert!(Raw::connect(address).is_err());
    eventually(SOON, || clients_of(&server) == 0);
    assert!(!connection.is_open());
    connection.cut(Cut::Reset);
}
