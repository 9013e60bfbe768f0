"""Placements for the rest of the broker: who takes a message group, and the journal of what this group has prepared for.

The master follows the controllers: it records what it prepares for and what came into force, and tells them of the former when
that is acknowledged, so that whoever leads the group later knows of it too. What a record says holds once it is appended.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from brokerd.journal.journal import Journal, JournalSettings
from brokerd.journal.reading import Reading
from brokerd.journal.record_log import RecordLog
from brokerd.journal.slices import InSlices
from brokerd.loop.scheduler import Scheduler
from brokerd.placement import table
from brokerd.placement.handovers import Handovers
from brokerd.placement.placement import Placement, owner_of
from brokerd.placement.rules import Owner, Waiting, names_of, news_of, owner_now, placement_of
from brokerd.placement.table import PlacementTable, Record, TopicState
from brokerd.store.derived.dispatcher import Arrival
from brokerd.store.put_status import PutStatus
from remoting.errors import LogboomError, RequestError
from remoting.facts.placements import PlacementNews

log = logging.getLogger(__name__)

PLACEMENTS_TOPIC: Final = "rmq_sys_logboom_placements"

_FORGOTTEN_AT_ONCE: Final = 100

QueueEnds = Callable[[str], Mapping[int, int]]  # where each queue of a topic ends in the log


class PlacementService:
    """A `journal.resident.Resident`. `changed` listeners hear when a message group may have another owner."""

    own_topics: Final = frozenset({PLACEMENTS_TOPIC})

    def __init__(
        self,
        record_log: RecordLog,
        broker_name: str,
        queue_ends: QueueEnds,
        scheduler: Scheduler,
        journal_settings: JournalSettings | None = None,
    ) -> None:
        self.handovers = Handovers()
        self.table = PlacementTable(self.handovers)
        self.listeners: list[Callable[[], None]] = []
        self._own = broker_name
        self._queue_ends = queue_ends
        self._scheduler = scheduler
        self._journal = Journal(
            record_log,
            Reading(PLACEMENTS_TOPIC, self.table),
            journal_settings,
            in_slices=InSlices(self.table.freeze, self.table.begin_again, scheduler),
        )
        self._is_leading = False
        self._revision = -1  # of the latest news since this broker leads
        self._complete = -1  # and of those after which all was known
        self._announced: tuple[int, bool] | None = None  # with which of them `listeners` heard last
        self._is_placing = False
        self._elsewhere: dict[str, Placement] = {}  # of topics in whose placement this group is not
        self._durable_to = 0  # prepared records that end there are acknowledged
        self._prepared_at: dict[str, tuple[int, int]] = {}  # by topic: the version, and where its record ends

    # ---- who takes a message group

    def owner(self, topic: str, message_group: str) -> Owner | Waiting | None:
        """The broker group and its queue; None: no placement says, so whoever is asked takes it, and chooses the queue."""
        state = self.table.topics.get(topic)
        elsewhere = self._elsewhere.get(topic) if self._elsewhere else None
        if state is None or (elsewhere is not None and state.proposed is None):
            if elsewhere is not None:
                return owner_of(elsewhere, message_group)
            is_known = self._complete >= 0 and not self._is_placing
            return None if is_known or not self.table.is_placing else Waiting.UNKNOWN
        return owner_now(state, message_group)

    def version_of(self, topic: str) -> int:
        """Of the placement in force, as far as it is known here; 0 for none."""
        state, elsewhere = self.table.topics.get(topic), self._elsewhere.get(topic)
        known = (state.active if state is not None else None, elsewhere)
        return max((each.version for each in known if each is not None), default=0)

    @property
    def changes(self) -> Mapping[str, TopicState]:
        """By topic, what is prepared and neither in force nor given up yet."""
        return self.table.changes

    # ---- the controllers

    @property
    def revision(self) -> int:
        """Up to where the controllers' news are known; 0 when none came since this broker leads."""
        return max(0, self._revision)

    @property
    def complete(self) -> int:
        """The revision at which all was known last, also what nobody has any more; 0 when that was not yet since this broker
        leads."""
        return max(0, self._complete)

    def prepared(self) -> Mapping[str, int]:
        """By topic, the versions that this group has prepared for and that whoever leads it later will know of."""
        return {
            topic: state.proposed.version
            for topic, state in self.table.changes.items()
            if state.proposed is not None and self._is_durable(topic, state.proposed.version)
        }

    def take(self, news: PlacementNews, acknowledged: Callable[[], None]) -> bool:
        """Follow what the controllers agreed on; `acknowledged` when all that this recorded is, if it is.

        Whether that was all: topics that are not among the `names` are forgotten some at a time, and the same news have to be
        taken again then. Raises what `Journal.append` raises; what was taken until then stays, and so they can be, too.
        """
        if not self._is_leading or news.revision < self._revision:
            return True
        if news.is_placing and not self.table.is_placing:
            self._journal.append(*table.placing())
        before = self._journal.applied_offset
        for fact in news.topics:
            state = self.table.topics.get(fact.topic)
            ends = self._queue_ends(fact.topic)
            for record in news_of(fact, news.last_version, state, self._own, ends):
                self._record(record)
            active = placement_of(fact.active)
            if active is not None and self._own not in names_of(active):
                self._elsewhere[fact.topic] = active
            else:
                self._elsewhere.pop(fact.topic, None)
        is_all = news.names is None or self._forget_all_but(set(news.names), news.last_version)
        self._revision = news.revision
        self._is_placing = news.is_placing
        if self._journal.applied_offset > before:
            self._when_durable(acknowledged)
        if is_all and not news.more:
            self._complete = news.revision
            self._announce()
        return is_all

    def prune(self, topic: str, version: int) -> None:
        """Nobody needs that handover any more. Raises what `Journal.append` raises."""
        if any(each.version == version for each in self.handovers.of(topic)):
            self._record(table.passed(topic, version))

    def release(self, topic: str, source: str, done: Callable[[RequestError | None], None]) -> None:
        """Wait no more, at any handover of the topic, for what lies in a source; `done` when that cannot be lost."""
        versions = [each.version for each in self.handovers.of(topic) if source in each.sources]
        self._journal.record([table.released(topic, version, source) for version in versions], done)

    def topic_deleted(self, topic: str) -> None:
        """The topic was deleted in this broker group: on the master its queues begin anew."""
        self._scheduler.call_soon(self._empty, topic)

    # ---- resident of the log

    def held_offset(self) -> int | None:
        return self._journal.held_offset()

    def dispatched(self, _arrivals: Sequence[Arrival]) -> None:
        self._journal.follow()

    def truncated(self, end_offset: int) -> None:
        self._journal.truncated(end_offset)

    def rolled(self) -> None:
        self._journal.want_snapshot()
        self._scheduler.call_soon(self._journal.maintain)

    def rebuild(self) -> None:
        self._journal.rebuild()

    def catch_up(self) -> None:
        self._journal.catch_up()

    def lead(self) -> None:
        """What an earlier master prepared has to be acknowledged again before the controllers are told of it."""
        self._is_leading = True
        self._journal.maintain_when_settled()
        if self._journal.applied_offset:
            self._when_durable(lambda: None)

    def step_down(self) -> None:
        self._is_leading = False
        self._revision = self._complete = -1
        self._announced = None
        self._is_placing = False
        self._elsewhere.clear()
        self._durable_to = 0
        self._prepared_at.clear()

    def close(self) -> None:
        self._journal.close()

    # ---- inside

    def _record(self, record: Record) -> None:
        kind, body = record
        end_offset = self._journal.append(kind, body)
        if kind == table.PREPARED:
            version = body["proposed"][0]
            self._prepared_at[body["topic"]] = version, end_offset
            log.info("%s: prepared for version %d of its placement", body["topic"], version)
        elif kind in (table.ACTIVATED, table.ABORTED, table.DROPPED):
            self._prepared_at.pop(body["topic"], None)
        if kind == table.ACTIVATED:
            log.info("%s: version %d of its placement is in force", body["topic"], body["active"][0])
        elif kind == table.ABORTED:
            log.warning("%s: version %d of its placement came to nothing", body["topic"], body["version"])

    def _announce(self) -> None:
        known = self._revision, self._is_placing
        if known != self._announced:
            self._announced = known
            for listener in self.listeners:
                listener()

    def _forget_all_but(self, topics: set[str], last_version: int) -> bool:
        """Whether that is all; when it was not, these topics have to be asked for again."""
        for topic in self._elsewhere.keys() - topics:
            del self._elsewhere[topic]
        gone = [topic for topic in self.table.topics.keys() - topics if self._newest(topic) <= last_version]
        for topic in gone[:_FORGOTTEN_AT_ONCE]:
            self._record(table.dropped(topic))
        return len(gone) <= _FORGOTTEN_AT_ONCE

    def _newest(self, topic: str) -> int:
        state = self.table.topics[topic]
        return max(each.version for each in (state.active, state.proposed) if each is not None)

    def _is_durable(self, topic: str, version: int) -> bool:
        """A record that this broker did not append itself was in the log when it began to lead."""
        own_version, end_offset = self._prepared_at.get(topic, (version, 1))
        return own_version == version and end_offset <= self._durable_to

    def _when_durable(self, then: Callable[[], None]) -> None:
        end_offset = self._journal.applied_offset

        def done(status: PutStatus) -> None:
            if status is PutStatus.PUT_OK and self._is_leading:
                self._durable_to = max(self._durable_to, end_offset)
                then()

        self._journal.when_acknowledged(end_offset, done)

    def _empty(self, topic: str) -> None:
        if self._is_leading and (self.handovers.of(topic) or topic in self.table.topics):
            try:
                self._record(table.emptied(topic))
            except LogboomError as error:
                log.warning("what moved of the deleted topic %s stays as it was: %s", topic, error)
