"""What the drop-ins for redis-py do that redis-py cannot: locks of dead processes, deadlocks, forks, neighbours of other
kinds. On real servers, with processes that are really killed."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time

import pytest
import redis

import lockwarden
from conftest import ROOT, Server, eventually
from deviations import REDIS_PY, deviates
from lockwarden import redis_py
from redis_py_kinds import TheirAsyncLock, redis_asyncio

HOLD = """
import sys, redis
from lockwarden.redis_py import Lock
client = redis.Redis(port=int(sys.argv[1]))
timeout = float(sys.argv[3]) or None
lock = client.lock(sys.argv[2], timeout=timeout, lock_class=Lock)
assert lock.acquire(token="theirs")
print("held")
sys.stdin.readline()
"""


@pytest.fixture
def client(server):
    client = redis.Redis(host="127.0.0.1", port=server.port)
    yield client
    client.close()


def lock(client, name, **options) -> redis_py.Lock:
    return client.lock(name, lock_class=redis_py.Lock, **options)


def held_elsewhere(child, server, name, timeout=0, code=HOLD):
    holder = child(code, str(server.port), name, str(timeout))
    assert holder.line() == "held"
    return holder


# Dead holders (G3)


@pytest.mark.parametrize("timeout", [0, 600])
@pytest.mark.parametrize("is_ours", [False, True], ids=["redis-py", "ours"])
def test_c10_c11_the_lock_of_a_killed_process_is_free(
    server, client, name, child, timeout, is_ours
):
    code = HOLD if is_ours else HOLD.replace(", lock_class=Lock", "")
    holder = held_elsewhere(child, server, name, timeout, code)
    assert server.redis.pttl(name) == -1 if timeout == 0 else server.redis.pttl(name) > 590_000
    next_one = lock(client, name, timeout=10)
    assert next_one.acquire(blocking=False) is False
    holder.kill()
    expected = deviates(REDIS_PY, "dead holder", ours=True, theirs=False, is_ours=is_ours)
    began = time.monotonic()
    assert next_one.acquire(blocking_timeout=20 if expected else 4) is expected
    assert time.monotonic() - began < 15


@pytest.mark.parametrize("timeout", [0, 600])
def test_a_waiter_has_the_lock_of_a_killed_process_at_once(server, client, name, child, timeout):
    holder = held_elsewhere(child, server, name, timeout)
    got = []
    waiter = threading.Thread(target=lambda: got.append(lock(client, name, timeout=10).acquire()))
    waiter.start()
    eventually(lambda: lockwarden.connect(server.url()).show(name)["queue"], what="the waiter")
    began = time.monotonic()
    holder.kill()
    waiter.join(20)
    # Before the grace of 3 s is over.
    assert got == [True] and time.monotonic() - began < 2.9


def test_an_end_in_order_keeps_the_timeout(server, client, name, child):
    holder = held_elsewhere(child, server, name, 60)
    holder.say("")
    assert holder.wait() == 0
    # Longer than a dead holder's grace: asked for, it stays.
    until = time.monotonic() + 3.5
    while time.monotonic() < until:
        assert lock(client, name, timeout=1).acquire(blocking=False) is False
        time.sleep(0.1)
    assert server.redis.get(name) == b"theirs"
    assert 50_000 < server.redis.pttl(name) <= 60_000
    # And whoever knows the token releases it.
    heir = lock(client, name, timeout=1)
    heir.local.token = b"theirs"
    assert heir.owned()
    heir.release()
    assert not server.redis.exists(name)


def test_an_end_in_order_frees_what_has_no_timeout(server, client, name, child):
    holder = held_elsewhere(child, server, name, 0)
    holder.say("")
    assert holder.wait() == 0
    eventually(lambda: not server.redis.exists(name), what="the release")


def test_a_process_of_multiprocessing_keeps_the_timeout(server, client, name, child):
    code = """
import sys, multiprocessing, redis
from lockwarden.redis_py import Lock

def work(port, name):
    client = redis.Redis(port=port)
    assert client.lock(name, timeout=60, lock_class=Lock).acquire(token="theirs")

if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    process = context.Process(target=work, args=(int(sys.argv[1]), sys.argv[2]))
    process.start()
    process.join()
    print("ended", process.exitcode)
"""
    assert child(code, str(server.port), name).line() == "ended 0"
    until = time.monotonic() + 3.5
    while time.monotonic() < until:
        assert lock(client, name, timeout=1).acquire(blocking=False) is False
        time.sleep(0.1)
    assert server.redis.get(name) == b"theirs" and server.redis.pttl(name) > 50_000


@pytest.mark.parametrize("timeout", [None, 60])
def test_an_object_that_is_thrown_away_still_holds(server, client, name, timeout):
    one = lock(client, name, timeout=timeout)
    assert one.acquire(token="theirs")
    del one
    gc.collect()
    until = time.monotonic() + 3.5
    while time.monotonic() < until:
        assert lock(client, name, timeout=1).acquire(blocking=False) is False
        time.sleep(0.1)
    assert server.redis.get(name) == b"theirs"
    heir = lock(client, name, timeout=timeout)
    heir.local.token = b"theirs"
    heir.release()
    assert not server.redis.exists(name)


def test_what_another_process_extended_outlives_its_holders_own_idea(server, client, name, child):
    holder = held_elsewhere(child, server, name, 1.5)
    other = lock(client, name, timeout=10)
    other.local.token = b"theirs"
    assert other.extend(20)
    eventually(lambda: server.redis.pttl(name) < 18_500, what="the end of the first timeout")
    assert lock(client, name, timeout=1).acquire(blocking=False) is False
    holder.say("")
    assert holder.wait() == 0
    assert server.redis.get(name) == b"theirs" and server.redis.pttl(name) > 10_000
    other.release()


# Values


def test_a_value_in_use_is_refused(server, client, name):
    """A job's id as the token: a second delivery of the job does not walk in beside the first (R25)."""
    first = lock(client, name, timeout=10)
    assert first.acquire(token="job-7")
    for options in {"blocking": False}, {"blocking_timeout": 0.3}:
        assert lock(client, name, timeout=10).acquire(token="job-7", **options) is False
        assert first.acquire(token="job-7", **options) is False
    assert 8_000 < server.redis.pttl(name) <= 10_000
    first.release()
    assert not server.redis.exists(name)


def test_releasing_from_another_process(server, client, name, child):
    code = HOLD.replace(
        'assert lock.acquire(token="theirs")', 'lock.local.token = b"theirs"; lock.release()'
    )
    one = lock(client, name, timeout=60)
    assert one.acquire(token="theirs")
    held_elsewhere(child, server, name, 60, code)
    assert not one.owned() and not server.redis.exists(name)
    with pytest.raises(redis_py.LockNotOwnedError):
        one.release()


@pytest.mark.parametrize("is_ours", [False, True], ids=["redis-py", "ours"])
def test_r18_another_process_does_not_shorten_what_is_counted_on(
    server, client, name, child, is_ours
):
    held_elsewhere(child, server, name, 60)
    other = lock(client, name, timeout=5) if is_ours else client.lock(name, timeout=5)
    other.local.token = b"theirs"
    assert other.reacquire()
    stays = server.redis.pttl(name) > 50_000
    assert stays is deviates(REDIS_PY, "others' belief", ours=True, theirs=False, is_ours=is_ours)
    # The holder itself does.
    mine = lock(client, f"{name}-mine", timeout=60)
    assert mine.acquire() and mine.extend(5, replace_ttl=True)
    assert server.redis.pttl(f"{name}-mine") <= 5_000
    mine.release()


# Deadlocks (G7)


def test_c57_redis_pys_own_lock_waits_for_itself_for_ever(client, name):
    assert not deviates(REDIS_PY, "waits for itself", ours=True, theirs=False, is_ours=False)
    one = client.lock(name, sleep=0.01)

    def twice():
        one.acquire()
        one.acquire()

    thread = threading.Thread(target=twice)
    thread.start()
    thread.join(1)
    assert thread.is_alive()
    # It goes on as soon as the key is not there.
    eventually(lambda: client.delete(name) and not thread.join(0.2) and not thread.is_alive())


def test_c57_who_waits_for_itself_is_told(client, name):
    one = lock(client, name)
    assert one.acquire()
    began = time.monotonic()
    with pytest.raises(lockwarden.Deadlock) as failed:
        one.acquire()
    assert time.monotonic() - began < 15
    assert isinstance(failed.value, redis.exceptions.LockError)
    assert failed.value.cycle
    assert one.owned()
    one.release()


def test_a_limit_ends_in_false_whatever_is_waited_for(client, name):
    one = lock(client, name)
    assert one.acquire()
    began = time.monotonic()
    assert one.acquire(blocking=False) is False
    assert one.acquire(blocking_timeout=0.4) is False
    assert 0.3 < time.monotonic() - began < 15
    one.release()


def test_a_timeout_ends_the_wait_for_oneself(client, name):
    """As with redis-py: nobody waits for ever here."""
    one = lock(client, name, timeout=0.5)
    assert one.acquire() and one.acquire()
    one.release()


def test_two_objects_of_one_thread_are_two_owners(client, name):
    one, other = lock(client, name), lock(client, name)
    assert one.acquire()
    freed = threading.Timer(0.5, client.delete, (name,))
    freed.start()
    assert other.acquire() is True
    other.release()


def test_threads_that_share_an_object_wait_for_each_other(client, name):
    shared = lock(client, name)
    order = []

    def work(number):
        with shared:
            order.append(number)
            time.sleep(0.05)
            order.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(order) == 10 and order[::2] == order[1::2]


def test_without_thread_local_others_release(client, name):
    shared = lock(client, name, thread_local=False)
    assert shared.acquire()
    worker = threading.Timer(0.3, shared.release)
    worker.start()
    assert shared.acquire() is True
    worker.join()
    # The token is the second acquisition's, or gone: one is all that there is.
    client.delete(name)


# Waiting


def test_first_come_first_served(server, client, name):
    one = lock(client, name, timeout=30)
    assert one.acquire()
    order = []
    warden = lockwarden.connect(server.url())

    def wait(number):
        mine = lock(client, name, timeout=30)
        assert mine.acquire()
        order.append(number)
        mine.release()

    threads = []
    for number in range(4):
        threads.append(threading.Thread(target=wait, args=(number,)))
        threads[-1].start()
        eventually(lambda: len(warden.show(name)["queue"]) == number + 1, what="the waiter")
    one.release()
    for thread in threads:
        thread.join(20)
    assert order == [0, 1, 2, 3]


def test_the_timeout_is_whole_after_a_hand_off(server, client, name):
    one = lock(client, name, timeout=30)
    assert one.acquire()
    got = []

    def wait():
        mine = lock(client, name, timeout=40)
        got.append(mine.acquire(token="next"))

    waiter = threading.Thread(target=wait)
    waiter.start()
    eventually(lambda: lockwarden.connect(server.url()).show(name)["queue"], what="the waiter")
    one.release()
    waiter.join(10)
    assert got == [True]
    eventually(lambda: 38_000 < server.redis.pttl(name) <= 40_000, what="the whole timeout")
    assert server.redis.get(name) == b"next"
    client.delete(name)


def test_ctrl_c_ends_a_wait(server, client, name, child):
    code = HOLD.replace('assert lock.acquire(token="theirs")\nprint("held")', 'signal.signal(signal.SIGINT, signal.default_int_handler)\nprint("held")\nlock.acquire()')
    # A shell's background jobs ignore it.
    code = "import signal" + code
    server.redis.set(name, "somebody", px=60_000)
    waiter = held_elsewhere(child, server, name, 10, code)
    eventually(lambda: lockwarden.connect(server.url()).show(name)["queue"], what="the waiter")
    waiter.signal(signal.SIGINT)
    assert waiter.wait() == -signal.SIGINT
    eventually(
        lambda: not lockwarden.connect(server.url()).show(name)["queue"], what="the end of its ticket"
    )


def test_other_threads_run_while_one_waits(client, name):
    client.set(name, "somebody", px=20_000)
    counted = []

    def count():
        while not counted or counted[-1] < 200:
            counted.append(len(counted))
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    assert lock(client, name, timeout=1).acquire(blocking_timeout=1) is False
    thread.join(10)
    assert counted[-1] >= 200


def test_gevent_goes_on_while_a_greenlet_waits(server, name, child):
    pytest.importorskip("gevent")
    code = """
import gevent.monkey
gevent.monkey.patch_all()
import gevent, sys, redis
from lockwarden.redis_py import Lock
client = redis.Redis(port=int(sys.argv[1]))
name = sys.argv[2]
held = client.lock(name, timeout=30, lock_class=Lock)
assert held.acquire()
ticks = []
def tick():
    while True:
        ticks.append(1)
        gevent.sleep(0.01)
ticking = gevent.spawn(tick)
shared = client.lock(name, timeout=30, lock_class=Lock)
def work():
    with shared:
        assert shared.owned()
        gevent.sleep(0.05)
workers = [gevent.spawn(work) for _ in range(4)]
gevent.sleep(0.5)
assert len(ticks) > 10, len(ticks)
assert not any(worker.ready() for worker in workers)
held.release()
gevent.joinall(workers, timeout=20, raise_error=True)
assert all(worker.successful() for worker in workers)
assert not client.exists(name)
print("done")
"""
    assert child(code, str(server.port), name).line() == "done"


# Forks


def test_a_forked_child_knows_the_token(server, client, name, child):
    code = """
import os, sys, redis
from lockwarden.redis_py import Lock
client = redis.Redis(port=int(sys.argv[1]))
lock = client.lock(sys.argv[2], timeout=60, lock_class=Lock)
assert lock.acquire()
kept = client.lock(sys.argv[2] + "-kept", lock_class=Lock)
assert kept.acquire()
pid = os.fork()
if pid == 0:
    assert lock.owned() and lock.extend(10)
    lock.release()
    assert not client.exists(sys.argv[2])
    mine = client.lock(sys.argv[2], timeout=60, lock_class=Lock)
    assert mine.acquire(blocking=False)
    mine.release()
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
assert kept.owned(), "the child's end frees nothing of its parent's"
assert not lock.owned()
try:
    lock.release()
except redis.exceptions.LockNotOwnedError:
    print("told")
kept.release()
print("done")
"""
    one = child(code, str(server.port), name)
    assert [one.line(), one.line()] == ["told", "done"]


def test_a_child_keeps_nothing_of_its_parents_alive(server, client, name, child):
    code = """
import os, sys, redis
from lockwarden.redis_py import Lock
client = redis.Redis(port=int(sys.argv[1]))
lock = client.lock(sys.argv[2], lock_class=Lock)
assert lock.acquire()
pid = os.fork()
if pid == 0:
    # Busy with locks of its own while the parent is dead.
    other = client.lock(sys.argv[2] + "-child", lock_class=Lock)
    assert other.acquire()
    sys.stdin.readline()
    os._exit(0)
print(pid)
sys.stdin.readline()
"""
    holder = child(code, str(server.port), name)
    pid = int(holder.line())
    try:
        eventually(lambda: server.redis.exists(f"{name}-child"), what="the child's lock")
        holder.kill()
        began = time.monotonic()
        next_one = lock(client, name, timeout=10)
        assert next_one.acquire(blocking_timeout=20)
        assert time.monotonic() - began < 15
        assert server.redis.exists(f"{name}-child")
        next_one.release()
    finally:
        os.kill(pid, signal.SIGKILL)


# Neighbours


def test_redis_pys_own_lock_and_ours_exclude_each_other(client, name):
    ours, theirs = lock(client, name, timeout=10), client.lock(name, timeout=10, sleep=0.01)
    assert ours.acquire()
    assert theirs.acquire(blocking=False) is False
    freed = threading.Timer(0.3, client.delete, (name,))
    freed.start()
    assert theirs.acquire(blocking_timeout=5)
    assert ours.acquire(blocking=False) is False and not ours.owned()
    with pytest.raises(redis.exceptions.LockNotOwnedError):
        ours.release()
    theirs.release()
    assert ours.acquire(blocking=False)
    ours.release()


def test_the_token_of_redis_pys_own_lock(client, name):
    theirs = client.lock(name, timeout=10)
    assert theirs.acquire()
    ours = lock(client, name, timeout=20)
    ours.local.token = theirs.local.token
    assert ours.owned() and ours.extend(10) and theirs.owned()
    ours.release()
    assert not client.exists(name)


def test_native_locks_and_drop_ins_are_the_same_lock(server, client, name):
    warden = lockwarden.connect(server.url())
    one = lock(client, name, timeout=10)
    assert one.acquire()
    assert warden.lock(name).acquire(blocking=False) is False
    assert one._warden is warden, "one warden for each server, database and user"
    holder = warden.show(name)["holders"][0]
    assert holder["pid"] == os.getpid() and "test_redis_py_better.py" in holder["site"]
    one.release()
    with warden.lock(name):
        with pytest.raises(redis.exceptions.LockError) as failed:
            with lock(client, name, blocking_timeout=0.1):
                pass
    assert failed.value.holder["pid"] == os.getpid()
    with warden.shared_lock(name):
        assert lock(client, name).acquire(blocking=False) is False


def test_a_server_that_has_just_begun(own_server, name):
    """Somebody may still believe in a lock from before: nothing is granted for 3 s, and that is no error."""
    own_server.stop()
    own_server.without_guard = lambda: None
    own_server.start()
    client = redis.Redis(port=own_server.port)
    other = lockwarden.connect(own_server.url())
    one = lock(client, name, timeout=10)
    began = time.monotonic()
    assert one.acquire(blocking_timeout=10)
    assert time.monotonic() - began < 15
    one.release()
    other.close()


# asyncio

needs_asyncio = pytest.mark.skipif(redis_asyncio is None, reason="redis-py before 4.2")


@pytest.fixture
def aio(server):
    """Runs a story with a client for asyncio."""

    def run(story):
        async def told():
            client = redis_asyncio.Redis(host="127.0.0.1", port=server.port)
            try:
                await story(client)
            finally:
                await client.connection_pool.disconnect()

        asyncio.run(told())

    return run


def async_lock(client, name, **options) -> redis_py.AsyncLock:
    return client.lock(name, lock_class=redis_py.AsyncLock, **options)


@needs_asyncio
def test_tasks_that_share_an_object_wait_for_each_other(aio, name):
    async def story(client):
        shared = async_lock(client, name)
        order = []

        async def work(number):
            async with shared:
                order.append(number)
                await asyncio.sleep(0.02)
                order.append(number)

        await asyncio.wait_for(asyncio.gather(*(work(number) for number in range(5))), 20)
        assert len(order) == 10 and order[::2] == order[1::2]

    aio(story)


@needs_asyncio
def test_c57_a_task_that_waits_for_itself_is_told(aio, name):
    async def story(client):
        one = async_lock(client, name)
        assert await one.acquire()
        with pytest.raises(lockwarden.Deadlock):
            # By this very task: asyncio.wait_for would make another.
            await one.acquire()
        assert await one.acquire(blocking_timeout=0.2) is False
        await one.release()

    aio(story)


@needs_asyncio
def test_a_task_that_is_cancelled_leaves_nothing(aio, server, name):
    async def story(client):
        server.redis.set(name, "somebody", px=60_000)
        waiter = asyncio.ensure_future(async_lock(client, name, timeout=10).acquire())
        warden = lockwarden.connect(server.url())
        while not warden.show(name)["queue"]:
            await asyncio.sleep(0.01)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        while warden.show(name)["queue"]:
            await asyncio.sleep(0.01)
        server.redis.delete(name)
        assert await async_lock(client, name, timeout=10).acquire(blocking=False)

    aio(story)


@needs_asyncio
def test_a_loop_goes_on_while_a_task_waits(aio, server, name):
    async def story(client):
        server.redis.set(name, "somebody", px=60_000)
        ticks = 0
        waiter = asyncio.ensure_future(
            async_lock(client, name, timeout=10).acquire(blocking_timeout=0.5)
        )
        while not waiter.done():
            ticks += 1
            await asyncio.sleep(0.001)
        assert ticks > 50 and waiter.result() is False

    aio(story)


@needs_asyncio
def test_a_loop_goes_on_while_a_server_does_not_answer(own_server, name):
    async def story():
        client = redis_asyncio.Redis(port=own_server.port)
        own_server.pause()
        waiter = asyncio.ensure_future(
            async_lock(client, name, timeout=10).acquire(blocking_timeout=5)
        )
        longest = 0.0
        until = time.monotonic() + 1
        while time.monotonic() < until:
            before = time.monotonic()
            await asyncio.sleep(0.001)
            longest = max(longest, time.monotonic() - before)
        own_server.resume()
        assert longest < 0.7
        assert await waiter is True
        await client.connection_pool.disconnect()

    asyncio.run(story())


@needs_asyncio
def test_c07_released_by_a_callback_and_in_an_executor(aio, server, name):
    async def story(client):
        one = async_lock(client, name, timeout=30)
        assert await one.acquire()
        # Another task, which has acquired nothing.
        await asyncio.ensure_future(one.release())
        assert not server.redis.exists(name)
        plain = redis.Redis(port=server.port)
        sync = lock(plain, name, timeout=30, thread_local=False)
        assert sync.acquire()
        await asyncio.get_running_loop().run_in_executor(None, sync.release)
        assert not server.redis.exists(name)

    aio(story)


@needs_asyncio
@pytest.mark.parametrize("implementation", ["redis-py", "ours"])
def test_c06_two_tasks_that_share_an_object(aio, server, name, implementation):
    async def story(client):
        is_ours = implementation == "ours"
        lock_class = redis_py.AsyncLock if is_ours else TheirAsyncLock
        shared = client.lock(name, timeout=0.5, lock_class=lock_class)
        first_has_it, second_has_it = asyncio.Event(), asyncio.Event()
        seen = {}

        async def first():
            assert await shared.acquire()
            first_has_it.set()
            await second_has_it.wait()
            try:
                await shared.release()
                seen["first"] = "released"
            except redis.exceptions.LockNotOwnedError:
                seen["first"] = "lost"
            seen["the second's key"] = bool(server.redis.exists(name))

        async def second():
            await first_has_it.wait()
            shared.timeout = 30
            assert await shared.acquire()
            second_has_it.set()

        await asyncio.wait_for(asyncio.gather(first(), second()), 20)
        assert seen == deviates(
            REDIS_PY,
            "tasks apart",
            ours={"first": "lost", "the second's key": True},
            theirs={"first": "released", "the second's key": False},
            is_ours=is_ours,
        )

    aio(story)


# Clients


def test_clients_of_one_server_share_a_warden(server, client):
    clients = [
        redis.Redis(host="127.0.0.1", port=server.port),
        redis.Redis(host="127.0.0.1", port=server.port, decode_responses=True),
        redis.Redis.from_url(server.url()),
        redis.Redis(
            connection_pool=redis.BlockingConnectionPool(host="127.0.0.1", port=server.port)
        ),
    ]
    if redis_asyncio is not None:
        clients.append(redis_asyncio.Redis(host="127.0.0.1", port=server.port))
    assert {lock(one, "x")._warden for one in clients} == {lockwarden.connect(server.url())}
    assert lock(redis.Redis(port=server.port, db=1), "x")._warden.place.endswith("/1")


def test_another_database(server, name):
    client = redis.Redis(port=server.port, db=3)
    server_redis = redis.Redis(port=server.port, db=3)
    run = server_redis.info("server")["run_id"]
    server_redis.hset("lockwarden:meta", mapping={"epoch": "test", "run": run, "guard": 0, "fence": 0})
    with lock(client, name, timeout=10):
        assert server_redis.exists(name) and not server.redis.exists(name)
    assert not server_redis.exists(name)


def test_by_a_unix_socket(tmp_path, name, unix_server):
    client = redis.Redis(unix_socket_path=unix_server)
    with lock(client, name, timeout=10) as held:
        assert held.owned()
    assert not client.exists(name)


def test_by_tls(tmp_path, name, child, free_port):
    certificates = ROOT / ".servers" / "tls"
    server = Server("redis-7.0", tmp_path, "--tls-port", str(free_port), "--tls-auth-clients", "no",
                    "--tls-cert-file", str(certificates / "server.crt"),
                    "--tls-key-file", str(certificates / "server.key"),
                    "--tls-ca-cert-file", str(certificates / "ca.crt"))
    code = """
import os, sys, redis
from lockwarden.redis_py import Lock
client = redis.Redis(host="127.0.0.1", port=int(sys.argv[1]), ssl=True, ssl_ca_certs=os.environ["SSL_CERT_FILE"])
with client.lock(sys.argv[2], timeout=10, lock_class=Lock) as lock:
    print(lock.owned(), lock._warden.place.split(":")[0])
"""
    try:
        held = child(code, str(free_port), name, SSL_CERT_FILE=str(certificates / "ca.crt"))
        assert held.line() == "True rediss"
    finally:
        server.stop()


def test_with_a_login(own_server, name):
    own_server.redis.execute_command("ACL", "SETUSER", "worker", "on", ">p@ss:/?#", "~*", "&*", "+@all")
    login = {"host": "127.0.0.1", "port": own_server.port}
    clients = [redis.Redis(username="worker", password="p@ss:/?#", **login)]
    if hasattr(redis, "UsernamePasswordCredentialProvider"):
        provider = redis.UsernamePasswordCredentialProvider("worker", "p@ss:/?#")
        clients.append(redis.Redis(credential_provider=provider, **login))
    for one in clients:
        with lock(one, name, timeout=10) as held:
            assert held.owned() and "worker" in held._warden.place
    assert len({lock(one, name)._warden for one in clients}) == 1


def test_what_is_not_supported_is_said(name):
    from redis.sentinel import Sentinel, SentinelConnectionPool

    # Made by hand: master_for() of old versions connects at once.
    by_sentinel = SentinelConnectionPool("main", Sentinel([("127.0.0.1", 1)]))
    with pytest.raises(lockwarden.Invalid, match="Sentinel"):
        lockwarden.connect(by_sentinel)
    with pytest.raises(lockwarden.Invalid, match="ssl_ca_certs"):
        lock(redis.Redis(ssl=True, ssl_ca_certs="/somewhere.pem"), name).acquire()
    with pytest.raises(lockwarden.Invalid, match="ssl_cert_reqs"):
        lock(redis.Redis(ssl=True, ssl_cert_reqs="none"), name).acquire()


def test_the_package_does_not_need_redis_py(child):
    code = """
import sys
class Refuses:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "redis":
            raise ImportError(name)
sys.meta_path.insert(0, Refuses())
import lockwarden
with lockwarden.connect("memory:").lock("x"):
    print("held")
try:
    import lockwarden.redis_py
except ImportError as error:
    print(error)
"""
    one = child(code)
    assert [one.line(), one.line()] == ["held", "redis"]


def test_errors_survive_pickling(client, name):
    import pickle

    with pytest.raises(redis.exceptions.LockError) as failed:
        lock(client, name, timeout=1).release()
    again = pickle.loads(pickle.dumps(failed.value))
    assert type(again) is type(failed.value) and str(again) == str(failed.value)
    assert again.lock_name == name
