"""A model without a table, on which the admin's page and its permissions stand."""

from __future__ import annotations

from django.db import models


class Lock(models.Model):
    """A lock in the store. Never read from, or written to, a database."""

    name = models.TextField(primary_key=True)

    class Meta:
        app_label = "lockwarden"
        managed = False
        default_permissions = ("view",)
        permissions = [("revoke_lock", "Can revoke locks")]
        verbose_name = "lock"
        verbose_name_plural = "locks"
