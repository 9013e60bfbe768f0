"""Requests about placements: brokers report to the leader and hear what changed; anybody may look one up."""

from __future__ import annotations

from collections.abc import Callable

from controllerd.placements.state import PlacementsState
from controllerd.placing import Placing
from controllerd.processors import fields
from controllerd.processors.serving import Handles
from controllerd.replicas.broker_groups import BrokerGroups
from remoting import codes
from remoting.errors import RequestError
from remoting.facts.codec import decode, encode
from remoting.facts.placements import PlacementReport
from remoting.frame import Command
from remoting.transport.connection import RemotingConnection


class PlacementsProcessor:
    """`placements` gives what is committed."""

    def __init__(self, placing: Placing, groups: BrokerGroups, placements: Callable[[], PlacementsState]) -> None:
        self._placing = placing
        self._groups = groups
        self._placements = placements

    def handles(self) -> Handles:
        return {codes.REPORT_PLACEMENTS: self._report, codes.TOPIC_PLACEMENT: self._topic_placement}

    def _report(self, connection: RemotingConnection, request: Command) -> None:
        """Of any broker; only the word of a group's present master about its topics counts."""
        name, broker_id = fields.name(request, "brokerName"), fields.number(request, "brokerId")
        epoch = fields.number(request, "masterEpoch", -1)
        group = self._groups.get(name)
        if group is None or broker_id not in group.replicas:
            raise RequestError(codes.CONTROLLER_BROKER_METADATA_NOT_EXIST, f"{name} has no broker {broker_id} here")
        self._placing.heard(name, broker_id)
        known = True
        if (group.master_broker_id, group.master_epoch) == (broker_id, epoch):
            report = decode(PlacementReport, request.body)
            known = self._placing.reported(name, epoch, fields.number(request, "table", 0), report)
        revision = fields.number(request, "revision", 0)
        connection.respond(request, body=encode(self._placing.news(revision, wants_topics=not known)))

    def _topic_placement(self, connection: RemotingConnection, request: Command) -> None:
        topic = fields.text(request, "topic")
        present = self._placements().topics.get(topic)
        connection.respond(request, body=encode(present) if present is not None else b"")
