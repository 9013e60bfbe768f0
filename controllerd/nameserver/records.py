"""What brokers tell a name server, and what it tells them: values only (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

PERM_READ: Final = 4
PERM_WRITE: Final = 2
MASTER_ID: Final = 0
UNIT: Final = 1
UNIT_SUBSCRIBED: Final = 2
DEFAULT_TIMEOUT_MS: Final = 120_000
MAX_TOPICS: Final = 200_000
MAX_GROUPS: Final = 10_000


@dataclass(frozen=True, slots=True)
class DataVersion:
    """The version of a broker's topic table; equal when all three are."""

    counter: int = 0
    state_version: int = 0
    timestamp_ms: int = 0

    def as_json(self) -> dict[str, int]:
        return {"counter": self.counter, "stateVersion": self.state_version, "timestamp": self.timestamp_ms}


@dataclass(frozen=True, slots=True)
class QueueData:
    """A topic's queues on one broker group."""

    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_sys_flag: int = 0
    message_type: str = ""


@dataclass(frozen=True, slots=True)
class Registration:
    """What a broker says of itself.

    `is_complete`: topics that it does not name are gone. `acting_master`: whether its group lets the smallest id stand in for a
    missing master; None for brokers that do not know of that.
    """

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    ha_address: str = ""
    grpc_address: str = ""
    zone: str = ""
    timeout_ms: int = DEFAULT_TIMEOUT_MS
    data_version: DataVersion = DataVersion()
    topics: Mapping[str, QueueData] = field(default_factory=dict)
    is_complete: bool = False
    acting_master: bool | None = None
    incarnation: int = 0  # which start of the broker this is; 0 = not told


@dataclass(frozen=True, slots=True)
class MinIdChange:
    """The smallest id of a group is another one now: who is to be told, and of what.

    `offline_address` is the broker that left; `ha_address` that of the one that came with a smaller id.
    """

    broker_name: str
    min_broker_id: int
    min_address: str
    notify: tuple[str, ...]
    offline_address: str = ""
    ha_address: str = ""
