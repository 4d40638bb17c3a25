"""Waiting in event loops: results come by a mailbox, whose descriptor the loop watches. Nothing polls."""

from __future__ import annotations

import asyncio
import os
import select
import sys
import threading
import weakref
from typing import Any, Callable, Optional

from ._native import Mailbox

_loops: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Mailbox]" = weakref.WeakKeyDictionary()
_hubs: "weakref.WeakKeyDictionary[Any, _Hub]" = weakref.WeakKeyDictionary()


def mailbox(loop: asyncio.AbstractEventLoop) -> Mailbox:
    """The one of this loop."""
    box = _loops.get(loop)
    if box is None:
        for other, its in list(_loops.items()):
            if other.is_closed():
                # What is granted to it would be nobody's, for ever.
                its.close()
                del _loops[other]
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
            # What came after the hub had looked last.
            self.box.drain()


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


class Listening:
    """Somebody to be called when a lock is lost, for as long as this object lives."""

    def __init__(self, call: Callable[[str], None]) -> None:
        self.call: Optional[Callable[[str], None]] = call
        self.started: Any = None

    def cancel(self) -> None:
        self.call = None
        if self.started is not None:
            self.started.cancel()


class _Told:
    """The same in the shape of a future. The core holds this one, which keeps nothing alive: else whoever listens to their
    own lock would never be collected, nor would the lock."""

    def __init__(self, listening: Listening) -> None:
        self.listening = weakref.ref(listening)

    def done(self) -> bool:
        listening = self.listening()
        return listening is None or listening.call is None

    def set_result(self, reason: Optional[str]) -> None:
        listening = self.listening()
        # Without a reason it was released.
        if listening is not None and reason is not None:
            call, listening.call = listening.call, None
            if call is not None:
                call(reason)

    def set_exception(self, error: BaseException) -> None:
        """The warden was closed: there is nothing to be lost any more."""


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


def when_lost(guard: Any, call: Callable[[str], None]) -> Listening:
    """Has this called on a thread of its own when the lock is lost."""
    return _listen(_teller.mailbox(), guard, call)


def when_lost_in(
    loop: asyncio.AbstractEventLoop, guard: Any, call: Callable[[str], None]
) -> Listening:
    """The same in this loop."""
    return _listen(mailbox(loop), guard, call)


def _listen(box: Mailbox, guard: Any, call: Callable[[str], None]) -> Listening:
    listening = Listening(call)
    listening.started = guard.start_lost(box, _Told(listening))
    return listening


def give_way(call: Callable[..., Any], *arguments: Any) -> Any:
    """Calls what may block: under gevent beside the hub, which goes on meanwhile."""
    if is_green():
        import gevent

        return gevent.get_hub().threadpool.apply(call, arguments)
    return call(*arguments)


def _forked() -> None:
    """Descriptors are shared with the parent: a child must not answer its bell."""
    global _loops, _hubs, _teller
    _loops = weakref.WeakKeyDictionary()
    _hubs = weakref.WeakKeyDictionary()
    _teller = _Teller()


os.register_at_fork(after_in_child=_forked)
