"""What a piece of work holds (a web request, say), so that somebody can see to it at its end.

Knows nothing of stores: it only remembers what was acquired in its context and not given back.
"""

from __future__ import annotations

import contextvars
from typing import Any, Dict, List, Optional

_current: contextvars.ContextVar[Optional["Scope"]] = contextvars.ContextVar(
    "lockwarden_scope", default=None
)


def current() -> Optional["Scope"]:
    """The innermost scope around this line of execution."""
    return _current.get()


class Scope:
    """Remembers what is acquired inside. Each thing in it has ``names`` and a ``release()``."""

    def __init__(self) -> None:
        # By identity, in order of acquisition.
        self._things: Dict[int, Any] = {}
        self._token: Optional[contextvars.Token[Optional[Scope]]] = None

    def __enter__(self) -> "Scope":
        self._token = _current.set(self)
        return self

    def __exit__(self, *_: Any) -> None:
        if self._token is not None:
            _current.reset(self._token)
            self._token = None

    def add(self, thing: Any) -> None:
        self._things[id(thing)] = thing

    def discard(self, thing: Any) -> None:
        self._things.pop(id(thing), None)

    def left(self) -> List[Any]:
        """What is still in it, the latest first."""
        return list(self._things.values())[::-1]
