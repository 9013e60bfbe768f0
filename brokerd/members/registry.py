"""Who is connected: consumers by group, producers by group or topic, of both protocols.

A member is known by its connection (remoting) or by connection and client id (gRPC, where one connection may carry several
clients): two clients may use the same client id. Members go when they say so, when their connection closes, or when nothing was
heard of them for two minutes. A client is alive while it is a member of anything. Listeners hear of groups whose members or
subscriptions changed, and of clients that are gone altogether; they are told after the tables changed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from brokerd.members.consumer_groups import (
    MAX_SUBSCRIPTIONS,
    ClientInfo,
    ConsumerData,
    ConsumerGroup,
    Member,
    Subscription,
)
from brokerd.members.streams import CommandStream
from remoting import codes
from remoting.errors import RequestError
from remoting.transport.connection import RemotingConnection

EXPIRY_MS: Final = 120_000
MAX_MEMBERS: Final = 200_000
MAX_GROUPS_OF_CLIENT: Final = 1024

_Place = tuple[bool, str, Hashable]  # (is consumer, group, key of the member)


class ClientRegistry:
    """`now_ms` is monotonic, `wall_ms` tells the time of day. `may_publish` says whether a client may publish a topic, as far as
    permissions are asked for."""

    def __init__(
        self,
        now_ms: Callable[[], int],
        wall_ms: Callable[[], int],
        may_publish: Callable[[ClientInfo, str], bool],
    ) -> None:
        self.group_listeners: list[Callable[[str], None]] = []
        self.gone_listeners: list[Callable[[str], None]] = []
        self._now_ms = now_ms
        self._wall_ms = wall_ms
        self._may_publish = may_publish
        self._consumers: dict[str, ConsumerGroup] = {}
        self._producers: dict[str, dict[Hashable, Member]] = {}
        self._producer_places: dict[
            str, dict[RemotingConnection, int]
        ] = {}  # by client id: connection -> in how many groups
        self._places: dict[object, set[_Place]] = {}  # by connection
        self._alive: dict[str, int] = {}  # client id -> in how many places it is
        self._fingerprints: dict[object, int] = {}
        self._member_count = 0

    # ---- gRPC clients

    def heartbeat(self, info: ClientInfo, connection: object, stream: CommandStream | None = None) -> None:
        """A gRPC client lives; `stream` is the way to it, when this came by it. Raises RequestError when there is no room."""
        key = (connection, info.client_id)
        for topic in info.producer_topics:
            self._join(False, topic, key, info, connection, None)
            _note_stream(self._producers[topic][key], stream)
        if info.group:
            changed = self._join(True, info.group, key, info, connection, None)
            group = self._consumers[info.group]
            _note_stream(group.members[key], stream)
            for topic, expression in info.subscriptions.items():
                known = group.subscriptions.get(topic)
                if known is None and len(group.subscriptions) >= MAX_SUBSCRIPTIONS:
                    continue  # it gets its messages all the same
                if known is None or known.expression != expression:
                    version = known.version if known is not None else 0  # pullers of the group go by it
                    group.subscriptions[topic] = Subscription(topic, expression, version=version)
                    changed = True
            if changed:
                self._tell_group(info.group)
        elif not info.producer_topics:
            self._join(False, "", key, info, connection, None)

    def unregister(self, connection: object, client_id: str, group: str) -> None:
        """A gRPC client leaves a group, or everything when none is named; another connection's client of this id stays."""
        key = (connection, client_id)
        leaving = [
            (connection, place)
            for place in self._places.get(connection, ())
            if place[2] == key and group in ("", place[1])
        ]
        self._leave(leaving)

    def connection_closed(self, connection: object) -> None:
        self._fingerprints.pop(connection, None)
        self._leave([(connection, place) for place in self._places.get(connection, ())])

    def members(self, group: str) -> Sequence[ClientInfo]:
        found = self._consumers.get(group)
        return [member.info for member in found.members.values()] if found is not None else ()

    # ---- remoting clients

    def remoting_heartbeat(
        self,
        connection: RemotingConnection,
        client: ClientInfo,
        producer_groups: Iterable[str],
        consumers: Sequence[ConsumerData],
        fingerprint: int = 0,
        *,
        without_subscriptions: bool = False,
    ) -> bool:
        """All that a client is, as of now, on this connection. Raises RequestError when there is no room for it.

        A client whose subscriptions have not changed may leave them out, and names them by their fingerprint: it is a member then
        like any other. False when that fingerprint is not the one of what is known here, so that the client must send them.
        """
        for name in producer_groups:
            self._join(False, name, connection, client, connection, connection)
        for data in consumers:
            group = self._consumers.get(data.group)
            wanted = data.subscriptions
            if without_subscriptions:
                wanted = group.subscriptions if group is not None else {}
            expressions = {topic: each.expression for topic, each in wanted.items()}
            info = replace(client, group=data.group, subscriptions=expressions)
            changed = self._join(True, data.group, connection, info, connection, connection)
            group = self._consumers[data.group]
            if not without_subscriptions:
                changed |= group.take_subscriptions(wanted)
            group.consume_type = data.consume_type
            group.message_model = data.message_model
            group.consume_from = data.consume_from
            if changed:
                self._tell_group(data.group)
        if without_subscriptions:
            return fingerprint != 0 and self._fingerprints.get(connection) == fingerprint
        self._fingerprints[connection] = fingerprint
        return True

    def names_by_fingerprint(self, connection: object) -> bool:
        """Whether a client leaves its subscriptions out of its heartbeats while they do not change."""
        return self._fingerprints.get(connection, 0) != 0

    def leave(self, connection: object, producer_group: str, consumer_group: str) -> None:
        """A remoting client leaves groups; an empty name means none."""
        named = ((False, producer_group, connection), (True, consumer_group, connection))
        places = self._places.get(connection, ())
        self._leave([(connection, place) for place in named if place[1] and place in places])

    def consumer_group(self, group: str) -> ConsumerGroup | None:
        """The group as its members describe it; None when nobody is there."""
        return self._consumers.get(group)

    def remoting_members(self, group: str) -> Sequence[Member]:
        """Those that share the group's queues among themselves."""
        found = self._consumers.get(group)
        return list(found.remoting.values()) if found is not None else ()

    def remoting_member(self, group: str, client_id: str) -> Member | None:
        """One of those; None when no such client is connected here."""
        return next((each for each in self.remoting_members(group) if each.info.client_id == client_id), None)

    def producer_connections(self, group: str, topic: str) -> Sequence[RemotingConnection]:
        """The connections of a group's remoting producers that may publish the topic, the longest there first."""
        members = self._producers.get(group, {}).values()
        return [
            member.connection
            for member in members
            if member.connection is not None and self._may_publish(member.info, topic)
        ]

    def producer_connection(self, client_id: str) -> RemotingConnection | None:
        """Where a remoting producer is connected; the latest connection of several, as clients come back, but none of another
        user than the longest there has: an id is no secret. None when it is not there."""
        connections = self._producer_places.get(client_id)
        if not connections:
            return None
        user = self._producing_user(next(iter(connections)))
        return next(each for each in reversed(connections) if self._producing_user(each) == user)

    def producer_streams(self, group: str, topic: str) -> Sequence[CommandStream]:
        """The open streams of those who publish, over gRPC, what the group is named like, and may publish the topic; the longest
        there first."""
        members = self._producers.get(group, {}).values()
        return [
            member.stream
            for member in members
            if member.stream is not None and member.stream.is_open and self._may_publish(member.info, topic)
        ]

    def grpc_member(self, group: str, client_id: str) -> Member | None:
        """A consumer of gRPC whose stream is open; the latest connection of several. None when it is not there."""
        found = self._consumers.get(group)
        for member in reversed(list(found.members.values()) if found is not None else ()):
            if member.info.client_id == client_id and member.stream is not None and member.stream.is_open:
                return member
        return None

    def producers(self, group: str) -> Sequence[ClientInfo]:
        """The producers of a group (remoting) or of a topic (gRPC)."""
        return [member.info for member in self._producers.get(group, {}).values()]

    def producer_groups(self) -> Iterator[tuple[str, Sequence[Member]]]:
        """Every group of producers with its members; who produces nothing and is in no consumer group either is left out."""
        for name, members in self._producers.items():
            if name:
                yield name, list(members.values())

    def groups(self) -> Sequence[str]:
        """The consumer groups that somebody is in."""
        return list(self._consumers)

    def heard_at_ms(self, member: Member) -> int:
        """When it was heard last, as a wall time."""
        return self._wall_ms() - (self._now_ms() - member.last_heard_ms)

    # ---- life

    def is_alive(self, client_id: str) -> bool:
        return client_id in self._alive

    def expire(self) -> None:
        """Forget those of whom nothing was heard for too long; to be called every few seconds.

        A remoting connection that nobody speaks for any more is closed: a client that is there after all connects anew.
        """
        oldest_ms = self._now_ms() - EXPIRY_MS
        silent = [
            (connection, place)
            for connection, places in self._places.items()
            for place in places
            if self._member(place).last_heard_ms < oldest_ms
        ]
        connections = {
            member.connection for _, place in silent if (member := self._member(place)).connection is not None
        }
        self._leave(silent)
        for connection in connections:
            if connection not in self._places:
                connection.close()

    # ---- inside

    def _table(self, is_consumer: bool, group: str) -> dict[Hashable, Member]:
        return self._consumers[group].members if is_consumer else self._producers[group]

    def _member(self, place: _Place) -> Member:
        is_consumer, group, key = place
        return self._table(is_consumer, group)[key]

    def _join(
        self,
        is_consumer: bool,
        group: str,
        key: Hashable,
        info: ClientInfo,
        connection: object,
        remoting_connection: RemotingConnection | None,
    ) -> bool:
        """Enter or refresh a member; whether it is new, or another client than before."""
        if is_consumer:
            table = self._consumers.setdefault(group, ConsumerGroup()).members
        else:
            table = self._producers.setdefault(group, {})
        member = table.get(key)
        if member is not None:
            member.last_heard_ms = self._now_ms()
            known_id = member.info.client_id
            member.info = info
            if known_id == info.client_id:
                return False
            if not is_consumer:
                self._count_producer(known_id, member.connection, -1)
                self._count_producer(info.client_id, member.connection, 1)
            self._count(info.client_id, 1)
            self._tell_gone([known_id] if self._count(known_id, -1) else ())
            return True
        places = self._places.setdefault(connection, set())
        if self._member_count >= MAX_MEMBERS or len(places) >= 2 * MAX_GROUPS_OF_CLIENT:
            self._drop_if_empty(is_consumer, group)
            if not places:
                del self._places[connection]
            raise RequestError(codes.SYSTEM_BUSY, "too many clients are connected to this broker")
        self._member_count += 1
        table[key] = member = Member(info, remoting_connection, self._now_ms())
        if is_consumer and remoting_connection is not None:
            self._consumers[group].remoting[key] = member
        places.add((is_consumer, group, key))
        if not is_consumer:
            self._count_producer(info.client_id, remoting_connection, 1)
        self._count(info.client_id, 1)
        return True

    def _leave(self, leaving: Sequence[tuple[object, _Place]]) -> None:
        groups: dict[str, None] = {}
        gone: list[str] = []
        for connection, place in leaving:
            is_consumer, group, key = place
            member = self._table(is_consumer, group).pop(key)
            if is_consumer:
                self._consumers[group].remoting.pop(key, None)
            self._member_count -= 1
            places = self._places[connection]
            places.discard(place)
            if not places:
                del self._places[connection]
            self._drop_if_empty(is_consumer, group)
            if is_consumer:
                groups[group] = None
            else:
                self._count_producer(member.info.client_id, member.connection, -1)
            if self._count(member.info.client_id, -1):
                gone.append(member.info.client_id)
        for group in groups:
            self._tell_group(group)
        self._tell_gone(gone)

    def _drop_if_empty(self, is_consumer: bool, group: str) -> None:
        if not self._table(is_consumer, group):
            tables = self._consumers if is_consumer else self._producers
            del tables[group]

    def _producing_user(self, connection: RemotingConnection) -> str:
        """Who signs what comes on a producer's connection."""
        return next(self._member(place).info.user for place in self._places[connection] if not place[0])

    def _count_producer(self, client_id: str, connection: RemotingConnection | None, step: int) -> None:
        """Change in how many producer groups a client is on a connection."""
        if connection is None:
            return
        connections = self._producer_places.setdefault(client_id, {})
        count = connections.get(connection, 0) + step
        if count:
            connections[connection] = count
            return
        connections.pop(connection, None)
        if not connections:
            del self._producer_places[client_id]

    def _count(self, client_id: str, step: int) -> bool:
        """Change in how many places a client is; whether it is nowhere now."""
        count = self._alive.get(client_id, 0) + step
        if count:
            self._alive[client_id] = count
            return False
        del self._alive[client_id]
        return True

    def _tell_group(self, group: str) -> None:
        for listener in self.group_listeners:
            listener(group)

    def _tell_gone(self, client_ids: Iterable[str]) -> None:
        for client_id in client_ids:
            for listener in self.gone_listeners:
                listener(client_id)


def _note_stream(member: Member, stream: CommandStream | None) -> None:
    if stream is not None:
        member.stream = stream
