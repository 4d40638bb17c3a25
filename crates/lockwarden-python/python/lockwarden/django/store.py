"""The warden of ``LOCKWARDEN``: one for each process, connected when it is used first."""

from __future__ import annotations

import os
from typing import Any, Dict, Optional, Tuple

from asgiref.sync import sync_to_async
from django.core.exceptions import ImproperlyConfigured

from .. import _store
from .._warden import Warden, connect
from .conf import Conf, conf

# With the process that it was connected in: a forked child connects anew.
_known: Dict[Conf, Tuple[Warden, int]] = {}


def warden() -> Warden:
    """The warden that ``LOCKWARDEN`` names."""
    its = conf()
    known = _ready(its)
    if known is None:
        known = connect(url(its), label=its.label)
        _known[its] = (known, os.getpid())
    return known


async def warden_async() -> Warden:
    """The same; connecting does not hold up the event loop."""
    known = _ready(conf())
    if known is not None:
        return known
    return await sync_to_async(warden, thread_sensitive=False)()


def _ready(its: Conf) -> Optional[Warden]:
    known, pid = _known.get(its, (None, 0))
    return known if known is not None and not known.closed and pid == os.getpid() else None


def url(its: Conf) -> str:
    """The store's URL, with its password: for connecting, never for people."""
    if its.cache is not None:
        return _store.url_of(redis_of_cache(its.cache))
    return _store.url_of(its.url)


def redis_of_cache(alias: str) -> Any:
    """The client of redis-py behind a cache. Nothing is connected."""
    from django.core.cache import caches

    client = client_of(caches[alias])
    if client is None:
        raise ImproperlyConfigured(
            f"LOCKWARDEN: the cache {alias!r} is not on Redis: use Django's or django-redis' RedisCache, or name a URL"
        )
    return client


def client_of(cache: Any) -> Any:
    """The client that writes to a cache's first server; None: it is not on Redis."""
    inner: Any = getattr(cache, "client", None)  # django-redis
    if hasattr(inner, "get_client"):
        return inner.get_client(write=True)
    inner = getattr(cache, "_cache", None)  # Django
    if hasattr(inner, "get_client"):
        return inner.get_client(None, write=True)
    return None
