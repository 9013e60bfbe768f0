"""An operator gives up a broker group of an appliance that is well: it is retired, switched off and mounted. Nothing is lost that
was on its way there, a message for a later moment and a transaction that is open among it."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from remoting.client.blocking import AdminClient
from remoting.errors import RequestError
from remoting.transport.identity import NOBODY
from tests.support.appliance import CONTROLLER, GRPC, Appliance
from tests.support.cluster import eventually
from tests.tier.appliance import GROUP, SMALL, SOON, TOPIC, Failed, done
from tests.tier.mounting import READERS, consume_all

OTHER_GROUP: Final = "broker-b"
LATER: Final = "Reminders"
BOUGHT: Final = "Purchases"
_MESSAGES: Final = 50
_LATER_MS: Final = 15_000
_PATIENCE_S: Final = 120.0


def run(root: Path) -> tuple[int, int]:
    """How many messages the group had, and how many of them came from the mount. Raises AssertionError."""
    root.mkdir()
    appliance = Appliance(root, *SMALL, *SOON, "--tier", f"file://{root}/tier")
    admin = AdminClient([f"127.0.0.1:{appliance.base + CONTROLLER}"], identity=NOBODY)
    try:
        appliance.start()
        done(appliance, "topic", "create", TOPIC, "--queues", "2")
        done(appliance, "topic", "create", LATER, "--type", "DELAY")
        done(appliance, "topic", "create", BOUGHT, "--type", "TRANSACTION")
        done(appliance, "group", "create", READERS)
        bodies = _retire(appliance, admin)
        done(appliance, "group", "down", GROUP)
        done(appliance, "group", "mount", GROUP)
        eventually("the mount serves", lambda: GROUP in admin.masters(), _PATIENCE_S)
        found = consume_all(f"127.0.0.1:{appliance.base + GRPC}", [TOPIC, LATER, BOUGHT], root / "readers")
        return len(bodies), len(bodies & found)
    finally:
        appliance.process.close()


def _retire(appliance: Appliance, admin: AdminClient) -> set[bytes]:
    """What the group has in the end: all that was sent to it before nobody could any more."""
    bodies = {f"invoice {number}".encode() for number in range(_MESSAGES)}
    for body in bodies:
        admin.send(TOPIC, body, group=GROUP)
    due_ms = time.time_ns() // 1_000_000 + _LATER_MS
    admin.send(LATER, b"in a moment", group=GROUP, properties={"TIMER_DELIVER_MS": str(due_ms)})
    opened = admin.send(BOUGHT, b"bought", group=GROUP, transaction=True)
    with ThreadPoolExecutor(1) as beside:
        retired = beside.submit(done, appliance, "group", "retire", GROUP)
        eventually("nobody may send there", lambda: _refusal(admin), _PATIENCE_S)
        admin.send(TOPIC, b"elsewhere", group=OTHER_GROUP)
        admin.end_transaction(BOUGHT, opened, commit=True)
        retired.result()
    if time.time_ns() // 1_000_000 < due_ms:
        raise Failed("the group is retired, and a message waits there for a later moment")
    return bodies | {b"in a moment", b"bought"}


def _refusal(admin: AdminClient) -> str:
    """What a producer is told; "" when it is stored, and then it is one more that nobody counts."""
    try:
        admin.send(TOPIC, b"maybe too late", group=GROUP)
    except RequestError as error:
        return str(error)
    return ""
