"""The right way: all four locks at once, each held until the order is committed."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from lockwarden.django import locked

from . import orders


@csrf_exempt  # for programs, without cookies
@require_POST
@locked("user:{customer}", "product:{product}", "coupon:{coupon}", "sequence:{branch}")
def order(request: HttpRequest, **asked: Any) -> JsonResponse:
    try:
        placed = orders.place(fence=request.lockwarden.fence, **asked)
    except orders.OutOfStock:
        return JsonResponse({"refused": "out of stock"}, status=422)
    except orders.Stale:
        return JsonResponse({"refused": "the lock was lost"}, status=503, headers={"Retry-After": "1"})
    return JsonResponse({"number": f"{placed.branch}-{placed.number}"}, status=201)
