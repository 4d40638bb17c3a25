"""Workers killed in the middle of exclusive tasks: the next run starts at once, and nothing runs twice."""

from __future__ import annotations

import itertools
import os
import time

import pytest
from celery_workers import Farm, broker, farm, gone, kill, name  # noqa: F401
from conftest import LONG, eventually

# In s: on the same machine, and elsewhere. The latter: grace, and what a recheck may take.
AT_ONCE = 0.1
AFTER_GRACE = 3.0 + 1.5

CHILD_KILLS, WORKER_KILLS, UNWATCHED = (100, 100, 100) if LONG else (12, 3, 3)


def crash(farm: Farm, work: str, how) -> float:
    """A task runs, another waits, the first one's process is killed: how long until the next begins, in s."""
    first = farm.tasks.waits.delay(work, True)
    begun = farm.book.wait(work, "begin")
    assert begun.task == first.id
    second = farm.tasks.waits.apply_async((work,), queue="two")
    farm.waiting(f"work:{work}")
    sent, seen = how(begun.pid)
    next_one = farm.book.wait(work, "begin", 2)
    assert next_one.task == second.id and second.get(30) == f"{work} done"
    farm.book.never_two_at_once(work, {begun.pid: sent})
    return next_one.at - seen


def at_once(times) -> None:
    """All of them; on a machine with far more to do than it can, whose own stalls are longer than that, nearly all."""
    times = sorted(times)
    if os.getloadavg()[0] <= 2 * (os.cpu_count() or 1):
        assert times[-1] < AT_ONCE, times
    else:
        late = [it for it in times if it >= AT_ONCE]
        assert len(late) <= max(1, len(times) // 10) and times[-1] < 10 * AT_ONCE, times


def told(what: str, times) -> None:
    times = sorted(times)
    print(f"\n{what}: {len(times)} times, median {times[len(times) // 2] * 1e3:.1f} ms, most "
          + ", ".join(f"{it * 1e3:.1f}" for it in times[-3:]) + " ms")


def test_a1_c11_killed_pool_child(farm: Farm, name):
    """The report: killed in the middle of an exclusive task. Its parent lives, and renews nothing."""
    worker = farm.worker("prefork", 4)
    farm.worker("prefork", 2, "two")
    times = [crash(farm, f"{name}-{n}", kill) for n in range(CHILD_KILLS)]
    told("after a pool child's death", times)
    assert worker.process.poll() is None
    at_once(times)
    farm.nothing_left()


def test_a1_c11_killed_worker(farm: Farm, name):
    """All of its processes."""
    farm.worker("prefork", 2, "two")
    times = []
    for n in range(WORKER_KILLS):
        worker = farm.worker("prefork", 4)
        times.append(crash(farm, f"{name}-{n}", lambda pid: kill(pid, worker.kill_all)))
        worker.kill()
    told("after a worker's death", times)
    at_once(times)
    farm.nothing_left()


def test_a1_c11_killed_without_a_process_watch(farm: Farm, name):
    """As if it had been on another machine. Several at once: each takes its grace."""
    side = 4
    worker = farm.worker("prefork", side, CELERY_TEST_WATCH="0")
    farm.worker("prefork", side, "two", CELERY_TEST_WATCH="0")
    times = []
    for round_ in range(-(-UNWATCHED // side) if LONG else 1):
        works = [f"{name}-{round_}-{n}" for n in range(side)]
        firsts = [farm.tasks.waits.delay(work, True) for work in works]
        begun = [farm.book.wait(work, "begin") for work in works]
        seconds = [farm.tasks.waits.apply_async((work,), queue="two") for work in works]
        for work in works:
            farm.waiting(f"work:{work}")
        sent, seen = {}, {}
        for it in begun:
            sent[it.pid], seen[it.pid] = kill(it.pid)
        for work, first, second in zip(works, begun, seconds):
            next_one = farm.book.wait(work, "begin", 2)
            assert next_one.task == second.id
            farm.book.never_two_at_once(work, sent)
            times.append(next_one.at - seen[first.pid])
        del firsts
    told("after a death that is not watched", times)
    assert worker.process.poll() is None
    assert max(times) < AFTER_GRACE
    farm.nothing_left()


@pytest.mark.parametrize("pool", ["threads", "solo", "gevent"])
def test_c11_killed_worker_of_another_pool(farm: Farm, name, pool):
    worker = farm.worker(pool, 1)
    farm.worker(pool, 1, "two")
    first = farm.tasks.waits.delay(name, True)
    begun = farm.book.wait(name, "begin")
    second = farm.tasks.waits.apply_async((name,), queue="two")
    farm.waiting(f"work:{name}")
    sent, seen = kill(begun.pid, worker.kill_all)
    next_one = farm.book.wait(name, "begin", 2)
    assert next_one.task == second.id != first.id
    at_once([next_one.at - seen])
    farm.book.never_two_at_once(name, {begun.pid: sent})
    assert second.get(20) == f"{name} done"
    farm.nothing_left()


def test_a1_killed_by_the_worker_under_redis_py_stays_stuck(farm: Farm, name):
    """The same with redis-py's Lock, which has no time-out there: the report, reproduced."""
    farm.worker("prefork", 4)
    first = farm.tasks.plain_redis_py.delay(name, True)
    begun = farm.book.wait(name, "begin")
    kill(begun.pid)
    until = time.monotonic() + AFTER_GRACE
    for count in itertools.count(1):
        assert farm.tasks.plain_redis_py.delay(name).get(20) == "LOCKED"
        if time.monotonic() > until:
            break
    assert farm.server.redis.get(f"plain:{name}") == first.id.encode()
    assert farm.server.redis.ttl(f"plain:{name}") == -1
    assert len(farm.book.events(name, "begin")) == 1
    print(f"\nunder redis-py's Lock: {count} runs found it LOCKED")


def test_c11_killed_by_a_hard_time_limit(farm: Farm, name):
    """The main process kills the child; the next one follows at once."""
    farm.worker("prefork", 2)
    farm.tasks.waits.apply_async((name, True), time_limit=1)
    begun = farm.book.wait(name, "begin")
    second = farm.tasks.waits.delay(name)
    farm.waiting(f"work:{name}")
    next_one = farm.book.wait(name, "begin", 2)
    # It is told to end first, and does so; or else it is killed.
    eventually(lambda: gone(begun.pid), what="the child's end")
    farm.book.never_two_at_once(name, {})
    assert second.get(20) and next_one.task == second.id
    farm.nothing_left()


@pytest.mark.parametrize("task", ["comes_again", "pledged_comes_again"])
@pytest.mark.parametrize("watch", ["1", "0"], ids=["here", "as elsewhere"])
def test_a_redelivered_task_takes_over_from_its_dead_predecessor(farm: Farm, name, task, watch):
    """acks_late: the very same task comes again. It is not skipped because of itself."""
    farm.worker("prefork", 2, CELERY_TEST_WATCH=watch)
    result = getattr(farm.tasks, task).delay(name, True)
    begun = farm.book.wait(name, "begin")
    died, _ = kill(begun.pid)
    again = farm.book.wait(name, "begin", 2)
    assert again.task == begun.task == result.id and again.pid != begun.pid
    farm.book.go(name)
    assert result.get(20) == f"{name} done"
    farm.book.never_two_at_once(name, {begun.pid: died})
    assert len(farm.book.events(name, "begin")) == 2
    farm.nothing_left()


def test_a_task_of_a_dead_worker_comes_again_elsewhere(farm: Farm, name):
    """acks_late: the broker gives it to another worker when nobody has acknowledged it for long enough."""
    worker = farm.worker("prefork", 2, CELERY_TEST_VISIBILITY="2")
    result = farm.tasks.comes_again.delay(name, True)
    begun = farm.book.wait(name, "begin")
    sent, _ = kill(begun.pid, worker.kill_all)
    # A worker looks for such tasks when it starts, and then seldom.
    index = "unacked_index"
    eventually(lambda: all(time.time() - at > 2.1 for _, at in farm.server.redis.zrange(index, 0, -1, withscores=True)),
               what="the visibility time-out")
    farm.worker("prefork", 2, CELERY_TEST_VISIBILITY="2")
    again = farm.book.wait(name, "begin", 2)
    assert again.task == begun.task
    farm.book.go(name)
    assert result.get(20) == f"{name} done"
    farm.book.never_two_at_once(name, {begun.pid: sent})


def test_a_task_that_is_delivered_twice_while_it_runs(farm: Farm, name):
    """Visibility time-out of the broker shorter than the task: the copy waits for the first one's end or death, and runs
    at no time beside it."""
    farm.worker("prefork", 2)
    result = farm.tasks.waits.delay(name, True)
    begun = farm.book.wait(name, "begin")
    # What the broker does then: the message is put into its queue again.
    (message,) = farm.server.redis.hvals("unacked") or [None]
    if message is None:
        farm.tasks.waits.apply_async((name, True), task_id=result.id)
    farm.waiting(f"work:{name}")
    farm.book.go(name)
    farm.book.wait(name, "end", 2)
    farm.book.never_two_at_once(name, {})
    assert {it.task for it in farm.book.events(name, "begin")} == {begun.task}


def test_c14_the_parent_has_used_locks_before_it_forked(farm: Farm, name):
    """Its children have connections of their own, and their locks are renewed; the parent's own lock, too."""
    farm.worker("prefork", 4, CELERY_TEST_WARM="1")
    works = [f"{name}-{n}" for n in range(4)]
    results = [farm.tasks.waits.delay(work, True) for work in works]
    for work in works:
        farm.book.wait(work, "begin")
    warden = farm.tasks.warden()

    def renewed():
        views = [warden.show(it)["holders"] for it in ("kept", *(f"work:{work}" for work in works))]
        assert all(len(view) == 1 for view in views), views
        # The lease is 30 s: it was renewed if more time has passed than is gone from it.
        return all(view[0]["held_s"] > 30 - view[0]["lease_left_s"] + 5 for view in views)

    eventually(renewed, 40, "a renewal of all")
    for work in works:
        farm.book.go(work)
    assert [it.get(20) for it in results] == [f"{work} done" for work in works]
    assert not farm.book.events(name, "lost")


def test_c19_nobody_renews_for_a_dead_child(farm: Farm, name):
    """Nobody waits either: the lease of the killed child runs down."""
    farm.worker("prefork", 2)
    farm.tasks.waits.delay(name, True)
    begun = farm.book.wait(name, "begin")
    kill(begun.pid)
    ttl = [farm.server.redis.pttl(f"work:{name}")]

    def runs_down():
        ttl.append(farm.server.redis.pttl(f"work:{name}"))
        assert ttl[-1] <= ttl[-2], "somebody has renewed it"
        return ttl[-1] < 19_000

    # At a third of its lease a living holder would have renewed.
    eventually(runs_down, 30, "the lease to run down")
    assert farm.tasks.skips.delay(f"{name}-other").get(20)
