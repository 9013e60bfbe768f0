"""The records of metadata in the replicated log: what each kind holds, and how it is read back (pure).

A record is a JSON object with `v`, the version of its layout, and `t`, the wall time of the change:

    topicPut      {v, t, topic: {name, r, w, perm, flag, order, attributes, multiTag unless false}}
    topicsDeleted {v, t, names}
    groupPut      {v, t, group: {name, fifo, retry, enabled, broadcast, retryQueues, and what of `_GROUP_EXTRAS` is unusual}}
    groupDeleted  {v, t, name, offsets: whether its consumer offsets go too}
    offsets       {v, t, o: [[group, topic, queue, offset], ...]}
    offsetsReset  {v, t, group, topic, o: [[queue, offset], ...]}: offsets too, and pending until the group was told
    resetsTaken   {v, t, o: [[group, topic, queue], ...]}: it was
    requestMode   {v, t, group, topic, mode: PULL or POP, share: how many share a member's queues}
    forbidden     {v, t, group, topic, forbidden: whether the group may not read the topic}
    takenOver     {v, t, rows, digest}: snapshot rows that replace those of the same name, taken from the files of RocketMQ that
                  have this digest; it is in the last of several such records only, and "" in the others
    queuesEmptied {v, t, q: [[topic, queue, next offset], ...]}: these queues hold no message any more and go on there
    snapshot rows: ["v", topic changes, time of the last], ["w", group changes, time of the last], ["t", topic], ["g", group],
                   ["o", group, topic, [[queue, offset], ...]]
                   ["d", name of a topic, physical end of the record that deleted it last],
                   ["m", group, topic, mode, share], ["f", group, topic] that is forbidden,
                   ["r", group, topic, [[queue, offset], ...]] of pending resets,
                   ["i", digest of what was taken over last]
                   and ["q", topic, queue, next offset of an emptied queue]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from brokerd.metadata.configs import GroupConfig, TopicConfig
from remoting.errors import CorruptedFile

VERSION: Final = 1

Record = tuple[str, Any]  # kind, body

TOPIC_PUT: Final = "topicPut"
TOPICS_DELETED: Final = "topicsDeleted"
GROUP_PUT: Final = "groupPut"
GROUP_DELETED: Final = "groupDeleted"
OFFSETS: Final = "offsets"
OFFSETS_RESET: Final = "offsetsReset"
RESETS_TAKEN: Final = "resetsTaken"
REQUEST_MODE: Final = "requestMode"
FORBIDDEN: Final = "forbidden"
TAKEN_OVER: Final = "takenOver"
QUEUES_EMPTIED: Final = "queuesEmptied"
# Members of a group's record that are left out when they have their usual value: the name there, and here.
_GROUP_EXTRAS: Final = {
    "fromMin": "consume_from_min_enable",
    "readAt": "read_broker_id",
    "readSlowAt": "read_broker_id_when_slow",
    "notify": "notify_ids_changed",
    "flag": "group_sys_flag",
    "timeoutMinutes": "consume_timeout_minutes",
    "policy": "retry_policy",
    "subscriptions": "subscriptions",
    "attributes": "attributes",
}
_USUAL_GROUP: Final = GroupConfig("")

KINDS: Final = (
    *(TOPIC_PUT, TOPICS_DELETED, GROUP_PUT, GROUP_DELETED, OFFSETS),
    *(OFFSETS_RESET, RESETS_TAKEN, REQUEST_MODE, FORBIDDEN),
    *(TAKEN_OVER, QUEUES_EMPTIED),
)


def encode_topic(config: TopicConfig) -> dict[str, Any]:
    return {
        "name": config.name,
        "r": config.read_queue_nums,
        "w": config.write_queue_nums,
        "perm": config.perm,
        "flag": config.topic_sys_flag,
        "order": config.order,
        "attributes": dict(config.attributes),
        **({"multiTag": True} if config.multi_tag else {}),
    }


def decode_topic(fields: Mapping[str, Any]) -> TopicConfig:
    return TopicConfig(
        fields["name"],
        fields["r"],
        fields["w"],
        fields["perm"],
        fields["flag"],
        fields["order"],
        fields["attributes"],
        fields.get("multiTag", False),
    )


def encode_group(config: GroupConfig) -> dict[str, Any]:
    extras = {short: getattr(config, name) for short, name in _GROUP_EXTRAS.items()}
    return {
        "name": config.name,
        "fifo": config.fifo,
        "retry": config.retry_max_times,
        "enabled": config.consume_enable,
        "broadcast": config.broadcast_enable,
        "retryQueues": config.retry_queue_nums,
        **{short: value for short, value in extras.items() if value != getattr(_USUAL_GROUP, _GROUP_EXTRAS[short])},
    }


def decode_group(fields: Mapping[str, Any]) -> GroupConfig:
    return GroupConfig(
        fields["name"],
        fields["fifo"],
        fields["retry"],
        fields["enabled"],
        fields["broadcast"],
        fields["retryQueues"],
        **{name: fields[short] for short, name in _GROUP_EXTRAS.items() if short in fields},
    )


def record(kind: str, now_ms: int, **members: Any) -> Record:
    """A record of this kind, with its members as they stand above."""
    return kind, {"v": VERSION, "t": now_ms, **members}


def offsets(entries: Mapping[tuple[str, str, int], int], now_ms: int) -> Record:
    """Consumer offsets by (group, topic, queue)."""
    return record(OFFSETS, now_ms, o=[[*key, offset] for key, offset in entries.items()])


def queues_emptied(ends: Mapping[tuple[str, int], int], now_ms: int) -> Record:
    """Where emptied queues go on, by (topic, queue)."""
    return record(QUEUES_EMPTIED, now_ms, q=[[*queue, end] for queue, end in ends.items()])


def unknown_kind(table: str, kind: str, end_offset: int) -> CorruptedFile:
    """The error for a record that nobody here can read; to leave it out would be to guess the state."""
    return CorruptedFile(
        f"the {table} record that ends at {end_offset} of the commitlog is of kind {kind[:40]!r}, which this version does not "
        "know: start the version that wrote it; or, when a disk damaged it, replace this replica's data directory by an empty one"
    )
