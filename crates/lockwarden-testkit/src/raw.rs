//! A tiny blocking RESP2 client, used as the foreign client that knows nothing of Lockwarden.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// How long a reply may take, unless [`Raw::set_reply_deadline`] says otherwise.
pub const REPLY_DEADLINE: Duration = Duration::from_secs(10);

/// A reply of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// A status such as `OK`.
    Simple(String),
    /// An error; the first word is its code.
    Error(String),
    /// A whole number.
    Int(i64),
    /// A string of bytes.
    Bulk(Vec<u8>),
    /// No value: a missing string or array.
    Nil,
    /// Several values.
    Array(Vec<Value>),
}

impl Value {
    /// The text of a status or string, with bytes that are no UTF-8 replaced; `None` for other kinds.
    pub fn text(&self) -> Option<String> {
        match self {
            Value::Simple(text) => Some(text.clone()),
            Value::Bulk(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
            _ => None,
        }
    }

    /// The number of an integer reply; `None` for other kinds.
    pub fn int(&self) -> Option<i64> {
        match self {
            Value::Int(number) => Some(*number),
            _ => None,
        }
    }

    /// The message of an error reply; `None` for other kinds.
    pub fn error(&self) -> Option<&str> {
        match self {
            Value::Error(message) => Some(message),
            _ => None,
        }
    }

    /// The elements of an array; none for other kinds.
    pub fn items(&self) -> &[Value] {
        match self {
            Value::Array(items) => items,
            _ => &[],
        }
    }

    /// Whether this is the status `OK`.
    pub fn is_ok(&self) -> bool {
        matches!(self, Value::Simple(text) if text == "OK")
    }
}

impl From<&str> for Value {
    /// A string reply with this text, for comparisons.
    fn from(text: &str) -> Value {
        Value::Bulk(text.as_bytes().to_vec())
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Value {
        Value::Int(number)
    }
}

/// Why there is no reply. A server's error reply is a [`Value::Error`], not one of these.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RawError {
    /// The connection could not be opened.
    #[error("cannot connect to {address}")]
    Connect {
        /// Where to.
        address: String,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The connection failed or ended.
    #[error("the connection failed")]
    Io(#[from] io::Error),
    /// No reply within the deadline.
    #[error("no reply within {0:?}")]
    NoReply(Duration),
    /// What came is not RESP2.
    #[error("not RESP2: a line starts with {0:?}")]
    Protocol(String),
}

/// One connection.
pub struct Raw {
    stream: BufReader<Stream>,
    reply_deadline: Duration,
}

impl fmt::Debug for Raw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Raw").field("stream", self.stream.get_ref()).finish()
    }
}

impl Raw {
    /// Connects by TCP.
    ///
    /// # Errors
    /// [`RawError::Connect`].
    pub fn connect(address: SocketAddr) -> Result<Raw, RawError> {
        let stream = TcpStream::connect_timeout(&address, REPLY_DEADLINE)
            .and_then(|stream| stream.set_nodelay(true).map(|()| stream))
            .map_err(|source| RawError::Connect { address: address.to_string(), source })?;
        Raw::over(Stream::Tcp(stream))
    }

    /// Connects to a unix socket.
    ///
    /// # Errors
    /// [`RawError::Connect`].
    pub fn connect_unix(path: &Path) -> Result<Raw, RawError> {
        let stream = UnixStream::connect(path)
            .map_err(|source| RawError::Connect { address: path.display().to_string(), source })?;
        Raw::over(Stream::Unix(stream))
    }

    fn over(stream: Stream) -> Result<Raw, RawError> {
        let mut raw = Raw { stream: BufReader::new(stream), reply_deadline: REPLY_DEADLINE };
        raw.set_reply_deadline(REPLY_DEADLINE)?;
        Ok(raw)
    }

    /// How long each read may wait from now on.
    ///
    /// # Errors
    /// If the socket refuses it (zero is refused).
    pub fn set_reply_deadline(&mut self, deadline: Duration) -> Result<(), RawError> {
        self.stream.get_ref().set_read_timeout(deadline)?;
        self.reply_deadline = deadline;
        Ok(())
    }

    /// Sends a command and returns its reply; a server's error is a [`Value::Error`].
    ///
    /// # Panics
    /// If there is no reply: [`Raw::try_cmd`] is for tests that expect this.
    #[track_caller]
    pub fn cmd<A: AsRef<[u8]>>(&mut self, command: &[A]) -> Value {
        match self.try_cmd(command) {
            Ok(reply) => reply,
            Err(error) => {
                let name = command.first().map_or_else(Default::default, |name| {
                    String::from_utf8_lossy(name.as_ref()).into_owned()
                });
                panic!("{name}: {error:?}")
            }
        }
    }

    /// Sends a command and returns its reply.
    ///
    /// # Errors
    /// If there is no reply. The connection is of no use afterwards: a late reply would be taken for the
    /// next command's.
    pub fn try_cmd<A: AsRef<[u8]>>(&mut self, command: &[A]) -> Result<Value, RawError> {
        self.send(command)?;
        self.read()
    }

    /// Sends a command and does not wait.
    ///
    /// # Errors
    /// If the connection refuses it. That it does not proves nothing about the command's arrival.
    pub fn send<A: AsRef<[u8]>>(&mut self, command: &[A]) -> Result<(), RawError> {
        let mut bytes = format!("*{}\r\n", command.len()).into_bytes();
        for argument in command {
            let argument = argument.as_ref();
            bytes.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
            bytes.extend_from_slice(argument);
            bytes.extend_from_slice(b"\r\n");
        }
        self.stream.get_mut().write_all(&bytes)?;
        Ok(())
    }

    /// Waits for the next reply, or for the next message of a subscription.
    ///
    /// # Errors
    /// [`RawError::NoReply`] if none comes in time; another if the connection ends.
    pub fn read(&mut self) -> Result<Value, RawError> {
        let deadline = self.reply_deadline;
        read_value(&mut self.stream).map_err(|error| match error {
            RawError::Io(e)
                if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) =>
            {
                RawError::NoReply(deadline)
            }
            other => other,
        })
    }
}

fn read_value(stream: &mut impl BufRead) -> Result<Value, RawError> {
    let mut line = Vec::new();
    stream.read_until(b'\n', &mut line)?;
    let Some(line) = line.strip_suffix(b"\r\n") else {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    };
    let line = String::from_utf8_lossy(line);
    let protocol_error = || RawError::Protocol(line.chars().take(40).collect());
    let mut rest = line.chars();
    let kind = rest.next().ok_or_else(protocol_error)?;
    let rest = rest.as_str();
    let number = || rest.parse::<i64>().map_err(|_| protocol_error());
    Ok(match kind {
        '+' => Value::Simple(rest.to_owned()),
        '-' => Value::Error(rest.to_owned()),
        ':' => Value::Int(number()?),
        '$' | '*' => match (kind, usize::try_from(number()?)) {
            (_, Err(_)) => Value::Nil,
            ('$', Ok(length)) => {
                let mut bytes = vec![0; length + 2];
                stream.read_exact(&mut bytes)?;
                bytes.truncate(length);
                Value::Bulk(bytes)
            }
            (_, Ok(length)) => {
                Value::Array((0..length).map(|_| read_value(stream)).collect::<Result<_, _>>()?)
            }
        },
        _ => return Err(protocol_error()),
    })
}

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    fn set_read_timeout(&self, deadline: Duration) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.set_read_timeout(Some(deadline)),
            Stream::Unix(stream) => stream.set_read_timeout(Some(deadline)),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(bytes),
            Stream::Unix(stream) => stream.read(bytes),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(bytes),
            Stream::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_reply_is_read() {
        let mut bytes: &[u8] =
            b"+OK\r\n-ERR no\r\n:-7\r\n$3\r\na\r\n\r\n$-1\r\n*-1\r\n*2\r\n:1\r\n*1\r\n$0\r\n\r\n";
        let mut next = || read_value(&mut bytes).unwrap();
        assert!(next().is_ok());
        assert_eq!(next().error(), Some("ERR no"));
        assert_eq!(next().int(), Some(-7));
        assert_eq!(next().text().as_deref(), Some("a\r\n"));
        assert_eq!(next(), Value::Nil);
        assert_eq!(next(), Value::Nil);
        assert_eq!(next().items(), &[Value::Int(1), Value::Array(vec![Value::from("")])]);
        assert!(matches!(read_value(&mut bytes), Err(RawError::Io(_))), "the end is an error");
    }

    #[test]
    fn what_is_not_resp2_is_an_error() {
        for bytes in [&b"HTTP/1.1\r\n"[..], b":x\r\n", b"\r\n"] {
            assert!(matches!(read_value(&mut &bytes[..]), Err(RawError::Protocol(_))), "{bytes:?}");
        }
        assert!(matches!(read_value(&mut &b"$5\r\nab"[..]), Err(RawError::Io(_))));
    }
}
