"""`manage.py group create|list|delete`: consumer groups from scripts, through the REST API."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from django.core.management.base import CommandParser

from webapp.api import client


class Command(client.ConsoleCommand):
    help = "Create, list and delete consumer groups (the console must be running)."

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        create = actions.add_parser("create", help="create a consumer group")
        create.add_argument("name")
        create.add_argument("--fifo", action="store_true", help="deliver the messages of one message group in order")
        create.add_argument("--attempts", type=int, default=16, help="before the dead-letter topic (default: 16)")
        listing = actions.add_parser("list", help="list consumer groups with their lag")
        listing.add_argument("--json", action="store_true", help="one JSON document")
        delete = actions.add_parser("delete", help="delete a consumer group and its offsets")
        delete.add_argument("name")

    def create(self, options: dict[str, Any]) -> None:
        body = {"name": options["name"], "fifo": options["fifo"], "retry_max_times": options["attempts"]}
        client.change("POST", "consumer-groups", body)
        self.stdout.write(f"created {options['name']}")

    def list(self, options: dict[str, Any]) -> None:
        groups = client.pages("consumer-groups")
        lines = (f"{each['name']}\tlag {lag_text(each)}\t{len(each['members'])} members" for each in groups)
        self.show(groups, lines, as_json=options["json"])

    def delete(self, options: dict[str, Any]) -> None:
        client.change("DELETE", f"consumer-groups/{quote(options['name'], safe='')}")
        self.stdout.write(f"deleted {options['name']}")


def lag_text(group: dict[str, Any]) -> str:
    """A group's lag, as REST tells it, for people."""
    if group["lag"] is None:
        return "?"
    return f"at least {group['lag']}" if group["lag_at_least"] else str(group["lag"])
