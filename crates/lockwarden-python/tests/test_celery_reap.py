"""A2: locks of dead tasks that plain redis-py wrote are freed, on proof, and no other."""

from __future__ import annotations

import signal
import uuid

import pytest
from celery_workers import Farm, broker, farm, kill, name  # noqa: F401

import lockwarden
from lockwarden.celery import reap


def states(found):
    return {it.name: it.state for it in found}


def reaped(farm: Farm, pattern: str, **options):
    options = {"timeout": 5, "between": 0.1, "warden": farm.server.url(), **options}
    return reap(farm.tasks.app, pattern, **options)


def plain(farm: Farm, key: str, token: str, seconds=None) -> None:
    """As redis-py's Lock does."""
    assert farm.server.redis.lock(key, timeout=seconds).acquire(token=token)


def test_a2_a_dead_tasks_lock_is_freed(farm: Farm, name):
    farm.worker("prefork", 2)
    farm.answering()
    result = farm.tasks.plain_redis_py.delay(name, True)
    begun = farm.book.wait(name, "begin")
    key = f"plain:{name}"
    (found,) = reaped(farm, "plain:*", free=True)
    assert (found.state, found.task_id) == ("alive", result.id) and "active at" in found.why
    kill(begun.pid)
    # The worker gives its child's task up when it notices.
    from conftest import eventually

    eventually(lambda: states(reaped(farm, "plain:*")) == {key: "dead"}, what="the task to be dead")
    assert farm.server.redis.get(key) == result.id.encode(), "a dry run changes nothing"
    (found,) = reaped(farm, "plain:*", free=True)
    assert found.state == "freed" and "no worker has the task" in found.why
    assert farm.server.redis.get(key) is None
    farm.book.go(name)
    assert farm.tasks.plain_redis_py.delay(name).get(20) == f"{name} done"


def test_a2_reserved_and_scheduled_tasks_are_alive(farm: Farm, name):
    farm.worker("solo", 1)
    busy = farm.tasks.waits.delay(name, True)
    scheduled = farm.tasks.skips.apply_async((f"{name}-later",), countdown=600)
    farm.book.wait(name, "begin")
    farm.book.go(name)
    busy.get(20)
    # A pool of one that works does not answer; so these wait beside one of threads.
    farm.worker("threads", 1, "two")
    farm.answering()
    running = farm.tasks.waits.apply_async((f"{name}-2", True), queue="two")
    farm.book.wait(f"{name}-2", "begin")
    reserved = farm.tasks.waits.apply_async((f"{name}-3",), queue="two")
    for what, one in (("scheduled", scheduled), ("active", running), ("reserved", reserved)):
        plain(farm, f"plain:{what}", one.id)
    from conftest import eventually

    def known():
        return {it.name: it.why.split()[0] for it in reaped(farm, "plain:*", free=True)}

    eventually(lambda: known() == {f"plain:{it}": it for it in ("scheduled", "active", "reserved")},
               what="all three to be known")
    assert len(farm.server.redis.keys("plain:*")) == 3
    farm.book.go(f"{name}-2")
    reserved.get(20)


def test_a2_silence_is_unknown(farm: Farm, name):
    """A worker that does not answer may run anything: one that is stopped, one that is gone, one that the caller says."""
    farm.worker("threads", 1)
    silent = farm.worker("prefork", 1, "two")
    farm.answering()
    plain(farm, "plain:x", str(uuid.uuid4()))
    assert states(reaped(farm, "plain:*")) == {"plain:x": "dead"}
    silent.process.send_signal(signal.SIGSTOP)
    (found,) = reaped(farm, "plain:*", free=True, timeout=1)
    assert found.state == "unknown" and silent.name in found.why
    silent.process.send_signal(signal.SIGCONT)
    silent.kill()
    (found,) = reaped(farm, "plain:*", free=True, timeout=1)
    assert found.state == "unknown" and silent.name in found.why, "its mailbox is still bound"
    (found,) = reaped(farm, "plain:*", free=True, gone=[silent.name], workers=["other@host"], timeout=1)
    assert found.state == "unknown" and "other@host" in found.why
    assert farm.server.redis.exists("plain:x")
    (found,) = reaped(farm, "plain:*", free=True, gone=[silent.name])
    assert found.state == "freed"


def test_a2_no_worker_at_all_is_unknown(farm: Farm, name):
    plain(farm, "plain:x", str(uuid.uuid4()))
    (found,) = reaped(farm, "plain:*", free=True, timeout=1)
    assert found.state == "unknown" and "no worker is known" in found.why
    assert farm.server.redis.exists("plain:x")


def test_a2_only_what_is_a_tasks_lock(farm: Farm, name):
    """Other values, other types, our own locks, other patterns."""
    farm.worker("threads", 1)
    farm.answering()
    redis = farm.server.redis
    redis.set("plain:text", "hello")
    redis.set("plain:uuid-without-hyphens", uuid.uuid4().hex)
    redis.set(b"plain:\xff", str(uuid.uuid4()))
    redis.hset("plain:hash", "a", 1)
    redis.set("other:x", str(uuid.uuid4()))
    plain(farm, "plain:mine", "task-7")
    before = set(redis.keys("*"))
    with farm.tasks.warden().lock("plain:ours"):
        assert reaped(farm, "plain:*", free=True) == []
        found = reaped(farm, "plain:*", is_task_id=lambda it: it.startswith("task-"))
        assert states(found) == {"plain:mine": "dead"}
    assert before <= set(redis.keys("*"))


def test_a2_what_changes_meanwhile_is_left_alone(farm: Farm, name):
    """Seen twice: another holder of the same key is not the one that was seen."""
    farm.worker("threads", 1)
    farm.answering()
    first, second = str(uuid.uuid4()), str(uuid.uuid4())
    redis = farm.server.redis
    asked = []

    def changes(text):
        asked.append(text)
        # Between the first look and the second.
        redis.set("plain:x", second)
        return True

    plain(farm, "plain:x", first)
    (found,) = reaped(farm, "plain:*", free=True, is_task_id=changes)
    assert found.state == "changed" and found.task_id == first
    assert redis.get("plain:x") == second.encode()
    # And in the last moment: by token.
    from lockwarden.celery._reap import _free

    assert _free(farm.tasks.warden(), "plain:x", first, "")[0] == "changed"
    assert redis.get("plain:x") == second.encode()


def test_a2_a_waiting_lockwarden_gets_what_is_freed(farm: Farm, name):
    """While a code base moves from one to the other."""
    farm.worker()
    farm.answering()
    key = f"work:{name}"
    plain(farm, key, str(uuid.uuid4()))
    result = farm.tasks.waits.delay(name)
    farm.waiting(key)
    assert states(reaped(farm, "work:*", free=True)) == {key: "freed"}
    assert result.get(20) == f"{name} done"
    farm.nothing_left()


def test_what_reap_refuses(farm: Farm):
    for wrong in ({"workers": "one"}, {"gone": "one"}, {"timeout": -1}, {"warden": farm.tasks.warden}):
        with pytest.raises(lockwarden.Invalid):
            reaped(farm, "x:*", **wrong)
    with pytest.raises(lockwarden.Invalid):
        reaped(farm, "")
    assert reaped(farm, "x:*") == []
    assert reap(farm.tasks.app, "x:*") == [], "the broker's own database, by itself"
