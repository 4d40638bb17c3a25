"""What an order is: reads four rows, asks for the payment, writes them again. Safe only while its locks are held."""

from __future__ import annotations

import os
import time
from typing import Any, Optional

from django.db import transaction

from .models import Branch, Coupon, Customer, Order, Product

PAYMENT_S = float(os.environ.get("SHOP_PAYMENT_S", "0.01"))


class OutOfStock(Exception):
    pass


class Stale(Exception):
    """A newer holder of the lock has written already."""


def place(customer: int, product: int, coupon: str, branch: str, fence: Optional[int]) -> Order:
    """Places an order. ``fence``: of the lock; None: there is none to compare."""
    rows = {
        "product": Product.objects.get(pk=product),
        "coupon": Coupon.objects.get(pk=coupon),
        "customer": Customer.objects.get(pk=customer),
        "branch": Branch.objects.get(pk=branch),
    }
    if rows["product"].stock < 1:
        raise OutOfStock
    time.sleep(PAYMENT_S)
    with transaction.atomic():
        _write(rows["product"], fence, stock=rows["product"].stock - 1)
        _write(rows["coupon"], fence, uses=rows["coupon"].uses + 1)
        _write(rows["customer"], fence, orders=rows["customer"].orders + 1)
        number = rows["branch"].last_number + 1
        _write(rows["branch"], fence, last_number=number)
        return Order.objects.create(
            customer=customer, product=product, coupon=coupon, branch=branch, number=number
        )


def _write(row: Any, fence: Optional[int], **values: Any) -> None:
    """The gate: UPDATE … SET …, fence = F WHERE id = … AND fence <= F."""
    found = type(row).objects.filter(pk=row.pk)
    if fence is not None:
        found = found.filter(fence__lte=fence)
        values["fence"] = fence
    if found.update(**values) == 0:
        raise Stale(f"{row} was written by a newer holder")
