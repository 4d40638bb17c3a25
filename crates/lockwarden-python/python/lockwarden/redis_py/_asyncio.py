"""In the place of ``redis.asyncio.lock.Lock``."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Awaitable, Optional, Type, TypeVar

from .. import _clients
from .._errors import Busy, Deadlock, Error, Guarded, Timeout
from .._redis_errors import LockNotOwnedError, translated
from . import _arguments, _tokens
from ._shared import Base

Self = TypeVar("Self", bound="AsyncLock")


class AsyncLock(Base):
    """A lock as ``redis.asyncio.lock.Lock``, for ``client.lock(…, lock_class=AsyncLock)`` or made as that one is; all else
    is said at :class:`Lock`.

    Many tasks may share one object: each releases only what it has acquired itself, unless another one gave it nothing to
    do but to release. A task that is cancelled leaves neither a lock nor a place in the queue.
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
        self.local = _tokens.OfTask() if self.thread_local else _tokens.Shared()

    async def __aenter__(self: Self) -> Self:
        if await self.acquire():
            return self
        raise self._unable()

    async def __aexit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        try:
            await self.release()
        except Error as failed:
            self._not_released(failed, error)

    async def acquire(
        self,
        blocking: Optional[bool] = None,
        blocking_timeout: Optional[float] = None,
        token: Any = None,
    ) -> bool:
        """As :meth:`Lock.acquire`."""
        if blocking is None:
            blocking = self.blocking
        if blocking_timeout is None:
            blocking_timeout = self.blocking_timeout
        with translated():
            value = self._new_token(token)
            if not await self._acquire(value, _arguments.wait(blocking, blocking_timeout)):
                return False
        self.local.acquired(value)
        return True

    async def do_acquire(self, token: Any) -> bool:
        """One try."""
        with translated():
            return await self._acquire(_clients.encoded(self.redis, token), 0.0)

    async def _acquire(self, token: bytes, wait: Optional[float]) -> bool:
        await self._warden._opened()
        began = time.monotonic()
        try:
            try:
                guard = await self._acquiring(token, wait, self._owner()).wait_async()
            except Deadlock:
                if wait is None:
                    raise
                # It is not for ever.
                left = max(0.0, wait - (time.monotonic() - began))
                guard = await self._acquiring(token, left, None).wait_async()
        except (Busy, Timeout, Guarded) as refused:
            return self._not_acquired(refused)
        return self._acquired(token, guard)

    async def locked(self) -> bool:
        """Is the key there, whoever holds it?"""
        with translated():
            name = self._name
        try:
            return (await _clients.get(self.redis, name)) is not None
        except UnicodeDecodeError:
            return True

    async def owned(self) -> bool:
        """Is the key's value this object's token?"""
        with translated():
            name = self._name
        try:
            value = await _clients.get(self.redis, name)
        except UnicodeDecodeError as error:
            value = error.object
        return self._owns(value)

    async def release(self) -> None:
        """Gives it back; it goes on if it is cancelled. The token is kept until the store has answered (C04)."""
        token = self._token("Cannot release an unlocked lock")
        try:
            await self.do_release(token)
        except LockNotOwnedError:
            self.local.ended(token)
            raise
        self.local.ended(token)

    async def do_release(self, expected_token: Any) -> None:
        """Releases what has this token, wherever it was acquired."""
        with self._releasing(expected_token) as releasing:
            await self._warden._opened()
            await releasing.wait_async()

    # As in redis-py, what is wrong with these two is told when they are called, not when they are awaited.

    def extend(self, additional_time: float, replace_ttl: bool = False) -> Awaitable[bool]:
        """Adds so many s to what is left, or with ``replace_ttl`` sets them from now on."""
        self._check_extends()
        return self.do_extend(additional_time, replace_ttl)

    async def do_extend(self, additional_time: float, replace_ttl: bool) -> bool:
        """The same, without a look at the arguments."""
        with translated():
            length = _arguments.extension("additional_time", additional_time)
            await self._warden._opened()
            await self._extending(length, "replace" if replace_ttl else "add").wait_async()
        return True

    def reacquire(self) -> Awaitable[bool]:
        """Sets the whole timeout from now on."""
        self._check_reacquires()
        return self.do_reacquire()

    async def do_reacquire(self) -> bool:
        """The same, without a look at the arguments."""
        with translated():
            length = _arguments.extension("a timeout", self.timeout)
            await self._warden._opened()
            await self._extending(length, "set").wait_async()
        return True
