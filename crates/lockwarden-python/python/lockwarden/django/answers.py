"""What a request is answered when it cannot have its locks: 409 busy, 503 store unavailable or guarded."""

from __future__ import annotations

import logging
import math
from typing import Any, Callable, Optional, Union

from django.http import HttpResponse, JsonResponse
from django.utils.module_loading import import_string

from .._errors import (
    Busy,
    Closed,
    Deadlock,
    Denied,
    Error,
    Guarded,
    LockLost,
    Timeout,
    Unavailable,
)
from .conf import conf
from .text import shown

log = logging.getLogger("lockwarden.django")

Answer = Union[None, str, Callable[..., Any]]

# What is no fault of the program, and may be different the next time.
REFUSED = (Busy, Timeout, Deadlock, Guarded, Unavailable, Denied, Closed)

# W of the protocol: what a store that began anew costs.
_STORE_S = 3


def status(error: Error) -> int:
    if isinstance(error, (Busy, Timeout)):
        return 503 if error.reason == "guarded" else 409
    return 409 if isinstance(error, Deadlock) else 503


def retry_after(error: Error) -> int:
    """In how many seconds it may be worth trying again."""
    if status(error) == 409 or isinstance(error, LockLost):
        return conf().retry_after
    left: float = error.facts.get("left_s", _STORE_S)
    return max(conf().retry_after, math.ceil(left))


def refused(request: Any, error: Error, answer: Answer = None) -> Any:
    """The response. ``answer`` makes it, else ``ANSWER`` of the settings, else it is a line of text, or JSON for whoever
    speaks that. It tells nothing about the holder: that is for the log."""
    level = logging.INFO if isinstance(error, (Busy, Timeout)) else logging.ERROR
    log.log(level, "%s %s: %s", request.method, shown(request.path), shown(str(error)))
    seconds = retry_after(error)
    response = _made(request, error, seconds, answer if answer is not None else conf().answer)
    response.setdefault("Retry-After", str(seconds))
    response.setdefault("Cache-Control", "no-store")
    return response


def _made(request: Any, error: Error, seconds: int, answer: Answer) -> Any:
    if isinstance(answer, str):
        answer = import_string(answer)
    made: Optional[Any] = answer(request, error) if callable(answer) else None
    if made is not None:
        return made
    code = status(error)
    word = "busy" if code == 409 else "unavailable"
    if _speaks_json(request):
        return JsonResponse({"error": word, "retry_after": seconds}, status=code)
    text = f"{word.capitalize()}. Try again in {seconds} s.\n"
    return HttpResponse(text, status=code, content_type="text/plain; charset=utf-8")


def _speaks_json(request: Any) -> bool:
    return "json" in request.headers.get("Accept", "") or request.content_type == "application/json"
