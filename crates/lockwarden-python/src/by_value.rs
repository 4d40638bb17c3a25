//! What the drop-ins do with a lock by the value of its key alone, whoever holds it.

use crate::{
    errors,
    lock::duration,
    mailbox::{Address, Mailbox, Outcome, Started},
    warden::Warden,
};
use lockwarden::Extension;
use pyo3::prelude::*;

/// `add` to what is left, `replace` that, or `set` it, also where there is no end yet.
fn extension(py: Python<'_>, how: &str) -> PyResult<Extension> {
    match how {
        "add" => Ok(Extension::Add),
        "replace" => Ok(Extension::Replace),
        "set" => Ok(Extension::Set),
        _ => Err(errors::invalid(py, format!("an extension is add, replace or set, not {how}"))),
    }
}

/// Changes when a lock ends; how many s it has from now on.
#[pyfunction]
pub(crate) fn extend_by_value(
    py: Python<'_>,
    warden: &Warden,
    name: &str,
    value: &[u8],
    length: f64,
    how: &str,
) -> PyResult<f64> {
    let (length, how) = (duration(py, "an extension", length)?, extension(py, how)?);
    let warden = warden.connected(py)?;
    let call = warden.as_async().extend_by_value(name, value, length, how);
    Ok(Warden::ask(py, &warden, call)?.as_secs_f64())
}

/// The same for an event loop. It goes on if the future is cancelled.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "two are about where the answer goes")]
pub(crate) fn start_extend_by_value(
    py: Python<'_>,
    warden: &Warden,
    name: String,
    value: Vec<u8>,
    length: f64,
    how: &str,
    mailbox: &Mailbox,
    future: Py<PyAny>,
) -> PyResult<()> {
    let (length, how) = (duration(py, "an extension", length)?, extension(py, how)?);
    let warden = warden.connected(py)?;
    let (address, caller) = (Address::new(mailbox, future), warden.as_async().clone());
    let extended =
        async move { Outcome::Extended(caller.extend_by_value(&name, &value, length, how).await) };
    Started::spawn(py, &warden, address, extended).map(drop)
}

/// Releases a lock.
#[pyfunction]
pub(crate) fn release_by_value(
    py: Python<'_>,
    warden: &Warden,
    name: &str,
    value: &[u8],
) -> PyResult<()> {
    let warden = warden.connected(py)?;
    Warden::ask(py, &warden, warden.as_async().release_by_value(name, value))
}

/// The same for an event loop. It goes on if the future is cancelled.
#[pyfunction]
pub(crate) fn start_release_by_value(
    py: Python<'_>,
    warden: &Warden,
    name: String,
    value: Vec<u8>,
    mailbox: &Mailbox,
    future: Py<PyAny>,
) -> PyResult<()> {
    let warden = warden.connected(py)?;
    let (address, caller) = (Address::new(mailbox, future), warden.as_async().clone());
    let released = async move { Outcome::Done(caller.release_by_value(&name, &value).await) };
    Started::spawn(py, &warden, address, released).map(drop)
}
