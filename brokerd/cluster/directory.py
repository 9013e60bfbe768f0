"""What a broker asks the controllers for its clients: the routes of topics, and who else is in its group.

Answers of any controller will do: they are name servers too. The membership of the own group is refreshed every few seconds and
kept while nobody answers, so that a client can be told all addresses of the group, also those that are down at the moment.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Final

from brokerd.cluster.routes import OwnGroup
from brokerd.replication.replica import Replica
from remoting import codes
from remoting.disk import Bytes
from remoting.errors import ConnectionLost, LogboomError, RequestTimeout
from remoting.facts.cluster_view import KNOWN_VIEW, SAME_VIEW, TOLD_VIEW, ClusterView
from remoting.facts.codec import decode
from remoting.frame import Command
from remoting.transport.beats import until_last_beat
from remoting.transport.client import RemotingClient
from remoting.transport.tasks import TaskOwner

log = logging.getLogger(__name__)

_REFRESH_S: Final = 2.0
# The members of a group that starts appear one after the other, and a client keeps what it is told then for half a minute.
_FIRST_REFRESH_S: Final = 0.25
_FIRST_ROUNDS: Final = 60
_TIMEOUT_MS: Final = 1000
_MASTER_ROLE_ID: Final = 0


class Directory:
    """Started and stopped by its owner."""

    def __init__(
        self,
        client: RemotingClient,
        controllers: Sequence[str],
        replica: Replica,
        broker_name: str,
        address: str,
        grpc_address: str,
    ) -> None:
        self._client = client
        self._controllers = list(controllers)
        self._replica = replica
        self._broker_name = broker_name
        self._address = address
        self._grpc_address = grpc_address
        self._replicas: Mapping[int, tuple[str, str]] = {}  # broker id -> (address, gRPC address)
        self._down: Set[str] = frozenset()  # gRPC addresses of those that are not alive
        self._masters: Mapping[str, str] = {}  # by broker name
        self._groups: Set[str] | None = None  # all broker names; None: nobody said yet
        self._view: ClusterView | None = None  # the last one
        self._known = ""  # how who told it calls it
        self._wanted = asyncio.Event()
        self._tasks = TaskOwner("directory")
        self.view_listeners: list[Callable[[ClusterView], None]] = []

    def start(self) -> None:
        self._tasks.spawn(self._refresh(), "refresh the group's members")

    async def close(self) -> None:
        await self._tasks.close()

    def query_route(self, topic: str, answered: Callable[[Bytes | LogboomError], None]) -> None:
        """Ask for the route document of a topic; see `Routes`."""
        self._tasks.spawn(self._query_route(topic, answered), f"route of {topic}")

    def own_group(self) -> OwnGroup:
        """The addresses of this broker's group, the master's first."""
        replica = self._replica
        replicas = dict(self._replicas)
        if replica.broker_id is not None:
            replicas[replica.broker_id] = (self._address, self._grpc_address)
        master = (self._address, self._grpc_address)
        if not replica.is_master:
            master = (replica.master_address, replica.master_grpc_address)
        addresses = {_MASTER_ROLE_ID: master[0]} if master[0] else {}
        addresses |= {broker_id: each[0] for broker_id, each in sorted(replicas.items()) if each[0] != master[0]}
        others = [each[1] for _, each in sorted(replicas.items()) if each[1] and each[1] != master[1]]
        # the broker that asks and the one that it follows are known better here than by a view that may be seconds old
        down = self._down - {master[1], self._grpc_address}
        return OwnGroup(self._broker_name, addresses, [master[1], *others] if master[1] else others, down)

    def peers(self) -> list[str]:
        """The remoting addresses of the group's other brokers, the master's first."""
        found = [self._replica.master_address, *(address for address, _ in self._replicas.values())]
        return [each for each in dict.fromkeys(found) if each and each != self._address]

    def master_of(self, broker_name: str) -> str:
        """The remoting address of a group's master, as a controller said last; "" while it has none."""
        return self._masters.get(broker_name, "")

    def has_group(self, broker_name: str) -> bool:
        """Whether a controller said so last, or none said anything yet."""
        return self._groups is None or broker_name in self._groups

    def refresh_soon(self) -> None:
        """Who leads the groups may have changed: ask in a moment, not only every few seconds."""
        self._wanted.set()

    # ---- inside

    async def _refresh(self) -> None:
        for number in itertools.count():
            try:
                view = await self._ask_view()
                for listener in self.view_listeners:
                    listener(view)
            except LogboomError as error:
                log.debug("the group's members stay as they were: %s", error)
            await until_last_beat(_FIRST_REFRESH_S)
            if number >= _FIRST_ROUNDS:
                await until_last_beat(_REFRESH_S - _FIRST_REFRESH_S, self._wanted)
            self._wanted.clear()

    async def _ask_view(self) -> ClusterView:
        """The view, which is not told again while it is as it was. Raises LogboomError."""
        known = {KNOWN_VIEW: self._known} if self._view is not None else {}
        answer = await self._ask(codes.CLUSTER_VIEW, known)
        if SAME_VIEW in answer.ext and self._view is not None:
            return self._view
        self._view, self._known = decode(ClusterView, answer.body), answer.ext.get(TOLD_VIEW, "")
        self._take(self._view)
        return self._view

    def _take(self, view: ClusterView) -> None:
        self._groups = {group.broker_name for group in view.groups}
        self._masters = {
            group.broker_name: each.address
            for group in view.groups
            for each in group.replicas
            if each.broker_id == group.master_broker_id and each.address is not None
        }
        for group in view.groups:
            if group.broker_name == self._broker_name:
                self._replicas = {
                    each.broker_id: (each.address, each.grpc_address or "")
                    for each in group.replicas
                    if each.address is not None
                }
                self._down = {each.grpc_address for each in group.replicas if each.grpc_address and each.alive is False}

    async def _query_route(self, topic: str, answered: Callable[[Bytes | LogboomError], None]) -> None:
        try:
            answer = await self._ask(codes.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        except LogboomError as error:
            answered(error)
        else:
            answered(answer.body)

    async def _ask(self, code: int, ext: Mapping[str, str] | None = None) -> Command:
        """The first controller that answers; raises its refusal, or ConnectionLost when none does."""
        last_error: LogboomError = ConnectionLost("no controller is configured")
        for address in self._controllers:
            try:
                return await self._client.call(address, code, ext, timeout_ms=_TIMEOUT_MS)
            except (ConnectionLost, RequestTimeout) as error:
                last_error = error
        raise last_error
