"""`manage.py group create|list|delete`: consumer groups from scripts, through the REST API."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from django.core.management.base import BaseCommand, CommandParser

from webapp.api import client


class Command(BaseCommand):
    help = "Create, list and delete consumer groups (the console must be running)."
    requires_system_checks: list[str] = []  # noqa: RUF012

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

    def handle(self, *args: Any, **options: Any) -> None:
        getattr(self, options["action"])(options)

    def create(self, options: dict[str, Any]) -> None:
        body = {"name": options["name"], "fifo": options["fifo"], "retry_max_times": options["attempts"]}
        client.change("POST", "consumer-groups", body)
        self.stdout.write(f"created {options['name']}")

    def list(self, options: dict[str, Any]) -> None:
        groups = client.pages("consumer-groups")
        if options["json"]:
            self.stdout.write(json.dumps(groups, indent=2))
            return
        for group in groups:
            lag = "?" if group["lag"] is None else group["lag"]
            self.stdout.write(f"{group['name']}\tlag {lag}\t{len(group['members'])} members")

    def delete(self, options: dict[str, Any]) -> None:
        client.change("DELETE", f"consumer-groups/{quote(options['name'], safe='')}")
        self.stdout.write(f"deleted {options['name']}")
