"""`manage.py controller list|add|promote|remove|transfer`: the group of controllers from scripts, through the REST API."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from django.core.management.base import CommandParser

from webapp.api import client


class Command(client.ConsoleCommand):
    help = "List, add, promote and remove controllers, and choose which one leads (the console must be running)."

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

    def list(self, options: dict[str, Any]) -> None:
        document = client.call("GET", "controllers/members")
        self.show(document, map(_line, document["items"]), as_json=options["json"])

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


def _line(member: dict[str, Any]) -> str:
    words = [member["id"], "leader" if member["leader"] else member["role"], member["address"]]
    if member["alive"] is False:
        words.append("not heard")
    elif member["behind"] not in (None, "0"):
        words.append(f"{member['behind']} entries behind")
    return "\t".join(words)
