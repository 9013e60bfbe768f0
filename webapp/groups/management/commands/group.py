"""`manage.py group create|list|settings|set|delete` for consumer groups, `retire|down|up|mount|unmount` for broker groups, from
scripts, through the REST API.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from django.core.management.base import CommandError, CommandParser

from remoting.group_settings import NAMES, ORDER_SCOPES
from webapp.api import client
from webapp.groups.settings import DEFAULT, LEAST, LONGEST

_NO_BOUND = "none"
_BOUNDS = {
    LEAST: "messages are hidden for this long at least",
    LONGEST: "and for this long at most",
    DEFAULT: "how long a gRPC receive hides them that names no time",
}


_OF_BROKERS = {
    "retire": "let nobody send to a broker group, and wait until nothing is left there that its tier has not; Ctrl-C undoes it",
    "down": "stop a broker group's own brokers, which are not started again until it is switched on",
    "up": "start a broker group's own brokers again",
    "mount": "serve a broker group that is off read-only from its tier, under the same name",
    "unmount": "end that, and give the group's lease in the tier back",
}


class Command(client.ConsoleCommand):
    help = "Create, list, change and delete consumer groups; retire, switch and mount broker groups (the console must run)."

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        create = actions.add_parser("create", help="create a consumer group")
        create.add_argument("name")
        create.add_argument("--fifo", action="store_true", help="deliver the messages of one message group in order")
        create.add_argument("--attempts", type=int, default=16, help="before the dead-letter topic (default: 16)")
        _add_settings(create)
        listing = actions.add_parser("list", help="list consumer groups with their lag")
        listing.add_argument("--json", action="store_true", help="one JSON document")
        shown = actions.add_parser("settings", help="show a consumer group's settings")
        shown.add_argument("name")
        shown.add_argument("--json", action="store_true", help="one JSON document")
        change = actions.add_parser("set", help="change settings of a consumer group; those that are not named stay")
        change.add_argument("name")
        _add_settings(change)
        delete = actions.add_parser("delete", help="delete a consumer group and its offsets")
        delete.add_argument("name")
        for action, what in _OF_BROKERS.items():
            of_brokers = actions.add_parser(action, help=what)
            of_brokers.add_argument("name", help="a broker group")
            of_brokers.add_argument("--dry-run", action="store_true", help="only say what would be done")

    def create(self, options: dict[str, Any]) -> None:
        body = {"name": options["name"], "fifo": options["fifo"], "retry_max_times": options["attempts"]}
        body |= _settings(options)
        client.change("POST", "consumer-groups", body)
        self.stdout.write(f"created {options['name']}")

    def list(self, options: dict[str, Any]) -> None:
        groups = client.pages("consumer-groups")
        lines = (f"{each['name']}\tlag {lag_text(each)}\t{len(each['members'])} members" for each in groups)
        self.show(groups, lines, as_json=options["json"])

    def settings(self, options: dict[str, Any]) -> None:
        group = client.call("GET", _path(options["name"]))
        found = {name: group[name] for name in ("name", "fifo", *NAMES)}
        lines = (f"{name}\t{_text(value)}" for name, value in found.items())
        self.show(found, lines, as_json=options["json"])

    def set(self, options: dict[str, Any]) -> None:
        client.change("PATCH", _path(options["name"]), _settings(options))
        self.stdout.write(f"changed {options['name']}")

    def delete(self, options: dict[str, Any]) -> None:
        client.change("DELETE", _path(options["name"]))
        self.stdout.write(f"deleted {options['name']}")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["action"] in _OF_BROKERS:
            self._of_brokers(options["action"], options)
        else:
            super().handle(*args, **options)

    def _of_brokers(self, action: str, options: dict[str, Any]) -> None:
        name = options["name"]
        clusters = [each["cluster"] for each in client.call("GET", "groups")["items"] if each["name"] == name]
        # one that is off is nobody's any more to the controllers
        clusters += [each["cluster"] for each in client.call("GET", "group-wishes")["items"] if each["group"] == name]
        if not clusters:
            raise CommandError(f"There is no broker group {name}.", returncode=client.REFUSED)
        path = f"groups/{quote(clusters[0], safe='')}/{quote(name, safe='')}/{action}"
        if options["dry_run"]:
            for step in client.call("POST", f"{path}?dry_run=true")["plan"]:
                self.stdout.write(f"{step['node']}: {step['change']}")
            return
        operation = client.follow("POST", path, self.stdout.write)
        self.stdout.write(operation["result"]["sentence"])


def _add_settings(parser: CommandParser) -> None:
    parser.add_argument(
        "--order-scope",
        choices=ORDER_SCOPES,
        help="what an ordered group keeps the order of: each message group, or each queue",
    )
    for name, what in _BOUNDS.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            metavar="MS",
            type=_bound,
            help=f"{what}, in milliseconds; {_NO_BOUND}: what the brokers say",
        )


def _bound(text: str) -> int | str:
    """A number, or no bound. Raises ValueError."""
    return _NO_BOUND if text == _NO_BOUND else int(text)


def _settings(options: dict[str, Any]) -> dict[str, Any]:
    """Those that were named, as REST takes them."""
    named = {name: options[name] for name in NAMES if options[name] is not None}
    return {name: None if value == _NO_BOUND else value for name, value in named.items()}


def _path(name: str) -> str:
    return f"consumer-groups/{quote(name, safe='')}"


def _text(value: Any) -> str:
    """A setting for people."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return _NO_BOUND if value is None else str(value)


def lag_text(group: dict[str, Any]) -> str:
    """A group's lag, as REST tells it, for people."""
    if group["lag"] is None:
        return "?"
    return f"at least {group['lag']}" if group["lag_at_least"] else str(group["lag"])
