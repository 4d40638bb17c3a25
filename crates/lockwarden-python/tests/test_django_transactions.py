"""C65: whoever gets the lock next reads what its holder has committed."""

from __future__ import annotations

import unittest

import pytest
from django_support import (  # noqa: F401
    SETUP, Counter, Locks, connections, eventually, get, locks, project, servers, tables, using_locks, views,
)

from conftest import LONG, Child
from django.db import connection, transaction
from django.test import RequestFactory, TestCase

import lockwarden
from lockwarden.django import lock, locked

TIMES = 200 if LONG else 50

INCREMENTS = SETUP + """
from django.test import Client
for _ in range(int(sys.argv[2])):
    assert Client().get(sys.argv[1]).status_code == 200
"""

# Asks for the lock once for each line, which names the store; says "busy", or what it reads while it holds it.
READER = SETUP + """
import lockwarden
from django.test import override_settings
from django_project.models import Counter
from lockwarden.django import lock
print("ready")
for line in sys.stdin:
    with override_settings(LOCKWARDEN={"URL": line.strip()}):
        try:
            with lock("counter", wait=0):
                print(Counter.objects.get(pk=1).value)
        except lockwarden.Busy:
            print("busy", Counter.objects.get(pk=1).value)
"""


@pytest.fixture(scope="module")
def second_process():
    its = Child(READER)
    assert its.line() == "ready"
    yield its
    its.kill()


@pytest.fixture
def reader(locks, second_process):
    """What a second process reads, if it gets the lock now."""

    def read() -> str:
        second_process.say(locks.url)
        return second_process.line()

    return read


@pytest.fixture
def atomic_requests(monkeypatch):
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)


def value() -> int:
    return Counter.objects.get(pk=1).value


def increment() -> None:
    counter = Counter.objects.get(pk=1)
    counter.value += 1
    counter.save()


@pytest.mark.parametrize(
    "path, atomic_requests",
    [
        ("/increment/outside/", False),
        ("/increment/inside/", False),
        ("/atomic/", True),
        *([("/increment/savepoint/", False), ("/atomic-by-hand/", False), ("/class-atomic/", True)] if LONG else []),
    ],
)
def test_c65_two_processes_lose_no_update(locks, child, path, atomic_requests):
    both = [
        child(
            INCREMENTS, path, str(TIMES), TEST_LOCKS=locks.url, TEST_ATOMIC_REQUESTS=str(int(atomic_requests))
        )
        for _ in range(2)
    ]
    assert [one.wait(120) for one in both] == [0, 0]
    assert value() == 2 * TIMES


def test_c65_nobody_gets_in_between_the_lock_and_the_commit(locks, reader):
    with transaction.atomic():
        with lock("counter"):
            increment()
        assert reader() == "busy 0"
    assert reader() == "1"


def test_c65_a_decorated_function_inside_a_transaction(locks, reader):
    with transaction.atomic():
        lock("counter")(increment)()
        assert reader() == "busy 0"
    assert reader() == "1"


def test_c65_atomic_requests_begins_inside_the_lock(locks, reader, atomic_requests):
    told = []
    views.during = lambda request: told.append(reader())
    assert get("/atomic/").status_code == 200
    assert views.seen == [True] and told == ["busy 0"]
    assert reader() == "1"


def test_c65_a_transaction_around_the_view(locks, reader):
    told = []

    @transaction.atomic
    def around(request):
        response = locked("counter")(lambda request: increment())(request)
        told.append(reader())
        return response

    around(RequestFactory().get("/"))
    assert told == ["busy 0"]
    assert reader() == "1"


def test_c65_a_rollback_frees_the_lock_too(locks, reader):
    with pytest.raises(ValueError, match="boom"):
        with transaction.atomic():
            with lock("counter"):
                increment()
            assert reader() == "busy 0"
            raise ValueError("boom")
    assert reader() == "0"

    with transaction.atomic():
        with lock("counter"):
            increment()
        transaction.set_rollback(True)
    assert reader() == "0"


def test_c65_a_rollback_under_atomic_requests(locks, reader, atomic_requests):
    with pytest.raises(ValueError, match="rolled back"):
        get("/atomic/?fail=1")
    assert reader() == "0"


def test_c65_a_savepoint_is_not_the_end(locks, reader):
    with transaction.atomic():
        with transaction.atomic():
            with lock("counter"):
                increment()
        assert reader() == "busy 0"
    assert reader() == "1"


def test_c65_a_rollback_to_a_savepoint_is_not_the_end(locks, reader):
    with transaction.atomic():
        for _ in range(2):
            with pytest.raises(ValueError):
                with transaction.atomic():
                    with lock("counter"):
                        increment()
                    raise ValueError
            assert reader() == "busy 0"
        with lock("counter", wait=0):
            increment()
        assert reader() == "busy 0"
    assert reader() == "1"


def test_c65_the_same_object_again_inside_one_transaction(locks, reader):
    its = lock("counter", wait=0)
    with transaction.atomic():
        for _ in range(3):
            with its:
                increment()
        assert reader() == "busy 0"
    assert reader() == "3"


def test_c65_a_connection_that_breaks_frees_the_lock(locks, reader):
    with pytest.raises(ValueError):
        with transaction.atomic():
            with lock("counter"):
                increment()
            connection.close()
            raise ValueError
    # What is left of the transaction ends when the database is used again, at the latest.
    assert value() == 0
    assert reader() == "0"


def test_c65_the_lease_is_renewed_until_the_commit(locks, reader):
    with transaction.atomic():
        with lock("counter", lease=0.3) as held:
            increment()
        eventually(lambda: locks.holders("counter")[0]["held_s"] > 1.2, what="four leases")
        assert held.check() and reader() == "busy 0"
    assert reader() == "1"


def test_c65_others_may_hear_of_the_commit_first(locks):
    heard = []
    with transaction.atomic():
        transaction.on_commit(lambda: heard.append(len(locks.holders("counter"))))
        with lock("counter"):
            increment()
        transaction.on_commit(lambda: heard.append(len(locks.holders("counter"))))
    assert heard == [1, 0]


def test_c65_a_hook_of_others_that_fails_frees_the_lock(locks, reader):
    def fails():
        raise ValueError("of others")

    with pytest.raises(ValueError, match="of others"):
        with transaction.atomic():
            transaction.on_commit(fails)
            with lock("counter"):
                increment()
    assert reader() == "1"


def test_a_lock_that_is_lost_before_the_commit_is_503_and_rolled_back(locks, atomic_requests):
    def lose(request):
        locks.revoke("counter")
        eventually(lambda: not request.lockwarden.check(), what="the loss")

    views.during = lose
    response = get("/atomic/")
    assert response.status_code == 503 and "Retry-After" in response
    assert value() == 0


def test_a_view_that_is_not_to_be_atomic_is_not(locks, atomic_requests):
    assert get("/not-atomic/").status_code == 200
    assert views.seen == [False]


def test_a_class_is_atomic_inside_its_lock(locks, atomic_requests):
    assert get("/class-atomic/").status_code == 200
    assert views.seen == [True] and value() == 1


def test_without_a_lock_a_view_is_atomic_all_the_same(locks, atomic_requests):
    inside = []
    locked(lambda request: [])(lambda request: inside.append(connection.in_atomic_block))(
        RequestFactory().get("/")
    )
    assert inside == [True]


def test_other_databases_are_not_waited_for(locks):
    with transaction.atomic():
        with lock("counter", using=["another"]):
            pass
        assert locks.is_free("counter")


def test_manual_transactions_are_refused(locks):
    connection.ensure_connection()
    connection.set_autocommit(False)
    try:
        with pytest.raises(lockwarden.Invalid, match="autocommit"):
            with lock("counter"):
                pass
        with lock("counter", using=[]):
            pass
    finally:
        connection.rollback()
        connection.set_autocommit(True)


def test_c65_in_a_test_case_a_request_has_an_end(locks, caplog):
    """The transaction of a TestCase is never committed: nobody waits for that."""
    outcomes = []

    class Case(TestCase):
        def test_it(self):
            with lock("counter"):
                pass
            outcomes.append(locks.is_free("counter"))
            assert self.client.get("/increment/inside/").status_code == 200
            outcomes.append(locks.is_free("counter"))
            assert self.client.get("/increment/decorated/").status_code == 200
            outcomes.append(locks.is_free("counter"))

    result = unittest.TestResult()
    Case("test_it")(result)  # a call, as a runner does it: run() alone makes no client
    assert result.wasSuccessful(), result.errors + result.failures
    assert outcomes == [True, True, True]
    assert "still held" not in caplog.text
