"""``ATOMIC_REQUESTS`` inside the locks.

Django begins the transaction outside of all decorators. Then a lock would be waited for inside it: what is read afterwards
may be older than the lock, and the lock would be given back before the commit (C65). So ``locked`` takes this over.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable, List, Optional, Set

from django.db import connections, transaction

from .._errors import LockLost
from .._lock import Held
from . import transactions


class Lost(Exception):
    """The lock was lost before the commit; everything was rolled back."""

    def __init__(self, error: LockLost) -> None:
        super().__init__(str(error))
        self.error = error


class _Everything(Set[str]):
    """For Django, all databases are in it: they are not to be atomic. Those that somebody has put into it really are."""

    def __contains__(self, _: object) -> bool:
        return True


def take_over(wrapper: Any, view: Any) -> None:
    """From now on the transactions of this view are begun by :func:`run`."""
    wrapper._non_atomic_requests = _Everything(getattr(view, "_non_atomic_requests", ()))


def run(view: Callable[[], Any], wrapper: Any, request: Any, held: Optional[Held]) -> Any:
    """Runs the view in its transactions. :class:`Lost`: the lock was, and nothing is committed."""
    aliases = _aliases(wrapper, request)
    with contextlib.ExitStack() as stack:
        for alias in aliases:
            stack.enter_context(transaction.atomic(using=alias))
        response = view()
        if aliases and held is not None and not held.check():
            why = held.lost.reason or "it could not be renewed"
            raise Lost(LockLost(f"the lock {', '.join(held.names)} is lost: {why}; rolled back"))
        return response


def _aliases(wrapper: Any, request: Any) -> List[str]:
    """The databases in whose transaction Django would have run it."""
    not_atomic = set(wrapper._non_atomic_requests)
    # Of a class, method_decorator makes the wrapper anew for each call: who was excepted stands at the view itself.
    match = getattr(request, "resolver_match", None)
    not_atomic.update(getattr(getattr(match, "func", None), "_non_atomic_requests", ()))
    return [
        alias
        for alias in connections
        if connections.settings[alias]["ATOMIC_REQUESTS"]
        and alias not in not_atomic
        and not transactions.is_open(connections[alias])
    ]
