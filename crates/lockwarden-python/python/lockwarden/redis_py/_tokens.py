"""Where a lock object remembers its token, as users of redis-py know it: ``lock.local.token``."""

from __future__ import annotations

import asyncio
import threading
import weakref
from typing import Any, MutableMapping, Optional


class Shared:
    """One token for all threads and tasks."""

    token: Any = None

    def acquired(self, token: bytes) -> None:
        self.token = token

    def ended(self, token: Any) -> None:
        """This one proves nothing any more."""
        if self.token == token:
            self.token = None


class OfThread(threading.local):
    """Each thread has its own, and under gevent each greenlet."""

    token: Any = None

    def acquired(self, token: bytes) -> None:
        self.token = token

    def ended(self, token: Any) -> None:
        if self.token == token:
            self.token = None


class OfTask(threading.local):
    """One token for all tasks of a thread, as in redis-py, but for a task that has acquired the lock itself: it sees its
    own, and so never releases what another task has acquired since through the same object (C06)."""

    def __init__(self) -> None:
        self._latest: Any = None
        self._own: MutableMapping[Any, Any] = weakref.WeakKeyDictionary()

    @property
    def token(self) -> Any:
        task = _task()
        return self._own.get(task, self._latest) if task is not None else self._latest

    @token.setter
    def token(self, token: Any) -> None:
        """Set from outside it is everybody's."""
        self._own.clear()
        self._latest = token

    def acquired(self, token: bytes) -> None:
        self._latest = token
        task = _task()
        if task is not None:
            self._own[task] = token

    def ended(self, token: Any) -> None:
        for task, own in list(self._own.items()):
            if own == token:
                del self._own[task]
        if self._latest == token:
            self._latest = None


def _task() -> Optional[Any]:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
