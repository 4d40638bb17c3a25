"""Every bad value is a typed error that names it; nothing is left, nothing hangs, nothing panics."""

import copy
import datetime
import os
import pickle
import socket
import threading

import pytest

import lockwarden
from lockwarden import Invalid

NAN = float("nan")


@pytest.mark.parametrize(
    "bad", [None, b"bytes", 7, 1.5, "", "x" * 5000, "lockwarden:meta", "\ud800", ["a"], object()]
)
def test_names(warden, server, bad):
    for make in (warden.lock, warden.shared_lock, lambda name: warden.semaphore(name, 3),
                 lambda name: warden.lock_all(["fine", name])):
        with pytest.raises(Invalid):
            make(bad).acquire(blocking=False)
    with pytest.raises(Invalid):
        warden.show(bad)
    assert not server.keys()


@pytest.mark.parametrize("bad", ["5", b"5", -1.5, NAN, float("inf"), 1e300, True, object(), [1], 10**400])
@pytest.mark.parametrize(
    "option", ["wait", "lease", "grace", "hold_at_least", "hold_at_most", "lock_delay"]
)
def test_durations(warden, server, name, option, bad):
    with pytest.raises(Invalid):
        with warden.lock(name, **{option: bad}):
            pass
    assert not server.keys()


@pytest.mark.parametrize("bad", ["5", None, NAN, -2, -0.001, float("inf"), 1e300, object()])
def test_timeouts(warden, name, bad):
    with pytest.raises(Invalid):
        warden.lock(name).acquire(timeout=bad)


def test_ranges(warden, name):
    for options in (
        {"lease": 0}, {"lease": 0.05}, {"lease": 10**8}, {"grace": 1}, {"hold_at_most": 0.01},
        {"lock_delay": 10**8}, {"label": "x" * 300}, {"label": 7}, {"tags": {"a b": "c"}},
        {"tags": {"a": 1}}, {"owner": "with space"}, {"owner": 3}, {"on_lost": 3},
        {"if_lost": "maybe"}, {"order_class": 3}, {"hold_at_least": 5, "hold_at_most": 2},
    ):
        with pytest.raises(Invalid):
            with warden.lock(name, **options):
                pass
    with pytest.raises(TypeError):
        warden.lock(name, colour="red")
    with pytest.raises(Invalid, match="no timeout"):
        warden.lock(name).acquire(blocking=False, timeout=3)


@pytest.mark.parametrize(
    "value,permits", [(0, 1), (3, 0), (3, 4), (-1, 1), (3, -1), (10**7, 1), ("3", 1), (3, None), (3.0, 1), (True, 1)]
)
def test_permits(warden, name, value, permits):
    with pytest.raises(Invalid):
        warden.semaphore(name, value, permits=permits).acquire(blocking=False)


def test_several(warden):
    for names in ([], "abc", b"abc", ["a", ("b", "both")], ["a", ("b",)], [("a", "shared"), "a"],
                  [("a", (1, 0))], [f"n{n}" for n in range(1001)]):
        with pytest.raises(Invalid):
            warden.lock_all(names).acquire(blocking=False)
    with pytest.raises(TypeError):
        warden.lock_all(7)


def test_stores(tmp_path):
    for bad in ("http://x", "redis://", "", "redis://h/x", 7, b"redis://h", object(), ["memory:"]):
        with pytest.raises((Invalid, lockwarden.Error)):
            lockwarden.connect(bad) if bad != "" else lockwarden.connect("x")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(lockwarden.Unavailable) as caught:
        lockwarden.connect(f"redis://:secret@127.0.0.1:{port}")
    assert isinstance(caught.value, ConnectionError) and "secret" not in str(caught.value)
    assert caught.value.facts["trouble"] == "unreachable"
    foreign = tmp_path / "foreign"
    foreign.mkdir(mode=0o777)
    os.chmod(foreign, 0o777)
    if os.geteuid() == 0:
        os.chown(foreign, 12345, 12345)
        with pytest.raises(lockwarden.Denied):
            lockwarden.connect(f"file:{foreign}")


def test_wrong_password(own_server):
    own_server.redis.config_set("requirepass", "right")
    with pytest.raises(lockwarden.Denied) as caught:
        lockwarden.connect(f"redis://:nonsense@127.0.0.1:{own_server.port}")
    assert isinstance(caught.value, PermissionError) and "nonsense" not in str(caught.value)


def test_closed(server, name):
    warden = lockwarden.connect(server.url())
    lock = warden.lock(name)
    held = lock.__enter__()
    warden.close()
    warden.close()
    assert not held.check() and server.redis.get(name) is None
    for call in (
        lambda: lock.acquire(blocking=False),
        held.release,
        lambda: warden.show(name),
        warden.names,
        lambda: held.extend(5),
    ):
        with pytest.raises(lockwarden.Error) as caught:
            call()
        assert caught.value.code in ("closed", "not_held")


def test_closed_while_others_wait(server, name):
    other = lockwarden.connect(server.url(), label="other")
    warden = lockwarden.connect(server.url())
    errors = []
    with other.lock(name):

        def wait():
            try:
                warden.lock(name).acquire()
            except lockwarden.Error as error:
                errors.append(error.code)

        thread = threading.Thread(target=wait)
        thread.start()
        while not other.show(name)["queue"]:
            pass
        warden.close()
        thread.join(10)
    assert errors == ["closed"]
    other.close()


def test_errors_travel(warden, name):
    """Between processes, as Celery and multiprocessing send them: with all they know."""
    errors = []
    with warden.lock(name, owner="holder", label="me"):
        for call in (
            lambda: warden.lock(name, wait=0).__enter__(),
            lambda: warden.lock(name, wait=0.01).__enter__(),
            lambda: warden.lock(name, lease=-1),
            lambda: warden.lock(name).release(),
            lambda: warden.semaphore(name, 3).acquire(),
            lambda: lockwarden.connect("redis://127.0.0.1:1"),
        ):
            with pytest.raises(lockwarden.Error) as caught:
                call()
            errors.append(caught.value)
    assert len({error.code for error in errors}) == len(errors)
    for error in errors:
        for again in (pickle.loads(pickle.dumps(error)), copy.deepcopy(error)):
            assert type(again) is type(error)
            assert (str(again), again.code, again.facts) == (str(error), error.code, error.facts)
            assert again.retry_helps == error.retry_helps


def test_timedeltas_are_durations(warden, name):
    second = datetime.timedelta(seconds=1)
    with warden.lock(name, wait=second, lease=20 * second) as held:
        assert 10 < held.remaining <= 20
        held.extend(40 * second)
        assert held.remaining > 30
