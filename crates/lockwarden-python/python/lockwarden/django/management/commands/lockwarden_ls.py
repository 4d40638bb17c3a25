"""``manage.py lockwarden_ls``: the locks, who holds them, and how many wait."""

from __future__ import annotations

import json
from typing import Any, Dict, List

from django.core.management.base import BaseCommand, CommandError

from ...._errors import Error
from ... import locks
from ...store import warden
from ...text import seconds, shown

HEAD = ["NAME", "HOLDER", "HOST", "PID", "HELD", "LEASE LEFT", "STATE", "WAITING"]


class Command(BaseCommand):
    help = "Lists the locks in the store of LOCKWARDEN: names, holders, how many wait."

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("pattern", nargs="?", help="only names that match, as in a shell: 'stock:*'")
        parser.add_argument("--json", action="store_true", help="one JSON array, for programs")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            its = warden()
            found = locks.names(its, options["pattern"])
            views = [locks.view(its, name) for name in found]
        except Error as error:
            raise CommandError(shown(str(error))) from None
        if options["json"]:
            self.stdout.write(json.dumps([locks.for_json(view) for view in views], indent=2))
            return
        for line in table([HEAD, *(row for view in views for row in rows(view))]):
            self.stdout.write(line)


def rows(view: Dict[str, Any]) -> List[List[str]]:
    """A line for each holder."""
    waiting = str(len(view["queue"]))
    name = shown(view["name"])
    if not view["holders"]:
        return [[name, "nobody", "", "", "", "", "", waiting]]
    return [
        [
            name,
            shown(holder.get("label") or ("(another kind of client)" if holder["foreign"] else "–")),
            shown(holder.get("host") or "–"),
            str(holder.get("pid") or "–"),
            seconds(holder.get("held_s")),
            seconds(holder.get("lease_left_s")),
            str(holder.get("state") or "held"),
            waiting,
        ]
        for holder in view["holders"]
    ]


def table(lines: List[List[str]]) -> List[str]:
    """The lines with their columns under each other."""
    widths = [max(len(line[at]) for line in lines) for at in range(len(lines[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines]
