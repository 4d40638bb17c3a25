"""Real servers for the tests: started on free ports, ended with them."""

from __future__ import annotations

import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import uuid
from typing import Iterator

import pytest
import redis

import lockwarden

ROOT = pathlib.Path(__file__).resolve().parents[3]
SERVERS = [
    name
    for name in os.environ.get("LOCKWARDEN_TEST_SERVERS", "redis-7.0,valkey-9.1").split(",")
    if name
]
if SERVERS == ["all"]:
    SERVERS = ["redis-5.0", "redis-6.2", "redis-7.0", "redis-8.2", "valkey-9.1"]
LONG = os.environ.get("LOCKWARDEN_TEST_LONG") == "1"


def eventually(condition, timeout: float = 10.0, what: str = "the condition"):
    """Waits until it is true, and says what it was."""
    until = time.monotonic() + timeout
    while time.monotonic() < until:
        result = condition()
        if result:
            return result
        time.sleep(0.005)
    raise AssertionError(f"{what} did not come within {timeout} s")


class Server:
    """A real Redis or Valkey on a free port."""

    def __init__(self, name: str, directory: pathlib.Path, *options: str) -> None:
        self.name = name
        self.program = str(ROOT / ".servers" / name / "redis-server")
        self.directory = directory
        self.options = options
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [self.program, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir",
             str(self.directory), "--daemonize", "no", *self.options],
            stdout=subprocess.DEVNULL,
            preexec_fn=_die_with_us,
        )
        self.redis = redis.Redis(port=self.port)

        def answers() -> bool:
            assert self.process.poll() is None, f"{self.name} ended at once"
            try:
                return bool(self.redis.ping())
            except redis.exceptions.ConnectionError:
                return False

        eventually(answers, what=f"{self.name} on port {self.port}")
        self.without_guard()

    def without_guard(self) -> None:
        """As if nobody could still believe in a lock from before: a new server grants nothing for 3 s otherwise."""
        run = self.redis.info("server")["run_id"]
        self.redis.hset(
            "lockwarden:meta",
            mapping={"epoch": f"test.{uuid.uuid4().hex}", "run": run, "guard": 0, "fence": 0},
        )

    def url(self, db: int = 0) -> str:
        return f"redis://127.0.0.1:{self.port}/{db}"

    def keys(self) -> set:
        """All that is left, but for what always stays, and for the traces of a link's self-test, which end in 1 s."""
        return {
            key
            for key in self.redis.keys("*")
            if key != b"lockwarden:meta" and b":self-test:" not in key
        }

    def pause(self) -> None:
        """It answers nobody until :meth:`resume`."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def _die_with_us() -> None:
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


@pytest.fixture(scope="session", params=SERVERS)
def shared_server(request, tmp_path_factory) -> Iterator[Server]:
    server = Server(request.param, tmp_path_factory.mktemp("server"))
    yield server
    server.stop()


@pytest.fixture
def server(shared_server: Server) -> Iterator[Server]:
    """One that several tests share, each with a fresh database."""
    yield shared_server
    for key in shared_server.redis.keys("*"):
        if key != b"lockwarden:meta":
            shared_server.redis.delete(key)


@pytest.fixture
def own_server(tmp_path) -> Iterator[Server]:
    """One of the test's own, to be restarted, flushed or stopped."""
    server = Server(SERVERS[0], tmp_path)
    yield server
    server.stop()


@pytest.fixture
def unix_server(tmp_path) -> Iterator[str]:
    """The socket of a server that has one."""
    path = str(tmp_path / "s")
    server = Server(SERVERS[0], tmp_path, "--unixsocket", path)
    yield path
    server.stop()


@pytest.fixture
def free_port() -> int:
    """Nobody listens there."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def warden(server: Server) -> Iterator[lockwarden.Warden]:
    warden = lockwarden.connect(server.url())
    yield warden
    warden.close()


@pytest.fixture
def name(request) -> str:
    """A lock's name that no other test uses."""
    return f"{request.node.name[:80]}-{uuid.uuid4().hex[:8]}"


class Child:
    """A Python process that runs some code: lines that it prints are read one by one."""

    def __init__(self, code: str, *args: str, **env: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-c", code, *args],
            stdout=subprocess.PIPE,
            stdin=subprocess.PIPE,
            text=True,
            env={**os.environ, **env},
            preexec_fn=_die_with_us,
        )

    def line(self) -> str:
        return self.process.stdout.readline().strip()

    def say(self, text: str) -> None:
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self, timeout: float = 20.0) -> int:
        return self.process.wait(timeout)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def child() -> Iterator:
    """Starts children, and ends what is left of them."""
    children = []

    def start(code: str, *args: str, **env: str) -> Child:
        children.append(Child(code, *args, **env))
        return children[-1]

    yield start
    for one in children:
        one.kill()
