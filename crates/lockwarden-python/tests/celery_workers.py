"""Real Celery workers for the tests, to be killed."""

from __future__ import annotations

import gc
import importlib
import os
import pathlib
import select
import signal
import subprocess
import sys
import time
import uuid
from typing import Callable, Iterator, List, NamedTuple, Optional, Tuple

import pytest

import lockwarden
from conftest import LONG, SERVERS, Server, _die_with_us, eventually

HERE = pathlib.Path(__file__).resolve().parent
# The package under test, and the tasks: for workers, which run elsewhere.
PATHS = os.pathsep.join([str(HERE), str(pathlib.Path(lockwarden.__file__).resolve().parents[1])])


class Event(NamedTuple):
    what: str
    work: str
    pid: int
    at: float
    task: str


class Book:
    """What the tasks wrote."""

    def __init__(self, server: Server) -> None:
        self._redis = server.redis

    def events(self, work: str, what: Optional[str] = None) -> List[Event]:
        events = []
        for line in self._redis.lrange("book", 0, -1):
            parts = line.decode().split("|")
            event = Event(parts[0], parts[1], int(parts[2]), float(parts[3]), parts[4] if len(parts) > 4 else "")
            if event.work == work and what in (None, event.what):
                events.append(event)
        return events

    def wait(self, work: str, what: str, count: int = 1, timeout: float = 20.0) -> Event:
        """The event of that number."""
        return eventually(
            lambda: (self.events(work, what) + [None] * count)[count - 1], timeout, f"{what} {count} of {work}"
        )

    def go(self, work: str) -> None:
        self._redis.set(f"go:{work}", 1)

    def never_two_at_once(self, work: str, killed: dict) -> None:
        """``killed``: by pid, when."""
        inside: Optional[Event] = None
        for event in sorted(self.events(work), key=lambda it: it.at):
            if event.what == "begin":
                assert inside is None or killed.get(inside.pid, event.at) < event.at, (inside, event)
                inside = event
            elif event.what == "end" and inside is not None and inside.pid == event.pid:
                inside = None


class Worker:
    """A worker with all its processes."""

    def __init__(self, server: Server, log: pathlib.Path, pool: str, concurrency: int, queues: str, env: dict) -> None:
        self.name = f"{queues.split(',')[0]}-{uuid.uuid4().hex[:6]}@test"
        self.log = log
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "celery", "-A", "celery_tasks", "worker", "-P", pool, "-c", str(concurrency),
                 "-n", self.name, "-Q", queues, "-l", "INFO", "--without-gossip", "--without-mingle",
                 "--without-heartbeat"],
                cwd=HERE,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "CELERY_TEST_URL": server.url(), "PYTHONPATH": PATHS, **env},
                preexec_fn=_die_with_us,
            )

        def ready() -> bool:
            assert self.process.poll() is None, self.log.read_text()
            return bool(server.redis.exists(f"ready:{self.name}"))

        try:
            eventually(ready, 60.0, f"the worker {self.name}")
        except BaseException:
            self.kill()
            raise

    def kill_all(self) -> None:
        """All of its processes."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def kill(self) -> None:
        """The same, and waits for the end."""
        self.kill_all()
        self.process.wait()

    def stop(self) -> None:
        """As a deployment does."""
        self.process.terminate()
        self.process.wait(30)


class Farm:
    """The workers of one test, and its app."""

    def __init__(self, server: Server, directory: pathlib.Path, app) -> None:
        self.server = server
        self.book = Book(server)
        self.tasks = app
        self._directory = directory
        self.workers: List[Worker] = []

    def worker(self, pool: str = "prefork", concurrency: int = 4, queues: str = "one", **env: str) -> Worker:
        log = self._directory / f"worker-{len(self.workers)}.log"
        self.workers.append(Worker(self.server, log, pool, concurrency, queues, env))
        return self.workers[-1]

    def answering(self) -> None:
        """All workers hear what is asked by broadcast: that may be a moment after they are ready."""
        def all_of_them():
            said = self.tasks.app.control.ping(timeout=2, limit=len(self.workers))
            return {name for one in said for name in one} >= {worker.name for worker in self.workers}

        eventually(all_of_them, 30.0, "an answer of all workers")

    def waiting(self, name: str, count: int = 1):
        """So many wait for the lock."""
        eventually(lambda: len(self.tasks.warden().show(name)["queue"]) >= count, 20.0, f"{count} waiting for {name}")

    def free(self, name: str, timeout: float = 10.0) -> None:
        eventually(lambda: not self.tasks.warden().show(name)["holders"], timeout, f"{name} to be free")

    def nothing_left(self) -> None:
        def left():
            return [key for key in self.server.keys() if key.startswith((b"lockwarden:", b"work:"))
                    and not key.startswith(b"lockwarden:wait")]

        eventually(lambda: not left(), 5.0, f"no key, of {left()}")

    def close(self) -> None:
        for worker in self.workers:
            worker.kill()


@pytest.fixture(scope="session", params=SERVERS if LONG else SERVERS[:1])
def broker(request, tmp_path_factory) -> Iterator[Server]:
    """One is enough for a short run: what differs between servers is tested without Celery."""
    server = Server(request.param, tmp_path_factory.mktemp("broker"))
    yield server
    server.stop()


@pytest.fixture
def name() -> str:
    """One word, which stands in a lock's name as it is."""
    return f"job-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def farm(broker: Server, tmp_path, monkeypatch) -> Iterator[Farm]:
    """A fresh database, an app, and workers where they are started."""
    server = broker
    for key in server.keys():
        server.redis.delete(key)
    monkeypatch.setenv("CELERY_TEST_URL", server.url())
    monkeypatch.syspath_prepend(str(HERE))
    sys.modules.pop("celery_tasks", None)
    tasks = importlib.import_module("celery_tasks")
    tasks.app.set_current()
    farm = Farm(server, tmp_path, tasks)
    yield farm
    farm.close()
    tasks.warden().close()
    # What results there are say goodbye to the server while it is there.
    gc.collect()
    tasks.app.backend.result_consumer.stop()
    tasks.app.close()


def gone(pid: int) -> bool:
    """Has the process ended?"""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] in "ZX"
    except FileNotFoundError:
        return True


def kill(pid: int, by: Optional[Callable[[], None]] = None) -> Tuple[float, float]:
    """Kills it, or has it killed, and waits for its end: when was that asked for, and when was it seen? In between it
    died."""
    handle = os.pidfd_open(pid)
    try:
        sent = time.monotonic()
        if by is None:
            os.kill(pid, signal.SIGKILL)
        else:
            by()
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        assert poll.poll(10_000), f"{pid} does not die"
        return sent, time.monotonic()
    finally:
        os.close(handle)
