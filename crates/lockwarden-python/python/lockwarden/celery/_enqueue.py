"""At enqueue: the lock is pledged to the task before it is sent, and travels in its message.

A pledge is a lock that was handed over: nobody holds it, nobody looks whether anyone lives, and it ends with its time.
"""

from __future__ import annotations

import functools
import logging
import threading
import uuid
from datetime import datetime, timezone
from typing import Any, Callable, Dict, List, Optional

from .. import _native
from .._errors import Busy, Error, NotHandedOver
from .._native import Guard
from .._warden import Warden
from ._conflict import running_task
from ._policy import Policy, Who
from ._request import PLEDGE, pledge_of, without_pledge
from ._run import acquire_into, release

log = logging.getLogger("lockwarden.celery")

_ATTRIBUTE = "__lockwarden_exclusive__"
_LONGEST = 30 * 24 * 3600.0
_POSITIONAL = ("task_id", "producer", "link", "link_error", "shadow")


def mark(function: Any, policy: Policy) -> None:
    """Lets the task that is made of this function be found out."""
    setattr(function, _ATTRIBUTE, policy)
    if policy.at == "enqueue":
        _install()


def policy_of(task: Any) -> Optional[Policy]:
    policy = getattr(getattr(task, "run", None), _ATTRIBUTE, None)
    return policy if isinstance(policy, Policy) else None


_installed = threading.Lock()


def _install() -> None:
    """Has every task that is sent pass by here: a decorator of the function does not see the task that is made of it."""
    from celery import Task, signals

    with _installed:
        if hasattr(Task.apply_async, _ATTRIBUTE):
            return
        original = Task.apply_async

        @functools.wraps(original)
        def apply_async(self: Any, args: Any = None, kwargs: Any = None, *rest: Any, **options: Any) -> Any:
            policy = policy_of(self)
            if policy is None or policy.at != "enqueue":
                return original(self, args, kwargs, *rest, **options)
            options.update(zip(_POSITIONAL, rest))

            def send(**more: Any) -> Any:
                return original(self, args, kwargs, **{**options, **more})

            return _send(policy, self, args or (), kwargs or {}, options, send)

        setattr(apply_async, _ATTRIBUTE, True)
        Task.apply_async = apply_async
        signals.task_revoked.connect(_revoked, weak=False, dispatch_uid="lockwarden.celery")


def _send(
    policy: Policy, task: Any, args: Any, kwargs: Any, options: Dict[str, Any], send: Callable[..., Any]
) -> Any:
    from celery.exceptions import TaskRevokedError
    from celery.result import EagerResult

    task_id = options.get("task_id")
    headers = without_pledge(options.get("headers"))
    if _goes_without(task, task_id, options):
        return send(headers=headers or None)
    task_id = task_id or str(uuid.uuid4())
    warden = policy.warden(task.app)
    own = (task,) if _is_bound(task) else ()
    name = policy.namer.name(task.name, (*own, *args), kwargs)
    who = Who(task_id, task.name, None, _queue_of(task, options))
    try:
        text = _pledge(policy, warden, name, who, _keep(policy, options))
    except Busy as busy:
        running = running_task(busy)
        if policy.on_conflict == "join" and running is not None:
            return task.AsyncResult(running)
        if policy.on_conflict == "skip":
            log.info("%s[%s] is not sent: %s", task.name, task_id, busy)
            return EagerResult(task_id, TaskRevokedError(f"skipped: {busy}"), "REVOKED")
        # The worker sees to it.
        return send(task_id=task_id, headers=headers or None)
    try:
        return send(task_id=task_id, headers={**headers, PLEDGE: text})
    except BaseException:
        # It may have been sent all the same: then it asks for the lock as any other.
        _free(warden, text)
        raise


def _goes_without(task: Any, task_id: Optional[str], options: Dict[str, Any]) -> bool:
    """A retry asks when it runs; so does a part of a chord, which must not be left out; what runs here and now does."""
    from celery import current_task

    if task.app.conf.task_always_eager or options.get("chord") or (options.get("retries") or 0) > 0:
        return True
    return bool(current_task) and task_id is not None and current_task.request.id == task_id


def _pledge(policy: Policy, warden: Warden, name: str, who: Who, keep: float) -> str:
    guards: List[Guard] = []
    # An owner of its own: the sender may be a task that holds the lock itself, and it is not that one's part.
    _, options = policy.lock(warden, [name], who, own_token=False)
    try:
        acquire_into(guards, warden, options, 0.0, f"pledge.{uuid.uuid4().hex}", policy.site)
        return guards[0].hand_over(keep)
    except BaseException:
        for guard in guards:
            guard.drop()
        raise


def _keep(policy: Policy, options: Dict[str, Any]) -> float:
    """For how long: counted from when the task is due."""
    later = 0.0
    eta = options.get("eta")
    if options.get("countdown"):
        later = float(options["countdown"])
    elif isinstance(eta, datetime):
        now = datetime.now(eta.tzinfo or timezone.utc).replace(tzinfo=eta.tzinfo)
        later = (eta - now).total_seconds()
    return min(policy.pledge + max(later, 0.0), _LONGEST)


def _is_bound(task: Any) -> bool:
    run = getattr(task, "_orig_run", None) or task.run
    return hasattr(run, "__self__")


def _queue_of(task: Any, options: Dict[str, Any]) -> Optional[str]:
    queue = options.get("queue") or getattr(task, "queue", None) or options.get("routing_key")
    queue = queue or task.app.conf.task_default_queue
    return str(getattr(queue, "name", queue))


def _revoked(sender: Any = None, request: Any = None, **_: Any) -> None:
    """In the worker's main process: a task was revoked, or came too late. What it was pledged is for others."""
    text = pledge_of(request)
    policy = policy_of(sender)
    if text is None or policy is None:
        return
    # Elsewhere: a store that does not answer must not stop the worker.
    threading.Thread(target=_free_later, args=(policy, sender.app, text), daemon=True).start()


def _free_later(policy: Policy, app: Any, text: str) -> None:
    try:
        _free(policy.warden(app), text)
    except Error as error:
        log.warning("a pledge stays until it ends: %s", error)


def _free(warden: Warden, text: str) -> None:
    """Adopts it and gives it back."""
    guards: List[Guard] = []
    try:
        options = _native.Options([], handed_over=text)
        acquire_into(guards, warden, options, 0.0, None, None)
        release(guards[0])
    except NotHandedOver:
        pass  # A worker has it, or its time is over.
    except Error as error:
        log.warning("a pledge stays until it ends: %s", error)
    finally:
        for guard in guards:
            guard.drop()
