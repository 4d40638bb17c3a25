"""What this process holds by the values of keys, until its end.

A drop-in's lock object may be thrown away and the lock is held all the same, as in the libraries that they stand in for.
So the guards are kept here. A process that is killed has its locks freed early; one that ends cleanly leaves those that
have a timeout to it.
"""

from __future__ import annotations

import atexit
import importlib
import os
import sys
import time
from typing import TYPE_CHECKING, Any, Dict, Optional, Tuple

if TYPE_CHECKING:
    from ._native import Guard
    from ._warden import Warden

Key = Tuple[int, str, bytes]


class _Kept:
    def __init__(self) -> None:
        # With each guard: does it have a timeout, which a clean end leaves to it?
        self.guards: Dict[Key, Tuple["Guard", bool]] = {}
        self.look_at = 64
        self.ends_tidily = False

    def tidy(self) -> None:
        """Forgets what has ended by itself."""
        for key, (guard, _) in list(self.guards.items()):
            if not guard.held:
                self.guards.pop(key, None)
                # Whoever knows its value may have extended it: it must not be released.
                guard.leave()
        self.look_at = max(64, 2 * len(self.guards))


_kept = _Kept()


def keep(warden: "Warden", name: str, value: bytes, guard: "Guard", has_timeout: bool) -> None:
    """Holds it until it is released by its value, or the process ends."""
    _end_tidily()
    before = _kept.guards.pop((id(warden), name, value), None)
    if before is not None:
        # Its value was in use before: that one was lost, or this one would not have been granted.
        before[0].leave()
    if len(_kept.guards) >= _kept.look_at:
        _kept.tidy()
    _kept.guards[id(warden), name, value] = guard, has_timeout


def believed_until(warden: "Warden", name: str, value: bytes) -> Optional[float]:
    """Until when (monotonic) nobody else can have what this process holds; None: it holds nothing, or is not sure."""
    found = _kept.guards.get((id(warden), name, value))
    if found is None or not found[0].check():
        return None
    return time.monotonic() + found[0].remaining


def forget(warden: "Warden", name: str, value: bytes) -> None:
    """It was released by its value."""
    _kept.guards.pop((id(warden), name, value), None)


def leave(warden: "Warden", name: str, value: bytes) -> None:
    """Nobody renews it any more: it keeps what is left of its timeout."""
    found = _kept.guards.pop((id(warden), name, value), None)
    if found is not None:
        found[0].leave()


def _leave_all() -> None:
    for key, (guard, has_timeout) in list(_kept.guards.items()):
        if has_timeout:
            _kept.guards.pop(key, None)
            guard.leave()


def _end_tidily() -> None:
    if _kept.ends_tidily:
        return
    _kept.ends_tidily = True
    process: Any = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        # Processes of multiprocessing end without the interpreter's own end.
        util: Any = importlib.import_module("multiprocessing.util")
        util.Finalize(None, _end_of_child, args=(os.getpid(),), exitpriority=0)


def _end_of_child(pid: int) -> None:
    from . import _warden

    if os.getpid() == pid:
        _leave_all()
        # It waits until the store has heard of that.
        _warden._close_all()


# The wardens are closed behind this, for they were made known before.
atexit.register(_leave_all)


def _forked() -> None:
    """A child holds nothing of its parent's. It knows the values, as in the libraries."""
    global _kept
    _kept = _Kept()


os.register_at_fork(after_in_child=_forked)
