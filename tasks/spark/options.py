"""The options of the `logboom` data source, checked before anything is asked of a cluster (pure)

    controllers             host:port[,host:port...]                                            required
    subscribe               topic[,topic...]                                                    one of these two
    assign                  {"topic": {"broker group": [queue ids]}}                            is required
    startingOffsets         earliest (default), or {"topic": {"broker group": {"queue id": offset}}}; -2 earliest, -1 latest
    endingOffsets           latest (default), or the same form
    startingTimestamp       milliseconds since the epoch or RFC 3339: from the first message stored at or after it
    endingTimestamp         likewise: up to the last message stored before it
    minPartitions           read in at least so many tasks, if there are so many messages           default 1
    maxRecordsPerPartition  no task reads more messages than this                                   default 1,000,000
    failOnDataLoss          true (default): messages that are gone end the query; false: they are skipped
    timeoutMs               how long one answer may take                                            default 10,000
    retryForMs              for how long a task waits for a group that has no master                default 40,000
    tierUrl                 where the brokers keep what is old, as they have it: read there and not from them    absent: not
    tierOptions             the file with the store's own options, on each machine that reads                   absent: none
    tierAfterMs             younger messages are left to the brokers                                            default 3,600,000

Names of options are not case-sensitive, as everywhere in Spark. Every refusal names the option and the rule.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from remoting.errors import InvalidParameter
from remoting.transport.client import split_address

EARLIEST: Final = -2
LATEST: Final = -1
DEFAULT_MAX_RECORDS: Final = 1_000_000

Assignment = Mapping[str, Mapping[str, tuple[int, ...]]]
Offsets = Mapping[str, Mapping[str, Mapping[int, int]]]


@dataclass(frozen=True, slots=True)
class Options:
    """The options as they apply. Offsets are by topic, broker group and queue; what they do not name is earliest or latest."""

    controllers: tuple[str, ...]
    topics: tuple[str, ...] = ()
    assignment: Assignment | None = None
    starting_offsets: Offsets = field(default_factory=dict)
    ending_offsets: Offsets = field(default_factory=dict)
    starting_timestamp_ms: int | None = None
    ending_timestamp_ms: int | None = None
    min_partitions: int = 1
    max_records_per_partition: int = DEFAULT_MAX_RECORDS
    fail_on_data_loss: bool = True
    timeout_ms: int = 10_000
    retry_for_ms: int = 40_000
    tier_url: str = ""
    tier_options: str = ""
    tier_after_ms: int = 3_600_000
    meter_address: str | None = None
    meter_token: str = ""

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Options:
        """Check all options. Raises InvalidParameter for the first that breaks a rule."""
        known = {name.lower(): name for name in _OPTIONS}
        texts = {}
        for name, value in given.items():
            if name.lower() not in known:
                named = ", ".join(each for each in _OPTIONS if not each.startswith("meter"))
                raise InvalidParameter(f"the source logboom has no option {name}; it has {named}")
            texts[known[name.lower()]] = str(value)
        if "controllers" not in texts:
            raise InvalidParameter("controllers is missing: write the controllers' addresses, host:port[,host:port...]")
        if ("subscribe" in texts) == ("assign" in texts):
            raise InvalidParameter("give exactly one of subscribe (topics) and assign (queues)")
        for end in ("starting", "ending"):
            if f"{end}Offsets" in texts and f"{end}Timestamp" in texts:
                raise InvalidParameter(f"give {end}Offsets or {end}Timestamp, not both")
        values = {own: parse(name, texts[name]) for name, (own, parse) in _OPTIONS.items() if name in texts}
        if "assignment" in values:
            values["topics"] = tuple(sorted(values["assignment"]))
        return cls(**values)

    def starting_offset(self, topic: str, group: str, queue_id: int) -> int:
        """Where to start in a queue: an offset, or EARLIEST or LATEST."""
        return self.starting_offsets.get(topic, {}).get(group, {}).get(queue_id, EARLIEST)

    def ending_offset(self, topic: str, group: str, queue_id: int) -> int:
        """Where to end in a queue, likewise."""
        return self.ending_offsets.get(topic, {}).get(group, {}).get(queue_id, LATEST)


def _names(name: str, text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not names:
        raise InvalidParameter(f"{name} is empty: name at least one, several separated by commas")
    return names


def _addresses(name: str, text: str) -> tuple[str, ...]:
    addresses = _names(name, text)
    for address in addresses:
        split_address(address)
    return addresses


def _count(name: str, text: str) -> int:
    if not text.strip().isdecimal() or not 1 <= int(text) <= 2**31 - 1:
        raise InvalidParameter(f"{name} is {text!r}; it must be a whole number from 1 to {2**31 - 1}")
    return int(text)


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise InvalidParameter(f"{name} is {text!r}; it must be true or false")
    return text.lower() == "true"


def _time(name: str, text: str) -> int | None:
    if text.strip().isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError as error:
        rule = "milliseconds since the epoch, or RFC 3339 such as 2026-01-31T12:00:00Z"
        raise InvalidParameter(f"{name} is {text!r}; it must be {rule}") from error
    if moment.tzinfo is None:
        raise InvalidParameter(f"{name} is {text!r}: say the zone, such as 2026-01-31T12:00:00Z")
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return max(0, since.days * 86_400_000 + since.seconds * 1000 + since.microseconds // 1000)


def _object(name: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InvalidParameter(f"{name} is not JSON: {error}") from error
    if not isinstance(found, dict) or not all(isinstance(each, dict) for each in found.values()):
        raise InvalidParameter(f'{name} must be an object of objects: {{"topic": {{"broker group": ...}}}}')
    return found


def _assignment(name: str, text: str) -> Assignment:
    rule = f'{name} must be {{"topic": {{"broker group": [queue ids]}}}}'
    assignment: dict[str, dict[str, tuple[int, ...]]] = {}
    for topic, groups in _object(name, text).items():
        assignment[topic] = {}
        for group, queue_ids in groups.items():
            if not isinstance(queue_ids, list) or not queue_ids or not all(_is_whole(each, 0) for each in queue_ids):
                raise InvalidParameter(rule)
            assignment[topic][group] = tuple(sorted(set(queue_ids)))
    if not any(assignment.values()):
        raise InvalidParameter(f"{rule}; it names no queue")
    return assignment


def _offsets(name: str, text: str) -> Offsets:
    if text.lower() in ("earliest", "latest"):
        wanted = "earliest" if name == "startingOffsets" else "latest"
        if text.lower() != wanted:
            raise InvalidParameter(f"{name} is {text!r}: a batch that does so is always empty")
        return {}
    rule = f'{name} must be {{"topic": {{"broker group": {{"queue id": offset}}}}}}'
    offsets: dict[str, dict[str, dict[int, int]]] = {}
    for topic, groups in _object(name, text).items():
        offsets[topic] = {}
        for group, queues in groups.items():
            if not isinstance(queues, dict):
                raise InvalidParameter(rule)
            if not all(queue_id.isdecimal() and _is_whole(offset, EARLIEST) for queue_id, offset in queues.items()):
                raise InvalidParameter(f"{rule}; -2 is earliest, -1 is latest")
            offsets[topic][group] = {int(queue_id): offset for queue_id, offset in queues.items()}
    return offsets


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


# Name -> the field that it fills, and what reads it. The meter's are the report's own.
_OPTIONS: Final[Mapping[str, tuple[str, Callable[[str, str], Any]]]] = {
    "controllers": ("controllers", _addresses),
    "subscribe": ("topics", _names),
    "assign": ("assignment", _assignment),
    "startingOffsets": ("starting_offsets", _offsets),
    "endingOffsets": ("ending_offsets", _offsets),
    "startingTimestamp": ("starting_timestamp_ms", _time),
    "endingTimestamp": ("ending_timestamp_ms", _time),
    "minPartitions": ("min_partitions", _count),
    "maxRecordsPerPartition": ("max_records_per_partition", _count),
    "failOnDataLoss": ("fail_on_data_loss", _flag),
    "timeoutMs": ("timeout_ms", _count),
    "retryForMs": ("retry_for_ms", _count),
    "tierUrl": ("tier_url", lambda _, text: text),
    "tierOptions": ("tier_options", lambda _, text: text),
    "tierAfterMs": ("tier_after_ms", _count),
    "meterAddress": ("meter_address", lambda _, text: text),
    "meterToken": ("meter_token", lambda _, text: text),
}
