"""The examples of the Python guide run as they stand."""

import ast
import asyncio
import inspect
import pathlib
import re
import types

import pytest

import lockwarden
from conftest import ROOT

GUIDE = ROOT / "docs" / "PYTHON.md"
README = ROOT / "README.md"


def examples(path: pathlib.Path):
    text = path.read_text()
    for found in re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        line = text[: found.start()].count("\n") + 2
        yield pytest.param(found[1], id=f"{path.name}:{line}")


async def charge(**_):
    pass


@pytest.mark.parametrize("code", [*examples(GUIDE), *examples(README)])
def test_examples(code, server, monkeypatch):
    import redis

    connect = lockwarden.connect
    monkeypatch.setattr(lockwarden, "connect", lambda *_, **__: connect(server.url()))
    is_async = "await " in code
    names = {
        "lockwarden": lockwarden,
        "warden": lockwarden.connect(),
        "client": redis.Redis(host="127.0.0.1", port=server.port),
        "charge": charge if is_async else lambda **_: None,
        "send": lambda **_: None,
        "__name__": "example",
    }
    compiled = compile(code, "example", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if compiled.co_flags & inspect.CO_COROUTINE:

        async def run():
            await types.FunctionType(compiled, names)()

        asyncio.run(run())
    else:
        exec(compiled, names)


def test_every_public_name_is_documented():
    text = GUIDE.read_text()
    for name in lockwarden.__all__:
        item = getattr(lockwarden, name)
        assert item.__doc__, name
        if isinstance(item, type) and issubclass(item, lockwarden.Error) and item is not lockwarden.Error:
            assert f"`{name}`" in text, name
