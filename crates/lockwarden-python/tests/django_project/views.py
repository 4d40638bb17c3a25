"""Views that do little but hold locks. ``seen`` is what the tests look at afterwards; ``during`` runs inside a view."""

import asyncio
import time
from typing import Any, Callable, List, Optional

from django.db import connection, transaction
from django.http import HttpResponse, StreamingHttpResponse
from django.utils.decorators import method_decorator
from django.views import View

from lockwarden.django import lock, locked, warden

from .models import Counter

seen: List[Any] = []
during: Optional[Callable[[Any], Any]] = None


def _inside(request: Any) -> HttpResponse:
    held = request.lockwarden
    seen.append(held.names)
    assert held.check()
    if during is not None:
        during(request)
    return HttpResponse(str(held.fence))


@locked("stock:{pk}", wait=0)
def stock(request, pk):
    return _inside(request)


@locked("stock:{pk}", wait=0)
async def stock_async(request, pk):
    return _inside(request)


@locked("stock:{a}", "user:{b}", ("catalog", "shared"), wait=0)
def several(request, a, b):
    return _inside(request)


@locked("coupon:{request.POST[coupon]}", wait=0)
def posted(request):
    return _inside(request)


@locked(lambda request, pk: [f"one:{pk}", f"two:{pk}"] if pk != "none" else [], wait=0)
def by_function(request, pk):
    return _inside(request) if pk != "none" else HttpResponse("no lock")


@locked("user:{request.user.pk}", wait=0)
def of_user(request):
    return _inside(request)


@locked("only-post", methods=["post"], wait=0)
def only_post(request):
    seen.append(getattr(request, "lockwarden", None))
    return HttpResponse()


@method_decorator(locked("class:{pk}", wait=0), name="dispatch")
class Class(View):
    def get(self, request, pk):
        return _inside(request)


@method_decorator(locked("class:{pk}", wait=0), name="dispatch")
class ClassAsync(View):
    async def get(self, request, pk):
        return _inside(request)


class Handler(View):
    @locked("handler:{pk}", wait=0)
    def get(self, request, pk):
        return _inside(request)


def _parts(name):
    for number in range(3):
        seen.append([name, len(warden().show(name)["holders"])])
        yield str(number)


@locked("streamed:{pk}", wait=0)
def streamed(request, pk):
    return StreamingHttpResponse(_parts(f"streamed:{pk}"))


@locked("streamed:{pk}", wait=0)
async def streamed_async(request, pk):
    async def parts():
        for part in _parts(f"streamed:{pk}"):
            yield part

    return StreamingHttpResponse(parts())


@locked("boom:{pk}", wait=0)
def boom(request, pk):
    if during is not None:
        during(request)
    raise ValueError("boom")


@locked("boom:{pk}", wait=0)
async def boom_async(request, pk):
    raise ValueError("boom")


@locked("waits:{pk}", wait=60)
async def waits(request, pk):
    await asyncio.Event().wait()


@locked("lost:{pk}", wait=0)
def lost(request, pk):
    during(request)
    return HttpResponse("done")


def answered(request, error):
    return HttpResponse(f"{error.code}, sorry", status=429)


@locked("stock:{pk}", wait=0, answer="django_project.views.answered")
def own_answer(request, pk):
    return _inside(request)


def inside(request, pk):
    with lock(f"stock:{pk}", wait=0) as held:
        return HttpResponse(str(held.fence))


def forgets(request, pk):
    assert warden().lock(f"forgotten:{pk}").acquire()
    return HttpResponse()


async def forgets_async(request, pk):
    assert await warden().lock(f"forgotten:{pk}").acquire_async()
    return HttpResponse()


def _increment():
    """Read, wait a moment, write: without a lock, updates are lost."""
    counter = Counter.objects.get(pk=1)
    time.sleep(0.001)
    counter.value += 1
    counter.save()


def increment(request, how):
    {"outside": _outside, "inside": _within, "savepoint": _savepoint, "decorated": _decorated}[how](
        request
    )
    return HttpResponse()


def _outside(request):
    with lock("counter"):
        with transaction.atomic():
            _increment()


def _within(request):
    with transaction.atomic():
        with lock("counter"):
            _increment()


def _savepoint(request):
    with transaction.atomic():
        with transaction.atomic():
            with lock("counter"):
                _increment()


@locked("counter")
def _decorated(request):
    _increment()


@locked("counter")
def atomic(request):
    """Under ATOMIC_REQUESTS."""
    seen.append(connection.in_atomic_block)
    _increment()
    if during is not None:
        during(request)
    if request.GET.get("fail"):
        raise ValueError("rolled back")
    return HttpResponse()


@transaction.atomic
@locked("counter")
def atomic_by_hand(request):
    return atomic.__wrapped__(request)


@transaction.non_atomic_requests
@locked("counter")
def not_atomic(request):
    seen.append(connection.in_atomic_block)
    return HttpResponse()


@method_decorator(locked("counter"), name="dispatch")
class ClassAtomic(View):
    def get(self, request):
        return atomic.__wrapped__(request)
