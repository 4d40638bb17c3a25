"""What the documentation of python-redis-lock says, of its own lock and of ours: the same lines, the same results, but for
what deviations.py lists."""

from __future__ import annotations

import base64
import inspect
import threading
import time
from typing import Any

import pytest
import redis
from redis.exceptions import RedisError

import lockwarden
from conftest import eventually
from deviations import REDIS_LOCK, deviates
from lockwarden import redis_lock as ours
from redis_py_kinds import Watch, later

try:
    import redis_lock as theirs
except ImportError:
    theirs = None


class Locks:
    def __init__(self, module: Any, server: Any) -> None:
        self.module = module
        self.is_ours = module is ours
        self.raw = server.redis
        self.port = server.port

    def client(self, **options: Any) -> redis.Redis:
        return redis.Redis(host="127.0.0.1", port=self.port, **options)

    def lock(self, name: str, client: Any = None, **options: Any) -> Any:
        return self.module.Lock(client or self.client(), name, **options)

    def expected(self, name: str, *, ours: Any, theirs: Any) -> Any:
        return deviates(REDIS_LOCK, name, ours=ours, theirs=theirs, is_ours=self.is_ours)


MODULES = [pytest.param(ours, id="ours")]
if theirs is not None:
    MODULES.insert(0, pytest.param(theirs, id="python-redis-lock"))


@pytest.fixture(params=MODULES)
def locks(request, server) -> Locks:
    if request.param is not ours:
        # It keeps the scripts of the first client that it has seen; a flushed server is no part of this.
        request.param.reset_all_script = None
    return Locks(request.param, server)


def test_the_key_and_its_value(locks, name):
    lock = locks.lock(name)
    assert lock.acquire() is True
    assert locks.raw.get(f"lock:{name}") == lock.id.encode() and lock.get_owner_id() == lock.id
    assert len(base64.b64decode(lock.id)) == 18
    assert locks.raw.ttl(f"lock:{name}") == -1
    assert lock.release() is None
    assert not locks.raw.exists(f"lock:{name}")


@pytest.mark.parametrize("expire, s", [(60, 60), (2.9, 2), ("5", 5)])
def test_expire_is_in_whole_seconds(locks, name, expire, s):
    lock = locks.lock(name, expire=expire)
    assert lock.acquire()
    assert s * 1_000 - 900 < locks.raw.pttl(f"lock:{name}") <= s * 1_000
    lock.release()


@pytest.mark.parametrize("expire", [None, 0])
def test_without_expire_it_has_no_ttl(locks, name, expire):
    lock = locks.lock(name, expire=expire)
    assert lock.acquire()
    assert locks.raw.ttl(f"lock:{name}") == -1
    lock.release()


def test_c26_an_expire_below_a_second(locks, name):
    def acquire():
        locks.lock(name, expire=0.5).acquire()

    expected = locks.expected("fraction of a second", ours=ValueError, theirs=RedisError)
    with pytest.raises(expected):
        acquire()
    assert not locks.raw.exists(f"lock:{name}")


def test_bad_arguments(locks, name):
    with pytest.raises(ValueError):
        locks.lock(name, expire=-1)
    with pytest.raises(ValueError):
        locks.lock(name, auto_renewal=True)
    with pytest.raises(ValueError):
        locks.module.Lock(object(), name)
    with pytest.raises(TypeError):
        locks.lock(name, id=7)


@pytest.mark.parametrize("given, id", [("mine", "mine"), (b"mine", "mine"), (b"\xff\x00", base64.b64encode(b"\xff\x00").decode())])
def test_ids(locks, name, given, id):
    lock = locks.lock(name, id=given)
    assert lock.id == id
    assert lock.acquire()
    assert locks.raw.get(f"lock:{name}") == id.encode()
    lock.release()


def test_held_by_another(locks, name):
    first, second = locks.lock(name, expire=60), locks.lock(name, expire=60)
    assert first.acquire(blocking=False) is True
    assert second.acquire(blocking=False) is False
    assert first.locked() is True and second.locked() is True
    assert second.get_owner_id() == first.id
    with pytest.raises(locks.module.NotAcquired):
        second.release()
    assert locks.raw.get(f"lock:{name}") == first.id.encode()
    first.release()
    assert first.locked() is False and first.get_owner_id() is None


def test_acquiring_twice(locks, name):
    lock = locks.lock(name, expire=60)
    assert lock.acquire()
    with pytest.raises(locks.module.AlreadyAcquired):
        lock.acquire()
    with pytest.raises(locks.module.AlreadyAcquired):
        locks.lock(name, id=lock.id, expire=60).acquire(blocking=False)
    lock.release()


def test_releasing_twice(locks, name):
    lock = locks.lock(name, expire=60)
    assert lock.acquire()
    lock.release()
    with pytest.raises(locks.module.NotAcquired):
        lock.release()
    assert lock.acquire(), "the object is as new (C08)"
    lock.release()


def test_waiting(locks, name):
    locks.raw.set(f"lock:{name}", "somebody", px=60_000)
    lock = locks.lock(name, expire=60)
    with Watch() as watch:
        assert lock.acquire(timeout=1) is False
    assert 0.8 < watch.s < 5

    def free():
        locks.raw.delete(f"lock:{name}")
        locks.raw.lpush(f"lock-signal:{name}", 1)

    later(0.3, free)
    with Watch() as watch:
        assert lock.acquire(timeout=10) is True
    assert 0.2 < watch.s < 5
    lock.release()


def test_c24_it_expires_while_somebody_waits(locks, name):
    locks.raw.set(f"lock:{name}", "somebody", px=500)
    lock = locks.lock(name, expire=60)
    with Watch() as watch:
        assert lock.acquire(timeout=3) is True
    is_seen = watch.s < 2.8
    assert is_seen is locks.expected("limit above expire", ours=True, theirs=False)
    lock.release()


def test_c25_a_limit_below_a_second(locks, name):
    locks.raw.set(f"lock:{name}", "somebody", px=1_500)
    lock = locks.lock(name, expire=1)
    result = lock.acquire(timeout=0.3)
    assert result is locks.expected("fraction of a second", ours=False, theirs=True)


def test_timeouts_that_are_refused(locks, name):
    lock = locks.lock(name, expire=5)
    with pytest.raises(locks.module.TimeoutNotUsable):
        lock.acquire(blocking=False, timeout=1)
    with pytest.raises(locks.module.InvalidTimeout):
        lock.acquire(timeout=-1)
    with pytest.raises(locks.module.TimeoutTooLarge):
        lock.acquire(timeout=6)
    renewing = locks.lock(name, expire=5, auto_renewal=True)
    assert renewing.acquire(timeout=6)
    renewing.release()
    assert not locks.raw.exists(f"lock:{name}")


def test_with(locks, name):
    lock = locks.lock(name, expire=60)
    with lock as inside:
        assert inside is lock
        assert locks.raw.exists(f"lock:{name}")
        if "blocking" in inspect.signature(locks.module.Lock.__init__).parameters:
            with pytest.raises(locks.module.NotAcquired):
                with locks.lock(name, blocking=False):
                    raise AssertionError
    assert not locks.raw.exists(f"lock:{name}")


def test_c03_with_does_not_hide_the_bodys_error(locks, name):
    expected = locks.expected("body's error", ours=KeyError, theirs=locks.module.NotAcquired)
    with pytest.raises(expected):
        with locks.lock(name, expire=60):
            locks.raw.delete(f"lock:{name}")
            raise KeyError("boom")
    with pytest.raises(locks.module.NotAcquired):
        with locks.lock(name, expire=60):
            locks.raw.delete(f"lock:{name}")


def test_c22_extend_sets(locks, name):
    lock = locks.lock(name, expire=60)
    assert lock.acquire()
    lock.extend(expire=100)
    assert 98_000 < locks.raw.pttl(f"lock:{name}") <= 100_000
    lock.extend(expire=20)
    assert 18_000 < locks.raw.pttl(f"lock:{name}") <= 20_000
    lock.extend()
    assert 58_000 < locks.raw.pttl(f"lock:{name}") <= 60_000
    lock.release()


def test_c20_c21_extending_what_is_not_held(locks, name):
    lock = locks.lock(name, expire=60)
    with pytest.raises(locks.module.NotAcquired):
        lock.extend()
    assert not locks.raw.exists(f"lock:{name}")
    locks.raw.set(f"lock:{name}", "somebody", px=5_000)
    with pytest.raises(locks.module.NotAcquired):
        lock.extend()
    assert locks.raw.pttl(f"lock:{name}") <= 5_000
    with pytest.raises(ValueError):
        lock.extend(expire=-1)


def test_extending_without_expire(locks, name):
    lock = locks.lock(name)
    assert lock.acquire()
    with pytest.raises(TypeError):
        lock.extend()
    with pytest.raises(locks.module.NotExpirable):
        lock.extend(expire=10)
    assert locks.raw.ttl(f"lock:{name}") == -1
    lock.release()


def test_auto_renewal(locks, name):
    lock = locks.lock(name, expire=1, auto_renewal=True)
    assert lock.acquire()
    until = time.monotonic() + 2.5
    while time.monotonic() < until:
        assert 100 < locks.raw.pttl(f"lock:{name}") <= 1_000
        time.sleep(0.02)
    lock.release()
    assert not locks.raw.exists(f"lock:{name}")


def test_c19_nobody_renews_for_an_object_that_is_gone(locks, name):
    lock = locks.lock(name, expire=1, auto_renewal=True)
    assert lock.acquire()
    del lock
    eventually(lambda: not locks.raw.exists(f"lock:{name}"), 5, "the end of its lease")


def test_releasing_by_id(locks, name):
    lock = locks.lock(name, expire=60)
    assert lock.acquire()
    elsewhere = locks.lock(name, id=lock.id)
    elsewhere.release()
    assert not locks.raw.exists(f"lock:{name}")
    with pytest.raises(locks.module.NotAcquired):
        lock.release()


@pytest.mark.parametrize("call", ["release", "reset", "reset_all"])
def test_c56_the_signal(locks, name, call):
    lock = locks.lock(name, expire=60, signal_expire=5_000)
    assert lock.acquire()
    if call == "reset_all":
        locks.module.reset_all(locks.client())
    else:
        getattr(lock, call)()
    assert not locks.raw.exists(f"lock:{name}")
    assert locks.raw.lrange(f"lock-signal:{name}", 0, -1) == [b"1"]
    ttl = locks.raw.pttl(f"lock-signal:{name}")
    assert 0 < ttl <= (1_000 if call == "reset_all" else 5_000)


@pytest.mark.parametrize("call", ["reset", "reset_all"])
def test_resetting_what_others_hold(locks, name, call):
    other = locks.lock(name, expire=60)
    assert other.acquire()
    locks.raw.set(f"lock:{name}-foreign", "somebody")
    if call == "reset":
        locks.lock(name).reset()
        locks.lock(f"{name}-foreign").reset()
    else:
        locks.module.reset_all(locks.client())
    assert not locks.raw.exists(f"lock:{name}", f"lock:{name}-foreign")
    with pytest.raises(locks.module.NotAcquired):
        other.release()
    # What is free may be reset, too.
    locks.lock(name).reset()


def test_c05_clients_that_decode(locks, name):
    client = locks.client(decode_responses=True)
    lock = locks.lock(name, client, expire=60, id="mïne")
    assert lock.acquire() and lock.get_owner_id() == "mïne"
    with pytest.raises(locks.module.AlreadyAcquired):
        lock.acquire()
    lock.extend()
    lock.release()
    plain = locks.lock(name, expire=60, id="mïne")
    assert plain.acquire()
    if locks.expected("id that is no ASCII", ours=True, theirs=False):
        with pytest.raises(locks.module.AlreadyAcquired):
            plain.acquire(blocking=False)
    else:
        assert plain.acquire(blocking=False) is False
    plain.release()


def test_c05_a_foreign_value_that_is_no_text(locks, name):
    locks.raw.set(f"lock:{name}", bytes(range(240, 256)), px=10_000)
    lock = locks.lock(name, locks.client(decode_responses=True), expire=60)
    if locks.expected("binary value", ours=True, theirs=False):
        assert lock.acquire(blocking=False) is False
        assert isinstance(lock.get_owner_id(), str)
    else:
        with pytest.raises(UnicodeDecodeError):
            lock.acquire(blocking=False)
        with pytest.raises(UnicodeDecodeError):
            lock.get_owner_id()
    assert lock.locked()


def test_a_server_that_is_not_there(locks, name, free_port):
    lock = locks.module.Lock(redis.Redis(port=free_port), name)
    with pytest.raises(redis.exceptions.ConnectionError):
        lock.acquire()


# What only ours does, and both together.


@pytest.fixture
def client(server):
    client = redis.Redis(host="127.0.0.1", port=server.port)
    yield client
    client.close()


@pytest.mark.skipif(theirs is None, reason="python-redis-lock is not installed")
@pytest.mark.parametrize("call", ["release", "reset", "reset_all"])
def test_a_waiter_of_theirs_is_woken_by_ours(client, name, call):
    held = ours.Lock(client, name, expire=60)
    assert held.acquire()
    got = []

    def wait():
        its = redis.Redis(host="127.0.0.1", port=client.connection_pool.connection_kwargs["port"])
        waiter = theirs.Lock(its, name, expire=50)
        got.append(waiter.acquire())
        waiter.release()

    theirs.reset_all_script = None
    thread = threading.Thread(target=wait)
    thread.start()

    def is_waiting():
        return any(it["cmd"] == "blpop" for it in client.client_list())

    eventually(is_waiting, what="the waiter")
    began = time.monotonic()
    ours.reset_all(client) if call == "reset_all" else getattr(held, call)()
    thread.join(20)
    assert got == [True] and time.monotonic() - began < 15


@pytest.mark.skipif(theirs is None, reason="python-redis-lock is not installed")
def test_a_waiter_of_ours_is_woken_by_theirs(server, client, name):
    theirs.reset_all_script = None
    held = theirs.Lock(client, name, expire=60)
    assert held.acquire()
    got = []
    waiter = ours.Lock(client, name, expire=50)
    thread = threading.Thread(target=lambda: got.append(waiter.acquire()))
    thread.start()
    warden = lockwarden.connect(server.url())
    eventually(lambda: warden.show(f"lock:{name}")["queue"], what="the waiter")
    began = time.monotonic()
    held.release()
    thread.join(20)
    assert got == [True] and time.monotonic() - began < 15
    waiter.release()


HOLD = """
import sys, redis
from lockwarden.redis_lock import Lock
expire = int(sys.argv[3]) or None
lock = Lock(redis.Redis(port=int(sys.argv[1])), sys.argv[2], expire=expire, auto_renewal=sys.argv[4] == "1")
assert lock.acquire()
print("held")
sys.stdin.readline()
"""


@pytest.mark.parametrize("expire, renewal", [("0", "0"), ("600", "0"), ("600", "1")])
def test_c10_c11_the_lock_of_a_killed_process_is_free(locks, name, child, expire, renewal):
    code = HOLD if locks.is_ours else HOLD.replace("lockwarden.redis_lock", "redis_lock")
    holder = child(code, str(locks.port), name, expire, renewal)
    assert holder.line() == "held"
    lock = ours.Lock(locks.client(), name, expire=60)
    assert lock.acquire(blocking=False) is False
    holder.kill()
    expected = locks.expected("dead holder", ours=True, theirs=False)
    began = time.monotonic()
    assert lock.acquire(timeout=20 if expected else 4) is expected
    assert time.monotonic() - began < 15


@pytest.mark.parametrize("renewal", ["0", "1"])
def test_an_end_in_order_keeps_what_is_left(server, client, name, child, renewal):
    holder = child(HOLD, str(server.port), name, "60", renewal)
    assert holder.line() == "held"
    holder.say("")
    assert holder.wait() == 0
    assert client.pttl(f"lock:{name}") > 50_000
    lock = ours.Lock(client, name, expire=60)
    assert lock.acquire(blocking=False) is False
    lock.reset()


def test_the_django_cache_backend(server, name):
    pytest.importorskip("django_redis")
    from django.conf import settings

    if not settings.configured:
        settings.configure()
    from django.core.cache.backends.base import InvalidCacheBackendError  # noqa: F401

    from lockwarden.redis_lock.django_cache import RedisCache

    cache = RedisCache(
        server.url(), {"OPTIONS": {"CLIENT_CLASS": "django_redis.client.DefaultClient"}}
    )
    with cache.lock(name, expire=60):
        assert server.redis.exists(f"lock:{name}")
    made = []

    def make():
        made.append(1)
        assert server.redis.exists(f"lock:get_or_set:{name}")
        return "value"

    assert cache.locked_get_or_set(name, make, expire=60) == "value"
    assert cache.locked_get_or_set(name, make, expire=60) == "value"
    assert made == [1]
    assert not server.redis.exists(f"lock:get_or_set:{name}")
    with pytest.raises(ValueError):
        cache.locked_get_or_set(f"{name}-none", lambda: None, expire=60)
    lock = cache.lock(name, expire=60)
    assert lock.acquire()
    cache.reset_all()
    assert not lock.locked()
