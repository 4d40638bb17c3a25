"""The app."""

from __future__ import annotations

from django.apps import AppConfig


class LockwardenConfig(AppConfig):
    name = "lockwarden.django"
    label = "lockwarden"
    verbose_name = "Lockwarden"
    default_auto_field = "django.db.models.AutoField"

    def ready(self) -> None:
        from . import checks

        checks.register_all()
