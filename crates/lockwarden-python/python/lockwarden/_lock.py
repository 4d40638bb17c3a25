"""Locks, and what is held of them."""

from __future__ import annotations

import asyncio
import datetime
import functools
import inspect
import logging
import os
import sys
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    List,
    Optional,
    Tuple,
    Type,
    TypeVar,
    Union,
    cast,
)

from . import _owners, _scope, _waiting
from ._errors import Busy, Error, Invalid, LockLost, NotHeld, Timeout, Unavailable

if TYPE_CHECKING:
    from ._native import Guard, Options
    from ._warden import Warden

log = logging.getLogger("lockwarden")

F = TypeVar("F", bound=Callable[..., Any])
Seconds = Union[int, float, datetime.timedelta]

_HERE = os.path.dirname(os.path.abspath(__file__))


def seconds(what: str, value: Any) -> float:
    """A length of time in s."""
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Invalid(f"{what} is a number of seconds or a timedelta, not {value!r}")
    try:
        number = float(value)
    except OverflowError:
        raise Invalid(f"{what} of {value!r} s is too long") from None
    if number != number or number < 0 or number == float("inf"):
        raise Invalid(f"{what} of {value!r} s is none: it must be finite and not negative")
    return number


def optional_seconds(what: str, value: Any) -> Optional[float]:
    return None if value is None else seconds(what, value)


_sites: Dict[Tuple[Any, int], str] = {}


def site() -> str:
    """The file and line that called into this package, for people."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    # A program has so many places that acquire and no more.
    key = (frame.f_code, frame.f_lineno)
    text = _sites.get(key)
    if text is None:
        if len(_sites) > 10_000:
            _sites.clear()
        text = _sites[key] = f"{frame.f_code.co_filename}:{frame.f_lineno}"
    return text


class Lost:
    """Tells when the lock is lost. True once it is."""

    def __init__(self, guard: "Guard") -> None:
        self._guard = guard

    def __bool__(self) -> bool:
        return self.is_set()

    def is_set(self) -> bool:
        return self._guard.loss is not None

    @property
    def reason(self) -> Optional[str]:
        """Why, in words; None: it is not lost."""
        return self._guard.loss

    def wait(self, timeout: Optional[Seconds] = None) -> bool:
        """Waits until it is lost; False: it was not within ``timeout`` s, or it was released."""
        limit = optional_seconds("a timeout", timeout)
        if self.is_set():
            return True
        if _waiting.is_green():
            import gevent

            def wait() -> Any:
                return _waiting.wait_green(self._started)

            return gevent.with_timeout(limit, wait, timeout_value=None) is not None
        return self._guard.wait_lost(limit) is not None

    async def wait_async(self) -> Optional[str]:
        """Waits until it is lost, and says why; None: it was released."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        started = self._started(_waiting.mailbox(loop), future)
        try:
            reason: Optional[str] = await future
            return reason
        finally:
            if started is not None:
                started.cancel()

    def _started(self, box: Any, future: Any) -> Any:
        started = self._guard.start_lost(box, future)
        if started is None:
            future.set_result(None)
        return started


class Held:
    """A lock that is held, or several together. What ``with`` gives, and :attr:`Lock.held`."""

    __slots__ = ("__weakref__", "_ended", "_guard", "_lock", "_outlives", "_owner", "_scope", "_watches", "lost")

    def __init__(self, lock: "Lock", owner: str, guard: "Guard") -> None:
        self._guard = guard
        self._lock = lock
        self._owner = owner
        self._watches: List[_waiting.Listening] = []
        # Released or handed over here. (Lost is another matter.)
        self._ended = False
        # Whoever has it from now on sees to its release.
        self._outlives = False
        self._scope = _scope.current()
        self.lost = Lost(guard)
        if self._scope is not None:
            self._scope.add(self)

    @property
    def name(self) -> str:
        """The lock's name; of several the first."""
        return self._guard.names[0]

    @property
    def names(self) -> List[str]:
        return self._guard.names

    @property
    def fence(self) -> int:
        """Larger than that of every grant of the name before: for the protected resource to compare."""
        return self._guard.fence

    @property
    def token(self) -> bytes:
        """The value that proves this acquisition."""
        return self._guard.token

    @property
    def remaining(self) -> float:
        """What is left of the last acknowledged lease, in s."""
        return self._guard.remaining

    @property
    def must_stop_in(self) -> float:
        """How long work that cannot ask :meth:`check` may go on, in s."""
        return self._guard.must_stop_in

    def check(self) -> bool:
        """True only while nobody else can have been granted the lock. Ask before each step that counts: it is local
        and cheap."""
        return self._guard.check()

    def extend(self, lease: Seconds) -> None:
        """Sets the lease to this long from now, for all later renewals, too. It never adds."""
        _waiting.give_way(self._guard.extend, seconds("a lease", lease))

    def downgrade(self) -> None:
        """Goes on holding it, but shares it with readers from now on."""
        _waiting.give_way(self._guard.downgrade)

    def try_upgrade(self) -> None:
        """Holds it alone from now on. :class:`Busy`, if others share it: it never waits for that."""
        _waiting.give_way(self._guard.try_upgrade)

    def hand_over(self, keep: Seconds) -> str:
        """Gives it to another task or process: :meth:`Warden.adopt` takes what this returns, within ``keep`` s."""
        text = str(_waiting.give_way(self._guard.hand_over, seconds("a keep", keep)))
        self._forget()
        return text

    def release(self) -> None:
        """Gives it back. :class:`LockLost`: it was lost before."""
        self._forget()
        if _waiting.is_green():
            _waiting.wait_green(lambda box, future: self._guard.start_release(box, future))
        else:
            self._guard.release()

    async def release_async(self) -> None:
        """The same; if it is cancelled, the lock is released all the same."""
        self._forget()
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._guard.start_release(_waiting.mailbox(loop), future)
        await future

    def on_lost(self, call: Callable[[str], Any]) -> None:
        """Has this called, with the reason, when it is lost: on a thread of its own, whatever other threads do."""
        self._watch(_waiting.when_lost(self._guard, call))

    def _watch(self, listening: _waiting.Listening) -> None:
        self._watches.append(listening)

    def _forget(self) -> None:
        self._ended = True
        for listening in self._watches:
            listening.cancel()
        self._watches.clear()
        if self._scope is not None:
            self._scope.discard(self)
        self._lock._forget(self)

    def _give_up(self) -> None:
        """Gives it back in the background, and what became of it is nobody's business."""
        self._forget()
        self._guard.drop()

    def __repr__(self) -> str:
        state = "held" if self._guard.held else "not held"
        return f"<lockwarden.Held {', '.join(self.names)} fence={self.fence} {state}>"


class Lock:
    """A lock, or several at once. Made by :meth:`Warden.lock` and its sisters; may be used again, and by many threads
    and tasks, each of which holds for itself.

    As ``threading.Lock``: :meth:`acquire` says whether it did, :meth:`release` gives back. With ``with`` and ``async
    with`` it waits for as long as ``wait`` says, and raises :class:`Busy` or :class:`Timeout` where that is not enough.
    """

    def __init__(
        self,
        warden: "Warden",
        names: List[str],
        options: "Options",
        *,
        wait: Optional[float],
        owner: Optional[str],
        on_lost: Optional[Callable[[str], Any]],
        cancel_on_lost: bool,
        if_lost: str,
        reentrant: bool = True,
    ) -> None:
        if if_lost not in ("raise", "log", "ignore"):
            raise Invalid(f'if_lost is "raise", "log" or "ignore", not {if_lost!r}')
        if owner is not None and not isinstance(owner, str):
            raise Invalid(f"an owner is a text, not {owner!r}")
        self.warden = warden
        self.names = names
        self._options = options
        self._wait = wait
        self._owner = owner
        self._reentrant = reentrant
        self._on_lost = on_lost
        self._cancel_on_lost = cancel_on_lost
        self._if_lost = if_lost
        # Where it is acquired, for people; None: whoever calls.
        self._site: Optional[str] = None
        # By owner, the latest last; and those of them that a `with` has entered.
        self._holds: Dict[str, List[Held]] = {}
        self._entered: Dict[str, List[Held]] = {}
        self._process = _owners.process()

    @property
    def name(self) -> str:
        """The name; of several the first."""
        return self.names[0] if self.names else ""

    @property
    def held(self) -> Optional[Held]:
        """What the caller holds of it; None: nothing."""
        held = self._mine().get(self._asker())
        return held[-1] if held else None

    @property
    def owned(self) -> bool:
        """Does the caller hold it, and has it not lost it?"""
        held = self.held
        return held is not None and held._guard.held

    @property
    def fence(self) -> int:
        return self._now().fence

    def check(self) -> bool:
        """As :meth:`Held.check`; False, too, if the caller does not hold it."""
        held = self.held
        return held is not None and held.check()

    @property
    def lost(self) -> Lost:
        return self._now().lost

    def locked(self) -> bool:
        """Does anybody hold it? (Of several: any of them.)"""
        return any(self.warden.show(name)["holders"] for name in self.names)

    def extend(self, lease: Seconds) -> None:
        self._now().extend(lease)

    def acquire(self, blocking: bool = True, timeout: Seconds = -1) -> bool:
        """As ``threading.Lock.acquire``. Everything but "not free" is an exception."""
        try:
            self._take(self._limit(blocking, timeout))
        except (Busy, Timeout):
            return False
        return True

    async def acquire_async(self, blocking: bool = True, timeout: Seconds = -1) -> bool:
        """The same for asyncio. If it is cancelled, neither a lock nor a place in the queue is left."""
        try:
            await self._take_async(self._limit(blocking, timeout))
        except (Busy, Timeout):
            return False
        return True

    def release(self) -> None:
        """Gives back what the caller holds; or else, if there is but one hold of this object, that one: so a handle may
        be released by another thread."""
        self._last().release()

    async def release_async(self) -> None:
        await self._last().release_async()

    def __enter__(self) -> Held:
        held = None
        try:
            held = self._take(self._wait)
            return self._enter(held)
        except BaseException:
            # A signal's handler, after the grant: there will be no __exit__.
            if held is not None:
                held._give_up()
            raise

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        held = None
        try:
            held = self._leave()
            if held is not None:
                held.release()
        except Error as failed:
            self._ended(failed, error)
        except BaseException:
            # A signal's handler: the lock is given back all the same.
            if held is not None:
                held._give_up()
            raise

    async def __aenter__(self) -> Held:
        return self._enter(await self._take_async(self._wait))

    async def __aexit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        cancelled_for = None
        try:
            held = self._leave()
            if held is None:
                return
            cancelled_for = held.lost.reason if self._cancel_on_lost else None
            await held.release_async()
        except Error as failed:
            if (
                cancelled_for is not None
                and isinstance(error, asyncio.CancelledError)
                and isinstance(failed, LockLost)
                and _CANCELLED in error.args
            ):
                # It was we who cancelled: as a timeout does, it becomes an error of its own here.
                uncancel = getattr(asyncio.current_task(), "uncancel", None)
                if uncancel is not None:
                    uncancel()
                raise failed from None
            self._ended(failed, error)

    def _enter(self, held: Held) -> Held:
        self._mine()
        self._entered.setdefault(held._owner, []).append(held)
        return held

    def _leave(self) -> Optional[Held]:
        """What this ``with`` has entered, to be released now; None: it was released or handed over inside, or is to
        outlive it."""
        self._mine()
        owner = self._asker()
        if owner not in self._entered and len(self._entered) == 1:
            # It is left by another thread or task than entered it: generators may be.
            (owner,) = self._entered
        entered = self._entered.get(owner)
        if not entered:
            raise NotHeld(f"the lock {', '.join(self.names)} is left by somebody who has not entered it")
        held = entered[-1]
        if len(entered) == 1:
            del self._entered[owner]
        # No call behind this, after which a signal's handler could run.
        del entered[-1]
        return None if held._ended or held._outlives else held

    def _ended(self, failed: Error, error: Optional[BaseException]) -> None:
        """A release failed. What the body raised is never hidden (C03)."""
        is_lost = isinstance(failed, (LockLost, NotHeld))
        if is_lost and self._if_lost == "ignore":
            return
        # Of a store that does not answer nobody knows whether the lock was lost; the release is tried on.
        if error is not None or isinstance(failed, Unavailable) or self._if_lost != "raise":
            log.warning("%s", failed)
            return
        raise failed

    def __call__(self, function: F) -> F:
        """Decorates a function or a coroutine function: it runs while the lock is held."""
        return decorated(self, function, inspect.iscoroutinefunction(function))

    def __repr__(self) -> str:
        return f"<lockwarden.Lock {', '.join(self.names)}>"

    def _limit(self, blocking: bool, timeout: Seconds) -> Optional[float]:
        """How long to wait, in s; None: for ever."""
        is_default = not isinstance(timeout, datetime.timedelta) and timeout == -1
        if not blocking:
            if not is_default:
                raise Invalid("a call that does not block has no timeout")
            return 0.0
        return None if is_default else seconds("a timeout", timeout)

    def _asker(self) -> str:
        return self._owner if self._owner is not None else _owners.current()

    def _mine(self) -> Dict[str, List[Held]]:
        if self._process is not _owners.process():
            # A forked child holds nothing of its parent's.
            self._holds, self._entered, self._process = {}, {}, _owners.process()
        return self._holds

    def _take(self, wait: Optional[float]) -> Held:
        owner = self._asker()
        told = owner if self._reentrant else None
        native = self.warden._native
        place = self._site or site()
        if _waiting.is_green():
            guard = _waiting.wait_green(
                lambda box, future: native.start_acquire(
                    self._options, box, future, wait=wait, owner=told, site=place
                )
            )
        else:
            guard = native.acquire(self._options, wait=wait, owner=told, site=place)
        held = None
        try:
            held = self._took(owner, guard)
            if self._on_lost is not None:
                held.on_lost(self._on_lost)
            return held
        except BaseException:
            # A signal's handler, in the moment of the grant.
            guard.drop()
            if held is not None:
                held._forget()
            raise

    async def _take_async(self, wait: Optional[float]) -> Held:
        owner = self._asker()
        loop = asyncio.get_running_loop()
        if not self.warden._is_open:
            await self.warden._opened()
        future = loop.create_future()
        started = self.warden._native.start_acquire(
            self._options,
            _waiting.mailbox(loop),
            future,
            wait=wait,
            owner=owner if self._reentrant else None,
            site=self._site or site(),
        )
        try:
            guard = await future
        except BaseException:
            # Cancelled, or its loop is gone.
            started.cancel()
            # It was granted in the very moment in which it was cancelled.
            if future.done() and not future.cancelled() and future.exception() is None:
                future.result().drop()
            raise
        held = self._took(owner, guard)
        if self._on_lost is not None:
            held._watch(_waiting.when_lost_in(loop, guard, self._on_lost))
        if self._cancel_on_lost:
            task = asyncio.current_task()
            if task is not None:
                its = task
                held._watch(
                    _waiting.when_lost_in(loop, guard, lambda _: _cancel(its))
                )
        return held

    def _took(self, owner: str, guard: "Guard") -> Held:
        holds = self._mine().setdefault(owner, [])
        held = Held(self, owner, guard)
        # No call behind this, after which a signal's handler could run.
        holds += [held]
        return held

    def _keep(self, held: Held) -> None:
        """It outlives the ``with`` that has entered it. Whoever uses this object again acquires anew."""
        held._outlives = True
        self._forget(held)

    def _forget(self, held: Held) -> None:
        mine = self._mine().get(held._owner, [])
        if held in mine:
            mine.remove(held)
        if not mine:
            self._holds.pop(held._owner, None)

    def _now(self) -> Held:
        held = self.held
        if held is None:
            raise NotHeld(f"the lock {', '.join(self.names)} is not held by the caller")
        return held

    def _last(self) -> Held:
        held = self.held
        if held is not None:
            return held
        every = [held for holds in list(self._mine().values()) for held in holds]
        if len(every) == 1:
            return every[0]
        raise NotHeld(
            f"the lock {', '.join(self.names)} is not held by the caller"
            + (f", but by {len(every)} others through this object" if every else "")
        )


def decorated(lock: Any, function: F, is_async: bool) -> F:
    """The function, run inside ``with lock`` or ``async with lock``."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise Invalid(
            f"{function!r} is a generator: it runs after it has returned, without the lock"
        )
    if is_async:

        @functools.wraps(function)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            async with lock:
                return await function(*args, **kwargs)

        return cast(F, awaited)

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        with lock:
            return function(*args, **kwargs)

    return cast(F, called)


_CANCELLED = "the lock is lost"

def _cancel(task: "asyncio.Task[Any]") -> None:
    task.cancel(_CANCELLED)
