"""Failures of other libraries that were reported in public, by their numbers."""

from __future__ import annotations

import datetime
import decimal
import enum
import os
import pickle
import random
import signal
import subprocess
import sys
import time
import uuid

import pytest
from celery.exceptions import TaskRevokedError
from celery_workers import PATHS, Farm, broker, farm, kill, name  # noqa: F401
from conftest import LONG, eventually

import lockwarden
from lockwarden.celery._names import Namer


def f(a, b=2, *more, c="x", **rest):
    pass


def key(template, *args, **kwargs):
    return Namer(template, f).name("f", args, kwargs)


@pytest.mark.parametrize("template", [None, "f:{a}:{b}:{c}"])
def test_c62_one_call_has_one_name(template):
    """Positional, by keyword, in any order, defaults given or left out."""
    names = {
        key(template, 1, 2), key(template, 1), key(template, a=1), key(template, b=2, a=1), key(template, 1, b=2),
        key(template, 1, c="x"), key(template, 1, 2, c="x"),
    }
    assert len(names) == 1


def test_c62_nested_values_in_any_order():
    one = {"x": [1, {"p": None, "q": True}], "y": {3, 1, 2}}
    other = {"y": {2, 3, 1}, "x": [1, {"q": True, "p": None}]}
    assert key(None, one) == key(None, other)
    assert key("f:{a}", one) == key("f:{a}", other)
    assert key("f:{a[x]}", one) == key("f:{a[x]}", other)
    assert key(None, (1, 2)) == key(None, [1, 2]), "JSON makes a list of it on its way"
    assert key(None, {1: "a"}) == key(None, {"1": "a"}), "and a text of this"


DIFFERENT = [
    1, "1", 1.0, "1.0", True, "true", None, "null", "", " ", "a", "A", "a b", ["a", "b"], ["a,b"], "a,b", ["a", ["b"]],
    "[a]", {"a": 1}, {"a": "1"}, {"a": None}, {}, [], set(), b"a", "b\"61\"", "\"a\"", "a:b", "a\\", "a\"", "\u00e9",
    "e\u0301", -1, "-1", 10**30, "\ud800", "\\ud800", {"a", "b"}, {"a,b"}, 1e5, "1e5", "1e+05", 0.1,
]


@pytest.mark.parametrize("template", [None, "f:{a}", "{a}", "f:{a}:{b}", "f:{b}/{a}x"])
def test_c62_different_values_have_different_names(template):
    names = [key(template, value) for value in DIFFERENT]
    assert len(set(names)) == len(names)


def test_c62_neighbours_do_not_run_into_each_other():
    values = [1, 12, 2, "", "a", "a:b", "b", ":", "a:", ":b", "x", [1], "1", "12", None]
    for template in (None, "f:{a}:{b}", "{a}:{b}:", "{a}x:{b}", "{a} {b}"):
        names = [key(template, one, other) for one in values for other in values]
        assert len(set(names)) == len(names), template
    for template in ("{a}{b}", "{a}-{b}", "f:{a}.{b}", "{a}_{b}"):
        with pytest.raises(lockwarden.Invalid, match="separates"):
            Namer(template, f)


def test_c62_what_a_worker_sees_has_the_same_name():
    """What Celery's JSON turns into text."""
    zone = datetime.timezone.utc
    for value, wire in [
        (uuid.UUID(int=5), str(uuid.UUID(int=5))),
        (decimal.Decimal("1.50"), "1.50"),
        (datetime.datetime(2024, 1, 2, 3, 4, tzinfo=zone), "2024-01-02T03:04:00Z"),
        (datetime.date(2024, 1, 2), "2024-01-02T00:00:00"),
        ((1, (2,)), [1, [2]]),
        (enum.IntEnum("E", "one").one, 1),
        (-0.0, 0.0),
    ]:
        for template in (None, "f:{a}"):
            assert key(template, value) == key(template, wire)


def test_c62_what_has_no_text_is_refused_with_advice():
    class Thing:
        pass

    itself = []
    itself.append(itself)
    for value in (Thing(), object(), f, float("nan"), float("inf"), [Thing()], {Thing(): 1}, {(1, 2): 3}, itself,
                  enum.Enum("E", "one").one, {1: "a", "1": "b"}):
        with pytest.raises(lockwarden.Invalid, match="give a function"):
            key(None, value)
        with pytest.raises(lockwarden.Invalid, match="give a function"):
            key("f:{a}", value)
    with pytest.raises(lockwarden.Invalid, match="the task's arguments are: a, b, more, c, rest"):
        Namer("f:{d}", f)
    for wrong in ("f:{a", "f:{a!r}", "f:{a:>5}", 5):
        with pytest.raises(lockwarden.Invalid):
            Namer(wrong, f)
    with pytest.raises(TypeError):
        key("f:{a}")
    assert Namer(lambda a, *_, **__: f"mine-{a.__class__.__name__}", f).name("f", (Thing(),), {}) == "mine-Thing"
    with pytest.raises(lockwarden.Invalid, match="no text"):
        Namer(lambda *_, **__: 5, f).name("f", (1,), {})


def test_c62_long_arguments_are_hashed():
    names = {key("f:{a}", ["x" * n]) for n in range(200, 400)}
    assert len(names) == 200 and all(len(it.encode()) <= 340 for it in names)
    assert all(it.startswith('f:["xxx') for it in names)
    long = key("f:{a}", "é" * 5000)
    assert key("f:{a}", long) != long


def test_c62_the_same_in_every_process():
    """Whatever the hash seed."""
    code = (
        "from lockwarden.celery._names import Namer\n"
        "def f(a, **rest): pass\n"
        "print(Namer(None, f).name('f', ({'x': {'p', 'q', 'r'}, 'y': {'b': 1, 'a': 2}},), {'k': 1, 'j': 2}))"
    )
    names = {
        subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": str(seed)},
                       capture_output=True, text=True, check=True).stdout
        for seed in range(4)
    }
    assert len(names) == 1


def test_c62_in_a_worker_as_at_the_sender(farm: Farm, name):
    """bind=True, autoretry, by keyword: the lock that the sender pledged is the one that the worker holds."""
    tasks = farm.tasks
    first = tasks.pledged_tries.apply_async((), {"times": 0, "work": name})
    assert len(tasks.warden().show(f"work:{name}")["holders"]) == 1
    assert tasks.pledged_tries.delay(name, 0).state == "REVOKED"
    farm.worker()
    assert first.get(20) == 0
    farm.nothing_left()


@pytest.mark.parametrize("task", ["tries", "tries_by_itself"])
def test_c63_a_b_retries_run_one_at_a_time(farm: Farm, name, task):
    """Freed between the tries, which need no luck: on_conflict skip does not drop them."""
    farm.worker()
    result = getattr(farm.tasks, task).delay(name, 2)
    assert result.get(20) == 2
    farm.book.never_two_at_once(name, {})
    assert len(farm.book.events(name, "begin")) == 3
    farm.nothing_left()


def test_c63_a_retry_is_not_dropped_for_another(farm: Farm, name):
    farm.worker()
    other = farm.tasks.warden().lock(f"work:{name}", owner="other")
    result = farm.tasks.tries.apply_async((name, 1), retries=1)
    with other:
        another = farm.tasks.tries.apply_async((f"{name}-2", 0))
        assert another.get(20) == 0
    assert result.get(30) == 1
    farm.nothing_left()


def test_c63_d_revoked_while_it_runs(farm: Farm, name):
    """With SIGTERM and with SIGKILL: the worker goes on, and so does the next."""
    worker = farm.worker("prefork", 2)
    farm.answering()
    for number, sign in enumerate(("SIGTERM", "SIGKILL")):
        work = f"{name}-{number}"
        result = farm.tasks.waits.delay(work, True)
        farm.book.wait(work, "begin")
        second = farm.tasks.waits.delay(work)
        farm.waiting(f"work:{work}")
        result.revoke(terminate=True, signal=sign)
        assert second.get(20) == f"{work} done"
        with pytest.raises(TaskRevokedError):
            result.get(20)
    assert worker.process.poll() is None
    farm.nothing_left()


def test_c63_d_revoked_while_it_waits(farm: Farm, name):
    """Neither a lock nor a place in the queue is left; or one of a dead process, which is passed over."""
    farm.worker("prefork", 2)
    farm.answering()
    first = farm.tasks.waits.delay(name, True)
    farm.book.wait(name, "begin")
    second = farm.tasks.waits.delay(name)
    farm.waiting(f"work:{name}")
    second.revoke(terminate=True)
    eventually(lambda: not [it for it in farm.tasks.warden().show(f"work:{name}")["queue"] if it["alive"]],
               what="a queue without anybody alive")
    farm.book.go(name)
    assert first.get(20) == f"{name} done"
    assert farm.tasks.waits.delay(name).get(20) == f"{name} done"
    farm.nothing_left()


@pytest.mark.parametrize("how", ["error", "ignore", "reject"])
def test_c63_f_failure_ignore_reject(farm: Farm, name, how):
    worker = farm.worker()
    farm.tasks.fails.delay(name, how)
    farm.book.wait(name, "end")
    farm.free(f"work:{name}")
    assert farm.tasks.skips.delay(name).get(20) == f"{name} done"
    assert worker.process.poll() is None
    farm.nothing_left()


def test_c63_i_every_exception_survives_its_pickle():
    from lockwarden import _errors

    kinds = [it for it in vars(_errors).values() if isinstance(it, type) and issubclass(it, _errors.Error)]
    assert len(kinds) > 15
    for kind in kinds:
        error = kind("what", retry_helps=True, facts={"name": "n", "holder": {"label": "x"}})
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is kind and str(again) == "what" and again.facts == error.facts and again.retry_helps
        bare = pickle.loads(pickle.dumps(kind("what")))
        assert str(bare) == "what"


def test_c64_soft_limit_in_the_body(farm: Farm, name):
    farm.worker("prefork", 2)
    result = farm.tasks.limited.apply_async((name,), soft_time_limit=1)
    farm.book.wait(name, "soft")
    farm.free(f"work:{name}", 1.0)
    with pytest.raises(Exception, match="SoftTimeLimitExceeded"):
        result.get(20)
    farm.nothing_left()


def test_c64_soft_limit_while_it_waits(farm: Farm, name):
    farm.worker("prefork", 2)
    first = farm.tasks.waits.delay(name, True)
    farm.book.wait(name, "begin")
    result = farm.tasks.limited.apply_async((name,), soft_time_limit=1)
    farm.waiting(f"work:{name}")
    with pytest.raises(Exception, match="SoftTimeLimitExceeded"):
        result.get(20)
    assert not farm.tasks.warden().show(f"work:{name}")["queue"]
    farm.book.go(name)
    first.get(20)
    farm.nothing_left()


def test_c64_soft_limit_in_a_frozen_store(farm: Farm, name):
    """Redis stands still while the limit comes: the exception reaches the task, and nothing is left when it goes on."""
    farm.worker("prefork", 2)
    # A child that has connected.
    for n in range(4):
        farm.tasks.waits.delay(f"{name}-warm-{n}").get(20)
    result = farm.tasks.limited.apply_async((name,), soft_time_limit=1)
    farm.book.wait(name, "begin")
    farm.server.process.send_signal(signal.SIGSTOP)
    time.sleep(2)  # for so long it stands still, past the limit: no condition, but what is done to it
    farm.server.process.send_signal(signal.SIGCONT)
    with pytest.raises(Exception, match="SoftTimeLimitExceeded|TimeLimit"):
        result.get(30)
    farm.free(f"work:{name}", 1.5)
    farm.nothing_left()


HAMMER = """
import random, signal, sys
import celery_tasks
from celery.exceptions import SoftTimeLimitExceeded
from lockwarden.celery import exclusive

class Limit(Exception): pass
def handler(*_): raise SoftTimeLimitExceeded()
signal.signal(signal.SIGALRM, handler)
seed, count, most = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
rng = random.Random(seed)
ran = []

@celery_tasks.app.task(shared=False)
@exclusive("work:{work}", on_conflict="wait", warden=celery_tasks.warden)
def body(work):
    ran.append(work)

body.apply((sys.argv[4],))
print("ready", flush=True)
sys.stdin.readline()
hit = 0
for n in range(count):
    work = f"{sys.argv[4]}-{n}"
    try:
        signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-6, most))
        try:
            result = body.apply((work,))
            reached = isinstance(result.result, SoftTimeLimitExceeded)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except SoftTimeLimitExceeded:
        reached = True
    hit += reached
    # Nothing of what was interrupted is kept alive by an exception that somebody still has.
    left = celery_tasks.warden().show(f"work:{work}")
    print(n, int(reached), len(left["holders"]), len(left["queue"]), flush=True)
print("hit", hit, flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("frozen", [False, True], ids=["quick", "slow store"])
def test_c64_soft_limit_at_any_moment(farm: Farm, name, child, frozen):
    """A limit's exception at random places of acquire, body and release, 200 times and more; also while the store stands
    still now and then. Never a key that is renewed for nobody."""
    count = (2000 if LONG else 300) if not frozen else 200
    seed = random.randrange(1 << 30)
    print("seed", seed)
    hammer = child(HAMMER, str(seed), str(count), "0.05" if frozen else "0.004", name,
                   CELERY_TEST_URL=farm.server.url(), PYTHONPATH=PATHS)
    assert hammer.line() == "ready"
    hammer.say("go")
    lines = []
    while True:
        if frozen and len(lines) % 4 == 0:
            farm.server.process.send_signal(signal.SIGSTOP)
            time.sleep(0.03)  # for so long it stands still
            farm.server.process.send_signal(signal.SIGCONT)
        line = hammer.line()
        assert line, "the process ended"
        if line.startswith("hit"):
            hit = int(line.split()[1])
            break
        lines.append(line)
    assert hit > count // 10, "the limit came in hardly any place"
    # While the process that had them lives on.
    warden = farm.tasks.warden()
    eventually(lambda: not [it for it in warden.names() if it.startswith(f"work:{name}")], 1.0 if not frozen else 3.0,
               "the keys to be gone")
    farm.nothing_left()
    hammer.say("end")


def test_c64_hard_limit_with_nobody_waiting(farm: Farm, name):
    """The next one, sent afterwards, is not kept waiting by the dead child's lease."""
    farm.worker("prefork", 2)
    result = farm.tasks.waits.apply_async((name, True), time_limit=1)
    with pytest.raises(Exception, match="TimeLimitExceeded"):
        result.get(20)
    assert farm.tasks.waits.delay(name).get(10) == f"{name} done"
    farm.nothing_left()
