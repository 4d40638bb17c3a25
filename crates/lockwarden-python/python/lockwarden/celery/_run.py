"""At run: the lock is acquired around the task's body.

A time limit may raise its exception at any instruction here (C64). So what is acquired is either on its way, and then
giving up the call gives it back; or it is in a list that is emptied on every way out.
"""

from __future__ import annotations

import contextvars
import logging
import time
from typing import Any, Callable, List, Optional, Tuple

from .. import _waiting
from .._errors import Busy, Error, Guarded, LockLost, NotHandedOver, NotHeld, Timeout, Unavailable
from .._lock import Held, Lock
from .._native import Guard, Options
from .._warden import Warden
from . import _conflict
from ._policy import TASK, Policy, Who
from ._request import pledge_of

log = logging.getLogger("lockwarden.celery")

# The innermost last.
_held: contextvars.ContextVar[Tuple[Held, ...]] = contextvars.ContextVar("lockwarden_celery_held", default=())

# A store that began anew grants nothing for 3 s, what was pledged neither.
_GUARD = 5.0


def held() -> Held:
    """What the task that runs here holds: for ``check()`` before a step that counts, ``fence``, ``lost``."""
    now = _held.get()
    if not now:
        raise NotHeld("no exclusive task runs here")
    return now[-1]


def run(policy: Policy, function: Callable[..., Any], args: Tuple[Any, ...], kwargs: Any) -> Any:
    """Runs the body while the lock is held."""
    guards: List[Guard] = []
    now: Optional[Held] = None
    try:
        try:
            now, outcome = _take(policy, guards, args, kwargs)
            if now is None:
                return outcome
            token = _held.set((*_held.get(), now))
            try:
                result = function(*args, **kwargs)
            finally:
                _held.reset(token)
        except BaseException as error:
            _end(policy, guards, error)
            raise
        _end(policy, guards, None)
        return result
    except BaseException:
        # What came between may have been the exception of a time limit.
        for guard in guards:
            guard.drop()
        raise
    finally:
        # Not what it shares with the task that called it.
        if now is not None and guards:
            now._forget()


def _take(
    policy: Policy, guards: List[Guard], args: Tuple[Any, ...], kwargs: Any
) -> Tuple[Optional[Held], Any]:
    """The lock; or what the task's outcome is without it."""
    from celery import current_task

    task = current_task
    if not task:
        raise NotHeld("an exclusive function is called as a task: by Celery, or as one")
    request = task.request
    who = Who.runs(task, request)
    warden = policy.warden(task.app)
    pledged = pledge_of(request)
    if pledged is not None:
        lock, options = policy.lock(warden, [], who, handed_over=pledged)
        try:
            return _adopt(policy, guards, lock, options), None
        except NotHandedOver as error:
            log.info("%s asks for its lock anew: %s", who.label, error)
    name = policy.namer.name(task.name, args, kwargs)
    outer = _outer(name, warden)
    if outer is not None:
        return outer, None
    lock, options = policy.lock(warden, [name], who)
    is_message = not request.called_directly and not request.is_eager
    # What is called here and now cannot come again later.
    waits = policy.on_conflict == "wait" or (policy.on_conflict == "retry" and not is_message)
    try:
        try:
            return _acquire(policy, guards, lock, options, policy.wait if waits else 0.0), None
        except (Busy, Timeout) as busy:
            if not (is_message and is_of(busy, who.task_id)):
                raise
            # The task came again: its predecessor is dead, as a rule, and is followed as soon as that is proved.
            return _acquire(policy, guards, lock, options, policy.takeover), None
    except (Busy, Timeout) as busy:
        if request.called_directly or waits:
            raise
        return None, _conflict.outcome(policy, task, request, busy, is_own=is_of(busy, who.task_id))
    except Unavailable as error:
        if policy.on_conflict != "retry" or not is_message:
            raise
        return None, _conflict.retry(policy, task, request, error)


def _outer(name: str, warden: Warden) -> Optional[Held]:
    """What a task has that this one is called by, here and now: it does nothing else meanwhile."""
    for now in reversed(_held.get()):
        if now.name == name and now._lock.warden is warden and now._owner == now._lock._asker() and now.check():
            return now
    return None


def is_of(refused: Any, task_id: Optional[str]) -> bool:
    """Is it a run of the very same task that is in the way?"""
    tags = (refused.holder or {}).get("tags") or {}
    return task_id is not None and tags.get(TASK) == task_id


def _adopt(policy: Policy, guards: List[Guard], lock: Lock, options: Options) -> Held:
    until = time.monotonic() + _GUARD
    while True:
        try:
            return _acquire(policy, guards, lock, options, 0.0)
        except (Busy, Guarded):
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def _acquire(
    policy: Policy, guards: List[Guard], lock: Lock, options: Options, wait: Optional[float]
) -> Held:
    owner = lock._asker()
    acquire_into(guards, lock.warden, options, wait, owner, policy.site)
    now = lock._took(owner, guards[-1])
    if policy.on_lost is not None:
        now.on_lost(policy.on_lost)
    return now


def acquire_into(
    guards: List[Guard],
    warden: Warden,
    options: Options,
    wait: Optional[float],
    owner: Optional[str],
    site: Optional[str],
) -> None:
    """No name holds the guard in between: if an exception comes there, the guard goes, and with it the lock."""
    native = warden._native
    if _waiting.is_green():
        guards.append(
            _waiting.wait_green(
                lambda box, future: native.start_acquire(options, box, future, wait=wait, owner=owner, site=site)
            )
        )
    else:
        guards.append(native.acquire(options, wait=wait, owner=owner, site=site))


def release(guard: Guard) -> None:
    if _waiting.is_green():
        _waiting.wait_green(lambda box, future: guard.start_release(box, future))
    else:
        guard.release()


def _end(policy: Policy, guards: List[Guard], error: Optional[BaseException]) -> None:
    """Gives back what is held. What the body raised is never hidden (C03)."""
    for guard in guards:
        if not guard.held and guard.loss is None:
            # Released, or handed over, by the body.
            continue
        try:
            release(guard)
        except Error as failed:
            is_lost = isinstance(failed, (LockLost, NotHeld))
            if is_lost and policy.if_lost == "ignore":
                continue
            # Of a store that does not answer nobody knows; the release is tried on.
            if error is None and is_lost and policy.if_lost == "raise":
                raise
            log.warning("%s", failed)
