"""The errors of the drop-ins: those of this package, which are those of redis-py at the same time."""

from __future__ import annotations

import contextlib
from typing import Any, Dict, Iterator, Optional, Type

from redis import exceptions as theirs

from . import _errors as ours


class LockError(ours.Error, theirs.LockError):
    """What redis-py calls a ``LockError``."""

    message: str

    def __init__(
        self,
        message: str = "",
        *,
        retry_helps: bool = False,
        facts: Optional[Dict[str, Any]] = None,
    ) -> None:
        super().__init__(message, retry_helps=retry_helps, facts=facts)
        self.lock_name = self.facts.get("name")


class LockNotOwnedError(LockError, ours.LockLost, theirs.LockNotOwnedError):
    """The key's value is another by now, or the key is gone."""

    code = ours.LockLost.code


class ReleasedOrLost(LockNotOwnedError, ours.ReleasedOrLost):
    code = ours.ReleasedOrLost.code


class Endless(LockNotOwnedError, ours.Endless):
    """The key has no TTL that could be extended."""

    code = ours.Endless.code


class NotHeld(LockError, ours.NotHeld):
    """This object has no token."""

    code = ours.NotHeld.code


class NotAcquired(LockError, ours._Refused):
    """``with`` did not get the lock; :attr:`holder` says who has it."""

    code = ours.Busy.code


class Deadlock(LockError, ours.Deadlock):
    code = ours.Deadlock.code


class OtherMode(LockError, ours.OtherMode):
    code = ours.OtherMode.code


class Unavailable(ours.Unavailable, theirs.ConnectionError):
    pass


class Denied(ours.Denied, theirs.AuthenticationError):
    pass


class Invalid(ours.Invalid, theirs.DataError):
    pass


class InvalidType(Invalid, TypeError):
    """An argument is of a type that it cannot be."""


_KINDS: Dict[Type[ours.Error], Type[ours.Error]] = {
    ours.LockLost: LockNotOwnedError,
    ours.ReleasedOrLost: ReleasedOrLost,
    ours.NotHeld: LockNotOwnedError,
    ours.Endless: Endless,
    ours.Deadlock: Deadlock,
    ours.OtherMode: OtherMode,
    ours.Unavailable: Unavailable,
    ours.Denied: Denied,
    ours.Invalid: Invalid,
}


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Errors of the core as those of redis-py."""
    try:
        yield
    except ours.Error as error:
        kind = _KINDS.get(type(error))
        if kind is None:
            raise
        told = kind(error.message, retry_helps=error.retry_helps, facts=error.facts)
        raise told.with_traceback(error.__traceback__) from None
