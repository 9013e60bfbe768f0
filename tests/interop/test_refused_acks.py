"""A consumer loses its rights while it is busy with a message: what the original's Java client does with an ack that is refused.

It repeats an ack for ever, once a second, unless it is told that the handle is good for nothing any more.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from remoting.client.access_admin import AccessAdmin
from tests.interop import programs
from tests.interop.apache import Apache, Unavailable
from tests.interop.test_access import SECRET, Secured
from tests.support.cluster import eventually

pytestmark = pytest.mark.slow

MOST_CALLS, WITHIN_S = 3, 60


def calls(secured: Secured) -> int:
    """Acks that were refused so far."""
    return sum(broker.log_text().count("refused a call of AckMessage by") for broker in secured.cluster.brokers)


def test_an_ack_that_is_refused_is_not_repeated_for_ever(apache: Apache, tmp_path: Path) -> None:
    try:
        program = programs.java_grpc(apache, tmp_path, "RefusedAck")
    except Unavailable as reason:
        pytest.skip(str(reason))
    secured = Secured(tmp_path / "cluster", "permissive")
    with secured.cluster:
        secured.start()
        admin = AccessAdmin(secured.cluster.admin)
        admin.create_user("alice", SECRET, "Normal", "enable")
        for resource, actions in (("Topic:orders", ["Pub", "Sub"]), ("Group:workers", ["Sub"])):
            admin.put_permission("alice", {"resource": resource, "actions": actions, "decision": "Allow"})
        secured.wait_for_copies()
        point = secured.cluster.grpc_addresses[secured.cluster.master()]
        with program.start([point, "orders", "workers", "alice", SECRET], tmp_path / "java") as running:
            secured.cluster.admin.send("orders", b"hello")
            running.wait_for("the message", r"took (\d+)", 1)
            admin.delete_permission("alice", "Group:workers")
            secured.wait_for_copies()
            running.tell("finish it")
            eventually("the ack is refused", lambda: calls(secured))
            time.sleep(WITHIN_S)  # the promise is about this time
            running.tell("end")
        assert 1 <= calls(secured) <= MOST_CALLS
