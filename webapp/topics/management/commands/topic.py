"""`manage.py topic create|list|delete`: topics from scripts, through the REST API."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from django.core.management.base import CommandParser

from webapp.api import client
from webapp.rules import TOPIC_TYPES
from webapp.topics.changes import EXPORT_FORMATS


class Command(client.ConsoleCommand):
    help = "Create, list and delete topics (the console must be running)."

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        create = actions.add_parser("create", help="create a topic")
        create.add_argument("name")
        create.add_argument("--type", choices=TOPIC_TYPES, default="NORMAL")
        create.add_argument("--queues", type=int, default=8, help="per broker group (default: 8)")
        create.add_argument("--group", help="on one broker group only")
        create.add_argument(
            "--local-hours",
            type=int,
            help="how long at least brokers' files keep them; -1: as the brokers say (default)",
        )
        create.add_argument("--tier", choices=("on", "off"), help="whether the tier keeps its messages (default: on)")
        create.add_argument("--tier-hours", type=int, help="for how long; -1: as long as the brokers say (default)")
        create.add_argument(
            "--tier-archive",
            choices=("on", "off"),
            help="whether the tier compresses them (default: as the brokers say)",
        )
        create.add_argument(
            "--tier-export", choices=EXPORT_FORMATS, help="whether they are written as Parquet, too (default: none)"
        )
        create.add_argument("--if-missing", action="store_true", help="it is no error when the topic exists already")
        listing = actions.add_parser("list", help="list topics")
        listing.add_argument("--system", action="store_true", help="the system's too")
        listing.add_argument("--json", action="store_true", help="one JSON document")
        delete = actions.add_parser("delete", help="delete a topic and its messages")
        delete.add_argument("name")

    def create(self, options: dict[str, Any]) -> None:
        if options["if_missing"] and any(
            topic["name"] == options["name"] for topic in client.pages("topics?system=true")
        ):
            self.stdout.write(f"{options['name']} exists")
            return
        body = {
            "name": options["name"],
            "type": options["type"],
            "queues": options["queues"],
            "group": options["group"],
        }
        if options["local_hours"] is not None:
            body["local_reserve_time"] = options["local_hours"]
        if options["tier"] is not None:
            body["tier_enable"] = options["tier"] == "on"
        if options["tier_hours"] is not None:
            body["tier_reserve_time"] = options["tier_hours"]
        if options["tier_archive"] is not None:
            body["tier_archive"] = options["tier_archive"] == "on"
        if options["tier_export"] is not None:
            body["tier_export"] = options["tier_export"]
        client.change("POST", "topics", body)
        self.stdout.write(f"created {options['name']}")

    def list(self, options: dict[str, Any]) -> None:
        topics = client.pages(f"topics?system={'true' if options['system'] else 'false'}")
        lines = (
            f"{each['name']}\t{each['type'] or '?'}\t{each['queue_count']} queues\t{each['message_count'] or '?'} messages"
            for each in topics
        )
        self.show(topics, lines, as_json=options["json"])

    def delete(self, options: dict[str, Any]) -> None:
        client.change("DELETE", f"topics/{quote(options['name'], safe='')}")
        self.stdout.write(f"deleted {options['name']}")
