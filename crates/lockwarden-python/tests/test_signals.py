"""Signals end waits at once, and leave nothing (C12, C48)."""

import signal
import time

from conftest import eventually

WAIT = """
import sys, time, signal, lockwarden
signal.signal(signal.SIGTERM, lambda *_: sys.exit(15))
warden = lockwarden.connect(sys.argv[1])
lock = warden.lock(sys.argv[2])
print("waits")
try:
    lock.acquire()
except KeyboardInterrupt:
    print("interrupted", time.monotonic())
"""


def waiter(server, warden, name, child):
    waits = child(WAIT, server.url(), name)
    assert waits.line() == "waits"
    eventually(lambda: warden.show(name)["queue"], what="its place in the queue")
    return waits


def test_c48_ctrl_c_ends_a_wait(server, warden, name, child):
    with warden.lock(name):
        waits = waiter(server, warden, name, child)
        sent = time.monotonic()
        waits.signal(signal.SIGINT)
        said, when = waits.line().split()
        assert said == "interrupted" and float(when) - sent < 1
        assert waits.wait() == 0
        eventually(lambda: not warden.show(name)["queue"], what="an empty queue")


def test_c12_sigterm_ends_a_wait(server, warden, name, child):
    with warden.lock(name):
        waits = waiter(server, warden, name, child)
        waits.signal(signal.SIGTERM)
        assert waits.wait() == 15
        eventually(lambda: not warden.show(name)["queue"], what="an empty queue")


HOLD = """
import sys, signal, time, lockwarden
signal.signal(signal.SIGTERM, lambda *_: sys.exit(15))
with lockwarden.connect(sys.argv[1]).lock(sys.argv[2]):
    print("held")
    time.sleep(60)
"""


def test_c12_a_holder_that_is_terminated_releases(server, warden, name, child):
    for number, code in ((signal.SIGTERM, 15), (signal.SIGINT, -2)):
        holds = child(HOLD, server.url(), name)
        assert holds.line() == "held"
        holds.signal(number)
        assert holds.wait() == code
        assert server.redis.get(name) is None


def test_signals_while_another_thread_waits(server, warden, name, child):
    """Only the main thread hears them; a thread that waits goes on."""
    code = """
import sys, threading, signal, time, lockwarden
warden = lockwarden.connect(sys.argv[1])
lock = warden.lock(sys.argv[2])
thread = threading.Thread(target=lambda: (lock.acquire(), print("acquired")), daemon=True)
thread.start()
try:
    time.sleep(60)
except KeyboardInterrupt:
    print("interrupted")
thread.join()
"""
    with warden.lock(name):
        waits = child(code, server.url(), name)
        eventually(lambda: warden.show(name)["queue"], what="its place in the queue")
        waits.signal(signal.SIGINT)
        assert waits.line() == "interrupted"
    assert waits.line() == "acquired"
