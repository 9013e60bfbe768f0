"""Rights on what a request finds: a place in the log is a message of some topic, whatever the request says that it is of.

The row of a request code (`remoting/registry.py`) says what is asked for before a handler is called, by the request's own words.
Handlers that look at a record by its place ask here again, for the record's topic.
"""

from __future__ import annotations

from collections.abc import Callable

from brokerd.members.consumer_groups import ClientInfo
from brokerd.transactions.records import REAL_TOPIC
from remoting.access.demands import topic_demand
from remoting.access.model import PUB
from remoting.frame import Command
from remoting.guarding.guard import Guard
from remoting.names import is_system_topic
from remoting.record.codec import Record
from remoting.transport.client import split_address
from remoting.transport.connection import RemotingConnection

MayUse = Callable[[Record], None]


def may_use(guard: Guard, connection: RemotingConnection, request: Command, *actions: str) -> MayUse:
    """Raises RequestError NO_PERMISSION for a record of whose topic the request's sender may do none of the actions."""

    if not guard.settings.authorization:
        return _anybody_may

    def check(record: Record) -> None:
        guard.demand_for(request, connection.peer_host, topic_demand(topic_of(record), *actions))

    return check


def may_publish(guard: Guard) -> Callable[[ClientInfo, str], bool]:
    """Whether a client may publish a topic, by the user that its heartbeat was signed by."""

    def check(client: ClientInfo, topic: str) -> bool:
        return guard.may(client.user, topic_demand(topic, PUB), split_address(client.address)[0])

    return check


def _anybody_may(_record: Record) -> None:
    """While permissions are off."""


def topic_of(record: Record) -> str:
    """Whose message it is: what waits in a topic of the broker's (delayed, half) belongs to the topic it is for."""
    if not is_system_topic(record.topic):
        return record.topic
    return record.property_map().get(REAL_TOPIC) or record.topic
