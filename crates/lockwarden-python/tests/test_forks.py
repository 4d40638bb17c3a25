"""A forked child holds nothing of its parent's, and begins anew (C14, R24)."""

import multiprocessing
import os
import signal
import threading
import time

import lockwarden
from conftest import eventually


def forked(call):
    """Runs it in a forked child; its exit code, 0: it returned true."""
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            code = 0 if call() else 1
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    until = time.monotonic() + 30
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise AssertionError("the child hangs")
        time.sleep(0.005)


def test_c14_a_child_holds_nothing(warden, name, server):
    lock = warden.lock(name)
    with lock as held:

        def child():
            assert not held.check() and not lock.owned and lock.held is None
            assert held.lost.is_set() and "child" in held.lost.reason
            try:
                held.release()
            except lockwarden.Error:
                pass
            else:
                raise AssertionError("it released its parent's lock")
            # The child's own connection sees the parent's lock.
            assert lock.acquire(blocking=False) is False
            with warden.lock(name + "-child", wait=5) as own:
                return own.check()

        assert forked(child) == 0
        assert held.check() and server.redis.exists(name)


def test_c14_what_the_child_drops_hurts_nobody(warden, name, server):
    held = warden.lock(name).__enter__()

    def child():
        nonlocal held
        del held
        import gc

        gc.collect()
        return True

    assert forked(child) == 0
    assert held.check()
    held.release()


def test_c14_forks_amid_everything(warden, name):
    """Other threads acquire and release while children are made."""
    over = threading.Event()

    def work(number):
        lock = warden.lock(f"{name}-{number}")
        while not over.is_set():
            with lock:
                pass

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    try:
        for number in range(20):

            def child():
                with warden.lock(f"{name}-child-{number}", wait=10) as held:
                    return held.check()

            assert forked(child) == 0
    finally:
        over.set()
        for thread in threads:
            thread.join()


def test_c14_a_child_may_use_asyncio(warden, name):
    import asyncio

    async def work():
        async with warden.lock(name) as held:
            return held.check()

    assert asyncio.run(work())
    assert forked(lambda: asyncio.run(work())) == 0


def test_parent_and_child_are_two_owners(warden, name):
    """The same thread on both sides of a fork is not one owner: each would have what the other holds."""
    lock = warden.lock(name)
    with lock:
        assert forked(lambda: lock.acquire(timeout=0.1) is False) == 0


def _in_pool(arguments):
    url, name = arguments
    with lockwarden.connect(url).lock(name, wait=20) as held:
        return held.fence


def test_multiprocessing_pools(server, name):
    lockwarden.connect(server.url()).lock(name).acquire(blocking=False)
    lockwarden.connect(server.url()).close()
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(3) as pool:
            fences = pool.map(_in_pool, [(server.url(), name)] * 12)
        assert len(set(fences)) == 12


def test_c11_a_killed_process_is_followed_at_once(warden, name, server, child):
    code = """
import sys, lockwarden
lock = lockwarden.connect(sys.argv[1]).lock(sys.argv[2])
lock.acquire(); print("held"); sys.stdin.read()
"""
    lock = warden.lock(name)
    for _ in range(5):
        holder = child(code, server.url(), name)
        assert holder.line() == "held"
        waits = threading.Thread(target=lock.acquire)
        got = []
        waits = threading.Thread(target=lambda: (lock.acquire(), got.append(time.monotonic())))
        waits.start()
        eventually(lambda: warden.show(name)["queue"])
        killed = time.monotonic()
        holder.kill()
        waits.join(20)
        assert got and got[0] - killed < 2
        lock.release()


def test_c14_the_memory_store_of_a_child_is_its_own(name):
    warden = lockwarden.connect("memory:")
    over = threading.Event()

    def work(number):
        while not over.is_set():
            with warden.lock(f"{name}-{number}"):
                pass

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    try:
        with warden.lock(name):
            for _ in range(30):
                assert forked(lambda: warden.lock(name).acquire(timeout=5)) == 0
    finally:
        over.set()
        for thread in threads:
            thread.join()


def test_a_relative_directory_stays_where_it_was(tmp_path, monkeypatch, name):
    """The store of a daemon that goes elsewhere and forks is the same one."""
    monkeypatch.chdir(tmp_path)
    warden = lockwarden.connect("file:locks")
    with warden.lock(name):

        def child():
            os.chdir("/")
            return warden.lock(name).acquire(blocking=False) is False

        assert forked(child) == 0
    warden.close()
