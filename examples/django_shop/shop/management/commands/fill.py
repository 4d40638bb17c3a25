"""``manage.py fill STOCK``: tables, customers, and so many pieces spread over all products."""

from __future__ import annotations

from typing import Any

from django.core.management import call_command
from django.core.management.base import BaseCommand
from django.db import connection

from load import BRANCHES, COUPONS, CUSTOMERS, PRODUCTS
from shop.models import Branch, Coupon, Customer, Order, Product


class Command(BaseCommand):
    help = "Makes the tables and fills them."

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("stock", type=int, nargs="?", default=500)

    def handle(self, *args: Any, **options: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA journal_mode=WAL")  # readers do not wait for who writes
        call_command("migrate", run_syncdb=True, verbosity=0)
        for model in (Order, Product, Coupon, Customer, Branch):
            model.objects.all().delete()
        each, more = divmod(options["stock"], PRODUCTS)
        Product.objects.bulk_create(
            Product(pk=at + 1, name=f"product {at + 1}", stock=each + (at < more)) for at in range(PRODUCTS)
        )
        Coupon.objects.bulk_create(Coupon(pk=f"c{at + 1}") for at in range(COUPONS))
        Customer.objects.bulk_create(Customer(pk=at + 1) for at in range(CUSTOMERS))
        Branch.objects.bulk_create(Branch(pk=f"b{at + 1}") for at in range(BRANCHES))
