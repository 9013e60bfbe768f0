"""The gate of ordered groups: what a broker group took over is given only after what came before it (pure).

When the placement of a topic changes, later messages of a message group may lie here while earlier ones lie in another broker
group, or in another queue of this one (`placement.handovers`). An ordered group gets new messages of a queue here only below the
first handover that it has not passed. It has passed one when it finished, in every source, what lies before the source's ends,
and passed there what was handed over to that source before.

What the own queues say is looked up each time (`Passed`); other sources are asked by whoever carries questions to them, while
somebody waits. Who has passed once has passed for good, until it is reset here or another broker is the master. Without
handovers, which is nearly always, a plan pays for one look into a table.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple

from brokerd.metadata.start_offsets import InitMode
from brokerd.placement.handovers import Handover, Handovers
from brokerd.pop.requests import PopRequest

ASK_AGAIN_MS: Final = 300
MAX_QUESTIONS: Final = 256  # in one look
_MOST_LOOKED_AT: Final = 256
_ASKED: Final = 1 << 62  # the answer says when next
_KEPT_MS: Final = 5000  # how long somebody who waited may take to ask again

HasPassed = Callable[[str, Mapping[int, int], str, InitMode], bool]  # `Passed.has_passed`

_NO_LIMITS: Final[Mapping[int, int]] = {}


class Question(NamedTuple):
    """Has the group passed that version of the topic's placement in the queues of the source? Without a group: is anything left
    there from before it?"""

    source: str
    topic: str
    version: int
    group: str = ""
    init_mode: InitMode = InitMode.MAX


class GateWait(NamedTuple):
    """A group waits at a handover since then (milliseconds since 1970) for broker groups that have not said that it passed there;
    `silent` of them did not answer when they were asked last. The queues `queue_ids` here hold messages back."""

    topic: str
    version: int
    since_ms: int
    sources: tuple[str, ...]
    silent: tuple[str, ...]
    queue_ids: tuple[int, ...]


@dataclass(slots=True)
class _Waiting:
    """A group that came to a closed gate. `ask_ms` is when each source is asked next; without, a question is on its way."""

    version: int
    since_ms: int
    until_ms: int
    init_mode: InitMode
    ask_ms: dict[str, int] = field(default_factory=dict)
    asked: dict[str, Question] = field(default_factory=dict)  # what each source was asked last
    silent: set[str] = field(default_factory=set)


class Gate:
    """Of one broker group, on its master. Times are milliseconds of one clock. `opened` is told (topic, group) when one that
    waits may go on, and `wanted` that somebody began to wait. `max_offset` says where a queue here ends."""

    def __init__(
        self, broker_name: str, handovers: Handovers, has_passed: HasPassed, max_offset: Callable[[str, int], int]
    ) -> None:
        self.opened: list[Callable[[str, str], None]] = []
        self.wanted: list[Callable[[], None]] = []
        self._broker_name = broker_name
        self._handovers = handovers
        self._has_passed = has_passed
        self._max_offset = max_offset
        self._passed: dict[tuple[str, str], dict[int, set[str]]] = {}  # by topic and group: version -> sources
        self._waiting: dict[tuple[str, str], _Waiting] = {}

    # ---- for plans

    def limits(self, topic: str, group: str, init_mode: InitMode) -> Mapping[int, int]:
        """By queue, from which offset on the group gets nothing new yet; queues without a limit are left out."""
        handovers = self._handovers.of(topic)
        if not handovers:
            return _NO_LIMITS
        limits: dict[int, int] = {}
        for handover in handovers:
            if handover.starts and self._missing(handover, group, init_mode):
                for queue_id, start in handover.starts.items():
                    limits[queue_id] = min(start, limits.get(queue_id, start))
        return limits

    def wait(self, request: PopRequest, left_ms: int, now_ms: int) -> None:
        """A plan for the request met a limit, and whoever made it waits so long for more."""
        handover = self._first_closed(request.topic, request.group, request.init_mode)
        if handover is not None:
            self._wait_at(handover, request.group, request.init_mode, now_ms, now_ms + max(0, left_ms))

    # ---- for what is asked here

    def has_passed_before(self, version: int, topic: str, group: str, init_mode: InitMode, now_ms: int) -> bool:
        """Whether the group passed all handovers to this broker group before that version. Where it has not, what came to this
        group by one and went on by another has something before it elsewhere: so the group waits here too, and sources are
        asked."""
        handover = self._first_closed(topic, group, init_mode)
        if handover is None or handover.version >= version:
            return True
        self._wait_at(handover, group, init_mode, now_ms, now_ms)
        return False

    # ---- for whoever asks the sources

    def questions(self, now_ms: int) -> list[Question]:
        """What is to be asked now, a question for each source that a group waits for; each must be answered or `unanswered`.

        Where very many wait, a look is at some of them, and the next one at those behind."""
        questions: list[Question] = []
        for topic, group in list(islice(self._waiting, _MOST_LOOKED_AT)):
            waiting = self._waiting.pop((topic, group))
            if waiting.until_ms <= now_ms:
                continue
            self._waiting[topic, group] = waiting  # behind the others
            handover = self._look(topic, group, waiting)
            if handover is None:
                continue
            for source in self._missing(handover, group, waiting.init_mode):
                if source == self._broker_name or len(questions) >= MAX_QUESTIONS:
                    continue
                if waiting.ask_ms.setdefault(source, now_ms) <= now_ms:
                    waiting.ask_ms[source] = _ASKED
                    question = Question(source, topic, handover.version, group, waiting.init_mode)
                    waiting.asked[source] = question
                    questions.append(question)
        return questions

    def answered(self, question: Question, now_ms: int, *, has_passed: bool) -> None:
        """A source said so. Whoever does not wait for that very answer any more may be reset since, or another group of the same
        name."""
        topic, group = question.topic, question.group
        waiting = self._waiting.get((topic, group))
        if waiting is None or waiting.asked.get(question.source) is not question:
            return
        waiting.silent.discard(question.source)
        waiting.ask_ms[question.source] = now_ms + ASK_AGAIN_MS
        if has_passed:
            sources = self._passed.setdefault((topic, group), {}).setdefault(question.version, set())
            sources.add(question.source)
            self._look(topic, group, waiting)

    def unanswered(self, question: Question, now_ms: int) -> None:
        """A source is down, or did not say in time."""
        waiting = self._waiting.get((question.topic, question.group))
        if waiting is not None and waiting.asked.get(question.source) is question:
            waiting.silent.add(question.source)
            waiting.ask_ms[question.source] = now_ms + ASK_AGAIN_MS

    @property
    def is_wanted(self) -> bool:
        """Whether somebody waits."""
        return bool(self._waiting)

    # ---- facts

    def waits_of(self, group: str) -> Iterator[GateWait]:
        """Where the group waits."""
        for topic, name in list(self._waiting):
            wait = self.wait_of(topic, group) if name == group else None
            if wait is not None:
                yield wait

    def wait_of(self, topic: str, group: str) -> GateWait | None:
        """How the group waits for the topic; None when it does not."""
        waiting = self._waiting.get((topic, group))
        handover = self._first_closed(topic, group, waiting.init_mode) if waiting is not None else None
        if waiting is None or handover is None:
            return None
        sources = tuple(sorted(self._missing(handover, group, waiting.init_mode)))
        silent = tuple(source for source in sources if source in waiting.silent)
        limits = self.limits(topic, group, waiting.init_mode)
        queue_ids = tuple(sorted(each for each, limit in limits.items() if limit < self._max_offset(topic, each)))
        return GateWait(topic, handover.version, waiting.since_ms, sources, silent, queue_ids)

    def waiting(self) -> Collection[tuple[str, str]]:
        """Who came to a closed gate: topic and group."""
        return self._waiting.keys()

    # ---- events

    def changed(self, topic: str) -> None:
        """The topic's handovers changed otherwise than by a new one: who waits may be able to go on."""
        kept = {each.version for each in self._handovers.of(topic)}
        for key, versions in list(self._passed.items()):
            if key[0] == topic:
                for version in versions.keys() - kept:
                    del versions[version]
                if not versions:
                    del self._passed[key]
        for (name, group), waiting in list(self._waiting.items()):
            if name == topic:
                self._look(topic, group, waiting)

    def forget(self, *, topic: str | None = None, group: str | None = None) -> None:
        """The topic or the group was deleted; or the group was reset in the topic, maybe to before a handover; or all, since this
        broker is not the master any more. Who still waits is found again when it is woken."""
        for table in (self._passed, self._waiting):
            for key in [key for key in table if topic in (None, key[0]) and group in (None, key[1])]:
                del table[key]

    # ---- inside

    def _wait_at(self, handover: Handover, group: str, init_mode: InitMode, now_ms: int, until_ms: int) -> None:
        key, until_ms = (handover.topic, group), until_ms + _KEPT_MS
        waiting = self._waiting.get(key)
        if waiting is None:
            self._waiting[key] = _Waiting(handover.version, now_ms, until_ms, init_mode)
            for listener in self.wanted:
                listener()
        else:
            waiting.until_ms = max(waiting.until_ms, until_ms)

    def _first_closed(self, topic: str, group: str, init_mode: InitMode) -> Handover | None:
        """The oldest handover that keeps something of this broker group back."""
        each = (each for each in self._handovers.of(topic) if each.starts)
        return next((handover for handover in each if self._missing(handover, group, init_mode)), None)

    def _missing(self, handover: Handover, group: str, init_mode: InitMode) -> Sequence[str]:
        """The sources in which the group has not passed the handover, as far as it is known here."""
        sources = self._passed.get((handover.topic, group), {}).get(handover.version, set())
        missing = [source for source in handover.sources if source not in sources]
        if self._broker_name in missing and self._has_passed(handover.topic, handover.ends, group, init_mode):
            sources.add(self._broker_name)
            self._passed.setdefault((handover.topic, group), {})[handover.version] = sources
            missing.remove(self._broker_name)
        return missing

    def _look(self, topic: str, group: str, waiting: _Waiting) -> Handover | None:
        """At which handover the group waits now. Where that is another one than before, it may go on a bit."""
        handover = self._first_closed(topic, group, waiting.init_mode)
        if handover is not None and handover.version == waiting.version:
            return handover
        if handover is None:
            del self._waiting[topic, group]
        else:
            waiting.version = handover.version
            waiting.ask_ms.clear()
            waiting.asked.clear()
            waiting.silent.clear()
        for listener in self.opened:
            listener(topic, group)
        return handover
