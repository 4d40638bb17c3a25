"""In the place of ``redis.lock.Lock``."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Optional, Type, TypeVar

from .. import _clients
from .._errors import Busy, Deadlock, Error, Guarded, Timeout
from .._redis_errors import LockNotOwnedError, translated
from . import _arguments, _tokens
from ._shared import Base

Self = TypeVar("Self", bound="Lock")


class Lock(Base):
    """A lock as ``redis.lock.Lock``, for ``client.lock(…, lock_class=Lock)`` or made as that one is.

    It waits in a queue, first come, first served, and is told when it is its turn: ``sleep`` is taken and not used. A
    ``timeout`` is not renewed. Without one the key has no TTL, and the lock is free all the same once its process has died.
    """

    def __init__(
        self,
        redis: Any,
        name: Any,
        timeout: Optional[float] = None,
        sleep: float = 0.1,
        blocking: bool = True,
        blocking_timeout: Optional[float] = None,
        thread_local: bool = True,
        raise_on_release_error: bool = True,
    ) -> None:
        super().__init__(
            redis,
            name,
            timeout,
            sleep,
            blocking,
            blocking_timeout,
            thread_local,
            raise_on_release_error,
        )
        self.local = _tokens.OfThread() if self.thread_local else _tokens.Shared()

    def __enter__(self: Self) -> Self:
        if self.acquire():
            return self
        raise self._unable()

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        try:
            self.release()
        except Error as failed:
            self._not_released(failed, error)

    @_arguments.in_the_order_of_redis_py
    def acquire(
        self,
        sleep: Optional[float] = None,
        blocking: Optional[bool] = None,
        blocking_timeout: Optional[float] = None,
        token: Any = None,
    ) -> bool:
        """True once it is acquired; False: not at once without ``blocking``, or not within ``blocking_timeout`` s.

        ``token`` is the key's value, bytes or what the client makes such of; else a random one is made. If a wait without
        limit could never end, it raises :class:`~lockwarden.Deadlock`.
        """
        if blocking is None:
            blocking = self.blocking
        if blocking_timeout is None:
            blocking_timeout = self.blocking_timeout
        with translated():
            value = self._new_token(token)
            if not self._acquire(value, _arguments.wait(blocking, blocking_timeout)):
                return False
        self.local.acquired(value)
        return True

    def do_acquire(self, token: Any) -> bool:
        """One try."""
        with translated():
            return self._acquire(_clients.encoded(self.redis, token), 0.0)

    def _acquire(self, token: bytes, wait: Optional[float]) -> bool:
        began = time.monotonic()
        try:
            try:
                guard = self._acquiring(token, wait, self._owner()).wait()
            except Deadlock:
                if wait is None:
                    raise
                # It is not for ever.
                left = max(0.0, wait - (time.monotonic() - began))
                guard = self._acquiring(token, left, None).wait()
        except (Busy, Timeout, Guarded) as refused:
            return self._not_acquired(refused)
        return self._acquired(token, guard)

    def locked(self) -> bool:
        """Is the key there, whoever holds it?"""
        with translated():
            name = self._name
        try:
            return _clients.get(self.redis, name) is not None
        except UnicodeDecodeError:
            return True

    def owned(self) -> bool:
        """Is the key's value this object's token?"""
        with translated():
            name = self._name
        try:
            value = _clients.get(self.redis, name)
        except UnicodeDecodeError as error:
            value = error.object
        return self._owns(value)

    def release(self) -> None:
        """Gives it back. The token is kept until the store has answered, so that it can be tried again (C04)."""
        token = self._token("Cannot release a lock that's not owned or is already unlocked.")
        try:
            self.do_release(token)
        except LockNotOwnedError:
            self.local.ended(token)
            raise
        self.local.ended(token)

    def do_release(self, expected_token: Any) -> None:
        """Releases what has this token, wherever it was acquired."""
        with self._releasing(expected_token) as releasing:
            releasing.wait()

    def extend(self, additional_time: float, replace_ttl: bool = False) -> bool:
        """Adds so many s to what is left, or with ``replace_ttl`` sets them from now on."""
        self._check_extends()
        return self.do_extend(additional_time, replace_ttl)

    def do_extend(self, additional_time: float, replace_ttl: bool) -> bool:
        """The same, without a look at the arguments."""
        with translated():
            length = _arguments.extension("additional_time", additional_time)
            self._extending(length, "replace" if replace_ttl else "add").wait()
        return True

    def reacquire(self) -> bool:
        """Sets the whole timeout from now on."""
        self._check_reacquires()
        return self.do_reacquire()

    def do_reacquire(self) -> bool:
        """The same, without a look at the arguments."""
        with translated():
            length = _arguments.extension("a timeout", self.timeout)
            self._extending(length, "set").wait()
        return True
