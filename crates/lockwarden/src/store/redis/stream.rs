//! Sockets: opened with a bound, closed by reset while anything is unanswered (R9).

use super::{
    Address,
    inherited::Kept,
    resp::{self, NotResp, Value},
};
use bytes::{Buf, BytesMut};
use socket2::{SockRef, TcpKeepalive};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    pin::{Pin, pin},
    sync::{Arc, OnceLock},
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream},
};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{ClientConfig, RootCertStore, pki_types::ServerName},
};

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// A connection: frames in, bytes out. It does nothing by itself: no retry, no second try.
pub(super) struct Connection {
    // Before the stream: it ends before the socket is closed.
    _kept: Kept,
    stream: Stream,
    input: BytesMut,
    output: BytesMut,
}

/// Read at least so much at a time.
const READ_BYTES: usize = 32 << 10;

impl Connection {
    /// Opens a connection. The caller bounds how long it may take.
    pub(super) async fn open(address: &Address) -> io::Result<Connection> {
        let stream = match address {
            Address::Unix(path) => Stream::Unix(UnixStream::connect(path).await?),
            Address::Tcp { host, port, tls } => {
                let tcp = TcpStream::connect((host.as_str(), *port)).await?;
                prepare(&tcp)?;
                if *tls {
                    Stream::Tls(Box::new(encrypt(tcp, host).await?))
                } else {
                    Stream::Tcp(tcp)
                }
            }
        };
        let _kept = Kept::from_children(stream.as_fd());
        Ok(Connection { _kept, stream, input: BytesMut::new(), output: BytesMut::new() })
    }

    /// Where to write; what is written leaves with [`Connection::poll_flush`].
    pub(super) fn output(&mut self) -> &mut BytesMut {
        &mut self.output
    }

    /// Is everything that was written on its way?
    pub(super) fn is_flushed(&self) -> bool {
        self.output.is_empty()
    }

    /// Sends what was written.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.output.is_empty() {
            let sent = ready!(Pin::new(&mut self.stream).poll_write(cx, &self.output))?;
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.output.advance(sent);
        }
        // TLS may still hold some of it.
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    /// The next frame.
    pub(super) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Value>> {
        loop {
            let frame = resp::decode(&mut self.input);
            let not_resp = |it: NotResp| io::Error::new(io::ErrorKind::InvalidData, it.to_string());
            if let Some(frame) = frame.map_err(not_resp)? {
                return Poll::Ready(Ok(frame));
            }
            self.input.reserve(READ_BYTES);
            let read = pin!(self.stream.read_buf(&mut self.input));
            if ready!(read.poll(cx))? == 0 {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }

    /// Sends what was written, and waits for the next frame.
    pub(super) async fn next(&mut self) -> io::Result<Value> {
        std::future::poll_fn(|cx| {
            if let Poll::Ready(Err(error)) = self.poll_flush(cx) {
                return Poll::Ready(Err(error));
            }
            self.poll_frame(cx)
        })
        .await
    }

    /// Ends the connection in peace: nothing is unanswered, so nothing can run later (R9).
    pub(super) fn close_in_peace(self) {
        let tcp = match &self.stream {
            Stream::Tcp(tcp) => tcp,
            Stream::Tls(tls) => tls.get_ref().0,
            Stream::Unix(_) => return,
        };
        // If it fails, the end is a reset, which hurts nobody either.
        let _ = SockRef::from(tcp).set_linger(None);
    }
}

/// From the start a socket that is closed is reset, however that comes about: also by a panic, or by
/// the process's end as far as the system lets it (R9).
fn prepare(tcp: &TcpStream) -> io::Result<()> {
    tcp.set_nodelay(true)?;
    let socket = SockRef::from(tcp);
    socket.set_linger(Some(Duration::ZERO))?;
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(15))
        .with_interval(Duration::from_secs(5));
    socket.set_tcp_keepalive(&keepalive)
}

async fn encrypt(tcp: TcpStream, host: &str) -> io::Result<TlsStream<TcpStream>> {
    let invalid = |_| io::Error::new(io::ErrorKind::InvalidInput, "no host name for TLS");
    let name = ServerName::try_from(host.to_owned()).map_err(invalid)?;
    TlsConnector::from(tls_config()?).connect(name, tcp).await
}

/// Trusts whom the system trusts (`SSL_CERT_FILE` names others). Read once: it takes milliseconds.
fn tls_config() -> io::Result<Arc<ClientConfig>> {
    static CONFIG: OnceLock<Arc<ClientConfig>> = OnceLock::new();
    if let Some(config) = CONFIG.get() {
        return Ok(config.clone());
    }
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    let (known, _) = roots.add_parsable_certificates(found.certs);
    if known == 0 {
        let why = found.errors.first().map_or_else(String::new, |error| format!(": {error}"));
        return Err(io::Error::other(format!("the system has no certificates to trust{why}")));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(CONFIG.get_or_init(|| Arc::new(config)).clone())
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Tcp(tcp) => tcp.as_fd(),
            Stream::Unix(unix) => unix.as_fd(),
            Stream::Tls(tls) => tls.get_ref().0.as_fd(),
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Tcp(tcp) => Pin::new(tcp).poll_read(cx, buffer),
            Stream::Unix(unix) => Pin::new(unix).poll_read(cx, buffer),
            Stream::Tls(tls) => Pin::new(tls).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Tcp(tcp) => Pin::new(tcp).poll_write(cx, bytes),
            Stream::Unix(unix) => Pin::new(unix).poll_write(cx, bytes),
            Stream::Tls(tls) => Pin::new(tls).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Tcp(tcp) => Pin::new(tcp).poll_flush(cx),
            Stream::Unix(unix) => Pin::new(unix).poll_flush(cx),
            Stream::Tls(tls) => Pin::new(tls).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Tcp(tcp) => Pin::new(tcp).poll_shutdown(cx),
            Stream::Unix(unix) => Pin::new(unix).poll_shutdown(cx),
            Stream::Tls(tls) => Pin::new(tls).poll_shutdown(cx),
        }
    }
}
