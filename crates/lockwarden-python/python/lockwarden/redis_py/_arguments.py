"""What the numbers that users of redis-py give mean, and which are refused."""

from __future__ import annotations

import functools
import inspect
import math
import numbers
from decimal import Decimal
from typing import Any, Callable, List, Optional, TypeVar, cast

from redis.lock import Lock as Theirs

from .._redis_errors import Invalid, InvalidType

F = TypeVar("F", bound=Callable[..., Any])

# The longest wait that the core knows, a hundred years: more is no limit.
_NO_LIMIT_S = 3_153_600_000


def _number(what: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (numbers.Real, Decimal)):
        raise InvalidType(f"{what} is a number of seconds, not {value!r}")
    try:
        number = float(value)
    except OverflowError:
        raise Invalid(f"{what} of {value!r} s is too long") from None
    if math.isnan(number):
        raise Invalid(f"{what} of {value!r} s is none")
    return number


def lease(timeout: Any) -> Optional[float]:
    """A lock's timeout in s, in whole ms as redis-py sends it; None: it has none."""
    if timeout is None or (isinstance(timeout, (int, float, Decimal)) and not timeout):
        return None
    return _milliseconds("a timeout", timeout)


def extension(what: str, length: Any) -> float:
    """How long a lock is to live, in s."""
    return _milliseconds(what, length)


def _milliseconds(what: str, length: Any) -> float:
    number = _number(what, length)
    if math.isinf(number):
        raise Invalid(f"{what} is finite")
    ms = int(length * 1000)
    if ms < 1:
        raise Invalid(f"{what} of {length!r} s is too short: the least is 1 ms")
    return ms / 1000


def wait(blocking: Any, blocking_timeout: Any) -> Optional[float]:
    """How long to wait, in s; None: for ever. A limit that is not above 0 is one try."""
    if not blocking:
        return 0.0
    if blocking_timeout is None:
        return None
    number = _number("a blocking_timeout", blocking_timeout)
    return None if number >= _NO_LIMIT_S else max(number, 0.0)


def _positions() -> List[str]:
    return [name for name in inspect.signature(Theirs.acquire).parameters if name != "self"]


def in_the_order_of_redis_py(method: F) -> F:
    """Later versions of redis-py have ``sleep`` in front of the arguments of ``acquire``. Positional ones mean what they
    mean in the installed one."""
    names = _positions()

    @functools.wraps(method)
    def ordered(self: Any, *args: Any, **kwargs: Any) -> Any:
        if len(args) > len(names):
            raise TypeError(
                f"acquire() takes at most {len(names)} arguments, {len(args)} were given"
            )
        for name, value in zip(names, args):
            if name in kwargs:
                raise TypeError(f"acquire() got multiple values for argument {name!r}")
            kwargs[name] = value
        return method(self, **kwargs)

    return cast(F, ordered)
