"""Requests about placements: brokers report to the leader and hear what changed; anybody may look one up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from controllerd.placements.state import PlacementsState
from controllerd.placing import Placing
from controllerd.processors import fields
from controllerd.processors.serving import Handles
from controllerd.replicas.broker_groups import BrokerGroups
from remoting import codes
from remoting.errors import RequestError
from remoting.facts.codec import decode, encode
from remoting.facts.placements import PlacementNews, PlacementReport
from remoting.frame import Command
from remoting.transport.connection import RemotingConnection

_MOST_TOLD: Final = 500  # topics, in one answer: some milliseconds


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
        news = self._news(request) if epoch >= 0 else self._placing.no_news()
        connection.respond(request, body=encode(replace(news, wants_topics=not known)))

    def _news(self, request: Command) -> PlacementNews:
        revision, most = fields.number(request, "revision", 0), fields.number(request, "most", 0)
        if most <= 0:
            return self._placing.all_news(revision)
        return self._placing.news(revision, fields.number(request, "complete", 0), min(most, _MOST_TOLD))

    def _topic_placement(self, connection: RemotingConnection, request: Command) -> None:
        topic = fields.text(request, "topic")
        present = self._placements().topics.get(topic)
        connection.respond(request, body=encode(present) if present is not None else b"")
