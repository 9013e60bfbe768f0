"""Watching an address: asking it the same thing on a rhythm of its own, so that one which is slow or frozen costs nobody else.

A broker is told of which of its topics the last answer was, and leaves them out while they are the same: with many of them they
are nearly all of the answer. A controller is told of which view it was, and says so while nothing of it is another.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Generic, TypeVar

from remoting.errors import LogboomError, ProtocolError
from remoting.facts.broker_state import KNOWN_TOPICS, SAME_TOPICS, TOLD_TOPICS, BrokerState
from remoting.facts.cluster_view import KNOWN_VIEW, SAME_VIEW, TOLD_VIEW, ClusterView
from remoting.facts.codec import decode
from remoting.frame import Command
from remoting.transport.beats import until_last_beat
from remoting.transport.client import RemotingClient

log = logging.getLogger(__name__)

ASK_TIMEOUT_MS: Final = 800
_MAX_ANSWER_BYTES: Final = 16 * 1024 * 1024

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Question(Generic[Answer]):
    """What is asked, what kind of fact the answer is, how often which address is asked, and at most how many are.

    `whole_every_s`: how old what is told of a view may be, of which nothing but that is said while it is the same.
    """

    code: int
    kind: type[Answer]
    every_s: Callable[[str], float]
    most: int
    ext: Mapping[str, str] = field(default_factory=dict)
    whole_every_s: Callable[[], float] = lambda: 0.0


class Watch(Generic[Answer]):
    """Asks one address the same thing again and again, and keeps the last answer."""

    def __init__(
        self, client: RemotingClient, address: str, question: Question[Answer], heard: Callable[[], None]
    ) -> None:
        self.address = address
        self.answer: Answer | None = None
        self.heard_ms = 0
        self._client = client
        self._question = question
        self._heard = heard
        self._kick = asyncio.Event()
        self._silent = False
        self._known: Mapping[str, str] = {}  # what to say of what the last answer told
        self._whole_s = float("-inf")  # when all of it was told last

    def ask_now(self) -> None:
        """Ask now instead of waiting for the next turn."""
        self._kick.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._kick.clear()
            started = time.monotonic()
            self.answer = await self._ask()
            self.heard_ms = time.time_ns() // 1_000_000
            self._heard()
            rest_s = started + self._question.every_s(self.address) - time.monotonic()
            await until_last_beat(rest_s, self._kick)

    async def _ask(self) -> Answer | None:
        """The answer; None for silence and for an answer that is none."""
        try:
            async with asyncio.timeout(ASK_TIMEOUT_MS / 1000):
                response = await self._client.call(
                    self.address, self._question.code, {**self._question.ext, **self._says()}, timeout_ms=ASK_TIMEOUT_MS
                )
            answer = self._read(response)
        except ProtocolError as error:
            self._note_silence(f"its answer has another shape ({error}); are all parts of one version?")
            return None
        except (LogboomError, TimeoutError) as error:
            self._note_silence(str(error) or "no answer in time")
            return None
        self._silent = False
        return answer

    def _says(self) -> Mapping[str, str]:
        """What is known already; of a view only while it is new: how old the heartbeats are it does not tell again."""
        is_old = KNOWN_VIEW in self._known and time.monotonic() - self._whole_s > self._question.whole_every_s()
        return {} if is_old else self._known

    def _read(self, response: Command) -> Answer:
        """The answer, or the one before if it says that it is the same, or with its topics if those are. Raises ProtocolError."""
        if SAME_VIEW in response.ext and KNOWN_VIEW in self._known and self.answer is not None:
            return self.answer
        answer: Any = decode(self._question.kind, response.body, _MAX_ANSWER_BYTES)
        if isinstance(answer, BrokerState):
            if SAME_TOPICS in response.ext and isinstance(self.answer, BrokerState):
                answer = replace(answer, topics=self.answer.topics)
            self._known = {KNOWN_TOPICS: told} if (told := response.ext.get(TOLD_TOPICS)) else {}
        elif isinstance(answer, ClusterView):
            self._known = {KNOWN_VIEW: told} if (told := response.ext.get(TOLD_VIEW)) else {}
            self._whole_s = time.monotonic()
        found: Answer = answer
        return found

    def _note_silence(self, why: str) -> None:
        """Said once per silence: a broker that is down for a night must not fill the log."""
        self._known = {}
        if not self._silent:
            self._silent = True
            log.warning("%s does not answer: %s", self.address, why)


class Watches(Generic[Answer]):
    """The watches of one kind: started for new addresses, cancelled for those that are gone."""

    def __init__(self, client: RemotingClient, question: Question[Answer], heard: Callable[[], None]) -> None:
        self._client = client
        self._question = question
        self._heard = heard
        self._running: dict[str, tuple[Watch[Answer], asyncio.Task[None]]] = {}

    def set_addresses(self, addresses: Iterable[str]) -> None:
        """Watch exactly these (the first of them, if they are too many)."""
        wanted = dict.fromkeys(itertools.islice(addresses, self._question.most))
        for address in [each for each in self._running if each not in wanted]:
            self._running.pop(address)[1].cancel()
        for address in wanted:
            if address not in self._running:
                watch = Watch(self._client, address, self._question, self._heard)
                task = asyncio.get_running_loop().create_task(watch.run(), name=f"watch {address}")
                task.add_done_callback(functools.partial(self._ended, address))
                self._running[address] = (watch, task)

    def _ended(self, address: str, task: asyncio.Task[None]) -> None:
        """A watch never ends by itself; if it broke, it is started anew with the next look."""
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the watch of %s broke", address, exc_info=error)
            self._running.pop(address, None)

    def answers(self) -> dict[str, Answer]:
        """Address -> its answer, for those that answered when they were last asked."""
        return {address: watch.answer for address, (watch, _) in self._running.items() if watch.answer is not None}

    def heard_ms(self) -> dict[str, int]:
        """Address -> when its last answer came."""
        return {address: watch.heard_ms for address, (watch, _) in self._running.items()}

    def all_heard(self, since_ms: int = 1) -> bool:
        """Whether each was asked to its end since then, answered or not."""
        return all(watch.heard_ms >= since_ms for watch, _ in self._running.values())

    def ask_now(self) -> None:
        """Ask all of them now."""
        for watch, _ in self._running.values():
            watch.ask_now()

    async def close(self) -> None:
        """Stop watching."""
        tasks = [task for _, task in self._running.values()]
        self._running.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
