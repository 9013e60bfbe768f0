"""The command line's way to the console: its own REST API, with the token that the appliance keeps for it.

Exit codes of the commands: 0 done; 1 the console refused or the change failed; 2 wrong usage (Django's own); 3 the console does
not answer, or its token is missing; 4 the outcome is not known yet.
"""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import quote

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

REFUSED, UNREACHABLE, UNKNOWN = 1, 3, 4
WAIT_S = 10
WAITS = 6


def call(method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    """What the console answers to one request; raises CommandError with the console's own sentence when it refuses."""
    host, _, port = settings.ENVIRONMENT.http.rpartition(":")
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=WAIT_S + 10)
    headers = {"Authorization": f"Bearer {_token()}", "Prefer": f"wait={WAIT_S}", "Accept": "application/json"}
    payload = None
    if body is not None:
        payload = json.dumps(body)
        headers["Content-Type"] = "application/json"
    try:
        connection.request(method, f"/api/v1/{path}", payload, headers)
        response = connection.getresponse()
        raw = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise CommandError(
            f"The console at {settings.ENVIRONMENT.http} does not answer ({error}). Start it with `make up`, "
            "or say where it is: LOGBOOM_HTTP=host:port.",
            returncode=UNREACHABLE,
        ) from error
    finally:
        connection.close()
    try:
        document = json.loads(raw)
    except ValueError as error:
        raise CommandError(
            f"{settings.ENVIRONMENT.http} answers, but it is not this console.", returncode=UNREACHABLE
        ) from error
    if response.status >= 400:
        raise CommandError(str(document.get("detail", document)), returncode=REFUSED)
    return document


def change(method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Ask for a change and wait for its end; returns the finished operation, raises CommandError otherwise."""
    operation: dict[str, Any] = call(method, path, body)
    for _ in range(WAITS):
        if operation["state"] not in _UNDER_WAY:
            break
        # each look waits on the server's side for up to WAIT_S: see the header Prefer
        operation = call("GET", f"operations/{operation['id']}")
    return _ended(operation)


def follow(method: str, path: str, tell: Callable[[str], object]) -> dict[str, Any]:
    """As `change`, for one that may take hours: `tell` gets how far it is, and Ctrl-C asks it to stop."""
    operation: dict[str, Any] = call(method, path)
    said, is_stopped = "", False
    while operation["state"] in _UNDER_WAY:
        text = operation["progress"].get("text", "")
        if text and text != said:
            tell(text)
            said = text
        try:
            operation = call("GET", f"operations/{operation['id']}")
        except KeyboardInterrupt:
            if is_stopped:
                raise
            is_stopped = True
            operation = call("POST", f"operations/{operation['id']}/cancel")
            tell("asked to stop; once more Ctrl-C leaves it alone")
    return _ended(operation)


_UNDER_WAY = frozenset({"queued", "running"})


def _ended(operation: dict[str, Any]) -> dict[str, Any]:
    if operation["state"] == "succeeded":
        return operation
    if operation["state"] in _UNDER_WAY:
        raise CommandError(f"Not finished yet; see operation {operation['id']} in the console.", returncode=UNKNOWN)
    error = operation.get("error") or {}
    told = error.get("detail") or (operation.get("result") or {}).get("sentence") or operation["state"]
    nodes = "".join(f"\n  {node['node']}: {node['outcome']} {node['detail']}" for node in operation["nodes"])
    raise CommandError(f"{told}{nodes}", returncode=REFUSED)


def pages(path: str) -> list[dict[str, Any]]:
    """All items of a list."""
    items: list[dict[str, Any]] = []
    cursor = ""
    while True:
        separator = "&" if "?" in path else "?"
        document = call("GET", f"{path}{separator}limit=500" + (f"&cursor={quote(cursor)}" if cursor else ""))
        items += document["items"]
        cursor = document["next"]
        if not cursor:
            return items


def _token() -> str:
    given = os.environ.get("LOGBOOM_TOKEN", "").strip()
    if given:
        return given
    path = settings.ENVIRONMENT.data.cli_token_file
    try:
        return str(path.read_text().strip())
    except OSError as error:
        raise CommandError(
            f"No token: {path} cannot be read ({error.strerror}). It is made at the appliance's first start; "
            "for another data directory set LOGBOOM_DATA_DIR, or put a token into LOGBOOM_TOKEN.",
            returncode=UNREACHABLE,
        ) from error


class ConsoleCommand(BaseCommand):
    """A command whose first argument says what to do: the name of a method."""

    requires_system_checks: list[str] = []  # noqa: RUF012

    def handle(self, *args: Any, **options: Any) -> None:
        getattr(self, options["action"])(options)

    def show(self, found: Any, lines: Iterable[str], *, as_json: bool) -> None:
        """What was found, as one JSON document or line by line; scripts count the lines."""
        for line in [json.dumps(found, indent=2)] if as_json else lines:
            self.stdout.write(line)
