"""`manage.py audit verify` and `manage.py audit anchor --anew`."""

from __future__ import annotations

import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from remoting.errors import LogboomError
from webapp.audit import anchoring, services
from webapp.errors import Problem


class Command(BaseCommand):  # type: ignore[misc]  # Django brings no types
    help = (
        "Look whether somebody changed or cut the audit trail. Exit code of verify: 0 intact, 1 not, 2 intact as far as can be "
        "told without the controllers."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        what = parser.add_subparsers(dest="what", required=True)
        what.add_parser("verify", help="walk the chain, and compare it with what the controllers keep of it")
        anchor = what.add_parser("anchor", help="have the controllers keep how far the trail has come")
        anchor.add_argument(
            "--anew",
            action="store_true",
            help="also when it does not continue what they have: after the database came back from a copy; that stays visible",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if options["what"] == "anchor":
            self._anchor(anew=options["anew"])
        else:
            self._verify()

    def _anchor(self, *, anew: bool) -> None:
        try:
            kept = anchoring.keep(anew=anew)
        except (LogboomError, Problem) as error:
            raise CommandError(str(error)) from error
        self.stdout.write("the controllers have it already" if kept is None else f"anchored at row {kept.sequence}")

    def _verify(self) -> None:
        found = services.verify()
        if not found.intact:
            self.stdout.write(f"the trail breaks at row {found.broken_at}: {found.reason}")
        else:
            known = f"; the controllers know it up to row {found.anchored}" if found.anchored is not None else ""
            self.stdout.write(f"{found.entries} rows, nothing was changed or removed{known}")
        if found.anchor_problem:
            self.stdout.write(found.anchor_problem)
        sys.exit(1 if not found.intact else 2 if found.anchored is None else 0)
