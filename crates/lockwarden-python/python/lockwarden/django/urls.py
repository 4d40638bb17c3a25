"""URLs of stores, as far as one can judge them without the store."""

from __future__ import annotations

from typing import Any, Optional
from urllib.parse import parse_qsl, urlsplit

FORMS = "file:DIR, memory:, redis://HOST, rediss://HOST, unix:///SOCKET"
_OPTIONS = ("db", "prefix", "protocol")


def problem(url: Any) -> Optional[str]:
    """What is wrong with a URL, without its password; None: it may be usable."""
    if not isinstance(url, str):
        return f"it is a text, not a {type(url).__name__}"
    if url == "memory:":
        return None
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - it raises
    except ValueError as error:
        return f"it is no URL: {error}"
    if parts.scheme == "file":
        return None if url[len("file:") :].strip("/") else "it names no directory: file:DIR"
    if parts.scheme in ("redis", "rediss"):
        if not parts.hostname:
            return "it names no host"
        db = parts.path.strip("/")
    elif parts.scheme in ("unix", "redis+unix"):
        if len(parts.path) < 2:
            return "it names no socket by an absolute path: unix:///PATH"
        db = ""
    else:
        return f"it must be one of {FORMS}"
    if parts.username and not parts.password:
        return "a user needs a password: redis://USER:PASSWORD@HOST"
    if db and not db.isdigit():
        return f"the database is a number, not {db!r}"
    for key, value in parse_qsl(parts.query, keep_blank_values=True):
        if key not in _OPTIONS:
            return f"it has no option {key!r}; there are {', '.join(_OPTIONS)}"
        if key == "db" and not value.isdigit():
            return f"the database is a number, not {value!r}"
        if key == "protocol" and value not in ("2", "3"):
            return "the protocol is 2 or 3"
    return None


def is_redis(url: str) -> bool:
    return urlsplit(url).scheme in ("redis", "rediss", "unix", "redis+unix")


def place(url: str) -> str:
    """Server and database of a URL of Redis, by which two of them can be compared."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    db = int(options.get("db") or (parts.path.strip("/") if "unix" not in parts.scheme else "") or 0)
    if "unix" in parts.scheme:
        return f"{parts.path} db {db}"
    host = (parts.hostname or "").lower()
    host = "127.0.0.1" if host == "localhost" else host
    return f"{host}:{parts.port or 6379} db {db}"


def for_redis_py(url: str) -> str:
    """The same for ``redis.Redis.from_url``, which does not know all of our options."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    query = f"db={options['db']}" if "db" in options else ""
    scheme = "unix" if parts.scheme == "redis+unix" else parts.scheme
    login = f"{parts.netloc}" if parts.netloc else ""
    return f"{scheme}://{login}{parts.path}" + (f"?{query}" if query else "")
