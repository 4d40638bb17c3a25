"""The four locks that the suite runs against: redis-py's and ours, sync and for asyncio, with one way to write for all."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from typing import Any, Callable

import redis

from deviations import REDIS_PY, deviates
from lockwarden import redis_py

try:
    import redis.asyncio as redis_asyncio
    from redis.asyncio.lock import Lock as TheirAsyncLock
except ImportError:  # before 4.2
    redis_asyncio = None
    TheirAsyncLock = None

VERSION = tuple(int(part) for part in redis.__version__.split(".")[:2])


class Kind:
    """One of the four."""

    def __init__(self, name: str, lock_class: Any, is_async: bool, is_ours: bool) -> None:
        self.name = name
        self.lock_class = lock_class
        self.is_async = is_async
        self.is_ours = is_ours

    def expected(self, name: str, *, ours: Any, theirs: Any) -> Any:
        return deviates(REDIS_PY, name, ours=ours, theirs=theirs, is_ours=self.is_ours)

    def takes(self, argument: str, method: str = "__init__") -> bool:
        """Does redis-py's lock of this version take it? Ours always does."""
        theirs = TheirAsyncLock if self.is_async else redis.lock.Lock
        return argument in inspect.signature(getattr(theirs, method)).parameters

    def __repr__(self) -> str:
        return self.name


KINDS = [
    Kind("redis-py", redis.lock.Lock, False, False),
    Kind("ours", redis_py.Lock, False, True),
]
if redis_asyncio is not None:
    KINDS += [
        Kind("redis-py-asyncio", TheirAsyncLock, True, False),
        Kind("ours-asyncio", redis_py.AsyncLock, True, True),
    ]


class Locks:
    """Makes locks of a kind on a server, and looks at it from outside."""

    def __init__(self, kind: Kind, server: Any) -> None:
        self.kind = kind
        self.server = server
        self.raw = server.redis
        self._clients: list = []

    def client(self, **options: Any) -> Any:
        module = redis_asyncio if self.kind.is_async else redis
        client = module.Redis(**{"host": "127.0.0.1", "port": self.server.port, **options})
        self._clients.append(client)
        return client

    def lock(self, name: Any, client: Any = None, **options: Any) -> Any:
        """As users make it: by their client."""
        client = client or self.client()
        return client.lock(name, lock_class=self.kind.lock_class, **options)

    def run(self, story: Callable[[], Any]) -> None:
        """Runs what a test tells, and closes its clients in the loop that they were used in."""

        async def told() -> None:
            try:
                await story()
            finally:
                for client in self._clients:
                    await done(client.connection_pool.disconnect())

        asyncio.run(told())


async def done(result: Any) -> Any:
    """What came of a call, whether it has to be awaited or not."""
    return await result if inspect.isawaitable(result) else result


async def outcome(call: Callable[[], Any]) -> Any:
    """What a call returned, or the class of what it raised."""
    try:
        return await done(call())
    except Exception as error:  # noqa: BLE001
        return type(error)


class entered:
    """``with`` and ``async with``, in one way to write."""

    def __init__(self, lock: Any) -> None:
        self.lock = lock
        self.is_async = hasattr(lock, "__aenter__")

    async def __aenter__(self) -> Any:
        return await self.lock.__aenter__() if self.is_async else self.lock.__enter__()

    async def __aexit__(self, *what: Any) -> Any:
        if self.is_async:
            return await self.lock.__aexit__(*what)
        return self.lock.__exit__(*what)


def later(seconds: float, call: Callable[[], Any]) -> threading.Thread:
    """Does something while the test waits."""

    def run() -> None:
        time.sleep(seconds)
        call()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


class Watch:
    """How long something took, in s."""

    def __enter__(self) -> "Watch":
        self.began = time.monotonic()
        return self

    def __exit__(self, *_: Any) -> None:
        self.s = time.monotonic() - self.began
