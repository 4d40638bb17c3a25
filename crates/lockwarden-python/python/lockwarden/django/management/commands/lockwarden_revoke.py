"""``manage.py lockwarden_revoke NAME``: takes a lock away from its holders, after it has shown them."""

from __future__ import annotations

import json
from typing import Any, Dict, List

from django.core.management.base import BaseCommand, CommandError

from ...._errors import Error
from ... import locks
from ...store import warden
from ...text import seconds, shown
from .lockwarden_ls import HEAD, rows, table


class Command(BaseCommand):
    help = (
        "Takes a lock away from those who hold it now. Shows them first, and asks. Whoever comes to hold it meanwhile "
        "keeps it."
    )

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("name", help="the whole name, as lockwarden_ls shows it")
        parser.add_argument("--holder", help="only this one, by its id (lockwarden_ls --json)")
        parser.add_argument("--dry-run", action="store_true", help="only show who would lose it")
        parser.add_argument(
            "--at-once",
            action="store_true",
            help="the next one gets it although this one may still work; default: it is told, and 3 s later it ends",
        )
        parser.add_argument("--no-input", "--noinput", action="store_false", dest="interactive", help="do not ask")
        parser.add_argument("--json", action="store_true", help="one JSON object, for programs")

    def handle(self, *args: Any, **options: Any) -> None:
        name = options["name"]
        try:
            its = warden()
            view = locks.view(its, name)
            if options["holder"] is not None:
                view["holders"] = [one for one in view["holders"] if one["id"] == options["holder"]]
            holders = view["holders"]
            if not options["json"]:
                self._list(view)
            if options["dry_run"]:
                self._report(options, view, None)
                return
            if not holders:
                self._report(options, view, [])
                raise CommandError(f"nobody to revoke the lock {shown(name)} from", returncode=1)
            if options["interactive"] and not self._agreed(view):
                raise CommandError("nothing was revoked", returncode=1)
            ids = [one["id"] for one in holders]
            revoked = locks.revoke(its, name, ids, at_once=options["at_once"])
        except Error as error:
            raise CommandError(shown(str(error))) from None
        self._report(options, view, revoked)

    def _list(self, view: Dict[str, Any]) -> None:
        for line in table([HEAD, *rows(view)]):
            self.stdout.write(line)

    def _agreed(self, view: Dict[str, Any]) -> bool:
        self.stderr.write(f"Revoke {shown(view['name'])} from {len(view['holders'])} of them? [y/N] ", ending="")
        try:
            return input().strip().lower() in ("y", "yes")
        except EOFError:
            return False

    def _report(self, options: Any, view: Dict[str, Any], revoked: Any) -> None:
        """``revoked`` is None after a dry run."""
        if options["json"]:
            done: List[Dict[str, Any]] = [
                {"id": one["id"], "label": one.get("label"), "ends_in_s": one["ends_in_s"]}
                for one in revoked or []
            ]
            told = {**locks.for_json(view), "dry_run": revoked is None, "revoked": done}
            self.stdout.write(json.dumps(told, indent=2))
            return
        if revoked is None:
            self.stdout.write("A dry run: nothing was revoked.")
        for one in revoked or []:
            ends = f"ends in {seconds(one['ends_in_s'])}" if one["ends_in_s"] else "has ended"
            self.stdout.write(f"Revoked from {shown(one.get('label') or one['id'])}: {ends}.")
        if revoked == [] and view["holders"]:
            self.stdout.write("Nobody who was shown holds it any more: nothing was revoked.")
