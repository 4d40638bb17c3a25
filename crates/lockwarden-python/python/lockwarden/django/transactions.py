"""When do the database's transactions end?

Whoever gives a lock back before the commit lets the next one read what was there before (C65). Knows no locks.
"""

from __future__ import annotations

import logging
from typing import Any, Callable, Collection, List, Optional

from django.db import connections

from .._errors import Invalid

log = logging.getLogger("lockwarden.django")


def open_now(using: Optional[Collection[str]] = None) -> List[Any]:
    """The connections of this thread that are inside a transaction; ``using``: of these databases only."""
    return [connection for connection in _of(using) if is_open(connection)]


def is_open(connection: Any) -> bool:
    # Those that a TestCase wraps around each test never commit: nobody can wait for them.
    return not connection.closed_in_transaction and any(
        not block._from_testcase for block in connection.atomic_blocks
    )


def refuse_manual(using: Optional[Collection[str]] = None) -> None:
    """A transaction without ``atomic`` ends without telling anybody."""
    for connection in _of(using):
        if connection.connection is not None and not connection.autocommit and not connection.in_atomic_block:
            raise Invalid(
                f"the database {connection.alias!r} is not in autocommit mode: Django does not tell when its transaction "
                "ends. Use transaction.atomic(); or commit inside the lock yourself, and say using=[]"
            )


def after(open_ones: List[Any], call: Callable[[], None]) -> None:
    """Calls this once, when all of these transactions have ended: committed, rolled back, or with their connection."""
    left = len(open_ones)

    def ended() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            try:
                call()
            except Exception:  # it must not hinder others who wait for the commit
                log.exception("what was to happen after the transaction failed")

    for connection in open_ones:
        connection.on_commit(_End(connection, ended))


def _of(using: Optional[Collection[str]]) -> List[Any]:
    every = connections.all(initialized_only=True)
    return [connection for connection in every if using is None or connection.alias in using]


class _End:
    """Called when its transaction has committed. If it was rolled back, Django only drops what it would have called:
    hence the finaliser, which runs at that moment, after the rollback."""

    def __init__(self, connection: Any, ended: Callable[[], None]) -> None:
        self._connection = connection
        self._ended: Optional[Callable[[], None]] = ended

    def __call__(self) -> None:
        ended, self._ended = self._ended, None
        if ended is not None:
            ended()

    def __del__(self) -> None:
        ended = self._ended
        if ended is None:
            return
        if is_open(self._connection):
            # Only a savepoint was rolled back. The transaction goes on, and so does whoever waits for its end.
            self._connection.on_commit(_End(self._connection, ended))
        else:
            ended()
