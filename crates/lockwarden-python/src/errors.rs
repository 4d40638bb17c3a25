//! Errors of the library as Python's exceptions, which are classes of `lockwarden._errors`.

use crate::views;
use lockwarden::{Effect, Error, StoreError};
use pyo3::{
    prelude::*,
    sync::PyOnceLock,
    types::{PyDict, PyList},
};

/// The function that makes an exception from a code, a message and facts.
fn make(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static MAKE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    MAKE.import(py, "lockwarden._errors", "make")
}

/// The exception that says the same as this error, with its facts.
pub(crate) fn raised(py: Python<'_>, error: &Error) -> PyErr {
    let made = facts(py, error).and_then(|facts| {
        make(py)?.call1((error.code(), error.to_string(), error.retry_helps(), facts))
    });
    // If that fails, its own error is what there is to say.
    made.map_or_else(|failed| failed, PyErr::from_value)
}

/// An argument that breaks its rule.
pub(crate) fn invalid(py: Python<'_>, message: String) -> PyErr {
    raised(py, &Error::Invalid(message))
}

/// What was to be released, converted or handed over is not held by this guard any more.
pub(crate) fn not_held(py: Python<'_>, names: &[String]) -> PyErr {
    let message =
        format!("the lock {} is not held by this guard: it was released", names.join(", "));
    let facts = PyDict::new(py);
    let made = facts
        .set_item("name", names.first())
        .and_then(|()| make(py)?.call1(("not_held", message, false, facts)));
    made.map_or_else(|failed| failed, PyErr::from_value)
}

fn facts<'py>(py: Python<'py>, error: &Error) -> PyResult<Bound<'py, PyDict>> {
    let facts = PyDict::new(py);
    let effect = match error.effect() {
        Effect::NotApplied => "not_applied",
        Effect::Unknown => "unknown",
    };
    facts.set_item("effect", effect)?;
    match error {
        Error::Busy { name, told } | Error::TimedOut { name, told, .. } => {
            facts.set_item("name", name.as_str())?;
            if let Some(refusal) = told {
                views::refusal(&facts, refusal)?;
            }
        }
        Error::Deadlock { name, cycle } => {
            facts.set_item("name", name.as_str())?;
            let steps = cycle.iter().map(|step| {
                let dict = views::party(py, &step.party)?;
                dict.set_item("name", step.name.as_str())?;
                dict.set_item("held_s", views::seconds(step.held_ms))?;
                Ok(dict)
            });
            let steps: Vec<_> = steps.collect::<PyResult<_>>()?;
            facts.set_item("cycle", PyList::new(py, steps)?)?;
        }
        Error::OtherMode { name, asked, in_use } => {
            facts.set_item("name", name.as_str())?;
            facts.set_item("asked", asked.to_string())?;
            facts.set_item("in_use", in_use.to_string())?;
        }
        Error::Guarded { name, left } => {
            facts.set_item("name", name.as_str())?;
            facts.set_item("left_s", left.as_secs_f64())?;
        }
        Error::Lost { name, loss } => {
            facts.set_item("name", name.as_str())?;
            facts.set_item("reason", views::loss(*loss))?;
        }
        Error::TooDeep { name, .. }
        | Error::NotHandedOver { name, .. }
        | Error::Foreign { name }
        | Error::Endless { name }
        | Error::ReleasedOrLost { name } => facts.set_item("name", name.as_str())?,
        Error::Store(StoreError::Unavailable { place, trouble, detail, .. }) => {
            facts.set_item("place", place)?;
            facts.set_item("trouble", trouble.to_string())?;
            facts.set_item("detail", detail)?;
        }
        Error::Store(StoreError::Denied { place, detail }) => {
            facts.set_item("place", place)?;
            facts.set_item("detail", detail)?;
        }
        Error::Store(StoreError::Invalid { .. }) | Error::Invalid(_) | Error::Closed => {}
    }
    if let Error::TimedOut { waited, .. } = error {
        facts.set_item("waited_s", waited.as_secs_f64())?;
    }
    Ok(facts)
}
