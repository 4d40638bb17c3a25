"""Which store: a URL, a client of redis-py, or the default."""

from __future__ import annotations

import os
import sys
from typing import Any, Dict, Optional
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from ._errors import Invalid


def url_of(source: Any) -> str:
    """The URL of the store that this names."""
    if source is None:
        return default()
    if isinstance(source, str):
        return source
    if isinstance(source, os.PathLike):
        return f"file:{os.fspath(source)}"
    return _of_client(source)


def default() -> str:
    """``LOCKWARDEN_URL``, else the embedded store of this user, as the command line has it."""
    url = os.environ.get("LOCKWARDEN_URL", "")
    if url:
        return url
    state = os.environ.get("XDG_STATE_HOME", "")
    # The specification says that a relative one is to be ignored.
    if not os.path.isabs(state):
        home = os.path.expanduser("~")
        if not os.path.isabs(home):
            raise Invalid(
                "no store is chosen, and the embedded one has no home: neither XDG_STATE_HOME nor HOME is set; "
                "set LOCKWARDEN_URL, or call connect(url)"
            )
        state = os.path.join(home, ".local", "state")
    return f"file:{os.path.join(state, 'lockwarden')}"


def canonical(url: str) -> str:
    """The same text for all URLs of one store and login."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return url
    if parts.scheme == "file" and len(url) > len("file:"):
        return "file:" + os.path.abspath(url[len("file:") :].replace("//", "/", 1))
    if parts.scheme not in ("redis", "rediss", "unix"):
        return url
    # Without a name it is the default user who logs in.
    name = parts.username or ("default" if parts.password else "")
    user = f"{name}:{parts.password or ''}"
    if parts.scheme == "unix":
        query = dict(parse_qsl(parts.query))
        return f"unix://{user}@{unquote(parts.path)}?db={query.get('db') or '0'}"
    db = parts.path.strip("/") or "0"
    return f"{parts.scheme}://{user}@{(parts.hostname or '').lower()}:{port or 6379}/{db}?{parts.query}"


def default_label() -> str:
    """The program's name."""
    name = os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else "python"
    return name.encode("utf-8", "replace")[:200].decode("utf-8", "ignore")


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _of_client(client: Any) -> str:
    pool = getattr(client, "connection_pool", client)
    kwargs: Optional[Dict[str, Any]] = getattr(pool, "connection_kwargs", None)
    kind = getattr(pool, "connection_class", None)
    if hasattr(client, "nodes_manager"):
        raise Invalid("a cluster is not supported: its locks would have no one place")
    if kwargs is None or kind is None:
        raise Invalid(
            f"a store is a URL, or a client or a connection pool of redis-py, not {client!r}"
        )
    if hasattr(pool, "sentinel_manager"):
        raise Invalid("a client by Sentinel is not supported: name the server itself")
    names = [base.__name__ for base in kind.__mro__]
    if any(base.__module__.split(".")[0] == "fakeredis" for base in kind.__mro__):
        raise Invalid("a client of fakeredis has no server: for tests there is memory:")
    user, password = kwargs.get("username"), kwargs.get("password")
    if kwargs.get("credential_provider") is not None:
        login_now = kwargs["credential_provider"].get_credentials()
        user, password = login_now if len(login_now) == 2 else (None, login_now[0])
    login = ""
    if password:
        login = f"{quote(_text(user or ''), safe='')}:{quote(_text(password), safe='')}@"
    db = int(kwargs.get("db") or 0)
    if any("UnixDomainSocket" in name for name in names):
        return f"unix://{login}{quote(_text(kwargs['path']))}?db={db}"
    host = _text(kwargs.get("host") or "localhost")
    if ":" in host:
        host = f"[{host}]"
    scheme = "redis"
    if any("SSL" in name for name in names):
        scheme = "rediss"
        for option in ("ssl_certfile", "ssl_keyfile", "ssl_ca_certs", "ssl_ca_path", "ssl_ca_data"):
            given = kwargs.get(option)
            if given is not None and (option, given) != ("ssl_ca_certs", os.environ.get("SSL_CERT_FILE")):
                raise Invalid(
                    f"{option} is not supported: the system's certificates are used (SSL_CERT_FILE)"
                )
        if str(kwargs.get("ssl_cert_reqs", "required")) not in ("required", "VerifyMode.CERT_REQUIRED", "2"):
            raise Invalid("ssl_cert_reqs other than required is not supported")
    return f"{scheme}://{login}{host}:{int(kwargs.get('port') or 6379)}/{db}"
