"""Locks that are held until the database's transaction has ended."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Callable, Collection, Optional, Type, TypeVar

from asgiref.sync import iscoroutinefunction

from .._errors import Error, Invalid, NotHeld
from .._lock import Held, Lock, decorated
from .._warden import Warden
from . import transactions
from .conf import conf
from .store import warden, warden_async
from .transactions import log

F = TypeVar("F", bound=Callable[..., Any])


def lock(*names: Any, using: Optional[Collection[str]] = None, **options: Any) -> "DatabaseLock":
    """Locks, one or several at once, for ``with``, ``async with`` and as a decorator.

    Leaving it inside ``transaction.atomic`` keeps them until the outermost transaction has been committed or rolled
    back. ``using``: of these databases; None: of all. Names and other options are those of
    :meth:`lockwarden.Warden.lock_all`, with the defaults of ``LOCKWARDEN``; its ``PREFIX`` is put before each name.
    """
    if not names:
        raise Invalid('lock() needs names: lock("stock:7")')
    return DatabaseLock(names, using, options)


class DatabaseLock:
    """Made by :func:`lock`. May be used again, and by many threads and tasks."""

    def __init__(
        self, names: Collection[Any], using: Optional[Collection[str]], options: Any
    ) -> None:
        self._names = names
        self._options = options
        self._using = using
        self._lock: Optional[Lock] = None

    def __enter__(self) -> Held:
        transactions.refuse_manual(self._using)
        return self._made(warden()).__enter__()

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        if self._lock is None:
            return
        try:
            held = self._lock._leave()
        except Error as failed:
            self._lock._ended(failed, error)
            return
        if held is not None:
            give_back(held, error, self._using)

    async def __aenter__(self) -> Held:
        return await self._made(await warden_async()).__aenter__()

    async def __aexit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        # Django's transactions are those of threads: none is open in a coroutine.
        if self._lock is not None:
            await self._lock.__aexit__(kind, error, traceback)

    def __call__(self, function: F) -> F:
        """Decorates a function or a coroutine function: it runs while the lock is held."""
        return decorated(self, function, bool(iscoroutinefunction(function)))

    def _made(self, its: Warden) -> Lock:
        # Another one after the settings have changed, or the warden was closed.
        if self._lock is None or self._lock.warden is not its:
            self._lock = made(its, self._names, self._options)
        return self._lock


def made(its: Warden, names: Collection[Any], options: Any) -> Lock:
    """The lock of these names, with the defaults of ``LOCKWARDEN``."""
    defaults = {"wait": conf().wait, "lease": conf().lease, "grace": conf().grace}
    return its.lock_all([prefixed(name) for name in names], **{**defaults, **options})


def prefixed(name: Any) -> Any:
    """A name, or a pair of a name and a mode, with the ``PREFIX`` before it."""
    prefix = conf().prefix
    if not prefix:
        return name
    if isinstance(name, tuple) and name and isinstance(name[0], str):
        return (prefix + name[0], *name[1:])
    return prefix + name if isinstance(name, str) else name


def give_back(
    held: Held, error: Optional[BaseException], using: Optional[Collection[str]] = None
) -> None:
    """Releases it when no transaction is open, else after the last of them. ``error`` is what the body raised: it is
    never hidden (C03)."""
    open_ones = transactions.open_now(using)
    if not open_ones:
        its = held._lock
        try:
            held.release()
        except Error as failed:
            its._ended(failed, error)
        return
    # Whoever uses the lock's object again acquires anew. The guard renews until the end.
    held._lock._keep(held)
    transactions.after(open_ones, _Until(held).release)


class _Until:
    """A lock that waits for the end of a transaction; in the request's scope instead of the lock itself, for that ends
    it, too (a test's own transaction has no end)."""

    # Nobody has forgotten it.
    expected = True

    def __init__(self, held: Held) -> None:
        self.names = held.names
        self._held = held
        self._scope = held._scope
        if self._scope is not None:
            self._scope.discard(held)
            self._scope.add(self)

    def release(self) -> None:
        if self._scope is not None:
            self._scope.discard(self)
        release_quietly(self._held)


def release_quietly(held: Any) -> None:
    """Releases it where nobody could catch an error any more."""
    try:
        held.release()
    except NotHeld:
        # Released by others: at the end of the request, say.
        pass
    except Error as failed:
        log.error("the lock %s: %s", ", ".join(held.names), failed)
