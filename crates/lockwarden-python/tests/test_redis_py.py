"""What the documentation of redis-py says of its locks, of redis-py's own and of ours: the same lines, the same results,
but for what deviations.py lists."""

from __future__ import annotations

import threading

import pytest
import redis
from redis.exceptions import LockError, LockNotOwnedError, RedisError

from redis_py_kinds import KINDS, VERSION, Locks, Watch, done, entered, later, outcome

BAD = (RedisError, ValueError, TypeError, OverflowError)


@pytest.fixture(params=KINDS, ids=repr)
def locks(request, server) -> Locks:
    return Locks(request.param, server)


# The key


def test_without_a_timeout_the_key_has_no_ttl(locks, name):
    async def story():
        lock = locks.lock(name)
        assert await done(lock.acquire()) is True
        assert locks.raw.pttl(name) == -1
        assert await done(lock.release()) is None
        assert not locks.raw.exists(name)

    locks.run(story)


@pytest.mark.parametrize("timeout", [0, 0.0])
def test_a_timeout_of_0_is_none(locks, name, timeout):
    async def story():
        lock = locks.lock(name, timeout=timeout)
        assert await done(lock.acquire()) is True
        assert locks.raw.pttl(name) == -1
        await done(lock.release())

    locks.run(story)


@pytest.mark.parametrize("timeout, ms", [(10, 10_000), (1.5, 1_500), (0.25, 250), (1.2345678, 1_234)])
def test_c26_a_timeout_is_the_keys_ttl(locks, name, timeout, ms):
    async def story():
        lock = locks.lock(name, timeout=timeout)
        with Watch() as watch:
            assert await done(lock.acquire())
            ttl = locks.raw.pttl(name)
        assert ms - watch.s * 1_000 - 2 <= ttl <= ms
        await done(lock.release())

    locks.run(story)


def test_a_timeout_is_not_renewed(locks, name):
    async def story():
        lock = locks.lock(name, timeout=0.4)
        assert await done(lock.acquire())
        with Watch() as watch:
            assert await done(locks.lock(name, timeout=5, blocking_timeout=5).acquire())
        assert 0.05 < watch.s < 4
        assert await done(lock.owned()) is False

    locks.run(story)


def test_the_value_is_the_token(locks, name):
    async def story():
        lock = locks.lock(name, timeout=10)
        tokens = set()
        for _ in range(3):
            assert await done(lock.acquire())
            value = locks.raw.get(name)
            assert value == lock.local.token
            assert len(bytes.fromhex(value.decode())) == 16
            tokens.add(value)
            await done(lock.release())
            assert lock.local.token is None
        assert len(tokens) == 3, "C01: a new one for each acquisition"

    locks.run(story)


@pytest.mark.parametrize("token, value", [("text", b"text"), (b"\x00\xff raw", b"\x00\xff raw"), (7, b"7"), ("ü", "ü".encode())])
def test_a_token_of_the_callers(locks, name, token, value):
    async def story():
        lock = locks.lock(name, timeout=10)
        assert await done(lock.acquire(token=token))
        assert locks.raw.get(name) == value == lock.local.token
        assert await done(lock.owned())
        await done(lock.release())
        assert not locks.raw.exists(name)

    locks.run(story)


@pytest.mark.parametrize("form", ["str", "bytes", "memoryview"])
def test_names_may_be_bytes(locks, name, form):
    async def story():
        given = {"str": name, "bytes": name.encode(), "memoryview": memoryview(name.encode())}[form]
        lock = locks.lock(given, timeout=10)
        assert await done(lock.acquire())
        assert locks.raw.exists(name)
        assert await done(lock.locked()) and await done(lock.owned())
        await done(lock.release())

    locks.run(story)


@pytest.mark.parametrize("bad", ["empty", "not UTF-8", "long", "reserved"])
def test_c27_strange_names(locks, name, bad):
    given = {
        "empty": "",
        "not UTF-8": b"\xff\x00" + name.encode(),
        "long": name + "x" * 4_096,
        "reserved": f"lockwarden:{name}",
    }[bad]

    async def story():
        lock = locks.lock(given, timeout=0.5)
        result = await outcome(lambda: lock.acquire(blocking=False))
        if locks.kind.expected("strange name", ours=False, theirs=True):
            assert result is True
        else:
            assert issubclass(result, ValueError) and issubclass(result, RedisError)

    locks.run(story)


def test_a_name_must_be_something(locks):
    async def story():
        assert issubclass(await outcome(locks.lock(None).acquire), RedisError)

    locks.run(story)


@pytest.mark.parametrize("token", [b"", b"x" * 4_097, b"lockwarden:x"], ids=["empty", "long", "reserved"])
def test_c27_strange_tokens(locks, name, token):
    async def story():
        lock = locks.lock(name, timeout=0.5)
        result = await outcome(lambda: lock.acquire(blocking=False, token=token))
        if locks.kind.expected("strange token", ours=False, theirs=True):
            assert result is True
        else:
            assert issubclass(result, ValueError) and issubclass(result, RedisError)

    locks.run(story)


def test_c28_a_key_of_another_type(locks, name):
    async def story():
        locks.raw.hset(name, "a", "b")
        result = await outcome(lambda: locks.lock(name, timeout=1).acquire(blocking=False))
        if locks.kind.expected("wrong type", ours=False, theirs=True):
            assert result is False
        else:
            assert issubclass(result, Exception)
        assert locks.raw.hgetall(name) == {b"a": b"b"}

    locks.run(story)


# Attributes


def test_arguments_are_attributes(locks, name):
    async def story():
        client = locks.client()
        lock = locks.kind.lock_class(client, name, 10, 0.2, False, 3, False)
        assert (lock.redis, lock.name, lock.timeout, lock.sleep) == (client, name, 10, 0.2)
        assert (lock.blocking, lock.blocking_timeout, lock.thread_local) == (False, 3, False)
        lock = locks.kind.lock_class(client, name)
        assert (lock.timeout, lock.sleep, lock.blocking) == (None, 0.1, True)
        assert (lock.blocking_timeout, lock.thread_local, lock.local.token) == (None, True, None)

    locks.run(story)


def test_the_client_makes_it(locks, name):
    async def story():
        lock = locks.lock(name, timeout=10, sleep=0.01, blocking_timeout=2, thread_local=False)
        assert type(lock) is locks.kind.lock_class
        assert (lock.timeout, lock.sleep, lock.blocking_timeout) == (10, 0.01, 2)
        assert lock.thread_local is False

    locks.run(story)


def test_the_timeout_may_be_changed(locks, name):
    async def story():
        lock = locks.lock(name, timeout=10)
        lock.timeout = 20
        assert await done(lock.acquire())
        assert 19_000 < locks.raw.pttl(name) <= 20_000
        lock.timeout = 30
        assert await done(lock.reacquire())
        assert 29_000 < locks.raw.pttl(name) <= 30_000
        await done(lock.release())

    locks.run(story)


# Waiting


def test_held_by_another(locks, name):
    async def story():
        first, second = locks.lock(name, timeout=10), locks.lock(name, timeout=10)
        assert await done(first.acquire(blocking=False)) is True
        assert await done(second.acquire(blocking=False)) is False
        assert second.local.token is None
        await done(first.release())
        assert await done(second.acquire(blocking=False)) is True
        await done(second.release())

    locks.run(story)


def test_blocking_of_the_constructor_and_of_the_call(locks, name):
    async def story():
        locks.raw.set(name, "somebody", px=10_000)
        if locks.kind.takes("blocking"):
            lock = locks.kind.lock_class(locks.client(), name, timeout=10, blocking=False)
            with Watch() as watch:
                assert await done(lock.acquire()) is False
            assert watch.s < 5
            # The call wins.
            with Watch() as watch:
                assert await done(lock.acquire(blocking=True, blocking_timeout=0.3)) is False
            assert 0.15 <= watch.s < 5

    locks.run(story)


def test_c24_a_limit_at_the_constructor_and_at_the_call(locks, name):
    async def story():
        locks.raw.set(name, "somebody", px=20_000)
        at_constructor = locks.lock(name, timeout=10, blocking_timeout=0.7)
        both = locks.lock(name, timeout=10, blocking_timeout=5)
        for lock, options in (at_constructor, {}), (both, {"blocking_timeout": 0.7}):
            with Watch() as watch:
                assert await done(lock.acquire(**options)) is False
            assert 0.5 <= watch.s < 3

    locks.run(story)


def test_c24_it_is_acquired_when_it_is_free(locks, name):
    async def story():
        locks.raw.set(name, "somebody", px=20_000)
        lock = locks.lock(name, timeout=10)
        freed = later(0.3, lambda: locks.raw.pexpire(name, 1))
        with Watch() as watch:
            assert await done(lock.acquire(blocking_timeout=5)) is True
        assert 0.2 < watch.s < 5
        freed.join()
        await done(lock.release())

    locks.run(story)


def test_c24_without_a_limit(locks, name):
    async def story():
        locks.raw.set(name, "somebody", px=600)
        lock = locks.lock(name, timeout=10)
        with Watch() as watch:
            assert await done(lock.acquire()) is True
        assert 0.05 < watch.s < 5
        await done(lock.release())

    locks.run(story)


@pytest.mark.parametrize("limit", [0, 0.0005, 0.001, -1, -0.5])
def test_c25_small_and_negative_limits(locks, name, limit):
    async def story():
        client = locks.client()
        lock, other = (locks.lock(name, client, timeout=10) for _ in range(2))
        assert await done(lock.acquire(blocking_timeout=limit)) is True, "it is free"
        with Watch() as watch:
            assert await done(other.acquire(blocking_timeout=limit)) is False
        assert watch.s < 1
        await done(lock.release())

    locks.run(story)


def test_c24_a_limit_below_sleep(locks, name):
    async def story():
        locks.raw.set(name, "somebody", px=20_000)
        lock = locks.lock(name, timeout=10, sleep=2)
        with Watch() as watch:
            assert await done(lock.acquire(blocking_timeout=0.5)) is False
        waited = watch.s > 0.4
        assert waited is locks.kind.expected("short limit", ours=True, theirs=False)

    locks.run(story)


def test_c25_a_limit_that_is_no_number(locks, name):
    async def story():
        result = await outcome(lambda: locks.lock(name, timeout=1).acquire(blocking_timeout="5"))
        assert issubclass(result, TypeError)
        assert not locks.raw.exists(name)
        result = await outcome(
            lambda: locks.lock(name, timeout=0.3).acquire(blocking_timeout=float("nan"))
        )
        if locks.kind.expected("strange limit", ours=False, theirs=True):
            assert result is True
        else:
            assert issubclass(result, ValueError) and issubclass(result, RedisError)

    locks.run(story)


def test_an_infinite_limit_is_none(locks, name):
    async def story():
        locks.raw.set(name, "somebody", px=300)
        lock = locks.lock(name, timeout=1)
        assert await done(lock.acquire(blocking_timeout=float("inf"))) is True
        await done(lock.release())

    locks.run(story)


@pytest.mark.parametrize("timeout", [-1, 0.0004, float("nan"), float("inf"), "2280s", True])
def test_c26_strange_timeouts(locks, name, timeout):
    async def story():
        lock = locks.lock(name, timeout=timeout)
        result = await outcome(lambda: lock.acquire(blocking=False))
        if locks.kind.expected("strange timeout", ours=True, theirs=False):
            assert issubclass(result, ValueError) and issubclass(result, RedisError)
            assert not locks.raw.exists(name)
        else:
            assert result is True or issubclass(result, BAD)

    locks.run(story)


def test_c26_a_very_long_timeout(locks, name):
    async def story():
        lock = locks.lock(name, timeout=10**9)
        result = await outcome(lambda: lock.acquire(blocking=False))
        if locks.kind.expected("long timeout", ours=True, theirs=False):
            assert issubclass(result, ValueError) and issubclass(result, RedisError)
        else:
            assert result is True

    locks.run(story)


def test_acquire_takes_its_arguments_by_position(locks, name):
    async def story():
        lock = locks.lock(name, timeout=10)
        order = [
            argument
            for argument in ("sleep", "blocking", "blocking_timeout", "token")
            if locks.kind.takes(argument, "acquire")
        ]
        values = {"sleep": 0.01, "blocking": False, "blocking_timeout": None, "token": b"mine"}
        assert await done(lock.acquire(*(values[argument] for argument in order)))
        assert lock.local.token == b"mine"
        assert await done(lock.acquire(*(values[argument] for argument in order))) is False
        await done(lock.release())

    locks.run(story)


# with


def test_with(locks, name):
    async def story():
        lock = locks.lock(name, timeout=10)
        async with entered(lock) as inside:
            assert inside is lock
            assert locks.raw.get(name) == lock.local.token
        assert not locks.raw.exists(name)

    locks.run(story)


@pytest.mark.parametrize("limit", [0.3, 0])
def test_c02_with_does_not_go_on_without_the_lock(locks, name, limit):
    async def story():
        locks.raw.set(name, "somebody", px=20_000)
        ran = []
        with pytest.raises(LockError, match="Unable to acquire lock within the time specified"):
            async with entered(locks.lock(name, timeout=10, blocking_timeout=limit)):
                ran.append(1)
        assert not ran
        assert locks.raw.get(name) == b"somebody"

    locks.run(story)


def test_with_releases_when_the_body_fails(locks, name):
    async def story():
        with pytest.raises(KeyError):
            async with entered(locks.lock(name, timeout=10)):
                raise KeyError("boom")
        assert not locks.raw.exists(name)

    locks.run(story)


def test_leaving_with_when_the_lock_is_lost(locks, name):
    async def story():
        with pytest.raises(LockNotOwnedError):
            async with entered(locks.lock(name, timeout=10)):
                locks.raw.set(name, "somebody", px=10_000)
        assert locks.raw.get(name) == b"somebody"
        locks.raw.delete(name)
        with pytest.raises(LockError):
            lock = locks.lock(name, timeout=10)
            async with entered(lock):
                await done(lock.release())

    locks.run(story)


def test_raise_on_release_error(locks, name):
    async def story():
        if not locks.kind.takes("raise_on_release_error"):
            return
        async with entered(locks.lock(name, timeout=10, raise_on_release_error=False)):
            locks.raw.set(name, "somebody", px=10_000)
        assert locks.raw.get(name) == b"somebody"

    locks.run(story)


def test_c03_the_bodys_error_is_not_hidden(locks, name):
    async def story():
        expected = locks.kind.expected("body's error", ours=KeyError, theirs=LockNotOwnedError)
        with pytest.raises(expected):
            async with entered(locks.lock(name, timeout=10)):
                locks.raw.delete(name)
                raise KeyError("boom")

    locks.run(story)


# release


def test_releasing_what_is_not_held(locks, name):
    async def story():
        lock = locks.lock(name, timeout=10)
        result = await outcome(lock.release)
        assert issubclass(result, LockError) and not issubclass(result, LockNotOwnedError)
        assert await done(lock.acquire())
        await done(lock.release())
        result = await outcome(lock.release)
        assert issubclass(result, LockError) and not issubclass(result, LockNotOwnedError)

    locks.run(story)


def test_releasing_what_has_expired(locks, name):
    async def story():
        lock = locks.lock(name, timeout=10)
        assert await done(lock.acquire())
        locks.raw.delete(name)
        assert issubclass(await outcome(lock.release), LockNotOwnedError)
        assert lock.local.token is None
        assert not issubclass(await outcome(lock.release), LockNotOwnedError)

    locks.run(story)


def test_c01_a_slow_holder_leaves_the_next_one_alone(locks, name):
    async def story():
        slow, next_one = locks.lock(name, timeout=0.3), locks.lock(name, timeout=10)
        assert await done(slow.acquire())
        assert await done(next_one.acquire(blocking_timeout=3))
        value = locks.raw.get(name)
        assert issubclass(await outcome(slow.release), LockNotOwnedError)
        assert issubclass(await outcome(lambda: slow.extend(5)), LockError)
        assert locks.raw.get(name) == value and locks.raw.pttl(name) > 8_000
        assert await done(locks.lock(name, timeout=1).acquire(blocking=False)) is False
        await done(next_one.release())

    locks.run(story)


def test_c08_the_object_is_as_new_after_an_expiry(locks, name):
    async def story():
        lock = locks.lock(name, timeout=0.1)
        for _ in range(2):
            assert await done(lock.acquire())
            later(0.15, lambda: None).join()
            assert issubclass(await outcome(lock.release), LockNotOwnedError)
        lock.timeout = 10
        assert await done(lock.acquire(blocking=False)), "at once"
        assert locks.raw.pttl(name) > 9_000, "with a whole timeout"
        await done(lock.release())
        lock.timeout = 0.1
        assert await done(lock.acquire())
        later(0.15, lambda: None).join()
        other = locks.lock(name, timeout=10)
        assert await done(other.acquire(blocking_timeout=2))
        await done(other.release())

    locks.run(story)


def test_c07_a_token_from_elsewhere(locks, name):
    async def story():
        lock = locks.lock(name, timeout=10)
        assert await done(lock.acquire())
        elsewhere = locks.lock(name, timeout=10)
        assert await done(elsewhere.owned()) is False
        elsewhere.local.token = lock.local.token
        assert await done(elsewhere.owned()) is True
        assert await done(elsewhere.extend(10)) is True
        assert locks.raw.pttl(name) > 18_000
        assert await done(elsewhere.release()) is None
        assert not locks.raw.exists(name)
        assert issubclass(await outcome(lock.release), LockNotOwnedError)

    locks.run(story)


def test_a_token_of_a_lock_that_was_set_by_hand(locks, name):
    async def story():
        locks.raw.set(name, "handmade", px=10_000)
        lock = locks.lock(name, timeout=20)
        lock.local.token = b"handmade"
        assert await done(lock.owned())
        assert await done(lock.reacquire())
        assert locks.raw.pttl(name) > 19_000
        await done(lock.release())
        assert not locks.raw.exists(name)

    locks.run(story)


def test_do_release(locks, name):
    async def story():
        lock = locks.lock(name, timeout=10)
        assert await done(lock.acquire(token="mine"))
        assert issubclass(await outcome(lambda: lock.do_release(b"another")), LockNotOwnedError)
        assert locks.raw.exists(name)
        assert await done(lock.do_release(b"mine")) is None
        assert not locks.raw.exists(name)

    locks.run(story)


# extend and reacquire


def test_c22_extend_adds(locks, name):
    async def story():
        lock = locks.lock(name, timeout=10)
        assert await done(lock.acquire())
        assert await done(lock.extend(10)) is True
        assert 18_500 < locks.raw.pttl(name) <= 20_000
        assert await done(lock.extend(0.5)) is True
        assert 19_000 < locks.raw.pttl(name) <= 20_500
        await done(lock.release())

    locks.run(story)


def test_c22_extend_replaces(locks, name):
    async def story():
        lock = locks.lock(name, timeout=10)
        assert await done(lock.acquire())
        assert await done(lock.extend(5, replace_ttl=True)) is True
        assert 4_000 < locks.raw.pttl(name) <= 5_000
        assert await done(lock.extend(20, True)) is True
        assert 19_000 < locks.raw.pttl(name) <= 20_000
        await done(lock.release())

    locks.run(story)


def test_c22_an_extension_that_takes_away(locks, name):
    async def story():
        lock = locks.lock(name, timeout=10)
        assert await done(lock.acquire())
        result = await outcome(lambda: lock.extend(-20))
        if locks.kind.expected("shrinking extension", ours=True, theirs=False):
            assert issubclass(result, ValueError)
            assert locks.raw.pttl(name) > 8_000
        else:
            assert result is True and not locks.raw.exists(name)

    locks.run(story)


def test_c26_a_very_long_extension(locks, name):
    async def story():
        lock = locks.lock(name, timeout=10)
        assert await done(lock.acquire())
        result = await outcome(lambda: lock.extend(10**9, replace_ttl=True))
        if locks.kind.expected("long timeout", ours=True, theirs=False):
            assert issubclass(result, ValueError) and issubclass(result, RedisError)
        else:
            assert result is True

    locks.run(story)


def test_reacquire(locks, name):
    async def story():
        lock = locks.lock(name, timeout=10)
        assert await done(lock.acquire())
        locks.raw.pexpire(name, 5_000)
        assert await done(lock.reacquire()) is True
        assert 9_000 < locks.raw.pttl(name) <= 10_000
        await done(lock.release())

    locks.run(story)


def test_reacquire_gives_a_ttl_to_what_has_none(locks, name):
    async def story():
        lock = locks.lock(name)
        assert await done(lock.acquire())
        lock.timeout = 10
        assert await done(lock.reacquire()) is True
        assert 9_000 < locks.raw.pttl(name) <= 10_000
        await done(lock.release())

    locks.run(story)


def test_c26_reacquire_with_a_timeout_of_0(locks, name):
    async def story():
        lock = locks.lock(name, timeout=0)
        assert await done(lock.acquire())
        result = await outcome(lock.reacquire)
        if locks.kind.expected("reacquire without timeout", ours=True, theirs=False):
            assert issubclass(result, LockError)
            await done(lock.release())
        else:
            assert result is True and not locks.raw.exists(name)

    locks.run(story)


@pytest.mark.parametrize("call", ["extend", "reacquire"])
def test_extending_what_is_not_held(locks, name, call):
    async def story():
        lock = locks.lock(name, timeout=10)

        def extend():
            return lock.extend(10) if call == "extend" else lock.reacquire()

        with pytest.raises(LockError):
            # When it is called, in asyncio, too.
            extend()
        assert await done(lock.acquire())
        await done(lock.release())
        assert not issubclass(await outcome(extend), LockNotOwnedError)

    locks.run(story)


@pytest.mark.parametrize("call", ["extend", "reacquire"])
def test_extending_without_a_timeout(locks, name, call):
    async def story():
        lock = locks.lock(name)
        assert await done(lock.acquire())
        with pytest.raises(LockError):
            lock.extend(10) if call == "extend" else lock.reacquire()
        assert locks.raw.pttl(name) == -1
        await done(lock.release())

    locks.run(story)


def test_extending_a_key_without_ttl(locks, name):
    async def story():
        lock = locks.lock(name, timeout=0)
        assert await done(lock.acquire())
        assert issubclass(await outcome(lambda: lock.extend(10)), LockNotOwnedError)
        assert locks.raw.pttl(name) == -1
        await done(lock.release())

    locks.run(story)


@pytest.mark.parametrize("call", ["extend", "reacquire"])
def test_c20_c21_extending_what_was_lost(locks, name, call):
    async def story():
        lock = locks.lock(name, timeout=10)
        assert await done(lock.acquire())

        def extend():
            return lock.extend(10) if call == "extend" else lock.reacquire()

        locks.raw.delete(name)
        assert issubclass(await outcome(extend), LockNotOwnedError)
        assert not locks.raw.exists(name), "C21"
        locks.raw.set(name, "somebody", px=5_000)
        assert issubclass(await outcome(extend), LockNotOwnedError)
        assert locks.raw.get(name) == b"somebody" and locks.raw.pttl(name) <= 5_000, "C20"

    locks.run(story)


# owned and locked


def test_owned_and_locked(locks, name):
    async def story():
        lock, other = locks.lock(name, timeout=10), locks.lock(name, timeout=10)

        async def states():
            return [await done(it()) for it in (lock.owned, lock.locked, other.owned, other.locked)]

        assert await states() == [False, False, False, False]
        assert await done(lock.acquire())
        assert await states() == [True, True, False, True]
        locks.raw.set(name, "somebody", px=10_000)
        assert await states() == [False, True, False, True]
        locks.raw.delete(name)
        assert await states() == [False, False, False, False]

    locks.run(story)


# Threads


def test_thread_local_is_the_default(locks, name):
    async def story():
        lock = locks.lock(name, timeout=10)
        assert await done(lock.acquire())
        seen = []

        def look():
            seen.append(getattr(lock.local, "token", None))

        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        assert seen == [None]
        assert lock.local.token is not None
        await done(lock.release())

    locks.run(story)


def test_without_thread_local_the_token_is_shared(locks, name):
    async def story():
        lock = locks.lock(name, timeout=10, thread_local=False)
        assert await done(lock.acquire())
        seen = []

        def use():
            seen.append(lock.local.token)
            if not locks.kind.is_async:
                seen.append(lock.owned())
                lock.release()

        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
        assert seen[0] == locks.raw.get(name) or not locks.raw.exists(name)
        if locks.kind.is_async:
            await done(lock.release())
        assert lock.local.token is None and not locks.raw.exists(name)

    locks.run(story)


def test_c07_another_thread_has_no_token(locks, name):
    async def story():
        if locks.kind.is_async:
            return
        lock = locks.lock(name, timeout=10)
        assert lock.acquire()
        seen = []

        def use():
            for call in lock.release, lambda: lock.extend(1), lock.owned:
                try:
                    seen.append(call())
                except Exception as error:  # noqa: BLE001
                    seen.append(type(error))

        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
        if locks.kind.expected("another thread", ours=True, theirs=False):
            assert all(issubclass(it, LockError) for it in seen[:2]) and seen[2] is False
        else:
            assert AttributeError in seen
        assert lock.owned()
        lock.release()

    locks.run(story)


# Clients that decode


@pytest.mark.parametrize("options", [{}, {"decode_responses": True}, {"decode_responses": True, "encoding": "latin-1"}, {"encoding": "latin-1"}], ids=["plain", "utf-8", "latin-1", "latin-1 plain"])
def test_c05_clients_that_decode(locks, name, options):
    async def story():
        lock = locks.lock(name, locks.client(**options), timeout=10)
        assert await done(lock.acquire(token="mïne"))
        assert isinstance(lock.local.token, bytes)
        assert await done(lock.owned()) and await done(lock.locked())
        assert await done(lock.extend(10)) and await done(lock.reacquire())
        other = locks.lock(name, locks.client(**options), timeout=10)
        assert await done(other.acquire(blocking=False)) is False
        assert await done(other.owned()) is False
        await done(lock.release())
        assert not locks.raw.exists(name)
        assert await done(lock.owned()) is False

    locks.run(story)


@pytest.mark.parametrize("decode", [True, False])
def test_c05_a_foreign_value_that_is_no_text(locks, name, decode):
    async def story():
        locks.raw.set(name, bytes(range(240, 256)), px=10_000)
        lock = locks.lock(name, locks.client(decode_responses=decode), timeout=10)
        assert await done(lock.acquire(blocking=False)) is False
        results = [await outcome(lock.owned), await outcome(lock.locked)]
        if not decode or locks.kind.expected("binary value", ours=True, theirs=False):
            assert results == [False, True]
        else:
            assert results == [UnicodeDecodeError, UnicodeDecodeError]

    locks.run(story)


# Errors


def test_errors_are_redis_pys(locks, name):
    async def story():
        lock = locks.lock(name, timeout=10)
        with pytest.raises(ValueError) as failed:
            await done(lock.release())
        assert isinstance(failed.value, LockError) and isinstance(failed.value, RedisError)
        if VERSION >= (5, 1) and not locks.kind.is_async:
            assert failed.value.lock_name == name
        assert await done(lock.acquire())
        locks.raw.delete(name)
        with pytest.raises(LockNotOwnedError) as failed:
            await done(lock.release())
        assert isinstance(failed.value, LockError) and isinstance(failed.value, ValueError)
        if VERSION >= (5, 1) and not locks.kind.is_async:
            assert failed.value.lock_name == name

    locks.run(story)


def test_a_server_that_is_not_there(locks, name, free_port):
    async def story():
        client = locks.client(port=free_port)
        lock = locks.lock(name, client, timeout=10)
        assert issubclass(await outcome(lock.acquire), redis.exceptions.ConnectionError)
        assert issubclass(await outcome(lock.owned), redis.exceptions.ConnectionError)

    locks.run(story)


def test_a_wrong_password(locks, name):
    async def story():
        lock = locks.lock(name, locks.client(username="nobody", password="wrong"), timeout=10)
        result = await outcome(lock.acquire)
        # Old versions do not know what WRONGPASS means.
        is_known = locks.kind.is_ours or VERSION >= (5, 0)
        known = redis.exceptions.AuthenticationError
        assert issubclass(result, known if is_known else redis.exceptions.RedisError)

    locks.run(story)


def test_c04_a_release_that_fails_on_the_network_can_be_tried_again(name, own_server, locks):
    locks = Locks(locks.kind, own_server)

    async def story():
        lock = locks.lock(name, locks.client(socket_timeout=0.3), timeout=60)
        assert await done(lock.acquire())
        own_server.pause()
        try:
            result = await outcome(lock.release)
            assert issubclass(result, (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError))
        finally:
            own_server.resume()
        keeps = locks.kind.is_async and VERSION >= (7, 0)
        kept = locks.kind.expected("token kept", ours=True, theirs=keeps)
        assert (lock.local.token is not None) is kept
        if locks.kind.is_ours:
            # It says that it is released, whether the first or the second one did it.
            assert await done(lock.release()) is None
            assert not own_server.redis.exists(name)
            assert issubclass(await outcome(lock.release), LockError)
            # If it was lost meanwhile it says so.
            assert await done(lock.acquire(token="mine"))
            own_server.redis.set(name, "somebody")
            assert issubclass(await outcome(lock.release), LockNotOwnedError)

    locks.run(story)
