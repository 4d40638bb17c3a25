"""What both locks have in common: everything but the waiting."""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
import uuid
from typing import TYPE_CHECKING, Any, Dict, Iterator, Optional

from .. import _by_value, _clients, _kept, _owners
from .._errors import Error
from .._redis_errors import LockError, LockNotOwnedError, NotAcquired, NotHeld, translated
from . import _arguments

if TYPE_CHECKING:
    from .._calls import Call
    from .._native import Guard
    from .._warden import Warden

log = logging.getLogger("lockwarden")

_count = itertools.count(1)


class Base:
    """Arguments as attributes, as redis-py has them; they may be changed between calls."""

    local: Any

    def __init__(
        self,
        redis: Any,
        name: Any,
        timeout: Optional[float],
        sleep: float,
        blocking: bool,
        blocking_timeout: Optional[float],
        thread_local: bool,
        raise_on_release_error: bool,
    ) -> None:
        self.redis = redis
        self.name = name
        self.timeout = timeout
        self.sleep = sleep
        self.blocking = blocking
        self.blocking_timeout = blocking_timeout
        self.thread_local = bool(thread_local)
        self.raise_on_release_error = raise_on_release_error
        self._number = next(_count)
        # Releases whose outcome is not known: until when what they were about was held for certain.
        self._unsure: Dict[bytes, float] = {}
        # Why the last acquire got nothing, for people.
        self._refused: Optional[Error] = None

    def register_scripts(self) -> None:
        """There are none to register; subclasses may call it."""

    @property
    def _warden(self) -> "Warden":
        return _clients.warden_of(self.redis)

    @property
    def _name(self) -> str:
        return _clients.name_of(self.redis, self.name)

    def _owner(self) -> Optional[str]:
        """Who acquires, if nobody else can end the wait: this object, in this thread or task. A timeout ends by itself, and
        a lock without thread_local is made to be released by somebody else."""
        if self.timeout or not self.thread_local:
            return None
        return _owners.part_of_current(f"l{self._number}")

    def _new_token(self, token: Any) -> bytes:
        if token is None:
            return uuid.uuid4().hex.encode()
        return _clients.encoded(self.redis, token)

    def _acquiring(
        self, token: bytes, wait: Optional[float], owner: Optional[str]
    ) -> "Call[Guard]":
        lease = _arguments.lease(self.timeout)
        return _by_value.acquire(
            self._warden, self._name, token, lease=lease, wait=wait, owner=owner
        )

    def _acquired(self, token: bytes, guard: "Guard") -> bool:
        _kept.keep(self._warden, self._name, token, guard, bool(self.timeout))
        self._refused = None
        return True

    def _not_acquired(self, refused: Error) -> bool:
        self._refused = refused
        return False

    def _unable(self) -> NotAcquired:
        """What ``with`` raises."""
        refused = self._refused
        said = "Unable to acquire lock within the time specified"
        if refused is None:
            return NotAcquired(said, facts={"name": self.name}, retry_helps=True)
        return NotAcquired(
            f"{said}: {refused}", facts=refused.facts, retry_helps=refused.retry_helps
        )

    def _token(self, what: str) -> Any:
        token = self.local.token
        if token is None:
            raise NotHeld(what, facts={"name": self.name})
        return token

    @contextlib.contextmanager
    def _releasing(self, token: Any) -> "Iterator[Call[None]]":
        """A release, to be waited for inside. One that finds nothing is a success if one before it, whose outcome nobody
        knows, was sent while the lock was held, and its lease is not over (R31)."""
        with translated():
            warden, name = self._warden, self._name
            value = _clients.encoded(self.redis, token)
            before = self._unsure.get(value)
            until = before or _kept.believed_until(warden, name, value)
        try:
            with translated():
                yield _by_value.release(warden, name, value)
        except LockNotOwnedError:
            self._unsure.pop(value, None)
            if before is None or time.monotonic() >= before:
                raise
        except BaseException:
            if until is not None:
                self._unsure[value] = until
            raise
        else:
            self._unsure.pop(value, None)
        _kept.forget(warden, name, value)

    def _extending(self, length: float, how: str) -> "Call[float]":
        token = _clients.encoded(self.redis, self.local.token)
        return _by_value.extend(self._warden, self._name, token, length, how)

    def _check_extends(self) -> None:
        self._token("Cannot extend an unlocked lock")
        if self.timeout is None:
            raise LockError("Cannot extend a lock with no timeout", facts={"name": self.name})

    def _check_reacquires(self) -> None:
        self._token("Cannot reacquire an unlocked lock")
        if not self.timeout:
            raise LockError("Cannot reacquire a lock with no timeout", facts={"name": self.name})

    def _owns(self, value: Any) -> bool:
        token = self.local.token
        if token is None:
            return False
        return _clients.got(self.redis, value) == _clients.encoded(self.redis, token)

    def _not_released(self, failed: Error, error: Optional[BaseException]) -> None:
        """Leaving ``with`` could not release. What the body raised is never hidden (C03)."""
        is_ignored = isinstance(failed, LockError) and not self.raise_on_release_error
        if error is None and not is_ignored:
            raise failed
        log.warning("%s: %s", self.name, failed)

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.{type(self).__name__} {self.name!r}>"
