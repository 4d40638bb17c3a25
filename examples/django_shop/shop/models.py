"""Each row that orders write has a fence: a gate, which refuses whoever has lost the lock meanwhile."""

from __future__ import annotations

from django.db import models


class Product(models.Model):
    name = models.CharField(max_length=50)
    # Must never go negative. No constraint of the database says so: the report shows what the locks are worth.
    stock = models.IntegerField()
    fence = models.BigIntegerField(default=0)


class Coupon(models.Model):
    code = models.SlugField(primary_key=True)
    uses = models.IntegerField(default=0)
    fence = models.BigIntegerField(default=0)


class Customer(models.Model):
    orders = models.IntegerField(default=0)
    fence = models.BigIntegerField(default=0)


class Branch(models.Model):
    code = models.SlugField(primary_key=True)
    last_number = models.IntegerField(default=0)
    fence = models.BigIntegerField(default=0)


class Order(models.Model):
    # No foreign keys, and no unique number: what goes wrong shall be seen and counted.
    customer = models.IntegerField()
    product = models.IntegerField()
    coupon = models.SlugField()
    branch = models.SlugField()
    number = models.IntegerField()
