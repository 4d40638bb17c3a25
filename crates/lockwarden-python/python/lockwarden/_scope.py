"""What a piece of work holds (a web request, say), so that somebody can see to it at its end.

Knows nothing of stores: it only remembers what was acquired in its context and not given back.
"""

from __future__ import annotations

import contextvars
import weakref
from typing import Any, Dict, List, Optional, Tuple

from . import _owners

_current: contextvars.ContextVar[Optional["Scope"]] = contextvars.ContextVar(
    "lockwarden_scope", default=None
)


def current() -> Optional["Scope"]:
    """The innermost scope around this line of execution."""
    return _current.get()


class Scope:
    """Remembers what is acquired inside. Each thing in it has ``names`` and a ``release()``."""

    def __init__(self) -> None:
        # By identity, in order of acquisition; each with the task that acquired it, if it is another than ours.
        self._things: Dict[int, Tuple[Any, Optional["weakref.ref[Any]"]]] = {}
        self._task: Any = None
        self._token: Optional[contextvars.Token[Optional[Scope]]] = None

    def __enter__(self) -> "Scope":
        self._token = _current.set(self)
        self._task = _owners.task()
        return self

    def __exit__(self, *_: Any) -> None:
        if self._token is not None:
            _current.reset(self._token)
            self._token = None

    def add(self, thing: Any) -> None:
        task = _owners.task()
        others = None if task is None or task is self._task else weakref.ref(task)
        self._things[id(thing)] = (thing, others)

    def discard(self, thing: Any) -> None:
        self._things.pop(id(thing), None)

    def left(self) -> List[Any]:
        """What is still in it, the latest first. A task that was begun inside and goes on keeps what it acquired."""
        return [thing for thing, others in self._things.values() if not _goes_on(others)][::-1]


def _goes_on(others: Optional["weakref.ref[Any]"]) -> bool:
    task = others() if others is not None else None
    return task is not None and not task.done()
