"""Where gevent has patched threads, what waits gives way to its hub (C40)."""


def run(child, server, name, body):
    code = (
        "from gevent import monkey; monkey.patch_all()\n"
        "import sys, time, threading, gevent, lockwarden\n"
        "warden = lockwarden.connect(sys.argv[1]); name = sys.argv[2]\n" + body
    )
    process = child(code, server.url(), name)
    lines = [process.line()]
    while lines[-1]:
        lines.append(process.line())
    assert process.wait(60) == 0, lines
    return lines[:-1]


def test_c40_holder_and_waiter_in_one_thread(child, server, name):
    body = """
lock = warden.lock(name)
order = []
def work(n):
    with lock:
        order.append(n)
        gevent.sleep(0.002)
gevent.joinall([gevent.spawn(work, n) for n in range(20)], raise_error=True)
print(order == list(range(20)))
"""
    assert run(child, server, name, body) == ["True"]


def test_threads_are_greenlets_and_owners(child, server, name):
    body = """
lock = warden.lock(name)
results = []
with lock:
    with lock:
        thread = threading.Thread(target=lambda: results.append(lock.acquire(timeout=0.1)))
        thread.start(); thread.join()
print(results)
"""
    assert run(child, server, name, body) == ["[False]"]


def test_c39_killed_greenlets_leave_nothing(child, server, name):
    body = """
with warden.lock(name):
    waits = [gevent.spawn(warden.lock(name).acquire) for _ in range(50)]
    while len(warden.show(name)["queue"]) < 50: gevent.sleep(0.01)
    gevent.killall(waits)
    try:
        with gevent.Timeout(0.05):
            gevent.spawn(warden.lock(name).acquire).join()
    except gevent.Timeout:
        print("timeout")
    with gevent.Timeout(10):
        while len(warden.show(name)["queue"]) > 1: gevent.sleep(0.01)
print("left", len(warden.show(name)["queue"]))
"""
    assert run(child, server, name, body)[0] == "timeout"


def test_lost_is_told(child, server, name):
    body = """
held = warden.lock(name, if_lost="ignore").__enter__()
waits = gevent.spawn(held.lost.wait, 20)
gevent.sleep(0.01)
warden.revoke(name, held.token)
print(waits.get(timeout=10), "revoked" in held.lost.reason, held.lost.wait(0))
"""
    assert run(child, server, name, body) == ["True True True"]


def test_deadlock_between_greenlets(child, server, name):
    body = """
one, two = warden.lock(name + "1"), warden.lock(name + "2")
def nested(a, b):
    with a:
        gevent.sleep(0.05)
        try:
            with b: pass
        except lockwarden.Deadlock: return "deadlock"
        return "fine"
print(sorted(it.get(timeout=20) for it in [gevent.spawn(nested, one, two), gevent.spawn(nested, two, one)]))
"""
    assert run(child, server, name, body) == ["['deadlock', 'fine']"]


def test_c39_a_grant_that_comes_too_late_is_given_back(child, server, name):
    """The hub is busy in the moment of the grant, and then the limit is over."""
    body = """
held = warden.lock(name, owner="holder").__enter__()
late = 0
def wait():
    global late
    try:
        with gevent.Timeout(0.05):
            with warden.lock(name): pass
    except gevent.Timeout:
        late += 1
for _ in range(6):
    waits = gevent.spawn(wait)
    gevent.sleep(0.03)
    held.release()
    until = time.monotonic() + 0.1
    while time.monotonic() < until: pass
    waits.join()
    with gevent.Timeout(10):
        held = warden.lock(name, owner="holder").__enter__()
print("fine", late)
"""
    assert run(child, server, name, body)[0].startswith("fine")


def test_c40_everything_that_asks_the_store_gives_way(child, own_server, name):
    body = """
import os, signal
held = warden.lock(name).__enter__()
ticks = 0
def tick():
    global ticks
    while True:
        gevent.sleep(0.01); ticks += 1
gevent.spawn(tick)
os.kill(int(sys.argv[3]), signal.SIGSTOP)
def cont():
    gevent.sleep(0.3); os.kill(int(sys.argv[3]), signal.SIGCONT)
gevent.spawn(cont)
held.extend(20)
before = ticks
print(before > 5)
warden.show(name); warden.names()
"""
    code = (
        "from gevent import monkey; monkey.patch_all()\n"
        "import sys, time, gevent, lockwarden\n"
        "warden = lockwarden.connect(sys.argv[1]); name = sys.argv[2]\n" + body
    )
    process = child(code, own_server.url(), name, str(own_server.process.pid))
    assert process.line() == "True"
    assert process.wait(30) == 0
