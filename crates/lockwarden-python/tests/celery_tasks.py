"""The app that the tests' workers run, and the tests send to. What its tasks do is written into Redis, by the clock that
all processes of a machine share."""

from __future__ import annotations

import functools
import os
import time

import redis
from celery import Celery, Task, signals
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded

import lockwarden
from lockwarden.celery import exclusive, held

URL = os.environ.get("CELERY_TEST_URL", "redis://127.0.0.1:1/0")
book = redis.Redis.from_url(URL)

app = Celery("celery_tasks", broker=URL, backend=URL)
app.conf.update(
    broker_connection_retry_on_startup=True,
    broker_transport_options={
        "visibility_timeout": int(os.environ.get("CELERY_TEST_VISIBILITY", "3600")),
        # A lock of the broker's own, which a killed worker leaves for 5 minutes.
        "unacked_mutex_expire": 1,
    },
    task_default_queue="one",
    worker_prefetch_multiplier=1,
    worker_hijack_root_logger=False,
    # What is tested is told by locks and states, not by a slow poll for them.
    result_backend_transport_options={},
)


# Only this app's: the tests import this module anew for each server.
task = functools.partial(app.task, shared=False)


def warden():
    watch = os.environ.get("CELERY_TEST_WATCH", "1") == "1"
    return lockwarden.connect(URL, process_watch=watch)


if os.environ.get("CELERY_TEST_WARM"):
    # C14: the parent of the pool has used a lock, and holds another one, when it forks.
    with warden().lock("warm"):
        pass
    kept = warden().lock("kept")
    kept.acquire()


def note(what: str, work: str, **more) -> None:
    book.rpush("book", "|".join([what, work, str(os.getpid()), repr(time.monotonic()), *map(str, more.values())]))


def do(work: str, until_told: bool) -> str:
    """One step of work; told how long by the test."""
    own = app.current_task
    note("begin", work, id=own.request.id)
    try:
        if until_told:
            while not book.exists(f"go:{work}"):
                time.sleep(0.01)
                held().check() or note("lost", work)
    finally:
        note("end", work, id=own.request.id)
    return f"{work} done"


@signals.worker_ready.connect
def _ready(sender=None, **_):
    book.rpush(f"ready:{sender.hostname}", os.getpid())


@task()
@exclusive("work:{work}", on_conflict="wait", warden=warden)
def waits(work, until_told=False):
    return do(work, until_told)


@task(acks_late=True, reject_on_worker_lost=True)
@exclusive("work:{work}", on_conflict="skip", warden=warden)
def comes_again(work, until_told=False):
    return do(work, until_told)


@task()
@exclusive("work:{work}", on_conflict="skip", warden=warden)
def skips(work, until_told=False):
    return do(work, until_told)


@task()
@exclusive("work:{work}", on_conflict="retry", backoff=0.1, backoff_most=0.3, warden=warden)
def retries(work, until_told=False):
    return do(work, until_told)


@task()
@exclusive("work:{work}", on_conflict="retry", backoff=0.1, max_conflicts=2, warden=warden)
def retries_twice(work, until_told=False):
    return do(work, until_told)


@task()
@exclusive("work:{work}", on_conflict="join", warden=warden)
def joins(work, until_told=False):
    return do(work, until_told)


@task()
@exclusive("work:{work}", on_conflict="skip", at="enqueue", warden=warden)
def pledged(work, until_told=False):
    return do(work, until_told)


@task()
@exclusive("work:{work}", on_conflict="join", at="enqueue", warden=warden)
def pledged_joins(work, until_told=False):
    return do(work, until_told)


@task()
@exclusive("work:{work}", on_conflict="wait", at="enqueue", pledge=2, warden=warden)
def pledged_briefly(work, until_told=False):
    return do(work, until_told)


@task(acks_late=True, reject_on_worker_lost=True)
@exclusive("work:{work}", on_conflict="skip", at="enqueue", warden=warden)
def pledged_comes_again(work, until_told=False):
    return do(work, until_told)


@task(bind=True, max_retries=5)
@exclusive("work:{work}", on_conflict="skip", warden=warden)
def tries(self, work, times):
    do(work, False)
    if self.request.retries < times:
        raise self.retry(countdown=0.01)
    return self.request.retries


@task(bind=True, max_retries=5)
@exclusive("work:{work}", on_conflict="skip", at="enqueue", warden=warden)
def pledged_tries(self, work, times):
    do(work, False)
    if self.request.retries < times:
        raise self.retry(countdown=0.01)
    return self.request.retries


@task(bind=True, autoretry_for=(ZeroDivisionError,), retry_backoff=False, default_retry_delay=0.01)
@exclusive("work:{work}", on_conflict="skip", warden=warden)
def tries_by_itself(self, work, times):
    do(work, False)
    if self.request.retries < times:
        raise ZeroDivisionError("not yet")
    return self.request.retries


@task()
@exclusive("work:{work}", on_conflict="skip", warden=warden)
def fails(work, how):
    do(work, False)
    raise {"error": ValueError("no"), "ignore": Ignore(), "reject": Reject("no", requeue=False)}[how]


@task()
@exclusive("work:{work}", on_conflict="wait", warden=warden)
def limited(work, inside="body"):
    """Tells where the soft limit reached it."""
    try:
        return do(work, True)
    except SoftTimeLimitExceeded:
        note("soft", work)
        raise


@task()
@exclusive("work:{work}", on_conflict="skip", warden=warden, on_lost=lambda why: note("told", why))
def loses(work, until_told=False):
    return do(work, until_told)


@task()
@exclusive("work:{work}", on_conflict="skip", warden=warden, if_lost="log")
def loses_and_goes_on(work, until_told=False):
    return do(work, until_told)


class Billing(Task):
    name = "celery_tasks.Billing"

    @exclusive("work:{work}", on_conflict="skip", at="enqueue", warden=warden)
    def run(self, work, until_told=False):
        return do(work, until_told)


billing = app.register_task(Billing())


@task()
@exclusive("work:{work}", on_conflict="skip", warden=warden)
def inner(work):
    return "inner"


@task()
@exclusive("work:{work}", on_conflict="skip", warden=warden)
def outer(work):
    """Calls tasks with the same lock: at once, and as a function."""
    fence = held().fence
    result = (inner.apply((work,)).get(disable_sync_subtasks=False), inner(work))
    assert held().fence == fence and held().check()
    return result


@task(acks_late=True)
def plain_redis_py(work, until_told=False):
    """The report that this is about: redis-py's Lock, without a time-out."""
    lock = book.lock(f"plain:{work}", blocking=False)
    if not lock.acquire(token=app.current_task.request.id):
        note("LOCKED", work, id=app.current_task.request.id)
        return "LOCKED"
    try:
        return do_plain(work, until_told)
    finally:
        lock.release()


def do_plain(work, until_told):
    note("begin", work, id=app.current_task.request.id)
    while until_told and not book.exists(f"go:{work}"):
        time.sleep(0.01)
    note("end", work, id=app.current_task.request.id)
    return f"{work} done"
