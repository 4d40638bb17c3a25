"""Fair, crash-safe, fast distributed locks on Redis or an embedded store.

>>> import lockwarden
>>> warden = lockwarden.connect("memory:")
>>> with warden.lock("nightly-report", wait=5) as held:
...     held.check()
True
"""

from ._errors import (
    Busy,
    Closed,
    Deadlock,
    Denied,
    Endless,
    Error,
    Foreign,
    Guarded,
    Invalid,
    LockLost,
    NotHandedOver,
    NotHeld,
    OtherMode,
    ReleasedOrLost,
    Timeout,
    TooDeep,
    Unavailable,
)
from ._lock import Held, Lock, Lost
from ._owners import owner
from ._warden import Warden, connect

__all__ = [
    "Busy",
    "Closed",
    "Deadlock",
    "Denied",
    "Endless",
    "Error",
    "Foreign",
    "Guarded",
    "Held",
    "Invalid",
    "Lock",
    "LockLost",
    "Lost",
    "NotHandedOver",
    "NotHeld",
    "OtherMode",
    "ReleasedOrLost",
    "Timeout",
    "TooDeep",
    "Unavailable",
    "Warden",
    "connect",
    "owner",
]
