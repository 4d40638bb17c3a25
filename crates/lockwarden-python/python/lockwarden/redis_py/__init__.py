"""In the place of redis-py's locks, sync and for asyncio.

>>> import redis
>>> from lockwarden.redis_py import Lock
>>> client = redis.Redis()                                               # doctest: +SKIP
>>> with client.lock("nightly-report", timeout=30, lock_class=Lock):     # doctest: +SKIP
...     ...

Same key, same value, same TTL; docs/DROP_INS.md says method by method what is equal, and what is better.
"""

from .._redis_errors import (
    Deadlock,
    Denied,
    Endless,
    Invalid,
    InvalidType,
    LockError,
    LockNotOwnedError,
    NotAcquired,
    NotHeld,
    OtherMode,
    ReleasedOrLost,
    Unavailable,
)
from ._asyncio import AsyncLock
from ._sync import Lock

__all__ = [
    "AsyncLock",
    "Deadlock",
    "Denied",
    "Endless",
    "Invalid",
    "InvalidType",
    "Lock",
    "LockError",
    "LockNotOwnedError",
    "NotAcquired",
    "NotHeld",
    "OtherMode",
    "ReleasedOrLost",
    "Unavailable",
]
