"""Wardens: one for each store and process."""

from __future__ import annotations

import asyncio
import atexit
import os
import pathlib
import threading
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Tuple, Union

from . import _native, _store, _waiting
from ._errors import Invalid
from ._lock import Lock, Seconds, optional_seconds

Names = Iterable[Union[str, Lock, Tuple[str, Any]]]


def connect(
    url: Any = None, *, label: Optional[str] = None, process_watch: bool = True
) -> "Warden":
    """The warden of a store: the same one for the same store, however often this is called.

    ``url``: ``redis://…``, ``rediss://…``, ``unix://…``, ``file:DIR``, ``memory:``; or a client or a connection pool of
    redis-py, sync or async, whose server, database and login are used. Without it ``LOCKWARDEN_URL``, else the embedded
    store of this user.

    ``label`` is what people read about this process everywhere. Without ``process_watch`` a holder that was killed on
    this machine is followed after its grace, as if it were elsewhere, and not at once.
    """
    warden = _known(_store.url_of(url), label, process_watch)
    _waiting.give_way(warden._native.open)
    warden._opened_in = os.getpid()
    return warden


_lock = threading.Lock()
_wardens: Dict[Tuple[str, Optional[str], bool], "Warden"] = {}


def _known(url: str, label: Optional[str], process_watch: bool) -> "Warden":
    if label is not None and not isinstance(label, str):
        raise Invalid(f"a label is a text, not {label!r}")
    store = _store.canonical(url)
    # A directory is the same one wherever the program goes.
    url = store if store.startswith("file:") else url
    key = (store, label, bool(process_watch))
    with _lock:
        warden = _wardens.get(key)
        if warden is None or warden.closed:
            warden = _wardens[key] = Warden(url, label or _store.default_label(), process_watch)
        return warden


@atexit.register
def _close_all() -> None:
    """What is still held is released: nobody has to wait for the leases of a program that has ended."""
    _native.exiting()
    for warden in list(_wardens.values()):
        warden.close()


def _forked() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forked)


class Warden:
    """A client of one store, with one link for all locks, threads and event loops of the process. Heartbeat and renewal
    run on a thread of its own, which Python code cannot hold up. Made by :func:`connect`.

    In a forked child it connects anew when it is used first; what the parent holds, the child does not.
    """

    def __init__(self, url: str, label: str, process_watch: bool) -> None:
        self._native = _native.Warden(url, label=label, process_watch=process_watch)
        self.closed = False
        # The process that it is connected in.
        self._opened_in: Optional[int] = None

    @property
    def _is_open(self) -> bool:
        return self._opened_in == os.getpid()

    async def _opened(self) -> None:
        """Connects, if it must, beside the event loop, which does not wait for a slow server."""
        if not self._is_open:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(None, self._native.open)
            self._opened_in = os.getpid()

    @property
    def place(self) -> str:
        """Where the store is, without its password."""
        return self._native.place()

    def lock(self, name: str, **options: Any) -> Lock:
        """A lock that one holds alone. Options: see :meth:`lock_all`."""
        return self._lock([(name, None)], options)

    def shared_lock(self, name: str, **options: Any) -> Lock:
        """The same lock, held together with other readers: first come, first served, and no writer starves."""
        return self._lock([(name, (0, 0))], options)

    def semaphore(self, name: str, value: int, *, permits: int = 1, **options: Any) -> Lock:
        """``permits`` of the ``value`` permits there are; everybody must say the same ``value``."""
        return self._lock([(name, (_count("permits", permits), _count("value", value)))], options)

    def lock_all(self, names: Iterable[Any], **options: Any) -> Lock:
        """Several locks at once: all or none, and nothing is held while it waits, so that no order has to be kept.

        Each is a name, or a pair of a name and a mode: ``"exclusive"``, ``"shared"`` or ``(permits, value)``.

        Options, each with its default:

        - ``wait``: how long ``with`` waits, in s; None: for ever; 0: one try
        - ``lease`` (30 s): how long a grant lives without renewal; ``grace`` (3 s): what a crash on another machine
          costs the next holder
        - ``hold_at_least``, ``hold_at_most``, ``lock_delay``: none
        - ``label``, ``tags``: what people are told of it; ``order_class``: what kind of lock it is to the order watch
        - ``owner``: who acquires; None: the thread, the greenlet or the asyncio task. ``reentrant=False``: nobody enters
          again what they hold, and each acquisition stands for itself; then there is no search for deadlocks
        - ``on_lost``: called with the reason when it is lost; ``cancel_on_lost``: cancels the asyncio task then
        - ``if_lost``: what leaving ``with`` does then: ``"raise"`` :class:`LockLost` (unless the body raises something
          itself), ``"log"`` or ``"ignore"``
        """
        if isinstance(names, (str, bytes)):
            raise Invalid(f"lock_all wants several names, not one text: {names!r}")
        return self._lock([_wanted(item) for item in names], options)

    def adopt(self, given: str, **options: Any) -> Lock:
        """Locks that :meth:`Held.hand_over` gave. They can be adopted once."""
        if not isinstance(given, str):
            raise Invalid(f"what was handed over is a text, not {given!r}")
        return self._lock([], options, handed_over=given)

    def show(self, name: str) -> Dict[str, Any]:
        """What stands about a name: its ``holders`` and its ``queue``, in order."""
        shown: Dict[str, Any] = _waiting.give_way(self._native.show, _name(name))
        return shown

    def names(self) -> List[str]:
        """The names of all locks that are held or waited for. (On Redis, of other libraries' locks those whose value
        looks like a lock's.)"""
        found: List[str] = _waiting.give_way(self._native.names)
        return found

    def revoke(self, name: str, token: bytes, *, delayed: bool = False) -> float:
        """Takes a lock away from the holder with this token, and says in how many s it ends. ``delayed``: the holder
        stops believing first."""
        return float(_waiting.give_way(self._native.revoke, _name(name), _token(token), delayed))

    def recall(self, name: str, token: bytes) -> None:
        """Asks the holder with this token to give the lock up; it decides."""
        _waiting.give_way(self._native.recall, _name(name), _token(token))

    def close(self) -> None:
        """Releases everything and ends."""
        self.closed = True
        self._native.close()

    def __enter__(self) -> "Warden":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _lock(
        self,
        names: List[Tuple[str, Optional[Tuple[int, int]]]],
        options: Mapping[str, Any],
        handed_over: Optional[str] = None,
    ) -> Lock:
        return _make(self, [(_name(name), mode) for name, mode in names], handed_over, **options)


def _make(
    warden: Warden,
    names: List[Tuple[str, Optional[Tuple[int, int]]]],
    handed_over: Optional[str],
    *,
    wait: Optional[Seconds] = None,
    lease: Optional[Seconds] = None,
    grace: Optional[Seconds] = None,
    hold_at_least: Optional[Seconds] = None,
    hold_at_most: Optional[Seconds] = None,
    lock_delay: Optional[Seconds] = None,
    label: Optional[str] = None,
    tags: Optional[Mapping[str, str]] = None,
    order_class: Optional[str] = None,
    owner: Optional[str] = None,
    reentrant: bool = True,
    on_lost: Optional[Callable[[str], Any]] = None,
    cancel_on_lost: bool = False,
    if_lost: str = "raise",
) -> Lock:
    for what, text in (("a label", label), ("an order_class", order_class)):
        if text is not None and not isinstance(text, str):
            raise Invalid(f"{what} is a text, not {text!r}")
    if on_lost is not None and not callable(on_lost):
        raise Invalid(f"on_lost is called when the lock is lost, but {on_lost!r} cannot be")
    pairs = []
    for key, value in (tags or {}).items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise Invalid(f"a tag is two texts, not {key!r}: {value!r}")
        pairs.append((key, value))
    options = _native.Options(
        names,
        handed_over=handed_over,
        lease=optional_seconds("a lease", lease),
        grace=optional_seconds("a grace", grace),
        label=label,
        tags=pairs,
        order_class=order_class,
        at_least=optional_seconds("hold_at_least", hold_at_least),
        at_most=optional_seconds("hold_at_most", hold_at_most),
        delay=optional_seconds("lock_delay", lock_delay),
    )
    return Lock(
        warden,
        sorted({name for name, _ in names}),
        options,
        wait=optional_seconds("a wait", wait),
        owner=owner,
        reentrant=reentrant,
        on_lost=on_lost,
        cancel_on_lost=cancel_on_lost,
        if_lost=if_lost,
    )


def _name(name: Any) -> str:
    if isinstance(name, pathlib.PurePath):
        return str(name)
    if not isinstance(name, str):
        raise Invalid(f"a lock's name is a text, not {name!r}")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise Invalid(f"a lock's name is UTF-8, which {name!r} cannot be") from None
    return name


def _token(token: Any) -> bytes:
    if isinstance(token, str):
        return token.encode()
    if not isinstance(token, (bytes, bytearray, memoryview)):
        raise Invalid(f"a token is bytes, not {token!r}")
    return bytes(token)


def _count(what: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise Invalid(f"{what} is a whole number, not {value!r}")
    if not 1 <= value <= 1_000_000:
        raise Invalid(f"{what} is 1 to 1,000,000, not {value}")
    return value


def _wanted(item: Any) -> Tuple[str, Optional[Tuple[int, int]]]:
    if isinstance(item, tuple):
        if len(item) != 2:
            raise Invalid(f"a lock of several is a name, or a name and a mode, not {item!r}")
        name, mode = item
        if mode == "exclusive":
            return _name(name), None
        if mode == "shared":
            return _name(name), (0, 0)
        if isinstance(mode, tuple) and len(mode) == 2:
            return _name(name), (_count("permits", mode[0]), _count("value", mode[1]))
        raise Invalid(f'a mode is "exclusive", "shared" or (permits, value), not {mode!r}')
    return _name(item), None
