"""Who acquires: a thread, a greenlet, an asyncio task, or whoever ``owner()`` says.

An owner does one thing after the other. So it may hold a lock more than once, and an acquire that would wait for its own
owner is refused at once (G7).
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import itertools
import os
import sys
import threading
import uuid
import weakref
from typing import Any, Iterator, Optional

_given: contextvars.ContextVar[Optional[str]] = contextvars.ContextVar(
    "lockwarden_owner", default=None
)
_count = itertools.count(1)


class _OfThread(threading.local):
    text: Optional[str] = None


_threads = _OfThread()
_tasks: "weakref.WeakKeyDictionary[Any, str]" = weakref.WeakKeyDictionary()
_greenlets: "weakref.WeakKeyDictionary[Any, str]" = weakref.WeakKeyDictionary()


def _of_process() -> str:
    # `lockwarden run` passes its owner on: what it runs is a part of it.
    above = os.environ.get("LOCKWARDEN_OWNER", "")
    own = uuid.uuid4().hex[:16]
    return f"{above}/{own}" if above else own


_process = _of_process()


def _forked() -> None:
    """A forked child is somebody else, its main thread and its tasks, too."""
    global _process, _threads, _tasks, _greenlets
    _process = _of_process()
    _threads = _OfThread()
    _tasks = weakref.WeakKeyDictionary()
    _greenlets = weakref.WeakKeyDictionary()


os.register_at_fork(after_in_child=_forked)


def process() -> str:
    """This process: another text after each fork."""
    return _process


def task() -> Any:
    """The asyncio task that runs in this thread, if one does."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def greenlet_parent() -> Any:
    """The current greenlet, where gevent has patched threads; else None."""
    monkey = sys.modules.get("gevent.monkey")
    if monkey is None or not monkey.is_module_patched("threading"):
        return None
    import greenlet

    return greenlet.getcurrent()


def current() -> str:
    """The owner of what this line of execution acquires."""
    given = _given.get()
    if given is not None:
        return given
    its = task()
    if its is not None:
        return _remembered(_tasks, its, "a")
    greenlet = greenlet_parent()
    if greenlet is not None:
        return _remembered(_greenlets, greenlet, "g")
    text = _threads.text
    if text is None:
        text = _threads.text = f"{_process}.t{next(_count)}"
    return text


# What the store allows.
_LONGEST = 512


def part_of_current(part: str) -> str:
    """An owner of its own in this line of execution."""
    text = f"{current()}.{part}"
    return text if len(text) <= _LONGEST else uuid.uuid5(uuid.NAMESPACE_URL, text).hex


def _remembered(known: Any, of: Any, kind: str) -> str:
    text = known.get(of)
    if text is None:
        text = known[of] = f"{_process}.{kind}{next(_count)}"
    return str(text)


@contextlib.contextmanager
def owner(text: str) -> Iterator[None]:
    """Everything acquired inside belongs to this owner, whichever thread or task acquires it: a job's id, say.

    1 to 512 letters of ASCII, digits and ``._:@+=-``, unique among everybody who uses the store.
    """
    token = _given.set(text)
    try:
        yield
    finally:
        _given.reset(token)
