"""What the controllers' log drives: a state for each subject (pure)

The serving leader decides requests against its tail: the states as they will be when everything in its log is committed. So two
requests in a row see one another, and the records of an entry always fit the state that the entries before it give, on every
controller. The tail is that of one term of this leader: what it appended may come to nothing when it stops to lead, so the tail
is forgotten then, and is the committed states until it appends again.

`apply` takes records and decides nothing, so the controllers agree whatever their versions' rules and limits are. An entry or a
snapshot that a later version wrote is an UnknownFormat: the program must end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from controllerd.anchors.subject import AnchorsState
from controllerd.placements.state import PlacementsState
from controllerd.records.decision import Applied, Decision
from controllerd.records.entry import decode_entry, encode_entry
from controllerd.records.snapshot import decode_snapshot, encode_snapshot
from controllerd.records.subject import State, Subject, Subjects, UnknownFormat, highest_level
from controllerd.replicas.state import ReplicasState
from controllerd.state.features import Features
from controllerd.state.former import former_request, former_states
from controllerd.state.subjects import ACCESS, ANCHORS, FEATURES, PLACEMENTS, REPLICAS, SUBJECTS
from remoting.access.model import AccessState

# Hears of every record after it was applied, on every controller, with the subject's state as it is then; None instead of the
# record: a snapshot replaced the state. Must not fail.
Watcher = Callable[[Any, Any], None]

_NOBODY: Final[Mapping[str, Watcher]] = {}


class ControllerMachine:
    """Implements the Raft node's `StateMachine`. `watchers` are by subject."""

    def __init__(self, watchers: Mapping[str, Watcher] = _NOBODY, subjects: Subjects = SUBJECTS) -> None:
        self.highest_level = highest_level(subjects)
        self._subjects = subjects
        self._by_request = {request: subject for subject in subjects.values() for request in subject.requests}
        self._watchers = watchers
        self._states: dict[str, Any] = {name: subject.initial for name, subject in subjects.items()}
        self._tail: dict[str, Any] | None = None

    @property
    def replicas(self) -> ReplicasState:
        """What is committed about the brokers' replicas."""
        return self._committed(REPLICAS)

    @property
    def access(self) -> AccessState:
        """What is committed about users and permissions."""
        return self._committed(ACCESS)

    @property
    def features(self) -> Features:
        """What is committed about the formats that may be written."""
        return self._committed(FEATURES)

    @property
    def placements(self) -> PlacementsState:
        """What is committed about who takes which message groups."""
        return self._committed(PLACEMENTS)

    @property
    def anchors(self) -> AnchorsState:
        """What is committed about chains that are kept elsewhere."""
        return self._committed(ANCHORS)

    def _committed(self, subject: Subject[State, Any, Any]) -> State:
        state: State = self._states[subject.name]
        return state

    # The leader

    def decide(self, request: Any) -> bytes:
        """Decide a request against the tail; the entry to append. Changes nothing yet.

        Raises RequestError when the controllers have not agreed yet on a level at which the outcome can be written.
        """
        subject = self._by_request[type(request)]
        states = self._states if self._tail is None else self._tail
        decision = subject.decide(states[subject.name], request)
        return encode_entry(subject, decision, states[FEATURES.name].level)

    def appended(self, data: bytes) -> None:
        """This leader put what it decided last behind its log."""
        if self._tail is None:
            self._tail = dict(self._states)
        subject, decision = self._read(data)
        for record in decision.records:
            self._tail[subject.name] = subject.apply(self._tail[subject.name], record)

    def forget(self) -> None:
        """This controller does not lead any more: what it appended may not come to be."""
        self._tail = None

    # Everybody

    def apply(self, data: bytes) -> Applied[Any]:
        """Take the records of a committed entry. Raises UnknownFormat, and ProtocolError for what no controller writes."""
        subject, decision = self._read(data)
        for record in decision.records:
            self._take(subject.name, subject.apply(self._states[subject.name], record), record)
        return Applied(decision.reply, self._states[subject.name])

    def snapshot(self) -> bytes:
        return encode_snapshot(self._states, self._subjects)

    def restore(self, data: bytes) -> None:
        """Replace all states. Raises UnknownFormat, and ProtocolError for what no controller writes."""
        states = former_states(data)
        if states is None:
            states = decode_snapshot(data, self._subjects)
        self._tail = None
        for name, subject in self._subjects.items():
            self._take(name, states.get(name, subject.initial), None)

    def _read(self, data: bytes) -> tuple[Subject[Any, Any, Any], Decision[Any]]:
        request = former_request(data)
        if request is not None:  # written when everybody decided for itself, so nobody else has decided it
            subject = self._by_request[type(request)]
            return subject, subject.decide(self._states[subject.name], request)
        name, decision = decode_entry(data, self._subjects)
        return self._subjects[name], decision

    def _take(self, name: str, state: Any, record: Any) -> None:
        if name == FEATURES.name and state.level > self.highest_level:
            raise UnknownFormat(f"feature level {state.level}")
        self._states[name] = state
        if name in self._watchers:
            self._watchers[name](record, state)
