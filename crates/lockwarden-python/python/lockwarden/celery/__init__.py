"""Exclusive tasks for Celery.

.. code-block:: python

    from lockwarden.celery import exclusive

    @app.task
    @exclusive("invoice:{invoice_id}", on_conflict="retry")
    def bill(invoice_id): ...

Only one task that names ``invoice:17`` runs at a time, whichever worker, process or thread runs it. If its process is
killed, the next one goes on at once. ``docs/CELERY.md`` tells which policy to choose and what happens when.
"""

from ._exclusive import exclusive
from ._policy import default_warden
from ._reap import Found, reap
from ._run import held

__all__ = ["Found", "default_warden", "exclusive", "held", "reap"]
