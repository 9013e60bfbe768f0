"""What became of an append, once it is known whether it is acknowledged (pure)."""

from __future__ import annotations

from enum import IntEnum


class PutStatus(IntEnum):
    """The outcome of an append as its producer learns it. The timeouts mean: stored here, not (yet) everywhere."""

    PUT_OK = 0
    FLUSH_DISK_TIMEOUT = 1
    FLUSH_SLAVE_TIMEOUT = 2
    SERVICE_NOT_AVAILABLE = 3  # refused before the append, or the role changed while waiting (then: unknown)
    IN_SYNC_REPLICAS_NOT_ENOUGH = 4
    MESSAGE_ILLEGAL = 5
