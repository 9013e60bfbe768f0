"""`manage.py controller list|add|promote|remove|transfer`: the group of controllers from scripts, through the REST API."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from django.core.management.base import BaseCommand, CommandParser

from webapp.api import client


class Command(BaseCommand):
    help = "List, add, promote and remove controllers, and choose which one leads (the console must be running)."
    requires_system_checks: list[str] = []  # noqa: RUF012

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        listing = actions.add_parser("list", help="who belongs to the group")
        listing.add_argument("--json", action="store_true", help="one JSON document")
        add = actions.add_parser(
            "add",
            help="bring in a new controller that you started with --join and keep running (`manage.py up` does not "
            "start it), without a vote yet",
        )
        add.add_argument("id", help="an id that was never used in this group")
        add.add_argument("address", help="host:port where it listens")
        for action, what in (
            ("promote", "give a controller that has caught up its vote"),
            ("remove", "take a controller out for good"),
            ("transfer", "let a controller lead"),
        ):
            actions.add_parser(action, help=what).add_argument("id")

    def handle(self, *args: Any, **options: Any) -> None:
        getattr(self, options["action"])(options)

    def list(self, options: dict[str, Any]) -> None:
        document = client.call("GET", "controllers/members").document
        if options["json"]:
            self.stdout.write(json.dumps(document, indent=2))
            return
        for member in document["items"]:
            words = [member["id"], "leader" if member["leader"] else member["role"], member["address"]]
            if member["alive"] is False:
                words.append("not heard")
            elif member["behind"] not in (None, "0"):
                words.append(f"{member['behind']} entries behind")
            self.stdout.write("\t".join(words))

    def add(self, options: dict[str, Any]) -> None:
        client.change("POST", "controllers/members", {"id": options["id"], "address": options["address"]})
        self.stdout.write(f"added {options['id']}; promote it when it has caught up")

    def promote(self, options: dict[str, Any]) -> None:
        client.change("POST", f"controllers/members/{quote(options['id'], safe='')}/promote")
        self.stdout.write(f"promoted {options['id']}")

    def remove(self, options: dict[str, Any]) -> None:
        client.change("DELETE", f"controllers/members/{quote(options['id'], safe='')}")
        self.stdout.write(f"removed {options['id']}")

    def transfer(self, options: dict[str, Any]) -> None:
        client.change("PUT", "controllers/leader", {"id": options["id"]})
        self.stdout.write(f"{options['id']} leads")
