"""No table: the permissions only."""

from __future__ import annotations

from typing import List, Tuple

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    dependencies: List[Tuple[str, str]] = []
    operations = [
        migrations.CreateModel(
            name="Lock",
            fields=[("name", models.TextField(primary_key=True, serialize=False))],
            options={
                "verbose_name": "lock",
                "verbose_name_plural": "locks",
                "permissions": [("revoke_lock", "Can revoke locks")],
                "managed": False,
                "default_permissions": ("view",),
            },
        ),
    ]
