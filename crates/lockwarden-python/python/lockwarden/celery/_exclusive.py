"""The decorator."""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable, Mapping, Optional, TypeVar, cast

from .._errors import Invalid
from .._lock import Seconds
from . import _enqueue, _run
from ._names import Template
from ._policy import Policy, Store

F = TypeVar("F", bound=Callable[..., Any])


def exclusive(
    name: Template = None,
    *,
    on_conflict: str = "retry",
    at: str = "run",
    wait: Optional[Seconds] = None,
    pledge: Seconds = 3600,
    backoff: Seconds = 1,
    backoff_most: Seconds = 60,
    max_conflicts: Optional[int] = None,
    lease: Optional[Seconds] = None,
    grace: Optional[Seconds] = None,
    hold_at_most: Optional[Seconds] = None,
    lock_delay: Optional[Seconds] = None,
    tags: Optional[Mapping[str, str]] = None,
    on_lost: Optional[Callable[[str], Any]] = None,
    if_lost: str = "raise",
    warden: Store = None,
) -> Callable[[F], F]:
    """Only one task with the lock's name runs at a time. It stands *below* ``@app.task`` or ``@shared_task``:

    .. code-block:: python

        @app.task
        @exclusive("invoice:{invoice_id}")
        def bill(invoice_id, *, dry=False): ...

    ``name``: a text with the names of arguments; or a function of the task's arguments that gives the text; or None:
    the task's name and all its arguments. Positional, keyword and default arguments give one name.

    ``on_conflict``: what a task does when another one holds the lock.

    - ``"retry"``: it goes back into the queue, and comes again after a backoff, from ``backoff`` s up to
      ``backoff_most`` s, as often as ``max_conflicts`` says (None: for ever). Its own ``max_retries`` are not touched.
    - ``"wait"``: it waits in the worker, ``wait`` s (None: for ever): first come, first served.
    - ``"skip"``: it does not run; its state becomes ``REVOKED``.
    - ``"join"``: it does not run; its result is the handle of the task that does (``result_from_tuple`` reads it).

    ``at``: ``"run"``, when the worker starts the task; or ``"enqueue"``, when it is sent: then the lock is pledged to
    the task for ``pledge`` s, which the worker that starts it adopts. With ``"skip"`` and ``"join"`` a duplicate is not
    even sent; with ``"retry"`` and ``"wait"`` it is, without a pledge.

    ``lease``, ``grace``, ``hold_at_most``, ``lock_delay``, ``tags``, ``on_lost`` and ``if_lost`` are those of
    :meth:`lockwarden.Warden.lock_all`.

    ``warden``: a :class:`lockwarden.Warden`, a function that gives one, or a URL. None:
    :func:`lockwarden.celery.default_warden`.
    """

    def decorate(function: F) -> F:
        _refuse_others(function)
        policy = Policy(
            name,
            function,
            on_conflict=on_conflict,
            at=at,
            wait=wait,
            pledge=pledge,
            backoff=backoff,
            backoff_most=backoff_most,
            max_conflicts=max_conflicts,
            lease=lease,
            grace=grace,
            hold_at_most=hold_at_most,
            lock_delay=lock_delay,
            tags=tags,
            on_lost=on_lost,
            if_lost=if_lost,
            warden=warden,
        )

        @functools.wraps(function)
        def exclusively(*args: Any, **kwargs: Any) -> Any:
            return _run.run(policy, function, args, kwargs)

        _enqueue.mark(exclusively, policy)
        return cast(F, exclusively)

    return decorate


def _refuse_others(function: Any) -> None:
    from celery import Task
    from celery.local import Proxy

    # Without asking the object itself: a proxy would have its app made ready too early.
    if issubclass(type(function), (Proxy, Task)):
        raise Invalid("@exclusive stands below @app.task, next to the function")
    if not callable(function):
        raise Invalid(f"@exclusive decorates a function, not {function!r}")
    if inspect.iscoroutinefunction(function):
        raise Invalid(f"{function!r} is a coroutine function: it runs after it has returned, without the lock")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise Invalid(f"{function!r} is a generator: it runs after it has returned, without the lock")
