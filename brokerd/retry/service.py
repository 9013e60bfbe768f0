"""Takes back what consumers could not handle: by its place in the log, or as a message that a client sends to the retry topic.

A copy is stored like any message that the broker makes itself, and whoever gave the message back is answered when it is
acknowledged: until then the consumer must not go on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Final, NamedTuple

from brokerd.delay.levels import Delays
from brokerd.delay.rules import schedule
from brokerd.journal.record_log import RecordLog
from brokerd.metadata.configs import TopicConfig
from brokerd.metadata.groups import ensure_group
from brokerd.metadata.service import MetadataService
from brokerd.retry.rules import decide_copy, limit_of, sent_again
from brokerd.store.draft import Draft
from brokerd.store.put_status import PutStatus
from brokerd.store.store import MessageStore
from remoting import codes
from remoting.errors import RequestError
from remoting.names import DEAD_LETTER_PREFIX, RETRY_PREFIX, group_of_retry_topic
from remoting.record.codec import Record, decode_record
from remoting.record.properties import decode_properties

_WRITE: Final = 2
_HAS_UNIT_SUBSCRIPTION: Final = 2  # of a topic's flags


class SentBack(NamedTuple):
    """A consumer's request. `level` < 0 asks for a dead letter, 0 for a delay that grows with the count. `limit` is how often the
    consumer wants to get a message again, None when it does not say; `version` that of the client. `topic` is the message's, if
    the consumer says so: what is in the tier only is found by it."""

    group: str
    physical_offset: int
    level: int
    limit: int | None
    version: int
    unit_mode: bool = False
    topic: str = ""


@dataclass(slots=True)
class RetryCounters:
    """Running totals since the start, of both ways."""

    returned: int = 0  # to a retry topic
    dead_lettered: int = 0

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


class RetryRules(NamedTuple):
    """`is_ordered(group)` says whether somebody holds a lock of one of its queues."""

    delays: Delays
    is_ordered: Callable[[str], bool]
    auto_create_groups: bool


class RetryService:
    """`turn_of(topic)` chooses one of n queues."""

    def __init__(
        self,
        metadata: MetadataService,
        reads: MessageStore,
        record_log: RecordLog,
        turn_of: Callable[[str], Callable[[int], int]],
        rules: RetryRules,
        counters: RetryCounters,
    ) -> None:
        self.counters = counters
        self.listeners: list[Callable[[str, str], None]] = []  # hear of the topic and the group of what was given back
        self._metadata = metadata
        self._reads = reads
        self._log = record_log
        self._turn_of = turn_of
        self._rules = rules

    def send_back(
        self,
        request: SentBack,
        done: Callable[[RequestError | None], None],
        may_use: Callable[[Record], None],
    ) -> None:
        """Store what becomes of the message; `done` follows when that is acknowledged. `may_use` raises RequestError when the
        message is none that who asks may read.

        Raises LogboomError when nothing was stored.
        """
        group = ensure_group(self._metadata, request.group, self._rules.auto_create_groups)
        if group.retry_queue_nums <= 0:  # the group wants nothing back
            done(None)
            return
        sys_flag = _HAS_UNIT_SUBSCRIPTION if request.unit_mode else 0
        retry_topic = self._topic(f"{RETRY_PREFIX}{group.name}", group.retry_queue_nums, sys_flag)
        if not retry_topic.perm & _WRITE:
            raise RequestError(
                codes.NO_PERMISSION,
                f"topic {retry_topic.name} does not accept messages (its permission has no write); change that so that "
                f"messages come back to {group.name}",
            )
        encoded = self._reads.message_at(request.physical_offset)
        for each in (request.topic, retry_topic.name):
            if encoded is None and each:
                encoded = self._reads.cold_message_at(each, request.physical_offset)
        if encoded is None:
            raise RequestError(
                codes.SYSTEM_ERROR,
                f"no message that consumers can read starts at offset {request.physical_offset} of this broker's log",
            )
        may_use(decode_record(encoded))
        draft = decide_copy(group.name, encoded, request.level, limit_of(group, request.limit, request.version))
        if draft is None:
            done(None)
            return
        if draft.topic == retry_topic.name:
            queues = min(group.retry_queue_nums, retry_topic.write_queue_nums)
            draft = schedule(draft._replace(queue_id=self._turn_of(draft.topic)(max(1, queues))), self._rules.delays)
            self.counters.returned += 1
        else:
            self._topic(draft.topic, 1)
            self.counters.dead_lettered += 1
        end_offset = self._log.append_messages([draft])
        topic = decode_properties(draft.properties).get("RETRY_TOPIC", draft.topic)
        for listener in self.listeners:
            listener(topic, group.name)
        self._log.when_acknowledged(end_offset, lambda status: done(_error_of(status)))

    def sent_again(self, draft: Draft, limit: int | None, version: int) -> Draft:
        """Where a message goes that a client sends to a retry topic; its topic is there afterwards.

        Raises RequestError SUBSCRIPTION_GROUP_NOT_EXIST for a group that is not there: nobody would ever read the message.
        """
        name = group_of_retry_topic(draft.topic)
        group = self._metadata.group(name) if name else None
        if name is None or group is None:
            raise RequestError(
                codes.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"consumer group {name} does not exist; create it before sending to {draft.topic}",
            )
        found = sent_again(draft, name, limit_of(group, limit, version), is_ordered=self._rules.is_ordered(name))
        is_dead = found.topic.startswith(DEAD_LETTER_PREFIX)
        self._topic(found.topic, 1 if is_dead else max(1, group.retry_queue_nums))
        self.counters.dead_lettered += is_dead
        self.counters.returned += not is_dead
        return found

    def _topic(self, name: str, queues: int, sys_flag: int = 0) -> TopicConfig:
        """The topic, made when it is not there. Raises RequestError when that fails."""
        error = self._metadata.ensure_topic(name, queues, sys_flag)
        config = self._metadata.topic(name)
        if error is not None or config is None:
            raise error or RequestError(codes.SYSTEM_ERROR, f"topic {name} could not be made")
        return config


def _error_of(status: PutStatus) -> RequestError | None:
    """What the consumer is told, which then has to keep the message; None when the copy is safe."""
    if status is PutStatus.PUT_OK:
        return None
    return RequestError(
        codes.SYSTEM_ERROR, f"whether the message comes back is not certain ({status.name}); it may come twice"
    )
