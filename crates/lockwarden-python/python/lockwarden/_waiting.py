"""Waiting in event loops: results come by a mailbox, whose descriptor the loop watches. Nothing polls."""

from __future__ import annotations

import asyncio
import os
import select
import sys
import threading
import weakref
from typing import Any, Callable, Dict, Optional

from ._native import Mailbox

_loops: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Mailbox]" = weakref.WeakKeyDictionary()
_hubs: "weakref.WeakKeyDictionary[Any, _Hub]" = weakref.WeakKeyDictionary()


def mailbox(loop: asyncio.AbstractEventLoop) -> Mailbox:
    """The one of this loop."""
    box = _loops.get(loop)
    if box is None:
        box = _loops[loop] = Mailbox()
        loop.add_reader(box.fileno(), box.drain)
    return box


class _Hub:
    """The mailbox of a gevent hub. Its watcher runs only while somebody waits: else it would keep the hub alive."""

    def __init__(self, hub: Any) -> None:
        self.box = Mailbox()
        self.watcher = hub.loop.io(self.box.fileno(), 1)
        self.waiting = 0

    def enter(self) -> None:
        if self.waiting == 0:
            self.watcher.start(self.box.drain)
        self.waiting += 1

    def leave(self) -> None:
        self.waiting -= 1
        if self.waiting == 0:
            self.watcher.stop()


class _Greenlet:
    """What a greenlet waits for, in the shape of a future."""

    def __init__(self) -> None:
        from gevent.event import AsyncResult

        self.result: Any = AsyncResult()
        self.given_up = False

    def done(self) -> bool:
        return self.given_up or bool(self.result.ready())

    def set_result(self, value: Any) -> None:
        self.result.set(value)

    def set_exception(self, error: BaseException) -> None:
        self.result.set_exception(error)


def is_green() -> bool:
    """Has gevent patched threads, so that a call that blocks must give way to its hub?"""
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("threading"))


def wait_green(start: Callable[[Mailbox, Any], Any]) -> Any:
    """Starts something and waits for it in gevent's hub. Whatever ends the wait gives it up."""
    import gevent

    hub = gevent.get_hub()
    its = _hubs.get(hub)
    if its is None:
        its = _hubs[hub] = _Hub(hub)
    future = _Greenlet()
    its.enter()
    try:
        started = start(its.box, future)
        try:
            return future.result.get()
        except BaseException:
            future.given_up = True
            if started is not None:
                started.cancel()
            # It was granted in the very moment in which the wait was ended, by a time limit say.
            drop = getattr(future.result.value, "drop", None)
            if drop is not None:
                drop()
            raise
    finally:
        its.leave()


class _Told:
    """What is to be called, in the shape of a future."""

    def __init__(self, call: Callable[[str], None]) -> None:
        self.call: Optional[Callable[[str], None]] = call

    def done(self) -> bool:
        return self.call is None

    def set_result(self, value: str) -> None:
        call, self.call = self.call, None
        if call is not None:
            call(value)

    def set_exception(self, error: BaseException) -> None:
        raise error


class _Teller:
    """A thread that calls those who want to hear that a lock is lost, whatever other threads do."""

    def __init__(self) -> None:
        self.box: Optional[Mailbox] = None
        self.lock = threading.Lock()

    def mailbox(self) -> Mailbox:
        with self.lock:
            if self.box is None:
                self.box = Mailbox()
                threading.Thread(
                    target=self._run, args=(self.box,), name="lockwarden-lost", daemon=True
                ).start()
            return self.box

    @staticmethod
    def _run(box: Mailbox) -> None:
        poll = select.poll()
        poll.register(box.fileno(), select.POLLIN)
        while True:
            poll.poll()
            try:
                box.drain()
            except Exception:  # a callback's own fault, which must not silence the others
                threading.excepthook(
                    threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread()))
                )


_teller = _Teller()


def when_lost(guard: Any, call: Callable[[str], None]) -> Any:
    """Has this called on a thread of its own when the lock is lost."""
    return guard.start_lost(_teller.mailbox(), _Told(call))


def when_lost_in(
    loop: asyncio.AbstractEventLoop, guard: Any, call: Callable[[str], None]
) -> Any:
    """The same in this loop."""
    return guard.start_lost(mailbox(loop), _Told(call))


def _forked() -> None:
    """Descriptors are shared with the parent: a child must not answer its bell."""
    global _loops, _hubs, _teller
    _loops = weakref.WeakKeyDictionary()
    _hubs = weakref.WeakKeyDictionary()
    _teller = _Teller()


os.register_at_fork(after_in_child=_forked)
