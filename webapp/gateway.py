"""The only door from the web process to the cluster: what pages need beyond the snapshot, asked synchronously and briefly.

Everything else about the cluster comes from `webapp.snapshot`; every change that takes longer than a moment is an operation
of the worker. Addresses come from the settings and from the controllers, never from a request. A refusal or silence of the
cluster becomes a `Problem` whose text says what to do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from django.conf import settings
from django.utils.module_loading import import_string

from remoting import codes
from remoting.client.access_admin import AccessAdmin
from remoting.client.blocking import AdminClient, FoundMessage, QueueOffsets
from remoting.errors import ConnectionLost, LogboomError, RequestError, RequestTimeout
from remoting.facts.broker_state import BrokerState
from remoting.facts.given_up import GivenUpPage
from remoting.facts.timers import TimerPage
from remoting.record.codec import Record
from webapp.errors import NotFound, Problem, Unavailable

MAX_BROWSE = 64


class ClusterRefused(Problem):
    """The cluster understood and refused."""

    status = 502
    code = "cluster-refused"
    title = "The cluster refused"


class Browsed(NamedTuple):
    """Messages of one queue. Going on at `next_offset` finds the rest; the queue's range is that of this moment."""

    records: Sequence[Record]
    offset: int
    next_offset: int
    min_offset: int
    max_offset: int


def connect() -> AdminClient:
    """The cluster that this console belongs to."""
    return AdminClient(settings.CONTROLLERS, timeout_ms=3000)


def queue_ranges(topic: str) -> list[QueueOffsets]:
    """The readable range of every queue."""
    with cluster() as client:
        return sorted(client.queue_offsets(topic), key=lambda each: (each.group, each.queue_id))


def browse(topic: str, group: str, queue_id: int, offset: int, count: int) -> Browsed:
    """Up to `count` messages from `offset` on; an offset outside of the queue's range is moved to its nearer end."""
    assert 1 <= count <= MAX_BROWSE, count
    with cluster() as client:
        pulled = client.pull(topic, group, queue_id, max(0, offset), count)
        if not pulled.records and pulled.min_offset > offset and pulled.min_offset < pulled.max_offset:
            offset = pulled.min_offset  # retention went on; what was asked for is gone
            pulled = client.pull(topic, group, queue_id, offset, count)
    records = list(pulled.records)[:count]
    following = records[-1].queue_offset + 1 if records else max(offset, pulled.next_offset)
    first = records[0].queue_offset if records else offset
    return Browsed(records, first, following, pulled.min_offset, pulled.max_offset)


def find(topic: str, key: str, count: int) -> list[FoundMessage]:
    """The newest messages of a topic with a key or unique id, by the brokers' index; oldest first."""
    assert 1 <= count <= MAX_BROWSE, count
    with cluster() as client:
        return client.find(topic, key, count)


def message(topic: str, group: str, queue_id: int, offset: int) -> Record:
    """One message; NotFound when nothing is stored at exactly that offset."""
    with cluster() as client:
        pulled = client.pull(topic, group, queue_id, offset, 1)
    for record in pulled.records:
        if record.queue_offset == offset:
            return record
    raise NotFound(
        f"There is no message at offset {offset} of {topic}, {group}, queue {queue_id}; "
        f"the queue has [{pulled.min_offset}, {pulled.max_offset}).",
        code="message-not-found",
    )


def given_up(group: str, before: int | None, count: int) -> GivenUpPage:
    """Half messages that a broker group gave up, the newest first."""
    with cluster() as client:
        return client.given_up(group, before, count)


def find_timers(group: str, **wanted: Any) -> TimerPage:
    """Timers of a broker group, as `AdminClient.find_timers` finds them."""
    with cluster() as client:
        return client.find_timers(group, **wanted)


def master_state(group: str) -> BrokerState | None:
    """What a broker group's master says of itself; None while the group has none."""
    with cluster() as client:
        address = client.masters().get(group)
        return client.broker_state(address) if address is not None else None


def controller_members() -> dict[str, Any]:
    """Who belongs to the group of controllers, by the leader's word if there is one."""
    with cluster() as client:
        return client.controller_members()


def connect_access() -> AccessAdmin:
    """The users of the cluster that this console belongs to."""
    return AccessAdmin(AdminClient(settings.CONTROLLERS, timeout_ms=3000))


@contextmanager
def cluster() -> Iterator[AdminClient]:
    """A client of the cluster, for the length of the block; what it raises becomes a Problem."""
    with _asking():
        yield import_string(settings.CLUSTER_CLIENT)()


@contextmanager
def access() -> Iterator[AccessAdmin]:
    """As `cluster`, for the users of its clients and their permissions."""
    with _asking():
        yield import_string(settings.ACCESS_CLIENT)()


@contextmanager
def _asking() -> Iterator[None]:
    """What the cluster raises becomes a Problem that says what to do."""
    try:
        yield
    except RequestError as error:
        if error.code == codes.TOPIC_NOT_EXIST:
            raise NotFound(f"The cluster does not know this topic: {error.message}", code="topic-not-found") from error
        if error.retriable:
            raise Unavailable(f"The cluster cannot do this now: {error.message}", code="cluster-unavailable") from error
        raise ClusterRefused(f"The cluster refused: {error.message}") from error
    except (ConnectionLost, RequestTimeout) as error:
        raise Unavailable(f"The cluster does not answer: {error}", code="cluster-unavailable") from error
    except LogboomError as error:
        raise ClusterRefused(f"The cluster's answer cannot be used: {error}") from error
