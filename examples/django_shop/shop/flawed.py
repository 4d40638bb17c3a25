"""The wrong way, as it is found in the field: do not copy. Each flaw is named where it is."""

from __future__ import annotations

import functools
import random
import time
import uuid
from typing import Any, List

import redis
from django.conf import settings
from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from . import orders

EXPIRE_S = 1
PATIENCE_S = 5


@functools.lru_cache(maxsize=None)
def server() -> redis.Redis:
    return redis.Redis.from_url(settings.REDIS)


def acquire(name: str, token: str) -> bool:
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        if server().setnx(name, token):
            # A crash before the next line locks for ever. And nobody renews: work may outlast it.
            server().expire(name, EXPIRE_S)
            return True
        time.sleep(0.05)  # polling, in no order
    return False


def release(name: str, token: str) -> None:
    # Bytes are never equal to a text: this never releases anything. (And it is two steps.)
    if server().get(name) == token:
        server().delete(name)


@csrf_exempt
@require_POST
def order(request: HttpRequest, **asked: Any) -> JsonResponse:
    names = [
        f"flawed:user:{asked['customer']}",
        f"flawed:product:{asked['product']}",
        f"flawed:coupon:{asked['coupon']}",
        f"flawed:sequence:{asked['branch']}",
    ]
    random.shuffle(names)  # one after the other, each in the order that its author liked: deadlocks
    token = uuid.uuid4().hex
    acquired: List[str] = []
    try:
        for name in names:
            if not acquire(name, token):
                return JsonResponse({"refused": "busy"}, status=409)
            acquired.append(name)
        placed = orders.place(fence=None, **asked)
    except orders.OutOfStock:
        return JsonResponse({"refused": "out of stock"}, status=422)
    finally:
        for name in acquired:
            release(name, token)
    return JsonResponse({"number": f"{placed.branch}-{placed.number}"}, status=201)
