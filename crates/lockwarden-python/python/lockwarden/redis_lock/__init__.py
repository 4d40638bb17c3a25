"""In the place of python-redis-lock.

>>> import redis
>>> from lockwarden import redis_lock
>>> client = redis.Redis()                                             # doctest: +SKIP
>>> with redis_lock.Lock(client, "nightly-report", expire=60):         # doctest: +SKIP
...     ...

Same keys, same values; its waiters and these wake each other. docs/DROP_INS.md says what is equal, and what is better.
"""

from ._errors import (
    AlreadyAcquired,
    AlreadyStarted,
    InvalidTimeout,
    NotAcquired,
    NotExpirable,
    TimeoutNotUsable,
    TimeoutTooLarge,
)
from ._lock import Lock, reset_all

__all__ = [
    "AlreadyAcquired",
    "AlreadyStarted",
    "InvalidTimeout",
    "Lock",
    "NotAcquired",
    "NotExpirable",
    "TimeoutNotUsable",
    "TimeoutTooLarge",
    "reset_all",
]
