"""The placements that this broker group has prepared for and follows, as its log says (pure).

Records, each a JSON object with `v`, the version of its layout; a placement is [version, [[broker name, queues], ...]]:

    prepared  {v, topic, active: the placement in force or null, proposed: placement, ends: [[queue, offset], ...]}
    activated {v, topic, active: placement, ends, starts: [[queue, offset], ...], sources: [broker name, ...]}; without sources
              nothing moved
    aborted   {v, topic, version}: the proposal came to nothing
    passed    {v, topic, version}: nobody needs that handover any more
    released  {v, topic, version, source}: somebody decided that nothing of that broker group has to be waited for
    emptied   {v, topic}: the topic was deleted here, so its queues begin anew
    dropped   {v, topic}: no broker group has the topic
    placing   {v}: the controllers place the topics of this cluster
    snapshot rows: ["a", topic, placement in force], ["p", topic, proposed placement, ends],
                   ["h", topic, version, ends, starts, sources] and ["c"] for placing

Between `prepared` and what ends it, message groups whose owner would be another one are taken by nobody. Offsets are where the
queues end in the log at the record itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from brokerd.placement.handovers import Handover, Handovers
from brokerd.placement.placement import Placement, Share
from remoting.errors import CorruptedFile

VERSION: Final = 1

PREPARED: Final = "prepared"
ACTIVATED: Final = "activated"
ABORTED: Final = "aborted"
PASSED: Final = "passed"
RELEASED: Final = "released"
EMPTIED: Final = "emptied"
DROPPED: Final = "dropped"
PLACING: Final = "placing"

Offsets = Mapping[int, int]
Record = tuple[str, Any]  # kind, body


@dataclass(frozen=True, slots=True)
class TopicState:
    """Of one topic: what is in force, what is prepared, and where its queues ended then."""

    active: Placement | None = None
    proposed: Placement | None = None
    ends: Offsets = field(default_factory=dict)


class PlacementTable:
    """A `journal.replay.Table`; the handovers are filled with what it says."""

    def __init__(self, handovers: Handovers) -> None:
        self.topics: dict[str, TopicState] = {}
        self.changes: dict[str, TopicState] = {}  # those of them that have something prepared
        self.is_placing = False
        self._handovers = handovers

    def clear(self) -> None:
        self._become(PlacementTable(Handovers()))

    def begin_again(self) -> tuple[PlacementTable, Callable[[], None]]:
        """An empty table to be filled, and what makes this one the same."""
        fresh = PlacementTable(Handovers())
        return fresh, partial(self._become, fresh)

    def freeze(self) -> Frozen:
        return Frozen(self.is_placing, self.topics, self._handovers.copy())

    def apply(self, kind: str, body: Any, end_offset: int) -> None:
        if kind == PLACING:
            self.is_placing = True
            return
        topic: str = body.get("topic", "")
        before = self.topics.get(topic, TopicState())
        if kind == PREPARED:
            active = _placement(body["active"])
            self._keep(topic, TopicState(active, _placement(body["proposed"]), dict(body["ends"])))
        elif kind == ACTIVATED:
            active = _placement(body["active"])
            assert active is not None
            self._keep(topic, TopicState(active))
            if body["sources"]:
                self._hand_over(topic, active.version, body["ends"], body["starts"], body["sources"])
        elif kind == ABORTED:
            self._keep(topic, TopicState(before.active))
        elif kind == PASSED:
            self._handovers.prune(topic, body["version"])
        elif kind == RELEASED:
            for each in self._handovers.of(topic):
                if each.version == body["version"]:
                    left = tuple(source for source in each.sources if source != body["source"])
                    self._handovers.add(replace(each, sources=left))
        elif kind == EMPTIED:
            self._handovers.drop(topic)
            self._keep(topic, replace(before, ends={}))
        elif kind == DROPPED:
            self._handovers.drop(topic)
            self._keep(topic, TopicState())
        else:
            raise CorruptedFile(
                f"the placement record that ends at {end_offset} of the commitlog is of kind {kind[:40]!r}, which this version "
                "does not know: start the version that wrote it"
            )

    def snapshot_rows(self) -> Iterator[Any]:
        return self.freeze().rows()

    def load_row(self, row: Any) -> None:
        match row:
            case ["c"]:
                self.is_placing = True
            case ["a", topic, active]:
                self._keep(topic, replace(self.topics.get(topic, TopicState()), active=_placement(active)))
            case ["p", topic, proposed, ends]:
                before = self.topics.get(topic, TopicState())
                self._keep(topic, replace(before, proposed=_placement(proposed), ends=dict(ends)))
            case ["h", topic, version, ends, starts, sources]:
                self._hand_over(topic, version, ends, starts, sources)

    def _keep(self, topic: str, state: TopicState) -> None:
        if state.active is None and state.proposed is None:
            self.topics.pop(topic, None)
        else:
            self.topics[topic] = state
        if state.proposed is not None:
            self.changes[topic] = state
        else:
            self.changes.pop(topic, None)

    def _become(self, other: PlacementTable) -> None:
        """Be what another one is, which nobody uses any more."""
        self.topics, self.changes, self.is_placing = other.topics, other.changes, other.is_placing
        self._handovers.become(other._handovers)

    def _hand_over(self, topic: str, version: int, ends: Any, starts: Any, sources: Any) -> None:
        self._handovers.add(Handover(topic, version, dict(ends), dict(starts), tuple(sources)))


class Frozen:
    """What a table was when it was made, whatever becomes of that."""

    def __init__(
        self, is_placing: bool, topics: Mapping[str, TopicState], handovers: Mapping[str, Sequence[Handover]]
    ) -> None:
        self._is_placing = is_placing
        self._topics = dict(topics)
        self._handovers = handovers

    def rows(self) -> Iterator[Any]:
        if self._is_placing:
            yield ["c"]
        for topic, state in self._topics.items():
            if state.active is not None:
                yield ["a", topic, encode_placement(state.active)]
            if state.proposed is not None:
                yield ["p", topic, encode_placement(state.proposed), encode_offsets(state.ends)]
        for topic in sorted(self._handovers):
            for each in self._handovers[topic]:
                yield [
                    *("h", topic, each.version),
                    *(encode_offsets(each.ends), encode_offsets(each.starts), list(each.sources)),
                ]

    def close(self) -> None:
        """Nothing was kept for it that anybody else waits for."""


# ---- the records


def prepared(topic: str, active: Placement | None, proposed: Placement, ends: Offsets) -> Record:
    in_force = encode_placement(active) if active is not None else None
    return PREPARED, _body(topic, active=in_force, proposed=encode_placement(proposed), ends=encode_offsets(ends))


def activated(topic: str, active: Placement, ends: Offsets, starts: Offsets, sources: tuple[str, ...]) -> Record:
    offsets = {"ends": encode_offsets(ends), "starts": encode_offsets(starts)}
    return ACTIVATED, _body(topic, active=encode_placement(active), sources=list(sources), **offsets)


def aborted(topic: str, version: int) -> Record:
    return ABORTED, _body(topic, version=version)


def passed(topic: str, version: int) -> Record:
    return PASSED, _body(topic, version=version)


def released(topic: str, version: int, source: str) -> Record:
    return RELEASED, _body(topic, version=version, source=source)


def emptied(topic: str) -> Record:
    return EMPTIED, _body(topic)


def dropped(topic: str) -> Record:
    return DROPPED, _body(topic)


def placing() -> Record:
    return PLACING, {"v": VERSION}


def _body(topic: str, **members: Any) -> dict[str, Any]:
    return {"v": VERSION, "topic": topic, **members}


def encode_placement(placement: Placement) -> list[Any]:
    return [placement.version, [[share.broker_name, share.queues] for share in placement.shares]]


def _placement(encoded: Any) -> Placement | None:
    if encoded is None:
        return None
    version, shares = encoded
    return Placement(version, tuple(Share(name, queues) for name, queues in shares))


def encode_offsets(offsets: Offsets) -> list[list[int]]:
    return [[queue, offset] for queue, offset in sorted(offsets.items())]
