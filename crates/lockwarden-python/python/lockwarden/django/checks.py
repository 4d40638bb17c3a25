"""``manage.py check``: is LOCKWARDEN fit for its use? What asks the store runs with ``--deploy`` or ``--database``."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

from django.core import checks
from django.core.exceptions import ImproperlyConfigured

from .._errors import Denied, Error, Guarded
from . import store, urls
from .conf import conf, problems
from .text import shown

TAG = "lockwarden"
MIDDLEWARE = "lockwarden.django.middleware.LockwardenMiddleware"


def register_all() -> None:
    for check in (settings_are_usable, place_is_fit, middleware_is_there, atomic_requests):
        checks.register(check, TAG)
    checks.register(store_is_fit, TAG, deploy=True)
    # migrate asks these, too, and must not fail for the locks' sake: hence warnings.
    checks.register(store_answers, checks.Tags.database)


def settings_are_usable(**_: Any) -> List[Any]:
    return [
        checks.Error(f"LOCKWARDEN: {text}.", hint="See the table of settings in docs/DJANGO.md.", id="lockwarden.E001")
        for text in problems()
    ]


def place_is_fit(**_: Any) -> List[Any]:
    """The URL, without asking whoever is there."""
    url, wrong = _url()
    if url is None:
        return wrong
    from django.conf import settings

    found: List[Any] = []
    if url == "memory:" and not settings.DEBUG:
        found.append(
            checks.Warning(
                "LOCKWARDEN: memory: holds locks inside one process only.",
                hint="Name a server (redis://…) or a directory (file:…), which all processes share.",
                id="lockwarden.W003",
            )
        )
    if urls.is_redis(url):
        shared = [alias for alias in settings.CACHES if _place_of_cache(alias) == urls.place(url)]
        if shared:
            found.append(
                checks.Warning(
                    f"LOCKWARDEN: the locks share a Redis database with the cache {', '.join(shared)}: cache.clear() "
                    "removes them.",
                    hint="Give one of them another database: redis://HOST/1.",
                    id="lockwarden.W004",
                )
            )
    return found


def middleware_is_there(**_: Any) -> List[Any]:
    from django.conf import settings

    if MIDDLEWARE in settings.MIDDLEWARE:
        return []
    return [
        checks.Warning(
            "LOCKWARDEN: its middleware is not in MIDDLEWARE: what a view forgets to release stays held.",
            hint=f"Put {MIDDLEWARE!r} first.",
            id="lockwarden.W005",
        )
    ]


def atomic_requests(**_: Any) -> List[Any]:
    from django.db import connections

    aliases = [alias for alias in connections if connections.settings[alias]["ATOMIC_REQUESTS"]]
    if not aliases:
        return []
    return [
        checks.Info(
            f"LOCKWARDEN: ATOMIC_REQUESTS is on for {', '.join(aliases)}. @locked begins the transaction inside its locks; "
            "lock() in the body of a view acquires inside the transaction, and reads what was there when that began where "
            "the isolation is REPEATABLE READ or stricter.",
            hint="Prefer @locked to lock() in such views, and put decorators that use the database below it.",
            id="lockwarden.I006",
        )
    ]


def store_is_fit(**_: Any) -> List[Any]:
    """Can it be reached, and does it keep what it is given?"""
    return _asked(checks.Error)


def store_answers(databases: Any = None, **_: Any) -> List[Any]:
    return _asked(checks.Warning) if databases else []


def _asked(level: Any) -> List[Any]:
    url, _ = _url()
    if url is None:
        return []
    try:
        store.warden().names()
    except Guarded:
        pass
    except Error as error:
        letter = "E" if level is checks.Error else "W"
        known = "refuses us" if isinstance(error, Denied) else "cannot be used"
        return [level(f"LOCKWARDEN: the store {known}: {shown(str(error))}", id=f"lockwarden.{letter}007")]
    return _evicts(url) if urls.is_redis(url) else []


def _evicts(url: str) -> List[Any]:
    try:
        import redis
    except ImportError:
        return [checks.Info("LOCKWARDEN: maxmemory-policy is not checked: redis-py is not there.", id="lockwarden.I009")]
    try:
        with redis.Redis.from_url(urls.for_redis_py(url), socket_timeout=5) as client:
            policy: Any = client.info("memory").get("maxmemory_policy")
    except redis.RedisError as error:
        return [
            checks.Info(f"LOCKWARDEN: maxmemory-policy is not checked: {shown(str(error))}", id="lockwarden.I009")
        ]
    if policy in (None, "noeviction"):
        return []
    return [
        checks.Warning(
            f"LOCKWARDEN: maxmemory-policy is {policy}: a full server throws locks away.",
            hint="CONFIG SET maxmemory-policy noeviction, or a server for the locks alone.",
            id="lockwarden.W008",
        )
    ]


def _url() -> Tuple[Optional[str], List[Any]]:
    """The store's URL; None, with what is wrong with it, if it has none."""
    try:
        its = conf()
    except ImproperlyConfigured:
        return None, []  # E001 tells
    try:
        return store.url(its), []
    except (Error, ImproperlyConfigured) as error:
        return None, [checks.Error(shown(f"LOCKWARDEN: {error}"), id="lockwarden.E002")]


def _place_of_cache(alias: str) -> Optional[str]:
    from django.core.cache import caches

    from .. import _store

    client = store.client_of(caches[alias]) if _is_redis(alias) else None
    if client is None:
        return None
    try:
        return urls.place(_store.url_of(client))
    except Error:
        return None


def _is_redis(alias: str) -> bool:
    from django.conf import settings

    its: Dict[str, Any] = settings.CACHES[alias]
    return "redis" in str(its.get("BACKEND", "")).lower()
