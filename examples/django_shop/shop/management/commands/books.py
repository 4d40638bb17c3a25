"""``manage.py books STOCK``: do the books agree with the orders, if there was so much in stock? As JSON."""

from __future__ import annotations

import json
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand
from django.db.models import Count, Min, Sum

from lockwarden.django import warden
from shop.models import Coupon, Order, Product


class Command(BaseCommand):
    help = "Compares orders with stock, numbers and coupons."

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("stock", type=int, nargs="?", default=500)

    def handle(self, *args: Any, **options: Any) -> None:
        stock = options["stock"]
        orders = Order.objects.count()
        left = Product.objects.aggregate(all=Sum("stock"), least=Min("stock"))
        numbers = Order.objects.values("branch", "number").annotate(times=Count("pk"))
        report = {
            "orders": orders,
            "lowest_stock": left["least"],
            "oversold": max(0, orders - stock),
            "stock_wrong": abs(stock - orders - left["all"]),
            "doubled_numbers": sum(one["times"] - 1 for one in numbers),
            "coupons_wrong": orders - Coupon.objects.aggregate(all=Sum("uses"))["all"],
            "locks_left": _locks_left(),
        }
        self.stdout.write(json.dumps(report))


def _locks_left() -> int:
    left = len(warden().names())
    if settings.REDIS.startswith("file:"):
        return left
    import redis

    return left + len(list(redis.Redis.from_url(settings.REDIS).scan_iter("flawed:*")))
