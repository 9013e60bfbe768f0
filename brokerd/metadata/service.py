"""Topics, groups and consumer offsets for the rest of the broker: decide, append the record, apply it, answer when acknowledged.

Everything happens in the call: when `put_topic` returns, the change is visible here (or refused), and `done` follows when the
record is acknowledged. Consumer offsets are the exception: the commits of a few milliseconds share one record.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from brokerd.journal.journal import Journal, JournalSettings
from brokerd.journal.reading import Reading
from brokerd.journal.record_log import RecordLog
from brokerd.loop.scheduler import Scheduler
from brokerd.metadata import records
from brokerd.metadata.configs import GroupConfig, TopicConfig
from brokerd.metadata.consumer_rules import RequestMode
from brokerd.metadata.decide import Decision, Rules
from brokerd.metadata.names import METADATA_TOPIC
from brokerd.metadata.offset_commits import Done, OffsetCommits
from brokerd.metadata.records import Record
from brokerd.metadata.tables import Change
from brokerd.store.again import Copies
from brokerd.store.derived.dispatcher import Arrival
from brokerd.store.draft import Draft
from remoting.errors import LogboomError, RequestError, as_request_error

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DataVersion:
    """The version of the topic or the group table, which readers compare; equal on every replica at the same log position."""

    counter: int
    state_version: int  # the master epoch
    timestamp_ms: int

    def as_json(self) -> dict[str, int]:
        return {"counter": self.counter, "stateVersion": self.state_version, "timestamp": self.timestamp_ms}


class Preface(Protocol):
    """What a master has to bring into the log before any other record of the metadata."""

    def overlay(self, metadata: MetadataService) -> None:
        """The tables were read from the log: show in them what is not in it yet."""

    def record(self, metadata: MetadataService) -> None:
        """Bring it into the log, unless it is there. Raises LogboomError when the log takes no records."""

    def begin(self, metadata: MetadataService) -> None:
        """This broker is the master now: record it, or see to it that it is recorded soon."""


class MetadataService:
    """Implements `configs.Metadata`; a `journal.resident.Resident`, the first. `tables` are those of the `rules`."""

    own_topics: Final = frozenset({METADATA_TOPIC})

    def __init__(
        self,
        record_log: RecordLog,
        rules: Rules,
        scheduler: Scheduler,
        journal_settings: JournalSettings | None = None,
        preface: Preface | None = None,
    ) -> None:
        self.names, self.tables = rules.names, rules.tables
        self.listeners: list[Callable[[Change], None]] = []
        self._rules = rules
        self._preface = preface
        self._notifying = _Notifying(self)
        self.journal = Journal(
            record_log, Reading(METADATA_TOPIC, self._notifying), journal_settings, self._record_preface
        )
        self.commits = OffsetCommits(self.journal, self.tables, scheduler, rules.now_ms)
        self._scheduler = scheduler

    # ---- reading

    def topic(self, name: str) -> TopicConfig | None:
        return self.tables.topics.get(name) or self.names.topics.get(name)

    def topics(self) -> Mapping[str, TopicConfig]:
        return {**self.names.topics, **self.tables.topics}

    def group(self, name: str) -> GroupConfig | None:
        return self.tables.groups.get(name) or self.names.groups.get(name)

    def groups(self) -> Mapping[str, GroupConfig]:
        return {**self.names.groups, **self.tables.groups}

    def consumer_offset(self, group: str, topic: str, queue_id: int) -> int | None:
        return self.tables.consumer_offset(group, topic, queue_id)

    def deleted_at(self, topic: str) -> int:
        """The physical end of the record that deleted a topic of this name last, -1 when none did: what lies below is not its."""
        return self.tables.topics_deleted_at.get(topic, -1)

    def data_version(self, master_epoch: int) -> DataVersion:
        return DataVersion(self.tables.topic_changes, master_epoch, self.tables.topics_changed_ms)

    def group_data_version(self, master_epoch: int) -> DataVersion:
        return DataVersion(self.tables.group_changes, master_epoch, self.tables.groups_changed_ms)

    # ---- changing

    def put_topic(self, config: TopicConfig, done: Done) -> None:
        self.put_topics((config,), done)

    def put_topics(self, configs: Sequence[TopicConfig], done: Done) -> None:
        """Create or change topics: all of them, or none when one is refused."""
        self._change(lambda: list(map(self._rules.put_topic, configs)), done)

    def ensure_topic(self, name: str, queues: int = 1, sys_flag: int = 0) -> RequestError | None:
        """Create a retry or dead-letter topic that the broker needs, unless it is there; the reason if that failed.

        Nobody needs to wait: whatever is appended after it survives only with it.
        """
        if name in self.tables.topics:
            return None
        return self._make(lambda: self._rules.ensure_topic(name, queues, sys_flag))

    def make_topic_like(self, name: str, template: str, queues: int, *, is_unit: bool = False) -> RequestError | None:
        """Create a topic after a template, if there is one that allows it; the reason if that failed. Nobody needs to wait, as in
        `ensure_topic`."""
        return self._make(lambda: self._rules.topic_like(name, self.topic(template), queues, is_unit=is_unit))

    def delete_topic(self, name: str, done: Done) -> None:
        self._change(lambda: [self._rules.delete_topic(name)], done)

    def put_group(self, config: GroupConfig, done: Done) -> None:
        self.put_groups((config,), done)

    def put_groups(self, configs: Sequence[GroupConfig], done: Done) -> None:
        """Create or change consumer groups: all of them, or none when one is refused."""
        self._change(lambda: list(map(self._rules.put_group, configs)), done)

    def delete_group(self, name: str, done: Done, clean_offsets: bool = True) -> None:
        def then(error: RequestError | None) -> None:
            if error is not None:
                log.warning("the retry topics of the deleted group %s remain: %s", name, error)

        known = name in self.tables.groups
        self._change(lambda: [self._rules.delete_group(name, clean_offsets=clean_offsets)], done)
        if known and name not in self.tables.groups:
            self._change(lambda: [self._rules.delete_retry_topics(name)], then)

    def record(self, decisions: Sequence[Record], done: Done) -> None:
        """Record what the broker itself decided; `done` when all of it is acknowledged."""
        self.journal.record(decisions, done)

    def commit_offset(self, group: str, topic: str, queue_id: int, offset: int, done: Done | None) -> None:
        self.commits.commit(group, topic, queue_id, offset, done)

    # ---- what a group may and must do with a topic

    def request_mode(self, group: str, topic: str) -> RequestMode | None:
        """How its members should ask for messages; None when nobody decided."""
        return self.tables.rules.modes.get((group, topic))

    def request_modes(self) -> Sequence[tuple[str, str, RequestMode]]:
        """(group, topic, mode) of all that somebody decided."""
        return [(group, topic, mode) for (group, topic), mode in sorted(self.tables.rules.modes.items())]

    def set_request_mode(self, group: str, topic: str, mode: RequestMode, done: Done) -> None:
        self._change(lambda: [self._rules.request_mode(group, topic, mode)], done)

    def is_forbidden(self, group: str, topic: str) -> bool:
        """Whether the group may not read the topic."""
        forbidden = self.tables.rules.forbidden
        return bool(forbidden) and (group, topic) in forbidden

    def forbid(self, group: str, topic: str, forbidden: bool, done: Done) -> None:
        self._change(lambda: [self._rules.forbid(group, topic, forbidden)], done)

    def pending_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Where a group has to go on in a queue, when it was not told yet."""
        return self.tables.rules.pending_reset(group, topic, queue_id)

    def take_resets(self, queues: Sequence[tuple[str, str, int]]) -> None:
        """A group consumes (group, topic, queue): what was reset of that is not pending any more. Nobody waits."""
        rules = self.tables.rules
        if rules.resets:
            pending = [queue for queue in queues if rules.pending_reset(*queue) is not None]
            if pending:
                self.commits.take_resets(pending, lambda _error: None)

    def forbidden(self) -> Mapping[str, Sequence[str]]:
        """Group -> topics that it may not read."""
        found: dict[str, list[str]] = {}
        for group, topic in sorted(self.tables.rules.forbidden):
            found.setdefault(group, []).append(topic)
        return found

    def commit_behind(self, messages: Sequence[Draft | Copies], offsets: Mapping[tuple[str, str, int], int]) -> int:
        """Append messages and, right behind them, a record that commits offsets by (group, topic, queue): one write, and all of
        it or nothing. Where the record ends. Raises LogboomError when the log takes nothing; then nothing changed.
        """
        return self.journal.append_trailing(messages, *records.offsets(offsets, self._rules.now_ms()))

    # ---- resident of the log

    def held_offset(self) -> int | None:
        return self.journal.held_offset()

    def dispatched(self, _arrivals: Sequence[Arrival]) -> None:
        """Apply the records that are new here."""
        if self.journal.begins_later:
            self._rebuild_muted(self.journal.follow)
        else:
            self.journal.follow()

    def truncated(self, end_offset: int) -> None:
        """Rebuild if that took away something that is applied here."""
        self._rebuild_muted(lambda: self.journal.truncated(end_offset))

    def rolled(self) -> None:
        self.journal.want_snapshot()
        self._scheduler.call_soon(self.journal.maintain)

    def rebuild(self) -> None:
        self._rebuild_muted(self.journal.rebuild)

    def catch_up(self) -> None:
        if self.journal.begins_later:
            self._rebuild_muted(self.journal.catch_up)
        else:
            self.journal.catch_up()

    def lead(self) -> None:
        """Begin with the preface; the others follow."""
        self._scheduler.call_soon(self.journal.maintain)
        if self._preface is not None:
            self._preface.begin(self)

    def step_down(self) -> None:
        """Nothing: commits that wait for their record are refused when its time comes, a few milliseconds later."""

    def close(self) -> None:
        """Commit what is pending and stop the timer."""
        self.commits.close()

    # ---- inside

    def _record_preface(self) -> None:
        if self._preface is not None:
            self._preface.record(self)

    def _rebuild_muted(self, rebuild: Callable[[], None]) -> None:
        """Old records are not told one by one: who derives from the tables compares afresh."""
        self._notifying.muted = True
        try:
            rebuild()
            if self._notifying.cleared and self._preface is not None:
                self._preface.overlay(self)
        finally:
            self._notifying.muted = False
        if self._notifying.cleared:
            self._notifying.cleared = False
            for listener in self.listeners:
                listener(Change(self.journal.applied_offset, rebuilt=True))

    def _make(self, decision: Callable[[], Decision]) -> RequestError | None:
        """Record a decision for which nobody waits; the reason if that failed."""
        try:
            decided = decision()
            if decided is not None:
                self.journal.append(*decided)
        except LogboomError as error:
            return as_request_error(error)
        return None

    def _change(self, decisions: Callable[[], Sequence[Decision]], done: Done) -> None:
        def decided() -> Iterator[Record]:
            yield from filter(None, decisions())  # all of them are made before the first is recorded

        self.journal.record(decided(), done)


_UNTOLD = frozenset({records.OFFSETS, records.OFFSETS_RESET, records.RESETS_TAKEN})


class _Notifying:
    """The tables as the journal sees them: whoever derives something from them hears of each change."""

    def __init__(self, service: MetadataService) -> None:
        self._service = service
        self._tables = service.tables
        self.muted = False
        self.cleared = False
        self.snapshot_rows = service.tables.snapshot_rows
        self.load_row = service.tables.load_row

    def clear(self) -> None:
        self.cleared = True
        self._tables.clear()

    def apply(self, kind: str, body: Any, end_offset: int) -> None:
        change = self._tables.apply(kind, body, end_offset)
        if kind == records.TOPICS_DELETED:
            self._service.commits.forget(lambda key: key[1] in change.topics_deleted)
        elif kind == records.GROUP_DELETED and body["offsets"]:
            self._service.commits.forget(lambda key: key[0] in change.groups_deleted)
        if kind not in _UNTOLD and not self.muted:
            for listener in self._service.listeners:
                listener(change)


def topic_json(config: TopicConfig) -> dict[str, Any]:
    """A topic's configuration as the protocol writes it."""
    return {
        "attributes": dict(config.attributes),
        "order": config.order,
        "perm": config.perm,
        "readQueueNums": config.read_queue_nums,
        "topicFilterType": "MULTI_TAG" if config.multi_tag else "SINGLE_TAG",
        "topicName": config.name,
        "topicSysFlag": config.topic_sys_flag,
        "writeQueueNums": config.write_queue_nums,
    }
