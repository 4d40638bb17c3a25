//! What a store tells, as Python's dictionaries: the same words as the command line's JSON, with times in seconds.

use lockwarden::{
    HoldState, HolderView, LockView, Loss, Mode, Party, Reason, Refusal, error::why_lost,
};
use pyo3::{
    prelude::*,
    types::{PyBytes, PyDict, PyList},
};

pub(crate) fn seconds(ms: u64) -> f64 {
    ms as f64 / 1_000.0
}

/// Why a lock was lost, in words.
pub(crate) fn loss(loss: Loss) -> &'static str {
    why_lost(loss)
}

pub(crate) fn party<'py>(py: Python<'py>, party: &Party) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("owner", &*party.owner)?;
    dict.set_item("label", &*party.label)?;
    dict.set_item("host", &*party.host)?;
    dict.set_item("pid", party.pid())?;
    dict.set_item("site", &*party.site)?;
    let tags = PyDict::new(py);
    for tag in &*party.tags {
        tags.set_item(&*tag.key, &*tag.value)?;
    }
    dict.set_item("tags", tags)?;
    Ok(dict)
}

fn mode(mode: Mode) -> (&'static str, Option<(u32, u32)>) {
    match mode {
        Mode::Exclusive => ("exclusive", None),
        Mode::Shared => ("shared", None),
        Mode::Permits { count, of } => ("permits", Some((count, of))),
    }
}

fn holder<'py>(
    py: Python<'py>,
    view: &HolderView,
    alive: Option<bool>,
) -> PyResult<Bound<'py, PyDict>> {
    let dict = match &view.record {
        None => PyDict::new(py),
        Some(record) => party(py, &record.party)?,
    };
    dict.set_item("foreign", view.record.is_none())?;
    dict.set_item("token", PyBytes::new(py, view.token.as_bytes()))?;
    dict.set_item("lease_left_s", view.ttl_ms.map(seconds))?;
    if let Some(record) = &view.record {
        dict.set_item("fence", record.fence)?;
        dict.set_item("lease_s", seconds(record.lease_ms))?;
        dict.set_item("held_s", seconds(record.held_ms))?;
        let (mode, permits) = mode(record.mode);
        dict.set_item("mode", mode)?;
        dict.set_item("permits", permits)?;
        let state = match record.state {
            HoldState::Held => "held",
            HoldState::Revoked => "revoked",
            HoldState::Cooling => "cooling",
            HoldState::HandedOver => "handed_over",
        };
        dict.set_item("state", state)?;
    }
    if let Some(alive) = alive {
        dict.set_item("alive", alive)?;
    }
    Ok(dict)
}

/// Who is in the way, and why.
pub(crate) fn refusal(facts: &Bound<'_, PyDict>, refusal: &Refusal) -> PyResult<()> {
    let py = facts.py();
    let view = refusal.holder.as_ref().map(|it| holder(py, it, None)).transpose()?;
    facts.set_item("holder", view)?;
    facts.set_item("position", refusal.position)?;
    let reason = match refusal.reason {
        Reason::Held => "held",
        Reason::Kept => "kept",
        Reason::Guard { .. } => "guarded",
    };
    facts.set_item("reason", reason)
}

/// All that stands about a name.
pub(crate) fn lock<'py>(
    py: Python<'py>,
    name: &str,
    view: &LockView,
) -> PyResult<Bound<'py, PyDict>> {
    let first = view.holder.iter().map(|it| holder(py, it, view.holder_alive));
    let others = view.beside.iter().map(|(it, alive)| holder(py, it, Some(*alive)));
    let holders: Vec<_> = first.chain(others).collect::<PyResult<_>>()?;
    let queue = view.queue.iter().map(|ticket| {
        let dict = party(py, &ticket.party)?;
        dict.set_item("waited_s", seconds(ticket.waited_ms))?;
        dict.set_item("left_s", ticket.left_ms.map(seconds))?;
        dict.set_item("alive", ticket.alive)?;
        dict.set_item("several", ticket.several)?;
        let (mode, permits) = mode(ticket.mode);
        dict.set_item("mode", mode)?;
        dict.set_item("permits", permits)?;
        Ok(dict)
    });
    let queue: Vec<_> = queue.collect::<PyResult<_>>()?;
    let dict = PyDict::new(py);
    dict.set_item("name", name)?;
    dict.set_item("holders", PyList::new(py, holders)?)?;
    dict.set_item("queue", PyList::new(py, queue)?)?;
    Ok(dict)
}
