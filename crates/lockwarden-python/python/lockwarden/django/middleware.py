"""Nothing that a request acquired outlives it."""

from __future__ import annotations

import functools
from typing import Any, Optional

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async

from .._errors import Error
from .._scope import Scope
from .answers import REFUSED, refused
from .holding import release_quietly
from .text import shown
from .transactions import log


class LockwardenMiddleware:
    """Put it first. It releases what a request still holds at its end, and logs it; and it answers 409 or 503 where a
    view lets the error of a lock pass. A streaming response ends when it has been sent."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response
        self._is_async = bool(iscoroutinefunction(get_response))
        if self._is_async:
            markcoroutinefunction(self)

    def __call__(self, request: Any) -> Any:
        if self._is_async:
            return self._awaited(request)
        scope = Scope()
        response = None
        try:
            with scope:
                response = self.get_response(request)
        finally:
            if not _ends_later(response, scope, request):
                _end(scope, request)
        return response

    async def _awaited(self, request: Any) -> Any:
        scope = Scope()
        response = None
        try:
            with scope:
                response = await self.get_response(request)
        finally:
            if scope.left() and not _ends_later(response, scope, request):
                await sync_to_async(_end, thread_sensitive=False)(scope, request)
        return response

    def process_exception(self, request: Any, exception: Exception) -> Optional[Any]:
        if isinstance(exception, Error) and isinstance(exception, REFUSED):
            return refused(request, exception)
        return None


def _ends_later(response: Any, scope: Scope, request: Any) -> bool:
    if not getattr(response, "streaming", False):
        return False
    # Behind those of the views, whose locks are held on purpose.
    response._resource_closers.append(functools.partial(_end, scope, request))
    return True


def _end(scope: Scope, request: Any) -> None:
    for thing in scope.left():
        if not getattr(thing, "expected", False):
            log.warning(
                "%s %s has ended and still held the lock %s, which is released now: use with, or release it in finally",
                request.method,
                shown(request.path),
                shown(", ".join(thing.names)),
            )
        release_quietly(thing)
