//! The options of a lock, checked when it is acquired.

use crate::errors;
use lockwarden::{HandOver, Lock, Mode};
use pyo3::prelude::*;
use std::time::Duration;

/// How one lock, or several at once, are to be acquired.
#[pyclass(frozen, module = "lockwarden._native")]
pub(crate) struct Options {
    names: Vec<(String, Mode)>,
    handed_over: Option<HandOver>,
    lease: Option<Duration>,
    grace: Option<Duration>,
    label: Option<String>,
    tags: Vec<(String, String)>,
    class: Option<String>,
    at_least: Option<Duration>,
    at_most: Option<Duration>,
    delay: Option<Duration>,
    value: Option<Vec<u8>>,
    renew: bool,
    endless: bool,
}

/// How one acquisition waits, and who it is.
pub(crate) struct Ask {
    /// In s; none: for ever.
    pub(crate) wait: Option<f64>,
    pub(crate) owner: Option<String>,
    pub(crate) site: Option<String>,
    /// The key's value, for this one.
    pub(crate) value: Option<Vec<u8>>,
}

/// A number of seconds as a duration. The library says what range it must be in.
pub(crate) fn duration(py: Python<'_>, what: &str, seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|error| errors::invalid(py, format!("{what} of {seconds} s: {error}")))
}

#[pymethods]
impl Options {
    /// `names`: pairs of a name and how many permits of how many: `None` is exclusive, `(0, 0)` shared.
    #[new]
    #[pyo3(signature = (names, *, handed_over=None, lease=None, grace=None, label=None, tags=Vec::new(), order_class=None,
        at_least=None, at_most=None, delay=None, value=None, renew=true, endless=false))]
    #[expect(clippy::too_many_arguments, reason = "they are keyword arguments in Python")]
    fn new(
        py: Python<'_>,
        names: Vec<(String, Option<(u32, u32)>)>,
        handed_over: Option<&str>,
        lease: Option<f64>,
        grace: Option<f64>,
        label: Option<String>,
        tags: Vec<(String, String)>,
        order_class: Option<String>,
        at_least: Option<f64>,
        at_most: Option<f64>,
        delay: Option<f64>,
        value: Option<Vec<u8>>,
        renew: bool,
        endless: bool,
    ) -> PyResult<Options> {
        let mode = |permits| match permits {
            None => Mode::Exclusive,
            Some((0, 0)) => Mode::Shared,
            Some((count, of)) => Mode::Permits { count, of },
        };
        let optional = |what, seconds: Option<f64>| {
            seconds.map(|seconds| duration(py, what, seconds)).transpose()
        };
        let handed_over = handed_over
            .map(|text| text.parse::<HandOver>())
            .transpose()
            .map_err(|error| errors::raised(py, &error.into()))?;
        Ok(Options {
            names: names.into_iter().map(|(name, permits)| (name, mode(permits))).collect(),
            handed_over,
            lease: optional("a lease", lease)?,
            grace: optional("a grace", grace)?,
            label,
            tags,
            class: order_class,
            at_least: optional("a minimum", at_least)?,
            at_most: optional("a maximum", at_most)?,
            delay: optional("a lock-delay", delay)?,
            value,
            renew,
            endless,
        })
    }
}

impl Options {
    pub(crate) fn lock(
        &self,
        py: Python<'_>,
        warden: &lockwarden::Warden,
        ask: &Ask,
    ) -> PyResult<Lock> {
        let mut lock = match &self.handed_over {
            Some(given) => warden.adopt(given),
            None => warden.lock_all::<&str>([]),
        };
        for (name, mode) in &self.names {
            lock = lock.and_as(name, *mode);
        }
        match ask.wait {
            None => {}
            Some(0.0) => lock = lock.no_wait(),
            Some(wait) => lock = lock.wait_for(duration(py, "a wait", wait)?),
        }
        type With<T> = fn(Lock, T) -> Lock;
        let durations: [(_, With<Duration>); 5] = [
            (self.lease, Lock::lease),
            (self.grace, Lock::grace),
            (self.at_least, Lock::hold_at_least),
            (self.at_most, Lock::hold_at_most),
            (self.delay, Lock::lock_delay),
        ];
        for (duration, set) in durations {
            if let Some(duration) = duration {
                lock = set(lock, duration);
            }
        }
        let texts: [(_, With<&str>); 4] = [
            (&self.label, Lock::label),
            (&self.class, Lock::class),
            (&ask.owner, Lock::owner),
            (&ask.site, Lock::site),
        ];
        for (text, set) in texts {
            if let Some(text) = text {
                lock = set(lock, text);
            }
        }
        for (key, value) in &self.tags {
            lock = lock.tag(key, value);
        }
        if let Some(value) = ask.value.as_ref().or(self.value.as_ref()) {
            lock = lock.drop_in_value(value);
        }
        if !self.renew {
            lock = lock.without_renewal();
        }
        if self.endless {
            lock = lock.endless();
        }
        Ok(lock)
    }
}
