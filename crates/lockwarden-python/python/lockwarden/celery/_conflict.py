"""What becomes of a task that does not get its lock."""

from __future__ import annotations

import logging
import random
from typing import Any, Union

from .._errors import Busy, Error, Timeout
from ._policy import TASK, Policy
from ._request import CONFLICTS, conflicts_of, without_pledge

log = logging.getLogger("lockwarden.celery")

_MOST_DOUBLINGS = 30


def outcome(policy: Policy, task: Any, request: Any, busy: Union[Busy, Timeout], *, is_own: bool) -> Any:
    """The task's result, or the exception that tells Celery what to do with it."""
    from celery.exceptions import Ignore

    if policy.on_conflict == "retry":
        return retry(policy, task, request, busy)
    if is_own:
        # The same task is delivered twice, and runs: its result is its own.
        log.warning("%s[%s] runs already, and was delivered once more: %s", task.name, request.id, busy)
        raise Ignore
    if (request.retries or 0) > 0 and not request.is_eager:
        # A task that began is not dropped because another one came in between its tries.
        return retry(policy, task, request, busy)
    if policy.on_conflict == "join":
        running = running_task(busy)
        if running is None:
            # Nobody whose result there could be.
            return retry(policy, task, request, busy) if not request.is_eager else _skip(task, request, busy)
        return task.AsyncResult(running).as_tuple()
    return _skip(task, request, busy)


def _skip(task: Any, request: Any, busy: Error) -> Any:
    from celery.exceptions import Ignore

    log.info("%s[%s] is skipped: %s", task.name, request.id, busy)
    if not request.is_eager:
        # So that nobody waits for a result, or a chain or a chord for this part of it, for ever.
        from celery.exceptions import TaskRevokedError

        task.backend.mark_as_failure(
            request.id,
            TaskRevokedError(f"skipped: {busy}"),
            request=request,
            store_result=not request.ignore_result,
            call_errbacks=False,
            state="REVOKED",
        )
    raise Ignore


def running_task(refused: Any) -> Any:
    """The id of the task that holds the lock; None: it is no task."""
    return ((refused.holder or {}).get("tags") or {}).get(TASK)


def retry(policy: Policy, task: Any, request: Any, error: Error) -> Any:
    """The task is sent again, for later. Its own count of tries stays as it is: it has not begun."""
    from celery.exceptions import Retry

    before = conflicts_of(request)
    if request.is_eager or (policy.max_conflicts is not None and before >= policy.max_conflicts):
        raise error
    longest = min(policy.backoff_most, policy.backoff * 2.0 ** min(before, _MOST_DOUBLINGS))
    delay = longest * random.uniform(0.5, 1.0)
    again = task.signature_from_request(request, countdown=delay, retries=request.retries or 0)
    headers = without_pledge(again.options.get("headers"))
    again.options["headers"] = {**headers, CONFLICTS: before + 1}
    again.apply_async()
    raise Retry(exc=error, when=delay, sig=again)
