"""What the drop-ins ask of their user's own client of redis-py."""

from __future__ import annotations

import weakref
from typing import Any, Optional

from . import _store, _warden
from ._errors import Invalid

_wardens: "weakref.WeakKeyDictionary[Any, _warden.Warden]" = weakref.WeakKeyDictionary()


def warden_of(client: Any) -> "_warden.Warden":
    """The warden for the client's server, database and user; it connects when it is used first."""
    pool = getattr(client, "connection_pool", client)
    try:
        known = _wardens.get(pool)
    except TypeError:
        known = None
    if known is not None and not known.closed:
        return known
    warden = _warden._known(_store.url_of(client), None, True)
    try:
        _wardens[pool] = warden
    except TypeError:
        # A pool of somebody's own, that cannot be remembered.
        pass
    return warden


def encoded(client: Any, value: Any) -> bytes:
    """As the client would send it."""
    find = getattr(client, "get_encoder", None) or client.connection_pool.get_encoder
    return bytes(find().encode(value))


def name_of(client: Any, name: Any) -> str:
    """The name of a lock, as the client would send it: a str, bytes or a memoryview."""
    key = encoded(client, name)
    try:
        return key.decode()
    except UnicodeDecodeError:
        raise Invalid(f"a lock's name is UTF-8, which {key!r} is not") from None


def get(client: Any, name: str) -> Any:
    """Asks for the key's value, to be waited for if the client is one for asyncio; then see :func:`got`. A client that
    decodes raises UnicodeDecodeError where that is no text, whose ``object`` is the value (C05)."""
    # Not by client.get(): a client with a cache of its own might answer from that.
    return client.execute_command("GET", name.encode())


def got(client: Any, value: Any) -> Optional[bytes]:
    """What :func:`get` brought, as it is in the store."""
    if value is None or isinstance(value, bytes):
        return value
    return encoded(client, value)
