//! RESP, versions 2 and 3: what a connection writes and reads.
//!
//! Own, and small, for two reasons. No client library of the field offers a connection without a
//! layer that reconnects, retries or resubscribes by itself, which R8 forbids; and under load the
//! frames of a batch are most of what the client's processor does.

use bytes::{BufMut, Bytes, BytesMut};
use std::fmt;

/// One frame from the server.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    /// A string, or a status.
    Text(Bytes),
    /// An error: its first word is its code.
    Error(Bytes),
    /// A whole number.
    Int(i64),
    /// Anything that says "nothing".
    Nil,
    /// Several values; a map is its keys and values in turn.
    Array(Vec<Value>),
    /// What the server sends without having been asked (RESP3).
    Push(Vec<Value>),
}

impl Value {
    /// The bytes of a text.
    pub(super) fn bytes(&self) -> Option<&Bytes> {
        match self {
            Value::Text(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// The bytes of a text, if they are UTF-8.
    pub(super) fn text(&self) -> Option<&str> {
        self.bytes().and_then(|bytes| std::str::from_utf8(bytes).ok())
    }

    /// The number.
    pub(super) fn int(&self) -> Option<i64> {
        match self {
            Value::Int(number) => Some(*number),
            _ => None,
        }
    }
}

/// What came is not RESP: this is no Redis, or something in between garbles it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NotResp;

impl fmt::Display for NotResp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("what it answers is not the protocol of Redis")
    }
}

/// How deep values may be nested; ours reach two.
const MAX_DEPTH: usize = 16;
/// The longest text, as in Redis.
const MAX_TEXT: usize = 512 << 20;
/// The most elements of one aggregate.
const MAX_ELEMENTS: usize = 64 << 20;

/// Takes the next frame off the buffer; none: it has not come whole yet.
pub(super) fn decode(input: &mut BytesMut) -> Result<Option<Value>, NotResp> {
    let Some(end) = frame_end(input, 0, 0)? else { return Ok(None) };
    let frame = input.split_to(end).freeze();
    let mut at = 0;
    build(&frame, &mut at).map(Some)
}

/// A head line: its kind, its number or length (texts: 0), and where the line ends.
struct Head<'a> {
    kind: u8,
    rest: &'a [u8],
    end: usize,
}

fn head(input: &[u8], at: usize) -> Result<Option<Head<'_>>, NotResp> {
    let Some(line) = input.get(at..) else { return Ok(None) };
    let Some(length) = line.iter().position(|byte| *byte == b'\n') else { return Ok(None) };
    if length < 2 || line[length - 1] != b'\r' {
        return Err(NotResp);
    }
    Ok(Some(Head { kind: line[0], rest: &line[1..length - 1], end: at + length + 1 }))
}

fn number(digits: &[u8]) -> Result<i64, NotResp> {
    let (negative, digits) = match digits {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        rest => (false, rest),
    };
    if digits.is_empty() || digits.len() > 19 {
        return Err(NotResp);
    }
    let mut value: i64 = 0;
    for digit in digits {
        let digit = digit.wrapping_sub(b'0');
        if digit > 9 {
            return Err(NotResp);
        }
        value = value.checked_mul(10).ok_or(NotResp)?.checked_add(digit.into()).ok_or(NotResp)?;
    }
    Ok(if negative { -value } else { value })
}

/// A length; none: "nothing".
fn length(digits: &[u8], most: usize) -> Result<Option<usize>, NotResp> {
    match number(digits)? {
        -1 => Ok(None),
        length => {
            let length = usize::try_from(length).map_err(|_| NotResp)?;
            if length <= most { Ok(Some(length)) } else { Err(NotResp) }
        }
    }
}

/// How many values follow the head of an aggregate.
fn elements(head: &Head<'_>) -> Result<Option<usize>, NotResp> {
    let count = length(head.rest, MAX_ELEMENTS)?;
    Ok(if matches!(head.kind, b'%' | b'|') { count.map(|count| count * 2) } else { count })
}

/// Where the frame that begins at `at` ends; none: not here yet.
fn frame_end(input: &[u8], at: usize, depth: usize) -> Result<Option<usize>, NotResp> {
    let Some(line) = head(input, at)? else { return Ok(None) };
    match line.kind {
        b'+' | b'-' | b':' | b'_' | b'#' | b',' | b'(' => Ok(Some(line.end)),
        b'$' | b'!' | b'=' => {
            let end = line.end + length(line.rest, MAX_TEXT)?.map_or(0, |length| length + 2);
            Ok((end <= input.len()).then_some(end))
        }
        b'*' | b'~' | b'>' | b'%' | b'|' if depth < MAX_DEPTH => {
            let mut end = line.end;
            // Attributes come before the frame that they are about.
            let own = usize::from(line.kind == b'|');
            for _ in 0..elements(&line)?.unwrap_or(0) + own {
                match frame_end(input, end, depth + 1)? {
                    Some(next) => end = next,
                    None => return Ok(None),
                }
            }
            Ok(Some(end))
        }
        _ => Err(NotResp),
    }
}

/// Builds the value at `at` of a whole frame.
fn build(frame: &Bytes, at: &mut usize) -> Result<Value, NotResp> {
    let Some(line) = head(frame, *at)? else { return Err(NotResp) };
    let start = *at + 1;
    *at = line.end;
    Ok(match line.kind {
        b':' => Value::Int(number(line.rest)?),
        b'+' | b',' | b'(' => Value::Text(frame.slice(start..line.end - 2)),
        b'-' => Value::Error(frame.slice(start..line.end - 2)),
        b'#' => Value::Int(i64::from(line.rest == b"t")),
        b'_' => Value::Nil,
        b'$' | b'!' | b'=' => match length(line.rest, MAX_TEXT)? {
            None => Value::Nil,
            Some(length) => {
                let bytes = frame.slice(line.end..line.end + length);
                *at += length + 2;
                if line.kind == b'!' { Value::Error(bytes) } else { Value::Text(bytes) }
            }
        },
        kind => {
            let Some(count) = elements(&line)? else { return Ok(Value::Nil) };
            let mut values = Vec::with_capacity(count);
            for _ in 0..count {
                values.push(build(frame, at)?);
            }
            match kind {
                b'>' => Value::Push(values),
                b'|' => build(frame, at)?,
                _ => Value::Array(values),
            }
        }
    })
}

/// Begins a command of so many arguments, its name included.
pub(super) fn begin(out: &mut BytesMut, arguments: usize) {
    out.put_u8(b'*');
    digits(out, arguments as u64);
    out.put_slice(b"\r\n");
}

/// Adds an argument.
pub(super) fn argument(out: &mut BytesMut, bytes: &[u8]) {
    argument_of(out, &[bytes]);
}

/// Adds an argument that stands in parts.
pub(super) fn argument_of(out: &mut BytesMut, parts: &[&[u8]]) {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    out.reserve(length + 24);
    out.put_u8(b'$');
    digits(out, length as u64);
    out.put_slice(b"\r\n");
    for part in parts {
        out.put_slice(part);
    }
    out.put_slice(b"\r\n");
}

/// Adds a number as an argument.
pub(super) fn argument_number(out: &mut BytesMut, number: u64) {
    let (text, start) = decimal(number);
    argument(out, &text[start..]);
}

/// A whole command.
pub(super) fn command(out: &mut BytesMut, arguments: &[&[u8]]) {
    begin(out, arguments.len());
    for bytes in arguments {
        argument(out, bytes);
    }
}

fn digits(out: &mut BytesMut, number: u64) {
    let (text, start) = decimal(number);
    out.put_slice(&text[start..]);
}

fn decimal(mut number: u64) -> ([u8; 20], usize) {
    let mut text = [0; 20];
    let mut start = text.len();
    loop {
        start -= 1;
        text[start] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return (text, start);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(bytes: &[u8]) -> Result<Vec<Value>, NotResp> {
        let mut input = BytesMut::from(bytes);
        let mut values = Vec::new();
        while let Some(value) = decode(&mut input)? {
            values.push(value);
        }
        assert!(input.is_empty(), "{input:?}");
        Ok(values)
    }

    fn text(text: &str) -> Value {
        Value::Text(Bytes::copy_from_slice(text.as_bytes()))
    }

    #[test]
    fn every_kind_of_frame_is_read() {
        let bytes =
            b"+OK\r\n-ERR no\r\n:-7\r\n$3\r\na\r\n\r\n$-1\r\n*-1\r\n_\r\n#t\r\n,1.5\r\n(12\r\n\
            *2\r\n:1\r\n*1\r\n$0\r\n\r\n%1\r\n+k\r\n:2\r\n>2\r\n+p\r\n:3\r\n~1\r\n:4\r\n\
            !3\r\nE x\r\n=5\r\ntxt:a\r\n|1\r\n+ttl\r\n:9\r\n:5\r\n";
        let expected = [
            text("OK"),
            Value::Error(Bytes::from_static(b"ERR no")),
            Value::Int(-7),
            text("a\r\n"),
            Value::Nil,
            Value::Nil,
            Value::Nil,
            Value::Int(1),
            text("1.5"),
            text("12"),
            Value::Array(vec![Value::Int(1), Value::Array(vec![text("")])]),
            Value::Array(vec![text("k"), Value::Int(2)]),
            Value::Push(vec![text("p"), Value::Int(3)]),
            Value::Array(vec![Value::Int(4)]),
            Value::Error(Bytes::from_static(b"E x")),
            text("txt:a"),
            Value::Int(5),
        ];
        assert_eq!(all(bytes), Ok(expected.to_vec()));
    }

    #[test]
    fn what_is_not_resp_is_refused() {
        for bytes in [
            &b"HTTP/1.1 400\r\n"[..],
            b":x\r\n",
            b"\r\n",
            b"$-2\r\n",
            b"*99999999999\r\n",
            b":99999999999999999999\r\n",
            b"x\n",
        ] {
            assert_eq!(all(bytes), Err(NotResp), "{bytes:?}");
        }
        let nested = "*1\r\n".repeat(40);
        assert_eq!(decode(&mut BytesMut::from(nested.as_bytes())), Err(NotResp));
    }

    proptest! {
        /// However the bytes are cut into packets, the same frames come out; and no bytes panic.
        #[test]
        fn frames_survive_every_cut(cut in 0_usize..60, bytes in any::<Vec<u8>>()) {
            let whole = b"*3\r\n:1\r\n$4\r\nabcd\r\n*1\r\n_\r\n+x\r\n>1\r\n$2\r\n\r\n\r\n";
            let cut = cut.min(whole.len());
            let mut input = BytesMut::new();
            let mut values = Vec::new();
            for part in [&whole[..cut], &whole[cut..]] {
                input.extend_from_slice(part);
                while let Some(value) = decode(&mut input).unwrap() {
                    values.push(value);
                }
            }
            prop_assert_eq!(Ok(values), all(whole));
            let _ = decode(&mut BytesMut::from(&bytes[..]));
        }

        /// What is written as a command is read back as an array of its arguments.
        #[test]
        fn commands_are_arrays_of_texts(parts in prop::collection::vec(any::<Vec<u8>>(), 1..5), n: u64) {
            let mut out = BytesMut::new();
            begin(&mut out, parts.len() + 1);
            for part in &parts {
                argument_of(&mut out, &[&part[..part.len() / 2], &part[part.len() / 2..]]);
            }
            argument_number(&mut out, n);
            let mut expected: Vec<Value> =
                parts.iter().map(|part| Value::Text(Bytes::copy_from_slice(part))).collect();
            expected.push(text(&n.to_string()));
            prop_assert_eq!(decode(&mut out), Ok(Some(Value::Array(expected))));
        }
    }
}
