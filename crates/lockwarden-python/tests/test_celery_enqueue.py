"""Locks that are pledged to a task when it is sent."""

from __future__ import annotations

import pytest
from celery.exceptions import TaskRevokedError
from celery_workers import PATHS, Farm, broker, farm, name  # noqa: F401
from conftest import eventually

import lockwarden


def holder(farm: Farm, name: str):
    (one,) = farm.tasks.warden().show(f"work:{name}")["holders"]
    return one


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent"])
def test_a_pledge_is_adopted_by_the_worker(farm: Farm, name, pool):
    result = farm.tasks.pledged.delay(name, True)
    pledge = holder(farm, name)
    assert pledge["state"] == "handed_over" and pledge["tags"]["task"] == result.id
    assert 3590 < pledge["lease_left_s"] <= 3600 and result.id in pledge["label"] and "one" in pledge["label"]
    # Nobody gets it in between, and whoever sends a duplicate is told at once.
    again = farm.tasks.pledged.delay(name)
    assert again.state == "REVOKED"
    with pytest.raises(TaskRevokedError, match="skipped"):
        again.get()
    worker = farm.worker(pool, 1 if pool == "solo" else 2)
    farm.book.wait(name, "begin")
    held = holder(farm, name)
    assert held["state"] == "held" and held["fence"] > pledge["fence"] and held["lease_left_s"] <= 30
    assert held["tags"]["worker"] == worker.name and worker.name in held["label"]
    assert farm.tasks.pledged.delay(name).state == "REVOKED"
    farm.book.go(name)
    assert result.get(20) == f"{name} done"
    farm.free(f"work:{name}")
    assert farm.tasks.pledged.delay(name).get(20) == f"{name} done"
    farm.nothing_left()


def test_the_senders_end_leaves_the_pledge(farm: Farm, name, child):
    """No probe and no process watch: it waits for the task, whatever became of the sender."""
    sender = child(
        "import celery_tasks, os, sys\n"
        "print(celery_tasks.pledged.delay(sys.argv[1]).id)\nos.kill(os.getpid(), 9)",
        name, CELERY_TEST_URL=farm.server.url(), PYTHONPATH=PATHS,
    )
    task_id = sender.line()
    sender.wait()
    # Whoever waits for it watches its holder's process, and would be followed at once.
    assert not farm.tasks.warden().lock(f"work:{name}").acquire(timeout=5)
    assert holder(farm, name)["tags"]["task"] == task_id
    farm.worker()
    farm.book.wait(name, "end")
    farm.free(f"work:{name}")


def test_join_gives_the_handle_of_the_task_that_is_to_run(farm: Farm, name):
    first = farm.tasks.pledged_joins.delay(name, True)
    second = farm.tasks.pledged_joins.delay(name)
    assert second.id == first.id
    farm.worker()
    farm.book.wait(name, "begin")
    assert farm.tasks.pledged_joins.delay(work=name).id == first.id
    farm.book.go(name)
    assert second.get(20) == first.get(20) == f"{name} done"
    assert len(farm.book.events(name, "begin")) == 1
    farm.nothing_left()


def test_wait_and_retry_send_the_duplicate_without_a_pledge(farm: Farm, name):
    first = farm.tasks.pledged_briefly.delay(name)
    second = farm.tasks.pledged_briefly.delay(name)
    assert first.id != second.id
    farm.worker()
    assert first.get(20) and second.get(20)
    farm.book.never_two_at_once(name, {})
    assert len(farm.book.events(name, "begin")) == 2
    farm.nothing_left()


def test_a_pledge_that_ended_is_asked_for_anew(farm: Farm, name):
    """No worker came in its time: another got the lock, and the task takes its turn."""
    result = farm.tasks.pledged_briefly.delay(name)
    with farm.tasks.warden().lock(f"work:{name}", wait=10):
        farm.worker()
        farm.waiting(f"work:{name}")
        assert not farm.book.events(name)
    assert result.get(20) == f"{name} done"
    farm.nothing_left()


def test_a_pledge_lasts_from_when_the_task_is_due(farm: Farm, name):
    from datetime import datetime, timedelta, timezone

    farm.tasks.pledged.apply_async((name,), countdown=1000)
    assert 4590 < holder(farm, name)["lease_left_s"] <= 4600
    for eta in (datetime.now(timezone.utc) + timedelta(seconds=500), datetime.utcnow() + timedelta(seconds=500)):
        work = f"{name}-{eta.tzinfo}"
        farm.tasks.pledged.apply_async((work,), eta=eta)
        (one,) = [it for n in farm.tasks.warden().names() if n.startswith(f"work:{name}-") and str(eta.tzinfo) in n
                  for it in farm.tasks.warden().show(n)["holders"]]
        assert 4090 < one["lease_left_s"] <= 4100


def test_a_task_that_is_a_class(farm: Farm, name):
    """C62: with a self that is no argument."""
    first = farm.tasks.billing.apply_async((name,))
    assert holder(farm, name)["tags"]["task_name"] == "celery_tasks.Billing"
    assert farm.tasks.billing.apply_async(kwargs={"work": name}).state == "REVOKED"
    farm.worker()
    assert first.get(20) == f"{name} done"
    farm.nothing_left()


def test_as_a_part_of_other_work(farm: Farm, name):
    """Groups, chains, chords and signatures."""
    from celery import chain, chord, group

    farm.worker()
    tasks = farm.tasks
    works = [f"{name}-{n}" for n in range(3)]
    assert group(tasks.pledged.s(work) for work in works).apply_async().get(20) == [f"{w} done" for w in works]
    assert chain(tasks.pledged.si(works[0]), tasks.pledged.si(works[1])).apply_async().get(20) == f"{works[1]} done"
    done = chord([tasks.pledged.si(work) for work in works])(tasks.pledged.si(name))
    assert done.get(20) == f"{name} done"
    farm.nothing_left()


def test_a_sender_that_holds_the_lock_itself(farm: Farm, name):
    """It is not the task: the pledge is another's."""
    with farm.tasks.warden().lock(f"work:{name}"):
        assert farm.tasks.pledged.delay(name).state == "REVOKED"
    farm.nothing_left()


def test_wrong_arguments_leave_nothing(farm: Farm, name):
    with pytest.raises(TypeError):
        farm.tasks.pledged.delay()
    with pytest.raises(TypeError):
        farm.tasks.pledged.delay(name, False, 3)
    with pytest.raises(lockwarden.Invalid, match="give a function"):
        farm.tasks.pledged.delay(object())
    farm.nothing_left()


def test_c63_revoked_before_the_start(farm: Farm, name):
    """c: the pledge is free when the worker throws the task away."""
    farm.worker("prefork", 1)
    farm.answering()
    busy = farm.tasks.waits.delay(f"{name}-busy", True)
    farm.book.wait(f"{name}-busy", "begin")
    result = farm.tasks.pledged.delay(name)
    result.revoke()
    eventually(lambda: all(result.id in ids for ids in (farm.tasks.app.control.inspect().revoked() or {"": []}).values()),
               what="the revoke")
    # It is thrown away when it comes, or when it is its turn.
    farm.book.go(f"{name}-busy")
    farm.free(f"work:{name}")
    with pytest.raises(TaskRevokedError):
        result.get(20)
    busy.get(20)
    assert not farm.book.events(name)
    farm.nothing_left()


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_c63_expired_before_the_start(farm: Farm, name, pool):
    """e"""
    result = farm.tasks.pledged.apply_async((name,), expires=0.01)
    assert holder(farm, name)["state"] == "handed_over"
    farm.worker(pool)
    farm.free(f"work:{name}")
    with pytest.raises(TaskRevokedError):
        result.get(20)
    assert not farm.book.events(name)
    farm.nothing_left()


def test_c63_the_broker_is_down_at_submit(farm: Farm, name, own_server, monkeypatch):
    """g: what could not be sent has no lock. The locks are elsewhere, so that they can tell."""
    import celery
    import kombu

    from lockwarden.celery import exclusive

    app = celery.Celery("down", broker=own_server.url(), set_as_current=False)
    app.conf.update(
        broker_connection_timeout=0.2,
        broker_transport_options={"max_retries": 0, "socket_connect_timeout": 0.2, "socket_timeout": 0.2},
        task_publish_retry=False,
    )

    @app.task(shared=False)
    @exclusive("work:{work}", at="enqueue", on_conflict="skip", warden=farm.tasks.warden)
    def sent(work):
        pass

    sent.delay(f"{name}-up")
    assert holder(farm, f"{name}-up")["state"] == "handed_over"
    own_server.stop()
    with pytest.raises((kombu.exceptions.OperationalError, ConnectionError)):
        sent.delay(name)
    assert not farm.tasks.warden().show(f"work:{name}")["holders"]
    app.close()


def test_c63_retries_of_a_pledged_task(farm: Farm, name):
    """a: its own retry is not refused as its duplicate."""
    farm.worker()
    result = farm.tasks.pledged_tries.delay(name, 2)
    assert result.get(20) == 2
    farm.book.never_two_at_once(name, {})
    assert len(farm.book.events(name, "begin")) == 3
    farm.nothing_left()
