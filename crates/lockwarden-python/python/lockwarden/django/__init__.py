"""Lockwarden for Django: docs/DJANGO.md.

Add ``"lockwarden.django"`` to ``INSTALLED_APPS``, ``"lockwarden.django.middleware.LockwardenMiddleware"`` to
``MIDDLEWARE``, and say in ``LOCKWARDEN`` where the locks are.
"""

from __future__ import annotations

from .holding import DatabaseLock, lock
from .store import warden
from .views import locked

__all__ = ["DatabaseLock", "lock", "locked", "warden"]
