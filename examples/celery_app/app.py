"""Billing, as Celery tasks. The Redis that is broker, results and locks at once is named by REDIS_URL."""

import os
import time

import redis
from celery import Celery

from lockwarden.celery import exclusive, held

URL = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379/0")

app = Celery("app", broker=URL, backend=URL)
app.conf.broker_connection_retry_on_startup = True

# Who does what, for load.py: a list of "begin|end, invoice, task, pid, time".
book = redis.Redis.from_url(URL)


def work(invoice_id, task_id, seconds):
    def note(what):
        book.rpush("example:book", f"{what} {invoice_id} {task_id} {os.getpid()} {time.monotonic()}")

    note("begin")
    time.sleep(seconds)
    note("end")
    return f"invoice {invoice_id} is billed"


# acks_late and reject_on_worker_lost: what was killed is done once more.
@app.task(bind=True, acks_late=True, reject_on_worker_lost=True)
@exclusive("invoice:{invoice_id}", on_conflict="wait")
def bill(self, invoice_id, seconds=0.3):
    result = work(invoice_id, self.request.id, seconds)
    # Before the step that counts: false if somebody else may have been granted the lock.
    if not held().check():
        raise RuntimeError("the lock was lost")
    return result


@app.task(bind=True, acks_late=True, reject_on_worker_lost=True)
def bill_with_redis_py(self, invoice_id, seconds=0.3):
    """The same under redis-py's Lock, which a killed process leaves for ever."""
    lock = book.lock(f"example:lock:{invoice_id}")
    if not lock.acquire(blocking=False, token=self.request.id):
        raise self.retry(countdown=0.2, max_retries=50)
    try:
        return work(invoice_id, self.request.id, seconds)
    finally:
        lock.release()
