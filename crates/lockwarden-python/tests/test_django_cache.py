"""``cache.lock()``, as django-redis has it, on Django's cache and on django-redis'."""

from __future__ import annotations

import inspect
import threading

import pytest
from conftest import SERVERS
from django_support import eventually, project, servers, tables  # noqa: F401

from django.core.cache import caches
from django.test import RequestFactory, override_settings

from lockwarden.django import store, warden
from lockwarden.django.cache import LockMixin
from lockwarden.django.middleware import LockwardenMiddleware

pytest.importorskip("lockwarden.redis_py")

BACKENDS = ["lockwarden.django.cache.RedisCache", "lockwarden.django.django_redis.RedisCache"]


@pytest.fixture(params=BACKENDS)
def backend(request):
    if "django_redis" in request.param:
        pytest.importorskip("django_redis")
    return request.param


@pytest.fixture(params=SERVERS)
def cache(request, servers, backend, project):
    """A cache, and the locks in the same place by its alias."""
    server = servers(request.param)
    config = {"BACKEND": backend, "LOCATION": server.url(), "KEY_PREFIX": "shop"}
    with override_settings(CACHES={"default": config}, LOCKWARDEN={"CACHE": "default"}):
        its = caches["default"]
        its.server = server
        yield its
        warden().close()
        eventually(lambda: server.keys() == set(), what="the end of all keys")


def test_a_lock_is_named_as_a_key_of_the_cache(cache):
    with cache.lock("stock", timeout=20):
        assert b"shop:1:stock" in cache.server.keys()
        assert len(warden().show("shop:1:stock")["holders"]) == 1
        with cache.lock("stock", 2, timeout=20):
            assert b"shop:2:stock" in cache.server.keys()
    cache.set("other", 1)
    assert cache.get("other") == 1
    cache.delete("other")


def test_it_has_the_interface_of_redis_py(cache):
    from redis.exceptions import LockError

    one = cache.lock("stock", timeout=20, blocking=False)
    assert one.acquire() and one.locked() and one.owned()
    assert not cache.lock("stock", blocking=False).acquire()
    assert not cache.lock("stock", blocking_timeout=0.05).acquire()
    assert one.extend(20) and one.reacquire()
    one.release()
    with pytest.raises(LockError):
        one.release()
    assert not one.locked()


def test_it_excludes_the_lock_of_redis_py(cache):
    """Old and new code exclude each other during a move."""
    theirs = store.client_of(cache).lock("shop:1:stock", timeout=20)
    with theirs:
        assert not cache.lock("stock", blocking=False).acquire()
    with cache.lock("stock", timeout=20):
        assert not theirs.acquire(blocking=False)


def test_waiters_are_woken(cache):
    one = cache.lock("stock", timeout=20)
    assert one.acquire()
    got = []
    waiter = threading.Thread(target=lambda: got.append(_take(cache)))
    waiter.start()
    eventually(lambda: warden().show("shop:1:stock")["queue"], what="the waiter")
    one.release()
    waiter.join(10)
    assert got == [True]


def _take(cache) -> bool:
    with cache.lock("stock", timeout=20, blocking_timeout=10):
        return True


def in_a_request(work):
    return LockwardenMiddleware(lambda request: work())(RequestFactory().get("/x"))


def test_what_a_request_forgets_is_released_and_logged(cache, caplog):
    in_a_request(lambda: cache.lock("stock", timeout=20).acquire())
    assert not cache.lock("stock").locked()
    assert "still held the lock shop:1:stock" in caplog.text


def test_what_it_releases_is_not_logged(cache, caplog):
    def work():
        with cache.lock("stock", timeout=20):
            pass

    in_a_request(work)
    assert "still held" not in caplog.text


def test_a_lock_that_goes_elsewhere_stays(cache):
    one = cache.lock("stock", timeout=20, thread_local=False)
    in_a_request(one.acquire)
    assert one.owned()
    one.release()


def test_the_signature_is_that_of_django_redis():
    django_redis = pytest.importorskip("django_redis.client.default")
    theirs = list(inspect.signature(django_redis.DefaultClient.lock).parameters)
    assert list(inspect.signature(LockMixin.lock).parameters) == theirs
