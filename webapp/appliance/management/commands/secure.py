"""`secure` among Django's commands, so that `manage.py help` lists it; `manage.py` itself runs it before Django is loaded."""

from __future__ import annotations

import sys

from django.core.management.base import BaseCommand

from webapp.appliance.secure import main


class Command(BaseCommand):  # type: ignore[misc]  # Django brings no types
    help = "Let other machines reach the appliance, with users and TLS on all ports; or undo that."

    def run_from_argv(self, argv: list[str]) -> None:
        sys.exit(main(argv[2:]))

    def print_help(self, prog_name: str, subcommand: str) -> None:
        sys.exit(main(["--help"]))
