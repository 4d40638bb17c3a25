"""Locks in threads: with, acquire, release, modes, owners, several at once."""

import gc
import subprocess
import sys
import threading
import time

import pytest

import lockwarden
from conftest import eventually


def in_thread(call):
    """Runs it in a thread; what it returns or raises."""
    result = {}

    def run():
        try:
            result["value"] = call()
        except BaseException as error:
            result["error"] = error

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    assert not thread.is_alive(), "it hangs"
    if "error" in result:
        raise result["error"]
    return result["value"]


def test_with_holds_and_gives_back(warden, name, server):
    with warden.lock(name) as held:
        assert held.check() and held.name == name and held.fence > 0
        assert held.token in server.redis.get(name)
        assert warden.lock(name).locked()
    assert not held.check()
    assert server.redis.get(name) is None


def test_acquire_says_whether_it_did(warden, name):
    lock = warden.lock(name)
    assert lock.acquire() is True
    assert in_thread(lambda: lock.acquire(blocking=False)) is False
    began = time.monotonic()
    assert in_thread(lambda: lock.acquire(timeout=0.2)) is False
    assert 0.15 < time.monotonic() - began < 5
    lock.release()
    assert in_thread(lambda: lock.acquire(blocking=False)) is True


def test_c02_no_body_without_the_lock(warden, name):
    """The wait ends without the lock: the body does not run, and the error names the holder."""
    with warden.lock(name, label="the holder"):

        def body():
            with warden.lock(name, wait=0.1):
                pytest.fail("the body ran")

        with pytest.raises(lockwarden.Timeout, match="the holder") as caught:
            in_thread(body)
    assert caught.value.holder["label"] == "the holder"
    assert caught.value.waited_s >= 0.1
    assert isinstance(caught.value, TimeoutError) and caught.value.retry_helps


def test_c24_however_short_the_wait_a_free_lock_is_acquired(warden, name):
    """There is always one try."""
    lock = warden.lock(name)
    for _ in range(200):
        assert lock.acquire(timeout=1e-6)
        lock.release()
    with warden.lock(name, owner="other"):
        with pytest.raises(lockwarden.Timeout) as caught:
            with warden.lock(name, wait=1e-6):
                pytest.fail("the body ran")
    assert caught.value.holder["owner"] == "other"


def test_no_wait_is_busy(warden, name):
    with warden.lock(name):

        def body():
            with warden.lock(name, wait=0):
                pytest.fail("the body ran")

        with pytest.raises(lockwarden.Busy) as caught:
            in_thread(body)
    assert caught.value.name == name and caught.value.reason == "held"
    assert "test_locks.py" in caught.value.holder["site"]


def test_c57_a_thread_enters_again(warden, name):
    lock = warden.lock(name)
    with lock as outer, lock as inner:
        assert outer.fence == inner.fence
        assert in_thread(lambda: lock.acquire(blocking=False)) is False
    assert in_thread(lambda: lock.acquire(blocking=False)) is True


def test_c07_another_thread_may_release(warden, name):
    lock = warden.lock(name)
    lock.acquire()
    in_thread(lock.release)
    assert not lock.owned
    with pytest.raises(lockwarden.NotHeld):
        lock.release()


def test_c06_two_threads_hold_for_themselves(warden, name):
    lock = warden.semaphore(name, 2)
    held = threading.Event()
    go = threading.Event()

    def other():
        with lock as its:
            held.set()
            assert go.wait(20)
            return its.token

    results = []
    thread = threading.Thread(target=lambda: results.append(other()))
    thread.start()
    assert held.wait(20)
    with lock as own:
        pass
    assert warden.show(name)["holders"], "the other one's was released"
    go.set()
    thread.join()
    assert results[0] != own.token


def test_explicit_owner(warden, name):
    with warden.lock(name, owner="job-1"):
        assert in_thread(lambda: warden.lock(name, owner="job-1").acquire(blocking=False))
        assert not in_thread(lambda: warden.lock(name, owner="job-2").acquire(blocking=False))
    with lockwarden.owner("job-3"), warden.lock(name + "x"):

        def again():
            with lockwarden.owner("job-3"):
                return warden.lock(name + "x").acquire(blocking=False)

        assert in_thread(again)


def test_shared_and_exclusive(warden, name):
    reader = warden.shared_lock(name)
    with reader as held:
        assert in_thread(lambda: warden.shared_lock(name).acquire(blocking=False))
        assert not in_thread(lambda: warden.lock(name).acquire(blocking=False))
        with pytest.raises(lockwarden.Busy):
            held.try_upgrade()
    gc.collect()
    with warden.shared_lock(name) as held:
        first = held.fence
        held.try_upgrade()
        assert held.fence > first
        held.downgrade()
        assert in_thread(lambda: warden.shared_lock(name).acquire(blocking=False))


def test_permits(warden, name):
    two = warden.semaphore(name, 3, permits=2)
    with two:
        assert not in_thread(lambda: warden.semaphore(name, 3, permits=2).acquire(blocking=False))
        with pytest.raises(lockwarden.OtherMode, match="3 permits"):
            in_thread(lambda: warden.semaphore(name, 4).acquire(blocking=False))


def test_several_at_once(warden, name, server):
    names = [f"{name}-{n}" for n in range(5)]
    with warden.lock_all([*names, (name + "-shared", "shared"), names[0]]) as held:
        assert held.names == sorted({*names, name + "-shared"})
        assert server.redis.exists(*names) == 5
        assert in_thread(lambda: warden.lock_all(names[2:]).acquire(blocking=False)) is False
    assert server.redis.exists(*names) == 0


def test_c58_threads_that_would_wait_for_each_other(warden, name):
    one, two = warden.lock(name + "1"), warden.lock(name + "2")
    both = threading.Barrier(2)
    errors = []

    def nested(first, second):
        with first:
            both.wait(20)
            try:
                with second:
                    pass
            except lockwarden.Deadlock as deadlock:
                errors.append(deadlock)

    threads = [
        threading.Thread(target=nested, args=pair) for pair in ((one, two), (two, one))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    (deadlock,) = errors
    assert {step["name"] for step in deadlock.cycle} == {name + "1", name + "2"}


def test_c03_the_bodys_error_is_never_hidden(warden, name):
    with pytest.raises(KeyError):
        with warden.lock(name) as held:
            warden.revoke(name, held.token)
            raise KeyError("the body's own")


def test_lost_inside_is_told_at_the_end(warden, name):
    with pytest.raises(lockwarden.LockLost, match="revoked") as caught:
        with warden.lock(name) as held:
            warden.revoke(name, held.token)
    assert caught.value.name == name
    for policy in ("log", "ignore"):
        with warden.lock(name, if_lost=policy) as held:
            warden.revoke(name, held.token)


def test_c17_lost_is_told(warden, name):
    told = []
    with warden.lock(name, on_lost=told.append, if_lost="ignore") as held:
        assert not held.lost and held.lost.reason is None
        assert held.lost.wait(0.05) is False
        warden.revoke(name, held.token)
        assert held.lost.wait(10)
        assert held.lost and "revoked" in held.lost.reason
        assert not held.check()
        eventually(lambda: told, what="the callback")
    assert "revoked" in told[0] and len(told) == 1


def test_released_is_not_lost(warden, name):
    told = []
    with warden.lock(name, on_lost=told.append) as held:
        pass
    # Something after it, by the same thread that tells.
    with warden.lock(name, on_lost=told.append, if_lost="ignore") as other:
        warden.revoke(name, other.token)
        eventually(lambda: told)
    assert len(told) == 1 and not held.check()


def test_decorator(warden, name):
    lock = warden.lock(name)

    @lock
    def work(number):
        """Works."""
        assert lock.owned
        return number + 1

    assert work(1) == 2 and not lock.owned
    assert work.__name__ == "work" and work.__doc__ == "Works."
    with pytest.raises(lockwarden.Invalid, match="generator"):

        @lock
        def generator():
            yield 1


def test_extend_and_hand_over(warden, name):
    lock = warden.lock(name, lease=5)
    with lock as held:
        held.extend(60)
        assert 50 < held.remaining <= 60
        text = held.hand_over(30)
        assert not held.check() and not lock.owned
    with warden.adopt(text) as adopted:
        assert adopted.check() and adopted.name == name
    with pytest.raises(lockwarden.NotHandedOver):
        warden.adopt(text).acquire()


def test_c19_what_is_collected_is_released(warden, name, server):
    lock = warden.lock(name)
    lock.acquire()
    del lock
    gc.collect()
    eventually(lambda: server.redis.get(name) is None, what="the release")


def test_c41_an_interpreter_that_ends_releases(server, name):
    code = f"""
import lockwarden
lock = lockwarden.connect({server.url()!r}).lock({name!r})
lock.acquire()
raise SystemExit(3)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert (ended.returncode, ended.stderr) == (3, "")
    assert server.redis.get(name) is None


def test_daemon_threads_end_quietly_with_the_interpreter(server, name):
    """Some wait, some acquire and release, one listens: none of them keeps the interpreter, or has an error."""
    code = f"""
import lockwarden, threading, time
warden = lockwarden.connect({server.url()!r})
held = warden.lock({name!r}).__enter__()
def wait():
    warden.lock({name!r}).acquire()
def cycle():
    while True:
        with warden.lock({name!r} + "x"): pass
for work in [wait] * 5 + [cycle] * 3 + [held.lost.wait]:
    threading.Thread(target=work, daemon=True).start()
while len(warden.show({name!r})["queue"]) < 5: time.sleep(0.01)
"""
    for _ in range(5):
        ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
        assert (ended.returncode, ended.stderr) == (0, "")
        assert not server.redis.exists(name)


def test_show_and_names(warden, name):
    with warden.lock(name, label="me", tags={"job": "7"}):
        shown = warden.show(name)
        (holder,) = shown["holders"]
        assert holder["label"] == "me" and holder["tags"] == {"job": "7"} and holder["alive"]
        assert shown["queue"] == [] and name in warden.names()


def test_one_warden_for_a_store(server):
    import redis
    import redis.asyncio

    one = lockwarden.connect(server.url())
    for client in (
        redis.Redis(port=server.port, host="127.0.0.1"),
        redis.Redis(port=server.port, host="127.0.0.1", decode_responses=True),
        redis.ConnectionPool(port=server.port, host="127.0.0.1"),
        redis.asyncio.Redis(port=server.port, host="127.0.0.1"),
    ):
        assert lockwarden.connect(client) is one
    assert lockwarden.connect(server.url(db=1)) is not one
    one.close()
    assert lockwarden.connect(server.url()) is not one


def test_fair_in_order_of_arrival(warden, name):
    order = []
    with warden.lock(name):
        threads = []
        for number in range(10):

            def wait(number=number):
                with warden.lock(name):
                    order.append(number)

            thread = threading.Thread(target=wait)
            thread.start()
            threads.append(thread)
            eventually(lambda: len(warden.show(name)["queue"]) == number + 1)
    for thread in threads:
        thread.join(20)
    assert order == list(range(10))


def test_ten_thousand_that_time_out_leave_nothing(warden, name, server):
    lock = warden.lock(name)
    with warden.lock(name, owner="holder"):
        with pytest.raises(lockwarden.Timeout):
            lock._take(0.001)
        count = 2_500
        failed = []

        def many():
            for _ in range(count):
                if lock.acquire(timeout=0.0005):
                    failed.append(1)

        threads = [threading.Thread(target=many) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert not failed
        eventually(lambda: not warden.show(name)["queue"], what="an empty queue")
        assert not lock._holds
    eventually(lambda: not server.keys(), timeout=70, what="an empty database")


def test_with_gives_back_what_it_entered_and_no_other(warden, name):
    """A nested hold that is released early does not end the outer one."""
    lock = warden.lock(name)
    with lock as outer:
        with lock as inner:
            inner.release()
        assert outer.check()
        with lock as inner:
            lock.release()
        assert outer.check()
    assert not outer.check() and not lock.locked()


def test_with_may_be_left_by_another_thread(warden, name):
    lock = warden.lock(name)
    lock.__enter__()
    in_thread(lambda: lock.__exit__(None, None, None))
    assert not lock.locked()
    with pytest.raises(lockwarden.NotHeld):
        lock.__exit__(None, None, None)


def test_not_reentrant(warden, name):
    lock = warden.lock(name, reentrant=False)
    with lock as held:
        assert lock.held is held
        assert lock.acquire(blocking=False) is False
    assert not lock.locked()


def test_waiting_for_a_loss_ends_with_the_release(warden, name):
    held = warden.lock(name).__enter__()
    results = []
    waits = threading.Thread(target=lambda: results.append(held.lost.wait()))
    waits.start()
    held.release()
    waits.join(10)
    assert results == [False]


def test_one_callback_that_fails_does_not_silence_the_others(warden, name):
    told = []

    def bad(reason):
        told.append(reason)
        raise RuntimeError("the callback's own fault")

    hook, threading.excepthook = threading.excepthook, lambda *_: None
    try:
        locks = [warden.lock(f"{name}-{n}", on_lost=bad, if_lost="ignore") for n in range(5)]
        helds = [lock.__enter__() for lock in locks]
        for held in helds:
            warden.revoke(held.name, held.token)
        eventually(lambda: len(told) == 5, what="all five")
    finally:
        threading.excepthook = hook


def test_c19_who_listens_to_their_own_lock_is_collected(warden, name, server):
    class Job:
        def __init__(self):
            self.lock = warden.lock(name, on_lost=self.lost)
            self.lock.acquire()

        def lost(self, reason):
            pass

    Job()
    gc.collect()
    eventually(lambda: not server.redis.exists(name), what="the release")


def test_signals_around_a_grant_leave_nothing(server, warden, name, child):
    """What a handler raises at any moment of a `with` leaves no lock, but for a few instructions of the interpreter."""
    code = """
import sys, signal, random, lockwarden
class Alarm(Exception): pass
def ring(*_): raise Alarm
signal.signal(signal.SIGALRM, ring)
warden = lockwarden.connect(sys.argv[1])
hits = left = 0
for n in range(4000):
    name = f"{sys.argv[2]}-{n}"
    lock = warden.lock(name)
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(10e-6, 400e-6))
        with lock: pass
        signal.setitimer(signal.ITIMER_REAL, 0)
    except Alarm:
        hits += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    left += bool(lock._holds)
print(hits, left)
"""
    hits, left = map(int, child(code, server.url(), name).line().split())
    assert hits > 100 and left <= hits // 50, (hits, left)


def test_an_exit_handler_may_join_a_thread_that_waits(server, name):
    code = f"""
import atexit, threading
stop = threading.Event()
atexit.register(lambda: (stop.set(), thread.join()))
import lockwarden
warden = lockwarden.connect({server.url()!r})
held = warden.lock({name!r}).__enter__()
def work():
    while not stop.is_set():
        try:
            warden.lock({name!r}, wait=0.01).acquire(timeout=0.01)
        except lockwarden.Error:
            pass
thread = threading.Thread(target=work, daemon=True)
thread.start()
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert (ended.returncode, ended.stderr) == (0, "")
