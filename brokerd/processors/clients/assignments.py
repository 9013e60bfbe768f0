"""Assigning queues to the members of a group: codes 400 (what is mine), 401 (how to ask for messages), 402 (what was decided)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from brokerd.cluster.routes import BrokerRoute, Routes
from brokerd.consuming.assignment import STRATEGIES, Queue, assign, assign_pops
from brokerd.members.consumer_groups import MESSAGE_MODELS
from brokerd.members.registry import ClientRegistry
from brokerd.metadata.configs import PERM_READ
from brokerd.metadata.consumer_rules import POP, PULL, RequestMode
from brokerd.metadata.service import MetadataService
from brokerd.processors import bodies
from brokerd.processors.answers import when_done
from remoting import codes
from remoting.errors import RequestError
from remoting.frame import Command
from remoting.transport.connection import RemotingConnection

_MAX_QUEUES: Final = 100_000  # of one topic, over all brokers
_USUAL: Final = RequestMode(PULL, 0)


@dataclass(frozen=True, slots=True)
class AssignmentProcessor:
    """The handlers. `routes` tell who has a topic, in the whole cluster."""

    metadata: MetadataService
    clients: ClientRegistry
    routes: Routes

    def query(self, connection: RemotingConnection, request: Command) -> None:
        """Code 400. Without a list in the answer the client keeps what it has; an empty list takes everything from it."""
        document = bodies.decode_object(request.body, "a question for queues")
        topic, group, client_id = (bodies.name(document, name) for name in ("topic", "consumerGroup", "clientId"))
        model = bodies.enumeration(document, "messageModel", MESSAGE_MODELS, MESSAGE_MODELS[1])
        strategy_name = bodies.text(document, "strategyName")
        mode = self.metadata.request_mode(group, topic) or _USUAL

        def routed(found: Sequence[BrokerRoute] | RequestError) -> None:
            if isinstance(found, RequestError):
                queues = None
            else:
                queues = self._assigned(_queues(topic, found), group, client_id, model, strategy_name, mode)
            connection.respond(request, body=bodies.encode(_assignments_json(queues, mode.mode)))

        self.routes.route(topic, routed)

    def set_mode(self, connection: RemotingConnection, request: Command) -> None:
        """Code 401."""
        document = bodies.decode_object(request.body, "a request mode")
        topic, group = bodies.name(document, "topic"), bodies.name(document, "consumerGroup")
        name = bodies.enumeration(document, "mode", (PULL, POP), PULL)
        mode = RequestMode(name, bodies.integer(document, "popShareQueueNum"))
        unchanged = self.metadata.request_mode(group, topic) == mode
        self.metadata.set_request_mode(group, topic, mode, when_done(connection, request, unchanged=unchanged))

    def all_modes(self, connection: RemotingConnection, request: Command) -> None:
        """Code 402."""
        found: dict[str, dict[str, Any]] = {}
        for group, topic, mode in self.metadata.request_modes():
            found.setdefault(topic, {})[group] = {
                "consumerGroup": group,
                "mode": mode.mode,
                "popShareQueueNum": mode.pop_share_queues,
                "topic": topic,
            }
        connection.respond(request, body=bodies.encode({"messageRequestModeMap": found}))

    # ---- inside

    def _assigned(
        self, queues: list[Queue], group: str, client_id: str, model: str, strategy_name: str, mode: RequestMode
    ) -> list[Queue] | None:
        """None = no answer can be given: nobody is a member, or the strategy is not known."""
        if model == "BROADCASTING":
            return queues
        strategy = STRATEGIES.get(strategy_name)
        ids = {member.info.client_id for member in self.clients.remoting_members(group)}
        if strategy is None or not ids or not queues:
            return None
        if mode.mode == POP:
            return assign_pops(strategy, queues, list(ids), client_id, mode.pop_share_queues)
        return assign(strategy, queues, list(ids), client_id)


def _queues(topic: str, routes: Sequence[BrokerRoute]) -> list[Queue]:
    """The queues that can be read, of all brokers. Raises RequestError when they are too many for an answer."""
    readable = [route for route in routes if route.perm & PERM_READ and route.read_queue_nums > 0]
    if sum(route.read_queue_nums for route in readable) > _MAX_QUEUES:
        raise RequestError(codes.SYSTEM_ERROR, f"topic {topic} has more than {_MAX_QUEUES} queues")
    return [Queue(topic, route.broker_name, each) for route in readable for each in range(route.read_queue_nums)]


def _assignments_json(queues: Sequence[Queue] | None, mode: str) -> dict[str, Any]:
    if queues is None:
        return {}
    return {
        "messageQueueAssignments": [
            {"attachments": {}, "messageQueue": bodies.message_queue(*queue), "mode": mode} for queue in queues
        ]
    }
