"""Asks the masters of other broker groups what the gate of ordered groups wants to know (shell over remoting).

While somebody waits at the gate, its questions are asked; a group without a master, or one that does not answer, is asked again.
Now and then it looks which handovers nobody needs any more, as nothing of what came before them is left in any source, and has
them forgotten.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from brokerd.placement.handovers import Handover, Handovers
from brokerd.pop.order.answers import Answer, Answers
from brokerd.pop.order.gate import Gate, Question
from remoting import codes
from remoting.errors import ConnectionLost, LogboomError, NotMaster
from remoting.facts.cluster_view import ClusterView
from remoting.transport.client import RemotingClient
from remoting.transport.tasks import TaskOwner

log = logging.getLogger(__name__)

_LOOK_S: Final = 0.05
_PRUNE_S: Final = 60.0
_TIMEOUT_MS: Final = 1000


@dataclass(frozen=True, slots=True)
class GateParts:
    """What it works for. `now_ms` is the gate's clock; `prune(topic, version)` has a handover forgotten, in the journal, and may
    raise LogboomError."""

    broker_name: str
    gate: Gate
    answers: Answers
    handovers: Handovers
    topics: Callable[[], Iterable[str]]
    prune: Callable[[str, int], None]
    now_ms: Callable[[], int]


class Gatekeeper:
    """Started and stopped by its owner. Acts on the master only: elsewhere nobody waits, and nothing can be forgotten."""

    def __init__(self, parts: GateParts, client: RemotingClient, is_master: Callable[[], bool]) -> None:
        self._parts = parts
        self._client = client
        self._is_master = is_master
        self._masters: dict[str, str] = {}  # broker name -> address
        self._wanted = asyncio.Event()
        self._tasks = TaskOwner("gate")
        parts.gate.wanted.append(self._wanted.set)

    def start(self) -> None:
        self._tasks.spawn(self._ask_while_wanted(), "ask for the gate")
        self._tasks.spawn(self._prune(), "forget handovers")

    async def close(self) -> None:
        await self._tasks.close()

    def look(self, view: ClusterView) -> None:
        """A controller's view of the cluster came: who leads which broker group."""
        for group in view.groups:
            if group.master is not None and group.master.address:
                self._masters[group.broker_name] = group.master.address
            else:
                self._masters.pop(group.broker_name, None)

    async def prune_once(self) -> None:
        """Forget the handovers of which nothing is left in their sources, oldest first."""
        parts = self._parts
        for topic in list(parts.topics()):
            for handover in parts.handovers.of(topic):
                try:
                    if not await self._is_nothing_left(handover):
                        break
                    parts.prune(topic, handover.version)
                except LogboomError as error:
                    log.debug("version %d of the placement of %s is kept: %s", handover.version, topic, error)
                    break
                parts.gate.changed(topic)
                await asyncio.sleep(0)  # answers of this broker group come at once, and there may be many topics

    # ---- inside

    async def _ask_while_wanted(self) -> None:
        gate, now_ms = self._parts.gate, self._parts.now_ms
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            while gate.is_wanted:
                for question in gate.questions(now_ms()):
                    self._tasks.spawn(self._ask(question), f"ask {question.source} about {question.topic}")
                await asyncio.sleep(_LOOK_S)

    async def _ask(self, question: Question) -> None:
        gate, now_ms = self._parts.gate, self._parts.now_ms
        try:
            answer = await self._answer_of(question)
        except LogboomError as error:
            log.debug("%s does not say whether %s passed: %s", question.source, question.group, error)
            gate.unanswered(question, now_ms())
        else:
            gate.answered(question, now_ms(), has_passed=answer.has_passed)

    async def _answer_of(self, question: Question) -> Answer:
        """Raises LogboomError when the source's master cannot be reached, or does not say."""
        address = self._masters.get(question.source)
        if address is None:
            raise ConnectionLost(f"broker group {question.source} has no master that is known")
        ext = {
            "topic": question.topic,
            "version": str(question.version),
            "consumerGroup": question.group,
            "initMode": str(int(question.init_mode)),
        }
        answer = await self._client.call(address, codes.HANDOVER_PASSED, ext, timeout_ms=_TIMEOUT_MS)
        return Answer(answer.ext.get("passed") == "true", answer.ext.get("left") == "false")

    async def _prune(self) -> None:
        while True:
            await asyncio.sleep(_PRUNE_S)
            if self._is_master():
                await self.prune_once()

    async def _is_nothing_left(self, handover: Handover) -> bool:
        """In this group's queues, and where something came from elsewhere, in those of others. Raises LogboomError when one of
        them does not say."""
        own = self._parts.broker_name
        for source in sorted({own, *(handover.sources if handover.starts else ())}, key=lambda name: name != own):
            question = Question(source, handover.topic, handover.version)
            answer = self._own_answer(question) if source == own else await self._answer_of(question)
            if not answer.is_nothing_left:
                return False
        return True

    def _own_answer(self, question: Question) -> Answer:
        answers: list[Answer] = []
        self._parts.answers.answer(question, answers.append)
        if not answers:
            raise NotMaster
        return answers[0]
