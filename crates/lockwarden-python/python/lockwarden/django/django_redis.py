"""django-redis' cache, whose ``lock`` is a lock of ours. Needs django-redis."""

from __future__ import annotations

from typing import Optional

from django_redis.cache import RedisCache as DjangoRedisCache

from .cache import LockMixin


class RedisCache(LockMixin, DjangoRedisCache):  # type: ignore[misc,unused-ignore]
    """In ``CACHES`` in the place of ``django_redis.cache.RedisCache``."""

    def _lock_name(self, key: str, version: Optional[int]) -> str:
        # Keys are made by their client.
        return str(self.client.make_key(key, version=version))
