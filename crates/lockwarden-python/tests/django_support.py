"""What the tests of the Django integration share: the project, its database, and each store in turn."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import pathlib
import shutil
import sys
import tempfile
from typing import Any, Callable, Iterator

import pytest

pytest.importorskip("django")

_scratch = tempfile.mkdtemp(prefix="lockwarden-django-")
atexit.register(shutil.rmtree, _scratch, ignore_errors=True)
os.environ["TEST_DATABASE"] = os.path.join(_scratch, "db.sqlite3")
os.environ["DJANGO_SETTINGS_MODULE"] = "django_project.settings"
sys.path.insert(0, str(pathlib.Path(__file__).parent))

import django  # noqa: E402

django.setup()

from conftest import SERVERS, Server, eventually  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.db import connections  # noqa: E402
from django.test import AsyncClient, Client, override_settings  # noqa: E402

import lockwarden  # noqa: E402
from django_project import views  # noqa: E402
from django_project.models import Counter  # noqa: E402
from lockwarden.django import store  # noqa: E402

TESTS = pathlib.Path(__file__).parent
# For child processes.
SETUP = f"import sys; sys.path.insert(0, {str(TESTS)!r}); import django; django.setup()\n"


@pytest.fixture(scope="session")
def servers(tmp_path_factory) -> Iterator[Callable[[str], Server]]:
    """Starts a server when a test is the first to want it."""
    started = {}

    def server(name: str) -> Server:
        if name not in started:
            started[name] = Server(name, tmp_path_factory.mktemp(name))
        return started[name]

    yield server
    for one in started.values():
        one.stop()


class Locks:
    """Where the project has its locks, and a second party there."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.other = lockwarden.connect(url, label="other")

    @contextlib.contextmanager
    def held(self, *names: str) -> Iterator[lockwarden.Held]:
        """Somebody else holds these."""
        with self.other.lock_all(names, owner="other", if_lost="ignore") as held:
            yield held

    def holders(self, name: str) -> list:
        return self.other.show(name)["holders"]

    def is_free(self, name: str) -> bool:
        return not self.holders(name)

    def revoke(self, name: str) -> None:
        self.other.revoke(name, self.holders(name)[0]["token"])


@pytest.fixture(scope="session")
def tables() -> None:
    call_command("migrate", verbosity=0, run_syncdb=True)


@pytest.fixture
def project(tables) -> Iterator[None]:
    """A clean project."""
    Counter.objects.all().delete()
    Counter.objects.create(pk=1)
    views.seen.clear()
    views.during = None
    yield
    views.during = None
    connections.close_all()


@pytest.fixture(params=[*SERVERS, "file"])
def locks(request, servers, tmp_path, project) -> Iterator[Locks]:
    """Each store in turn. At the end nothing is left in it."""
    url = f"file:{tmp_path / 'locks'}" if request.param == "file" else servers(request.param).url()
    with using_locks(url) as its:
        yield its
        eventually(lambda: its.other.names() == [], what="the end of all locks")


@contextlib.contextmanager
def using_locks(url: str, **more: Any) -> Iterator[Locks]:
    with override_settings(LOCKWARDEN={"URL": url, "WAIT": 60, **more}):
        its = Locks(url)
        try:
            yield its
        finally:
            its.other.close()
            with contextlib.suppress(lockwarden.Error):
                store.warden().close()


def get(path: str, **headers: str) -> Any:
    return Client(raise_request_exception=True).get(path, **headers)


def post(path: str, data: Any = None, **headers: str) -> Any:
    return Client(raise_request_exception=True).post(path, data or {}, **headers)


def get_async(path: str, **headers: str) -> Any:
    async def asked() -> Any:
        response = await AsyncClient().get(path, **headers)
        if response.streaming and response.is_async:
            response.body = b"".join([part async for part in response.streaming_content])
        return response

    return asyncio.run(asked())


def body(response: Any) -> bytes:
    return b"".join(response.streaming_content)
