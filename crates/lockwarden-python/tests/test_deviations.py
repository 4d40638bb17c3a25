"""The list of deviations is whole: none is listed that no test shows."""

from __future__ import annotations

import pathlib
import re

import deviations

HERE = pathlib.Path(__file__).parent


def shown(*files: str) -> set:
    texts = " ".join((HERE / file).read_text() for file in files)
    called = r'(?:expected\(\s*|deviates\(\s*(?:REDIS_PY|REDIS_LOCK),\s*)"([^"]+)"'
    return set(re.findall(called, texts))


def test_each_of_redis_py_is_shown():
    assert shown("test_redis_py.py", "test_redis_py_better.py") == set(deviations.REDIS_PY)


def test_each_of_python_redis_lock_is_shown():
    assert shown("test_redis_lock.py") == set(deviations.REDIS_LOCK)
