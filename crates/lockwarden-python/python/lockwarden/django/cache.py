"""``cache.lock()`` as django-redis has it, on caches of Redis.

Keys and methods are the same. Waiters are served in order and do not poll, and what a request forgets is released.
"""

from __future__ import annotations

import contextlib
from typing import Any, Optional

from django.core.cache.backends.redis import RedisCache as DjangoRedisCache

from .. import _scope
from .store import client_of


class LockMixin:
    """Gives a cache backend of Redis, Django's or django-redis', the method ``lock``."""

    def lock(
        self,
        key: str,
        version: Optional[int] = None,
        timeout: Optional[float] = None,
        sleep: float = 0.1,
        blocking: bool = True,
        blocking_timeout: Optional[float] = None,
        client: Any = None,
        thread_local: bool = True,
    ) -> Any:
        """A lock with the interface of redis-py's, named as a key of this cache would be.

        What a request holds of it at its end is released and logged, unless ``thread_local`` is False: that is how
        redis-py is told that a lock goes elsewhere.
        """
        return _lock_class()(
            client if client is not None else client_of(self),
            self._lock_name(key, version),
            timeout=timeout,
            sleep=sleep,
            blocking=blocking,
            blocking_timeout=blocking_timeout,
            thread_local=thread_local,
        )

    def _lock_name(self, key: str, version: Optional[int]) -> str:
        return str(self.make_key(key, version=version))  # type: ignore[attr-defined]


class RedisCache(LockMixin, DjangoRedisCache):
    """Django's cache on Redis, with ``lock``."""


class _InScope:
    """A lock in the scope of a request: what its end needs to know."""

    def __init__(self, lock: Any) -> None:
        self.names = [_text(lock.name)]
        self._lock = lock
        self._token = lock.local.token
        self._scope = _scope.current()
        if self._scope is not None:
            self._scope.add(self)

    def forget(self) -> None:
        if self._scope is not None:
            self._scope.discard(self)

    def release(self) -> None:
        self.forget()
        from redis.exceptions import LockError

        # The end may come on another thread, which has no token.
        self._lock.local.token = self._token
        with contextlib.suppress(LockError):
            self._lock.release()


_class: Any = None


def _lock_class() -> Any:
    """The drop-in, which remembers what a request holds. Made when it is needed: it wants redis-py."""
    global _class
    if _class is not None:
        return _class
    from lockwarden.redis_py import Lock

    class CacheLock(Lock):  # type: ignore[misc,unused-ignore]
        """redis-py's lock, from a cache."""

        def __init__(self, *args: Any, thread_local: bool = True, **kwargs: Any) -> None:
            kwargs["thread_local"] = thread_local
            super().__init__(*args, **kwargs)
            self._stays = thread_local
            self._in_scope: Optional[_InScope] = None

        def acquire(self, *args: Any, **kwargs: Any) -> Any:
            acquired = super().acquire(*args, **kwargs)
            if acquired and self._stays:
                self._in_scope = _InScope(self)
            return acquired

        def release(self) -> None:
            super().release()
            in_scope, self._in_scope = self._in_scope, None
            if in_scope is not None:
                in_scope.forget()

    _class = CacheLock
    return CacheLock


def _text(name: Any) -> str:
    return name.decode("utf-8", "backslashreplace") if isinstance(name, bytes) else str(name)
