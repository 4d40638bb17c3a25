"""Exclusive tasks in real workers: conflicts, pools, and what a lock tells of its task."""

from __future__ import annotations

import pytest
from celery.exceptions import TaskRevokedError
from celery.result import result_from_tuple
from celery_workers import Farm, broker, farm, name  # noqa: F401

import lockwarden

POOLS = ["prefork", "threads", "solo", "gevent"]


def begin(farm: Farm, work: str, task=None, **options):
    """A task that runs until it is told."""
    result = (task or farm.tasks.waits).apply_async((work, True), **options)
    farm.book.wait(work, "begin")
    return result


def test_a_holder_is_known_by_its_task(farm: Farm, name):
    """A1: task id, worker and queue, in the token that other clients see, in the label, and in tags."""
    worker = farm.worker()
    running = begin(farm, name)
    (holder,) = farm.tasks.warden().show(f"work:{name}")["holders"]
    value = farm.server.redis.get(f"work:{name}").decode()
    for part in (running.id, worker.name, "one"):
        assert part in holder["label"] and part in holder["token"].decode() and part in value
    assert holder["tags"] == {
        "task": running.id, "task_name": "celery_tasks.waits", "worker": worker.name, "queue": "one",
    }
    assert holder["pid"] == farm.book.wait(name, "begin").pid
    assert "celery_tasks.py:" in holder["site"]
    farm.book.go(name)
    assert running.get(10) == f"{name} done"
    farm.nothing_left()


@pytest.mark.parametrize("pool", POOLS)
def test_one_after_the_other(farm: Farm, name, pool):
    """In every pool; a pool of one takes turns anyway."""
    farm.worker(pool, 1 if pool == "solo" else 4)
    results = [farm.tasks.waits.delay(name) for _ in range(12)]
    assert [it.get(30) for it in results] == [f"{name} done"] * 12
    farm.book.never_two_at_once(name, {})
    assert len(farm.book.events(name, "end")) == 12
    farm.nothing_left()


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_waiting_is_first_come_first_served(farm: Farm, name, pool):
    farm.worker(pool, 4)
    first = begin(farm, name)
    second = farm.tasks.waits.delay(name)
    farm.waiting(f"work:{name}")
    third = farm.tasks.waits.delay(name)
    farm.waiting(f"work:{name}", 2)
    farm.book.go(name)
    for result in (first, second, third):
        result.get(20)
    assert [it.task for it in farm.book.events(name, "begin")] == [first.id, second.id, third.id]
    farm.book.never_two_at_once(name, {})


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_skip(farm: Farm, name, pool):
    farm.worker(pool, 4)
    first = begin(farm, name)
    second = farm.tasks.skips.delay(name)
    with pytest.raises(TaskRevokedError, match="skipped"):
        second.get(20)
    assert second.state == "REVOKED"
    farm.book.go(name)
    first.get(20)
    assert len(farm.book.events(name, "begin")) == 1
    assert farm.tasks.skips.delay(name).get(20) == f"{name} done"
    farm.nothing_left()


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_retry(farm: Farm, name, pool):
    """Retried with backoff; the pool is free for others meanwhile, and no try is counted."""
    farm.worker(pool, 2)
    first = begin(farm, name)
    others = [farm.tasks.retries.delay(name) for _ in range(3)]
    free = farm.tasks.retries.delay(f"{name}-other")
    assert free.get(20)
    farm.book.go(name)
    for result in (first, *others):
        assert result.get(30) == f"{name} done"
    farm.book.never_two_at_once(name, {})
    assert len(farm.book.events(name, "begin")) == 4


def test_retry_has_an_end(farm: Farm, name):
    farm.worker()
    first = begin(farm, name)
    with pytest.raises(Exception, match="held by") as caught:
        farm.tasks.retries_twice.delay(name).get(20)
    assert type(caught.value).__name__ == "Busy"
    farm.book.go(name)
    first.get(20)


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_join(farm: Farm, name, pool):
    """The duplicate's result is the handle of the task that runs."""
    farm.worker(pool, 4)
    first = begin(farm, name)
    second = farm.tasks.joins.delay(name)
    handle = result_from_tuple(second.get(20), app=farm.tasks.app)
    assert handle.id == first.id
    farm.book.go(name)
    assert handle.get(20) == f"{name} done"
    assert len(farm.book.events(name, "begin")) == 1


def test_join_where_nobody_is_a_task(farm: Farm, name):
    """There is no result to give: it comes again."""
    farm.worker()
    other = farm.tasks.warden().lock(f"work:{name}")
    assert other.acquire(timeout=5)
    second = farm.tasks.joins.delay(name)
    log = farm.workers[0].log
    from conftest import eventually

    eventually(lambda: "retry" in log.read_text().lower(), 20, "a retry")
    other.release()
    assert second.get(30) == f"{name} done"


def test_nested_tasks_share_their_lock(farm: Farm, name):
    farm.worker()
    assert tuple(farm.tasks.outer.delay(name).get(20)) == ("inner", "inner")
    farm.nothing_left()


def test_eager_and_direct(farm: Farm, name):
    """C63 h: the same exclusion without a worker."""
    tasks = farm.tasks
    tasks.app.conf.task_always_eager = True
    tasks.app.conf.task_eager_propagates = True
    try:
        for task in (tasks.skips, tasks.joins, tasks.retries, tasks.waits, tasks.pledged, tasks.pledged_joins):
            assert task.delay(name).get() == f"{name} done"
            assert task.apply((name,)).get() == f"{name} done"
            assert task(name) == f"{name} done"
        farm.nothing_left()
        other = lockwarden.connect(farm.server.url(), label="other").lock(f"work:{name}", owner="other")
        with other:
            assert tasks.skips.delay(name).state == "IGNORED"
            with pytest.raises(lockwarden.Busy):
                tasks.skips(name)
        assert len(farm.book.events(name, "begin")) == 18
    finally:
        tasks.app.conf.task_always_eager = False
    farm.nothing_left()


@pytest.mark.parametrize("task", ["loses", "loses_and_goes_on"])
def test_a_loss_is_told(farm: Farm, name, task):
    """An operator's revoke in the middle."""
    from conftest import eventually

    farm.worker("prefork", 1)
    result = getattr(farm.tasks, task).delay(name, True)
    farm.book.wait(name, "begin")
    (holder,) = farm.tasks.warden().show(f"work:{name}")["holders"]
    farm.tasks.warden().revoke(f"work:{name}", holder["token"])
    farm.book.wait(name, "lost")
    if task == "loses":
        eventually(lambda: b"told|" in b"".join(farm.server.redis.lrange("book", 0, -1)), what="on_lost")
    farm.book.go(name)
    if task == "loses":
        with pytest.raises(Exception) as caught:
            result.get(20)
        assert type(caught.value).__name__ == "LockLost"
    else:
        assert result.get(20) == f"{name} done"
    assert farm.tasks.loses.delay(name).get(20) == f"{name} done"
    farm.nothing_left()


def test_a_chord_with_a_skipped_part_ends(farm: Farm, name):
    from celery import chord

    farm.worker("prefork", 4)
    first = begin(farm, name)
    done = chord([farm.tasks.skips.si(name), farm.tasks.skips.si(f"{name}-2")])(farm.tasks.skips.si(f"{name}-3"))
    with pytest.raises(Exception, match="skipped"):
        done.get(20)
    farm.book.go(name)
    first.get(20)
    farm.nothing_left()


def test_a_chain_with_a_skipped_part_ends(farm: Farm, name):
    """Nobody waits for ever for what comes after it."""
    from celery import chain

    farm.worker("prefork", 4)
    first = begin(farm, name)
    last = chain(farm.tasks.skips.si(name), farm.tasks.skips.si(f"{name}-2"), farm.tasks.skips.si(f"{name}-3"))()
    with pytest.raises(TaskRevokedError, match="skipped"):
        last.get(20)
    farm.book.go(name)
    first.get(20)
    farm.nothing_left()


def test_a_time_limit_of_gevent(farm: Farm, name):
    """It ends the greenlet by an exception: in the body, and while it waits."""
    from conftest import eventually

    farm.worker("gevent", 4)
    first = farm.tasks.waits.apply_async((name, True), time_limit=2)
    farm.book.wait(name, "begin")
    second = farm.tasks.waits.apply_async((name, True), time_limit=1)
    farm.waiting(f"work:{name}")
    eventually(lambda: not farm.tasks.warden().show(f"work:{name}")["queue"], what="an empty queue")
    farm.book.wait(name, "end")
    farm.free(f"work:{name}", 2)
    assert len(farm.book.events(name, "begin")) == 1
    assert farm.tasks.skips.delay(name).get(20) == f"{name} done"
    farm.nothing_left()
    del first, second


def test_where_the_locks_are(farm: Farm, monkeypatch):
    """The app's setting, the environment, the broker; and never a store that others do not see."""
    from celery import Celery

    from lockwarden.celery import default_warden
    from lockwarden.celery._policy import default_url

    def url(where, **conf):
        app = Celery("where", broker=where, set_as_current=False)
        app.conf.update(conf)
        return default_url(app)

    monkeypatch.delenv("LOCKWARDEN_URL", raising=False)
    assert url("redis://one:1/2?x=y") == "redis://one:1/2"
    assert url(["rediss://:p@one/2"]) == "rediss://:p@one/2"
    assert url("amqp://one", lockwarden_url="redis://two") == "redis://two"
    for where in ("amqp://one", "sentinel://one;sentinel://two", "redis://one;redis://two", ["redis://a", "redis://b"],
                  "memory://"):
        with pytest.raises(lockwarden.Invalid, match="lockwarden_url"):
            url(where)
    monkeypatch.setenv("LOCKWARDEN_URL", "redis://three")
    assert url("redis://one:1/2") == "redis://three"
    monkeypatch.setenv("LOCKWARDEN_URL", farm.server.url())
    warden = default_warden(farm.tasks.app)
    assert warden is default_warden(farm.tasks.app)
    warden.close()
    assert default_warden(farm.tasks.app) is not warden
    default_warden(farm.tasks.app).close()


def test_what_is_no_task(farm: Farm):
    from lockwarden.celery import exclusive

    with pytest.raises(lockwarden.Invalid, match="below @app.task"):
        exclusive("x")(farm.tasks.waits)
    with pytest.raises(lockwarden.Invalid, match="below @app.task"):

        @exclusive("x")
        @farm.tasks.app.task
        def other():
            pass

    for wrong in ({"on_conflict": "drop"}, {"at": "once"}, {"wait": 3}, {"pledge": 0}, {"if_lost": "?"},
                  {"max_conflicts": 1.5}, {"backoff": -1}, {"on_lost": 3}):
        with pytest.raises(lockwarden.Invalid):
            exclusive("x", **wrong)(lambda: None)

    async def later():
        pass

    with pytest.raises(lockwarden.Invalid, match="coroutine"):
        exclusive("x")(later)
    with pytest.raises(lockwarden.NotHeld, match="no exclusive task"):
        from lockwarden.celery import held

        held()
