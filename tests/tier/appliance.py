"""An appliance loses the disks of one of its broker groups: an operator mounts it, and everything uploaded is consumed there.
Then the disks are found again: the group is switched on beside them, and goes on with the one log that is kept."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Final

from remoting.client.blocking import AdminClient
from remoting.transport.identity import NOBODY
from tests.support.appliance import BROKER, CONTROLLER, GRPC, Appliance
from tests.support.cluster import eventually
from tests.tier.mounting import READERS, consume_all

GROUP: Final = "broker-a"
TOPIC: Final = "Invoices"
_MESSAGES: Final = 300
_PATIENCE_S: Final = 120.0
_BROKERS: Final = ("broker-a-1", "broker-a-2")
_TWO_EACH: Final = ("--controllers", "1", "--groups", "2", "--replicas", "2")
SMALL: Final = ("--controllers", "1", "--groups", "2", "--replicas", "1")
SOON: Final = ("--broker-set", "tiers.commit_interval_ms=100", "--broker-set", "tiers.state_interval_ms=100")


class Failed(AssertionError):
    """Something did not come true; the text says what."""


def run(root: Path) -> tuple[int, int]:
    """How many messages were uploaded, and how many of them came from the mount. Raises AssertionError."""
    appliance = Appliance(root, *_TWO_EACH, *SOON, "--tier", f"file://{root}/tier")
    admin = AdminClient([f"127.0.0.1:{appliance.base + CONTROLLER}"], identity=NOBODY)
    try:
        appliance.start()
        counts = _mounted(appliance, admin, root)
        _with_old_disks(appliance, admin, root)
        return counts
    finally:
        appliance.process.close()


def _mounted(appliance: Appliance, admin: AdminClient, root: Path) -> tuple[int, int]:
    done(appliance, "topic", "create", TOPIC, "--queues", "2")
    done(appliance, "group", "create", READERS)
    bodies = _send(admin)
    eventually("all of it is in the tier", lambda: is_uploaded(admin, len(bodies)), _PATIENCE_S)
    _refused(appliance, "runs its own brokers", "group", "mount", GROUP)

    os.kill(appliance.children()["broker-a-1"]["pid"], signal.SIGKILL)
    done(appliance, "group", "down", GROUP)
    for name in _BROKERS:
        shutil.move(appliance.layout.broker(name), root / name)
    done(appliance, "group", "mount", GROUP)
    found = consume_all(f"127.0.0.1:{appliance.base + GRPC}", [TOPIC], root / "readers")

    mount = appliance.children()["mount-broker-a"]
    os.kill(mount["pid"], signal.SIGKILL)
    eventually("its state says what it waits for", lambda: "lay down its lease" in _why(appliance), _PATIENCE_S)
    eventually("it serves again", lambda: _serves(admin, appliance), _PATIENCE_S)
    appliance.stop()
    appliance.start()
    eventually("it is mounted over a start", lambda: _serves(admin, appliance), _PATIENCE_S)
    done(appliance, "group", "unmount", GROUP)
    if "mount-broker-a" in appliance.children() or GROUP in admin.masters():
        raise Failed("it is unmounted, and somebody serves it all the same")
    return len(bodies), len(bodies & found)


def _with_old_disks(appliance: Appliance, admin: AdminClient, root: Path) -> None:
    """They are there again: nobody is started whom the controllers refuse, nor several with logs that may differ."""
    for name in _BROKERS:
        shutil.copytree(root / name, appliance.layout.broker(name), dirs_exist_ok=True)
    _refused(appliance, "move these files away", "group", "up", GROUP)
    for name in _BROKERS:
        (appliance.layout.broker(name) / "brokerIdentity").unlink()
    _refused(appliance, "which of their logs has every acknowledged message", "group", "up", GROUP)
    shutil.rmtree(appliance.layout.broker(_BROKERS[1]))
    done(appliance, "group", "up", GROUP)
    eventually("its log has all", lambda: _count(admin) == _MESSAGES, _PATIENCE_S)
    admin.send(TOPIC, b"one more", group=GROUP)
    eventually("it goes on behind that", lambda: _count(admin) == _MESSAGES + 1, _PATIENCE_S)
    eventually("it uploads again", lambda: is_uploaded(admin, _MESSAGES + 1), _PATIENCE_S)


def _count(admin: AdminClient) -> int:
    return sum(each.max_offset - each.min_offset for each in admin.queue_offsets(TOPIC) if each.group == GROUP)


def _send(admin: AdminClient) -> set[bytes]:
    """To the group that will be lost; they are acknowledged."""
    bodies = {f"invoice {number}".encode() for number in range(_MESSAGES)}
    for body in bodies:
        admin.send(TOPIC, body, group=GROUP)
    return bodies


def is_uploaded(admin: AdminClient, count: int) -> bool:
    tier = admin.broker_state(admin.masters()[GROUP]).tier
    assert tier is not None
    return tier.waiting_messages == 0 and tier.messages >= count and tier.state_rounds > 1


def _why(appliance: Appliance) -> str:
    return str(appliance.children()["mount-broker-a"]["why"])


def _serves(admin: AdminClient, appliance: Appliance) -> bool:
    is_running = appliance.children()["mount-broker-a"]["state"] == "running"
    return is_running and admin.masters().get(GROUP) == f"127.0.0.1:{appliance.base + BROKER}"


def done(appliance: Appliance, *arguments: str) -> None:
    ended = appliance.manage(*arguments)
    print(f"manage.py {' '.join(arguments)}: {(ended.stdout or ended.stderr).strip()}", flush=True)
    if ended.returncode:
        raise Failed(ended.stderr)


def _refused(appliance: Appliance, sentence: str, *arguments: str) -> None:
    ended = appliance.manage(*arguments)
    if not ended.returncode or sentence not in ended.stderr:
        raise Failed(f"{arguments} should be refused, and was answered with {ended.stdout}{ended.stderr}")
