//! Writes through gates, as an application does: for the `taker`, so that a real process writes late.

use lockwarden::gate::{file, redis, sql};
use postgres::NoTls;
use rusqlite::OptionalExtension;
use std::{
    error::Error,
    io::{Read, Write},
    net::TcpStream,
    path::Path,
};

use crate::raw::{Raw, Value};

/// A statement or program of docs/GATES.md, by the mark before it: what is documented is what is tested.
///
/// # Panics
/// If there is none.
#[must_use]
pub fn documented(mark: &str) -> &'static str {
    let page = include_str!("../../../docs/GATES.md");
    let text = page.split_once(&format!("<!-- {mark} -->\n```")).and_then(|(_, rest)| {
        let (_language, rest) = rest.split_once('\n')?;
        Some(rest.split_once("```")?.0)
    });
    text.unwrap_or_else(|| panic!("docs/GATES.md has no {mark:?}"))
}

/// Writes a value with a fence to what `gate` and `place` name.
///
/// | gate | place |
/// |---|---|
/// | `redis` | address of the server; key `r` |
/// | `sqlite` | path of the database; row `r` of the documented table |
/// | `postgres` | as in [`crate::postgres::Postgres::url`], with `_` for blanks; the same row |
/// | `file` | path |
/// | `http` | address of the server; PUT /r |
/// | `none` | path: without any gate, to show that a test can fail |
///
/// # Errors
/// What the gate says.
pub fn put(gate: &str, place: &str, fence: u64, value: &str) -> Result<(), Box<dyn Error>> {
    match gate {
        "redis" => put_redis(place, fence, value),
        "sqlite" => put_sqlite(place, fence, value),
        "postgres" => put_postgres(&place.replace('_', " "), fence, value),
        "file" => Ok(file::Gate::at(place).replace(fence, value.as_bytes())?),
        "http" => put_http(place, fence, value),
        "none" => Ok(std::fs::write(place, value)?),
        other => Err(format!("unknown gate {other:?}").into()),
    }
}

/// Runs the script of the Redis gate.
///
/// # Errors
/// What the gate says.
///
/// # Panics
/// If the reply is not what the script promises.
pub fn send(raw: &mut Raw, write: &redis::Write) -> Result<(), lockwarden::gate::Error> {
    let call = write.call()?;
    let mut command: Vec<&[u8]> = vec![b"EVAL", redis::SCRIPT.as_bytes(), b"2"];
    command.extend(call.keys.iter().map(Vec::as_slice));
    command.extend(call.arguments.iter().map(Vec::as_slice));
    let reply = raw.cmd(&command);
    let [Value::Int(code), Value::Int(newest), words] = reply.items() else {
        panic!("{reply:?}");
    };
    call.read(*code, *newest, &words.text().expect("words"))
}

fn put_redis(place: &str, fence: u64, value: &str) -> Result<(), Box<dyn Error>> {
    let mut raw = Raw::connect(place.parse()?)?;
    Ok(send(&mut raw, &redis::Write::set("r", fence, value))?)
}

fn put_sqlite(place: &str, fence: u64, value: &str) -> Result<(), Box<dyn Error>> {
    let db = rusqlite::Connection::open(Path::new(place))?;
    let rows = db.execute(documented("sql: update"), (value, sql::number(fence)?, "r"))?;
    if rows == 0 {
        let newest = db.query_row(documented("sql: newest"), ["r"], |row| row.get(0)).optional()?;
        return Err(sql::refused("the row r", fence, newest).into());
    }
    Ok(())
}

fn put_postgres(place: &str, fence: u64, value: &str) -> Result<(), Box<dyn Error>> {
    let mut db = postgres::Client::connect(place, NoTls)?;
    let rows = db.execute(documented("sql: update"), &[&value, &sql::number(fence)?, &"r"])?;
    if rows == 0 {
        let newest = db.query_opt(documented("sql: newest"), &[&"r"])?.map(|row| row.get(0));
        return Err(sql::refused("the row r", fence, newest).into());
    }
    Ok(())
}

fn put_http(place: &str, fence: u64, value: &str) -> Result<(), Box<dyn Error>> {
    let headers = format!("lockwarden-name: x\r\nlockwarden-fence: {fence}\r\n");
    match request(place, "PUT", &headers, value)? {
        (200, _) => Ok(()),
        (status, text) => Err(format!("{status} {text}").into()),
    }
}

/// One HTTP request to `/r`, on a connection of its own: status and the answer's text.
///
/// # Errors
/// If there is no answer.
pub fn request(
    place: &str,
    method: &str,
    headers: &str,
    body: &str,
) -> Result<(u16, String), Box<dyn Error>> {
    let mut stream = TcpStream::connect(place)?;
    let length = body.len();
    write!(
        stream,
        "{method} /r HTTP/1.1\r\nhost: {place}\r\nconnection: close\r\ncontent-length: {length}\r\n\
         {headers}\r\n{body}"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, text) = answer.split_once("\r\n\r\n").ok_or("no answer")?;
    let status = head.split(' ').nth(1).ok_or("no status")?.parse()?;
    Ok((status, text.to_owned()))
}
