"""Nothing that Python code does keeps a lock from being renewed (C15): each holds a lock of 0.5 s for several leases."""

import asyncio
import ctypes
import sys
import time

import pytest

LEASE = 0.5


def still_held(warden, name, held, fence):
    assert held.check() and held.fence == fence
    (holder,) = warden.show(name)["holders"]
    assert holder["fence"] == fence
    assert holder["held_s"] > 2 * LEASE


def test_c15_a_loop_that_never_yields(warden, name):
    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)
    try:
        with warden.lock(name, lease=LEASE) as held:
            fence = held.fence
            until = time.monotonic() + 3 * LEASE
            while time.monotonic() < until:
                pass
            still_held(warden, name, held, fence)
    finally:
        sys.setswitchinterval(interval)


def test_c15_a_c_call_that_holds_the_interpreter_lock(warden, name):
    # PyDLL, other than CDLL, does not let go of the interpreter lock.
    libc = ctypes.PyDLL(None)
    with warden.lock(name, lease=LEASE) as held:
        fence = held.fence
        libc.usleep(int(2.5 * LEASE * 1e6))
        still_held(warden, name, held, fence)


@pytest.mark.asyncio
async def test_c15_a_blocked_loop(warden, name):
    async with warden.lock(name, lease=LEASE) as held:
        fence = held.fence
        time.sleep(3 * LEASE)
        still_held(warden, name, held, fence)
        await asyncio.sleep(0)


def test_c15_gevent(server, name, child):
    code = """
from gevent import monkey; monkey.patch_all()
import sys, time, lockwarden
from gevent import _threading
warden = lockwarden.connect(sys.argv[1])
with warden.lock(sys.argv[2], lease=0.5) as held:
    until = time.monotonic() + 1.5
    while time.monotonic() < until:   # the hub never runs
        pass
    assert held.check(), held.lost.reason
    print("held")
"""
    holds = child(code, server.url(), name)
    assert holds.line() == "held"
    assert holds.wait() == 0
