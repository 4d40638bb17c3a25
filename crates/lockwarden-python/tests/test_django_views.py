"""``locked``: which names, what it answers, how long it holds."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest
from django_support import (  # noqa: F401
    body, eventually, get, get_async, locks, post, project, servers, tables, using_locks, views,
)

from django.core.exceptions import ImproperlyConfigured
from django.http import HttpResponse
from django.test import AsyncClient, RequestFactory, override_settings

import lockwarden
from lockwarden.django import lock, locked, warden
from lockwarden.django.answers import retry_after, status

PATHS = [("/stock/7/", get), ("/stock-async/7/", get_async)]


@pytest.mark.parametrize("path, ask", PATHS)
def test_a_view_runs_while_its_lock_is_held(locks, path, ask):
    held_inside = []
    views.during = lambda request: held_inside.append(len(locks.holders("stock:7")))
    response = ask(path)
    assert response.status_code == 200 and int(response.content) > 0
    assert held_inside == [1] and views.seen == [["stock:7"]]
    assert locks.is_free("stock:7")


@pytest.mark.parametrize("path, ask", PATHS)
def test_busy_is_409_with_retry_after(locks, path, ask):
    with locks.held("stock:7"):
        response = ask(path)
    assert response.status_code == 409
    assert response["Retry-After"] == "1" and response["Cache-Control"] == "no-store"
    assert response.content == b"Busy. Try again in 1 s.\n" and views.seen == []
    assert ask(path).status_code == 200


def test_a_wait_that_is_over_is_409(locks):
    view = locked("stock:7", wait=0.05)(lambda request: None)
    with locks.held("stock:7"):
        assert view(RequestFactory().get("/")).status_code == 409


def test_who_speaks_json_is_answered_in_json(locks):
    with locks.held("stock:7"):
        response = get("/stock/7/", HTTP_ACCEPT="application/json")
    assert response.json() == {"error": "busy", "retry_after": 1} and response.status_code == 409


def test_an_answer_of_ones_own(locks):
    with locks.held("stock:7"):
        response = get("/own-answer/7/")
        assert (response.status_code, response.content) == (429, b"busy, sorry")
        assert response["Retry-After"] == "1"
        with override_settings(LOCKWARDEN={"URL": locks.url, "ANSWER": views.answered}):
            assert get("/stock/7/").status_code == 429


def test_the_holder_is_told_to_the_log_and_not_to_the_client(locks, caplog):
    with locks.held("stock:7"), caplog.at_level(logging.INFO, "lockwarden.django"):
        response = get("/stock/7/")
    assert b"other" not in response.content
    assert "GET /stock/7/: the lock stock:7 is busy: held by other" in caplog.text


@pytest.mark.parametrize("path, ask", PATHS)
def test_a_store_that_is_away_is_503(project, path, ask, unused_port):
    with override_settings(LOCKWARDEN={"URL": f"redis://127.0.0.1:{unused_port}"}):
        response = ask(path)
    assert response.status_code == 503 and response["Retry-After"] == "3"
    assert response.content == b"Unavailable. Try again in 3 s.\n" and views.seen == []


@pytest.fixture
def unused_port():
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        yield probe.getsockname()[1]  # bound and not listening: refused


def test_a_guarded_store_is_503(own_server, project):
    with using_locks(own_server.url()) as locks:
        assert get("/stock/7/").status_code == 200
        with locks.held("elsewhere"):
            own_server.redis.flushall()
            response = get("/stock/7/")
            assert response.status_code == 503 and 1 <= int(response["Retry-After"]) <= 4
            # With a wait it is granted once the guard is over.
            view = locked("stock:7", wait=20)(lambda request: "ran")
            assert view(RequestFactory().get("/")) == "ran"


def test_a_wait_that_ends_in_the_guard_is_503():
    error = lockwarden.Timeout("", facts={"reason": "guarded"})
    assert status(error) == 503 and retry_after(error) == 3


def test_several_names_at_once(locks):
    assert get("/several/1/2/").status_code == 200
    assert views.seen == [["catalog", "stock:1", "user:2"]]
    with locks.held("user:2"):
        assert get("/several/1/2/").status_code == 409
        assert locks.is_free("stock:1")
    with locks.other.shared_lock("catalog", owner="other"):
        assert get("/several/1/2/").status_code == 200
    with locks.held("catalog"):
        assert get("/several/1/2/").status_code == 409


def test_the_same_name_twice(locks):
    assert locked("a", "a", wait=0)(lambda request: "ran")(RequestFactory().get("/")) == "ran"


def test_names_of_a_function(locks):
    assert get("/function/7/").status_code == 200
    assert views.seen == [["one:7", "two:7"]]
    assert get("/function/none/").content == b"no lock"


def test_a_function_that_forgets_its_return(locks):
    view = locked(lambda request: None)(lambda request: "ran")
    with pytest.raises(lockwarden.Invalid, match="a return is missing"):
        view(RequestFactory().get("/"))


def test_what_the_request_lacks_is_a_bad_request(locks):
    assert post("/posted/").status_code == 400
    assert post("/posted/", {"coupon": "spring"}).status_code == 200
    assert views.seen == [["coupon:spring"]]


def test_a_name_that_cannot_be_is_a_bad_request(locks):
    assert get(f"/stock/{'x' * 5000}/").status_code == 400
    assert get("/stock/strange%20%0A%E2%80%AE/").status_code == 200


def test_nobody_shares_the_lock_of_none(locks):
    with pytest.raises(lockwarden.Invalid, match="request.user.pk.*None"):
        get("/user/")


def test_a_name_that_the_url_does_not_have(locks):
    view = locked("stock:{typo}")(lambda request, pk: None)
    with pytest.raises(lockwarden.Invalid, match=r"\{typo\}.*\{pk\}"):
        view(RequestFactory().get("/"), pk=1)


@pytest.mark.parametrize("wrong", [(), (7,), (None,)])
def test_without_names_it_is_refused_at_once(wrong):
    with pytest.raises(lockwarden.Invalid):
        locked(*wrong)


def test_without_parentheses_it_is_refused():
    view = locked(lambda request: None)
    with pytest.raises(lockwarden.Invalid, match="not @locked"):
        view(RequestFactory().get("/"))


def test_a_wrong_option_is_no_bad_request(locks):
    view = locked("stock", lease=0.001)(lambda request: None)
    with pytest.raises(lockwarden.Invalid):
        view(RequestFactory().get("/"))


def test_only_some_methods(locks):
    with locks.held("only-post"):
        assert get("/only-post/").status_code == 200
        assert post("/only-post/").status_code == 409
    assert views.seen == [None]


@pytest.mark.parametrize(
    "path, ask, name",
    [
        ("/class/7/", get, "class:7"),
        ("/class-async/7/", get_async, "class:7"),
        ("/handler/7/", get, "handler:7"),
    ],
)
def test_classes(locks, path, ask, name):
    held_inside = []
    views.during = lambda request: held_inside.extend(locks.holders(name))
    assert ask(path).status_code == 200
    assert [one["label"].split(" ")[0] for one in held_inside] == ["GET"]
    with locks.held(name):
        assert ask(path).status_code == 409


def test_it_is_told_which_view_holds(locks):
    told = []
    views.during = lambda request: told.extend(locks.holders("stock:7"))
    get("/stock/7/")
    assert told[0]["label"] == "GET django_project.views.stock"
    assert "views.py:" in told[0]["site"]


def test_prefix_and_defaults(locks):
    told = []
    view = locked("stock", ("catalog", "shared"))(
        lambda request: told.extend(locks.holders("shop:stock"))
    )
    with override_settings(LOCKWARDEN={"URL": locks.url, "PREFIX": "shop:", "LEASE": 12}):
        view(RequestFactory().get("/"))
        with lock("stock") as held:
            assert held.names == ["shop:stock"]
        warden().close()
    assert told[0]["lease_s"] == 12


def test_wrong_settings_are_told(project):
    with override_settings(LOCKWARDEN={"URL": "http://x", "WAIT": "soon", "PREFIX": 7}):
        with pytest.raises(ImproperlyConfigured) as told:
            warden()
    assert "URL" in str(told.value) and "WAIT" in str(told.value) and "PREFIX" in str(told.value)


def test_an_error_of_a_lock_inside_the_view_is_answered(locks):
    with locks.held("stock:7"):
        assert get("/inside/7/").status_code == 409
    assert get("/inside/7/").status_code == 200


@pytest.mark.parametrize("path, ask", [("/forgets/7/", get), ("/forgets-async/7/", get_async)])
def test_what_a_request_forgets_is_released_and_logged(locks, caplog, path, ask):
    assert ask(path).status_code == 200
    assert locks.is_free("forgotten:7")
    assert f"GET {path} has ended and still held the lock forgotten:7" in caplog.text


# C41


@pytest.mark.parametrize("path, ask", [("/boom/7/", get), ("/boom-async/7/", get_async)])
def test_c41_a_body_that_raises_leaves_no_lock(locks, path, ask):
    with pytest.raises(ValueError, match="^boom$") as raised:
        ask(path)
    assert locks.is_free("boom:7")
    assert type(raised.value) is ValueError


def test_c41_functions_and_coroutines(locks):
    @lock("decorated")
    def function():
        assert not locks.is_free("decorated")
        raise ValueError("boom")

    @lock("decorated")
    async def coroutine():
        await asyncio.sleep(0)
        assert not locks.is_free("decorated")
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        function()
    assert locks.is_free("decorated")
    with pytest.raises(ValueError, match="boom"):
        asyncio.run(coroutine())
    assert locks.is_free("decorated")

    def generator():
        yield

    async def async_generator():
        yield

    for one in (generator, async_generator):
        with pytest.raises(lockwarden.Invalid, match="generator"):
            lock("decorated")(one)


def test_c41_every_way_out(locks):
    def returns():
        with lock("ways"):
            return

    for _ in range(1):
        with lock("ways"):
            break
    returns()
    assert locks.is_free("ways")

    def generator():
        with lock("ways"):
            yield

    running = generator()
    next(running)
    assert not locks.is_free("ways")
    running.close()
    assert locks.is_free("ways")

    async def cancelled():
        async with lock("ways"):
            await asyncio.Event().wait()

    async def cancel():
        task = asyncio.ensure_future(cancelled())
        while locks.is_free("ways"):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    # It may have been cancelled before it heard of its grant, which is then given back behind it.
    eventually(lambda: locks.is_free("ways"), what="the release")


def test_c41_a_streamed_body_is_made_while_the_lock_is_held(locks):
    response = get("/streamed/7/")
    assert body(response) == b"012"
    assert views.seen == [["streamed:7", 1]] * 3
    response.close()
    assert locks.is_free("streamed:7")


def test_c41_a_streamed_body_that_nobody_reads(locks, caplog):
    get("/streamed/7/").close()
    assert locks.is_free("streamed:7") and "still held" not in caplog.text


def test_c41_an_async_streamed_body(locks):
    response = get_async("/streamed-async/7/")
    assert response.body == b"012"
    assert views.seen == [["streamed:7", 1]] * 3
    response.close()
    assert locks.is_free("streamed:7")


# C03


def test_c03_a_lost_lock_does_not_hide_the_error(locks):
    views.during = lambda request: locks.revoke("boom:7")
    with pytest.raises(ValueError, match="^boom$"):
        get("/boom/7/")


def test_c03_a_lost_lock_does_not_throw_the_response_away(locks, caplog):
    views.during = lambda request: locks.revoke("lost:7")
    assert get("/lost/7/").content == b"done"
    assert "lost:7" in caplog.text


def test_c03_with_lock_the_caller_is_told_unless_it_says_otherwise(locks):
    with pytest.raises(lockwarden.LockLost):
        with lock("lost"):
            locks.revoke("lost")
    for quiet in ("log", "ignore"):
        with lock("lost", if_lost=quiet):
            locks.revoke("lost")
    with pytest.raises(ValueError, match="boom"):
        with lock("lost"):
            locks.revoke("lost")
            raise ValueError("boom")


def test_c03_a_store_that_is_stopped_does_not_hide_the_error(own_server, project):
    with using_locks(own_server.url()):
        its = lock("away")
        with pytest.raises(ValueError, match="^boom$"):
            with its:
                own_server.stop()
                raise ValueError("boom")
        # The same object can be used again.
        own_server.start()
        with its as held:
            assert held.check()


# Deadlock, and requests that are given up


def test_b9_a_deadlock_is_told_at_once_and_is_409(locks, caplog):
    """The request holds one lock and would wait for the other, whose holder waits for the first."""

    def crossed(request):
        waiter.start()
        eventually(lambda: locks.other.show("stock:7")["queue"], what="the waiter")
        with lock("user:1"):
            pass

    def wait():
        with locks.other.lock("stock:7", owner="other", wait=20):
            pass

    waiter = threading.Thread(target=wait)
    views.during = crossed
    with locks.held("user:1"):
        response = get("/stock/7/")
        waiter.join(20)
    assert response.status_code == 409 and "Retry-After" in response
    assert any(record.levelname == "ERROR" and "user:1" in record.message for record in caplog.records)


def test_c41_a_request_that_is_given_up_leaves_no_lock(locks):
    async def given_up():
        task = asyncio.ensure_future(AsyncClient().get("/waits/7/"))
        while locks.is_free("waits:7"):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(given_up())
    eventually(lambda: locks.is_free("waits:7"), what="the release")


def test_c41_a_request_that_is_given_up_while_it_waits_leaves_no_place(locks):
    async def given_up():
        task = asyncio.ensure_future(AsyncClient().get("/waits/7/"))
        while not locks.other.show("waits:7")["queue"]:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with locks.held("waits:7"):
        asyncio.run(given_up())
        eventually(lambda: not locks.other.show("waits:7")["queue"], what="the end of the waiter")


def test_waiting_does_not_hold_up_the_event_loop(locks):
    async def both():
        waiting = asyncio.ensure_future(AsyncClient().get("/waits/7/"))
        while not locks.other.show("waits:7")["queue"]:
            await asyncio.sleep(0)
        assert (await AsyncClient().get("/stock-async/7/")).status_code == 200
        waiting.cancel()

    with locks.held("waits:7"):
        asyncio.run(both())


def test_c37_a_store_that_goes_away_is_not_busy(own_server, project):
    view = locked("stock", wait=0.3)(lambda request: HttpResponse())
    with using_locks(own_server.url()):
        assert view(RequestFactory().get("/")).status_code == 200
        own_server.stop()
        assert view(RequestFactory().get("/")).status_code == 503
        own_server.start()
        eventually(
            lambda: view(RequestFactory().get("/")).status_code == 200, what="the store's return"
        )
