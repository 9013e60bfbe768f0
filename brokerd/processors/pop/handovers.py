"""The gate of ordered groups between brokers: codes 12030, which others ask, whether a consumer group passed a change of a
placement here, and 12031, somebody opens the gate by hand for what lies in a broker group that is gone."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from brokerd.metadata.start_offsets import InitMode
from brokerd.placement.service import PlacementService
from brokerd.pop.order.answers import Answer, Answers
from brokerd.pop.order.gate import Gate, Question
from brokerd.processors import fields
from brokerd.processors.answers import when_done
from remoting.errors import RequestError
from remoting.frame import Command
from remoting.transport.connection import RemotingConnection

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HandoverProcessor:
    """On the master."""

    broker_name: str
    answers: Answers
    placements: PlacementService
    gate: Gate

    def passed(self, connection: RemotingConnection, request: Command) -> None:
        """`passed`: the group finished what came before; `left`: something of it may be here. Without a group only the latter."""
        ext = request.ext
        question = Question(
            self.broker_name,
            fields.text(ext, "topic"),
            fields.integer(ext, "version", high=fields.MAX_LONG),
            ext.get("consumerGroup", ""),
            InitMode(fields.integer(ext, "initMode", int(InitMode.MAX), high=int(InitMode.MAX))),
        )

        def answered(answer: Answer) -> None:
            said = {"passed": _word(answer.has_passed), "left": _word(not answer.is_nothing_left)}
            connection.respond(request, ext=said)

        self.answers.answer(question, answered)

    def open(self, connection: RemotingConnection, request: Command) -> None:
        """Groups do not wait any more for what lies in the source; answered when that cannot be lost."""
        topic, source = fields.text(request.ext, "topic"), fields.text(request.ext, "brokerName")
        waits = any(source in each.sources for each in self.placements.handovers.of(topic))
        respond = when_done(connection, request, unchanged=not waits)

        def done(refusal: RequestError | None) -> None:
            if refusal is None and waits:
                log.warning("%s: groups do not wait any more for what lies in %s", topic, source)
                self.gate.changed(topic)
            respond(refusal)

        self.placements.release(topic, source, done)


def _word(is_so: bool) -> str:
    return "true" if is_so else "false"
