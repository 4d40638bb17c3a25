"""A cache backend of Django with locks, in the place of ``redis_lock.django_cache``; it needs django-redis."""

from __future__ import annotations

from typing import Any, Callable, Optional

from django.core.cache.backends.base import DEFAULT_TIMEOUT
from django_redis.cache import RedisCache as PlainRedisCache

from ._lock import Lock, reset_all


class RedisCache(PlainRedisCache):  # type: ignore[misc]
    def _raw_client(self) -> Any:
        try:
            return self.client.get_client()
        except Exception as error:
            raise NotImplementedError(
                f"the cache has no client of redis-py ({error}): locks need django_redis.client.DefaultClient"
            ) from error

    def lock(
        self,
        key: str,
        expire: Optional[float] = None,
        id: Any = None,
        auto_renewal: bool = False,
    ) -> Lock:
        return Lock(self._raw_client(), key, expire=expire, id=id, auto_renewal=auto_renewal)

    def locked_get_or_set(
        self,
        key: str,
        value_creator: Callable[[], Any],
        version: Optional[int] = None,
        expire: Optional[float] = None,
        id: Any = None,
        lock_key: Optional[str] = None,
        timeout: Any = DEFAULT_TIMEOUT,
    ) -> Any:
        """What the cache has; else what ``value_creator`` returns, which one caller at a time makes."""
        value = self.get(key, version=version)
        if value is not None:
            return value
        with self.lock(lock_key or f"get_or_set:{key}", expire=expire, id=id):
            # It may have come while we waited.
            value = self.get(key, version=version)
            if value is None:
                value = value_creator()
                if value is None:
                    raise ValueError("`value_creator` must return a value")
                self.set(key, value, timeout=timeout, version=version)
            return value

    def reset_all(self) -> None:
        """Frees all locks, whoever holds them."""
        reset_all(self._raw_client())
