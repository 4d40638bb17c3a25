"""Things of the core that one may wait for in every way there is, each written once."""

from __future__ import annotations

import asyncio
from typing import Any, Callable, Generic, TypeVar

from . import _waiting
from ._native import Guard, Mailbox

T = TypeVar("T")


class Call(Generic[T]):
    """``now`` waits for it in a thread; ``start`` begins it for an event loop, and gives what cancels it, or None for what
    goes on although nobody waits for it any more."""

    __slots__ = ("_now", "_start")

    def __init__(self, now: Callable[[], T], start: Callable[[Mailbox, Any], Any]) -> None:
        self._now = now
        self._start = start

    def wait(self) -> T:
        """Blocks the thread, or under gevent the greenlet."""
        if _waiting.is_green():
            result: T = _waiting.wait_green(self._start)
            return result
        return self._now()

    async def wait_async(self) -> T:
        loop = asyncio.get_running_loop()
        future: "asyncio.Future[T]" = loop.create_future()
        started = self._start(_waiting.mailbox(loop), future)
        try:
            return await future
        except BaseException:
            # Cancelled, or its loop is gone.
            if started is not None:
                started.cancel()
            # It was granted in the very moment in which it was cancelled.
            if future.done() and not future.cancelled() and future.exception() is None:
                granted = future.result()
                if isinstance(granted, Guard):
                    granted.drop()
            raise
