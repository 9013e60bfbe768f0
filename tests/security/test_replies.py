"""A reply goes to the client that asked: a stranger who calls himself by its id does not get it."""

from __future__ import annotations

from typing import Any

from brokerd.members.consumer_groups import ClientInfo
from brokerd.members.registry import ClientRegistry
from tests.support.open_guard import yes


def test_replies_are_not_taken_over_by_another_user_with_the_same_client_id() -> None:
    clients = ClientRegistry(lambda: 0, lambda: 0, yes)
    asker, stranger, again = (Connection() for _ in range(3))
    for connection, user in ((asker, "ann"), (stranger, "eve")):
        announce(clients, connection, user)
        assert clients.producer_connection("c1") is asker
    announce(clients, again, "ann")
    assert clients.producer_connection("c1") is again, "a client that came back"
    for gone in (again, asker):
        clients.connection_closed(gone)
    assert clients.producer_connection("c1") is stranger, "whose id it is now"


class Connection:
    """Stands for one."""


def announce(clients: ClientRegistry, connection: Any, user: str) -> None:
    info = ClientInfo("c1", "10.0.0.1:5", "JAVA", "5", user=user)
    clients.remoting_heartbeat(connection, info, ["producers", "others"], [])
