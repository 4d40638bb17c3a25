"""The errors of python-redis-lock, under their names."""

from __future__ import annotations

from .. import _errors as ours


class AlreadyAcquired(ours.Error, RuntimeError):
    """The key has this lock's id already."""

    code = "busy"


class NotAcquired(ours.NotHeld):
    """The key has another id, or is gone."""


class AlreadyStarted(ours.Error, RuntimeError):
    """Never raised here: there is no thread that renews."""


class TimeoutNotUsable(ours.Invalid, RuntimeError):
    """A timeout, and not blocking."""


class InvalidTimeout(ours.Invalid, RuntimeError):
    """A timeout below 0."""


class TimeoutTooLarge(ours.Invalid, RuntimeError):
    """A timeout above expire."""


class NotExpirable(ours.Endless, RuntimeError):
    """The key has no TTL that could be extended."""
