"""``locked``: a view that runs while its locks are held."""

from __future__ import annotations

import contextlib
import functools
import inspect
from typing import Any, Callable, Collection, Iterator, List, Optional, Tuple, TypeVar, cast

from asgiref.sync import iscoroutinefunction
from django.http import HttpRequest

from .._errors import Invalid
from .._lock import Held, Lock
from .._warden import Warden
from . import atomic_requests, transactions
from .answers import REFUSED, Answer, refused
from .holding import give_back, made, release_quietly
from .names import of_request
from .store import warden, warden_async

View = TypeVar("View", bound=Callable[..., Any])


def locked(
    *names: Any,
    methods: Optional[Collection[str]] = None,
    using: Optional[Collection[str]] = None,
    answer: Answer = None,
    **options: Any,
) -> Callable[[View], View]:
    """Decorates a view, sync or async: it runs while its locks are held, and else is answered 409 (busy) or 503 (the
    store is away, or began anew), with Retry-After.

    ``names``: each a format string over the URL's arguments and ``request`` (``"stock:{pk}"``,
    ``"user:{request.user.pk}"``), a pair of one and a mode, or a function of what the view is called with, that returns
    such names. All are granted at once, or none.

    The locks are held until the transaction has ended: that of ``ATOMIC_REQUESTS`` begins inside them, and is rolled back
    if they are lost before its commit. Of a streaming response they are held until it has been sent.

    ``methods``: lock these only; None: all. ``using``: whose transactions to wait for. ``answer``: a function of request
    and error, or its dotted path, that makes the response for who is refused. ``if_lost`` is ``"log"`` here. Other
    options: :meth:`lockwarden.Warden.lock_all`. Inside, ``request.lockwarden`` is what is held.
    """
    if not names or not all(isinstance(one, (str, tuple)) or callable(one) for one in names):
        raise Invalid('locked() needs names, as format strings or functions: @locked("stock:{pk}")')
    asked = _Asked(
        names,
        None if methods is None else {method.upper() for method in methods},
        {"if_lost": "log", **options},
    )

    def decorate(view: View) -> View:
        if isinstance(view, HttpRequest) or not callable(view):
            raise Invalid('locked() needs names: @locked("stock:{pk}"), not @locked')
        if _is_async(view):
            return cast(View, _awaited(view, asked, answer))
        return cast(View, _called(view, asked, using, answer))

    return decorate


class _Asked:
    """Which locks a view wants, and how."""

    def __init__(self, names: Any, methods: Any, options: Any) -> None:
        self._names = names
        self._methods = methods
        self._options = options

    def names(self, request: Any, args: Any, kwargs: Any) -> List[Any]:
        """What to lock for this request; nothing: it needs no lock."""
        if self._methods is not None and request.method not in self._methods:
            return []
        return of_request(self._names, request, args, kwargs)

    def lock(self, its: Warden, view: Any, request: Any, names: List[Any]) -> Lock:
        label = f"{request.method} {_path_of(view)}"[:250]
        lock = made(its, names, {"label": label, **self._options})
        lock._site = _site_of(view, request.method)
        return lock


def _called(view: Any, asked: _Asked, using: Optional[Collection[str]], answer: Answer) -> Any:
    @functools.wraps(view)
    def called(*args: Any, **kwargs: Any) -> Any:
        request, rest = _request_of(args)
        names = asked.names(request, rest, kwargs)
        run = functools.partial(view, *args, **kwargs)
        if not names:
            return atomic_requests.run(run, called, request, None)
        with contextlib.ExitStack() as stack:
            transactions.refuse_manual(using)
            try:
                held = asked.lock(warden(), view, request, names).__enter__()
            except REFUSED as error:
                return refused(request, error, answer)
            stack.push(lambda kind, error, trace: give_back(held, error, using))
            stack.enter_context(_told(request, held))
            try:
                response = atomic_requests.run(run, called, request, held)
            except atomic_requests.Lost as lost:
                return refused(request, lost.error, answer)
            if getattr(response, "streaming", False):
                stack.pop_all()
                _hold_until_sent(response, held)
            return response

    atomic_requests.take_over(called, view)
    return called


def _awaited(view: Any, asked: _Asked, answer: Answer) -> Any:
    @functools.wraps(view)
    async def awaited(*args: Any, **kwargs: Any) -> Any:
        request, rest = _request_of(args)
        names = asked.names(request, rest, kwargs)
        if not names:
            return await view(*args, **kwargs)
        async with contextlib.AsyncExitStack() as stack:
            try:
                lock = asked.lock(await warden_async(), view, request, names)
                held = await stack.enter_async_context(lock)
            except REFUSED as error:
                return refused(request, error, answer)
            stack.enter_context(_told(request, held))
            response = await view(*args, **kwargs)
            if getattr(response, "streaming", False):
                lock._keep(held)
                _hold_until_sent(response, held)
            return response

    return awaited


@contextlib.contextmanager
def _told(request: Any, held: Held) -> Iterator[None]:
    """``request.lockwarden`` inside."""
    before = getattr(request, "lockwarden", None)
    request.lockwarden = held
    try:
        yield
    finally:
        request.lockwarden = before


def _hold_until_sent(response: Any, held: Held) -> None:
    """What makes the body runs after the view has returned (C41)."""
    response._resource_closers.append(functools.partial(release_quietly, held))


def _request_of(args: Tuple[Any, ...]) -> Tuple[Any, Tuple[Any, ...]]:
    """The request, and what follows it: a method has ``self`` before, and REST framework wraps it."""
    for at, arg in enumerate(args[:2]):
        if isinstance(arg, HttpRequest) or isinstance(getattr(arg, "_request", None), HttpRequest):
            return arg, args[at + 1 :]
    raise Invalid("locked() decorates views: their first argument is the request")


def _bound(view: Any) -> Any:
    """The object whose method this is, through what ``method_decorator`` puts around; None: it is a function."""
    while isinstance(view, functools.partial):
        view = view.func
    return getattr(view, "__self__", None)


def _is_async(view: Any) -> bool:
    # The dispatch() of a class with async handlers is a plain function that returns a coroutine.
    return bool(iscoroutinefunction(view)) or bool(
        getattr(_bound(view), "view_is_async", False) and view.__name__ == "dispatch"
    )


def _path_of(view: Any) -> str:
    its = _bound(view)
    named = view if its is None else type(its)
    return f"{named.__module__}.{getattr(named, '__qualname__', type(named).__qualname__)}"


def _site_of(view: Any, method: str) -> Optional[str]:
    """Where the view stands: the line that acquires is one of Django's."""
    its = _bound(view)
    function = getattr(type(its), method.lower(), None) if its is not None else view
    code = getattr(inspect.unwrap(function), "__code__", None) if function is not None else None
    return None if code is None else f"{code.co_filename}:{code.co_firstlineno}"
